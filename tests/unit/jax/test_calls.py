"""Calls from JAX."""

import subprocess
import sys

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError, ExchangeMismatch
from support.threads import run_ranks

# Calls on ranks that are threads: what a transpose is, what stays as it was, what is refused
pytest.importorskip("jax")
calls = pytest.importorskip("hpccoll.jax.calls")

SIZES = (1, 2, 3, 5, 7, 8)


def flat(comm, root):
    return (3,)


def per_rank(comm, root):
    return (comm.size, 2)


def at_root(comm, root):
    return (comm.size, 2) if comm.rank == root else (2,)


def around(comm, root):
    return calls.Sendrecv(comm=comm, dest=(comm.rank + 1) % comm.size, sendtag=4, recvtag=4,
                          source=(comm.rank - 1) % comm.size, received=(3,))


LINEAR = {
    "allreduce": (lambda comm, root: calls.Allreduce(comm=comm, op=MPI.SUM), flat),
    "reduce": (lambda comm, root: calls.Reduce(comm=comm, op=MPI.SUM, root=root), flat),
    "bcast": (lambda comm, root: calls.Bcast(comm=comm, root=root), flat),
    "allgather": (lambda comm, root: calls.Allgather(comm=comm), flat),
    "gather": (lambda comm, root: calls.Gather(comm=comm, root=root), flat),
    "scatter": (lambda comm, root: calls.Scatter(comm=comm, root=root), at_root),
    "reduce_scatter": (lambda comm, root: calls.ReduceScatter(comm=comm, op=MPI.SUM), per_rank),
    "alltoall": (lambda comm, root: calls.Alltoall(comm=comm), per_rank),
    "scan": (lambda comm, root: calls.Scan(comm=comm, op=MPI.SUM), flat),
    "sendrecv": (around, flat),
}


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("size", SIZES)
def test_a_transpose_is_one(name, size):
    """Over all ranks <y, Ax> = <A'y, x>, and the transpose of the transpose is the call."""
    make, shape = LINEAR[name]

    def rank(comm):
        root = comm.size - 1
        call, operand = make(comm, root), shape(comm, root)
        x = numpy.arange(1.0, 1 + numpy.prod(operand)).reshape(operand) * (comm.rank + 2)
        x.flags.writeable = False
        result = call(x)
        assert result.shape == call.shape(operand)
        y = numpy.arange(3.0, 3 + result.size).reshape(result.shape) * (5 - comm.rank)
        back = call.transpose(operand)
        pulled = back(y)
        assert pulled.shape == operand
        numpy.testing.assert_array_equal(back.transpose(result.shape)(x), result)
        return (y * result).sum(), (pulled * x).sum()

    forward, backward = numpy.sum(run_ranks(size, rank), axis=0)
    assert forward == backward != 0


@pytest.mark.parametrize("name", LINEAR)
def test_an_axis_behind_the_others_is_a_longer_element(name):
    make, shape = LINEAR[name]

    def rank(comm):
        call, operand = make(comm, 0), shape(comm, 0)
        x = numpy.arange(1.0, 1 + numpy.prod(operand)).reshape(operand) + 10 * comm.rank
        both = call.batch(2)(numpy.stack([x, 3 * x], axis=-1))
        numpy.testing.assert_array_equal(both[..., 0], call(x))
        numpy.testing.assert_array_equal(both[..., 1], call(3 * x))

    run_ranks(3, rank)


def test_without_a_derivative():
    def rank(comm):
        refused = [
            calls.Allreduce(comm=comm, op=MPI.MAX), calls.Scan(comm=comm, op=MPI.PROD),
            calls.Reduce(comm=comm, op=MPI.MIN, root=0), calls.ReduceScatter(comm=comm, op=MPI.MAX),
            calls.SendCall(comm=comm, dest=0, tag=0), calls.RecvCall(comm=comm, source=0, tag=0),
            calls.Sendrecv(comm=comm, dest=0, source=MPI.ANY_SOURCE, sendtag=0, recvtag=0,
                           received=(1,))]
        for call in refused:
            with pytest.raises(ArgumentTypeError, match="derivative"):
                call.transpose((1,))

    run_ranks(1, rank)


@pytest.mark.parametrize("shape", [(), (2,), (4, 3)])
def test_first_axes_have_an_entry_per_rank(shape):
    def rank(comm):
        for call in (calls.Alltoall(comm=comm), calls.ReduceScatter(comm=comm, op=MPI.SUM),
                     calls.Scatter(comm=comm, root=comm.rank)):
            with pytest.raises(ArgumentError, match="3.*entries"):
                call.shape(shape)

    run_ranks(3, rank)


def test_a_number_stays_one():
    def rank(comm):
        for call in (calls.Allreduce(comm=comm, op=MPI.SUM), calls.Bcast(comm=comm, root=0),
                     calls.Scan(comm=comm, op=MPI.SUM, reverse=True)):
            assert call(numpy.float32(2)).shape == ()

    run_ranks(2, rank)


# What ranks are told that bring different trees
A, B, C = "['a']: float32[3]", "['b']: float32[4]", "['b']: int32[4]"


@pytest.mark.parametrize("leaves, text, ranks", [
    ([(A, B), (A, C), (A, B)], "leaf 1: .*float32.4. on ranks 0, 2; .*int32.4. on rank 1;", (1,)),
    ([(A,), (A, B)], "leaf 1: nothing on rank 0;", (1,)),
    ([(), (A,), (A,)], "leaf 0: nothing on rank 0;", (0,)),
    ([(A, B), (B, A)], r"leaf 0: \['a'\].* on rank 0; \['b'\].* on rank 1;", (1,))])
def test_the_first_leaf_that_differs_is_named_on_all_ranks(leaves, text, ranks):
    def rank(comm):
        with pytest.raises(ExchangeMismatch, match=text) as caught:
            calls.Allreduce(comm=comm, op=MPI.SUM, leaves=leaves[comm.rank])(numpy.zeros(3))
        assert caught.value.ranks == ranks
        return str(caught.value)

    assert len(set(run_ranks(len(leaves), rank))) == 1


def test_the_package_says_that_jax_is_missing():
    done = subprocess.run([sys.executable, "-c", (
        "import sys\nsys.modules['jax'] = None\nimport hpccoll.jax")],
        capture_output=True, text=True, timeout=60, check=False)
    assert "FrameworkError: jax: is not installed" in done.stderr


# Trees as vectors: types in the order in which they come, and what ranks compare
jax = pytest.importorskip("jax")
fusion = pytest.importorskip("hpccoll.jax.fusion")
jnp = jax.numpy


def test_types_in_the_order_in_which_they_come():
    leaves = [jnp.zeros(1), jnp.zeros(2, jnp.int32), jnp.zeros(3), jnp.zeros(0, jnp.bfloat16)]
    assert list(fusion.by_dtype(leaves).values()) == [[0, 2], [1], [3]]


def test_what_ranks_compare_has_no_axis_of_ranks():
    leaves = [jnp.zeros((4, 3)), jnp.zeros((4,), jnp.int32)]
    names = ["['a']", "['b']"]
    assert fusion.leaf_texts(names, leaves) == ["['a']: float32[4,3]", "['b']: int32[4]"]
    assert fusion.leaf_texts(names, leaves, 1) == ["['a']: float32[3]", "['b']: int32[]"]

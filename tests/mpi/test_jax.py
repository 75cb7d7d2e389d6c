"""Collectives of hpccoll.jax on real ranks: forward, backward, in loops and batches."""

import numpy
import pytest
from mpi.jax_cases import CASES, gradient, operands, weights
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError

jax = pytest.importorskip("jax")
hj = pytest.importorskip("hpccoll.jax")
jnp = jax.numpy
pytestmark = pytest.mark.mpi
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def mine(case, world, root, dtype="float32"):
    """This rank's operand and what is right on this rank."""
    xs = operands(case, world.size, root, dtype)
    return xs[world.rank], case.truth(xs, root)[world.rank]


@every_case
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["now", "jit"])
def test_forward(world, case, wrap):
    for root in {0, world.size - 1} if wrap is not jax.jit else {world.size - 1}:
        x, right = mine(case, world, root)
        found = wrap(lambda x, root=root: case.call(hj, x, world, root))(x)
        assert found.dtype == right.dtype
        numpy.testing.assert_array_equal(found, right)


@pytest.mark.long(every=3)
@every_case
@pytest.mark.parametrize("wrap", [jax.grad, lambda f: jax.grad(jax.jit(f)),
                                  lambda f: jax.jit(jax.grad(f))],
                         ids=["grad", "grad-jit", "jit-grad"])
def test_backward(world, case, wrap):
    root = world.size - 1
    x, right = mine(case, world, root)
    factors = weights(case.truth(operands(case, world.size, root), root))[world.rank]

    def loss(x):
        return (case.call(hj, x, world, root) * factors).sum()

    numpy.testing.assert_array_equal(wrap(loss)(x), gradient(case, world.size, root, world.rank))


@every_case
def test_second_derivative_and_forward_mode(world, case):
    x, right = mine(case, world, 0)
    value, tangent = jax.jvp(lambda x: case.call(hj, x, world, 0), (x,), (2 * x,))
    numpy.testing.assert_array_equal(value, right)
    numpy.testing.assert_array_equal(tangent, 2 * right)
    twice = jax.grad(lambda x: (jax.grad(
        lambda x: (case.call(hj, x, world, 0) ** 2).sum())(x) * x).sum())(x)
    once = jax.grad(lambda x: (case.call(hj, x, world, 0) ** 2).sum())(x)
    numpy.testing.assert_array_equal(twice, 2 * once)  # <x, Ax> has the gradient 2Ax


@pytest.mark.long(every=3)
@every_case
@pytest.mark.parametrize("axis", [0, 1])
def test_batches(world, case, axis):
    x, right = mine(case, world, 0)
    found = jax.jit(jax.vmap(lambda x: case.call(hj, x, world, 0), axis))(
        jnp.stack([x, 3 * x], axis))
    numpy.testing.assert_array_equal(found, numpy.stack([right, 3 * right]))
    slopes = jax.vmap(jax.grad(lambda x: (case.call(hj, x, world, 0) ** 2).sum()))(
        jnp.stack([x, 3 * x]))
    numpy.testing.assert_array_equal(slopes[1], 3 * slopes[0])


@every_case
def test_trees_travel_as_one_vector_for_each_type(world, case):
    x, right = mine(case, world, 0)
    y, other = mine(case, world, 0, "int32")
    call = jax.jit(lambda tree: case.call(hj, tree, world, 0))
    if case.name == "sendrecv":
        with pytest.raises(ArgumentTypeError, match="array"):
            hj.sendrecv([x], [x], 0, 0, comm=world)
        return
    found = call({"w": [x, x + 1], "n": y, "none": None})
    numpy.testing.assert_array_equal(found["w"][0], right)
    numpy.testing.assert_array_equal(found["n"], other)
    assert found["n"].dtype == jnp.int32 and found["none"] is None
    ones = case.truth([numpy.ones_like(x) for x in operands(case, world.size, 0)], 0)[world.rank]
    numpy.testing.assert_array_equal(found["w"][1], right + ones)
    text = str(jax.make_jaxpr(lambda tree: case.call(hj, tree, world, 0))([x, x, y, y]))
    assert text.count("hpccoll[") == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "uint32", "bool", "complex64"])
@every_case
def test_types(world, case, dtype):
    if dtype == "bool" and case.name in ("allreduce", "reduce", "reduce_scatter", "scan"):
        pytest.skip("sums of bool are no numbers")
    x, right = mine(case, world, 0)
    found = case.call(hj, jnp.asarray(x, dtype), world, 0)
    assert found.dtype == jnp.dtype(dtype)
    numpy.testing.assert_array_equal(numpy.asarray(found), right.astype(found.dtype))


def test_bfloat16_in_compiled_code(world):
    x = jnp.full((3, 5), world.rank + 1, jnp.bfloat16)
    found = jax.jit(jax.vmap(lambda x: hj.allreduce(x, comm=world)))(x)
    assert found.dtype == jnp.bfloat16
    assert (found == world.size * (world.size + 1) // 2).all()


def test_64_bits_where_jax_has_them(world):
    with jax.enable_x64(True):
        x = jnp.asarray([2.0 ** 40 + world.rank])
        assert x.dtype == jnp.float64
        found = jax.jit(lambda x: hj.allreduce(x, comm=world))(x)
        assert found.dtype == jnp.float64
        assert found[0] == world.size * 2.0 ** 40 + world.size * (world.size - 1) / 2
    assert hj.allreduce(numpy.ones(2), comm=world).dtype == jnp.float32


@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (3, 0)])
def test_shapes(world, shape):
    x = jnp.full(shape, world.rank + 1.0)
    total = world.size * (world.size + 1) / 2
    for call in (hj.allreduce, jax.jit(hj.allreduce)):
        found = call(x)
        assert found.shape == shape and (found == total).all()
    assert hj.allgather(x).shape == (world.size, *shape)
    assert jax.jit(hj.allgather)([x, x])[1].shape == (world.size, *shape)
    hj.barrier()


def test_loops_and_conditions(world):
    size = world.size

    def body(carry, x):
        carry = hj.allreduce(carry, comm=world) + x
        return carry, hj.scan(carry, comm=world)

    last, all_ = jax.jit(lambda c, xs: jax.lax.scan(body, c, xs))(1.0, jnp.arange(3.0))
    wanted = [1.0 * size + 0, (1.0 * size) * size + 1, ((1.0 * size) * size + 1) * size + 2]
    assert last == wanted[-1]
    numpy.testing.assert_array_equal(all_, [(world.rank + 1) * value for value in wanted])
    slope = jax.grad(lambda c: jax.lax.scan(body, c, jnp.arange(3.0))[0])(1.0)
    assert slope == size ** 3
    assert jax.lax.fori_loop(0, 4, lambda _, x: hj.allreduce(x, comm=world), 1.0) == size ** 4
    chosen = jax.jit(lambda x: jax.lax.cond(x > 0, lambda x: hj.allreduce(x, comm=world),
                                            lambda x: x, x))
    assert chosen(1.0) == size and chosen(-1.0) == -1


def test_order_is_kept_between_calls_of_any_kind(world):
    """Without order these would pair up wrongly: all are of one shape, and independent."""
    @jax.jit
    def compiled(x):
        return [hj.bcast(x + i, i % world.size, comm=world) for i in range(6)]

    x = jnp.full(50, 100.0 * world.rank)
    for _ in range(20):
        first = compiled(x)
        now = hj.bcast(x - 1, world.size - 1, comm=world)
        second = compiled(2 * x)
        for i in range(6):
            assert (first[i] == 100 * (i % world.size) + i).all()
            assert (second[i] == 200 * (i % world.size) + i).all()
        assert (now == 100 * (world.size - 1) - 1).all()


def test_unused_results_still_take_part(world):
    """The loss of rank 0 depends on the sum, that of the others does not."""
    def loss(x):
        total = hj.allreduce(x, comm=world)
        return total.sum() if world.rank == 0 else x.sum()

    for wrap in (jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))):
        found = wrap(loss)(jnp.ones(2))
        numpy.testing.assert_array_equal(found, [1 + (world.rank > 0)] * 2)


def test_messages(world):
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    x = jnp.arange(4.0).reshape(2, 2) + 10 * world.rank

    @jax.jit
    def around(x):
        if world.rank % 2 == 0 and world.size > 1:
            hj.send(x, right, tag=3, comm=world)
            return hj.recv(x, left, tag=3, comm=world)
        if world.size > 1:
            got = hj.recv(x, left, tag=3, comm=world)
            hj.send(x, right, tag=3, comm=world)
            return got
        return hj.sendrecv(x, x, 0, 0, comm=world)

    if world.size % 2 == 0 or world.size == 1:
        numpy.testing.assert_array_equal(around(x), jnp.arange(4.0).reshape(2, 2) + 10 * left)
    nobody = hj.sendrecv(x, jnp.zeros(5), MPI.PROC_NULL, MPI.PROC_NULL, comm=world)
    numpy.testing.assert_array_equal(nobody, numpy.zeros(5))
    for loss in (lambda x: hj.send(x, right, comm=world),
                 lambda x: hj.sendrecv(x, x, MPI.ANY_SOURCE, right, comm=world).sum()):
        with pytest.raises(ArgumentTypeError, match="derivative"):
            jax.grad(loss)(x)


def test_other_operators(world):
    x = jnp.asarray([world.rank, -world.rank, 3], jnp.int32)
    top = world.size - 1
    for call in (hj.allreduce, lambda x, op: jax.jit(lambda x: hj.allreduce(x, op))(x)):
        numpy.testing.assert_array_equal(call(x, MPI.MAX), [top, 0, 3])
    numpy.testing.assert_array_equal(hj.scan(x, MPI.MIN), [0, -world.rank, 3])
    with pytest.raises(ArgumentTypeError, match=r"MPI\.SUM"):
        jax.grad(lambda x: hj.allreduce(x, MPI.MAX))(1.0)


def test_refusals(world):
    many = jnp.ones((world.size + 1, 2))
    for call in (hj.alltoall, hj.reduce_scatter, jax.jit(hj.alltoall)):
        with pytest.raises(ArgumentError, match="entries"):
            call(many)
    with pytest.raises(ArgumentError, match="root: rank"):
        hj.bcast(many, world.size)
    with pytest.raises(ArgumentTypeError, match=r"\['k'\]"):
        hj.allreduce({"k": jax.random.key(0)})
    with pytest.raises(ArgumentTypeError, match="array"):
        hj.allreduce({"k": "text"})
    with pytest.raises(ArgumentTypeError, match="recvbuf"):
        hj.sendrecv(jnp.ones(2), jnp.ones(2, jnp.int32), 0, 0)


def test_communicators(world):
    assert hj.world() is hj.world()
    assert hj.world() != MPI.COMM_WORLD and hj.world().size == world.size
    alone = world.Split(world.rank, 0)
    assert jax.jit(lambda x: hj.allreduce(x, comm=alone))(world.rank + 1.0) == world.rank + 1
    assert hj.allreduce(2.0, comm=MPI.COMM_SELF) == 2
    alone.Free()

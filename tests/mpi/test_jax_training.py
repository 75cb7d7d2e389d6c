"""Averages of gradients, start values, the optax wrapper and what disagreeing ranks are told."""

from dataclasses import dataclass
from typing import ClassVar

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError, ExchangeMismatch
from hpccoll.training.compress import Reduction, Scheme

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
hj = pytest.importorskip("hpccoll.jax")
jnp = jax.numpy
pytestmark = pytest.mark.mpi
several = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="one rank agrees with itself")


@dataclass(frozen=True)
class Remembering(Scheme):
    """Sends whole numbers only, and keeps the rest for the next step."""

    name: ClassVar[str] = "remembering"

    def start(self, comm, shapes):
        return _Remembering(self, comm, shapes)

    def wire_bytes(self, shapes, size, step=None):
        return 0.0


class _Remembering(Reduction):
    def __init__(self, scheme, comm, shapes):
        super().__init__(scheme, comm, shapes)
        self.vectors["error"] = numpy.zeros(self.count)

    def _reduce(self, values):
        whole = values + self.vectors["error"]
        sent = numpy.floor(whole)
        self.vectors["error"][:] = whole - sent
        out = numpy.empty_like(sent)
        yield self.comm.Iallreduce(sent, out)
        values[:] = out / self.comm.size

    def load(self, state):
        self.steps = state["steps"]
        self.vectors["error"][:] = state["error"]


def tree(rank):
    """Distinct numbers on every rank."""
    return {"w": jnp.arange(6.0).reshape(2, 3) + 4 * rank, "b": [jnp.full(5, 2.0 * rank)],
            "h": jnp.full((3,), 2 * rank, jnp.bfloat16), "empty": jnp.zeros((0, 2))}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["now", "jit"])
def test_average(world, wrap):
    found = wrap(lambda t: hj.average_gradients(t, comm=world))(tree(world.rank))
    middle = (world.size - 1) / 2
    numpy.testing.assert_array_equal(found["w"], numpy.arange(6.0).reshape(2, 3) + 4 * middle)
    numpy.testing.assert_array_equal(found["b"][0], numpy.full(5, 2 * middle))
    assert found["h"].dtype == jnp.bfloat16 and (found["h"] == 2 * middle).all()
    assert found["empty"].shape == (0, 2)
    with pytest.raises(ArgumentTypeError, match=r"\['n'\].*int32"):
        hj.average_gradients({"n": jnp.arange(2)})


def test_broadcast(world):
    root = world.size - 1
    state = {"key": jax.random.key(world.rank), "n": world.rank, "flag": world.rank > 0,
             "w": tree(world.rank)}
    found = hj.broadcast_parameters(state, root, comm=world)
    assert found["n"] == root and found["flag"] == (root > 0) and found["flag"].dtype == bool
    assert (jax.random.key_data(found["key"]) == jax.random.key_data(jax.random.key(root))).all()
    assert jax.tree.all(jax.tree.map(lambda a, b: a.dtype == b.dtype and (a == b).all(),
                                     found["w"], tree(root)))


def test_wrapped_optimizers_take_the_same_steps(world):
    def run(optimizer, gradients):
        params = {"w": jnp.ones(3), "b": jnp.zeros(())}
        state = optimizer.init(params)

        @jax.jit
        def step(params, state, gradient):
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state

        for gradient in gradients:
            params, state = step(params, state, gradient)
        return params

    def at(rank, i):
        return {"w": jnp.arange(3.0) + rank * i, "b": jnp.asarray(2.0 * rank)}

    steps = [at(world.rank, i) for i in range(4)]
    means = [jax.tree.map(lambda *x: sum(x) / world.size, *(at(r, i) for r in range(world.size)))
             for i in range(4)]
    sums = [jax.tree.map(lambda x: x * world.size, mean) for mean in means]
    # The steps of Adam do not depend on a factor of all gradients, such as that of a sum.
    adam, sgd = optax.adam(0.1), optax.sgd(0.1, momentum=0.5)
    for found, right in (
            (run(hj.distributed(adam, comm=world), steps), run(adam, means)),
            (run(hj.distributed(sgd, comm=world, op="sum"), steps), run(sgd, sums)),
            (run(hj.distributed(sgd, comm=world, op="sum", compress="bf16"), steps),
             run(sgd, sums)),
            (run(hj.distributed(sgd, comm=world, every=2), steps),
             run(sgd, [jax.tree.map(lambda a, b: (a + b) / 2, *means[i:i + 2]) for i in (0, 2)]))):
        assert jax.tree.all(jax.tree.map(lambda a, b: numpy.allclose(a, b, rtol=1e-5), found,
                                         right))
        every = world.allgather(jax.tree.map(numpy.asarray, found))
        assert all((other["w"] == found["w"]).all() for other in every)


def test_accumulation_does_not_communicate(world):
    """Only rank 0 makes the calls that accumulate; in a step all must take part."""
    optimizer = hj.distributed(optax.sgd(1.0), comm=world, every=3)
    update = jax.jit(optimizer.update)
    one = {"w": jnp.ones(2)}
    state = optimizer.init(one)
    for _ in range(2 if world.rank == 0 else 0):
        updates, state = update(one, state)
        assert (updates["w"] == 0).all()
    if world.rank:
        state = state._replace(calls=jnp.asarray(2, jnp.int32), sums={"w": jnp.full(2, 2.0)})
    updates, state = update(one, state)
    numpy.testing.assert_array_equal(updates["w"], [-1, -1])
    assert state.calls == 0 and (state.sums["w"] == 0).all()


def test_options_of_the_wrapper():
    with pytest.raises(ArgumentError, match="every"):
        hj.distributed(optax.sgd(1.0), every=0)
    with pytest.raises(ArgumentError, match="op"):
        hj.distributed(optax.sgd(1.0), op="median")


def test_a_scheme_keeps_what_was_not_sent(world):
    average = hj.Averager(world, compress=Remembering(), bucket_bytes=20)
    call = jax.jit(lambda t: average(t))
    x = {"a": jnp.full(3, 0.75), "b": jnp.full((2, 2), world.rank + 0.5),
         "h": jnp.full(2, 1.5, jnp.bfloat16)}
    sums = jax.tree.map(jnp.zeros_like, x)
    for step in range(1, 5):
        sums = jax.tree.map(jnp.add, sums, call(x))
        if step == 2:  # into another one, as after a restart, with other buckets, not compiled
            state = average.state()
            call(x)
            average.load(state)  # undoes the step
            state = average.state()
            average = hj.Averager(world, compress=Remembering(), bucket_bytes=1 << 20)
            average.load(state)
            call = average
    middle = (world.size - 1) / 2
    numpy.testing.assert_array_equal(sums["a"], [3.0] * 3)
    numpy.testing.assert_array_equal(sums["b"], numpy.full((2, 2), 4 * (middle + 0.5)))
    assert sums["h"].dtype == jnp.bfloat16 and (sums["h"] == 6).all()
    kept = average.state()["float32 3 2x2 2"]
    assert [(state["steps"], *state["error"]) for state in kept] == [
        (4, *[0] * count) for count in (3, 4, 2)]


def test_a_scheme_given_by_the_call_stays_with_the_communicator(world):
    x = jnp.full(3, 0.5)
    found = [hj.average_gradients(x, comm=world, compress=Remembering()) for _ in range(2)]
    assert [list(x) for x in found] == [[0.0] * 3, [1.0] * 3]
    other = world.Dup()
    assert (hj.average_gradients(x, comm=other, compress=Remembering()) == 0).all()
    other.Free()


@pytest.mark.parametrize("scheme", ["bf16", "fp16", "int8", "onebit", "topk:density=0.5",
                                    "powersgd:rank=1"])
def test_schemes_that_ship(world, scheme):
    """Of equal gradients on all ranks many steps together lose next to nothing."""
    average = hj.Averager(world, compress=scheme)
    call = jax.jit(lambda t: average(t))
    x = {"w": jnp.linspace(-1, 1, 64).reshape(8, 8), "b": jnp.linspace(-0.5, 0.5, 16)}
    found = [call(x) for _ in range(40)]
    for name in x:
        mean = sum(numpy.asarray(step[name], "f8") for step in found) / len(found)
        assert numpy.abs(mean - x[name]).max() < 0.25
    every = world.allgather(numpy.asarray(found[-1]["w"]))
    assert all((one == every[0]).all() for one in every)
    with pytest.raises(ArgumentError, match="fp17"):
        hj.Averager(world, compress="fp17")


def test_a_scheme_has_neither_derivative_nor_batch(world):
    average = hj.Averager(world, compress=Remembering())
    with pytest.raises(ArgumentTypeError, match="derivative"):
        jax.grad(lambda x: average(x).sum())(jnp.ones(2))
    with pytest.raises(ArgumentTypeError, match="vmap"):
        jax.vmap(average)(jnp.ones((2, 2)))


def different(world):
    """Trees that fit on all ranks but the last, and what is to be said of each."""
    end = world.size - 1
    last, one = world.rank == end, jnp.ones(3)
    yield ({"a": one, "b": jnp.ones(4) if last else one},
           rf"leaf 1: .*\['b'\]: float32\[4\] on ranks? {end}")
    yield ({"a": one.astype(jnp.int32) if last else one},
           rf"leaf 0: .*\['a'\]: int32\[3\] on ranks? {end}")
    yield [one] if last else [one, one], rf"leaf 1: .*nothing on ranks? {end}"
    yield {} if last else {"a": one}, rf"leaf 0: .*nothing on ranks? {end}"
    yield {"z" if last else "a": one}, rf"\['z'\]: float32\[3\] on ranks? {end}"


@several
@pytest.mark.parametrize("call", [hj.allreduce, hj.allgather, hj.bcast],
                         ids=["allreduce", "allgather", "bcast"])
def test_trees_that_differ_are_an_error_on_all_ranks(world, call):
    for one, text in different(world):
        with pytest.raises(ExchangeMismatch, match=text):
            call(one, comm=world)
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            jax.block_until_ready(jax.jit(lambda t: call(t, comm=world))(one))
            jax.effects_barrier()
        clear(world)
    assert hj.allreduce(jnp.ones(2), comm=world)[0] == world.size


def clear(world):
    """An error stays with the chain of ordered effects until somebody looks at it."""
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError:
        pass
    world.Barrier()

"""What is wrong on one rank is said on all, with arrays and ranks, and changes nothing."""

import numpy
import pytest

from hpccoll.errors import ArgumentError, ArgumentTypeError, NonFiniteError, ShardError
from hpccoll.training.optimizers import Sgd
from hpccoll.training.shard.clip import LossScale
from hpccoll.training.shard.quantised import ZeroPlusPlus
from hpccoll.training.shard.weights import Fetching
from hpccoll.training.shard.zero import Sharded
from support.shards import SHAPES, UNITS, adam, make, one_pass, plain, same, weights, whole
from support.threads import run_ranks

STAGES = (0, 1, 2, 3)


def fetched(sharded):
    """The gathers of a step, which all ranks must make."""
    for unit in range(len(UNITS)):
        with sharded.fetched(unit):
            pass


def missing(sharded):
    for index in range(1, len(SHAPES)):
        sharded.ready(index, numpy.ones(SHAPES[index], "f4"))


def twice(sharded):
    complete(sharded)
    sharded.ready(3, numpy.ones(SHAPES[3], "f4"))


def reshaped(sharded):
    complete(sharded, but=0)
    sharded.ready(0, numpy.ones((3, 7), "f4"))


def retyped(sharded):
    complete(sharded, but=4)
    sharded.ready(4, numpy.ones(SHAPES[4], "f8"))


def grown(sharded):
    complete(sharded)
    sharded.ready(7, numpy.ones(3, "f4"))


def complete(sharded, but=None):
    for index, shape in enumerate(SHAPES):
        if index != but:
            sharded.ready(index, numpy.ones(shape, "f4"))


WRONG = [(missing, "'array 0'.*missing"),
         (twice, "'array 3'.*twice"),
         (reshaped, r"'array 0'.*\(3, 7\).*\(7, 3\)"),
         (retyped, "'array 4'.*float64.*float32"),
         (grown, "gradient 7")]


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("wrong, message", WRONG, ids=[wrong.__name__ for wrong, _ in WRONG])
def test_a_wrong_gradient_is_said_on_all_ranks_and_forgotten(wrong, message, stage):
    def work(comm):
        sharded = make(comm, stage, adam())
        fetched(sharded)
        (wrong if comm.rank == 1 else complete)(sharded)
        with pytest.raises(ShardError, match=f"^rank 1: .*{message}") as caught:
            sharded.step()
        assert list(caught.value.faults) == [1] and sharded.number == 0
        assert same(whole(sharded), weights())
        for number in (1, 2):
            one_pass(sharded, number)
            sharded.step()
        assert same(whole(sharded), plain(comm, adam(), 2))

    run_ranks(3, work, determinism="size")


def test_many_faults_make_a_short_message():
    def work(comm):
        sharded = make(comm, 1, Sgd(), [numpy.ones(2, "f4")] * 20)
        with pytest.raises(ShardError, match="12 more.*rank 1: ") as caught:
            sharded.step()
        assert [len(texts) for texts in caught.value.faults.values()] == [20, 20]

    run_ranks(2, work)


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("place", ("first", "forward", "backward", "last"))
@pytest.mark.parametrize("stage", STAGES)
def test_an_error_on_one_rank_is_raised_on_all(stage, place):
    def work(comm):
        sharded = make(comm, stage, adam(), **(
            {"fetching": Fetching(persistent=6, prefetch=30)} if stage == 3 else {}))

        def passes(place=None):
            def here(name):
                if name is not None and place == name and comm.rank == 1:
                    raise KeyError("lost")

            here("first")
            for unit in (0, 1, 2):
                with sharded.fetched(unit):
                    here("forward" if unit == 1 else None)
            for unit in (2, 1, 0):
                with sharded.fetched(unit):
                    for index in reversed(UNITS[unit]):
                        here("backward" if index == 3 else None)
                        sharded.ready(index, numpy.ones(SHAPES[index], "f4"))
            here("last")

        passes()
        sharded.step()
        before = whole(sharded)
        with pytest.raises(ShardError, match="^rank 1: KeyError: 'lost'") as caught:
            with sharded.guarded():
                passes(place)
            sharded.step()
        assert (type(caught.value.__cause__) is KeyError) == (comm.rank == 1)
        assert same(whole(sharded), before)
        with sharded.guarded():
            passes()
        assert sharded.step().number == 2

    run_ranks(3, work)


@pytest.mark.parametrize("stage", STAGES)
def test_arrays_may_be_left_out(stage):
    def work(comm):
        sharded = make(comm, stage, Sgd(1.0), missing="zeros", op="sum")
        fetched(sharded)
        if comm.rank == 1:
            sharded.ready(4, numpy.full(SHAPES[4], 4, "f4"))
        assert sharded.step().applied
        for index, (array, old) in enumerate(zip(whole(sharded), weights())):
            assert (array == old - numpy.float32(4 * (index == 4))).all()

    run_ranks(3, work)


@pytest.mark.parametrize("value", (numpy.inf, numpy.nan, -numpy.inf))
@pytest.mark.parametrize("stage", STAGES)
def test_gradients_that_are_not_finite(stage, value):
    def work(comm):
        sharded = make(comm, stage, adam(), clip=1.0)
        fetched(sharded)
        for index, shape in enumerate(SHAPES):
            array = numpy.ones(shape, "f4")
            if index == 4 and comm.rank == 1:
                array[-1, -1] = value
            sharded.ready(index, array)
        with pytest.raises(NonFiniteError, match="inf.*step 1"):
            sharded.step()
        assert same(whole(sharded), weights()) and sharded.number == 0

    run_ranks(3, work)


def test_nobody_looks_where_nobody_asked():
    def work(comm):
        sharded = make(comm, 1, Sgd(), check=False)
        for index, shape in enumerate(SHAPES):
            sharded.ready(index, numpy.full(shape, numpy.nan, "f4"))
        update = sharded.step()
        assert update.applied and numpy.isnan(update.norm)
        assert numpy.isnan(sharded.parameters[0]).all()

    run_ranks(2, work)


DIFFERENT = [
    ({"arrays": lambda rank: weights()[:7 - rank]}, "rank 1: array 6: nothing, elsewhere array 6"),
    ({"arrays": lambda rank: [numpy.ones(3 + rank, "f4")]},
     r"rank 1: array 0: array 0 of float32\[4\], elsewhere array 0 of float32\[3\]"),
    ({"names": lambda rank: [f"{rank}{i}" for i in range(7)]}, "rank 1: array 0: 10 of"),
    ({"clip": lambda rank: 1.0 + rank}, "rank 1: options: .*max_norm=2.0"),
    ({"loss_scale": lambda rank: LossScale(2.0) if rank else None}, "rank 1: options: ")]


@pytest.mark.parametrize("options, message", DIFFERENT, ids=[list(o)[0] for o, _ in DIFFERENT])
def test_ranks_that_differ_are_told_at_the_start(options, message):
    def work(comm):
        mine = {name: value(comm.rank) for name, value in options.items()}
        with pytest.raises(ShardError, match=message):
            make(comm, 1, Sgd(), **mine)

    run_ranks(2, work)


ARGUMENTS = [
    ({"stage": 4}, "stage: .*4.*0, 1, 2, 3"), ({"op": "max"}, "op: 'max'"),
    ({"missing": "no"}, "missing: 'no'"), ({"accumulate": 2}, "accumulate: 2"),
    ({"clip": 0}, "max_norm"), ({"names": ["a", "b"]}, "names: .*2 names.*1 arrays"),
    ({"stage": 1, "zeropp": ZeroPlusPlus()}, "stage: .*1.*fetching"),
    ({"stage": 1, "fetching": Fetching()}, "stage: .*1.*fetching"),
    ({"stage": 1, "units": [[1]]}, "units: arrays 0, 1"),
    ({"stage": 3, "units": [[0], [0]]}, "units: arrays 0"),
    ({"stage": 3, "units": [[]]}, "units: arrays 0"),
    ({"parameters": [numpy.ones(2, "i8")]}, "'array 0'.*int64")]
TYPES = [
    ({"optimizer": "adam"}, "'adam'"), ({"optimizer": Sgd}, r"Adam\(rate=0.01\)"),
    ({"clip": "1"}, "clip: .*'1'"), ({"comm": "world"}, "comm: .*'world'.*hpccoll.Comm"),
    ({"model_comm": 2}, "model_comm: .*communicator.*2"),
    ({"parameters": None}, "parameters: .*arrays"), ({"names": 5}, "names: .*texts.*5"),
    ({"loss_scale": 8.0}, r"loss_scale: .*LossScale.*8.0.*LossScale\(\)"),
    ({"zeropp": True, "stage": 3}, "zeropp: .*ZeroPlusPlus")]


@pytest.mark.parametrize("options, problem, error", [
    *((*one, ArgumentError) for one in ARGUMENTS), *((*one, ArgumentTypeError) for one in TYPES)],
    ids=str)
def test_arguments_are_refused_before_anything_is_sent(options, problem, error):
    def program(comm):
        with pytest.raises(error, match=problem):
            Sharded(**{"comm": comm, "parameters": [numpy.ones(2)], "optimizer": Sgd(), **options})
        return comm.sent_bytes

    assert run_ranks(2, program) == [0, 0]


def test_what_a_stage_has_not():
    def work(comm):
        cut, two = make(comm, 3, Sgd()), make(comm, 2, Sgd())
        with pytest.raises(ArgumentError, match="3.*weights"):
            cut.parameters
        with pytest.raises(ArgumentError, match="2.*gradients"):
            two.gradients
        for sharded in cut, two:
            for call in sharded.fetch, sharded.release:
                with pytest.raises(ArgumentError, match="unit: .*7.*[26]"):
                    call(7)
        with pytest.raises(ArgumentError, match="unit: .*1.*fetched"):
            cut.release(1)

    run_ranks(1, work)


def test_an_optimizer_that_looks_at_more_than_elements():
    class Layers(Sgd):
        def start(self, count, dtype="float32", module=numpy):
            return {"norm": numpy.zeros(1)}

    with pytest.raises(ArgumentError, match=r"'norm'.*\(1,\)"):
        run_ranks(1, lambda comm: make(comm, 1, Layers()))


@pytest.mark.parametrize("field", ["prefetch", "persistent", "max_live", "reuse"])
def test_elements_to_fetch_are_numbers(field):
    assert Fetching(**{field: 1e9}) and Fetching(**{field: 0})
    for value in -1, "many", float("nan"):
        with pytest.raises(ArgumentError, match=f"{field}: .*elements"):
            Fetching(**{field: value})

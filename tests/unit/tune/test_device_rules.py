"""Rules for device arrays on all ranks: each can decide, and guarantees go before them."""

from itertools import product

import numpy
import pytest

from hpccoll.algorithms import ALGORITHMS
from hpccoll.calls.facts import CallFacts
from hpccoll.config import NATIVE, NCCL
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.runtime.planning.choice import Choice
from hpccoll.tune.choose import Conditions, decide, range_of_choice
from hpccoll.tune.device_rules import DEVICE_RULES, DevicePlace

MIB = 1 << 20
PLACES = [DevicePlace(*flags) for flags in product((True, False), repeat=4)]
SIZES = sorted({max(end + more, 0) for rule in DEVICE_RULES for end in (0, *rule.nbytes)
                for more in (-1, 0, 1)})


def facts(nbytes, collective="allreduce", dtype="f4", **more):
    reduced = {"operator": "sum", "exact": False, "dtype": numpy.dtype(dtype),
               "kind": numpy.dtype(dtype).kind, "itemsize": numpy.dtype(dtype).itemsize}
    if not COLLECTIVES[collective].reduces:
        reduced = {}
    return CallFacts(more.pop("method", collective), collective, nbytes, **reduced, **more)


def chosen(place, nbytes, collective="allreduce", dtype="f4", conditions=None, **more):
    conditions = (conditions or Conditions(4))._replace(device=place)
    return decide(facts(nbytes, collective, dtype, **more), conditions, None)


def test_every_rule_can_decide():
    first = {next((rule for rule in DEVICE_RULES if rule.fits(facts(nbytes), place)), None)
             for place, nbytes in product(PLACES, SIZES)}
    assert first == set(DEVICE_RULES)
    for rule in DEVICE_RULES:
        assert rule.algorithm in (NCCL, NATIVE, *ALGORITHMS[rule.collective or "allreduce"])
        assert rule.path in ("nccl", "ipc", "mpi", "staged")


@pytest.mark.parametrize("place, nbytes, name, path", [
    (DevicePlace(nccl=True), 8, "nccl", "nccl"),
    (DevicePlace(nccl=True, ipc=True, mpi=True), 1 << 30, "nccl", "nccl"),
    (DevicePlace(nccl=True, takes_turns=True), 8, "native", "staged"),
    (DevicePlace(nccl=True, takes_turns=True), 128 * MIB, "nccl", "nccl"),
    (DevicePlace(nccl=True, takes_turns=True, ipc=True), 128 * MIB, "ring", "ipc"),
    (DevicePlace(ipc=True), 2 * MIB, "allpairs", "ipc"),
    (DevicePlace(ipc=True), 64 * MIB, "ring", "ipc"),
    (DevicePlace(ipc=True), 2 * MIB - 1, "native", "staged"),
    (DevicePlace(mpi=True), 64 * MIB, "native", "mpi"),
    (DevicePlace(), 2 * MIB, "native", "staged"),
    (DevicePlace(), 4 * MIB, "ring", "staged")])
def test_allreduce(place, nbytes, name, path):
    choice = chosen(place, nbytes)
    assert choice.name == name and f"device arrays by {path}" in choice.reason


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "barrier"])
def test_nccl_runs_what_it_has(collective):
    place, has = DevicePlace(nccl=True), collective not in ("scan", "exscan", "reduce_scatter")
    assert (chosen(place, 8, collective).name == "nccl") is has
    assert chosen(place, 8, "reduce_scatter", method="reduce_scatter_block").name == "nccl"


def test_sizes_that_only_some_ranks_have():
    for method, collective in (("gatherv", "gather"), ("alltoallv", "alltoall")):
        assert chosen(DevicePlace(nccl=True), None, collective, method=method).name == "nccl"
        turns = DevicePlace(nccl=True, takes_turns=True)
        assert chosen(turns, None, collective, method=method).name == "native"


def test_a_barrier_has_no_device():
    assert "device" not in decide(CallFacts("barrier", "barrier"), Conditions(
        4, device=DevicePlace(nccl=True)), None).reason


@pytest.mark.parametrize("conditions, dtype", [
    (Conditions(4, determinism="run"), "f4"), (Conditions(4, barred="no driver"), "f4"),
    (Conditions(4), "c8"), (Conditions(1), "f4"), (Conditions(4, Choice("ring")), "f4"),
    (Conditions(4, form="i{}"), "f4")])
def test_nccl_is_not_chosen(conditions, dtype):
    assert chosen(DevicePlace(nccl=True), 8, dtype=dtype, conditions=conditions).name != "nccl"


def test_ranges_end_where_a_rule_does():
    conditions = Conditions(4, device=DevicePlace(nccl=True, takes_turns=True))
    for nbytes, wanted in ((8, (0, 4 * MIB)), (8 * MIB, (4 * MIB, 128 * MIB))):
        assert range_of_choice(facts(nbytes), conditions, None)[1] == wanted[1]
        least = range_of_choice(facts(nbytes), conditions, None)[0]
        assert least <= nbytes and (least >= wanted[0])

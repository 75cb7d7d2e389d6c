"""The compiled event loop finds what the one in Python finds, bit by bit."""

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import COLLECTIVES, OUT
from hpccoll.ir.cost.network import NetworkPaths
from hpccoll.ir.cost.workload import Workload
from hpccoll.ir.schedule import Program, Schedule, at, recv, send
from hpccoll.ir.topology import Topology
from hpccoll.simulator import event_loop, simulate
from hpccoll.simulator.compiled_loop import is_available, run_compiled
from hpccoll.simulator.effort import ignore_progress
from hpccoll.simulator.event_loop import EventLoop
from hpccoll.simulator.machine_model import Level, Machine
from hpccoll.simulator.shape_files import shape_from_text
from hpccoll.simulator.symmetry import Folding, find_symmetry
from hpccoll.simulator.wiring import ChannelWiring

pytestmark = pytest.mark.skipif(not is_available(), reason="not compiled")
#: Everything is shared, at levels of different rates, with and without posting times and headers.
SHARED = Machine("shared", (Level("network", 2e-6, 1 / 10e9, link=13e9, bus=70e9, header=90),
                            Level("node", 5e-7, 1 / 6e9, link=40e9, bus=17e9),
                            Level("socket", 3e-7, 1 / 9e9)), 1 / 11e9, 1 / 15e9)
POSTED = Machine("posted", (Level("network", 2e-6, 1 / 10e9, link=13e9, overhead=3e-7),
                            Level("node", 0.0, 1 / 6e9, bus=17e9, overhead=1e-7)), 1 / 11e9)
#: Hops of different numbers, so that latencies differ between channels of one depth.
TORUS = Machine("torus", (Level("network", 2e-6, 1 / 10e9, link=13e9, rails=2),
                          Level("node", 5e-7, 1 / 6e9, link=7e9, duplex="half")), 1 / 11e9,
                duplex="half", shape=shape_from_text(
                    "torus:3x2:bytes_per_second=3e9:hop_seconds=1e-7:routing=spread"))


def found(run):
    """All that a run says, as data."""
    return (run.seconds, [list(t.log) for t in run.threads], list(run.busy), run.messages,
            {d: b for d, b in run.level_bytes.items() if b}, run.usage)


def both(made, nbytes, machine, layout, fold, **how):
    topology = NetworkPaths(Topology.parse(layout))
    work = Workload(made, 0 if made.collective.name == "barrier" else nbytes, **how)
    folding = find_symmetry(work, topology) if fold else Folding(None)
    loop = EventLoop(ChannelWiring(work, machine, topology, folding, ignore_progress))
    loop.go(ignore_progress)
    wiring = ChannelWiring(work, machine, topology, folding, ignore_progress)
    return loop.outcome(), run_compiled(wiring, ignore_progress)


@pytest.mark.slow(every=10)
@pytest.mark.parametrize(("machine", "layout", "fold", "how"), [
    (SHARED, "3x2x3", False, {}), (SHARED, "3,5", True, {}), (POSTED, "2x4", False, {}),
    (SHARED, "5x2", False, {"itemsize": 8}), (POSTED, "7", False, {"segment_bytes": 5000}),
    (TORUS, "5x2", False, {})],
    ids=["three levels", "ragged", "posting", "whole elements", "segments", "torus"])
@pytest.mark.parametrize("collective", list(ALGORITHMS))
def test_every_algorithm(collective, machine, layout, fold, how):
    """Fails if a share, an order of events or a field of the log differs."""
    topology = Topology.parse(layout)
    for name, entry in ALGORITHMS[collective].items():
        made = (schedule(collective, name, topology=topology) if entry.hierarchical
                else schedule(collective, name, topology.size))
        python, compiled = both(made, 30_000, machine, layout, fold, **how)
        assert found(compiled) == found(python), made.title


def test_faults_are_the_same(monkeypatch):
    def stuck(rank, size):
        return Program(((recv((rank + 1) % size, at(OUT, 0)),),))

    def wrong(rank, size):
        return Program(((send(1, at(OUT, 0)),) if rank == 0 else (recv(0, at(OUT, 0, 2)),),))

    for build, size in ((stuck, 3), (wrong, 2)):
        said = []
        for compiled in (True, False):
            monkeypatch.setattr(event_loop, "is_available", lambda compiled=compiled: compiled)
            with pytest.raises(ScheduleError) as error:
                simulate(schedule("allgather", build, size), 8, SHARED)
            said.append(str(error.value))
        assert said[0] == said[1] and "round 0" in said[0]


def test_python_is_told_and_may_stop():
    """Ctrl-C comes through what is told."""
    def chatty(rank):
        rounds = [(send(1 - rank, at(OUT, 0)), recv(1 - rank, at(OUT, 0)))] * 3000
        return Program(tuple(rounds))

    made = Schedule(COLLECTIVES["allreduce"], "chatty", 2, chatty)

    def stop(stage, part, text):
        if stage == "messages":
            assert 0 < part < 1 and text.endswith("are simulated")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(made, 1e6, POSTED, "2x1", fold=False, progress=stop)

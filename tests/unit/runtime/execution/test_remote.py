"""Batches of compiled plans: messages that MPI carries, here from this process to itself."""

from types import SimpleNamespace

import numpy
import pytest
from mpi4py import MPI

from hpccoll.runtime.execution import compiled

if not compiled.BUILT:
    pytest.skip("the compiled executor was not built", allow_module_level=True)

from unit.runtime.execution.test_compiled import addresses, compiled_plan, words

from hpccoll.errors import BrokenCommunicatorError
from hpccoll.ir.collectives import IN, TMP
from hpccoll.ir.extents import Extent, LoweredProgram, Message, Phase
from hpccoll.runtime.bounded import BoundedDict
from hpccoll.runtime.execution import _executor
from hpccoll.runtime.execution.compiled_plan import BASES, OFFSET_BITS, Code, Instruction, Way
from hpccoll.runtime.execution.remote import RemoteMessages, RunBatches
from hpccoll.runtime.execution.slow_path import PlanWaits
from hpccoll.transport import MessageSpec
from hpccoll.transport.mpi import MpiEndpoint, PersistentBatch, SingleBatch

INPUT, OUTPUT, SCRATCH, MESSAGE = (base << OFFSET_BITS for base in range(len(BASES)))
WAYS = Way("send", 0), Way("recv", 0)
POSTED = [(Instruction.POST, 0, 0, INPUT, 64), (Instruction.POST, 0, 1, SCRATCH, 64)]
BATCH = [*POSTED, (Instruction.START, 0, 0), (Instruction.AWAIT, 0, 0)]
END = (Instruction.END, 0)
#: What came goes to the output, and comes back once more.
TWICE = words(*BATCH, (Instruction.COPY, 0, OUTPUT, SCRATCH, 64),
              (Instruction.POST, 1, 0, OUTPUT, 64), (Instruction.POST, 1, 1, SCRATCH, 64),
              (Instruction.START, 1, 1), (Instruction.AWAIT, 1, 1), (Instruction.END, 1))


@pytest.mark.parametrize("steps, problem", [
    ([*BATCH, END], None), ([*BATCH[:3], END], "before"),
    ([*BATCH[:2], END], "started"),
    ([(Instruction.START, 0, 0), END], "messages"),
    ([*POSTED, (Instruction.START, 0, 1), END], "number"),
    ([(Instruction.AWAIT, 0, 0), END], "not started"),
    ([*BATCH, (Instruction.AWAIT, 0, 0), END], "not started"),
    ([*BATCH[:3], (Instruction.AWAIT, 0, 1), END], "not started"),
    ([*BATCH[:3], *BATCH], "message.*bounds"),
    ([(Instruction.POST, 0, 0, INPUT, 65), END], "message.*bounds"),
    ([(Instruction.POST, 0, 0, INPUT + 8, 64), END], "message.*bounds"),
    ([(Instruction.POST, 0, 0, INPUT, -1), END], "message.*bounds"),
    ([(Instruction.POST, 0, 0, MESSAGE, 8), END], "message.*bounds")])
def test_batches_are_checked_when_a_plan_is_made(steps, problem):
    if problem is None:
        compiled_plan(words(*steps))
    else:
        with pytest.raises(ValueError, match=problem):
            compiled_plan(words(*steps))


def test_a_run_stops_at_batches_and_goes_on_behind_them():
    source, sink = numpy.arange(8.0), numpy.zeros(8)
    run = compiled_plan(TWICE, kernel=None).begin(*addresses(source, sink))
    for at in (2, 3, 7, 8):
        assert run.advance() == run.advance(0) == _executor.REMOTE and run.at == at
        run.skip()
    assert run.advance() == _executor.DONE and run.at == 9


class Scene:
    """A compiled plan whose messages go to its own rank, and the context it runs in."""

    def __init__(self, comm, code=TWICE, hears=lambda: None):
        self.context = SimpleNamespace(
            remote=MpiEndpoint(comm), endpoint=SimpleNamespace(rank=0), timeouts=(0.05, 100),
            abandoned=[], phases=None,
            limits=SimpleNamespace(spins=5), place=SimpleNamespace(fabric=False),
            guard=SimpleNamespace(on_alarm=hears),
            seen=BoundedDict(100), batches=BoundedDict(100, RunBatches.free), fail=self.fail)
        self.scratch, self.failed = numpy.zeros(64, "u1"), []
        code = Code(code, (), 0, remote=WAYS)
        self.far = RemoteMessages(self.context, code, self.scratch, 9 << 32)
        phase = Phase((), (Message("send", 0, Extent(IN, 0, 8)),
                           Message("recv", 0, Extent(TMP, 0, 8))), ())
        plan = SimpleNamespace(call_hash=9, schedule=SimpleNamespace(title="a test"), segments=[
            SimpleNamespace(program=LoweredProgram((phase, phase), 8, 0))])
        call = SimpleNamespace(op=None, datatype=None, source=None, sink=None)
        looks = PlanWaits(self.context, call, plan, code, [],
                          (self.scratch, numpy.empty(0, "u1")), 0, self.far)
        self.compiled_plan = _executor.CompiledPlan(code.words, (64, 64), (), None, self.scratch,
                                                    looks, looks.wait,
                                                    True)

    def fail(self, error, *details):
        self.failed.append(error)
        return error

    def run(self, source, sink):
        self.compiled_plan.run(*addresses(source, sink), (source, sink))


def kinds(scene):
    """The class of the batches that are kept, by memory."""
    return [{type(batch) for batch in found.batches}
            for found in scene.context.batches.entries.values()]


def test_messages_go_and_come(comm):
    """On memory that is new, that comes again, and that is kept; all in one order of batches."""
    scene, kept = Scene(comm), [(numpy.zeros(8), numpy.zeros(8)) for _ in range(2)]
    for turn in range(12):
        source, sink = (numpy.zeros(8), numpy.zeros(8)) if turn % 3 == 2 else kept[turn % 2]
        source[:] = turn
        scene.run(source, sink)
        assert (sink == turn).all() and (scene.scratch.view("f8") == turn).all()
    assert kinds(scene) == [{PersistentBatch}] * len(scene.context.batches)
    assert len(scene.context.batches) >= 2 and not scene.failed
    scene.context.batches.clear()


def test_plans_of_many_messages_are_not_kept(comm, monkeypatch):
    monkeypatch.setattr("hpccoll.runtime.execution.remote.MOST_MESSAGES", 3)
    scene, source, sink = Scene(comm), numpy.ones(8), numpy.zeros(8)
    for _ in range(3):
        scene.run(source, sink)
        assert isinstance(scene.far.batches_for(SimpleNamespace(
            input=1, output=2)).batches[0], SingleBatch)
    assert (sink == 1).all() and not kinds(scene)


def test_nothing_starts_where_a_rank_has_given_up(comm):
    def hears():
        raise BrokenCommunicatorError("rank 1 gave up")

    scene = Scene(comm, hears=hears)
    with pytest.raises(BrokenCommunicatorError):
        scene.run(numpy.ones(8), numpy.zeros(8))
    assert not scene.context.seen.entries and not scene.context.abandoned
    assert [type(error) for error in scene.failed] == [BrokenCommunicatorError]


@pytest.mark.parametrize("kind", [SingleBatch, PersistentBatch])
def test_a_rank_that_has_gone_on_is_not_missing(comm, kind):
    """Its message has come, and the batch waits for another one: what it sends now is later."""
    endpoint = MpiEndpoint(comm)
    source, first, second = (numpy.zeros(1) for _ in range(3))
    batch = kind(endpoint, [MessageSpec(True, 0, source), MessageSpec(False, 0, first),
                            MessageSpec(False, 0, second)], 3)
    assert endpoint.batch([], 0, False).missing_ranks() == []
    batch.start()
    while len(batch.missing_ranks()) > 1:
        pass
    assert batch.missing_ranks() == [0] and not batch.test()
    comm.Send([source, MPI.BYTE], 0, 3)
    while not batch.test():
        pass
    assert batch.missing_ranks() == []
    batch.free()

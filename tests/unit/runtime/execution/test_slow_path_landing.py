"""Messages that MPI carries to a compiled plan, here from this process to itself: where they land,
and when."""

import gc
from types import SimpleNamespace

import numpy
import pytest

from hpccoll.runtime.execution import compiled

if not compiled.BUILT:
    pytest.skip("the compiled executor was not built", allow_module_level=True)

from unit.runtime.execution.test_compiled import CELL, MESSAGE, OUTPUT, Wire, addresses, words

from hpccoll.errors import CollectiveTimeout
from hpccoll.ir.collectives import OUT
from hpccoll.ir.extents import Extent, LoweredProgram, Message, Phase, Segment
from hpccoll.runtime.execution import _executor
from hpccoll.runtime.execution.compiled_plan import Code, Instruction
from hpccoll.runtime.execution.executor import Timeouts
from hpccoll.runtime.execution.slow_path import PlanWaits
from hpccoll.runtime.planning.plan import Plan
from hpccoll.runtime.ranks import channel_class
from hpccoll.transport import NOTHING
from hpccoll.transport.mpi import MpiEndpoint
from hpccoll.transport.shm.channels import ELSEWHERE, PLACES, SIZE_BITS
from hpccoll.transport.shm.endpoint import BY_MPI

NBYTES, MPI_TAG = 64, 0
TAKES = words((Instruction.TAKE, 0, 0, OUTPUT, NBYTES),
              (Instruction.COPY, 0, OUTPUT, MESSAGE, NBYTES), (Instruction.TAKEN, 0, 0),
              (Instruction.END, 0))


class Scene:
    """A compiled plan that takes one message into its output, which was announced as MPI's."""

    def __init__(self, comm):
        wire, self.sink = Wire(), numpy.zeros(NBYTES, "u1")
        place = 1 % PLACES
        wire.words[PLACES + place], wire.words[2 * PLACES + place] = BY_MPI, NBYTES
        wire.words[place] = 1 << SIZE_BITS | ELSEWHERE
        channel = channel_class()(wire.words.data, wire.taken.data, list(wire.cells), 0,
                                           None)
        self.context = SimpleNamespace(
            endpoint=SimpleNamespace(
                rank=0, size=1, offers=NOTHING, remote=MpiEndpoint(comm), on_alarm=None,
                node=SimpleNamespace(local={0: 0}, on_device=lambda where: False),
                direct=lambda peers, tag: False),
            timeouts=Timeouts(0.02, 100), abandoned=[], phases=None,
            fail=lambda error, *details: error)
        phase = Phase((), (Message("recv", 0, Extent(OUT, 0, NBYTES)),), ())
        plan = Plan(SimpleNamespace(title="a test"), (Segment(LoweredProgram((phase,), 0, 0), 0),),
                    1, 0, 1)
        sink = SimpleNamespace(array=self.sink)
        call = SimpleNamespace(op=None, datatype=None, source=None, sink=sink)
        memory = numpy.empty(0, "u1"), numpy.empty(0, "u1")
        self.looks = PlanWaits(self.context, call, plan, Code(TAKES, (), 0), [channel], memory, 0)
        words = addresses(wire.words, wire.taken, wire.small, wire.cells)
        self.compiled_plan = _executor.CompiledPlan(
            TAKES, (0, NBYTES), ((channel, *words, CELL, 0, *addresses(wire.regions), 0),), None,
            memory[0], self.looks, self.looks.wait, True)
        self.taken = wire.taken

    def run(self):
        self.compiled_plan.run(0, *addresses(self.sink))


def test_a_message_comes(comm):
    scene, message = Scene(comm), numpy.arange(NBYTES, dtype="u1")
    sent = comm.Isend(message, 0, MPI_TAG)
    scene.run()
    sent.Wait()
    assert (scene.sink == message).all() and scene.taken[1] == 1 and not scene.context.abandoned


def test_a_message_that_comes_after_a_failure_leaves_the_callers_memory_alone(comm):
    """The program may have freed it, and the call was of machine code, which keeps nothing."""
    scene = Scene(comm)
    with pytest.raises(CollectiveTimeout):
        scene.run()
    again = scene.looks.receives(SimpleNamespace(
        at=0, input=0, output=addresses(scene.sink)[0]))
    scene.looks = scene.compiled_plan = None
    gc.collect()
    comm.Send(numpy.ones(NBYTES, "u1"), 0, MPI_TAG)
    assert not scene.sink.any()
    (receive,), = (kept.values() for kept in scene.context.abandoned)
    assert receive not in again.values()
    while not receive.request.test():
        pass
    assert not scene.sink.any() and receive.landed.all()

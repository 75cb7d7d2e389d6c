"""The constants that tell compiled modules of these sources from those of others."""

from hpccoll.runtime.events import call_log
from hpccoll.runtime.execution import compiled_plan
from hpccoll.runtime.execution.built import CONSTANTS
from hpccoll.transport.shm import channels


def test_the_constants_are_those_of_the_modules():
    found = {"OPERATIONS": len(compiled_plan.Instruction), "SMALL": channels.SMALL_CELL_BYTES,
             **{name: getattr(module, name) for module, names in (
                 (compiled_plan, ("WIDTH", "DONE", "REMOTE")),
                 (channels, ("PLACES", "SIZE_BITS")),
                 (call_log, ("ALARM", "NUMBER", "INSIDE", "CHECK", "CALLS", "REMEMBERED")))
                for name in names}}
    assert found == CONSTANTS

"""The compiled plan of one rank of a schedule, for people."""

from __future__ import annotations

from hpccoll.ir.schedule import SEND
from hpccoll.runtime.events.phase_events import PHASE_BITS, Activity
from hpccoll.runtime.execution.compiled_plan import Code, Form, Instruction, split_address


def as_text(code: Code) -> str:
    """A compiled plan for people: one instruction a line.

    >>> from hpccoll.ir.extents import Extent, LoweredProgram, Message, Phase
    >>> from hpccoll.runtime.execution.compiled_plan import encode
    >>> swap = Phase((), (Message("send", 1, Extent("in", 0, 2)),
    ...                   Message("recv", 1, Extent("out", 0, 2))), ())
    >>> print(as_text(encode(LoweredProgram((swap,), 0, 0), 8, 4)))
      0  send    to 1, 16 bytes of in+0
      1  take    16 bytes from 1
      2  copy    16 bytes, out+0 <- cell+0
      3  taken   from 1
      4  flush
      5  end
    """
    return "\n".join(f"{index:>3}  {Instruction(operation).name.lower():<7} "
                     f"{_operands(code, operation, *operands)}".rstrip()
                     for index, (operation, _, *operands) in enumerate(code.steps()))


def _operands(code: Code, operation: int, *operands: int) -> str:
    first, second, third, fourth, fifth, _ = operands
    if operation == Instruction.COPY:
        return f"{third} bytes, {_place(first)} <- {_place(second)}"
    if operation == Instruction.REDUCE:
        left = "held" if first & Form.LEFT else _place(third)
        right = "held" if first & Form.RIGHT else _place(fourth)
        into = ["held"] * bool(first & Form.HELD) + [_place(second)] * (
            not first & Form.HELD or bool(first & Form.ROUNDED))
        return f"{fifth} elements, {', '.join(into)} <- {left} op {right}"
    if operation == Instruction.SEND:
        return f"to {code.ways[first].peer}, {third} bytes of {_place(second)}"
    if operation == Instruction.TAKE:
        return f"{third} bytes from {code.ways[first].peer}"
    if operation == Instruction.POST:
        kind, peer, _ = code.remote[first]
        return (f"to {peer}, {third} bytes of {_place(second)}" if kind == SEND else
                f"{third} bytes from {peer} into {_place(second)}")
    if operation == Instruction.NOTE:
        return Activity(second & (1 << PHASE_BITS) - 1).name.lower()
    if operation in (Instruction.START, Instruction.AWAIT):
        return f"batch {first}"
    return f"from {code.ways[first].peer}" if operation == Instruction.TAKEN else ""


def _place(address: int) -> str:
    return "{}+{}".format(*split_address(address))

"""Text of a schedule: its specification, costs, messages and programs; lists of algorithms."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from hpccoll.algorithms import ALGORITHMS, Algorithm, algorithm_names, find
from hpccoll.errors import ArgumentError
from hpccoll.explain.columns import NARROWEST, WIDTH
from hpccoll.explain.replay import (
    ScheduleFacts,
    TimedMessage,
    TimedOperation,
    Timeline,
    Value,
    facts,
    ranks_of,
    timeline,
)
from hpccoll.ir.collectives import collective_named
from hpccoll.ir.in_network import InNetwork
from hpccoll.ir.order import by_lane, waits
from hpccoll.ir.schedule import COPY, LEFT, RECV, SEND, Program, Schedule, Step
from hpccoll.units import count_text as _count
from hpccoll.units import ranges_text, ranks_text, size_text

#: Maximum ranks for a list of every message and rank; larger ones have patterns and samples.
LISTED = 16
#: Maximum ranks for a replay; larger ones have closed forms only: a replay takes minutes.
REPLAYED = 256

#: Descriptions of the results of collectives.
WANTS = {
    "barrier": "no rank leaves before every rank has entered",
    "bcast": "every rank ends with the vector of rank {root}",
    "reduce": "rank {root} ends with the vector reduced over all ranks",
    "allreduce": "every rank ends with the vector reduced over all ranks",
    "reduce_scatter": "rank r ends with block r reduced over all ranks",
    "allgather": "every rank ends with the blocks of all ranks",
    "gather": "rank {root} ends with the blocks of all ranks",
    "scatter": "rank r ends with block r of rank {root}",
    "alltoall": "rank r ends with the block that every rank holds for r",
    "scan": "rank r ends with the vector reduced over ranks 0..r",
    "exscan": "rank r ends with the vector reduced over ranks 0..r-1",
}


def as_text(schedule: Schedule, nbytes: int | None = None, brief: bool = False,
            rank: int | None = None, width: int = WIDTH) -> str:
    """Return a text that explains a schedule.

    Up to 16 ranks every message and every rank's rounds are listed; beyond, the pattern of
    each round and the programs of a few ranks.

    Args:
        schedule: to explain.
        nbytes: bytes of a rank's vector, or of all its blocks together; adds bytes to the costs.
        brief: True to omit messages and programs: a line per round.
        rank: list the program of this rank only.
        width: characters of a line.

    Raises:
        ArgumentError: invalid rank.
    """
    if rank is not None and not 0 <= rank < schedule.size:
        raise ArgumentError("rank", f"{rank} is not a rank of 0..{schedule.size - 1}")
    width = max(width, NARROWEST)
    wants = WANTS[schedule.collective.name].format(root=schedule.root)
    lines = [schedule.title, "", f"Wanted: {wants}.", f"Payload: {_payload(schedule, nbytes)}.", ""]
    if schedule.size > REPLAYED:
        lines += list(_claims(schedule))
    else:
        line = timeline(schedule)
        lines += [*_costs(schedule, facts(schedule, line), line, nbytes), "",
                  "Communication pattern" + _key(schedule) * (not brief),
                  *_traffic(schedule, line, brief, width)]
        lines += [] if brief else ["", *_programs(schedule, line, rank, width)]
    each = "\n".join(lines).split("\n")  # some entries have several lines
    return "".join(f"{one}\n" for line in each for one in _wrap(line, width))


def _wrap(line: str, width: int) -> list[str]:
    """Return the line, wrapped between words; continuation lines are indented."""
    if len(line) <= width:
        return [line]
    heading = re.match(r" +\w+(?: \w+)? {2,}| *", line)
    indent = len(heading[0]) if heading else 0
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False,
                         subsequent_indent=" " * (indent + 4 * (not line[:indent].strip())))


def title_of(schedule: Schedule) -> str:
    """Return the title of a schedule: ``allreduce by ring, 8 ranks, 8 blocks``."""
    words = [f"{schedule.collective.name} by {schedule.algorithm}",
             _count(schedule.size, "rank")]
    words += [f"layout {schedule.topology}"] if schedule.topology else []
    words += [f"root {schedule.root}"] if schedule.collective.rooted else []
    if schedule.collective.payload == "vector":
        words.append(_count(schedule.nblocks, "block"))
    return ", ".join([*words, *(f"{name}={value}" for name, value in schedule.params)])


def _payload(schedule: Schedule, nbytes: int | None) -> str:
    each = "" if nbytes is None else f" of {size_text(nbytes / per_rank(schedule))}"
    return {"none": "none, messages are empty",
            "vector": f"a vector split into {_count(schedule.nblocks, 'block')}{each}",
            "blocks": f"one block{each} per rank, sizes may differ",
            "pairs": f"one block{each} for every (source, destination) pair"
            }[schedule.collective.payload]


def per_rank(schedule: Schedule) -> int:
    """Return the number of blocks in the largest buffer of a rank."""
    return schedule.nblocks if schedule.collective.payload == "vector" else schedule.size


def _costs(schedule: Schedule, costs: ScheduleFacts, line: Timeline, nbytes: int | None
           ) -> Iterator[str]:
    def blocks(number: int) -> str:
        if nbytes is None:
            return _count(number, "block")
        return f"{_count(number, 'block')} ({size_text(number * nbytes / per_rank(schedule))})"

    yield "Cost"
    yield f"  rounds      {costs.rounds}, the longest chain of dependent messages"
    yield f"  messages    {costs.all_messages} in all, at most {costs.messages} from one rank"
    if schedule.collective.payload != "none":
        most, total = blocks(costs.sent), blocks(costs.all_sent)
        yield f"  sent        {total} in all, at most {most} by one rank"
        yield "  scratch     " + (f"at most {blocks(costs.scratch)} on a rank" if costs.scratch
                                  else "none")
    needs = sorted({need for each in line.operations for need in each.network.needs})
    if needs:
        yield f"  needs       {' and '.join(needs)}, which few transports support"
    yield ""
    if costs.proof is None:
        yield "WRONG"
        yield "  " + costs.problem
        return
    yield "Proved"
    yield "  result      correct, even if MPI buffers nothing, with one element per block"
    if schedule.collective.reduces:
        yield "  rank order  " + ("kept: the operator may be "
                                  "non-commutative" if costs.proof.rank_order
                                  else "not kept: for commutative operators")
    if schedule.collective.name == "allreduce":
        yield "  replicas    " + ("all ranks get the same bits" if costs.proof.replicas_identical
                                  else "floating-point results may differ between ranks")


def _claims(schedule: Schedule) -> Iterator[str]:
    yield f"Cost (closed forms; messages are listed up to {REPLAYED} ranks)"
    yield f"  rounds      {'unknown' if schedule.rounds is None else schedule.rounds}"
    yield ("  sent        " + ("unknown" if schedule.sent is None else
                               f"at most {_count(schedule.sent, 'block')} by one rank"))


def _key(schedule: Schedule) -> str:
    """Return the key of the notation of messages."""
    if schedule.size > LISTED or schedule.collective.payload == "none":
        return ""
    if schedule.collective.reduces:
        return "  (b0 of 1-2: block 0, reduced so far over ranks 1 to 2)"
    return "  (b0>2: the block from rank 0 for rank 2)" * (schedule.collective.payload == "pairs")


def _traffic(schedule: Schedule, line: Timeline, brief: bool, width: int) -> Iterator[str]:
    if not line.messages and not line.operations:
        yield "  no messages: all work is local"
    for operation in line.operations:
        yield f"  round {operation.round}: {_operation(schedule, operation, brief)}"
    rounds = [(number, list(group)) for number, group in groupby(line.messages, lambda m: m.round)]
    if schedule.size <= LISTED and not brief:
        for number, messages in rounds:
            yield f"  round {number}: {_pattern(schedule.size, messages)}"
            yield from _columns([_arrow(schedule, m) for m in messages], width)
        return
    for pattern, group in groupby(rounds, lambda item: _pattern(schedule.size, item[1])):
        first, *_, last = [number for number, _ in group] * 2
        numbers = f"round {first}" if first == last else f"rounds {first}-{last}"
        yield f"  {numbers}: {pattern}"


def _pattern(size: int, messages: list[TimedMessage]) -> str:
    """Describe the messages of a round together: ranks, number, volume, and arrival."""
    links = {(m.sender, m.receiver) for m in messages}
    senders, receivers = ({link[i] for link in links} for i in (0, 1))
    shifts = {(to - frm) % size for frm, to in links}
    flips = {frm ^ to for frm, to in links}
    mutual = all((to, frm) in links for frm, to in links)
    who = "every rank" if len(senders) == size else _count(len(senders), "rank")
    if len(links) == 1:
        who = f"rank {messages[0].sender} -> rank {messages[0].receiver}"
    elif len(senders) == 1:
        who = f"rank {messages[0].sender} -> {len(receivers)} ranks"
    elif len(receivers) == 1:
        who = f"{len(senders)} ranks -> rank {messages[0].receiver}"
    elif len(flips) == 1 and mutual:
        who += f" r <-> r xor {min(flips)}"
    elif len(shifts) == 1:
        back = size - min(shifts)
        who += f" r -> r - {back}" if back < min(shifts) else f" r -> r + {min(shifts)}"
        who += f" (mod {size})"
    elif len(links) == size * (size - 1):
        who += " -> every other rank"
    else:
        who += f" -> {_count(len(receivers), 'rank')}, {_count(len(messages), 'message')}"
    counts = sorted({len(m.values) for m in messages})
    amount = {1: f"{_count(counts[0], 'block')} each"}.get(
        len(counts), f"{counts[0]}-{counts[-1]} blocks each")
    ends = {bool(m.side) for m in messages}
    end = {1: "reduced on arrival" if True in ends else "stored"}.get(
        len(ends), "some reduced, some stored")
    return f"{who}, no data" if counts == [0] else f"{who}, {amount}, {end}"


def _operation(schedule: Schedule, operation: TimedOperation, brief: bool) -> str:
    """Return a line on a network operation."""
    network, values = operation.network, operation.values
    to = ranks_text(network.receivers)
    what = _count(len(values), "block") if brief or not values or len(values) > LISTED else (
        _blocks(schedule, values))
    if not network.reduces:
        return f"multicast of rank {next(network.senders)} to {to}: {what}"
    return f"the network reduces {ranks_text(network.senders)} for {to}: {what}"


def _arrow(schedule: Schedule, message: TimedMessage) -> str:
    words = [f"{message.sender} -> {message.receiver}"]
    if message.values:
        words[0] += ":"
        words.append(_blocks(schedule, message.values))
        ranks = {v.ranks if v else 0 for v in message.values}
        if schedule.collective.reduces:
            words.append("of " + (ranges_text(ranks_of(*ranks)) if len(ranks) == 1 else "several"))
    return " ".join(words)


def _blocks(schedule: Schedule, values: Sequence[Value | None]) -> str:
    keys = [v.block for v in values if v]
    if len(keys) < len(values):
        return "memory never written"
    if schedule.collective.payload == "pairs":
        names = [f"{k // schedule.size}>{k % schedule.size}" for k in keys]
        return "b" + ",".join(names) if len(names) <= 4 else _count(len(names), "block")
    return "b" + ranges_text(keys)


def _programs(schedule: Schedule, line: Timeline, rank: int | None, width: int
              ) -> Iterator[str]:
    chosen: Iterable[int] = range(schedule.size)
    if rank is not None:
        chosen = [rank]
        yield f"What rank {rank} does"
    elif schedule.size > LISTED:
        chosen = sorted({0, schedule.root, schedule.size // 2, schedule.size - 1})
        yield f"What ranks {', '.join(map(str, chosen))} do"
    else:
        yield "What each rank does"
    for rank in chosen:
        program = schedule.program(rank)
        yield f"  rank {rank}" + (f", scratch for {_count(len(program.scratch), 'block')}"
                                  if len(program.scratch) else "")
        finish = line.finish[rank]
        if program.after:
            yield from _lanes(program, finish, width)
            continue
        rounds = [_round(steps, ends, before, width) for steps, ends, before
                  in zip(program.rounds, finish, [0, *finish]) if steps]
        rounds += ["    never finishes"] * (len(finish) < len(program.rounds))
        if schedule.size > LISTED and len(rounds) > 8 and len(list(chosen)) > 1:
            rounds[5:-2] = [f"    ... {len(rounds) - 7} rounds like these ..."]
        yield from rounds


def _lanes(program: Program, finish: Sequence[int | None], width: int) -> Iterator[str]:
    """Yield the lanes of a rank, one after the other, each round with its waits for other lanes."""
    order = waits(program)
    for lane, numbers in enumerate(by_lane(order)):
        yield f"   lane {lane}"
        for number, earlier in zip(numbers, [-1, *numbers]):
            others = [f"round {other}" for other in order[number] if other != earlier]
            name = f"round {number}" + f", after {' and '.join(others)}" * bool(others) + ": "
            yield _round(program.rounds[number], finish[number],
                         max((finish[other] or 0 for other in order[number]), default=0), width,
                         name)


def _round(steps: Sequence[Step], finish: int | None, before: int | None, width: int,
           name: str = "") -> str:
    """Return the text of one round of a rank; local rounds have no number."""
    when = "never" if finish is None else str(finish) if finish > (before or 0) else "-"
    head = f"    {when:>3}  "
    return textwrap.fill(name + "; ".join(map(_sentence, steps)), width,
                         initial_indent=head, subsequent_indent=" " * len(head))


def _sentence(step: Step) -> str:
    here, there = (" ".join(map(str, spans)) for spans in (step.spans, step.source))
    order = "arriving op mine" if step.side == LEFT else "mine op arriving"
    if isinstance(step.peer, InNetwork):
        return _network(step, step.peer, here, order)
    if step.kind == SEND:
        return f"send {here} to {step.peer}" if here else f"signal {step.peer}"
    if step.kind == RECV and step.side:
        return f"reduce into {here} from {step.peer} ({order})"
    if step.kind == RECV:
        return f"receive {here} from {step.peer}" if here else f"await {step.peer}"
    if step.kind == COPY:
        return f"copy {there} to {here}"
    return f"reduce {there} into {here} ({order})"


def _network(step: Step, network: InNetwork, here: str, order: str) -> str:
    """Return a sentence on one end of a network operation."""
    here = here or "a signal"
    if step.kind == SEND and not network.reduces:
        return f"multicast {here} to {ranges_text(network.receivers)}"
    if step.kind == SEND:
        return (f"pass {here} to the network, which reduces {ranges_text(network.senders)} for "
                f"{ranges_text(network.receivers)}")
    source = f"the network's result of {ranges_text(network.senders)}" if network.reduces else (
        f"{next(network.senders)}, by multicast")
    return (f"reduce into {here} from {source} ({order})" if step.side else
            f"receive {here} from {source}")


def _columns(words: list[str], width: int) -> Iterator[str]:
    cell = max(map(len, words)) + 3
    per_row = max((width - 6) // cell, 1)
    for start in range(0, len(words), per_row):
        yield "      " + "".join(w.ljust(cell) for w in words[start:start + per_row]).rstrip()


def first_line(entry: Algorithm) -> str:
    """Return the first line of the docstring of an algorithm's builder."""
    return (inspect.getdoc(entry.build) or "").partition("\n")[0]


def collectives(width: int = 1000) -> str:
    """Return the collectives, each with a description and its number of algorithms."""
    longest, lines = max(map(len, ALGORITHMS)), []
    for name, known in algorithm_names().items():
        lines += wrap(WANTS[name].replace("rank {root}", "the root").format(), width,
                      initial_indent=f"{name:{longest}}  {len(known):2} algorithms; ",
                      subsequent_indent=" " * (longest + 17))
    return "\n".join(lines) + "\n"


def as_list(collective: str | None = None, width: int = 1000) -> str:
    """Return the names of all algorithms, or of those for a collective, with descriptions.

    Algorithms of installed packages follow those of the table.

    Args:
        collective: name of a collective; all if omitted.
        width: characters of a line.

    Raises:
        ArgumentError: an unknown collective.
    """
    collective = None if collective is None else collective_named(collective)
    if collective is not None and collective not in ALGORITHMS:
        raise ArgumentError.unknown_word("collective", collective, ALGORITHMS)
    lines = []
    for base in [collective] if collective else ALGORITHMS:
        lines.append(base)
        for name in algorithm_names()[base]:
            lines += wrap(first_line(find(base, name)).replace("``", ""), width,
                          initial_indent=f"  {name:22} ", subsequent_indent=" " * 25)
    return "\n".join(lines) + "\n"

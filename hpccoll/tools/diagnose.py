"""Diagnosis of a job that hung or failed, from the flight records of its ranks.

    FOLDER/flight-JOB-rankR.json  --read-->  RecordedComm  --verdicts-->  sentences

A rank's own record has priority; for a rank that could not write, records of other ranks of its
node are used. The minority is reported: if ranks disagree, the ranks that differ from the majority;
if some wait, the missing ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import localtime, strftime
from typing import Any, NamedTuple

import numpy

from hpccoll import record_file
from hpccoll.errors.contract import ContractError
from hpccoll.explain.columns import FittedTable, Header
from hpccoll.guard.diagnosis import judge
from hpccoll.guard.rank_status import (
    DEBUGGED,
    FREE,
    GONE,
    HALTED,
    IN_PROGRAM,
    KILLED,
    UNKNOWN,
    WAITING,
    RankActivity,
)
from hpccoll.measure.profiling.merge import arrivals
from hpccoll.runtime.events.call_log import LogRecord
from hpccoll.runtime.planning.description import Description
from hpccoll.units import count_text, ranks_text, time_text

#: State of a rank in the program, after a call that failed.
FAILED = "failed"
#: Texts of states whose value in the records is older.
STATE_TEXTS = {IN_PROGRAM: "computing", UNKNOWN: "unknown"}
#: Mean seconds after the first rank from which a rank counts as late.
LATE = 0.01
HEADS = ("rank", "state", "call", "since", "waits for", "at", "arguments")


class RecordedComm(NamedTuple):
    """A communicator, and the recorded status of its ranks, numbered as in ``COMM_WORLD``.

    Attributes:
        calls: the last calls of each rank, by number.
        reports: records of failures, of the ranks that have one.
    """

    name: str
    ranks: list[RankActivity]
    calls: dict[int, Mapping[int, Mapping[str, Any]]]
    reports: dict[int, Mapping[str, Any]]


@dataclass(frozen=True)
class HangDiagnosis:
    """Diagnosis of a job.

    Attributes:
        comms: communicators, those with errors first.
        ranks, silent: number of ranks, and the ranks without a record.
    """

    verdict: str
    comms: Sequence[RecordedComm]
    ranks: int
    silent: Sequence[int]

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"format": "hpccoll diagnosis 1", "verdict": self.verdict, "ranks": self.ranks,
                "silent": list(self.silent), "communicators": [
                    {"name": one.name, "ranks": [
                        {**rank._asdict(), "story": one.reports.get(rank.rank)}
                        for rank in one.ranks]} for one in self.comms]}


# -- reading -----------------------------------------------------------------------------------
def read(folder: Path) -> list[Mapping[str, Any]]:
    """Return the records of the newest job in a folder."""
    return [record_file.read(file, record_file.FLIGHT, _check)
            for file in record_file.newest(folder, record_file.FLIGHT)]


def _check(data: Mapping[str, Any]) -> Mapping[str, Any]:
    data["communicators"], data["rank"], data["ranks"], data["when"]
    return data


def _comms(files: Sequence[Mapping[str, Any]]) -> list[RecordedComm]:
    views: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = defaultdict(list)
    for file in sorted(files, key=lambda file: file["when"]):
        for comm in file["communicators"]:
            views[comm["id"]].append((file, comm))
    return list(map(_comm, views.values()))


def _comm(views: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> RecordedComm:
    """Return a communicator: each rank from its own record, else from the latest of another."""
    first = views[0][1]
    world = first["world_ranks"]
    found = RecordedComm(first["name"] or f"a communicator of {len(world)}", [], {}, {})
    for index, rank in enumerate(world):
        own = [view for view in views if view[1]["rank"] == index]
        file, comm = (own or views)[-1]
        record: Mapping[str, Any] = next(
            (known for _, view in reversed(own or views)
             if (known := view["records"].get(str(index)))), {"calls": []})
        doing = RankActivity(**comm["doing"][index])
        state = IN_PROGRAM if own and doing.state in (GONE, FREE) else doing.state
        if record.get("story"):
            found.reports[rank] = record["story"]
            state = FAILED if state == IN_PROGRAM else state
        found.calls[rank] = {call["number"]: call for call in record["calls"]}
        found.ranks.append(doing._replace(
            rank=rank, state=state, site=doing.site or (file["site"] if own else ""),
            peers=tuple(world[peer] for peer in doing.peers)))
    return found


# -- judging -----------------------------------------------------------------------------------
def diagnose(files: Sequence[Mapping[str, Any]]) -> HangDiagnosis:
    """Return the diagnosis of the records of a job's ranks."""
    comms = _comms(files)
    ranks = max(file["ranks"] for file in files)
    silent = sorted(set(range(ranks)) - {file["rank"] for file in files})
    judged = [(list(diagnoses(comm)), comm) for comm in comms]
    judged.sort(key=lambda pair: not pair[0])
    sentences = [sentence for found, _ in judged for sentence in found]
    if not sentences:
        sentences = ["No rank waits in a collective of hpccoll, and no rank has failed."]
    failed = sorted({file["why"] for file in files if "Error" in file["why"].partition(":")[0]})
    if failed and not any(comm.reports for comm in comms):
        sentences.append(f"Error: {failed[0]}.")
    return HangDiagnosis(" ".join(sentences), [comm for _, comm in judged], ranks, silent)


def diagnoses(comm: RecordedComm) -> Iterator[str]:
    """Yield the errors of a communicator, the cause first; nothing if there are none."""
    ranks = comm.ranks
    inside = [one for one in ranks if one.inside or one.rank in comm.reports]
    if not inside and not any(one.state in (KILLED, HALTED, DEBUGGED) for one in ranks):
        return
    number = max(one.begun for one in inside) if inside else max(one.begun for one in ranks)
    difference = judge({one.rank: _log_of(comm, one) for one in ranks}, len(ranks))
    if difference is not None:
        yield describe_difference(difference)
    absent = list(_describe_missing(comm, number, difference is None))
    yield from absent or (_chain(ranks) if difference is None else ())
    late = describe_slowest(comm)
    failed = next((pair for pair in comm.reports.items() if not pair[1].get("heard")), None)
    if late is not None:
        yield f"Before that, {late}" if difference or absent else late[0].upper() + late[1:]
    if failed is not None and difference is None:
        rank, report = failed
        yield (f"The first failure was on rank {rank}, at {report['when']}: "
               f"{_shorten(report['reason'])}")


def _log_of(comm: RecordedComm, one: RankActivity) -> LogRecord:
    """Return what the log of a rank said, as far as the files know it."""
    described = {number: Description(*(call.get(field, "") for field in Description._fields))
                 for number, call in comm.calls[one.rank].items() if "collective" in call}
    hashes = {number: found.call_hash() for number, found in described.items()}
    report = comm.reports.get(one.rank) or {
        "number": one.begun, "tag": 0, "fields": None, "site": one.site}
    return LogRecord(one.begun, hashes,
                     {hashes[number]: found for number, found in described.items()}, report)


def describe_difference(error: ContractError) -> str:
    """Return a sentence on the first call that differs: those that differ from the most first."""
    groups = error.groups[::-1] if error.ranks else error.groups
    title = "type" if error.field == "dtype" else error.field
    return (f"Ranks disagree on the {title} in {error.call.removeprefix('blocking ')}: "
            + "; ".join(f"{ranks_text(group.ranks)} made {group.call}" for group in groups) + ".")


def _describe_missing(comm: RecordedComm, number: int, blame: bool) -> Iterator[str]:
    """Yield sentences on the ranks missing in a call, and why."""
    inside = [one for one in comm.ranks
              if one.begun == number and (one.inside or one.rank in comm.reports)]
    which = next((one.call for one in inside if one.call), "")
    call = f"call {number} of {comm.name}" + (f", {which}" if which else "")
    waits = f"{ranks_text(one.rank for one in inside)} wait" + "s" * (len(inside) == 1)
    for one in comm.ranks:
        begun = f"its last call was {one.begun}" if one.begun > 0 else "it has made no call"
        if one.state == KILLED:
            when = f"in {call}" if one.begun >= number and one.completed < number else (
                f"after call {number}" if one.completed >= number else f"before {call}")
            yield f"Rank {one.rank} was killed {when}" + (f": {waits} for it." if inside else ".")
        elif one.state in (HALTED, DEBUGGED):
            yield (f"Rank {one.rank} is stopped, by a signal or a debugger; {begun}"
                   + (f"; {waits} in {call}." if inside else "."))
        elif one.begun < number and one not in inside and blame:
            if one.begun < 0:
                yield f"Rank {one.rank} has not reported; {waits} in {call}."
            elif one.state in (GONE, FREE):
                what = "ended its program" if one.state == GONE else "freed the communicator"
                yield (f"Rank {one.rank} has {what} before {call}, in which {waits}; {begun}.")
            elif one.inside:
                yield (f"Rank {one.rank} is behind: it is in call {one.begun}, {one.call}"
                       f"{one.at}; {waits} in {call}.")
            else:
                yield (f"Rank {one.rank} has not started {call}, in which {waits}; it is in the "
                       f"program{one.at}, and {begun}.")


def _chain(ranks: Sequence[RankActivity]) -> Iterator[str]:
    """Yield sentences on the waits between ranks if no rank is missing."""
    waits = {one.rank: one.peers for one in ranks if one.state == WAITING and one.peers}
    behind = {rank: [peer for peer in peers if peer in waits] for rank, peers in waits.items()}
    linked = {rank: peers for rank, peers in behind.items() if peers}
    if linked:
        rounds = {one.rank: one.round for one in ranks}
        shown = [f"rank {rank} for {ranks_text(peers)} in round {rounds[rank]}"
                 for rank, peers in list(linked.items())[:4]]
        yield (f"Waiting ranks: {'; '.join(shown)}{' ...' * (len(linked) > 4)}.")


def describe_slowest(comm: RecordedComm) -> str | None:
    """Return a sentence on the last rank in the last calls, if it is one rank by far."""
    common = set.intersection(*({number for number, call in calls.items() if call["start"]}
                                for calls in comm.calls.values()))
    if len(common) < 2 or len(comm.calls) < 2:
        return None
    starts = numpy.array([[calls[number]["start"] for number in sorted(common)]
                          for calls in comm.calls.values()])
    worst = arrivals(comm.name, list(comm.calls), starts, starts.max(0) - starts)[0]
    if worst.late < LATE or 2 * worst.last <= worst.calls:
        return None
    return (f"rank {worst.rank} was last in {worst.last} of {worst.calls} calls, on average "
            f"{time_text(worst.late, 3)} after the first rank.")


def _shorten(text: str, most: int = 240) -> str:
    return text if len(text) <= most else text[:most - 3] + "..."


# -- showing -----------------------------------------------------------------------------------
def table(comm: RecordedComm, width: int) -> list[str]:
    """Return the name of a communicator, and a table with a line for each rank."""
    rows = []
    for one in comm.ranks:
        start = comm.calls[one.rank].get(one.begun, {}).get("start")
        rows.append((str(one.rank), STATE_TEXTS.get(one.state, one.state),
                     str(one.begun) if one.begun >= 0 else "?",
                     strftime("%H:%M:%S", localtime(start)) if start and one.begun > 0 else "",
                     f"{ranks_text(one.peers)}, round {one.round}" if one.peers else "",
                     one.site.rpartition("/")[2], one.call))
    return [comm.name, *FittedTable([Header(head, head in ("rank", "call")) for head in HEADS],
                                    rows, width).lines()]


def heading(found: HangDiagnosis) -> str:
    """Return a heading with the number of recorded ranks."""
    recorded = found.ranks - len(found.silent)
    return f"{count_text(found.ranks, 'rank')}, records of {recorded}" + (
        f"; no record of {ranks_text(found.silent)}" if found.silent else "")

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
from typing import Any

import numpy
from rich.box import SIMPLE_HEAD
from rich.table import Table

from hpccoll import record_file
from hpccoll.errors.contract import ContractError
from hpccoll.guard.diagnosis import judge
from hpccoll.measure.profiling.merge import arrivals
from hpccoll.runtime.events.call_log import LogRecord
from hpccoll.runtime.planning.description import Description
from hpccoll.units import count_text, ranks_text, time_text

#: States of ranks, named as in :mod:`hpccoll.guard.rank_status`.
WAITING, NATIVE, IN_PROGRAM, STOPPED, DEBUGGED, KILLED, ENDED, FREED, FAILED = (
    "waiting", "in the MPI library", "in no wait", "stopped", "held by a debugger", "killed",
    "ended", "freed", "failed")
#: Texts of states whose value in the records is older.
STATE_TEXTS = {IN_PROGRAM: "computing", "not heard of": "unknown"}
#: Mean seconds after the first rank from which a rank counts as late.
LATE = 0.01
HEADS = ("rank", "state", "call", "arguments", "since", "waits for", "at")


@dataclass(frozen=True)
class RecordedRank:
    """Recorded status of a rank of a communicator.

    Attributes:
        rank: rank in ``COMM_WORLD``.
        state: one of the states above, or ``not heard of``.
        begun, completed: numbers of calls; -1 if unknown.
        call, site: the call as text; file and line.
        peers: ranks in ``COMM_WORLD`` that it waits for.
        calls: its last calls, by number.
        report: record of its failure; None without a failure.
        own: True if the rank has written its own record.
    """

    rank: int
    state: str
    begun: int
    completed: int
    call: str
    site: str
    round: int
    peers: tuple[int, ...]
    calls: Mapping[int, Mapping[str, Any]]
    report: Mapping[str, Any] | None
    own: bool

    @property
    def inside(self) -> bool:
        return self.state in (WAITING, NATIVE)

    @property
    def whereabouts(self) -> str:
        """Return the position of the rank in the program as text."""
        return f" at {self.site}" if self.site else ""


@dataclass(frozen=True)
class RecordedComm:
    """A communicator, and the recorded status of its ranks."""

    name: str
    ranks: Sequence[RecordedRank]


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
                        {"rank": rank.rank, "state": rank.state, "begun": rank.begun,
                         "completed": rank.completed, "call": rank.call, "site": rank.site,
                         "round": rank.round, "peers": list(rank.peers), "story": rank.report}
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
    return [RecordedComm(found[0][1]["name"] or f"a communicator of "
                         f"{len(found[0][1]['world_ranks'])}",
                         [_rank(index, found) for index in
                          range(len(found[0][1]["world_ranks"]))]) for found in views.values()]


def _rank(index: int, views: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
          ) -> RecordedRank:
    """Return the status of a rank: from its own record, else from the latest of another rank."""
    own = [view for view in views if view[1]["rank"] == index]
    file, comm = (own or views)[-1]
    world, doing = comm["world_ranks"], comm["doing"][index]
    nothing: Mapping[str, Any] = {"calls": [], "story": None}
    record = next((found for _, view in reversed(own or list(views))
                   if (found := view["records"].get(str(index)))), nothing)
    site = doing["site"] or (file["site"] if own else "")
    state = IN_PROGRAM if own and doing["state"] in (ENDED, FREED) else doing["state"]
    if record["story"] and state == IN_PROGRAM:
        state = FAILED
    return RecordedRank(
        world[index], state, doing["begun"], doing["completed"], doing["call"], site,
        doing["round"], tuple(world[peer] for peer in doing["peers"]),
        {call["number"]: call for call in record["calls"]}, record["story"], bool(own))


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
    if failed and not any(one.report for comm in comms for one in comm.ranks):
        sentences.append(f"Error: {failed[0]}.")
    return HangDiagnosis(" ".join(sentences), [comm for _, comm in judged], ranks, silent)


def diagnoses(comm: RecordedComm) -> Iterator[str]:
    """Yield the errors of a communicator, the cause first; nothing if there are none."""
    ranks = comm.ranks
    inside = [one for one in ranks if one.inside or one.report]
    if not inside and not any(one.state in (KILLED, STOPPED, DEBUGGED) for one in ranks):
        return
    number = max(one.begun for one in inside) if inside else max(one.begun for one in ranks)
    difference = judge({one.rank: _log_of(one) for one in ranks}, len(ranks))
    if difference is not None:
        yield describe_difference(difference)
    absent = list(_describe_missing(comm.name, number, ranks, difference is None))
    yield from absent or (_chain(ranks) if difference is None else ())
    late = describe_slowest(ranks)
    failed = next((one for one in ranks if one.report and not one.report.get("heard")), None)
    if late is not None:
        yield f"Before that, {late}" if difference or absent else late[0].upper() + late[1:]
    if failed is not None and failed.report is not None and difference is None:
        yield (f"The first failure was on rank {failed.rank}, at {failed.report['when']}: "
               f"{_shorten(failed.report['reason'])}")


def _log_of(one: RecordedRank) -> LogRecord:
    """Return what the log of a rank said, as far as the files know it."""
    described = {number: Description(*(call.get(field, "") for field in Description._fields))
                 for number, call in one.calls.items() if "collective" in call}
    hashes = {number: found.call_hash() for number, found in described.items()}
    report = one.report or {"number": one.begun, "tag": 0, "fields": None, "site": one.site}
    return LogRecord(one.begun, hashes,
                     {hashes[number]: found for number, found in described.items()}, report)


def describe_difference(error: ContractError) -> str:
    """Return a sentence on the first call that differs: those that differ from the most first."""
    groups = error.groups[::-1] if error.ranks else error.groups
    title = "type" if error.field == "dtype" else error.field
    return (f"Ranks disagree on the {title} in {error.call.removeprefix('blocking ')}: "
            + "; ".join(f"{ranks_text(group.ranks)} made {group.call}" for group in groups) + ".")


def _describe_missing(name: str, number: int, ranks: Sequence[RecordedRank], blame: bool
                      ) -> Iterator[str]:
    """Yield sentences on the ranks missing in a call, and why."""
    inside = [one for one in ranks if one.begun == number and (one.inside or one.report)]
    which = next((one.call for one in inside if one.call), "")
    call = f"call {number} of {name}" + (f", {which}" if which else "")
    waits = f"{ranks_text(one.rank for one in inside)} wait" + "s" * (len(inside) == 1)
    for one in ranks:
        begun = f"its last call was {one.begun}" if one.begun > 0 else "it has made no call"
        if one.state == KILLED:
            when = f"in {call}" if one.begun >= number and one.completed < number else (
                f"after call {number}" if one.completed >= number else f"before {call}")
            yield f"Rank {one.rank} was killed {when}" + (f": {waits} for it." if inside else ".")
        elif one.state in (STOPPED, DEBUGGED):
            yield (f"Rank {one.rank} is stopped, by a signal or a debugger; {begun}"
                   + (f"; {waits} in {call}." if inside else "."))
        elif one.begun < number and one not in inside and blame:
            if one.begun < 0:
                yield f"Rank {one.rank} has not reported; {waits} in {call}."
            elif one.state in (ENDED, FREED):
                what = "ended its program" if one.state == ENDED else "freed the communicator"
                yield (f"Rank {one.rank} has {what} before {call}, in which {waits}; {begun}.")
            elif one.inside:
                yield (f"Rank {one.rank} is behind: it is in call {one.begun}, {one.call}"
                       f"{one.whereabouts}; {waits} in {call}.")
            else:
                yield (f"Rank {one.rank} has not started {call}, in which {waits}; it is in the "
                       f"program{one.whereabouts}, and {begun}.")


def _chain(ranks: Sequence[RecordedRank]) -> Iterator[str]:
    """Yield sentences on the waits between ranks if no rank is missing."""
    waits = {one.rank: one.peers for one in ranks if one.state == WAITING and one.peers}
    behind = {rank: [peer for peer in peers if peer in waits] for rank, peers in waits.items()}
    linked = {rank: peers for rank, peers in behind.items() if peers}
    if linked:
        rounds = {one.rank: one.round for one in ranks}
        shown = [f"rank {rank} for {ranks_text(peers)} in round {rounds[rank]}"
                 for rank, peers in list(linked.items())[:4]]
        yield (f"Waiting ranks: {'; '.join(shown)}{' ...' * (len(linked) > 4)}.")


def describe_slowest(ranks: Sequence[RecordedRank]) -> str | None:
    """Return a sentence on the last rank in the last calls, if it is one rank by far."""
    common = sorted(set.intersection(*({number for number, call in one.calls.items()
                                        if call["start"]} for one in ranks)))
    if len(common) < 2 or len(ranks) < 2:
        return None
    starts = numpy.array([[one.calls[number]["start"] for number in common] for one in ranks])
    worst = arrivals("", [one.rank for one in ranks], starts, starts.max(0) - starts)[0]
    if worst.late < LATE or 2 * worst.last <= worst.calls:
        return None
    return (f"rank {worst.rank} was last in {worst.last} of {worst.calls} calls, on average "
            f"{time_text(worst.late, 3)} after the first rank.")


def _shorten(text: str, most: int = 240) -> str:
    return text if len(text) <= most else text[:most - 3] + "..."


# -- showing -----------------------------------------------------------------------------------
def table(comm: RecordedComm) -> Table:
    """Return a table with a line for each rank."""
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, title=comm.name, title_justify="left")
    for head in HEADS:
        shown.add_column(head, overflow="fold", justify="right" if head in ("rank", "call")
                         else "left")
    for one in comm.ranks:
        start = one.calls.get(one.begun, {}).get("start")
        since = strftime("%H:%M:%S", localtime(start)) if start and one.begun > 0 else ""
        waits = f"{ranks_text(one.peers)}, round {one.round}" if one.peers else ""
        shown.add_row(str(one.rank), STATE_TEXTS.get(one.state, one.state),
                      str(one.begun) if one.begun >= 0 else "?", one.call, since, waits,
                      one.site.rpartition("/")[2])
    return shown


def heading(found: HangDiagnosis) -> str:
    """Return a heading with the number of recorded ranks."""
    recorded = found.ranks - len(found.silent)
    return f"{count_text(found.ranks, 'rank')}, records of {recorded}" + (
        f"; no record of {ranks_text(found.silent)}" if found.silent else "")

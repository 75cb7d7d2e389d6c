"""Comparison of the records of all ranks: finds ranks whose calls differ, and the fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpccoll.errors import BrokenCommunicatorError, HpccollError, PeerLost
from hpccoll.errors.contract import ContractError, Party
from hpccoll.errors.waits import RankStates, rank_list
from hpccoll.runtime.events.call_log import LogRecord
from hpccoll.runtime.planning.description import Description
from hpccoll.transport.call_hashes import KIND


def judge(records: Mapping[int, LogRecord], size: int) -> ContractError | None:
    """Find the first call that ranks disagree about.

    Args:
        records: by rank; some may be missing.
        size: number of ranks.

    Returns:
        ``None`` if all known records agree.
    """
    numbers = sorted({number for record in records.values() for number in record.call_hashes})
    for number in numbers:
        call_hashes = {rank: record.call_hashes[number] for rank, record in records.items()
                       if number in record.call_hashes}
        if len(ranks_of := groups(call_hashes)) > 1:
            return ContractError(f"blocking call {number}", [
                Party(tuple(ranks), _fields(records, call_hashes, ranks),
                      _sites(records, ranks, number))
                for ranks in ranks_of], _absent(size, call_hashes))
    # Nonblocking and persistent calls are in no log, only in failure records.
    tags = {rank: record.report["tag"] for rank, record in records.items()
            if record.report and record.report["tag"] and record.report["fields"]}
    for tag in sorted(set(tags.values())):
        described = {rank: Description(*(records[rank].report or {})["fields"])
                     for rank in tags if tags[rank] == tag}
        ranks_of = groups({rank: one.call_hash() for rank, one in described.items()})
        if len(ranks_of) > 1:
            return ContractError("a nonblocking or persistent call", [
                Party(tuple(ranks), described[ranks[0]]._asdict(), _sites(records, ranks))
                for ranks in ranks_of], _absent(size, described))
    return None


def unexpected_message_error(record: LogRecord, rank: int, peer: int, size: int) -> ContractError:
    """Return the error for a message with another call hash, if its sender has no record."""
    call_hash = record.call_hashes.get(record.number, 0)
    mine = _fields({rank: record}, {rank: call_hash}, [rank])
    here = Party((rank,), mine, _sites({rank: record}, [rank], record.number))
    return ContractError(f"blocking call {record.number}", [here, Party((peer,), {}, ())],
                         _absent(size, (rank, peer)))


def groups(call_hashes: Mapping[int, int]) -> list[list[int]]:
    """Return groups of ranks with equal call hashes, in the order of their first ranks.

    A call that moves plain bytes matches every call of the same size. It joins the largest group of
    such calls.

    >>> groups({0: 1, 1: 2, 2: 1})
    [[0, 2], [1]]
    """
    found: dict[int, list[int]] = {}
    for rank, call_hash in sorted(call_hashes.items()):
        found.setdefault(call_hash, []).append(rank)
    for call_hash in [call_hash for call_hash in found if not call_hash & KIND]:
        typed = [other for other in found if other & KIND and other & ~KIND == call_hash]
        if typed:
            most = max(typed, key=lambda other: len(found[other]))
            found[most] = sorted(found[most] + found.pop(call_hash))
    return sorted(found.values())


def _fields(records: Mapping[int, LogRecord], call_hashes: Mapping[int, int], ranks: Iterable[int]
            ) -> Mapping[str, str]:
    """Return the fields of the call of a group; empty if unknown."""
    known = [call for rank in ranks if (call := records[rank].descriptions.get(call_hashes[rank]))]
    known.sort(key=lambda description: not description.dtype)
    return known[0]._asdict() if known else {}


def _sites(records: Mapping[int, LogRecord], ranks: Iterable[int], number: int | None = None
           ) -> tuple[str, ...]:
    """Return the known call sites of a group of ranks, in a blocking call if it has a number."""
    reports = [records[rank].report for rank in ranks]
    return tuple(sorted({report["site"] for report in reports
                         if report and report["site"] and number in (None, report["number"])}))


def _absent(size: int, known: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(range(size)) - set(known)))


def states_fields(error: BaseException) -> Mapping[str, Any]:
    """Return the status of the ranks when a wait failed, as fields of a failure record."""
    states = error.states if isinstance(error, HpccollError) else None
    return {"missing": states.missing, "lines": states.lines} if states is not None else {}


def reported_error(rank: int, failure: Mapping[str, Any], title: str) -> BrokenCommunicatorError:
    """Return the error for a call on this rank after ``rank`` reported a failure."""
    if not failure["lost"]:
        return BrokenCommunicatorError.from_report(rank, failure)
    failed_ranks = tuple(failure["lost"])
    states = RankStates(failure.get("missing") or f"{rank_list(failed_ranks)} left",
                        tuple(failure.get("lines", ())))
    return PeerLost(failed_ranks, states, title, f"; reported by rank {rank}")

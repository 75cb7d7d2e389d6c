"""Records of ranks as if they had called something."""

from hpccoll.measure.profiling.record import CallKind, CallRecord, RankRecord
from hpccoll.runtime.events.phase_events import PHASE_BITS

ALLREDUCE = CallKind("allreduce", 1024, "f8 sum", -1, "ring")
BCAST = CallKind("bcast", 64, "f8", 1, "native")
REDUCE = CallKind("reduce", 64, "f8 sum", 0, "native")
SCAN = CallKind("scan", 64, "f8 sum", -1, "native")
STARTED = CallKind("allreduce_init", 8, "f8 sum", -1, "ring")


def rank_record(rank, calls, size=2, clock="one", ahead=(), waited=()):
    """A rank's record of calls on one communicator: kind, beginning and end of each."""
    record = CallRecord("WORLD", tuple(range(size)))
    for kind, start, stop in calls:
        record.add(record.number_of(kind), start, stop)
    for kind, seconds in waited:
        record.add_wait(record.number_of(kind), 8.0, 8.0 + seconds)
    return RankRecord(rank, clock, tuple(ahead), 0.0, 10.0, (record,))


def moment(second, activity, phase=0, segment=0):
    """A row of a ring of moments."""
    return [segment, phase << PHASE_BITS | activity, round(second * 1e9)]


def noting(*moments, depth=1, segments=(0,), programs=([[0, [0], [2]], [0, [0, 2], [1]]],)):
    """What a record has of moments, of one plan on the second of three ranks."""
    return {"rows": sum(moments, []),
            "plans": [{"title": "a plan", "depth": depth, "segments": list(segments),
                       "programs": list(programs)}]}

"""Records of ranks as if they had called something."""

import numpy

from hpccoll.measure.profiling.record import WAIT, CallKind, CallRecord, CallSums, RankRecord
from hpccoll.runtime.events.phase_events import PHASE_BITS

ALLREDUCE = CallKind("allreduce", 1024, "f8 sum", -1, "ring")
BCAST = CallKind("bcast", 64, "f8", 1, "native")
REDUCE = CallKind("reduce", 64, "f8 sum", 0, "native")
SCAN = CallKind("scan", 64, "f8 sum", -1, "native")
STARTED = CallKind("allreduce_init", 8, "f8 sum", -1, "ring")


def rank_record(rank, calls, size=2, clock="one", ahead=(), waited=(), phases=None):
    """A rank's record of calls on one communicator: kind, beginning and end of each."""
    waits = [(kind._replace(title=kind.title + WAIT), 8.0, 8.0 + seconds)
             for kind, seconds in waited]
    rows = [*calls, *waits]
    kinds = list(dict.fromkeys(kind for kind, *_ in rows))
    sums = [CallSums(sum(one == kind for one, *_ in rows),
                     sum(stop - start for one, start, stop in rows if one == kind))
            for kind in kinds]
    times = numpy.array([(kinds.index(kind), start, stop) for kind, start, stop in rows], float)
    record = CallRecord("WORLD", tuple(range(size)), 0, kinds, sums, times.reshape(-1, 3),
                        phases=phases)
    return RankRecord(rank, clock, tuple(ahead), 0.0, 10.0, (record,))


def moment(second, activity, phase=0, segment=0):
    """A phase as plain data."""
    return [segment, phase << PHASE_BITS | activity, round(second * 1e9)]


def noting(*moments, whole=True, depth=1, segments=(0,),
           programs=([[0, [0], [2]], [0, [0, 2], [1]]],)):
    """The phases of a record, of one plan on the second of three ranks."""
    return {"whole": whole, "rows": sum(moments, []),
            "plans": [{"title": "a plan", "depth": depth, "segments": list(segments),
                       "programs": list(programs)}]}

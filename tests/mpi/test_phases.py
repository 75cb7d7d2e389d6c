"""What real ranks note inside of their calls: every phase, in order, by either executor."""

import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm import profiled
from hpccoll.measure.profiling.observer import OBSERVER
from hpccoll.measure.profiling.phases import activities, spans
from hpccoll.measure.profiling.record import read, save
from hpccoll.runtime.events.phase_events import Activity
from hpccoll.runtime.execution.built import BUILT
from support.fresh_events import forget_events

RAW = MPI.COMM_WORLD
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
pytestmark = [pytest.mark.mpi(min_size=2)]
CALLS, PAUSE = 5, 0.05


def communicator(monkeypatch, tmp_path, executor="", **settings):
    """One whose calls' phases are noted, in a program that writes no file."""
    for name, value in {"TRACE": str(tmp_path), "TRACE_PHASES": "yes", "EXECUTOR": executor,
                        **settings}.items():
        monkeypatch.setenv(f"HPCCOLL_{name}", value)
    monkeypatch.setattr(profiled, "write_at_end", lambda folder: None)
    forget_events()
    return hpccoll.Comm(MPI.Intracomm(RAW).Dup())


def records(tmp_path):
    """The only communicator's record, written and read again; and its activities."""
    mine = tmp_path / f"of rank {RANK}"
    save(str(mine), OBSERVER.record(), "job", 1)
    [found], _ = read(mine)
    [record] = found.communicators
    return record, activities(record)


@pytest.mark.parametrize("executor", ["compiled", "python"] if BUILT else ["python"])
@pytest.mark.parametrize("name", ["recursive_doubling", "ring"])
def test_every_phase_of_every_call_is_noted(monkeypatch, tmp_path, executor, name):
    comm, data = communicator(monkeypatch, tmp_path, executor), numpy.ones(1000)
    with comm.using(allreduce=name):
        for _ in range(CALLS):
            comm.Allreduce(MPI.IN_PLACE, data)
    comm.Barrier()
    record, made = records(tmp_path)
    title = next(kind for kind in record.kinds if kind.title == "allreduce")
    assert ("in Python" in title.served) == (executor == "python")
    calls, number = record.calls, record.kinds.index(title)
    ours = numpy.flatnonzero(calls[:, 0] == number)
    plan = next(one for one in record.phases["plans"] if one["title"].startswith("allreduce"))
    phases = range(len(plan["programs"][0]))
    for call in ours:
        mine = made.calls == call
        assert sorted(set(made.phases[mine].tolist())) == list(phases)
        starts, stops = made.starts[mine], made.stops[mine]
        assert (starts[1:] == stops[:-1]).all() and (stops >= starts).all()
        assert calls[call, 1] <= starts[0] and stops[-1] <= calls[call, 2]
        assert {Activity.SENDING, Activity.WAITING} <= set(made.kinds[mine].tolist())
    # One rank of three only hands its part over.
    assert RAW.allreduce((made.kinds == Activity.REDUCING).any(), MPI.LOR)
    comm.Free()


@pytest.mark.parametrize("executor", ["compiled", "python"] if BUILT else ["python"])
def test_who_is_waited_for_is_named(monkeypatch, tmp_path, executor):
    comm, data = communicator(monkeypatch, tmp_path, executor), numpy.ones(1000)
    with comm.using(allreduce="recursive_doubling"):
        comm.Allreduce(MPI.IN_PLACE, data)
        RAW.Barrier()
        if RANK == 1:
            time.sleep(PAUSE)
        comm.Allreduce(MPI.IN_PLACE, data)
    record, made = records(tmp_path)
    last = record.calls[-1, 1]
    longest = max((span for span in spans(record, made)
                   if span.details is None and span.start >= last),
                  key=lambda span: span.stop - span.start)
    if RANK == 0:
        assert longest.name == "waiting for rank 1" and longest.stop - longest.start > PAUSE / 2
    comm.Free()


def test_segments_in_flight_have_lines_of_their_own(monkeypatch, tmp_path):
    comm, data = communicator(monkeypatch, tmp_path, SEGMENT_BYTES="4K"), numpy.ones(8192)
    with comm.using(allreduce="ring"):
        for _ in range(CALLS):
            comm.Allreduce(MPI.IN_PLACE, data)
    record, made = records(tmp_path)
    assert set(made.lines.tolist()) == {0, 1} and made.segments.max() >= 3
    for line in (0, 1):
        mine = made.lines == line
        assert (made.starts[mine][1:] >= made.stops[mine][:-1]).all()
        assert set((made.segments[mine] % 2).tolist()) == {line}
    comm.Free()


def test_nothing_is_noted_where_nobody_asks(monkeypatch, tmp_path):
    comm = communicator(monkeypatch, tmp_path, TRACE_PHASES="no")
    assert comm.layout
    comm.Allreduce(MPI.IN_PLACE, numpy.ones(8))
    assert records(tmp_path)[1] is None and comm._context.phases is None
    comm.Free()

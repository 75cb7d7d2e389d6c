"""Probes on real ranks: asked for, once for a place, agreed, kept - and never in a job's way."""

import os
import warnings

import pytest
from mpi.cases import believe, works
from mpi4py import MPI

pytest.importorskip("click")
pytest.importorskip("rich")


import hpccoll
from hpccoll.errors import TuningError
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.measure import probe as probing
from hpccoll.measure import rounds, survey
from hpccoll.tune import loading
from hpccoll.tune.table import Candidate, read

WORLD = MPI.COMM_WORLD
pytestmark = [pytest.mark.mpi,
              pytest.mark.skipif(WORLD.size == 1, reason="one rank has nothing to choose")]
NATIVE = Candidate("native")


@pytest.fixture
def probes(monkeypatch):
    """A short probe; counts how often there is one."""
    count, measure = [], survey.survey

    def counted(*args, **given):
        count.append(1)
        return measure(*args, **given)

    monkeypatch.setattr(survey, "LONGEST", 0.01)
    believe(monkeypatch)
    short = rounds.PROBE._replace(
        collectives=("allreduce", "bcast"), sizes=(64, 1024), seconds=2.0, most=3)
    monkeypatch.setattr(rounds, "PROBE", short)
    monkeypatch.setattr(probing, "survey", counted)
    monkeypatch.setattr(loading, "_probed", {})
    monkeypatch.setenv("HPCCOLL_TUNING", "probe")
    return count


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A cache directory that all ranks know of, with no table in it."""
    path = WORLD.bcast(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", path)
    return path


def agreed(comm, *sizes):
    """The explanations, each in one line; the same on all ranks."""
    texts = [" ".join(comm.explain(name, nbytes).split()) for name in ("allreduce", "bcast", "scan")
             for nbytes in sizes]
    assert len(set(map(str, WORLD.allgather(texts)))) == 1
    return texts


def table_of(cache):
    """The table that was written, once all ranks are here."""
    WORLD.Barrier()
    found = read(os.path.join(cache, "hpccoll", "tuning.json"))
    WORLD.Barrier()
    return found


def test_a_place_is_probed_once_and_kept(monkeypatch, cache, probes):
    comm = hpccoll.Comm(WORLD.Dup())
    works(comm, 16)
    assert len(probes) == 1
    text, *_ = agreed(comm, 64, 500, 1024, 2048, 1 << 20)
    assert f"of a few candidates, by a probe, from {cache}/hpccoll/tuning.json" in text
    (machine, curves), = table_of(cache).items()
    assert machine.probe and machine.ranks == comm.size
    assert set(curves) == {("allreduce", True), ("bcast", True)}
    assert all(NATIVE in times and 2 <= len(times) <= 4
               for curve in curves.values() for _, times in curve)
    # What this job goes by is what later jobs read.
    assert comm.tuned.probed == curves
    # A later communicator reads them, and so does a job that asks for no probe.
    for setting in ("probe", None):
        if setting is None:
            monkeypatch.delenv("HPCCOLL_TUNING")
        other = hpccoll.Comm(WORLD.Dup())
        works(other, 16)
        assert agreed(other, 64, 2048, 1 << 20) == agreed(comm, 64, 2048, 1 << 20)
        other.Free()
    assert len(probes) == 1
    comm.Free()


def test_another_layout_is_another_place(cache, probes):
    layout = "x".join(["1"] * 2) if WORLD.size == 1 else ",".join("1" * WORLD.size)
    for topology in (None, layout, None, layout):
        comm = hpccoll.Comm(WORLD.Dup(), layout=topology)
        works(comm, 16)
        assert comm.tuned.probed
        comm.Free()
    assert len(probes) == 2
    assert {str(hpccoll.ir.topology.Topology.parse(m.topology)) for m in table_of(cache)} == {
        str(hpccoll.ir.topology.Topology.parse(text)) for text in (str(WORLD.size), layout)}


def test_where_nothing_can_be_written_the_job_goes_on(monkeypatch, cache, probes):
    monkeypatch.setenv("XDG_CACHE_HOME", f"{cache}/file")
    if WORLD.rank == 0:
        with open(f"{cache}/file", "w", encoding="utf-8"):
            pass
    WORLD.Barrier()
    comm = hpccoll.Comm(WORLD.Dup())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        works(comm, 16)
    said = [str(w.message) for w in caught if "probe" in str(w.message)]
    assert len(said) == (WORLD.rank == 0)
    assert all("only this job uses" in text and "cannot write" in text
               for text in said)
    assert "from a probe of this job" in agreed(comm, 64)[0]
    comm.Free()
    # The next communicator knows, and says nothing.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        comm = hpccoll.Comm(WORLD.Dup())
        works(comm, 16)
        comm.Free()
    assert len(probes) == 1


def test_where_nothing_can_be_measured_nobody_tries_again(monkeypatch, cache, probes):
    measure = probing.survey
    monkeypatch.setattr(probing, "survey", lambda *args, **given: measure(
        *args, **given)._replace(curves={}))
    said = []
    for _ in range(3):
        comm = hpccoll.Comm(WORLD.Dup())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            works(comm, 16)
        said += [str(w.message) for w in caught if "probe" in str(w.message)]
        assert len(probes) == 1
        text = agreed(comm, 64)[0]
        assert "none; the probe of this job measured nothing" in text
        comm.Free()
    assert len(said) == (WORLD.rank == 0)
    assert all("measured nothing; this job does not repeat it" in text for text in said)
    assert not os.path.exists(f"{cache}/hpccoll/tuning.json")


def test_a_rank_that_asks_for_none_is_named(monkeypatch, cache, probes):
    if WORLD.rank == WORLD.size - 1:
        monkeypatch.setenv("HPCCOLL_TUNING", "off")
    comm = hpccoll.Comm(WORLD.Dup())
    with pytest.raises(TuningError, match="'probe'.*rank 0.*'off'"):
        works(comm, 16)
    assert not probes
    comm.Free()


def test_nobody_is_probed_unasked(monkeypatch, cache, probes):
    monkeypatch.delenv("HPCCOLL_TUNING")
    comm = hpccoll.Comm(WORLD.Dup())
    works(comm, 16)
    assert not probes and not os.path.exists(f"{cache}/hpccoll")
    comm.Free()


def test_every_collective_is_probed(monkeypatch, cache):
    monkeypatch.setattr(survey, "LONGEST", 0.01)
    believe(monkeypatch)
    plan = rounds.PROBE._replace(sizes=(64, 4096), seconds=20.0, most=2)
    outcome = survey.survey(WORLD, plan, hpccoll.Comm)
    assert outcome.failures == {} and not outcome.interrupted
    if WORLD.rank == 0:
        assert {collective for collective, _ in outcome.curves} == set(COLLECTIVES)
        for (collective, commutes), curve in outcome.curves.items():
            assert commutes and len(curve) == (1 if collective == "barrier" else 2)
            assert all(NATIVE in times and 2 <= len(times) <= 3 for _, times in curve)

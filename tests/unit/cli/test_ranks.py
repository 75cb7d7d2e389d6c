"""Commands of many ranks: who speaks, and how they end."""

import signal
from types import SimpleNamespace

import pytest
from mpi4py import MPI

pytest.importorskip("click")

from hpccoll.cli import ranks
from hpccoll.errors import ArgumentError, HpccollError, MpiLibraryError

SELF = MPI.COMM_SELF


def refuse():
    raise ArgumentError("--option", "is wrong")


def test_what_goes_wrong_on_one_rank_is_raised_on_all():
    assert ranks.agree(SELF, lambda: 7) == 7
    for agree in (ranks.agree, ranks.agree_on_rank_0):
        with pytest.raises(HpccollError, match="^--option: .*wrong"):
            agree(SELF, refuse)


def test_a_complaint_is_one_line(capsys):
    ranks.complain("bench", "one\n  two")
    assert capsys.readouterr().err == "hpccoll: bench: one two\n"


def test_one_rank_alone_ends_with_its_error():
    with pytest.raises(ZeroDivisionError):
        ranks.abort(SELF, ZeroDivisionError())


def test_an_error_on_purpose_ends_all_ranks_in_one_line(monkeypatch, capsys):
    ended = []
    comm = SimpleNamespace(Get_size=lambda: 2, Abort=ended.append)
    monkeypatch.setattr("hpccoll.cli.ranks.os._exit", ended.append)
    ranks.abort(comm, ArgumentError("--json", "cannot write 'x'"))
    assert capsys.readouterr().err == "hpccoll: --json: cannot write 'x'\n" and ended == [1, 1]
    ranks.abort(comm, ZeroDivisionError("ours"))
    assert "Traceback" in (said := capsys.readouterr().err) or "ZeroDivisionError" in said


@pytest.mark.parametrize("rank, status", [(None, 2), (0, 2), (1, 0)])
def test_the_first_process_speaks_where_there_is_no_mpi(monkeypatch, capsys, rank, status):
    monkeypatch.setattr(ranks, "launcher_rank", lambda: (-1, -1) if rank is None else (rank, 2))
    assert ranks.without_mpi(MpiLibraryError("no library", "install one")) == status
    said = capsys.readouterr().err
    assert said == ("hpccoll: no library; install one\n" if status else "")


def test_the_first_interrupt_is_noted_and_a_later_one_ends(monkeypatch):
    before, raised = signal.getsignal(signal.SIGINT), []
    with ranks.stoppable() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # a launcher passes it on, too
        assert stopped()
        monkeypatch.setattr(ranks, "INSIST", 0.0)
        monkeypatch.setattr(signal, "raise_signal", raised.append)
        signal.getsignal(signal.SIGINT)(signal.SIGINT, None)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL and raised == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is before

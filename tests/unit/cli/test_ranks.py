"""Commands of many ranks: who speaks, and how they end."""

import signal
import sys
from types import SimpleNamespace

import pytest
from mpi4py import MPI

pytest.importorskip("click")
pytest.importorskip("rich")

import click
from click.testing import CliRunner

from hpccoll.cli import COMMANDS, Commands, main, ranks
from hpccoll.errors import ArgumentError, HpccollError, MpiLibraryError

SELF = MPI.COMM_SELF


def refuse():
    raise ArgumentError("--option", "is wrong")


def test_what_goes_wrong_on_one_rank_is_raised_on_all():
    assert ranks.agree(SELF, lambda: 7) == 7
    for agree in (ranks.agree, ranks.agree_on_rank_0):
        with pytest.raises(HpccollError, match="^--option: is wrong$"):
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
    monkeypatch.setattr(ranks, "launched", lambda: (-1, -1) if rank is None else (rank, 2))
    assert ranks.without_mpi(MpiLibraryError("no library", "install one")) == status
    said = capsys.readouterr().err
    assert said == ("hpccoll: no library; install one\n" if status else "")


@pytest.mark.parametrize("size, ended", [(1, []), (2, [130])])
def test_ctrl_c_in_a_command_that_knows_nothing_yet(monkeypatch, capsys, size, ended):
    """Ranks that are elsewhere may wait for this one."""
    found = []
    world = SimpleNamespace(Get_size=lambda: size, Abort=found.append)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(
        COMM_WORLD=world, Is_initialized=lambda: True, Is_finalized=lambda: False))
    waited = []
    monkeypatch.setattr(ranks, "sleep", waited.append)
    for rank in (-1, 0, 1):
        monkeypatch.setattr(ranks, "launched", lambda rank=rank: (rank, 2))
        assert ranks.interrupted("doctor") == 130
    assert capsys.readouterr().err == "hpccoll: doctor: interrupted\n" * 2 and found == 3 * ended
    assert waited == [ranks.MOMENT]  # for the first one's line


def test_ctrl_c_is_one_line_of_every_command(monkeypatch):
    def stopped():
        raise KeyboardInterrupt

    monkeypatch.setattr(ranks, "launched", lambda: (-1, -1))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    monkeypatch.setattr(Commands, "get_command",
                        lambda self, context, name: click.Command(name, callback=stopped))
    for name in COMMANDS:
        done = CliRunner().invoke(main, name.split())
        assert (done.exit_code, done.stderr) == (130, f"hpccoll: {name}: interrupted\n")


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

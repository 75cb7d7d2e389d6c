"""Ctrl-C in a command that has nothing to show yet: one line, status 130, no rank that waits."""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

import click
from click.testing import CliRunner

from hpccoll.cli import COMMANDS, Commands, main, ranks


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
        monkeypatch.setattr(ranks, "launcher_rank", lambda rank=rank: (rank, 2))
        assert ranks.report_interrupt("doctor") == 130
    assert capsys.readouterr().err == "hpccoll: doctor: interrupted\n" * 2 and found == 3 * ended
    assert waited == [ranks.MOMENT]  # for the first one's line


def test_ctrl_c_is_one_line_of_every_command(monkeypatch):
    def stopped():
        raise KeyboardInterrupt

    monkeypatch.setattr(ranks, "launcher_rank", lambda: (-1, -1))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    monkeypatch.setattr(Commands, "get_command",
                        lambda self, context, name: click.Command(name, callback=stopped))
    for name in COMMANDS:
        done = CliRunner().invoke(main, name.split())
        assert (done.exit_code, done.stderr) == (130, f"hpccoll: {name}: interrupted\n")

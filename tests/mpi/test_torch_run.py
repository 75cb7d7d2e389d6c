"""``hpccoll run`` of a program for torchrun: the variables that it reads."""

import pytest
from mpi4py import MPI

from hpccoll.cli import program

pytestmark = pytest.mark.mpi


def test_variables_are_set_where_they_are_not():
    environ = {"LOCAL_RANK": "5"}
    program.set_variables(environ)
    comm = MPI.COMM_WORLD
    assert environ["RANK"] == str(comm.rank) and environ["WORLD_SIZE"] == str(comm.size)
    assert environ["LOCAL_RANK"] == "5"
    assert 1 <= int(environ["LOCAL_WORLD_SIZE"]) <= comm.size
    assert len(set(comm.allgather((environ["MASTER_ADDR"], environ["MASTER_PORT"])))) == 1


def test_the_import_of_torch_sets_them(monkeypatch):
    seen = []
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(program, "set_variables", lambda: seen.append(1))
    hook = program.Variables()
    assert hook.find_spec("numpy", None) is None and not seen
    assert hook.find_spec("torch", None) is None
    assert len(seen) == 1
    monkeypatch.setenv("RANK", "0")
    assert hook.find_spec("torch", None) is None
    assert len(seen) == 1 + (MPI.COMM_WORLD.size > 1)

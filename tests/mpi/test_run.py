"""``hpccoll run`` on real ranks: what an unchanged program finds, and that it still works."""

import copyreg
import os
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.cli.ranks import BAD_OPTIONS
from hpccoll.cli.run import command

pytestmark = pytest.mark.mpi
EVERY_COLLECTIVE = Path(__file__).with_name("every_collective.py")


@pytest.fixture
def run(monkeypatch):
    """Run a program in this process, as the command does; put everything back afterwards."""
    for name in ("COMM_WORLD", "COMM_SELF"):
        monkeypatch.setattr(MPI, name, getattr(MPI, name))
    monkeypatch.setattr(sys, "argv", ["hpccoll"])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    for cls in (hpccoll.Comm, MPI.Comm, MPI.Intracomm):
        monkeypatch.setitem(copyreg.dispatch_table, cls, None)
    monkeypatch.setenv("HPCCOLL_ALGORITHM", os.environ.get("HPCCOLL_ALGORITHM", ""))
    return lambda *arguments: command.main(map(str, arguments), standalone_mode=False)


def test_predefined_communicators_are_ours(run):
    run("-c", """
import copy, pickle
from mpi4py import MPI
from mpi4py.MPI import COMM_SELF, COMM_WORLD
import hpccoll
for comm in COMM_SELF, COMM_WORLD:
    assert type(comm) is hpccoll.Comm
    assert pickle.loads(pickle.dumps(comm)) is comm
    assert copy.deepcopy(comm) is comm
    class Mine(MPI.Intracomm):
        pass
    for other in (MPI.Comm.fromhandle(comm.handle), MPI.Intracomm(comm), hpccoll.Comm(comm),
                  MPI.Comm.f2py(comm.py2f()), MPI.Comm(comm)):
        for again in pickle.loads(pickle.dumps(other)), copy.deepcopy([other])[0], copy.copy(other):
            assert type(again) is type(other) and again == other == comm
    assert copy.copy(Mine(comm)) == comm and type(copy.deepcopy(Mine(comm))) is Mine
assert MPI.COMM_WORLD is COMM_WORLD and MPI.COMM_SELF is COMM_SELF
assert MPI.Comm.Compare(COMM_SELF, MPI.COMM_SELF) == MPI.IDENT
for comm in COMM_WORLD.Dup(), COMM_WORLD.Split(COMM_WORLD.rank % 2):
    assert type(comm) is hpccoll.Comm
    for other in comm, MPI.Intracomm(comm):
        try:
            pickle.dumps(other)
        except ValueError as error:
            assert "cannot serialize" in str(error)
        else:
            assert False
    comm.Free()
assert pickle.loads(pickle.dumps(MPI.COMM_NULL)) == MPI.COMM_NULL
""")


def test_the_safe_form_of_free(run):
    """It leaves the predefined communicators alone, of others it is ``Free``, once."""
    run("-c", """
import numpy
from mpi4py import MPI
world, size = MPI.COMM_WORLD, MPI.COMM_WORLD.size
def works(comm):
    for _ in range(3):
        assert comm.allreduce(1) == comm.size
        comm.Iallreduce(numpy.ones(1), numpy.empty(1)).Wait()
works(world)
for comm in world, MPI.COMM_SELF:
    copy = type(comm)(comm)
    copy.free()
    comm.free()
    assert comm and not copy
    works(comm)
for make in (lambda: world.Dup(), lambda: world.Create_cart([size]), lambda: world.Split(0),
             lambda: world.Create_dist_graph_adjacent([world.rank], [world.rank])):
    comm = make()
    works(comm)
    comm.free()
    assert not comm
    comm.free()
works(world)
""")


def test_algorithms_win_over_those_of_the_environment(run, monkeypatch):
    monkeypatch.setenv("HPCCOLL_ALGORITHM", "bcast=binomial;allreduce=linear")
    run("--algorithm", "allreduce=ring", "--algorithm", "reduce=knomial:k=3", "-c", """
from hpccoll import config
assert config.load().algorithm == {"bcast": ("binomial", {}), "allreduce": ("ring", {}),
                                   "reduce": ("knomial", {"k": 3})}
""")


def test_arguments_belong_to_the_program(run, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys\nassert sys.argv[1:] == ['--topology', '2', '-h'], sys.argv\n")
    run(program, "--topology", "2", "-h")


@pytest.mark.parametrize("words, problem, ranks", [
    (["nosuch.py"], "there is no file 'nosuch.py'", range(MPI.COMM_WORLD.size)),
    (["--topology", "bogus", "-c", ""], "bogus", [0])], ids=["file", "layout"])
def test_mistakes_are_told_before_anything_runs(run, capfd, words, problem, ranks):
    """A file may be missing on one node only; what is wrong with words is so on all ranks."""
    tells = MPI.COMM_WORLD.rank in ranks
    assert run(*words) == (BAD_OPTIONS if tells else 0)
    assert (problem in capfd.readouterr().err) == tells


def test_a_layout_of_other_ranks_is_told_once(run, capfd):
    with pytest.raises(SystemExit) as stop:
        run("--topology", "7x9", "-c", "from mpi4py import MPI")
    assert stop.value.code == BAD_OPTIONS
    told = capfd.readouterr().err
    assert ("63 ranks" in told) == (MPI.COMM_WORLD.rank == 0) and "Traceback" not in told


def test_exit_with_success_is_not_a_failure(run):
    with pytest.raises(SystemExit) as stop:
        run("-c", "import sys; sys.exit(0)")
    assert stop.value.code == 0


def test_every_collective_natively():
    """The program below tells right from wrong; here it meets the MPI library alone."""
    exec(compile(EVERY_COLLECTIVE.read_text(), EVERY_COLLECTIVE, "exec"), {"__name__": "native"})


def test_every_collective(run):
    run(EVERY_COLLECTIVE)


def test_every_collective_by_other_algorithms(run):
    run("--algorithm", "allreduce=recursive_doubling;reduce=binomial;bcast=scatter_ring",
        "--algorithm", "allgather=circulant;alltoall=pairwise;scan=linear;exscan=linear",
        "--algorithm", "gather=binomial;scatter=binomial;reduce_scatter=circulant;barrier=tree",
        EVERY_COLLECTIVE)

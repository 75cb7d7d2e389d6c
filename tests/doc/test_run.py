"""``hpccoll run`` as a process: like Python for the program, an abort for the job."""

import shutil
import sys

import pytest

from hpccoll.cli.program import _turn
from hpccoll.errors import ArgumentError, BrokenCommunicatorError, CollectiveTimeout, PeerLost
from hpccoll.errors.waits import RankStates

RUN = sys.executable, "-m", "hpccoll", "run"
#: Prints what a program can see of the way it was started.
MIRROR = """
import __main__, sys
print(sys.argv[1:], sys.path[0], __name__, globals().get("__file__"), __package__,
      __spec__ and __spec__.name, vars(__main__) is globals(), "mpi4py.MPI" in sys.modules)
"""
#: Rank 1 fails in the way named by the argument while the others wait for it.
FAILING = """
import sys, threading
from mpi4py import MPI
import hpccoll, hpccoll.cli.program
comm, how = MPI.COMM_WORLD, sys.argv[1]
if comm.rank == 1 and how == "exception":
    raise RuntimeError("rank 1 is lost")
if comm.rank == 1 and how == "our own exception":
    hpccoll.schedule("allreduce", "no such name", 2)
if comm.rank == 1 and how == "interrupt":
    raise KeyboardInterrupt
if comm.rank == 1 and how == "status":
    sys.exit(7)
if comm.rank == 1 and how == "message":
    sys.exit("no input")
if comm.rank == 1 and how == "stuck thread":
    hpccoll.cli.program.GRACE = 0.5
    threading.Thread(target=threading.Event().wait).start()
    raise RuntimeError("rank 1 is lost")
comm.Barrier()
"""


@pytest.fixture
def programs(tmp_path):
    """One program as a script, behind a link, as a package and as an archive."""
    (tmp_path / "package").mkdir()
    (tmp_path / "links").mkdir()
    (tmp_path / "script.py").write_text(MIRROR)
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "__main__.py").write_text(MIRROR)
    (tmp_path / "links" / "link.py").symlink_to(tmp_path / "script.py")
    shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path / "package")
    return tmp_path


@pytest.mark.once
@pytest.mark.parametrize("program", [
    ("script.py", "-h", "--topology", "2"), ("links/link.py",), ("-m", "script", "-m", "x"),
    ("-m", "package", "--help"), ("package", "a"), ("archive.zip", "--", "a"),
    ("-c", MIRROR, "-a"), ("nothing_here.py",), ("-m", "nothing_here")], ids=lambda p: p[-1])
def test_program_is_started_as_python_starts_it(capture, programs, program):
    expected = capture(sys.executable, *program, cwd=programs)
    found = capture(*RUN, *program, cwd=programs)
    assert bool(found[0]) == bool(expected[0])
    if not expected[0]:
        assert found == expected


@pytest.mark.once
@pytest.mark.parametrize("arguments, message", [
    ((), "Missing argument"),
    (("scrpt.py",), "there is no file 'scrpt.py'"),
    (("-m", "scrpt.sub"), "there is no module 'scrpt.sub'"),
    (("-m",), "-m needs a module to run"),
    (("--no-such-option", "script.py"), "No such option '--no-such-option'"),
    (("--algorithm", "allreduce=nothing", "script.py"), "choose from ring"),
    (("--algorithm", "nothing=ring", "script.py"), "choose from barrier"),
    (("--topology", "2x", "-c", "from mpi4py import MPI"), "topology"),
    (("--topology", "7x9", "-c", "from mpi4py import MPI"), "63 ranks")])
def test_wrong_use_is_explained(capture, programs, arguments, message):
    status, output = capture(*RUN, *arguments, cwd=programs)
    assert status != 0
    assert message in output
    if "describes" not in message:  # which is found when the program has begun
        assert status == 2 and output.startswith("hpccoll: run: ") and output.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("how, status, message", [
    ("exception", 1, "RuntimeError: rank 1 is lost"),
    ("our own exception", 1, "allreduce has no algorithm 'no such name'"),
    ("interrupt", 130, "KeyboardInterrupt"),
    ("status", 7, ""),
    ("message", 1, "no input"),
    ("stuck thread", 1, "RuntimeError: rank 1 is lost")])
def test_failing_rank_ends_the_job(job, tmp_path, how, status, message):
    (tmp_path / "failing.py").write_text(FAILING)
    found, output = job(3, *RUN, tmp_path / "failing.py", how, seconds=30)
    assert found == status, output
    assert message in output
    assert "hpccoll/cli/" not in output  # the traceback begins in the program


@pytest.mark.slow
@pytest.mark.parametrize("call, message", [
    ("comm.using(allreduce='rign')", "has no algorithm 'rign'"),
    ("comm.Allgather(numpy.zeros(4), numpy.zeros(10))", "cannot be divided into 3 equal blocks"),
    ("comm.Allreduce(numpy.zeros(3 + comm.rank), numpy.zeros(3 + comm.rank))",
     "ranks disagree on count")])
def test_a_mistake_on_all_ranks_is_told_once(job, tmp_path, call, message):
    (tmp_path / "mistake.py").write_text(
        f"import numpy\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\ncomm.Barrier()\n{call}\n")
    status, output = job(3, *RUN, tmp_path / "mistake.py", seconds=30)
    assert status == 1, output
    assert output.count("Traceback") == output.count(message) == 1, output
    assert "The above exception" not in output and "hpccoll/comm/" not in output, output


@pytest.mark.once
def test_who_shows_an_error_first():
    states = RankStates("rank 1 is missing")
    mistake, elsewhere = ArgumentError("size", "is wrong"), BrokenCommunicatorError()
    waited = CollectiveTimeout("allreduce ring", 2, 0, (1,), 6.0, states)
    assert _turn(mistake, 0) == _turn(mistake, -1) == 0 < _turn(mistake, 1) < _turn(mistake, 2)
    assert _turn(elsewhere, 0) > _turn(mistake, 1) and _turn(mistake, 10**5) <= 3
    assert _turn(waited, 2) == _turn(PeerLost((1,), states, "allreduce ring"), 2) == 0


@pytest.mark.slow
def test_progress_by_calls_needs_no_threads_of_mpi(job, tmp_path):
    (tmp_path / "funneled.py").write_text(
        "import mpi4py; mpi4py.rc.thread_level = 'funneled'\n"
        "import numpy\n"
        "from mpi4py import MPI\n"
        "import hpccoll\n"
        "from hpccoll.runtime.progress.engine import PROGRESS\n"
        "from hpccoll.comm.requests import Prequest, Request\n"
        "assert MPI.Query_thread() < MPI.THREAD_MULTIPLE\n"
        "given, out = numpy.ones(50_000), numpy.empty(50_000)\n"
        "for how in ('thread', 'calls'):\n"
        "    comm = hpccoll.Comm(MPI.COMM_WORLD, progress=how)\n"
        "    comm.Barrier()\n"  # before the first blocking collective the library serves all
        "    with comm.using(allreduce='ring'):\n"
        "        requests = comm.Iallreduce(given, out), comm.Allreduce_init(given, out)\n"
        "    ours = isinstance(requests[0], Request), isinstance(requests[1], Prequest)\n"
        "    assert ours == (how == 'calls',) * 2\n"
        "    requests[0].Wait()\n"
        "    out[:] = 0\n"
        "    requests[1].Start()\n"
        "    requests[1].Wait()\n"
        "    assert (out == comm.size).all()\n"
        "    requests[1].Free()\n"
        "assert PROGRESS.worker.thread is None\n")
    status, output = job(3, sys.executable, tmp_path / "funneled.py")
    assert status == 0, output


@pytest.mark.slow
def test_program_may_start_mpi_itself(job, tmp_path):
    (tmp_path / "late.py").write_text(
        "import mpi4py; mpi4py.rc.initialize = False\n"
        "from mpi4py import MPI\n"
        "import hpccoll\n"
        "assert not MPI.Is_initialized()\n"
        "MPI.Init()\n"
        "assert type(MPI.COMM_WORLD) is hpccoll.Comm\n"
        "assert str(MPI.COMM_WORLD.layout) == '2x1'\n"
        "assert MPI.COMM_WORLD.allreduce(1) == 2\n"
        "MPI.Finalize()\n")
    status, output = job(2, *RUN, "--topology", "2x1", tmp_path / "late.py")
    assert status == 0, output


@pytest.mark.slow
def test_a_profile_follows_what_the_program_wrote(job, tmp_path):
    (tmp_path / "last.py").write_text(
        "from mpi4py import MPI\n"
        "MPI.COMM_WORLD.allreduce(1)\n"
        "import atexit\n"
        "def end():\n"  # a rank waits in its program until another one is in its exit handler
        "    MPI.COMM_WORLD.send(1, 1)\n"
        "if MPI.COMM_WORLD.rank == 0:\n"
        "    atexit.register(end)\n"
        "else:\n"
        "    MPI.COMM_WORLD.recv(source=0)\n"
        "print('last line')\n")  # which stays in the buffer of a pipe
    path = tmp_path / "profile.json"
    status, output = job(2, *RUN, "--json", path, tmp_path / "last.py")
    assert status == 0, output
    assert output.rindex("last line") < output.index("allreduce"), output
    assert output.splitlines()[-1] == f"wrote {path}" and path.exists()


def test_a_file_that_cannot_be_written_does_not_cost_the_profile(job, tmp_path):
    (tmp_path / "one.py").write_text("from mpi4py import MPI\nMPI.COMM_WORLD.allreduce(1)\n")
    status, output = job(2, *RUN, "--json", "/dev/full", tmp_path / "one.py")
    assert status == 1 and "algorithm" in output and "Traceback" not in output, output
    assert "hpccoll: --json: cannot write '/dev/full': No space left on device" in output

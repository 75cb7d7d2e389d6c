"""Ranks are killed, and the others go on without them, where the MPI library has ULFM.

To see them fail: with a ``Shrink`` that lets nothing go (the private communicator is not freed),
with ``ulfm_missing`` that finds nothing missing (calls are not refused), with a ``Guard`` that does
not revoke (ranks in the library's calls wait until the job is killed).
"""

import re
import sys

import pytest
from fault.launching import BIN, ULFM, is_open_mpi, job
from launch import ROOT, mpiexec

needs_ulfm = pytest.mark.skipif(
    not is_open_mpi(), reason="this MPI library has no ULFM; Open MPI 5 has")

PROGRAM = """
victim, preference, count, form = {victim}, {preference!r}, {count}, {form!r}
x, y = numpy.ones(count), numpy.zeros(count)
shared = comm.empty(100)
shared[:] = rank
calls = {{"blocking": lambda: comm.Allreduce(x, y), "request": lambda: comm.Iallreduce(x, y).Wait(),
         "lower": lambda: comm.allreduce(1.5), "bcast": lambda: comm.bcast(x, victim)}}
with comm.using(**(OURS if preference == "ours" else dict.fromkeys(OURS, preference))):
    try:
        for turn in range(1000):
            if turn == 20 and rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            calls[form]()
        say("no error")
    except (hpccoll.HpccollError, MPI.Exception) as error:
        say("named" if isinstance(error, hpccoll.HpccollError) and error.ranks == (victim,)
            else f"not named by {{type(error).__name__}}: {{error}}")
before = time.monotonic()
comm.revoke()
assert not comm.agree(True)
context = existing_context(comm)
smaller = comm.shrink()
assert type(smaller) is hpccoll.Comm and smaller.size == size - 1 and smaller.agree(True)
assert smaller.rank == rank - (rank > victim)
assert context.freed and not context.node.regions if context.node else context.freed
assert (shared == rank).all()  # its own part is an array like others
for call in calls.values():
    try:
        call()
        say("not refused")
    except hpccoll.HpccollError:
        pass
for name in ("ring", "recursive_doubling", "native", "auto"):
    with smaller.using(allreduce=name, iallreduce=name):
        for _ in range(3):
            y[:] = 0
            smaller.Allreduce(x, y)
            assert (y == size - 1).all()
            y[:] = 0
            smaller.Iallreduce(x, y).Wait()
            assert (y == size - 1).all()
assert smaller.allreduce(1) == size - 1 and smaller.bcast(rank, 0) == (victim == 0)
assert smaller.zeros(10).sum() == 0
comm.Free()
smaller.Barrier()
smaller.Free()
say("over", f"{{time.monotonic() - before:.2f}}")
os._exit(0)
"""


@pytest.mark.long(every=2)
@needs_ulfm
@pytest.mark.parametrize("victim, size, preference, count, form, shared", [
    (0, 3, "ours", 8, "blocking", "yes"), (1, 3, "ours", 200_000, "request", "yes"),
    (3, 4, "auto", 8, "lower", "yes"), (1, 2, "auto", 200_000, "blocking", "yes"),
    (1, 3, "native", 8, "blocking", "yes"), (0, 3, "native", 100, "bcast", "yes"),
    (2, 3, "ours", 8, "blocking", "no"), (0, 4, "ours", 200_000, "request", "no")])
def test_survivors_name_the_dead_and_go_on(victim, size, preference, count, form, shared):
    ended = job(PROGRAM.format(victim=victim, preference=preference, count=count, form=form), size,
                *ULFM,
                HPCCOLL_SHARED_MEMORY=shared)
    assert ended.output.count("over") == size - 1, ended.output
    assert ended.output.count(" named") == size - 1, ended.output
    assert "not refused" not in ended.output and ended.status == 0, ended.output


@needs_ulfm
def test_two_deaths_one_after_the_other():
    ended = job("""
group = comm
for victim in (2, 0):
    try:
        for turn in range(1000):
            if turn == 5 and rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            group.Allreduce(numpy.ones(8), numpy.zeros(8))
    except hpccoll.HpccollError:
        pass
    group.revoke()
    assert not group.agree(True)
    group = group.shrink()
say("over", group.size, group.allreduce(rank))
os._exit(0)
""", 4, *ULFM)
    assert ended.output.count("over 2 4") == 2, ended.output


@needs_ulfm
def test_a_rank_in_any_call_comes_out_when_another_revokes():
    ended = job("""
start = time.monotonic()
if rank == 0:
    comm.layout
    time.sleep(0.5)
    comm.revoke()
else:
    comm.layout
    try:
        if rank == 1:
            comm.Recv(numpy.zeros(1), 0)
        else:
            with comm.using(**OURS):
                comm.Allreduce(numpy.ones(8), numpy.zeros(8))
        say("no error")
    except (hpccoll.HpccollError, MPI.Exception) as error:
        say("out", "revoked" in str(error).lower(), time.monotonic() - start < 3)
say(comm.agree(True), comm.Is_revoked(), comm.shrink().size)
os._exit(0)
""", 3, *ULFM)
    assert ended.output.count("out True True") == 2, ended.output
    assert ended.output.count("True True 3") == 3, ended.output


def test_without_ulfm_it_says_why():
    ended = job("""
for call in (comm.revoke, comm.shrink):
    try:
        call()
        say("no error")
    except hpccoll.HpccollError as error:
        say(type(error).__name__, error)
assert comm.Shrink().size == size  # mpi4py's goes on to do what it does
""", 2)
    assert ended.status == 0 and "no error" not in ended.output, ended.output
    reason = "mpirun --with-ft ulfm" if is_open_mpi() else "has no ULFM"
    assert len(re.findall(f"UnavailableError .* not available: .*{reason}",
                          ended.output)) == 4, ended.output


@pytest.mark.long(every=3)
@needs_ulfm
@pytest.mark.parametrize("size, kill", [(4, "2@25"), (3, "0@0"), (3, "1@10")])
def test_the_solver_survives(tmp_path, size, kill):
    import subprocess

    from launch import settings
    done = subprocess.run(
        [str(mpiexec(BIN)), *ULFM, "-n", str(size), sys.executable,
         str(ROOT / "examples" / "survive.py"), "--kill", kill], env=settings(BIN), timeout=60,
        capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{size - 1} ranks go on from iteration \d+$", done.stdout, re.MULTILINE)
    assert re.search(rf"^{size - 1} ranks: \d+ iterations, error \d\.\de-1\d$", done.stdout,
                     re.MULTILINE), done.stdout
    victim = kill.partition("@")[0]
    assert len(re.findall(rf"^rank \d: hpccoll: rank {victim} ", done.stdout, re.MULTILINE)) >= 1

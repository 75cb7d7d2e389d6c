"""Programs that end in ways they should not: nobody hangs, nothing is left, the rest is told.

``tests/broken.py`` shows them fail without hooks of forks, without reports at the end, and with
what the library says in place of who gave up. With memory that keeps its name files are left.
"""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from fault.launching import HEAD, job

SIZES = {"small": 8, "large": 300_000}


def ours():
    """Names of our files in shared memory, but for those that other jobs are about to remove."""
    found = {path.name for path in Path("/dev/shm").glob("hpccoll-*")}
    if found:
        time.sleep(1)
        found &= {path.name for path in Path("/dev/shm").glob("hpccoll-*")}
    return found


@pytest.mark.long(every=3)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("who", ["all", "one"])
@pytest.mark.parametrize("form", ["Iallreduce", "Allreduce_init"])
def test_exit_with_work_in_flight(form, who, size):
    ended = job(f"""
x, y = numpy.ones({SIZES[size]}), numpy.zeros({SIZES[size]})
with comm.using(**OURS):
    comm.Allreduce(x, y)
    if {form!r} == "Allreduce_init":  # waits for the other rank
        request = comm.{form}(x, y)
    if {who!r} == "all" and rank:  # whose part is missing when rank 0 ends
        time.sleep(0.5)
    if {form!r} != "Allreduce_init" and ({who!r} == "all" or rank == 0):
        request = comm.{form}(x, y)
    if {form!r} == "Allreduce_init" and ({who!r} == "all" or rank == 0):
        request.Start()
say("end")
""", 2)
    assert ended.status == 0 and ended.output.count("end\n") == 2, ended.output
    assert ended.seconds < 20
    assert re.search(r"hpccoll: rank 0 exits with 1 pending requests?: allreduce",
                     ended.output), ended.output


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", ["raise ZeroDivisionError('made')", "sys.exit(7)", "os._exit(7)"])
def test_one_rank_ends_while_the_others_wait(how, size):
    ended = job(f"""
x, y = numpy.ones({SIZES[size]}), numpy.zeros({SIZES[size]})
with comm.using(**OURS):
    for _ in range(3):
        comm.Allreduce(x, y)
    if rank == 1:
        {how}
    comm.Allreduce(x, y)
say("went on")
""", 3)
    assert ended.status != 0 and "went on" not in ended.output, ended.output
    assert ended.seconds < 20


def test_collectives_in_exit_handlers_of_ranks_that_come_late():
    """Also in a handler that was registered before the first communicator, as modules do."""
    ended = job("""
with comm.using(**OURS):
    comm.Allreduce(numpy.ones(10), numpy.zeros(10))
""", 3, head="""
import atexit
import hpccoll

@atexit.register
def total():
    if rank == 1:
        time.sleep(1)
    x, y = numpy.ones(10), numpy.zeros(10)
    for preferences in (OURS, {"allreduce": "native"}):
        with comm.using(**preferences):
            comm.Allreduce(x, y)
            comm.Iallreduce(y, x).Wait()
    say("total", x.sum(), comm.allreduce(1))
""" + HEAD)
    assert ended.status == 0, ended.output
    assert sorted(ended.output.splitlines()) == [f"{rank} total 810.0 3" for rank in range(3)]


@pytest.mark.long(every=3)
@pytest.mark.parametrize("complete", ["Test", "Wait"])
@pytest.mark.parametrize("other", ["another call", "sys.exit()"])
def test_a_request_that_the_other_rank_never_begins_raises(other, complete):
    """Without a time-out, and with a loop of tests as well."""
    ended = job(f"""
x, y = numpy.ones(100), numpy.zeros(100)
with comm.using(**OURS):
    comm.Allreduce(x, y)
    comm.Iallreduce(x, y).Wait()
    try:
        if rank:
            comm.Barrier() if {other!r} == "another call" else sys.exit()
        else:
            request = comm.Iallreduce(x, y)
            while not request.{complete}():
                time.sleep(0.001)
    except hpccoll.HpccollError as error:
        say(type(error).__name__, str(error).splitlines()[0])
        sys.stdout.flush()
        os._exit(0)
""", 2, HPCCOLL_TIMEOUT="2" if other == "another call" else "off")
    assert ended.seconds < 20, ended.output
    wanted = "rank 1 has ended its program" if other == "sys.exit()" else "no message from rank 1"
    assert re.search(rf"^0 \w+ hpccoll: .*({wanted}|rank 1 failed|rank 0 is in )", ended.output,
                     re.M), ended.output


@pytest.mark.parametrize("size", SIZES)
def test_a_users_operator_that_raises_ends_the_job_as_with_mpi4py(size, tmp_path):
    """mpi4py calls MPI_Abort. Under MPICH the ranks go on for a moment after it, with mpi4py alone
    as well, so that what they still print decides nothing."""
    ended = job(f"""
def broken(a, b, datatype):
    open({str(tmp_path / 'called')!r}, "w").close()
    raise ValueError("made for a test")
with comm.using(**OURS):
    comm.Allreduce(numpy.ones({SIZES[size]}), numpy.zeros({SIZES[size]}), MPI.Op.Create(broken))
""", 2)
    assert ended.status != 0 and ended.seconds < 20, ended
    assert (tmp_path / "called").exists(), ended.output


def test_a_function_that_raises_raises_on_all_ranks():
    ended = job("""
def broken(a, b):
    raise ValueError("made for a test")
try:
    comm.allreduce(rank, broken)
except ValueError as error:
    say("raised", error)
assert comm.allreduce(1) == size
""", 3)
    assert ended.status == 0 and ended.output.count("raised made for a test") == 3, ended.output


KILLED = """
parts = [comm.Dup() for _ in range(3)]
with comm.using(**OURS):
    arrays = [one.zeros(1 << 16) for one in parts]
    large = numpy.ones(300_000)
    for one in parts:
        one.Allreduce(large, numpy.empty_like(large))
    say("ready")
    while True:
        for one in (comm, *parts):
            one.Allreduce(large, numpy.empty_like(large))
"""


@pytest.mark.parametrize("moment", ["making communicators", "calls"])
def test_nothing_is_left_when_all_ranks_are_killed(moment):
    """Memory that has a name for a moment is left behind when all are killed in that moment."""
    before = ours()
    program = KILLED if moment == "calls" else """
say("ready")
while True:
    one = comm.Dup()
    one.zeros(1 << 16)
    one.Free()
"""

    def kill(ranks):
        time.sleep(0.3)
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)

    for _ in range(3 if moment == "making communicators" else 1):
        ended = job(program, 2, then=kill, seconds=20)
        assert ended.output.count("ready") == 2, ended.output
    assert ours() <= before


@pytest.mark.parametrize("shared", ["yes", "no"])
def test_a_rank_that_leaves_takes_its_memory_along(shared):
    """The others may read it by then: they are told who gave up, not what the library saw."""
    ended = job("""
x, y = numpy.ones(300_000), numpy.zeros(300_000)
with comm.using(**OURS):
    comm.Allreduce(x, y)
    if rank == 0:
        threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            comm.Allreduce(x, y)
        except KeyboardInterrupt:
            say("left")
    else:
        time.sleep(1.5)
        try:
            comm.Allreduce(x, y)
        except hpccoll.HpccollError as error:
            say("told", error)
""", 2, HPCCOLL_SHARED_MEMORY=shared)
    assert "0 left" in ended.output and ended.seconds < 20, ended.output
    assert re.search("1 told .*rank 0", ended.output), ended.output


@pytest.mark.long(every=3)
@pytest.mark.parametrize("form", ["blocking", "request", "lower", "barrier"])
@pytest.mark.parametrize("name, executor", [
    pytest.param("SIGINT", "compiled", marks=pytest.mark.once),
    pytest.param("SIGTERM", "python", marks=pytest.mark.once),
    pytest.param("SIGINT", "python", marks=pytest.mark.again),
    pytest.param("SIGTERM", "compiled", marks=pytest.mark.again)])
def test_signals_leave_a_wait_at_once(name, form, executor):
    """The wait is left, the exception is the program's own, and the job ends."""
    ended = job(f"""
x, y = numpy.ones(8), numpy.zeros(8)
calls = {{"blocking": lambda: comm.Allreduce(x, y), "request": lambda: comm.Iallreduce(x, y).Wait(),
         "lower": lambda: comm.allreduce(1.5), "barrier": lambda: comm.Barrier()}}
class Terminated(BaseException):
    pass
def terminate(*_):
    raise Terminated
signal.signal(signal.SIGTERM, terminate)
with comm.using(**OURS):
    for _ in range(3):
        for call in calls.values():
            call()
    if rank == 0:
        when = []
        def later():
            time.sleep(0.7)
            when.append(time.monotonic())
            os.kill(os.getpid(), signal.{name})
        threading.Thread(target=later).start()
        try:
            calls[{form!r}]()
        except (KeyboardInterrupt, Terminated) as error:
            say("left", type(error).__name__, time.monotonic() - when[0])
    else:
        time.sleep(1.6)
        try:
            calls[{form!r}]()  # a number may have been sent before
            calls[{form!r}]()
        except hpccoll.HpccollError as error:
            say("told", type(error).__name__)
""", 2, HPCCOLL_EXECUTOR=executor)
    found = re.search(r"left (KeyboardInterrupt|Terminated) (\S+)", ended.output)
    assert found and float(found[2]) < 0.2, ended.output
    assert "told" in ended.output and ended.status == 0, ended.output


def test_forked_processes_are_refused_and_the_rank_goes_on():
    ended = job("""
import multiprocessing
x, y = numpy.ones(50), numpy.zeros(50)
large, out = numpy.ones(300_000), numpy.zeros(300_000)
other = hpccoll.Comm(world.Dup())
with comm.using(**OURS):
    for _ in range(4):
        comm.Allreduce(x, y)
        comm.Allreduce(large, out)
        comm.Barrier()
        comm.allreduce(1)
    lasting = comm.Allreduce_init(x, y)
    lasting.Start()
    lasting.Wait()
    small, long = comm.Iallreduce(x, y), comm.Iallreduce(large, out)
    calls = [lambda: comm.Allreduce(x, y), lambda: comm.Allreduce(large, out), comm.Barrier,
             lambda: comm.allreduce(1), lambda: comm.bcast(1), lasting.Start, small.Wait,
             small.Test, long.Wait, lambda: comm.empty(3), lambda: comm.Iallreduce(x, y),
             lambda: comm.Allreduce_init(x, y), lambda: other.Allreduce(x, y),
             lambda: hpccoll.Comm(comm).Barrier(), lambda: other.gather(1)]
    def child():
        refused = 0
        for number, call in enumerate(calls[:-1]):
            start = time.monotonic()
            try:
                call()
                say("child not refused", number)
            except hpccoll.HpccollError as error:
                refused += "in a forked process" in str(error)
            if time.monotonic() - start > 0.2:
                say("child slow", number)
        return refused
    if rank == 0:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(writing, bytes([child()]))
            os._exit(0)
        assert os.read(reading, 1)[0] == len(calls) - 1
        os.waitpid(pid, 0)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
    small.Wait()
    long.Wait()
    for _ in range(3):
        comm.Allreduce(x, y)
        comm.Allreduce(large, out)
        lasting.Start()
        lasting.Wait()
        assert (y == size).all() and (out == size).all() and comm.allreduce(1) == size
    lasting.Free()
comm.Free()
MPI.Finalize()
for call in (lambda: other.Allreduce(x, y), lambda: other.allreduce(1), other.Barrier, other.Free,
             lambda: hpccoll.Comm(world), comm.Barrier):
    try:
        call()
        say("not refused after the end")
    except hpccoll.HpccollError:
        pass
say("over")
""", 2)
    assert ended.status == 0 and ended.output.count("over") == 2, ended.output
    assert "refused" not in ended.output and "slow" not in ended.output, ended.output


def test_cycles_are_collected_at_different_times():
    ended = job("""
import gc
gc.disable()
x, y = numpy.ones(8), numpy.zeros(8)
class Holder:
    pass
with comm.using(**OURS):
    for turn in range(30):
        holder = Holder()
        holder.me, holder.comm = holder, comm.Dup()
        with holder.comm.using(**OURS):
            holder.request = holder.comm.Allreduce_init(x, y)
            holder.request.Start()
            holder.request.Wait()
            holder.comm.Allreduce(x, y)
        if turn % size == rank:
            gc.collect()
        comm.Allreduce(x, y)
say("over")
""", 3)
    assert ended.status == 0 and ended.output.count("over") == 3, ended.output


@pytest.mark.long(every=3)
@pytest.mark.parametrize("handler", ["ERRORS_ARE_FATAL", "ERRORS_ABORT"])
@pytest.mark.parametrize("call", ["comm.Bcast(numpy.ones(2), 99)", "comm.bcast(1, 99)"])
def test_a_fatal_error_handler_ends_the_job_for_an_argument(call, handler):
    ended = job(f"""
comm.Set_errhandler(MPI.{handler})
try:
    if rank == 1:
        {call}
except MPI.Exception:
    say("went on")
world.Barrier()
""", 2)
    assert ended.status and "went on" not in ended.output, ended.output
    assert "root: 99 is not a rank of 0..1" in ended.output and ended.seconds < 20

"""Real MPI over TCP between hosts of our own, and what is left of them afterwards."""

import shutil
import subprocess
import sys
from pathlib import Path

import hosts as module
import pytest
from hosts import NETNS, Hosts

HERE = Path(__file__).resolve().parent
#: Seconds for a job; an MPI library that waits for a host in vain says so later than that.
LONGEST = 60

pytestmark = pytest.mark.skipif(bool(module.missing()), reason=module.missing())


@pytest.fixture(scope="module")
def launcher():
    found = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("there is no mpiexec beside this Python")
    return found


@pytest.fixture(scope="module")
def four():
    """Four hosts; a job uses the first of them."""
    with Hosts(4, "1gbit") as made:
        yield made


def run(hosts, launcher, ranks, *command, cyclic=False, survive=False):
    words, environment = hosts.job(launcher, ranks, *map(str, command), cyclic=cyclic,
                                   survive=survive)
    environment["PYTHONPATH"] = str(HERE.parents[1])
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False,
                          timeout=LONGEST)


@pytest.mark.slow
@pytest.mark.parametrize("ranks, layout", [([2, 2], "2x2"), ([3, 1], "3,1"),
                                           ([1, 1, 1, 1], "4x1")],
                         ids=lambda value: str(value))
def test_allreduce_is_right_and_the_layout_found(four, launcher, ranks, layout):
    done = run(four, launcher, ranks, sys.executable, HERE / "program.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{sum(ranks)} ranks, layout {layout}, right" in done.stdout


@pytest.mark.long(every=2)
@pytest.mark.slow
@pytest.mark.parametrize("ranks, layout", [
    ([2, 2], "2x2"), pytest.param([1, 1, 1, 1], "4x1", marks=pytest.mark.once)], ids=str)
def test_training_is_that_of_one_process(four, launcher, ranks, layout):
    """To the bit: DDP on our process group, and the gradient exchange in each of its orders."""
    pytest.importorskip("torch")
    done = run(four, launcher, ranks, sys.executable, HERE / "train_exact.py")
    assert done.returncode == 0, done.stdout + done.stderr
    first, *found = done.stdout.splitlines()
    assert first == f"4 ranks, layout {layout}"
    assert found == [f"{title}: equal" for title in (
        "one process in another order", "DDP", "Exchange, fixed", "Exchange, negotiated",
        "Exchange, priority")]


@pytest.mark.slow
def test_ranks_dealt_out_across_hosts_are_found_there(four, launcher):
    done = run(four, launcher, [2, 2], sys.executable, HERE / "program.py", cyclic=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 ranks, layout 2x2@0,2,1,3, right" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("served", ["ours", "native"])
def test_a_rank_of_another_host_that_is_late_is_named_with_its_host(four, launcher, served):
    """Nobody can look at it; its own host's ranks can, and say what it does when they are asked."""
    apart = "unshare", "--pid", "--fork", "--mount-proc"  # or all hosts would see all processes
    done = run(four, launcher, [1, 1, 1], *apart, sys.executable, HERE / "late.py", served)
    words = f"rank 2 has not reported, on {four.names[2]}"
    assert words in done.stderr, done.stdout + done.stderr
    if served == "native":  # the others leave theirs without an end of MPI
        assert done.returncode == 0 and done.stdout.count("over") == 3, done.stdout + done.stderr
    else:
        told = [line for line in done.stdout.splitlines() if "CollectiveTimeout" in line]
        assert len(told) >= 2 and all(words in line for line in told), told


@pytest.mark.slow
def test_a_rank_of_another_host_that_was_killed_is_named_with_its_host(four, launcher):
    """Its host cannot tell anybody: at the deadline it is not heard of, unless the library says so.
    """
    # The first process of a namespace cannot kill itself: a shell is.
    apart = ("unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", '"$0" "$@"; exit $?')
    done = run(four, launcher, [1, 1, 1], *apart, sys.executable, HERE / "late.py", "killed",
               survive=True)
    # Open MPI ends the job before the deadline, and prints one of these.
    if "unexpectedly disconnected" in done.stderr:
        assert done.returncode and four.names[2] in done.stderr, done.stderr
        return
    if "error occurred in Socket closed" in done.stderr:
        assert done.returncode and not done.stdout, done.stdout + done.stderr
        return
    told = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert {line[:6] for line in told} == {"rank 0", "rank 1"}, done.stdout + done.stderr
    for line in told:
        assert f"rank 2 has not reported, on {four.names[2]}" in line, told
        assert float(line.split(" after ")[1].split()[0]) < 2 * 2, told


@pytest.mark.once
def test_nothing_is_left_of_hosts():
    try:
        with Hosts(2) as made:
            assert namespaces() >= set(made.names)
            left = subprocess.Popen(["ip", "netns", "exec", made.names[1], "sleep", "100"])
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert left.wait(10) != 0
    assert not namespaces() & set(made.names)
    assert not any((NETNS / name).exists() for name in made.names)


@pytest.mark.once
def test_hosts_of_a_killed_process_are_removed_by_the_next():
    code = ("import sys, time; sys.path.append(sys.argv[1]); from hosts import Hosts\n"
            "with Hosts(1) as hosts:\n"
            "    print(hosts.names[0], hosts._home, flush=True); time.sleep(100)")
    with subprocess.Popen([sys.executable, "-c", code, str(HERE)], text=True,
                          stdout=subprocess.PIPE) as process:
        name, home = process.stdout.readline().split()
        process.kill()
    assert name in namespaces() and Path(home).exists()
    with Hosts(1):
        assert name not in namespaces() and not Path(home).exists()


def namespaces():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in listed.stdout.splitlines()}

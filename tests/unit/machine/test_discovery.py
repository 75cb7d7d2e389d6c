"""What the operating system and the batch system know of this rank."""

import builtins
import ctypes
import io
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError
from hpccoll.machine import discovery, failures, identity, processes
from hpccoll.machine.limits import DEDICATED, DEVICE_SEGMENTS, OVERSUBSCRIBED
from hpccoll.machine.processes import (
    ALIVE,
    DEAD,
    STOPPED,
    TRACED,
    Process,
    state_of,
    this_process,
)
from hpccoll.machine.slurm import expand_hosts, parse_network, slurm_switches


# What a node knows about its network; that all ranks agree is in tests/mpi/test_discover.py
def test_one_rank_is_a_topology_of_one(monkeypatch):
    monkeypatch.setattr(discovery, "FABRICS", ())
    where = discovery.discover(MPI.COMM_SELF, MPI.COMM_SELF)
    assert (where.topology.size, where.oversubscribed, where.fabric) == (1, False, False)


def test_a_fabric_is_an_entry_of_the_system(monkeypatch, tmp_path):
    monkeypatch.setattr(discovery, "FABRICS", (f"{tmp_path}/infiniband/*", f"{tmp_path}/cxi/*"))
    assert not discovery.has_fabric()
    (tmp_path / "cxi/cxi0").mkdir(parents=True)
    assert discovery.has_fabric()


def test_files_about_the_network(tmp_path, monkeypatch):
    path = tmp_path / "topology.conf"
    assert discovery.read_network(str(path))[1].startswith(f"cannot read '{path}': ")
    path.write_bytes(b"\xff\xfe")
    assert "cannot read" in discovery.read_network(str(path))[1]
    path.write_text("SwitchName=s0 Nodes=n0\n")
    assert discovery.read_network(str(path)) == ("SwitchName=s0 Nodes=n0\n", "")
    monkeypatch.setenv("SLURMD_NODENAME", "n0")
    assert discovery.discover(MPI.COMM_SELF, MPI.COMM_SELF, network=str(path)).topology.size == 1
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    with pytest.raises(ArgumentError, match="^HPCCOLL_NETWORK: .*'n1'"):
        discovery.discover(MPI.COMM_SELF, MPI.COMM_SELF, network=str(path))


# Whether ranks can go on without one that died, and if not, why
@pytest.mark.parametrize("environ, library, known, reason", [
    ({}, "MPICH 5.0.2", False, "MPICH 5.0.2 has no ULFM"),
    ({}, "Open MPI 5.0.11", True, "mpirun --with-ft ulfm"),
    ({failures.SWITCH: "0"}, "Open MPI 5.0.11", True, "started without"),
    ({failures.SWITCH: "1"}, "Open MPI 5.0.11", True, ""),
    ({failures.SWITCH: "true"}, "Open MPI 5.0.11", True, ""),
    ({failures.SWITCH: "1"}, "Open MPI 4.1.0", False, "has no ULFM"),
    ({}, "Another MPI 1.0", True, "")])
def test_the_reason(environ, library, known, reason):
    found = failures.ulfm_missing(environ, library, known)
    assert reason in found and bool(reason) == bool(found)


class Communicator:
    """Its library says that some ranks have died."""

    def __init__(self, dead):
        self.dead = dead

    def Get_group(self):
        return MPI.COMM_SELF.Get_group()

    def Get_size(self):
        return 1

    def Get_failed(self):
        return MPI.COMM_SELF.Get_group() if self.dead else MPI.GROUP_EMPTY


def test_the_dead_as_ranks_of_the_communicator():
    assert failures.failed_ranks(Communicator(True)) == (0,)
    assert failures.failed_ranks(Communicator(False)) == ()


def test_errors_that_may_be_about_the_dead():
    assert failures.may_be_rank_failure(MPI.Exception(MPI.ERR_IN_STATUS))
    assert not failures.may_be_rank_failure(MPI.Exception(MPI.ERR_TRUNCATE))
    assert not failures.may_be_rank_failure(ValueError())


# Names of processors and MPI libraries
@pytest.mark.parametrize("text, expected", [
    ("Open MPI v5.0.11, package: Open MPI user@host", "Open MPI 5.0.11"),
    ("MPICH Version: 5.0.2 MPICH Release date: Fri", "MPICH 5.0.2"),
    ("Intel(R) MPI Library 2021.18 for Linux* OS", "Intel MPI 2021.18"),
    ("MVAPICH Version : 4.0 MVAPICH", "MVAPICH 4.0"), ("Something else", "Something else")])
def test_library_names(text, expected):
    assert identity.library_name(text) == expected


def test_this_process_has_an_mpi_library():
    version = identity.library_version()
    assert version == " ".join(version.split()) and "\0" not in version
    assert identity.library_name() == identity.library_name(version)
    assert identity.thread_level() in ("single", "funneled", "serialized", "multiple")


def test_the_name_of_a_recorded_library_starts_no_mpi():
    done = subprocess.run([sys.executable, "-c", """
import sys
sys.modules["mpi4py"] = None
from hpccoll.machine.identity import library_name
print(library_name("MPICH Version: 5.0.2"))
"""], cwd=Path(identity.__file__).parents[2], capture_output=True, text=True)
    assert done.stdout == "MPICH 5.0.2\n", done.stderr


@pytest.mark.parametrize("text, expected", [
    ("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\nflags: fpu\n", "Fast CPU @ 3 GHz"),
    ("processor\t: 0\nBogoMIPS\t: 50.00\n", "arm"), (None, "arm")])
def test_the_model_of_the_processor(monkeypatch, text, expected):
    """Other systems than Linux on x86 have no model name, or no such file."""
    def opened(path, **how):
        if text is None:
            raise FileNotFoundError(path)
        return io.StringIO(text)
    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm")
    assert identity.processor() == expected


# Limits of messages: what holds for both sets of them
@pytest.mark.parametrize("limits", [DEDICATED, OVERSUBSCRIBED])
def test_large_blocks_have_large_segments(limits):
    large = limits.large_block_bytes
    assert limits.segment_of(large) == limits.segment_of(1) == limits.segment_bytes
    assert limits.segment_of(large + 1) == limits.large_segment_bytes > limits.segment_bytes
    assert limits.segment_of(None) == limits.segment_bytes  # not all ranks know the size


@pytest.mark.parametrize("limits", [DEDICATED, OVERSUBSCRIBED])
def test_segments_of_the_compiled_executor_fit_cells(limits):
    assert limits.without_large_segments().segment_of(1 << 40) == limits.cell_bytes


def test_oversubscribed_ranks_yield_at_once():
    assert OVERSUBSCRIBED.spins == 0 < DEDICATED.spins


@pytest.mark.parametrize("limits", [DEDICATED, OVERSUBSCRIBED])
@pytest.mark.parametrize("path", DEVICE_SEGMENTS)
def test_devices_change_the_segments_alone(limits, path):
    there = limits.on_devices(path)
    assert there.segment_of(2 << 20) == there.segment_of(None) == 4 << 20
    assert there.segment_of(64 << 20) == (16 << 20 if path == "ipc" else 4 << 20)
    changed = {field for field, one, other in zip(limits._fields, limits, there) if one != other}
    assert changed <= {"segment_bytes", "large_segment_bytes", "large_block_bytes"}


# A process is found alive, stopped, dead, or to be another one of the same number
@pytest.fixture
def child():
    """A process that does nothing, and what it is."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as running:
        yield running, this_process()._replace(
            pid=running.pid, began=processes._stat(running.pid)[1])
        running.kill()


def becomes(process, state):
    for _ in range(500):
        if state_of(process) == state:
            return True
        time.sleep(0.01)
    return False


def test_this_process_is_alive():
    mine = this_process()
    assert mine.pid == os.getpid() and mine.host and mine.began
    assert state_of(mine) == ALIVE


def test_a_stopped_process_and_one_that_goes_on(child):
    running, process = child
    running.send_signal(signal.SIGSTOP)
    assert becomes(process, STOPPED)
    running.send_signal(signal.SIGCONT)
    assert becomes(process, ALIVE)


def test_a_process_that_a_debugger_holds_is_not_stopped(child):
    running, process = child
    ptrace = ctypes.CDLL(None).ptrace
    if ptrace(16, running.pid, None, None):  # PTRACE_ATTACH
        pytest.skip("processes may not be traced here")
    assert becomes(process, TRACED)
    ptrace(17, running.pid, None, None)  # PTRACE_DETACH
    assert becomes(process, ALIVE)


def test_a_killed_process_is_dead_before_and_after_its_parent_asks(child):
    running, process = child
    running.kill()
    assert becomes(process, DEAD)  # a zombie
    running.wait()
    assert state_of(process) == DEAD


def test_a_number_that_came_to_mean_another_process(child):
    _, process = child
    assert state_of(process) == ALIVE
    assert state_of(process._replace(began=process.began - 1)) == DEAD


def test_one_that_may_not_be_looked_at_is_there(monkeypatch):
    def forbidden(pid):
        raise PermissionError
    monkeypatch.setattr(processes, "_stat", forbidden)
    assert state_of(Process("here", 1, 1)) == ALIVE
    assert this_process() == Process("", os.getpid(), 0, os.uname().nodename)


# What Slurm says about the network: variables, topology.conf, lists of hosts
def test_slurm_says_nothing():
    assert slurm_switches({}) == ()
    assert slurm_switches({"SLURM_TOPOLOGY_ADDR": "n0", "SLURM_TOPOLOGY_ADDR_PATTERN": "node"}
                          ) == ()
    assert slurm_switches({"SLURM_TOPOLOGY_ADDR": "n0"}) == ()


CONF = """
# two racks
SwitchName=s0 Nodes=n[00-01] LinkSpeed=100
switchname=s1 nodes=n[02-03],login
SwitchName=top Switches=s[0-1]
"""


def test_network_files():
    assert parse_network(CONF) == {"n00": ("top", "s0"), "n01": ("top", "s0"), "n02": ("top", "s1"),
                                   "n03": ("top", "s1"), "login": ("top", "s1")}


@pytest.mark.parametrize("text, problem", [
    ("Nodes=n0", "line 1"), ("SwitchName=s0", "line 1"), ("nonsense", "line 1"),
    ("SwitchName=a Nodes=n0\nSwitchName=b Nodes=n0", "line 2: n0"),
    ("SwitchName=a Nodes=n0\nSwitchName=b Switches=a\nSwitchName=a Switches=b", "itself"),
    ("SwitchName=a Nodes=n[x-3]", "'x-3'")])
def test_bad_network_files(text, problem):
    with pytest.raises(ArgumentError, match=problem):
        parse_network(text)


def test_lists_of_hosts():
    assert expand_hosts("") == []
    assert expand_hosts("a,b") == ["a", "b"]
    assert expand_hosts("n[1-2]x,y[0]") == ["n1x", "n2x", "y0"]
    assert expand_hosts("n[098-101]") == ["n098", "n099", "n100", "n101"]

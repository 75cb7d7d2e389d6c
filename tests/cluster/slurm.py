"""A real Slurm cluster on one machine: munge, slurmctld and several slurmd, all of them private.

Every "node" is a slurmd of its own on this machine (Debian builds Slurm with
``--enable-multiple-slurmd``), so a job of two nodes has real steps, real task placement and the
real process-management interfaces; what it cannot show is performance. Everything lives in one
directory - configuration, keys, sockets, logs - and nothing of a Slurm installed here is touched.

As a program, ``python tests/cluster/slurm.py [--nodes N] [--cpus K] [--gpus D] -- COMMAND...``
runs the command with ``sbatch``, ``srun`` and ``squeue`` talking to such a cluster.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from home import new_home
from hosts import MPICH

#: Debian package -> a program of it.
PROGRAMS = {"slurm-wlm": ("slurmctld", "slurmd", "sbatch", "srun", "sinfo", "scancel"),
            "munge": ("munged",), "util-linux": ("setpriv",)}
#: Seconds to wait for daemons to come up, for a job to end, for a daemon to go, for an answer.
START, LONGEST, STOP, ANSWER = 30, 120, 10, 3
#: What stands for the devices of a node: Slurm counts and hands out files, and opens none.
DEVICES = "/dev/null", "/dev/zero", "/dev/full", "/dev/random"
#: Slurm's numbers of jobs end above this.
JOBS = 50_000_000

CONFIGURATION = """\
ClusterName=hpccoll
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
GresTypes=gpu
ReturnToService=2
FirstJobId={first}
KillWait=2
SlurmdParameters=config_overrides
StateSaveLocation={home}/state
SlurmctldPidFile={home}/slurmctld.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdSpoolDir={home}/spool.%n
SlurmdPidFile={home}/slurmd.%n.pid
SlurmdLogFile={home}/slurmd.%n.log
{topology}
{nodes}
PartitionName=debug Nodes=n[0-{last}] Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Say why there can be no cluster here; empty when there can."""
    if os.geteuid() != 0:
        return "a Slurm cluster of one's own needs root"
    for package, programs in PROGRAMS.items():
        if not all(map(shutil.which, programs)):
            return f"a Slurm cluster of one's own needs Debian's package {package}"
    return ""


class Slurm:
    """A cluster of ``nodes`` nodes with ``cpus`` processors each, from ``with`` to its end.

    Each node says that it has ``gpus`` devices, which are none.

    Attributes:
        home: the directory that holds all its files, deleted with it.
    """

    def __init__(self, nodes: int = 2, cpus: int = 2, switches: bool = False, gpus: int = 0):
        self.nodes, self.cpus, self.switches, self.gpus = nodes, cpus, switches, gpus
        self.home = Path()
        self._daemons: list[subprocess.Popen] = []

    def __enter__(self) -> Slurm:
        self.home = new_home("slurm")
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stop()

    def environment(self) -> dict[str, str]:
        """What a program needs to talk to this cluster."""
        # A Slurm job around the tests must not shine through.
        outer = {name: value for name, value in os.environ.items()
                 if not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))}
        return {**outer, **MPICH, "SLURM_CONF": str(self.home / "slurm.conf")}

    def call(self, *command: object, seconds: float = LONGEST, cwd: Path | None = None,
             environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
        """Run a program that talks to the cluster; return what it said."""
        return subprocess.run([str(word) for word in command], text=True, timeout=seconds,
                              capture_output=True, check=False, cwd=cwd,
                              env={**self.environment(), **(environment or {})})

    def batch(self, *command: object, seconds: float = LONGEST, cwd: Path | None = None,
              environment: dict[str, str] | None = None) -> tuple[int, str]:
        """Run ``sbatch`` with these arguments; return the job's status and its number.

        Raises:
            RuntimeError: the job was refused, or takes longer than ``seconds``.
        """
        done = self.call("sbatch", "--parsable", *command, cwd=cwd, environment=environment)
        number, deadline = done.stdout.strip(), time.monotonic() + seconds
        while number and time.monotonic() < deadline:  # sbatch --wait looks every ten seconds
            words = dict(word.partition("=")[::2] for word in self.call(
                "scontrol", "show", "job", number).stdout.split())
            if words.get("EndTime") and words["JobState"] not in ("PENDING", "RUNNING",
                                                                  "COMPLETING", "CONFIGURING"):
                return int(words["ExitCode"].split(":")[0]), number
            time.sleep(0.2)
        raise RuntimeError(f"job {number or 'refused'}: {done.stderr}")

    def _start(self) -> None:
        home = self.home
        home.chmod(0o755)  # munged wants to be reachable by everyone
        host = socket.gethostname()
        ports = _free_ports(1 + self.nodes)
        (home / "state").mkdir()
        names = [f"n{number}" for number in range(self.nodes)]
        for name in names:
            (home / f"spool.{name}").mkdir()
        # Two nodes to a switch, all switches on one.
        half = (self.nodes + 1) // 2
        (home / "topology.conf").write_text("".join(
            f"SwitchName=s{number} Nodes={','.join(names[2 * number:2 * number + 2])}\n"
            for number in range(half)) + f"SwitchName=top Switches=s[0-{half - 1}]\n")
        (home / "slurm.conf").write_text(CONFIGURATION.format(
            host=host, home=home, ports=ports, last=self.nodes - 1,
            # MPICH names shared memory after the job: numbers that come again, as those from 1
            # do, find what a killed job of another cluster has left.
            first=int(time.time()) % JOBS,
            topology="TopologyPlugin=topology/" + ("tree" if self.switches else "none"),
            nodes="\n".join(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
                            f"CPUs={self.cpus}" + f" Gres=gpu:{self.gpus}" * bool(self.gpus)
                            for name, port in zip(names, ports[1:]))))
        (home / "gres.conf").write_text("".join(
            f"Name=gpu File={file}\n" for file in DEVICES[:self.gpus]))
        (home / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = home / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._daemon("munged", "--foreground", "--force", f"--key-file={key}",
                     f"--socket={home}/munge.socket", f"--pid-file={home}/munged.pid",
                     f"--log-file={home}/munged.log", f"--seed-file={home}/munged.seed")
        self._until(lambda: (home / "munge.socket").exists())
        self._daemon("slurmctld", "-D")
        for name in names:
            self._daemon("slurmd", "-D", "-N", name)
        self._until(lambda: self._asked("sinfo", "-h", "-t", "idle", "-o", "%D") == str(self.nodes))

    def _daemon(self, *command: str) -> None:
        with open(self.home / f"output.{len(self._daemons)}", "wb") as output:
            # Should this process be killed, the kernel ends the daemons.
            self._daemons.append(subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command], env=self.environment(),
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True))

    def _until(self, ready) -> None:
        """Wait until the daemons are ready.

        Raises:
            RuntimeError: a daemon ended, or it takes too long; with what the daemons wrote.
        """
        deadline = time.monotonic() + START
        while not ready():
            ended = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                said = "".join(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}"
                               for log in sorted(self.home.glob("*.log")))
                raise RuntimeError(f"the cluster does not come up, ended: {ended}\n{said}")
            time.sleep(0.1)

    def _stop(self) -> None:
        """End jobs, then daemons in the opposite order of their start, then what is left."""
        if len(self._daemons) > 1:
            self._asked("scancel", "--quiet", "--user=root")
            deadline = time.monotonic() + STOP
            while self._asked("squeue", "-h") and time.monotonic() < deadline:
                time.sleep(0.2)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(STOP)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for process in self.processes():
            os.kill(process, signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)

    def _asked(self, *command: str) -> str:
        """What a program says of the cluster; nothing while slurmctld does not answer."""
        try:
            return self.call(*command, seconds=ANSWER).stdout.strip()
        except subprocess.TimeoutExpired:
            return ""

    def processes(self) -> list[int]:
        """Processes on this machine that belong to the cluster, daemons, steps and tasks."""
        mark, found = f"SLURM_CONF={self.home}/slurm.conf".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:  # ended meanwhile
                continue
        return [process for process in found if process != os.getpid()]


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def main() -> int:
    """Run a command beside a cluster."""
    parser = argparse.ArgumentParser(description="Run a command beside a Slurm cluster.")
    parser.add_argument("--nodes", type=int, default=2, help="slurmd daemons; default 2")
    parser.add_argument("--cpus", type=int, default=2, help="processors of each; default 2")
    parser.add_argument("--switches", action="store_true", help="with a topology of switches")
    parser.add_argument("--gpus", type=int, default=0, choices=range(len(DEVICES) + 1),
                        help="devices that each pretends to have; default 0")
    parser.add_argument("command", nargs="+", help="what to run, behind --")
    given = parser.parse_args()
    reason = missing()
    if reason:
        print(f"slurm.py: {reason}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):  # so that the cluster is stopped
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with Slurm(given.nodes, given.cpus, given.switches, given.gpus) as cluster:
        return subprocess.run(given.command, env=cluster.environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

"""Several "hosts" on one machine: network namespaces behind a switch of rate-limited links.

Each host has a network, a host name and an address book of its own, so an MPI library takes it
for another machine: TCP between hosts, shared memory inside. Every host hangs on the switch by
one link, limited to the given rate in both directions (``tc tbf``), in frames of clusters, whose
headers are no part of what is measured. Latency stays that of the local kernel, and all hosts
share the processors.

As a program, ``python tests/cluster/hosts.py --nodes 2 --ranks 2 --rate 1gbit -- COMMAND...``
runs the command on every rank, with the mpiexec beside the Python it is started with.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from types import TracebackType

from home import new_home

#: Debian package -> a program of it.
PROGRAMS = {"iproute2": ("ip", "tc"), "util-linux": ("unshare",)}
#: Takes the place of ssh: called with options, a host and a command that a shell reads.
SHIM = """\
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
"""
#: Files that ``ip netns exec`` puts in the place of those in /etc.
NETNS = Path("/etc/netns")
#: Bytes of a frame.
MTU = "9000"
#: Few cores serve many ranks.
COMMON = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: TCP between hosts: UCX, the other network, would find the memory that they share, and its
#: address names every interface of the machine: with many it is longer than Slurm's PMI-2 takes.
MPICH = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
OPEN_MPI = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,sm,self",
            "OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_mpi_yield_when_idle": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

_made = count()


def missing() -> str:
    """Say why there can be no such hosts here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for package, programs in PROGRAMS.items():
        if not all(map(shutil.which, programs)):
            return f"network namespaces need Debian's package {package}"
    if subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True,
                      check=False).returncode:
        return "this kernel or container refuses network namespaces"
    return ""


class Hosts:
    """``nodes`` hosts, from ``with`` to its end.

    Attributes:
        names: names of the hosts, which are those of the network namespaces too.
    """

    def __init__(self, nodes: int = 2, rate: str = ""):
        self.rate = rate
        # Several of us may exist at a time, in this process and in others.
        mark = f"hc{os.getpid()}{'abcdefghijklmnopqrstuvwxyz'[next(_made) % 26]}"
        self.names = [f"{mark}{number}" for number in range(nodes)]
        self._switch = f"{mark}s"
        self._home = Path()

    def __enter__(self) -> Hosts:
        for name in _orphans():
            _remove(name)
        self._home = new_home("hosts")
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._remove()

    def job(self, launcher: str, ranks: list[int], *command: str,
            cyclic: bool = False, survive: bool = False) -> tuple[list[str], dict[str, str]]:
        """Command line and environment that run ``command`` on ``ranks[n]`` ranks of host n.

        Ranks are numbered host by host, or dealt out one after the other when ``cyclic``. Those
        that ``survive`` go on when another one has died.
        """
        said = subprocess.run([launcher, "--version"], capture_output=True, text=True,
                              check=True, env={**os.environ, **COMMON, **OPEN_MPI}).stdout
        hosts = list(zip(self.names, ranks))
        shim, total = str(self._home / "shim"), str(sum(ranks))
        if "HYDRA" in said:
            # Hydra fills a host's slots before it goes on, and begins again at the end.
            given = ",".join(f"{name}:{1 if cyclic else count}" for name, count in hosts)
            words = [launcher, "-launcher", "ssh", "-launcher-exec", shim, "-hosts", given,
                     *["-disable-auto-cleanup"] * survive, "-n", total]
            variables = MPICH
        else:
            given = ",".join(f"{name}:{count}" for name, count in hosts)
            words = [launcher, "--prtemca", "plm_ssh_agent", shim, "--host", given,
                     "--map-by", ("node" if cyclic else "slot") + ":OVERSUBSCRIBE",
                     "--bind-to", "none", *["--enable-recovery"] * survive, "-n", total]
            variables = OPEN_MPI
        return ([shim, self.names[0], shlex.join([*words, *command])],
                {**os.environ, **COMMON, **variables})

    def _make(self) -> None:
        shim = self._home / "shim"
        shim.write_text(SHIM)
        shim.chmod(0o755)
        _do("ip", "netns", "add", self._switch)
        _do("ip", "-n", self._switch, "link", "add", "br0", "type", "bridge")
        _do("ip", "-n", self._switch, "link", "set", "br0", "up")
        addresses = [f"10.77.{number // 250}.{number % 250 + 1}"
                     for number in range(len(self.names))]
        book = "127.0.0.1 localhost\n" + "".join(
            f"{address} {name}\n" for address, name in zip(addresses, self.names))
        for number, (name, address) in enumerate(zip(self.names, addresses)):
            _do("ip", "netns", "add", name)
            (NETNS / name).mkdir(parents=True)
            (NETNS / name / "hosts").write_text(book)
            # There are no other names: who asks for one must not wait for a server.
            (NETNS / name / "nsswitch.conf").write_text("hosts: files\n")
            _do("ip", "-n", name, "link", "add", "eth0", "type", "veth",
                "peer", "name", f"port{number}", "netns", self._switch)
            _do("ip", "-n", self._switch, "link", "set", f"port{number}", "master", "br0")
            _do("ip", "-n", name, "address", "add", f"{address}/16", "dev", "eth0")
            _do("ip", "-n", name, "link", "set", "lo", "up")
            for space, link in ((name, "eth0"), (self._switch, f"port{number}")):
                _do("ip", "-n", space, "link", "set", link, "mtu", MTU, "up")
                if self.rate:
                    _do("tc", "-n", space, "qdisc", "add", "dev", link, "root", "tbf",
                        "rate", self.rate, "burst", "256kb", "latency", "50ms")

    def _remove(self) -> None:
        """End what still runs on the hosts, then the hosts."""
        for name in (*self.names, self._switch):
            _remove(name)
        shutil.rmtree(self._home, ignore_errors=True)


def _orphans() -> list[str]:
    """Namespaces of a process that was killed before it could remove them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    marks = (re.match(r"hc(\d+)[a-z]", line) for line in listed.stdout.splitlines())
    return [mark.string.split()[0] for mark in marks
            if mark and not Path("/proc", mark[1]).exists()]


def _remove(name: str) -> None:
    """End what runs in a namespace, then the namespace and its files."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = _processes(name)
        for process in left:
            try:
                os.kill(process, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + 5
        while left and _processes(name) and time.monotonic() < deadline:
            time.sleep(0.05)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    shutil.rmtree(NETNS / name, ignore_errors=True)
    try:
        NETNS.rmdir()  # only when nobody else has something in it
    except OSError:
        pass


def _processes(name: str) -> list[int]:
    said = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True,
                          check=False)
    return [int(word) for word in said.stdout.split()]


def _do(*command: str) -> None:
    """Run a program.

    Raises:
        RuntimeError: it failed; with what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def main() -> int:
    """Run a command on hosts."""
    parser = argparse.ArgumentParser(description="Run a command on several hosts of our own.")
    parser.add_argument("--nodes", type=int, default=2, help="hosts; default 2")
    parser.add_argument("--ranks", default="2", metavar="K[,K...]",
                        help="ranks of each host, or of the first, second, ...; default 2")
    parser.add_argument("--rate", default="", help="of every link, such as 1gbit; default no limit")
    parser.add_argument("--cyclic", action="store_true", help="number ranks across the hosts")
    parser.add_argument("--mpiexec", help="launcher; default: the one beside this Python")
    parser.add_argument("command", nargs="+", help="what every rank runs, behind --")
    given = parser.parse_args()
    ranks = [int(word) for word in given.ranks.split(",")]
    ranks = ranks * given.nodes if len(ranks) == 1 else ranks
    bin = Path(sys.executable).parent
    launcher = given.mpiexec or shutil.which("mpiexec", path=f"{bin}{os.pathsep}"
                                                             f"{os.environ['PATH']}")
    reason = missing() or ("" if launcher else "there is no mpiexec")
    if len(ranks) != given.nodes or min(ranks) < 1:
        reason = f"--ranks {given.ranks} does not fit --nodes {given.nodes}"
    if reason:
        print(f"hosts.py: {reason}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):  # so that the hosts are removed
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with Hosts(given.nodes, given.rate) as hosts:
        command, environment = hosts.job(launcher, ranks, *given.command, cyclic=given.cyclic)
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

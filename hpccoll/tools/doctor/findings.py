"""Findings from the facts of all ranks: a sentence, the ranks, and a remedy.

Every check is a function from facts to findings, so that a job of a thousand ranks is examined
in a test without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from hpccoll.cuda import AWARE, NEAR, SHARED_GPU_NEEDS, describe_ways, pci_address
from hpccoll.machine.launcher import explain_single_ranks
from hpccoll.measure.load import load_text
from hpccoll.tools.bench.provenance import REMEDY, describe_hidden
from hpccoll.tools.doctor.facts import LIBRARIES, RankFacts
from hpccoll.units import count_text, ranks_text, size_text

#: Levels: ``error`` - results or the whole job are at risk; ``warning`` - the job works, but slower
#: or not as intended; ``note`` - information; ``ok``.
ERROR, WARNING, NOTE, OK = "error", "warning", "note", "ok"
TUNE = "hpccoll tune --quick with the ranks of your jobs takes a minute, without --quick ten"
LEVELS = ERROR, WARNING, NOTE, OK
#: Commands of the launchers of :func:`hpccoll.machine.launcher.launcher` that bind ranks.
BINDS = (("srun", "srun --cpu-bind=cores --cpus-per-task=1 python program.py"),
         ("mpiexec (MPICH", "mpiexec -bind-to core -n {} python program.py"),
         ("mpiexec (Open", "mpiexec --bind-to core -n {} python program.py"),
         ("mpiexec (HPE", "mpiexec --cpu-bind core -n {} python program.py"),
         ("flux", "flux run --cores-per-task=1 -n {} python program.py"))
#: Seconds of compilation of a process that are reported.
NOTED_SECONDS = 0.05
#: Bytes of shared memory below which large messages may not fit.
LITTLE_SHARED = 64 << 20


class Finding(NamedTuple):
    """One result of the examination.

    Attributes:
        remedy: what to do; empty when there is nothing to do.
        ranks: the affected ranks; empty for all.
    """

    level: str
    topic: str
    what: str
    remedy: str = ""
    ranks: tuple[int, ...] = ()


def examine(facts: Sequence[RankFacts], expected: int = 0) -> list[Finding]:
    """Return the findings of a job in the order of their levels.

    Args:
        facts: facts of every rank of ``MPI.COMM_WORLD``, in order.
        expected: number of ranks the user expects; 0 if not given.
    """
    findings = [*world(facts, expected)]
    if any(each.level == ERROR for each in findings):
        return findings  # the rest would describe another job than the user's
    for check in CHECKS:
        findings += check(facts)
    return sorted(findings, key=lambda each: LEVELS.index(each.level))


def world(facts: Sequence[RankFacts], expected: int) -> Iterator[Finding]:
    """Check that there is one job with the expected number of ranks."""
    first, size = facts[0], len(facts)
    started = first.launched[1]
    if size == 1 and started > 1:
        yield Finding(ERROR, "world", *explain_single_ranks(started, first.launcher, first.mpi))
    elif expected and size != expected:
        yield Finding(ERROR, "world", f"MPI.COMM_WORLD has {size} ranks, expected {expected}",
                      explain_single_ranks(expected, first.launcher, first.mpi)[1] if size == 1 else
                      "start the number of ranks of --ranks: srun --ntasks, mpiexec -n")
    elif (first.slurm.get("SLURM_NTASKS", str(size)) != str(size)
          # An mpiexec starts helpers by srun, which sets variables of their job step.
          and not first.launcher.startswith("mpiexec")):
        yield Finding(WARNING, "world", f"MPI.COMM_WORLD has {size} ranks, the Slurm job has "
                                        f"{first.slurm['SLURM_NTASKS']} tasks",
                      "start the launcher without a number of ranks, unless this is intended")
    else:
        yield Finding(OK, "world", f"{count_text(size, 'rank')}, started by {first.launcher}")


def library(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Check the MPI library."""
    first = facts[0]
    yield Finding(OK, "MPI", f"{first.mpi}, thread level {first.threads}, "
                  f"mpi4py {first.versions['mpi4py']}, hpccoll {first.versions['hpccoll']}" + (
                      f", {runs} executor" if (runs := first.versions.get("executor")) else ""))
    hidden = _parts(facts, lambda each: (each.package, each.hides))
    for (package, there), ranks in hidden.items():
        if there:
            yield Finding(WARNING, "hpccoll",
                          f"{describe_hidden(package, there)}: small collectives are several "
                          "times slower in the Python executor", REMEDY, ranks)
    bare = tuple(each.rank for each in facts if each.is_uncompiled and not each.hides)
    if bare:
        yield Finding(WARNING, "hpccoll", "nothing is compiled: the MPI library runs the calls on "
                      "a node, and algorithms that you request run in Python, 10 to 20 times as "
                      "slow", "install a C compiler (apt install gcc, module load gcc), then "
                      "hpccoll again: pip install --force-reinstall --no-deps .", bare)
    slow = tuple(each.rank for each in facts if each.compile_seconds > NOTED_SECONDS)
    if slow:
        seconds = max(each.compile_seconds for each in facts)
        yield Finding(NOTE, "bytecode", f"each process compiles hpccoll, {seconds:.1f} s of "
                      "processor time: Python cannot store bytecode",
                      "unset PYTHONDONTWRITEBYTECODE, or install hpccoll as a wheel: pip install .",
                      () if len(slow) == len(facts) else slow)


def versions(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Check that every rank has the same software."""
    for name in facts[0].versions:
        parts = _parts(facts, _entry("versions", name, ""))
        if len(parts) > 1:
            path = name in ("interpreter", "executor")
            yield Finding(
                WARNING if path else ERROR, "versions", f"{name} differs: {_describe_parts(parts)}",
                "use one environment on all nodes: the same path on a shared file system, or the "
                "same version on each node" + (
                    "" if path else "; different builds may use different schedules"),
                _fewest(parts))


def settings(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Check that the variables are valid, and the same on every rank."""
    for name in sorted({name for each in facts for name in each.variables}):
        parts = _parts(facts, _entry("variables", name, "(not set)"))
        own = name.startswith("HPCCOLL_")
        if len(parts) > 1 and (own or name.startswith(LIBRARIES)):
            yield Finding(
                ERROR if own else WARNING, "settings", f"{name} differs: {_describe_parts(parts)}",
                ("" if own else "unless this is intended, ") + "set it in the job script, not in a "
                "shell's startup file: pass it on with srun --export=ALL, mpiexec -genv or -x",
                _fewest(parts))
    yield from (Finding(ERROR, "settings", problem, "correct it, or unset it", ranks)
                for problem, ranks in _parts(facts, lambda each: each.problem).items() if problem)


def layout(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Check that the discovered nodes are the real ones."""
    nodes = _parts(facts, lambda each: each.node)
    if all("SLURMD_NODENAME" in each.slurm or "SLURM_NODEID" in each.slurm for each in facts):
        placed = _parts(facts, lambda each: each.host)
        differ = (f"Slurm placed the ranks on {count_text(len(placed), 'node')}, the MPI library "
                  f"sees {count_text(len(nodes), 'group')} that "
                  f"{'share' if len(nodes) > 1 else 'shares'} memory")
        shape = f"{len(placed)}x{len(facts) // len(placed)}"
        same = sorted(placed.values()) == sorted(nodes.values())
        finer = all(any(set(group) <= set(node) for node in placed.values())
                    for group in nodes.values())
        if finer and not same:
            yield Finding(
                WARNING, "layout", f"{differ}: ranks of a node use the network",
                "start all ranks of a node with one launcher, without a host file; use an Open MPI "
                "built with Slurm's PMIx")
        elif not same:
            yield Finding(
                ERROR, "layout", f"{differ}: hpccoll may assume shared memory across nodes",
                f"set HPCCOLL_TOPOLOGY={shape} and HPCCOLL_SHARED_MEMORY=no")
    sizes = {len(ranks) for ranks in nodes.values()}
    found = facts[0].layout
    yield Finding(OK, "layout", f"{count_text(len(nodes), 'node')}, "
                  f"{_range(sizes)} rank{'s' * (sizes != {1})} on " + (
                      "it" if len(nodes) == 1 else "each") + (
                      f"; hpccoll uses the levels {found}" if "x" in found or "," in found
                      else ""))
    if any(ranks[-1] - ranks[0] >= len(ranks) for ranks in nodes.values()):
        yield Finding(WARNING, "layout", "ranks are not numbered node by node",
                      "use srun --distribution=block or mpiexec --map-by slot: flat algorithms are "
                      "faster if consecutive ranks share a node")
    elif len(sizes) > 1:
        yield Finding(NOTE, "layout", "nodes have different numbers of ranks",
                      "start the same number of ranks per node")


def binding(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Check the number of processors, and the binding of ranks."""
    crowded, shared, loose, narrow = [], [], [], []
    first, rooms = facts[0], set()
    for ranks in _parts(facts, lambda each: each.node).values():
        masks = [set(facts[rank].processors) for rank in ranks]
        there = set().union(*masks)
        if len(ranks) > len(there):
            crowded += ranks
            rooms.add(len(there))
        elif len(ranks) > 1 and all(mask == there for mask in masks):
            loose += ranks
        elif sum(map(len, masks)) > len(there):
            shared += ranks
    for each in facts:
        wanted = each.slurm.get("SLURM_CPUS_PER_TASK", "")
        if wanted.isdigit() and int(wanted) > len(each.processors):
            narrow.append(each.rank)
    if crowded:
        yield Finding(WARNING, "binding", "more ranks than processors: ranks share processors, and "
                                          "messages wait", "; ".join((
                          f"start at most one rank per processor: {_range(rooms)} "
                          f"processor{'s' * (rooms != {1})} per node",
                          *["or use --cpus-per-task=1 and more nodes"] * bool(first.slurm),
                          *["or mpiexec --mca mpi_yield_when_idle "
                            "1"] * first.mpi.startswith("Open MPI"))), tuple(crowded))
    if shared:
        yield Finding(WARNING, "binding", "ranks are bound to the same processors as other ranks",
                      _binding_option(first), tuple(shared))
    if loose:
        yield Finding(NOTE, "binding", "ranks are not bound to processors of their node",
                      _binding_option(first), tuple(loose))
    if narrow:
        yield Finding(WARNING, "binding", "ranks have fewer processors than --cpus-per-task",
                      "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK: srun ignores the job's "
                      "value since Slurm 22.05", tuple(narrow))
    if not (crowded or shared or loose or narrow):
        yield Finding(OK, "binding", "processors per rank: "
                                     f"{_range(len(each.processors) for each in facts)}")
    yield from _threads(facts)


def _binding_option(first: RankFacts) -> str:
    """Return the command of the launcher that binds each rank to its own processor."""
    found = [remedy for name, remedy in BINDS if first.launcher.startswith(name)]
    return (*found, "use the launcher's option: srun --cpu-bind=cores, mpiexec --bind-to core"
            )[0].format(first.size)


def _threads(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    unset = tuple(each.rank for each in facts if "OMP_NUM_THREADS" not in each.variables)
    if unset and len(facts) > 1:
        yield Finding(WARNING, "threads", "OMP_NUM_THREADS is not set: NumPy's linear algebra may "
                      "start a thread for every processor on every rank",
                      "export OMP_NUM_THREADS=" + (
                          "$SLURM_CPUS_PER_TASK" if "SLURM_CPUS_PER_TASK" in facts[0].slurm
                          else "1"), unset)
    many = tuple(each.rank for each in facts
                 if each.variables.get("OMP_NUM_THREADS", "").isdigit()
                 and int(each.variables["OMP_NUM_THREADS"]) > len(each.processors))
    if many:
        yield Finding(WARNING, "threads", "OMP_NUM_THREADS exceeds the processors of a rank",
                      "decrease it, or increase --cpus-per-task", many)


def memory(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Check shared memory, and reads of another process's memory."""
    without = tuple(each.rank for each in facts if each.shared is False)
    single = tuple(each.rank for each in facts if each.single_copy is False and each.shared)
    little = tuple(each.rank for each in facts if 0 <= each.shared_bytes < LITTLE_SHARED)
    if without:
        yield Finding(WARNING, "memory", "ranks of a node have no shared memory: messages inside "
                      "nodes use the MPI library",
                      "free space in /dev/shm (containers: --shm-size, or --ipc=host)", without)
    elif little:
        yield Finding(WARNING, "memory", f"less than {LITTLE_SHARED >> 20} MiB are free in "
                      "/dev/shm", "remove files of dead jobs, or increase --shm-size", little)
    if single:
        scope = max(facts[rank].ptrace_scope for rank in single)
        yield Finding(
            NOTE, "memory", "ranks cannot read each other's memory (process_vm_readv): large "
            "messages inside nodes are copied twice", (
                f"/proc/sys/kernel/yama/ptrace_scope is {scope}; 0 allows it" if scope > 0 else
                "in a container allow it with --cap-add=SYS_PTRACE"), single)
    if any(each.shared for each in facts) and not (without or little or single):
        yield Finding(OK, "memory", "ranks on one node exchange data through memory")


def load(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Check the load of other processes."""
    shares = {each.rank: each.others for each in facts if load_text(each.others)}
    if shares:
        yield Finding(WARNING, "load", f"{load_text(max(shares.values()))} while doctor ran",
                      "measure on an idle node; top lists the processes", tuple(shares))


def leftover(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Check for shared memory of dead jobs."""
    with_some = tuple(each.rank for each in facts if each.left[1])
    nbytes, files, sure = (sum(each.left[part] for each in facts) for part in range(3))
    if files:
        remedy = "remove them outside of containers, where all processes of the node are visible"
        if sure:
            remedy = f"hpccoll doctor --clean removes {'them' if sure == files else sure}"
        yield Finding(
            WARNING if nbytes >= LITTLE_SHARED else NOTE, "leftovers",
            f"your dead jobs have left {count_text(files, 'file')} of {size_text(nbytes)} in "
            "/dev/shm", remedy, with_some)


def recovery(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Check that a job can continue without a dead rank."""
    if not facts[0].no_recovery:
        yield Finding(OK, "recovery", "a job can continue after a rank dies: comm.shrink()")


def rules(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Check that the tuning table, or else the built-in rules, were measured in such a job."""
    if facts[0].table:
        yield Finding(OK, "tuning", f"{facts[0].table} has times of such a job")
    elif facts[0].untimed:
        yield Finding(NOTE, "tuning", f"{facts[0].untimed}; built-in rules select", TUNE)
    elif not all(each.ruled for each in facts) and not facts[0].is_uncompiled:
        yield Finding(NOTE, "tuning", "hpccoll's rules were measured in other places: the MPI "
                      "library runs most calls until a long job has measured some", TUNE)


def devices(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Check that every rank has its own device."""
    hidden = tuple(each.rank for each in facts
                   if "SLURM_GPUS_PER_TASK" in each.slurm
                   or "per_task" in each.slurm.get("SLURM_TRES_BIND", "")
                   or "gpu" in each.slurm.get("SLURM_TRES_PER_TASK", ""))
    if hidden:
        yield Finding(WARNING, "devices", "--gpus-per-task hides a rank's device from the other "
                      "ranks: no CUDA IPC inside nodes", "use --gpus-per-node with "
                      "--gpu-bind=none, and select the device by local rank, unless your site "
                      "requires --gpus-per-task", hidden)
    if not any(each.devices for each in facts):
        return
    none = tuple(each.rank for each in facts if not each.devices)
    if none:
        yield Finding(WARNING, "devices", "some ranks have no device",
                      "use --gpus-per-node on every node; check CUDA_VISIBLE_DEVICES", none)
    double = []
    for ranks in _parts(facts, lambda each: each.node).values():
        firsts = _parts([facts[rank] for rank in ranks], lambda each: each.devices[:1])
        double += [rank for first, those in firsts.items() if first and len(those) > 1
                   for rank in those]
    if double:
        yield Finding(NOTE, "devices", "ranks of a node use the same first device; "
                      f"{SHARED_GPU_NEEDS}", "select it by local rank before the first CUDA call "
                      "(hpccoll job --site gpu)", tuple(sorted(double)))
    reports = [each.device_report for each in facts if each.device_report is not None]
    if reports:
        yield Finding(OK, "devices", "device data paths: " + "; ".join(
            " ".join(line.split()) for line in describe_ways(reports)))
    aware = {each.found[AWARE.name].can for each in reports if each.device}
    yield (Finding(OK, "devices", "the MPI library supports device memory") if aware == {True} else
           Finding(NOTE, "devices", "the MPI library does not support device memory: hpccoll "
                   "copies it through host memory",
                   "use a CUDA-aware MPI library; Cray: export MPICH_GPU_SUPPORT_ENABLED=1"))
    without = tuple(each.rank for each in facts if each.no_nccl)
    if without:
        yield Finding(NOTE, "devices", f"NCCL is not available: {facts[without[0]].no_nccl}",
                      "only comm.using(allreduce='nccl') requires it", without)
    elif not double and (numbers := sorted({each.nccl for each in facts if each.nccl})):
        yield Finding(OK, "devices", f"NCCL {' and '.join(numbers)}, for "
                      "comm.using(allreduce='nccl')")


def surroundings(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Check the links of each rank's device to processors, other devices and the network."""
    with_one = [each for each in facts if each.devices]
    if not with_one:
        return
    used: dict[int, list[str]] = {}
    for each in with_one:
        used.setdefault(each.node, []).append(f"{each.devices[0]}" + (
            f" (NUMA {each.gpu_numa})" if each.gpu_numa >= 0 else ""))
    alike = _parts(with_one, lambda each: tuple(used[each.node]))
    for addresses, ranks in alike.items():
        yield Finding(OK, "devices", "first device of the ranks of a node: " + ", ".join(addresses),
                      "", ranks)
    far = tuple(each.rank for each in with_one if each.gpu_distance > NEAR)
    if far:
        distance = _range(facts[rank].gpu_distance for rank in far)
        yield Finding(NOTE, "devices", "ranks run on processors of another NUMA node than their "
                      f"device: distance {distance}, nearest {NEAR}",
                      "bind them to the processors in the column 'CPU Affinity' of nvidia-smi topo "
                      "-m, or select devices in another order", far)
    elif all(each.gpu_distance == NEAR for each in with_one):
        yield Finding(OK, "devices", "each rank runs on the NUMA node of its device")
    yield from _links(facts)
    nodes = _parts(facts, lambda each: each.node)
    network = [each for each in with_one if each.fabric]
    modules = sorted({name for each in network for name in each.gpu_direct})
    without = tuple(each.rank for each in network if not each.gpu_direct)
    if without and len(nodes) > 1:
        yield Finding(NOTE, "devices", "no kernel module for GPUDirect RDMA (the network cannot "
                      "read device memory)", "ask the administrator for modprobe nvidia_peermem, "
                      "unless the drivers use dma-buf, which doctor cannot detect", without)
    elif modules and len(nodes) > 1:
        yield Finding(OK, "devices", f"the network can read device memory: {', '.join(modules)}")


def _links(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Report the links between the devices of ranks of a node."""
    known = {each.node: {frozenset(map(pci_address, pair)): link for *pair, link in each.gpu_links}
             for each in facts if each.gpu_links}
    kinds: dict[str, int] = {}
    for node, ranks in _parts(facts, lambda each: each.node).items():
        mine = {pci_address(facts[rank].devices[0]) for rank in ranks if facts[rank].devices}
        for pair, link in known.get(node, {}).items():
            if pair <= mine:
                kinds[link] = kinds.get(link, 0) + 1
    if kinds:
        found = [f"{link} between {count_text(n, 'pair')}" for link, n in sorted(kinds.items())]
        yield Finding(OK, "devices", "links of a node's devices, from nvidia-smi topo -m: "
                      f"{', '.join(found)}")


def result(facts: Sequence[RankFacts]) -> Iterator[Finding]:
    """Check the result of the test run."""
    wrong = tuple(each.rank for each in facts if each.right is False)
    if wrong:
        yield Finding(ERROR, "result", "the result of an hpccoll allreduce is wrong",
                      "report it with the output of hpccoll doctor --json", wrong)
    elif all(each.right for each in facts):
        yield Finding(OK, "result", "the result of an hpccoll allreduce over all ranks is correct")


CHECKS: tuple[Callable[[Sequence[RankFacts]], Iterable[Finding]], ...] = (
    library, versions, settings, layout, binding, load, memory, leftover, recovery, rules,
    devices, surroundings, result)


def _entry(field: str, name: str, missing: str) -> Callable[[RankFacts], str]:
    """Return a callback that gets a rank's entry in one of its mappings."""
    return lambda facts: getattr(facts, field).get(name, missing)


def _parts(facts: Iterable[RankFacts], key: Callable[[RankFacts], object]) -> dict:
    """Group ranks by the value of a key function."""
    parts: dict = {}
    for each in facts:
        parts.setdefault(key(each), []).append(each.rank)
    return {value: tuple(ranks) for value, ranks in parts.items()}


def _describe_parts(parts: dict) -> str:
    return "; ".join(f"{value} on {ranks_text(ranks)}" for value, ranks in parts.items())


def _fewest(parts: dict) -> tuple[int, ...]:
    """Return the ranks that differ from the majority."""
    most = max(parts.values(), key=len)
    return tuple(sorted(rank for ranks in parts.values() if ranks != most for rank in ranks))


def _range(numbers: Iterable[int]) -> str:
    """Return the lowest and the highest number as text.

    >>> _range([2, 3, 2]), _range([4])
    ('2 to 3', '4')
    """
    ordered = sorted(set(numbers))
    return " to ".join(map(str, ordered[:1] + ordered[1:][-1:]))

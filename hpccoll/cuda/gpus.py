"""GPUs of a node, from Linux and NVIDIA's driver, without CUDA.

``nvidia-smi`` lists the link of each pair of GPUs. ``/sys`` lists the NUMA node of a GPU, and the
kernel modules that allow network adapters to read its memory. GPUs are identified by their PCI bus
address in CUDA's form: ``0000:3b:00.0``.
"""

from __future__ import annotations

import os
import re
import subprocess
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpccoll.errors.uncaught import stack_level

if TYPE_CHECKING:
    from mpi4py import MPI

#: Paths of PCI devices and of NUMA nodes in Linux.
PCI, NODES = Path("/sys/bus/pci/devices"), Path("/sys/devices/system/node")
#: Paths that exist with NVIDIA's driver, and with GPUDirect RDMA.
DRIVER = Path("/proc/driver/nvidia/version")
DIRECT = {"nvidia_peermem": Path("/sys/module/nvidia_peermem"),
          "nv_peer_mem": Path("/sys/module/nv_peer_mem"), "gdrdrv": Path("/sys/module/gdrdrv")}
#: NUMA distance of local memory, in Linux.
NEAR = 10
#: Timeout of nvidia-smi in seconds.
PATIENCE = 30


class GpuLinks(NamedTuple):
    """Links between the GPUs of a node.

    Attributes:
        addresses: the addresses of all GPUs, in the driver's order, which is that of
            ``CUDA_VISIBLE_DEVICES`` with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
        names: their names (UUID), in the same order.
        links: pair of addresses, the lower index first -> ``NV12`` for 12 NVLinks, or the longest
            PCIe path of messages: ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``.
        models: their model names, in the same order.
    """

    addresses: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    links: Mapping[tuple[str, str], str] = {}
    models: tuple[str, ...] = ()

    def link_between(self, one: str, other: str) -> str:
        """Return the link of two GPUs; empty if unknown."""
        return self.links.get((one, other)) or self.links.get((other, one), "")

    def islands(self) -> dict[str, int]:
        """Return address -> number of its island: GPUs connected by NVLink alone.

        >>> pairs = {("a", "b"): "NV4", ("a", "c"): "SYS", ("b", "c"): "PHB"}
        >>> GpuLinks(("a", "b", "c"), (), pairs).islands()
        {'a': 0, 'b': 0, 'c': 1}
        """
        number = {address: place for place, address in enumerate(self.addresses)}
        for (one, other), link in self.links.items():
            if link.startswith("NV"):
                kept, gone = sorted((number[one], number[other]))
                number = {address: kept if mine == gone else mine
                          for address, mine in number.items()}
        order = {old: new for new, old in enumerate(dict.fromkeys(number.values()))}
        return {address: order[mine] for address, mine in number.items()}


def pci_address(text: str) -> str:
    """Return a PCI address in CUDA's form.

    >>> pci_address("00000000:3B:00.0")
    '0000:3b:00.0'
    """
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest}"


def parse_links(listed: str, matrix: str) -> GpuLinks:
    """Parse the output of nvidia-smi.

    Args:
        listed: output of ``--query-gpu=index,pci.bus_id,uuid,name --format=csv,noheader``.
        matrix: output of ``topo -m``: a row and a column for each GPU.
    """
    rows = [line.split(",") for line in listed.splitlines() if line.count(",") == 3]
    known = {f"GPU{index.strip()}": pci_address(address) for index, address, *_ in rows}
    # Old drivers underline the heading with escape sequences.
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in matrix.splitlines()]
    heads: list[str] = next((words for words in lines if words[:1] == ["GPU0"]
                             and "X" not in words), [])
    columns = [word for word in heads if word in known]
    links = {}
    for words in lines:
        if words and words[0] in known and words is not heads:
            for column, link in zip(columns, words[1:], strict=False):
                if columns.index(words[0]) < columns.index(column):
                    links[known[words[0]], known[column]] = link
    return GpuLinks(tuple(known.values()), tuple(uuid.strip() for _, _, uuid, _ in rows), links,
                    tuple(name.strip() for *_, name in rows))


def gpu_links() -> GpuLinks:
    """Return the links of this node's GPUs; empty without a driver or its information.

    It takes a second if there are GPUs.
    """
    if not DRIVER.exists():
        return GpuLinks()
    return parse_links(
        _topology_text("--query-gpu=index,pci.bus_id,uuid,name", "--format=csv,noheader"),
        _topology_text("topo", "-m"))


def _topology_text(*words: str) -> str:
    try:
        return subprocess.run(["nvidia-smi", *words], capture_output=True, text=True,
                              timeout=PATIENCE, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def choose_gpu(links: GpuLinks, environ: Mapping[str, str] = os.environ) -> str:
    """Return the GPU on which a rank starts, by its environment; empty if not set.

    A number is an index in the driver's order. CUDA uses that order if all GPUs have the same
    model, or with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; otherwise it lists the fastest GPU first.
    """
    first = environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    if first.isdigit() and int(first) < len(links.addresses):
        return links.addresses[int(first)]
    fitting = [place for place, name in enumerate(links.names) if first and name.startswith(first)]
    return links.addresses[fitting[0]] if len(fitting) == 1 else ""


def doubt(links: GpuLinks, environ: Mapping[str, str] = os.environ) -> str:
    """Return why :func:`choose_gpu` may differ from CUDA's GPU, with a remedy; empty if it cannot.

    It matters if a node has several islands of GPUs.
    """
    first = environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    if (not first.isdigit() or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
            or len(set(links.models)) < 2 or len(set(links.islands().values())) < 2):
        return ""
    return (f"this node has different GPUs ({', '.join(sorted(set(links.models)))}), and CUDA "
            f"lists the fastest first: the number {first} in CUDA_VISIBLE_DEVICES may be another "
            "GPU than that of the level 'gpu'; set CUDA_DEVICE_ORDER=PCI_BUS_ID for all ranks, or "
            "use names (GPU-...)")


def gpu_numa(address: str, system: Path = PCI) -> int:
    """Return the NUMA node of a GPU; -1 if unknown."""
    try:
        return int((system / address / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def numa_distance(processors: Iterable[int], group: int, system: Path = NODES) -> int:
    """Return the NUMA distance of a node from a rank's cores: ``NEAR`` if local, -1 if unknown.

    The distance is that of the nearest core.
    """
    found = []
    for node in system.glob("node[0-9]*"):
        try:
            mine = _numbers((node / "cpulist").read_text())
            row = (node / "distance").read_text().split()
        except OSError:
            continue
        place = sorted(int(each.name[4:]) for each in system.glob("node[0-9]*"))
        if mine.intersection(processors) and group in place and len(row) == len(place):
            found.append(int(row[place.index(group)]))
    return min(found, default=-1)


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list such as ``0-3,8``."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def gpu_direct(modules: Mapping[str, Path] = DIRECT) -> Sequence[str]:
    """Return the loaded kernel modules that allow network adapters to read GPU memory."""
    return [name for name, path in modules.items() if path.exists()]


def gpu_island(node: MPI.Intracomm) -> int:
    """Return the island of this rank's GPU, -1 if unknown; collective over its node.

    One rank of the node runs nvidia-smi, for a second.
    """
    leads = node.Get_rank() == 0
    links = node.bcast(gpu_links() if leads else None)
    if leads and (unsure := doubt(links)):
        warnings.warn(f"hpccoll: HPCCOLL_LEVELS: {unsure}", RuntimeWarning,
                      stacklevel=stack_level())
    return int(links.islands().get(choose_gpu(links), -1))

"""GPUs of a node, as Linux and NVIDIA's driver describe them; needs no CUDA, and starts none.

``nvidia-smi`` says what links each pair of GPUs, ``/sys`` which NUMA group a GPU is next to, and
which modules of the kernel let adapters of the network read its memory. GPUs go by the address of
their PCI bus, in the form that CUDA has: ``0000:3b:00.0``.
"""

from __future__ import annotations

import os
import re
import subprocess
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mpi4py import MPI

#: Where Linux lists devices of the PCI bus, and NUMA groups.
PCI, NODES = Path("/sys/bus/pci/devices"), Path("/sys/devices/system/node")
#: What is there where NVIDIA's driver is, and where it lets the network read memory of GPUs.
DRIVER = Path("/proc/driver/nvidia/version")
DIRECT = {"nvidia_peermem": Path("/sys/module/nvidia_peermem"),
          "nv_peer_mem": Path("/sys/module/nv_peer_mem"), "gdrdrv": Path("/sys/module/gdrdrv")}
#: NUMA distance, as Linux counts, of what is next to a processor.
NEAR = 10
#: Seconds that nvidia-smi may take.
PATIENCE = 30


class GpuLinks(NamedTuple):
    """What links the GPUs of a node.

    Attributes:
        addresses: of all GPUs, in the driver's order, which is that of ``CUDA_VISIBLE_DEVICES``
            with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
        names: their names (UUID), in the same order.
        links: pair of addresses, the lower place first -> ``NV12`` for so many NVLinks, or the
            farthest that messages go by PCIe: ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``.
        models: what they are called, in the same order.
    """

    addresses: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    links: Mapping[tuple[str, str], str] = {}
    models: tuple[str, ...] = ()

    def between(self, one: str, other: str) -> str:
        """What links two GPUs; empty where nobody knows."""
        return self.links.get((one, other)) or self.links.get((other, one), "")

    def islands(self) -> dict[str, int]:
        """Address -> number of its island: GPUs that reach each other by NVLink alone.

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
    """An address as CUDA has it.

    >>> pci_address("00000000:3B:00.0")
    '0000:3b:00.0'
    """
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest}"


def parse_links(listed: str, matrix: str) -> GpuLinks:
    """Read what nvidia-smi says.

    Args:
        listed: of ``--query-gpu=index,pci.bus_id,uuid,name --format=csv,noheader``.
        matrix: of ``topo -m``: a row for each GPU, with a column for each.
    """
    rows = [line.split(",") for line in listed.splitlines() if line.count(",") == 3]
    known = {f"GPU{index.strip()}": pci_address(address) for index, address, *_ in rows}
    # Old drivers underline the heading by escape sequences.
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
    """What links the GPUs of this node; nothing where there is no driver, or it does not say.

    It takes a second where there are GPUs.
    """
    if not DRIVER.exists():
        return GpuLinks()
    return parse_links(
        _said("--query-gpu=index,pci.bus_id,uuid,name", "--format=csv,noheader"),
        _said("topo", "-m"))


def _said(*words: str) -> str:
    try:
        return subprocess.run(["nvidia-smi", *words], capture_output=True, text=True,
                              timeout=PATIENCE, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def chosen(links: GpuLinks, environ: Mapping[str, str] = os.environ) -> str:
    """The GPU that a rank begins on, by its environment; empty where that does not say.

    A number is taken for a place in the driver's order. That is CUDA's where all GPUs are of one
    kind, or with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; else CUDA lists the fastest first.
    """
    first = environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    if first.isdigit() and int(first) < len(links.addresses):
        return links.addresses[int(first)]
    fitting = [place for place, name in enumerate(links.names) if first and name.startswith(first)]
    return links.addresses[fitting[0]] if len(fitting) == 1 else ""


def doubt(links: GpuLinks, environ: Mapping[str, str] = os.environ) -> str:
    """Why :func:`chosen` may name another GPU than CUDA's, and a remedy; empty if it cannot.

    It matters where the GPUs of a node are several islands.
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
    """The NUMA group that a GPU is next to; -1 where the system does not say."""
    try:
        return int((system / address / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def numa_distance(processors: Iterable[int], group: int, system: Path = NODES) -> int:
    """How far a NUMA group is from a rank's processors: ``NEAR`` if next to it, -1 if unknown.

    The nearest of the processors counts.
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
    """``0-3,8`` as numbers."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def gpu_direct(modules: Mapping[str, Path] = DIRECT) -> Sequence[str]:
    """Modules of the kernel that let adapters of the network read memory of GPUs."""
    return [name for name, path in modules.items() if path.exists()]


def gpu_island(node: MPI.Intracomm) -> int:
    """The island of GPUs that this rank's is in, -1 if unknown; collective over its node.

    One rank of the node runs nvidia-smi, for a second.
    """
    leads = node.Get_rank() == 0
    links = node.bcast(gpu_links() if leads else None)
    if leads and (unsure := doubt(links)):
        warnings.warn(f"hpccoll: HPCCOLL_LEVELS: {unsure}", RuntimeWarning, stacklevel=3)
    return int(links.islands().get(chosen(links), -1))

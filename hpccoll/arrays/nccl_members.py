"""Who can make an NCCL communicator: what ranks say of themselves, and what follows from it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from mpi4py import MPI

from hpccoll.arrays.nccl import SHARING, shares_gpus, version
from hpccoll.units import ranks_text


class Member(NamedTuple):
    """What a rank says of itself before ranks make an NCCL communicator.

    Attributes:
        host: its node.
        device: PCI address of the GPU that it uses.
        version: of NCCL; ranks with other ones do not understand each other.
        shares: whether its NCCL accepts several ranks on one GPU.
        problem: why it cannot take part; empty if it can.
    """

    host: str
    device: str = ""
    version: str = ""
    shares: bool = False
    problem: str = ""


def introduce(device: Any) -> Member:
    """What this rank says of itself and the GPU that its arrays are on."""
    host = MPI.Get_processor_name()
    number, problem = version()
    if problem:
        return Member(host, problem=problem)
    try:
        cupy: Any = importlib.import_module("cupy")
        return Member(host, cupy.cuda.runtime.deviceGetPCIBusId(device.id), number,
                      shares_gpus(number))
    except Exception as error:  # whatever the driver says
        return Member(host, problem=f"{type(error).__name__}: {error}")


def obstacle(members: Sequence[Member]) -> str:
    """Why ranks cannot make an NCCL communicator, by what all of them say; empty if they can."""
    problems = [(rank, one.problem) for rank, one in enumerate(members) if one.problem]
    if problems:
        rank, problem = problems[0]
        more = f" (and {len(problems) - 1} more)" * (len(problems) > 1)
        return f"rank {rank}{more}: {problem}"
    users: dict[tuple[str, str], list[int]] = {}
    versions: dict[str, list[int]] = {}
    for rank, one in enumerate(members):
        users.setdefault((one.host, one.device), []).append(rank)
        versions.setdefault(one.version, []).append(rank)
    for (host, device), ranks in users.items():
        if len(ranks) > 1 and not all(members[rank].shares for rank in ranks):
            return f"{ranks_text(ranks)} share GPU {device} of {host}: {SHARING}"
    if len(versions) > 1:
        return "ranks have unlike versions of NCCL: " + "; ".join(
            f"{number} on {ranks_text(ranks)}" for number, ranks in versions.items())
    return ""

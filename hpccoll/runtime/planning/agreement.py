"""Agreement: compares the settings of all ranks before a context is set up."""

from __future__ import annotations

from hpccoll.config import Config, common_values
from hpccoll.errors import ArgumentError
from hpccoll.errors.waits import rank_list
from hpccoll.machine.processes import Process, this_process
from hpccoll.transport.call_hashes import hash_of_text
from hpccoll.transport.private_comm import PrivateComm


def exchange_processes(comm: PrivateComm, config: Config) -> list[Process]:
    """Compare the settings of all ranks; return their processes by rank. Collective.

    Call it before any other exchange of the set-up: ranks with different settings would run
    different algorithms, or send set-up messages that other ranks do not expect.

    Raises:
        ArgumentError: on every rank; names the first variable that differs, and its values.
    """
    values = common_values(config)
    digest = hash_of_text(repr(values), 8)
    # Values are longer than digests: ranks exchange values only if a digest differs.
    answers = comm.allgather((digest, tuple(this_process())))
    if any(other != digest for other, _ in answers):
        _raise_first_difference(comm.allgather(values))
    return [Process(*process) for _, process in answers]


def _raise_first_difference(answers: list[dict[str, str]]) -> None:
    """Raise an error that names the first variable that differs, and its values by rank."""
    for variable in answers[0]:
        ranks_by_value: dict[str, list[int]] = {}
        for rank, values in enumerate(answers):
            ranks_by_value.setdefault(values[variable], []).append(rank)
        if len(ranks_by_value) > 1:
            text = "; ".join(f"{value} on {rank_list(ranks)}"
                             for value, ranks in ranks_by_value.items())
            raise ArgumentError(variable, f"is {text}", "set the same value on all ranks")

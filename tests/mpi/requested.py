"""What the tests of requests share: sums of every rank's numbers, and kinds of requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.comm.requests import Prequest, Request
from hpccoll.guard.pending_calls import NativePrequest, NativeRequest
from hpccoll.runtime.execution.built import BUILT

#: An algorithm of hpccoll's for every collective.
OURS = {collective: next(iter(table)) for collective, table in ALGORITHMS.items()}
NATIVE = dict.fromkeys(("allreduce", "barrier", "iallreduce", "allreduce_init"), "native")


def mine(comm, count=4):
    """This rank's contribution."""
    return numpy.arange(count) + 10. * comm.rank


def summed(comm, count=4):
    """The sum of all contributions."""
    return comm.size * numpy.arange(count) + 10. * sum(range(comm.size))


def start(request):
    """Start a persistent request; return it."""
    request.Start()
    return request


class Kind(NamedTuple):
    """A kind of request: nonblocking or persistent, and the executor that runs it."""

    form: str
    by: str

    @property
    def type(self) -> type[MPI.Request]:
        """The class of the requests."""
        nonblocking, persistent = ((NativeRequest, NativePrequest) if self.by == "native"
                                   else (Request, Prequest))
        return nonblocking if self.form == "I" else persistent

    def communicator(self, monkeypatch: pytest.MonkeyPatch, timeout: float = 20,
                     progress: str | None = None, **settings: str) -> hpccoll.Comm:
        """Make a communicator that is set up, and whose requests are of this kind."""
        settings |= {"TIMEOUT": str(timeout)}
        if self.by != "native":
            settings["EXECUTOR"] = self.by
        for name, value in settings.items():
            monkeypatch.setenv(f"HPCCOLL_{name}", value)
        comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup(), progress=progress)
        for _ in range(2):  # the second one sets it up
            comm.Barrier()
        assert comm.layout
        return self.choose(comm)

    def choose(self, comm: hpccoll.Comm) -> hpccoll.Comm:
        """Make all requests of a communicator those of this kind."""
        comm.choose(**(NATIVE if self.by == "native"
                       else {**OURS, "allreduce": "recursive_doubling"}))
        return comm

    def prepare(self, comm: hpccoll.Comm, *args: object) -> Callable[[], MPI.Request]:
        """Return a function that begins an allreduce and returns its request."""
        if self.form == "I":
            return lambda: comm.Iallreduce(*args)
        request = comm.Allreduce_init(*args)
        return lambda: start(request)


KINDS = {f"{form}-{by}": Kind(form, by) for by in ("native", *["compiled"] * BUILT, "python")
         for form in ("I", "init")}
#: The same without those that the MPI library runs.
OURS_ONLY = {name: kind for name, kind in KINDS.items() if kind.by != "native"}


def kinds(which: dict[str, Kind]) -> pytest.MarkDecorator:
    """Run a test for kinds of requests."""
    return pytest.mark.parametrize("kind", which.values(), ids=which)

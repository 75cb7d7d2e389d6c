"""Errors that are also an ``MPI.Exception``, for cases in which mpi4py raises one.

``Get_error_class`` returns the class that the MPI library would have returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mpi4py import MPI

from hpccoll.errors import (
    ArgumentError,
    ArgumentTypeError,
    BrokenCommunicatorError,
    CommunicatorError,
    HpccollError,
)
from hpccoll.errors.waits import print_report, report_text

__all__ = ["DeadCommunicatorError", "MpiArgumentError", "OperatorError", "RequestError",
           "RevokedError", "RootError", "error_handler_of"]


class HasErrorClass(MPI.Exception):
    """Mixin: an MPI error class with a message of hpccoll."""

    code = MPI.ERR_OTHER

    def __init__(self, *args: object):
        RuntimeError.__init__(self, *args)

    def __int__(self) -> int:
        return self.code

    def __str__(self) -> str:
        return RuntimeError.__str__(self)

    def __repr__(self) -> str:
        return RuntimeError.__repr__(self)


@contextmanager
def error_handler_of(comm: MPI.Comm) -> Iterator[None]:
    """Call the error handler of a communicator for such an error, as the MPI library does.

    A fatal handler ends the job here, so the error is printed first.
    """
    try:
        yield
    except HasErrorClass as error:
        handler = comm.Get_errhandler()
        if handler in (MPI.ERRORS_ARE_FATAL, MPI.ERRORS_ABORT):
            print_report(report_text(error))
        handler.Free()
        comm.Call_errhandler(error.code)
        raise


class RootError(ArgumentError, HasErrorClass):
    """The root is not a rank of the communicator."""

    code = MPI.ERR_ROOT


class MpiArgumentError(ArgumentError, HasErrorClass):
    """The MPI library rejects an argument; its error class has the reason."""

    def __init__(self, argument: str, problem: str, code: int):
        self.code = code
        ArgumentError.__init__(self, argument, problem)


class OperatorError(ArgumentTypeError, HasErrorClass):
    """The reduction operator does not exist for the element type."""

    code = MPI.ERR_OP


class DeadCommunicatorError(CommunicatorError, HasErrorClass):
    """The communicator is null or was freed."""

    code = MPI.ERR_COMM


class RequestError(HpccollError, HasErrorClass):
    """A request was used against MPI's rules: started while active, freed or cancelled."""

    code = MPI.ERR_REQUEST


class RevokedError(BrokenCommunicatorError, HasErrorClass):
    """A rank has revoked the communicator."""

    code = MPI.ERR_REVOKED

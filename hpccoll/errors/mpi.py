"""Errors that mpi4py reports as ``MPI.Exception``: ours are that too.

A program that catches ``MPI.Exception`` keeps working, and ``Get_error_class`` tells it what the
MPI library would have told.
"""

from __future__ import annotations

from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError, CommunicatorError, HpccollError


class Reported(MPI.Exception):
    """Mixin: an MPI error code, and a message of our own."""

    code = MPI.ERR_OTHER

    def __init__(self, *args: object):
        RuntimeError.__init__(self, *args)

    def __int__(self) -> int:
        return self.code

    def __str__(self) -> str:
        return RuntimeError.__str__(self)

    def __repr__(self) -> str:
        return RuntimeError.__repr__(self)


class RootError(ArgumentError, Reported):
    """The root is not a rank of the communicator."""

    code = MPI.ERR_ROOT


class OperatorError(ArgumentTypeError, Reported):
    """The reduction operator does not exist for the element type."""

    code = MPI.ERR_OP


class DeadCommunicatorError(CommunicatorError, Reported):
    """The communicator is null or was freed."""

    code = MPI.ERR_COMM


class RequestError(HpccollError, Reported):
    """A request was used against MPI's rules: started while active, freed or cancelled."""

    code = MPI.ERR_REQUEST

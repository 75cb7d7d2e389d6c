"""Native calls: passed to mpi4py, with its errors converted to hpccoll's.

Unsupported calls (derived datatypes with an operator, ``MPI.BOTTOM``, memory that only the MPI
library can access) go to the native method unchanged. A malformed buffer would go the same way, and
raise a ``KeyError``, ``TypeError`` or ``MPI.Exception`` without detail. So mpi4py first parses the
argument without a message (:func:`check_understood`). Errors about combinations of arguments are
converted, too (:func:`call_native`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy
from mpi4py import MPI

from hpccoll.arrays.dlpack import from_dlpack
from hpccoll.arrays.half import is_bfloat16
from hpccoll.calls.datatypes import datatype_of
from hpccoll.errors import ArgumentError, ArgumentTypeError, BufferArgumentError, HpccollError
from hpccoll.errors.mpi import MpiArgumentError, OperatorError

#: Exceptions of mpi4py for invalid arguments.
COMPLAINTS = (BufferError, KeyError, OverflowError, TypeError, ValueError)
#: MPI error classes of invalid arguments, after which nothing was sent.
ARGUMENT_ERRORS = frozenset((MPI.ERR_ARG, MPI.ERR_BUFFER, MPI.ERR_COUNT, MPI.ERR_OP, MPI.ERR_ROOT,
                             MPI.ERR_TYPE))
#: Remedies for elements without an MPI type, by the kind of their dtype.
_REMEDIES = {
    "O": "use the lower-case method for Python objects",
    "M": "pass integers, array.view('i8')", "m": "pass integers, array.view('i8')",
    "S": "pass a type, [array, MPI.CHAR]", "U": "pass a type, [array, MPI.BYTE]",
    "V": "pass a type, [array, MPI.BYTE] where no operator is applied"}


class NativeOnly(Exception):
    """Raised for calls of the native implementation; never raised to users."""


def native_form(spec: Any) -> Any:
    """Return the specification in mpi4py's form, with bfloat16 as 16-bit words."""
    obj, *rest = spec if isinstance(spec, (list, tuple)) and spec else (spec,)
    typed = any(isinstance(part, (MPI.Datatype, str)) or isinstance(part, (list, tuple))
                and any(isinstance(one, MPI.Datatype) for one in part) for part in rest)
    if typed or not isinstance(obj, numpy.ndarray) or not is_bfloat16(obj.dtype):
        return spec
    return [obj, *rest, MPI.UINT16_T]


def check_understood(spec: Any, argument: str, writable: bool) -> None:
    """Raise an error unless mpi4py accepts a simple specification: a buffer, count and type.

    Nothing is sent: the check creates a persistent message to this process and never starts it.

    Raises:
        ArgumentError: names the argument; its class matches mpi4py's error.
    """
    prepare = MPI.COMM_SELF.Recv_init if writable else MPI.COMM_SELF.Send_init
    try:
        prepare(spec, 0).Free()
    except MPI.Exception as error:
        raise MpiArgumentError(argument, f"cannot be used: {_mpi_text(error)}",
                               error.Get_error_class()) from error
    except Exception as error:  # code of the object may raise anything
        _reject(spec, argument, error)


def check_address(obj: Any, displ: int, datatype: Any, argument: str) -> None:
    """Raise an error for elements without a type, or at address 0.

    Some MPI libraries would crash.

    Raises:
        MpiArgumentError: the error that the MPI library should raise in the call.
    """
    if isinstance(datatype, MPI.Datatype) and datatype == MPI.DATATYPE_NULL:
        raise MpiArgumentError(argument, "has elements of MPI.DATATYPE_NULL", MPI.ERR_TYPE)
    if type(obj) is type(MPI.BOTTOM) and not displ and (
            not isinstance(datatype, MPI.Datatype) or datatype.is_predefined):
        raise MpiArgumentError(argument, "has elements at address MPI.BOTTOM",
                               MPI.ERR_BUFFER)


def check_type_known(obj: Any, argument: str) -> None:
    """Raise an error for a tensor whose elements mpi4py would reduce as bytes.

    mpi4py treats all DLPack types without an MPI type as bytes, such as bfloat16; some MPI
    libraries then add single bytes.

    Raises:
        ArgumentTypeError: NumPy has no type for the elements either.
    """
    if not hasattr(obj, "__dlpack__") or hasattr(obj, "__cuda_array_interface__"):
        return
    try:
        memoryview(obj)
    except (TypeError, ValueError, BufferError):
        try:
            datatype_of(from_dlpack(obj).dtype)
        except Exception as error:
            name, kind = _type_of(obj), getattr(obj, "dtype", "")
            raise ArgumentTypeError(
                argument, f"is a {name} of {kind or 'a type that NumPy lacks'}, which MPI cannot "
                f"combine: {error}", "convert it, to float32 for example; or view its memory as "
                "a NumPy array of ml_dtypes.bfloat16; torch.distributed takes bfloat16 tensors "
                "over hpccoll.torch") from error


def call_native(method: Callable[..., Any], argument: str, *args: Any, **options: Any) -> Any:
    """Call a native method and convert its argument errors to hpccoll's.

    Args:
        method: the native method.
        argument: the argument to name in errors: the one that was not checked before.
        args, options: arguments of the method.

    Raises:
        ArgumentError: its class matches mpi4py's error.
    """
    try:
        return method(*args, **options)
    except HpccollError:
        raise
    except MPI.Exception as error:
        code = error.Get_error_class()
        if code not in ARGUMENT_ERRORS:
            raise
        text = f"cannot be used here: {_mpi_text(error)}"
        if code == MPI.ERR_OP:
            kinds = {str(each.dtype) for each in args if isinstance(each, numpy.ndarray)}
            of = f"is not defined for elements of type {', '.join(sorted(kinds))}: "
            raise OperatorError("op", of * bool(kinds) + _mpi_text(error)) from error
        raise MpiArgumentError(argument, text, code) from error
    except COMPLAINTS as error:
        raise _class_for(error)(argument, _text(error)) from error


def _reject(spec: Any, argument: str, error: Exception) -> NoReturn:
    """Raise a helpful error for a specification that mpi4py rejects."""
    obj = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    array = obj if isinstance(obj, numpy.ndarray) else None
    remedy, kind = "pass a NumPy array, or [buffer, count, type]", _class_for(error)
    if obj is None and spec is None:
        problem = "is None, but the call requires elements"
    elif array is not None and not array.dtype.isnative and array.dtype.kind in "iufc":
        problem = f"has elements of type {array.dtype} in foreign byte order"
        remedy = "pass a copy in native byte order: array.astype(array.dtype.newbyteorder('='))"
    elif array is not None and (array.dtype.kind not in "biufc" or array.dtype.isbuiltin != 1):
        problem = f"has elements of type {array.dtype}, which has no MPI datatype"
        kind, remedy = ArgumentTypeError, _REMEDIES.get(array.dtype.kind, _REMEDIES["V"])
    elif not _has_buffer(obj):
        problem = (f"is a {type(spec).__name__}, not a buffer" if obj is spec else
                   f"is a {type(spec).__name__} that starts with a {type(obj).__name__}, not a "
                   "buffer")
        remedy += "; use the lower-case method for Python objects"
    elif array is None and hasattr(obj, "__dlpack__") and hasattr(obj, "dtype"):
        problem = (f"is a {_type_of(obj)} of {obj.dtype}, which mpi4py cannot read: {_text(error)}")
        remedy = "pass numpy.asarray of it, or convert it, to float32 for example"
    else:
        problem = f"cannot be used: {_text(error)}"
    raise kind(argument, problem, remedy) from error


def _type_of(obj: Any) -> str:
    """Return the public name of a type."""
    return f"{type(obj).__module__.partition('.')[0]}.{type(obj).__name__}"


def _has_buffer(obj: Any) -> bool:
    """Return True if mpi4py may find memory in an object."""
    if obj is None or type(obj) is type(MPI.BOTTOM):
        return True
    if hasattr(obj, "__dlpack__") or hasattr(obj, "__cuda_array_interface__"):
        return True
    try:
        memoryview(obj)
    except TypeError:
        return False
    except (ValueError, BufferError):
        pass
    return True


def _class_for(error: Exception) -> type[ArgumentError]:
    """Return hpccoll's error class that derives from the built-in one that mpi4py raised."""
    if isinstance(error, BufferError):
        return BufferArgumentError
    return ArgumentError if isinstance(error, (ValueError, OverflowError)) else ArgumentTypeError


def _text(error: Exception) -> str:
    """Return the text of an error, without the quotes of a ``KeyError``."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return text.removeprefix("message: ")


def _mpi_text(error: MPI.Exception) -> str:
    """Return the MPI library's error text, without the stack that some libraries add."""
    line: str = error.Get_error_string().strip().splitlines()[-1]
    return line.rpartition("): ")[2]

"""Calls that only mpi4py and the MPI library can serve, and their complaints as hpccoll's errors.

What hpccoll does not serve - derived datatypes with an operator, ``MPI.BOTTOM``, memory that only
the MPI library reaches - goes to the native method as it is. A malformed buffer would go the same
way, and come back as a ``KeyError``, ``TypeError`` or ``MPI.Exception`` that says little. So
mpi4py is asked first, without any message (:func:`check_understood`); and what it finds wrong in
arguments that fit each other badly gets a name, too (:func:`call_native`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy
from mpi4py import MPI

from hpccoll.arrays.half import is_bfloat16
from hpccoll.errors import ArgumentError, ArgumentTypeError, BufferArgumentError, HpccollError
from hpccoll.errors.mpi import MpiArgumentError, OperatorError

#: What mpi4py raises for arguments that it cannot use.
COMPLAINTS = (BufferError, KeyError, OverflowError, TypeError, ValueError)
#: Classes of MPI's errors that are about arguments, so that nothing was sent.
ARGUMENT_ERRORS = frozenset((MPI.ERR_ARG, MPI.ERR_BUFFER, MPI.ERR_COUNT, MPI.ERR_OP, MPI.ERR_ROOT,
                             MPI.ERR_TYPE))
#: What to do where elements have no MPI type, by the kind of their dtype.
_REMEDIES = {
    "O": "use the lower-case method for Python objects",
    "M": "pass integers, array.view('i8')", "m": "pass integers, array.view('i8')",
    "S": "pass a type, [array, MPI.CHAR]", "U": "pass a type, [array, MPI.BYTE]",
    "V": "pass a type, [array, MPI.BYTE] where no operator is applied"}


class NativeOnly(Exception):
    """The call is for the native implementation; never seen by users."""


def native_form(spec: Any) -> Any:
    """The specification as mpi4py understands it, which moves bfloat16 as 16-bit words."""
    obj, *rest = spec if isinstance(spec, (list, tuple)) and spec else (spec,)
    typed = any(isinstance(part, (MPI.Datatype, str)) or isinstance(part, (list, tuple))
                and any(isinstance(one, MPI.Datatype) for one in part) for part in rest)
    if typed or not isinstance(obj, numpy.ndarray) or not is_bfloat16(obj.dtype):
        return spec
    return [obj, *rest, MPI.UINT16_T]


def check_understood(spec: Any, argument: str, writable: bool) -> None:
    """Raise unless mpi4py understands a simple specification: a buffer, its count and type.

    Nothing is sent: a persistent message to this process itself is made, and never started.

    Raises:
        ArgumentError: of the class that fits mpi4py's complaint, and names the argument.
    """
    prepare = MPI.COMM_SELF.Recv_init if writable else MPI.COMM_SELF.Send_init
    try:
        prepare(spec, 0).Free()
    except MPI.Exception as error:
        raise MpiArgumentError(argument, f"cannot be used: {_mpi_text(error)}",
                               error.Get_error_class()) from error
    except Exception as error:  # an object's own code may raise anything
        _reject(spec, argument, error)


def check_address(obj: Any, displ: int, datatype: Any, argument: str) -> None:
    """Raise where elements have no type, or would lie at address 0.

    Some MPI libraries would not say so, but crash.

    Raises:
        MpiArgumentError: as the MPI library should say in the middle of the call.
    """
    if isinstance(datatype, MPI.Datatype) and datatype == MPI.DATATYPE_NULL:
        raise MpiArgumentError(argument, "has elements of MPI.DATATYPE_NULL", MPI.ERR_TYPE)
    if type(obj) is type(MPI.BOTTOM) and not displ and (
            not isinstance(datatype, MPI.Datatype) or datatype.is_predefined):
        raise MpiArgumentError(argument, "has elements at address MPI.BOTTOM",
                               MPI.ERR_BUFFER)


def check_type_known(obj: Any, argument: str) -> None:
    """Raise for a tensor whose elements mpi4py would combine as if they were bytes.

    That is what it takes all types for that DLPack has and MPI has not, such as bfloat16; some MPI
    libraries then add byte by byte.

    Raises:
        ArgumentTypeError: the elements have no type in NumPy either.
    """
    if not hasattr(obj, "__dlpack__") or hasattr(obj, "__cuda_array_interface__"):
        return
    try:
        memoryview(obj)
    except (TypeError, ValueError, BufferError):
        try:
            numpy.from_dlpack(obj)
        except Exception as error:
            name, kind = _type_of(obj), getattr(obj, "dtype", "")
            raise ArgumentTypeError(
                argument, f"is a {name} of {kind or 'a type that NumPy lacks'}, which MPI cannot "
                f"combine: {error}", "convert it, to float32 for example; or view its memory as "
                "a NumPy array of ml_dtypes.bfloat16; torch.distributed takes bfloat16 tensors "
                "over hpccoll.torch") from error


def call_native(method: Callable[..., Any], argument: str, *args: Any, **options: Any) -> Any:
    """Call a native method; what it finds wrong in the arguments is raised as hpccoll's error.

    Args:
        method: the native method.
        argument: the argument to name: the one that was not checked beforehand.
        args, options: what the method takes.

    Raises:
        ArgumentError: of the class that fits mpi4py's complaint.
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
            raise OperatorError("op", text) from error
        raise MpiArgumentError(argument, text, code) from error
    except COMPLAINTS as error:
        raise _class_for(error)(argument, _text(error)) from error


def _reject(spec: Any, argument: str, error: Exception) -> NoReturn:
    """Raise for a specification that mpi4py does not understand, in words that help."""
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
    """The name of a type as its users know it."""
    return f"{type(obj).__module__.partition('.')[0]}.{type(obj).__name__}"


def _has_buffer(obj: Any) -> bool:
    """Tell whether mpi4py can find memory in an object, if all goes well."""
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
    """The class of hpccoll's error that is the built-in one, too, that mpi4py raised."""
    if isinstance(error, BufferError):
        return BufferArgumentError
    return ArgumentError if isinstance(error, (ValueError, OverflowError)) else ArgumentTypeError


def _text(error: Exception) -> str:
    """What an error says; a ``KeyError`` puts it in quotes."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return text.removeprefix("message: ")


def _mpi_text(error: MPI.Exception) -> str:
    """What the MPI library says, without the stack that some libraries add."""
    line: str = error.Get_error_string().strip().splitlines()[-1]
    return line.rpartition("): ")[2]

"""Messages between two ranks of device memory that the MPI library cannot move.

The library would crash. So what is sent is copied to the host first, and what is received is copied
to the device after. These are mpi4py's methods with a look at the buffer. A communicator has them
only where CuPy is installed, so that programs without devices pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from mpi4py import MPI

from hpccoll.calls.memory import any_staged, staged
from hpccoll.comm.base import Base
from hpccoll.errors import BufferArgumentError

SENDING = "Send", "Ssend", "Bsend", "Rsend", "Isend", "Issend", "Ibsend", "Irsend"
#: Methods after which nobody would copy what has come, or before which nobody would what is sent.
REFUSED = ("Irecv", "Isendrecv", "Isendrecv_replace", "Recv_init", "Send_init", "Ssend_init",
           "Bsend_init", "Rsend_init", "Psend_init", "Precv_init")


def host(spec: Any) -> tuple[Any, Callable[[], None]]:
    """A buffer on the host with the values of this one, and what brings them back."""
    return staged(spec, "buf") if any_staged((spec,)) else (spec, lambda: None)


def sending(name: str) -> Callable[..., Any]:
    """A method of mpi4py's that sends."""
    native = getattr(MPI.Comm, name)

    def send(self: MPI.Comm, buf: Any, dest: int, tag: int = 0) -> Any:
        return native(self, host(buf)[0], dest, tag)
    return send


def receive(self: MPI.Comm, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG,
            status: MPI.Status | None = None) -> None:
    """``Recv``."""
    memory, store = host(buf)
    MPI.Comm.Recv(self, memory, source, tag, status)
    store()


def exchange(self: MPI.Comm, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None,
             source: int = MPI.ANY_SOURCE, recvtag: int = MPI.ANY_TAG,
             status: MPI.Status | None = None) -> None:
    """``Sendrecv``."""
    memory, store = host(recvbuf)
    MPI.Comm.Sendrecv(self, host(sendbuf)[0], dest, sendtag, memory, source, recvtag, status)
    store()


def replace(self: MPI.Comm, buf: Any, dest: int, sendtag: int = 0, source: int = MPI.ANY_SOURCE,
            recvtag: int = MPI.ANY_TAG, status: MPI.Status | None = None) -> None:
    """``Sendrecv_replace``."""
    memory, store = host(buf)
    MPI.Comm.Sendrecv_replace(self, memory, dest, sendtag, source, recvtag, status)
    store()


def refusing(name: str) -> Callable[..., Any]:
    """A method of mpi4py's that would have to copy later."""
    native = getattr(MPI.Comm, name)

    def refuse(self: MPI.Comm, *args: Any, **named: Any) -> Any:
        if any_staged((*args, *named.values())):
            raise BufferArgumentError(
                "buf", f"is device memory, and this MPI library cannot move it in {name}",
                "use Send, Isend, Recv or Sendrecv, or a NumPy array of your own: "
                "cupy.asnumpy(...), and array.set(...) after the wait")
        return native(self, *args, **named)
    return refuse


def methods() -> dict[str, Callable[..., Any]]:
    """The methods, by their names; those that this mpi4py has."""
    found = {name: sending(name) for name in SENDING}
    found |= {name: refusing(name) for name in REFUSED if hasattr(MPI.Comm, name)}
    return {**found, "Recv": receive, "Sendrecv": exchange, "Sendrecv_replace": replace}


class DeviceMessages(Base):
    """Messages of device memory."""


if find_spec("cupy") is not None:
    for each, method in methods().items():
        setattr(DeviceMessages, each, method)

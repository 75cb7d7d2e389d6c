"""Point-to-point messages of device memory that the MPI library cannot move.

The MPI library would crash on such messages. So sent data is first copied to the host, and received
data is then copied to the device. Only programs that have CuPy load this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hpccoll.calls.memory import is_staged, stage_spec
from hpccoll.errors import BufferArgumentError

#: Methods of mpi4py that send.
SENDING = "Send", "Ssend", "Bsend", "Rsend", "Isend", "Issend", "Ibsend", "Irsend"
#: Methods that send after they have returned, and methods that receive after it.
PREPARING = "Send_init", "Ssend_init", "Bsend_init", "Rsend_init"
RECEIVING = "Irecv", "Recv_init"


def host_copy(spec: Any) -> tuple[Any, Callable[[], None]]:
    """Return a host copy of a buffer, and a callback that copies it back."""
    return stage_spec(spec, "buf") if is_staged(spec) else (spec, lambda: None)


def wrap_send(name: str) -> Callable[..., Any]:
    """Return a wrapper of an mpi4py method that sends."""
    native = getattr(MPI.Comm, name)

    def send(self: MPI.Comm, buf: Any, dest: int, tag: int = 0) -> Any:
        if is_staged(buf):
            buf = host_copy(buf)[0]
        return native(self, buf, dest, tag)
    return send


def receive(self: MPI.Comm, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG,
            status: MPI.Status | None = None) -> None:
    """Implement ``Recv``."""
    if not is_staged(buf):
        MPI.Comm.Recv(self, buf, source, tag, status)
        return
    memory, store = host_copy(buf)
    MPI.Comm.Recv(self, memory, source, tag, status)
    store()


def exchange(self: MPI.Comm, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None,
             source: int = MPI.ANY_SOURCE, recvtag: int = MPI.ANY_TAG,
             status: MPI.Status | None = None) -> None:
    """Implement ``Sendrecv``."""
    memory, store = host_copy(recvbuf)
    MPI.Comm.Sendrecv(self, host_copy(sendbuf)[0], dest, sendtag, memory, source, recvtag, status)
    store()


def replace(self: MPI.Comm, buf: Any, dest: int, sendtag: int = 0, source: int = MPI.ANY_SOURCE,
            recvtag: int = MPI.ANY_TAG, status: MPI.Status | None = None) -> None:
    """Implement ``Sendrecv_replace``."""
    memory, store = host_copy(buf)
    MPI.Comm.Sendrecv_replace(self, memory, dest, sendtag, source, recvtag, status)
    store()


def check_host(name: str, *bufs: Any) -> None:
    """Raise an error for device memory in calls that outlive their return, which cannot copy."""
    for buf in bufs:
        if is_staged(buf):
            raise BufferArgumentError(
                "buf", f"is device memory, which this MPI library does not support in {name}",
                "use Send, Isend, Recv or Sendrecv, or a NumPy array: cupy.asnumpy(...), and "
                "array.set(...) after the wait")


def wrap_send_init(name: str) -> Callable[..., Any]:
    """Return a wrapper of an mpi4py method that prepares a send of host memory."""
    native = getattr(MPI.Comm, name)

    def prepare(self: MPI.Comm, buf: Any, dest: int, tag: int = 0) -> Any:
        check_host(name, buf)
        return native(self, buf, dest, tag)
    return prepare


def wrap_irecv(name: str) -> Callable[..., Any]:
    """Return a wrapper of a nonblocking mpi4py receive into host memory."""
    native = getattr(MPI.Comm, name)

    def receive_later(self: MPI.Comm, buf: Any, source: int = MPI.ANY_SOURCE,
                      tag: int = MPI.ANY_TAG) -> Any:
        check_host(name, buf)
        return native(self, buf, source, tag)
    return receive_later


def exchange_later(self: MPI.Comm, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None,
                   source: int = MPI.ANY_SOURCE, recvtag: int = MPI.ANY_TAG) -> Any:
    """Implement ``Isendrecv``."""
    check_host("Isendrecv", sendbuf, recvbuf)
    return MPI.Comm.Isendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag)


def replace_later(self: MPI.Comm, buf: Any, dest: int, sendtag: int = 0,
                  source: int = MPI.ANY_SOURCE, recvtag: int = MPI.ANY_TAG) -> Any:
    """Implement ``Isendrecv_replace``."""
    check_host("Isendrecv_replace", buf)
    return MPI.Comm.Isendrecv_replace(self, buf, dest, sendtag, source, recvtag)


def prepare_parts(self: MPI.Comm, buf: Any, partitions: int, dest: int, tag: int = 0,
                  info: MPI.Info = MPI.INFO_NULL) -> Any:
    """Implement ``Psend_init``."""
    check_host("Psend_init", buf)
    return MPI.Comm.Psend_init(self, buf, partitions, dest, tag, info)


def prepare_receive_of_parts(self: MPI.Comm, buf: Any, partitions: int,
                             source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG,
                             info: MPI.Info = MPI.INFO_NULL) -> Any:
    """Implement ``Precv_init``."""
    check_host("Precv_init", buf)
    return MPI.Comm.Precv_init(self, buf, partitions, source, tag, info)


def message_methods() -> dict[str, Callable[..., Any]]:
    """Return the methods by name, as far as this mpi4py has them."""
    found = {name: wrap_send(name) for name in SENDING}
    found |= {name: wrap_send_init(name) for name in PREPARING}
    found |= {name: wrap_irecv(name) for name in RECEIVING}
    found |= {"Recv": receive, "Sendrecv": exchange, "Sendrecv_replace": replace,
              "Isendrecv": exchange_later, "Isendrecv_replace": replace_later,
              "Psend_init": prepare_parts, "Precv_init": prepare_receive_of_parts}
    return {name: method for name, method in found.items() if hasattr(MPI.Comm, name)}

"""CUDA IPC without a device: memory and events that processes of a test share through a folder.

The rules are those of CUDA's manual, taken strictly:

* a handle cannot be opened in the process that made it, nor when its owner has freed the memory,
  which then has other contents;
* memory must not be freed while somebody has it open, nor used by who has closed it;
* an event of another process is waited for as it was last recorded when the wait is queued; one
  that was never recorded is waited for by nobody;
* nothing happens in another process because this one waits for nothing.

A process goes on with its work when another one waits for it, as a device does: a thread looks for
what is wanted.
"""

from __future__ import annotations

import mmap
import secrets
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy

from support.gpu.ipc_events import (
    HAPPENED,
    NUMBERS,
    PAUSE,
    WANTED,
    ForeignTask,
    SharedEvent,
)
from support.gpu.streams import CudaError, CudaStatus, Devices, GpuTask, Stream

#: Statuses of CUDA's runtime.
INVALID_VALUE, INVALID_CONTEXT = 1, 201
#: Bytes of a handle, and of them those of a name.
HANDLE, NAME = 64, 16
#: Events that a process may share.
SLOTS = 8192
#: At most so many bytes of new, and of freed, memory get contents that nobody expects.
SPOILT = 1 << 20


class DeviceBytes(mmap.mmap):
    """Device memory as a file of the folder, or of this process alone."""

    share: SharedFolder
    path: Path | None = None

    def __del__(self) -> None:
        with suppress(FileNotFoundError):  # the test is over, and its folder is gone
            self.share.freed(self)


class Allocation:
    """What ``cupy.cuda.Memory`` and ``UnownedMemory`` are: memory with an address."""

    def __init__(self, data: DeviceBytes, address: int, size: int, device_id: int):
        self.data, self.ptr, self.size, self.device_id = data, address, size, device_id


class Opened:
    """Memory of another process."""

    def __init__(self, data: mmap.mmap, mark: Path):
        self.data, self.mark, self.count = data, mark, 0
        self.start = numpy.frombuffer(data, "u1").ctypes.data


class SharedFolder:
    """What one process has of the folder."""

    def __init__(self, machine: Devices, folder: Path | None, shift: int):
        self.machine, self.folder, self.shift = machine, folder, shift
        self.name = secrets.token_hex(NAME // 2)
        self.allocated: weakref.WeakValueDictionary[int, DeviceBytes] = (
            weakref.WeakValueDictionary())
        self.opened: dict[int, Opened] = {}
        self.foreign: dict[int, numpy.ndarray] = {}
        self.closed: list[Opened] = []
        self.events: weakref.WeakValueDictionary[int, SharedEvent] = weakref.WeakValueDictionary()
        self.slots, self.made = 0, 0
        self._numbers: numpy.ndarray | None = None

    # -- memory -----------------------------------------------------------------------------
    def allocate(self, size: int) -> Allocation:
        """Memory of the current device."""
        self.machine.called("malloc")
        self.made += 1
        path = self.folder / f"{self.name}-{self.made}" if self.folder else None
        data = DeviceBytes(-1, size) if path is None else _mapped(path, size, DeviceBytes)
        data.share, data.path = self, path
        spoil(data, 0xA5)
        self.allocated[_address(data) + self.shift] = data
        self.machine.held["memory"] += size
        return Allocation(data, _address(data) + self.shift, size, self.machine.device)

    def freed(self, data: DeviceBytes) -> None:
        """Memory is gone: what was there is something else's now."""
        self.machine.held["memory"] -= len(data)
        if data.path is not None and data.path.exists():
            spoil(data, 0xDD)
            if any(data.path.parent.glob(f"{data.path.name}.open-*")):
                data.path.with_suffix(".freed-while-open").touch()
            data.path.unlink()

    def memory_handle(self, pointer: int) -> bytes:
        """The handle of an allocation, by its beginning or any address in it."""
        self.machine.called("ipcGetMemHandle")
        data = next((one for start, one in self.allocated.items()
                     if start <= pointer < start + len(one)), None)
        if data is None or data.path is None:
            raise CudaStatus(INVALID_VALUE)
        return data.path.name.encode().ljust(HANDLE, b"\0")

    def open_memory(self, handle: bytes) -> int:
        """The address of another process's memory here."""
        self.machine.called("ipcOpenMemHandle")
        name = handle.rstrip(b"\0").decode()
        if name.startswith(self.name):
            raise CudaStatus(INVALID_CONTEXT)  # which CUDA says of a handle of one's own
        if self.folder is None or not (self.folder / name).exists():
            raise CudaStatus(INVALID_VALUE)
        mark = self.folder / f"{name}.open-{self.name}"
        one = next((each for each in self.opened.values() if each.mark == mark), None)
        if one is None:
            path = self.folder / name
            one = Opened(_mapped(path, path.stat().st_size, mmap.mmap), mark)
            mark.touch()
        one.count += 1
        self.machine.held["opened"] += 1
        self.opened[one.start + self.shift] = one
        return one.start + self.shift

    def close_memory(self, pointer: int) -> None:
        """Close it once; the last time it is unmapped."""
        self.machine.called("ipcCloseMemHandle")
        one = self.opened.get(pointer)
        if one is None:
            raise CudaStatus(INVALID_VALUE)
        one.count -= 1
        self.machine.held["opened"] -= 1
        if not one.count:
            one.mark.unlink(missing_ok=True)
            self.closed.append(one)
            del self.opened[pointer]

    def seen(self, pointer: int, size: int, device_id: int) -> Allocation:
        """Memory of another process as ``cupy.cuda.UnownedMemory``."""
        one = self.opened[pointer]
        return Allocation(one.data, pointer, size, device_id)  # type: ignore[arg-type]

    def check(self, arrays: Sequence[numpy.ndarray]) -> None:
        """Look whether memory that is about to be used was closed."""
        if self.closed and any(one.start <= array.ctypes.data < one.start + len(one.data)
                               for array in arrays for one in self.closed):
            raise CudaError("illegal memory access: memory of a peer's that was closed")

    # -- events -----------------------------------------------------------------------------
    @property
    def numbers(self) -> numpy.ndarray:
        """Of each event of this process."""
        if self._numbers is None:
            if self.folder is None:
                self._numbers = numpy.zeros((SLOTS, NUMBERS), "i8")
            else:
                self._numbers = _numbers(self.folder / f"events-{self.name}")
                threading.Thread(target=_serving, args=(weakref.ref(self),), daemon=True,
                                 name="double of device events").start()
        return self._numbers

    def slot(self, event: SharedEvent) -> int:
        """A place for an event's numbers."""
        self.slots += 1
        self.events[self.slots] = event
        return self.slots

    def event_handle(self, pointer: int) -> bytes:
        """The handle of an event."""
        self.machine.called("ipcGetEventHandle")
        event = self.machine.events[pointer]
        if not isinstance(event, SharedEvent) or self.folder is None or not len(self.numbers):
            raise CudaStatus(INVALID_VALUE)
        return f"{self.name}-{event.slot}".encode().ljust(HANDLE, b"\0")

    def open_event(self, handle: bytes) -> int:
        """A number that stands for another process's event."""
        self.machine.called("ipcOpenEventHandle")
        name, slot = handle.rstrip(b"\0").decode().split("-")
        if name == self.name:
            raise CudaStatus(INVALID_CONTEXT)
        if self.folder is None or not (self.folder / f"events-{name}").exists():
            raise CudaStatus(INVALID_VALUE)
        numbers = _numbers(self.folder / f"events-{name}")[int(slot)]
        self.machine.held["foreign"] += 1
        self.foreign[id(numbers)] = numbers
        return id(numbers)

    def wait(self, stream: Stream, event: int) -> None:
        """Let a stream wait for an event, of whichever process."""
        self.machine.called("streamWaitEvent")
        numbers = self.foreign.get(event)
        if numbers is None:
            stream.wait_event(self.machine.events[event])
            return
        with self.machine.lock:
            task = ForeignTask(self, numbers)
            task.done = bool(task.number == 0 or numbers[HAPPENED] >= task.number)
            if not task.done:
                self.machine.pending.append(task)
            stream.meant.push(lambda: None, task)

    def destroy(self, event: int) -> None:
        """Forget an event of another process."""
        del self.foreign[event]
        self.machine.held["foreign"] -= 1

    def serve(self) -> None:
        """Do what other processes wait for, and of what that comes after, all that can be done."""
        with self.machine.lock:
            for event in list(self.events.values()):
                wanted = int(self.numbers[event.slot][WANTED])
                for number, task in sorted(event.tasks.items()):
                    if number <= wanted:
                        self._advance(task)

    def _advance(self, task: GpuTask) -> None:
        """Do what can be done of a task and of what it comes after; ask for all that is missing."""
        waiting, seen = [task], set[int]()
        while waiting:
            top = waiting[-1]
            before = [one for one in top.after if not one.done and id(one) not in seen]
            if before and not top.done:
                waiting += before
                seen.update(map(id, before))
                continue
            waiting.pop()
            if not top.done and all(one.done for one in top.after) and not top.missing:
                self.machine.finish(top)


def spoil(data: mmap.mmap, byte: int) -> None:
    """Give memory contents that nobody expects."""
    nbytes = min(len(data), SPOILT)
    data[:nbytes] = bytes([byte]) * nbytes


def _mapped(path: Path, size: int, kind: Any) -> Any:
    with open(path, "r+b" if path.exists() else "w+b") as file:
        file.truncate(size)
        return kind(file.fileno(), size)


def _numbers(path: Path) -> numpy.ndarray:
    data = _mapped(path, SLOTS * NUMBERS * 8, mmap.mmap)
    return numpy.frombuffer(data, "i8").reshape(SLOTS, NUMBERS)


def _address(data: mmap.mmap) -> int:
    return int(numpy.frombuffer(data, "u1").ctypes.data)


def _serving(share: weakref.ref[SharedFolder]) -> None:
    """Serve as long as the process has its share, and a moment after its folder is gone."""
    while (one := share()) is not None and one.folder is not None and one.folder.exists():
        one.serve()
        del one
        time.sleep(2 * PAUSE)

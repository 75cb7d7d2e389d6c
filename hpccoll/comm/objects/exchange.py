"""Algorithms for objects: reduce, broadcast, gather and scatter.

Arrays that two ranks exchange have prepared memory and messages per type and shape.

These algorithms are not schedules; docs/internal/decisions/0030 has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.comm.objects.messages import (
    ArrayPair,
    FramePair,
    ObjectMessages,
    operator_name,
)
from hpccoll.comm.objects.wire import (
    CONTAINERS,
    FLOAT,
    HASH,
    IMMUTABLE,
    INT,
    LONG,
    ROOM,
    Parts,
    RemoteError,
    copy_of,
    decode,
    is_plain,
    memory_for,
    same_type_and_shape,
    type_and_shape,
)
from hpccoll.runtime.execution.built import BUILT

if BUILT:
    from hpccoll.runtime.execution import _executor

#: Largest bytes of arrays that both ranks exchange and combine.
SHARED = 64 << 10
#: Largest number of array types and shapes with prepared exchanges.
MOST_SHAPES = 16
#: NumPy functions of the predefined operators, for two arrays of equal dtype and shape.
UFUNCS = {MPI.SUM.handle: numpy.add, MPI.PROD.handle: numpy.multiply,
          MPI.BAND.handle: numpy.bitwise_and, MPI.BOR.handle: numpy.bitwise_or,
          MPI.BXOR.handle: numpy.bitwise_xor}

Operator = Callable[[Any, Any], Any]


class ObjectExchange(ObjectMessages):
    """Reduces, broadcasts, gathers and scatters objects."""

    def numbers(self) -> Any:
        """Return the compiled form of :meth:`doubling_allreduce` for numbers.

        ``None`` if it is not available; other ranks may differ in this.
        """
        guard = self.context.guard
        rounds, distance = [], 1
        while distance < self.size:
            pair = self.pairs.get(self.rank ^ distance) or self.pair(self.rank ^ distance)
            if pair.compiled_plan is None:
                return None
            rounds.append((pair.compiled_plan, *pair.addresses, not self.rank & distance))
            distance *= 2
        call_hashes = tuple(self.call_of("allreduce", operator_name(op)).call_hash
                            for op in (MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN))
        return _executor.Numbers(tuple(rounds), FLOAT, INT, ROOM, HASH, call_hashes,
                                 guard.log if guard is not None else 0, self,
                                 self.context.call_guard)

    def binomial_reduce(self, obj: Any, op: Operator) -> Any:
        """Combine the objects of all ranks along a binomial tree; the result is at rank 0."""
        value, mask, rank = obj, 1, self.rank
        while mask < self.size:
            if rank & mask:
                self.send(value, rank - mask)
                return None
            if rank + mask < self.size:
                arrived = self.receive(rank + mask)
                value = self.apply(op, self.copy_if_shared(value, obj, op), arrived, into=arrived)
            mask *= 2
        return value

    def serial_reduce(self, obj: Any, op: Operator) -> Any:
        """Combine the objects of all ranks one after another, by rank; the result is at rank 0."""
        value = obj
        if self.rank:
            self.send(value, 0)
            return None
        for source in range(1, self.size):
            arrived = self.receive(source)
            value = self.apply(op, self.copy_if_shared(value, obj, op), arrived, into=arrived)
        return value

    def doubling_allreduce(self, obj: Any, op: MPI.Op, distance: int = 1,
                           exchanged: bool = False) -> tuple[Any, bool]:
        """Combine the objects of a power of two of ranks by recursive doubling.

        Partners at doubling distances exchange frames, and both combine their values: then groups
        of twice as many ranks hold one value. A large value, or one of a user's class, only
        goes to the first rank of the new group, as in :meth:`binomial_reduce`. All ranks detect
        that: a flag in every frame is set while all ranks of the sender's group hold the value.

        Args:
            obj, op: the object and the operator.
            distance: the distance of the first round; above 1, all ranks of a group hold a number.
            exchanged: True if the frames of the first round have been exchanged.

        Returns:
            The result, and whether all ranks have it; if not, rank 0 does.
        """
        value, rank, together = obj, self.rank, self.exchangeable(obj, op)
        while distance < self.size:
            partner, first = rank ^ distance, not rank % distance
            pair = self.pairs.get(partner) or self.pair(partner)
            data, given = None, first and rank > partner
            if (together or given) and not exchanged:
                data, error = self.encode(pair.frame, value)
                if error is not None:
                    value, self.error = error, error if given else self.error
                together = together and (data is None
                                         or type(value) in (numpy.ndarray, RemoteError))
            if not exchanged:
                pair.frame[ROOM], pair.frame[HASH:] = together, self.call_hash
                self.exchange(pair, partner)
            self.check(pair.arriving, partner)
            exchanged = False
            together = bool(together and pair.arriving[ROOM])
            swap = together and data is not None and same_type_and_shape(pair.frame, pair.arriving)
            rest = None if swap or data is None or not (together or given) else (
                self.send_bytes(data, partner))
            if together or first and not given:
                if not together:
                    value = self.copy_if_shared(value, obj, op)
                elif value is obj and type(obj) in CONTAINERS:
                    value = decode(pair.frame, None, rank)  # the result may share its contents
                if swap:
                    arrived, into = self.swap(pair, value, partner), numpy.empty_like(value)
                else:
                    arrived = into = self.receive_rest(pair.arriving, partner)
                operands = (value, arrived) if rank < partner else (arrived, value)
                value = self.apply(op, operands[0], operands[1], into)
                # The flag stays set after a failure of a rank, or the others would wait forever.
                together = together and (value is into or type(value) is RemoteError
                                         or self.exchangeable(value, op))
            else:
                value = None
            if rest is not None:
                self.wait(rest, partner)
            distance *= 2
        return value, together

    def exchange(self, pair: FramePair | ArrayPair, partner: int) -> None:
        """Exchange the frames, or the arrays, of a pair."""
        if pair.compiled_plan is not None:
            pair.compiled_plan.run(*pair.addresses)
            return
        pair.batch.start()
        if not pair.batch.test(self.tries):
            self.wait(pair.batch.test, partner)

    def swap(self, pair: FramePair, array: numpy.ndarray, partner: int) -> numpy.ndarray:
        """Exchange arrays of one type and shape; the result is valid until the next exchange."""
        key = partner, type_and_shape(pair.frame)
        parts = self.arrays.get(key)
        if parts is None:
            if len(self.arrays) >= MOST_SHAPES:
                self.drop_arrays()
            parts = self.arrays[key] = self.array_pair(array, partner)
        parts.frame[...] = array
        self.exchange(parts, partner)
        return parts.arriving

    def exchangeable(self, value: Any, op: MPI.Op) -> bool:
        """Return True if every rank may combine a value of frame size itself."""
        kind = type(value)
        return kind in IMMUTABLE or kind in CONTAINERS or (
            kind is numpy.ndarray and value.nbytes <= SHARED and _ufunc(op) is not None
            and is_plain(value))

    def copy_if_shared(self, value: Any, obj: Any, op: Operator) -> Any:
        """Return the value, or a copy if it is the caller's object and ``op`` may change it."""
        if value is obj and type(obj) not in IMMUTABLE and not (
                type(obj) is numpy.ndarray and _ufunc(op)):
            return copy_of(obj, self.rank)
        return value

    def scan(self, obj: Any, op: Operator, inclusive: bool, serial: bool) -> Any:
        """Combine the objects of lower ranks; raises a rank's error.

        By recursive doubling, or if ``serial`` one after another.
        """
        rank = self.rank
        # A function may change its operands, so each value is an operand of one call only.
        copied = type(op) is not MPI.Op
        total = copy_of(obj, rank)
        if serial:
            before = self.receive(rank - 1) if rank else None
            result = copy_of(before, rank) if copied else before
            total = self.apply(op, before, total) if rank else total
            if rank + 1 < self.size:
                self.send(total, rank + 1)
            return self.result(total if inclusive else result)
        result, started = copy_of(total, rank) if copied else total, inclusive
        for distance in (1 << i for i in range((self.size - 1).bit_length())):
            partner = rank ^ distance
            if partner >= self.size:
                continue
            arrived = self.receive(partner, self.begin_send(total, partner))
            if rank < partner:
                total = self.apply(op, total, arrived)
                continue
            operand = copy_of(arrived, rank) if copied else arrived
            result = self.apply(op, operand, result) if started else operand
            total = self.apply(op, arrived, total)
            started = True
        return self.result(None if rank == 0 and not inclusive else result)

    def share(self, obj: Any, root: int, owned: bool) -> Any:
        """Send the root's object to every rank, along a binomial tree.

        The root gets a copy, as in mpi4py, unless the object was created for this call (``owned``).
        """
        rank, error = self.rank, None
        parent, children = self.tree(root)
        if parent is None:
            frame = self.frame
            data, error = self.encode(frame, obj)
        else:
            frame = self.receive_frame(parent)
            data = memory_for(frame) if frame[0] == LONG else None
        sending = [sent for child, _ in children for sent in self.send_frame(frame, child)]
        short = data is not None and memoryview(data).nbytes <= SHARED
        if short:
            if parent is not None:
                self.receive_bytes(data, parent)
            sending += [(self.send_bytes(data, child), child) for child, _ in children]
        for test, child in sending:
            self.wait(test, child)
        if data is not None and not short:
            self.broadcast(data, root)
        self.call.ends()
        if error is not None:
            error.throw(rank)
        if parent is None and (type(obj) in IMMUTABLE or owned and data is obj):
            return obj
        value = decode(frame, data, rank)
        if type(value) is RemoteError:
            value.throw(rank)
        # Classes, functions and Enum members unpickle to themselves.
        return value.copy() if value is obj and type(obj) is numpy.ndarray else value

    def tree(self, root: int) -> tuple[int | None, list[tuple[int, int]]]:
        """Return this rank's parent in a binomial tree and its children, largest subtree first.

        Each child has its distance from this rank, in ranks relative to the root.
        """
        rank, size = self.rank, self.size
        mine = (rank - root) % size
        step = mine & -mine or 1 << (size - 1).bit_length()
        parent, children = (rank - step) % size if mine else None, []
        while step > 1:
            step //= 2
            if mine + step < size:
                children.append(((rank + step) % size, step))
        return parent, children

    def gather(self, data: bytes, root: int) -> list[bytes] | None:
        """Collect the bytes of all ranks at the root, by rank.

        Short messages are sent along a binomial tree. For long ones the tree carries the number of
        bytes, and the data follows directly to the root when it has received all numbers.
        """
        parent, children = self.tree(root)
        short = len(data) <= SHARED
        parts = Parts([data if short or parent is None else len(data)])
        for child, _ in reversed(children):
            parts += self.receive(child)
        if parent is not None:
            self.send(parts, parent)
            if not short:
                self.wait(self.send_bytes(data, root), root)
            self.call.ends()
            return None
        arriving = []
        for shift, part in enumerate(parts):
            if type(part) is int:
                parts[shift] = memory = bytearray(part)
                source = (root + shift) % self.size
                arriving.append((self.begin_receive(memory, source), source))
        for test, source in arriving:
            self.wait(test, source)
        self.call.ends()
        return parts[self.size - root:] + parts[:self.size - root]

    def scatter(self, every: list[bytes], root: int) -> bytes:
        """Send one of the root's messages to each rank; return this rank's.

        The paths are those of :meth:`gather`. ``every`` is significant at the root.
        """
        parent, children = self.tree(root)
        parts = Parts(every[root:] + every[:root])
        far = []
        if parent is not None:
            parts = self.receive(parent)
        else:
            for shift, data in enumerate(parts):
                if shift and len(data) > SHARED:
                    parts[shift] = len(data)
                    far.append((data, (root + shift) % self.size))
        sending = []
        for child, step in children:
            theirs = Parts(parts[step:2 * step])
            sending += [(test, child) for test in self.begin_send(theirs, child)]
        sending += [(self.send_bytes(data, dest), dest) for data, dest in far]
        mine = parts[0]
        if type(mine) is int:
            mine = bytearray(mine)
            self.receive_bytes(mine, root)
        for test, dest in sending:
            self.wait(test, dest)
        self.call.ends()
        return mine

    def broadcast(self, data: Any, root: int) -> None:
        """Broadcast memory with the MPI library.

        Nonblocking, because a rank must be able to leave it if another rank made another call.
        """
        try:
            self.requests.append(self.context.comm.Ibcast([data, MPI.BYTE], root))
        except MPI.Exception as error:
            self._judge(error)
            raise
        self.wait(self.requests[-1].Test, root)

    def result(self, value: Any) -> Any:
        """Return the value at the end of a call.

        Raises the exception of a rank that failed to compute it.
        """
        self.call.ends()
        error = value if type(value) is RemoteError else self.error
        if error is not None:
            error.throw(self.rank)
        return value

    def apply(self, op: Operator, left: Any, right: Any, into: Any = None) -> Any:
        """Return ``op(left, right)``, or a ``RemoteError``.

        The result may use the memory of ``into``, one of the operands, whose pages are allocated.
        """
        if type(left) is RemoteError or type(right) is RemoteError:
            return left if type(left) is RemoteError else right
        try:
            if (type(into) is type(right) is type(left) is numpy.ndarray
                    and right.dtype is left.dtype and right.shape == left.shape):
                ufunc = _ufunc(op)
                if ufunc is not None and is_plain(into):
                    return ufunc(left, right, out=into)
            return op(left, right)
        except Exception as error:
            return RemoteError(error, self.rank)

def _ufunc(op: Operator) -> numpy.ufunc | None:
    return UFUNCS.get(op.handle) if type(op) is MPI.Op else None

"""Model averaging: ranks train independently, then average their weights.

    local SGD        every rank steps with its own gradients; weights are averaged every H steps
    post-local SGD   gradients are exchanged up to a step, weights are averaged after it
    hierarchical     one period for each level: short in small groups, long between all ranks
    one step late    gradients are exchanged while the next ones are computed

Sources: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; Lin, Stich, Patel and
Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020 (post-local, hierarchical; as in
PyTorch's ``PeriodicModelAverager`` and ``HierarchicalModelAverager``); Ho et al., "More Effective
Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013 (bounded staleness).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.training.arguments import as_list, communicator
from hpccoll.training.buckets import plan_buckets
from hpccoll.training.shard.agreement import agreed_specs

#: Group size that stands for the ranks of a node.
NODE = "node"


class ModelAverager:
    """Averages arrays over ranks periodically and in place.

    Args:
        comm: all ranks, an ``hpccoll.Comm``.
        arrays: weights and other synchronized arrays, such as an optimizer's momentum;
            contiguous floating-point arrays. Those of rank 0 are broadcast at the start.
        every: steps between two averages over all ranks; or group sizes by period:
            ``{4: "node", 16: comm.size}``. Groups are consecutive ranks, or the nodes of the
            layout. The largest period that divides a step applies; the longest period covers all
            ranks.
        after: steps with exchanged gradients before the first average (post-local SGD).

    Attributes:
        number: number of completed steps.

    Raises:
        ArgumentError: invalid arrays, periods or groups.
        ShardError: arrays or options differ between ranks.
    """

    def __init__(self, comm: Any, arrays: Sequence[numpy.ndarray],
                 every: int | Mapping[int, int | str] = 8, *, after: int = 0):
        self.comm, self.after, self.number = communicator("comm", comm), after, 0
        self.arrays = as_list("arrays", arrays)
        for index, array in enumerate(self.arrays):
            if not isinstance(array, numpy.ndarray):
                raise ArgumentTypeError("arrays", f"array {index} is a {type(array).__name__}",
                                        "pass NumPy arrays")
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise ArgumentError("arrays", f"array {index} is read-only, or not contiguous",
                                    "pass writable contiguous arrays")
        size = comm.Get_size()
        groups = {every: size} if isinstance(every, int) else dict(every)
        specs = agreed_specs(comm, self.arrays, None,
                             str((sorted(groups.items(), key=str), after)))
        _check(groups, _nodes(comm), size)
        self._levels = [(period, self._comm_of(groups[period])) for period in sorted(groups)]
        self._buckets = plan_buckets(specs)
        for array in self.arrays:
            # Bytes: MPI libraries have no type for bfloat16.
            comm.Bcast(array.reshape(-1).view("u1"))

    @property
    def exchanging(self) -> bool:
        """True if the gradients of the next step must be exchanged between all ranks."""
        return self.number < self.after

    def step(self) -> int:
        """Count an optimizer step and average the weights if a period ends; collective.

        Returns:
            The number of ranks over which weights were averaged; 0 without an average.
        """
        self.number += 1
        alone = self.number - self.after
        due = [comm for period, comm in self._levels if alone > 0 and alone % period == 0]
        if not due:
            return 0
        self._average(due[-1])
        return int(due[-1].Get_size())

    def finish(self) -> None:
        """Average over all ranks at any step, for the end of training; collective."""
        self._average(self.comm)

    def close(self) -> None:
        """Free the created communicators; collective."""
        while self._levels:
            comm = self._levels.pop()[1]
            if comm is not self.comm:
                comm.Free()

    def _comm_of(self, size: int | str) -> Any:
        """Return the communicator of this rank's group; collective."""
        rank = self.comm.Get_rank()
        if size == self.comm.Get_size():
            return self.comm
        if isinstance(size, int):
            return self.comm.Split(rank // size, rank)
        node = next(n for n, ranks in enumerate(_nodes(self.comm)) if rank in ranks)
        return self.comm.Split(node, rank)

    def _average(self, comm: Any) -> None:
        for bucket in self._buckets if comm.Get_size() > 1 else ():
            packed = numpy.concatenate([self.arrays[index].reshape(-1)
                                        for index in bucket.members])
            comm.Allreduce(MPI.IN_PLACE, packed)
            packed /= packed.dtype.type(comm.Get_size())
            for index, start in zip(bucket.members, bucket.starts):
                array = self.arrays[index]
                array[...] = packed[start:start + array.size].reshape(array.shape)


class LateExchange:
    """Averages gradients while the next ones are computed; results are some steps late.

    Args:
        comm: an ``hpccoll.Comm`` with no other collectives in the meantime.
        like: arrays with the shapes and dtypes of the gradients; allocates ``late + 1`` times
            their memory.
        late: steps between a gradient and its use, at least 1.

    Raises:
        ArgumentError: ``late`` is less than 1.
        ShardError: arrays differ between ranks.
    """

    def __init__(self, comm: Any, like: Sequence[numpy.ndarray], late: int = 1):
        if not isinstance(late, int) or late < 1:
            raise ArgumentError("late", f"expected 1 or more, got {late!r}")
        self.comm, self.late = communicator("comm", comm), late
        like = as_list("like", like)
        self._specs = agreed_specs(comm, like, None, str(late))
        self._buckets = plan_buckets(self._specs)
        self._dtypes = [like[bucket.members[0]].dtype for bucket in self._buckets]
        self._free = [self._vectors() for _ in range(late + 1)]
        self._underway: deque[tuple[list[numpy.ndarray], list[Any]]] = deque()
        self._lent: list[numpy.ndarray] | None = None

    def exchange(self, gradients: Sequence[Any]) -> list[numpy.ndarray] | None:
        """Start to average gradients; return the averages of ``late`` steps ago.

        Returns:
            Arrays, valid until the next call; ``None`` in the first ``late`` steps.

        Raises:
            ArgumentError: shapes or dtypes differ from those at the start; nothing is started.
        """
        arrays = [numpy.asarray(gradient) for gradient in gradients]
        if [(one.shape, one.dtype.name) for one in arrays] != [
                (spec.shape, spec.dtype) for spec in self._specs]:
            raise ArgumentError("gradients", "shapes or types have changed since the first step")
        self._reclaim()
        vectors = self._free.pop()
        for bucket, vector in zip(self._buckets, vectors):
            for index, start in zip(bucket.members, bucket.starts):
                vector[start:start + arrays[index].size] = arrays[index].reshape(-1)
        with self.comm.using(iallreduce="auto"):
            requests = [self.comm.Iallreduce(MPI.IN_PLACE, vector) for vector in vectors]
        self._underway.append((vectors, requests))
        return self._pop_oldest() if len(self._underway) > self.late else None

    def finish(self) -> Iterator[list[numpy.ndarray]]:
        """Yield the remaining averages, oldest first; each is valid until the next one."""
        while self._underway:
            self._reclaim()
            yield self._pop_oldest()

    def _vectors(self) -> list[numpy.ndarray]:
        return [numpy.empty(bucket.count, dtype)
                for bucket, dtype in zip(self._buckets, self._dtypes)]

    def _reclaim(self) -> None:
        """Return the arrays of the last result to the free list."""
        if self._lent is not None:
            self._free.append(self._lent)
            self._lent = None

    def _pop_oldest(self) -> list[numpy.ndarray]:
        vectors, requests = self._underway.popleft()
        found: dict[int, numpy.ndarray] = {}
        for bucket, vector, request in zip(self._buckets, vectors, requests):
            request.Wait()
            vector /= vector.dtype.type(self.comm.Get_size())
            for index, start in zip(bucket.members, bucket.starts):
                spec = self._specs[index]
                found[index] = vector[start:start + spec.count].reshape(spec.shape)
        self._lent = vectors
        return [found[index] for index in range(len(self._specs))]


def _nodes(comm: Any) -> list[Sequence[int]]:
    """Return the ranks of each node; all ranks if the layout has no nodes."""
    return comm.layout.groups() if comm.layout.depth > 1 else [range(comm.Get_size())]


def _check(groups: Mapping[int, int | str], nodes: Sequence[Sequence[int]], size: int) -> None:
    """Check that each group consists of groups with a shorter period, up to all ranks."""
    if not groups or min(groups) < 1:
        raise ArgumentError("every", f"expected periods of 1 or more, got {list(groups)}")
    of_nodes = len(nodes[0]) if len({len(ranks) for ranks in nodes}) == 1 else None
    inner = 1
    for period in sorted(groups):
        wanted = groups[period]
        if isinstance(wanted, str) and wanted != NODE:
            raise ArgumentError("every", f"level {wanted!r} does not exist",
                                f"valid groups are {NODE!r}, or a divisor of {size}, such as "
                                "comm.size")
        whole = of_nodes if wanted == NODE else wanted
        # Nodes of different sizes can only contain single ranks, and be contained in all ranks.
        if whole is None and inner == 1:
            continue
        if not isinstance(whole, int) or whole < inner or whole % inner or size % whole:
            raise ArgumentError("every", f"groups of {wanted!r} ranks do not consist of groups of "
                                         f"{inner}, or do not divide all {size}",
                                "every size must divide the next one; the last is the number of "
                                "ranks")
        inner = whole
    if groups[max(groups)] != size and not (groups[max(groups)] == NODE and len(nodes) == 1):
        raise ArgumentError("every", "the longest period does not average over all ranks",
                            f"set its group to {size} ranks")

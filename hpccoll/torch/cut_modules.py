"""Modules whose weights are cut over the ranks, and whole only while they are used: ZeRO 3.

    forward of a module      fetch its parameters --> compute --> release them
    backward                 autograd asks for weights that it had saved --> fetch their unit -->
                             all gradients of the unit have come --> release it
    gradients                copied into the vector of their group --> reduce-scatter --> part

What autograd saves of weights is not kept: hooks on saved tensors put a note in their place, of
which array and which view of it, and get the weights when a node of the backward pass runs. So
weights are fetched only where a derivative needs them, and nothing looks at memory that is gone.
Fetching, prefetching and reducing are those of :mod:`hpccoll.training.shard`.
Source: Rajbhandari et al., "ZeRO", SC 2020; PyTorch's FSDP; DeepSpeed for parameters that a module
takes from another one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy
import torch
from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import ArgumentError, ExchangeError
from hpccoll.torch import absent, operations
from hpccoll.torch.begin import AVERAGE
from hpccoll.torch.flat import HALF, Part, take_over
from hpccoll.torch.processes import ProcessSet
from hpccoll.torch.tensors import dense, tensor_of, values
from hpccoll.training.compress.scheme import Steps
from hpccoll.training.shard.agreement import specs_of
from hpccoll.training.shard.flight import Spares
from hpccoll.training.shard.gradients import Gradients
from hpccoll.training.shard.partition import plan_groups
from hpccoll.training.shard.quantised import ZeroPlusPlus
from hpccoll.training.shard.weights import CutWeights, Fetching
from hpccoll.training.shard.wires import Wires

#: In whose place a parameter has no parameter group: it is cut, and not trained.
FROZEN = -1


class Note(NamedTuple):
    """What stands for a view of weights that autograd has saved.

    Attributes:
        parameter: its number.
        shape, stride, offset: of the view, in elements.
        step: number of the step whose weights these were.
    """

    parameter: int
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    step: int


class Saved(NamedTuple):
    """Another tensor that autograd has saved, and its version then."""

    tensor: torch.Tensor
    version: int


class CutModules:
    """A model whose weights are cut, with those of rank 0; making it is collective.

    Args:
        module: the model; its forward is called by the user.
        groups: parameters that are trained, by parameter group; others of the module must not
            need gradients, and are cut too.
        process_set: the ranks.
        op: ``Average`` or ``Sum``.
        units: modules whose parameters, and those of the modules inside, come and go together; by
            default every module that has parameters of its own is one.
        fetching: when weights come and go.

    Attributes:
        parts: what this rank owns of what is trained.

    Raises:
        ArgumentError: parameters that are not the module's, that are not trained but need
            gradients, or that are not on the CPU; units that are not the module's.
        ExchangeMismatch: ranks have other parameters or options; on all of them.
    """

    def __init__(self, module: torch.nn.Module, groups: Sequence[Sequence[torch.Tensor]],
                 process_set: ProcessSet, op: str, units: Sequence[torch.nn.Module],
                 fetching: Fetching):
        self._module, self._process_set, self._op = module, process_set, op
        names = {each: name for name, each in module.named_parameters()}
        self._names, self._members = list(names.values()), list(names)
        self._classes = [type(each) for each in self._members]
        self._index = {each: index for index, each in enumerate(self._members)}
        kinds = _kinds(names, groups)
        owners = _owners(module, units)
        self._units: list[list[int]] = []
        self._unit_of: dict[int, int] = {}
        self._units_of: dict[torch.nn.Module, list[int]] = {module: []}
        for owner, parameters in owners:
            new = [self._index[each] for each in parameters
                   if self._index[each] not in self._unit_of]
            if new:
                self._unit_of.update(dict.fromkeys(new, len(self._units)))
                self._units.append(new)
            self._units_of[owner] = sorted({self._unit_of[self._index[each]]
                                            for each in parameters})
        arrays = [values(dense(each)) for each in self._members]
        specs = specs_of(arrays, self._names)
        line, rank = process_set.line, process_set.rank()
        line.run(operations.called_alike(
            line.comm, f"ZeroOptimizer of {specs}, units {self._units}, groups {kinds}, {op}, "
                       f"{fetching}"))
        self._groups = plan_groups(specs, process_set.size(), 0, 0, self._units,
                                   fetching.persistent, kinds)
        # Sums keep the promises of the process set, and move on by a thread: where this rank waits
        # for weights, others may wait for its part of a sum before they send theirs.
        self._comm = line.run(operations.call(lambda: Comm(
            MPI.Intracomm.Dup(line.comm), determinism=line.comm.determinism, progress="thread")))
        self._wires = Wires(self._comm, 3, ZeroPlusPlus())
        # What a first call would make of a communicator, which all ranks must do together, is made
        # now: in a backward pass one rank may be in a first sum while another waits for weights.
        line.run(operations.call(lambda: (self._comm.layout, self._wires.gathers.layout)))
        vectors = self._wires.begin(self._groups, arrays,
                                    [group.part(rank) for group in self._groups])
        self._own = [tensor_of(each) for each in vectors]
        # Tensors may look at weights that were released: their memory is not given to others.
        self._weights = CutWeights(rank, specs, self._groups, self._units, vectors,
                                   self._wires.gather, fetching, spares=Spares(0))
        self._trained = [number for number, group in enumerate(self._groups)
                         if kinds[group.bucket.members[0]] != FROZEN]
        trained = [self._groups[number] for number in self._trained]
        self._gradients = Gradients(
            rank, 3, specs, trained, [vectors[number].dtype for number in self._trained],
            self._reduction, zeros=True)
        self.parts = [self._part(group, kinds[group.bucket.members[0]], number)
                      for number, group in zip(self._trained, trained)]
        self._holds = [0] * len(self._units)
        self._present: dict[int, torch.Tensor] = {}
        self._places: dict[int, int] = {}
        self._stack: list[tuple[torch.nn.Module, list[int]]] = []
        self._saving: Any = None
        #: Units that a backward pass has fetched, and the parameters that they wait for.
        self._kept: dict[int, set[int]] = {}
        self._came: set[int] = set()
        self._step, self._order, self._begun = 0, 0, False
        self._hooks = [hook for owner in self._units_of for hook in (
            owner.register_forward_pre_hook(self._enter, prepend=True),
            owner.register_forward_hook(self._leave, always_call=True))]
        for each in self._members:
            absent.take(each, self)

    def _part(self, group: Any, kind: int, number: int) -> Part:
        shard = self._own[number]
        return Part(group, [self._members[index] for index in group.bucket.members],
                    shard.float() if shard.dtype in HALF else shard, kind)

    # -- weights -----------------------------------------------------------------------------
    def need(self, parameter: absent.AbsentParameter) -> None:
        """A module takes a parameter from another one: it stays until that module is done.

        Raises:
            ExchangeError: nobody runs the model now.
        """
        index = self._index[parameter]
        if not self._stack:
            raise ExchangeError(
                f"parameter '{self._names[index]}' is used outside of its model's forward; at "
                "stage 3 its weights are cut over the ranks: use 'with optimizer.gathered():', on "
                "all ranks", (self._names[index],))
        self._hold(self._unit_of[index])
        self._stack[-1][1].append(self._unit_of[index])

    def _hold(self, unit: int) -> None:
        self._holds[unit] += 1
        if self._holds[unit] > 1:
            return
        self._order = zlib.crc32(unit.to_bytes(4, "little"), self._order)
        for index, array in self._weights.fetch(unit).items():
            whole = self._present[index] = tensor_of(array)
            if array.size:
                self._places[whole.untyped_storage().data_ptr()] = index
            absent.give(self._members[index], whole, self._classes[index])

    def _let_go(self, unit: int) -> None:
        self._holds[unit] -= 1
        if self._holds[unit]:
            return
        for index in self._units[unit]:
            whole = self._present.pop(index)
            self._places.pop(whole.untyped_storage().data_ptr(), None)
            absent.take(self._members[index], self)
        self._weights.release(unit)

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        """A module is about to compute."""
        if not self._stack:
            self._drop_kept()
            self._came.clear()
            if not _others_save():
                self._saving = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
                self._saving.__enter__()
        held: list[int] = []
        self._stack.append((module, held))
        for unit in self._units_of[module]:
            self._hold(unit)
            held.append(unit)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """A module has computed, or has failed."""
        if not self._stack or self._stack[-1][0] is not module:
            return  # it failed before it was entered
        for unit in reversed(self._stack.pop()[1]):
            self._let_go(unit)
        if not self._stack and self._saving is not None:
            self._saving.__exit__(None, None, None)
            self._saving = None

    @contextmanager
    def gathered(self, modules: Sequence[torch.nn.Module]) -> Iterator[None]:
        """Whole weights of some modules, or of all; changes inside are taken over; collective."""
        units = sorted({self._unit_of[self._index[each]] for module in modules or [self._module]
                        for each in module.parameters()})
        for unit in units:
            self._hold(unit)
        try:
            yield
            shards = dict(zip(self._trained, self.parts))
            for number, group in enumerate(self._groups):
                mine = self._own[number]
                for index, elements, place in group.pieces(group.part(self._process_set.rank())):
                    if index in self._present:
                        mine[place] = self._members[index].detach().reshape(-1)[elements]
                if number in shards:
                    take_over(shards[number].shard, mine)
        finally:
            for unit in units:
                self._let_go(unit)
        self._renew()

    # -- autograd ----------------------------------------------------------------------------
    def _pack(self, tensor: torch.Tensor) -> Note | Saved:
        """Autograd saves a tensor: of weights it keeps a note."""
        if tensor.layout is torch.strided and tensor.is_cpu and tensor.numel():
            index = self._places.get(tensor.untyped_storage().data_ptr())
            if index is not None and tensor.dtype == self._members[index].dtype:
                return Note(index, tensor.shape, tensor.stride(), tensor.storage_offset(),
                            self._step)
        return Saved(tensor, tensor._version)

    def _unpack(self, packed: Note | Saved) -> torch.Tensor:
        """A node of the backward pass runs.

        Raises:
            ExchangeError: weights have changed since the forward pass.
            RuntimeError: a tensor was changed in place, as autograd itself says it.
        """
        if isinstance(packed, Saved):
            if packed.tensor._version != packed.version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: {tuple(packed.tensor.shape)} is at version "
                    f"{packed.tensor._version}; expected version {packed.version} instead")
            return packed.tensor
        if packed.step != self._step:
            name = self._names[packed.parameter]
            raise ExchangeError(f"parameter '{name}' has changed since the forward pass: call "
                                "backward() before step()", (name,))
        unit = self._unit_of[packed.parameter]
        if unit not in self._kept:
            self._drop_kept(waiting=True)
            self._hold(unit)
            self._kept[unit] = {index for index in self._units[unit] if index not in self._came
                                and self._members[index].requires_grad}
        whole = self._present[packed.parameter]
        return whole.as_strided(packed.shape, packed.stride, packed.offset)

    def _drop_kept(self, waiting: bool = False) -> None:
        """Release what a backward pass has fetched; or only what no gradient will release."""
        for unit in [unit for unit, awaited in self._kept.items() if not (waiting and awaited)]:
            del self._kept[unit]
            self._let_go(unit)

    def arrived(self, parameter: torch.Tensor) -> None:
        """A backward pass has come to the end of a parameter."""
        index = self._index[parameter]
        self._came.add(index)
        awaited = self._kept.get(self._unit_of[index], set())
        awaited.discard(index)
        if not awaited and self._kept.pop(self._unit_of[index], None) is not None:
            self._let_go(self._unit_of[index])

    def order(self) -> int:
        """A number that tells which units were fetched, in which order, since it was asked for."""
        order, self._order = self._order, 0
        return order

    # -- gradients ---------------------------------------------------------------------------
    @property
    def under_way(self) -> bool:
        """Tell whether gradients are being reduced."""
        return self._begun

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of the weights and of the gradients that are held."""
        left = sum(each.grad.nbytes for each in self._members if each.grad is not None)
        return self._weights.nbytes, self._gradients.nbytes + left

    def ready(self, parameter: torch.Tensor) -> None:
        """The gradient of a parameter is whole; its group sets off when those of all are."""
        self._begun = True
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            raise ExchangeError(f"parameter '{self._names[self._index[parameter]]}' has lost its "
                                "gradient in the backward pass: leave grad as it is")
        self._gradients.ready(self._index[parameter], values(dense(gradient)))
        self._weights.poll()

    def _reduction(self, trained: int, vector: numpy.ndarray) -> Steps:
        number = self._trained[trained]
        if self._op == AVERAGE and tensor_of(vector).dtype in HALF:
            tensor_of(vector).div_(self._process_set.size())  # before, or sums might overflow
        return self._wires.reduce(self._groups[number], vector)

    def reduced(self) -> list[torch.Tensor]:
        """Wait for this rank's part of the gradients; those that did not come count as zeros."""
        for part in self.parts:
            for each in part.members:
                if each.grad is not None:
                    self.ready(each)
        self._drop_kept()
        self._gradients.finish()
        self._gradients.clear()
        self._begun = False
        found = []
        for trained, part in enumerate(self.parts):
            reduced = tensor_of(self._gradients.part(trained))
            half = reduced.dtype in HALF
            reduced = reduced.to(part.shard.dtype)
            if self._op == AVERAGE and not half:
                reduced /= self._process_set.size()
            found.append(reduced)
        return found

    def publish(self) -> None:
        """Let the next passes see the weights that this rank has changed; collective."""
        for number, part in zip(self._trained, self.parts):
            if part.members[0].dtype in HALF:
                self._own[number].copy_(part.shard)
        self._renew()

    def _renew(self) -> None:
        """Forget whole weights; those that stay whole are gathered again."""
        self._drop_kept()
        self._weights.expire()
        for number in range(len(self._groups)):
            self._weights.publish(number)
        self._weights.finish()
        self._step += 1

    def close(self) -> None:
        """Free the communicators; the weights stay cut; collective."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._wires.free()
        self._comm.Free()


def _others_save() -> bool:
    """Tell whether hooks on saved tensors are in force, as those of activation checkpoints.

    They keep what they get, or compute it anew, and count: none of ours may hide tensors from them.
    """
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(False) is not None


def _kinds(names: dict[torch.Tensor, str], groups: Sequence[Sequence[torch.Tensor]]) -> list[int]:
    """The parameter group of every parameter of the module."""
    found = {each: kind for kind, members in enumerate(groups) for each in members}
    strangers = sum(each not in names for each in found)
    if strangers:
        raise ArgumentError("params", f"{strangers} of them are not parameters of the module",
                            "give the module that they belong to")
    left = [name for each, name in names.items() if each.requires_grad and each not in found]
    if left:
        raise ArgumentError("params", f"lacks {', '.join(left[:3])}"
                            + f" and {len(left) - 3} more" * (len(left) > 3)
                            + ", which the module has and which need gradients",
                            "give all of them, or call requires_grad_(False)")
    elsewhere = [name for each, name in names.items() if not each.is_cpu]
    if elsewhere:
        raise ArgumentError("stage", f"3 cuts weights in the CPU's memory; '{elsewhere[0]}' is not "
                            "there", "use PyTorch's fully_shard on the group 'hpccoll'")
    return [found.get(each, FROZEN) for each in names]


def _owners(module: torch.nn.Module, units: Sequence[torch.nn.Module]
            ) -> list[tuple[torch.nn.Module, list[torch.Tensor]]]:
    """Modules whose parameters are fetched together, with these."""
    strangers = [each for each in units if all(each is not own for own in module.modules())]
    if strangers:
        raise ArgumentError("units", f"{type(strangers[0]).__name__} is not inside the module")
    found: dict[torch.nn.Module, list[torch.Tensor]] = {}

    def walk(each: torch.nn.Module) -> None:
        whole = any(each is unit for unit in units)
        own = list(each.parameters(recurse=whole))
        if own:
            found.setdefault(each, own)
        for child in () if whole else each.children():
            walk(child)

    walk(module)
    return list(found.items())

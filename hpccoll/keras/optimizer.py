"""Wrapper for Keras optimizers that averages gradients over ranks, on each backend.

    jax            inside the compiled step: hpccoll.jax
    torch          on the host: hpccoll.training.Exchange
    tensorflow     Exchange inside tf.numpy_function, because the step may be a graph
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError, FrameworkError
from hpccoll.training.compress import Scheme
from hpccoll.training.exchange import Exchange
from hpccoll.training.framework import communicator

#: Valid reductions of gradients.
OPS = "average", "sum"
#: Name of the operation, which TensorFlow's error shows where XLA compiles the step.
NO_XLA = "hpccoll_requires_jit_compile_False"
#: Dtype policy with loss scaling in Keras.
SCALED = "mixed_float16"


def DistributedOptimizer(optimizer: Any, *, comm: MPI.Intracomm | None = None,
                         op: str = "average", compress: str | Scheme = "none") -> Any:
    """Wrap an optimizer so that all ranks take the same steps.

    The result is an instance of a subclass of the optimizer's class, with its configuration and, if
    it was built, its state. It is saved as the wrapped optimizer: after loading a model, wrap the
    plain optimizer and compile again.

    With the policy ``mixed_float16`` the loss is scaled, and steps with infinite gradients are
    skipped. All ranks must skip the same steps, so gradients are averaged before that test: this
    function applies ``LossScaleOptimizer`` first, which ``compile`` would apply later.

    Args:
        optimizer: a ``keras.optimizers.Optimizer``.
        comm: the ranks.
        op: ``"average"`` or ``"sum"``.
        compress: compression scheme.

    Raises:
        ArgumentTypeError: not a Keras optimizer, or already wrapped.
        ArgumentError: unknown ``op`` or scheme.
        FrameworkError: the backend of Keras has no gradients.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ArgumentTypeError("optimizer", f"expected a Keras optimizer, got {optimizer!r}")
    if isinstance(optimizer, Averaging):
        raise ArgumentTypeError("optimizer", "is already wrapped", "wrap it once")
    if op not in OPS:
        raise ArgumentError.unknown_word("op", op, OPS)
    scaling = keras.optimizers.LossScaleOptimizer
    if keras.config.dtype_policy().name == SCALED and not isinstance(optimizer, scaling):
        optimizer = scaling(optimizer)
    plain: Any = type(optimizer)
    mixin = AveragingOutside if isinstance(optimizer, scaling) else Averaging
    # Name and module of the class that is saved and loaded.
    averaging: Any = type(plain.__name__, (mixin, plain), {
        name: getattr(plain, name) for name in ("__module__", "__qualname__", "__doc__")})
    wrapped = averaging.from_config(optimizer.get_config())
    wrapped.means = means(communicator(comm), op, compress)
    if optimizer.built:
        wrapped.build(optimizer._trainable_variables)
        for ours, theirs in zip(wrapped.variables, optimizer.variables):
            ours.assign(theirs)
    return wrapped


class Averaging:
    """Mixin that averages gradients before they are applied."""

    means: Any
    _trainable_variables: Any

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Average gradients over the ranks, and update the variables."""
        super().apply(self._mean(grads, trainable_variables),  # type: ignore[misc]
                      trainable_variables)

    def _mean(self, grads: Sequence[Any], variables: Any) -> list[Any]:
        variables = list(self._trainable_variables if variables is None else variables)
        grads = list(grads)
        present = [index for index, gradient in enumerate(grads) if gradient is not None]
        names = [f"{index} {getattr(variables[index], 'path', '')}" for index in present]
        found = self.means(names, [grads[index] for index in present]) if present else []
        for index, mean in zip(present, found):
            grads[index] = mean
        return grads


class AveragingOutside(Averaging):
    """Mixin for ``LossScaleOptimizer``, which has its own stateless step."""

    def stateless_apply(self, optimizer_variables: Any, grads: Sequence[Any],
                        trainable_variables: Any) -> Any:
        """Average gradients over the ranks, and return updated variables."""
        return super().stateless_apply(  # type: ignore[misc]
            optimizer_variables, self._mean(grads, None), trainable_variables)


# -- the mean of gradients on each backend ---------------------------------------------------
#: Function from names and gradients to their means.
Means = Callable[[Sequence[str], Sequence[Any]], list[Any]]


def means(comm: Any, op: str, compress: Any) -> Means:
    """Return a function that averages gradients on the backend of Keras."""
    backend = keras.config.backend()
    if backend not in BACKENDS:
        raise FrameworkError("keras", f"backend '{backend}' is not supported: set KERAS_BACKEND to "
                                      f"one of {', '.join(BACKENDS)}", extra="keras,jax")
    return BACKENDS[backend](comm, op, compress)


def _in_jax(comm: Any, op: str, compress: Any) -> Means:
    from hpccoll.jax import Averager
    average = Averager(comm, op=op, compress=compress)

    def run(names: Sequence[str], gradients: Sequence[Any]) -> list[Any]:
        return list(average(OrderedDict(zip(names, gradients))).values())

    return run


def _on_host(comm: Any, op: str, compress: Any) -> Callable[..., list[Any]]:
    exchanges: dict[tuple[str, ...], Exchange] = {}

    def run(names: Sequence[str], arrays: Sequence[numpy.ndarray]) -> list[Any]:
        key = tuple(names)
        if key not in exchanges:
            exchanges[key] = Exchange(comm, arrays, names=key, op=op, compress=compress)
        return exchanges[key].reduce(arrays)

    return run


def _in_torch(comm: Any, op: str, compress: Any) -> Means:
    on_host = _on_host(comm, op, compress)

    def run(names: Sequence[str], gradients: Sequence[Any]) -> list[Any]:
        # Copies: autograd or a buffer of zeros may share the memory of a gradient.
        arrays = [numpy.array(keras.ops.convert_to_numpy(gradient)) for gradient in gradients]
        return [keras.ops.convert_to_tensor(
            mean, dtype=keras.backend.standardize_dtype(gradient.dtype))
            for mean, gradient in zip(on_host(names, arrays), gradients)]

    return run


def _in_tensorflow(comm: Any, op: str, compress: Any) -> Means:
    import tensorflow
    on_host = _on_host(comm, op, compress)

    def run(names: Sequence[str], gradients: Sequence[Any]) -> list[Any]:
        # Convert slices of embeddings to whole gradients.
        dense = [tensorflow.convert_to_tensor(gradient) for gradient in gradients]
        found = tensorflow.numpy_function(
            lambda *arrays: on_host(names, [numpy.array(array) for array in arrays]), dense,
            [gradient.dtype for gradient in dense], name=NO_XLA)
        for mean, gradient in zip(found, dense):
            mean.set_shape(gradient.shape)
        return list(found)

    return run


#: Averaging function of each backend with gradients.
BACKENDS: dict[str, Callable[[Any, str, Any], Means]] = {
    "jax": _in_jax, "torch": _in_torch, "tensorflow": _in_tensorflow}

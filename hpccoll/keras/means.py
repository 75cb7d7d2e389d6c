"""The mean of gradients over ranks, on each backend of Keras.

    jax            inside of the compiled step: hpccoll.jax
    torch          on the host: hpccoll.training.Exchange
    tensorflow     the same inside of tf.numpy_function, as the step may be a graph
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy

from hpccoll.errors import FrameworkError
from hpccoll.training.exchange import Exchange

#: Takes names and gradients, and returns their means.
Means = Callable[[Sequence[str], Sequence[Any]], list[Any]]


def means(comm: Any, op: str, compress: Any) -> Means:
    """What averages gradients on the backend that Keras runs on.

    Args:
        comm: the ranks.
        op: ``"average"`` or ``"sum"``.
        compress: how gradients travel.

    Raises:
        FrameworkError: Keras runs on a backend without gradients.
    """
    backend = keras.config.backend()
    if backend not in BACKENDS:
        raise FrameworkError("keras", f"its backend '{backend}' cannot train: set KERAS_BACKEND to "
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
        # Copies: a gradient may lie in memory that autograd or a buffer of zeros shares.
        arrays = [numpy.array(keras.ops.convert_to_numpy(gradient)) for gradient in gradients]
        return [keras.ops.convert_to_tensor(
            mean, dtype=keras.backend.standardize_dtype(gradient.dtype))
            for mean, gradient in zip(on_host(names, arrays), gradients)]

    return run


def _in_tensorflow(comm: Any, op: str, compress: Any) -> Means:
    import tensorflow
    on_host = _on_host(comm, op, compress)

    def run(names: Sequence[str], gradients: Sequence[Any]) -> list[Any]:
        # Slices of embeddings become whole gradients.
        dense = [tensorflow.convert_to_tensor(gradient) for gradient in gradients]
        found = tensorflow.numpy_function(
            lambda *arrays: on_host(names, [numpy.array(array) for array in arrays]), dense,
            [gradient.dtype for gradient in dense])
        for mean, gradient in zip(found, dense):
            mean.set_shape(gradient.shape)
        return list(found)

    return run


#: How gradients are averaged on each backend that has them.
BACKENDS: dict[str, Callable[[Any, str, Any], Means]] = {
    "jax": _in_jax, "torch": _in_torch, "tensorflow": _in_tensorflow}

"""Models by name, with times from their floating-point operations; those of the user by file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from hpccoll.errors import ArgumentError, did_you_mean
from hpccoll.training.buckets import ArraySpec
from step_simulator.architectures import Layer, resnet50, vgg16
from step_simulator.model import StepModel, from_profile, read
from step_simulator.transformers import bert_large, gpt2_xl

#: Floating-point operations per second that a rank sustains, where nothing else is said: a third
#: of what an NVIDIA A100 can do in bfloat16 (data sheet: 312e12), an assumption for all models.
FLOPS = 100e12


class Known(NamedTuple):
    """A model that comes along: its layers, samples of a rank's step, one line about it."""

    layers: Callable[[], Iterable[Layer]]
    samples: int
    about: str


MODELS = {
    "resnet50": Known(resnet50, 64, "ResNet-50 v1.5, images of 224 x 224"),
    "vgg16": Known(vgg16, 64, "VGG-16, images of 224 x 224"),
    "bert-large": Known(bert_large, 8, "BERT-large with both heads, 512 words"),
    "gpt2-xl": Known(gpt2_xl, 4, "GPT-2 XL, 1,024 words"),
}


def find(model: str | os.PathLike[str] | Mapping[str, Any] | StepModel, samples: int = 0,
         flops: float = 0.0) -> StepModel:
    """Look a model up by name, read its file, or take a profile as it is.

    Args:
        model: a name of :data:`MODELS`, a file, what ``exchange.profile()`` returned, or a model.
        samples: of a rank's step, for those that come along; by default their own.
        flops: operations per second of a rank, for those that come along; by default
            :data:`FLOPS`.

    Raises:
        ArgumentError: neither a name nor a file, a file that does not describe a step, or
            ``samples`` and ``flops`` of a model that was recorded.
    """
    if isinstance(model, str) and model in MODELS:
        layers, usual, _ = MODELS[model]
        return from_layers(model, layers(), samples or usual, flops or FLOPS)
    if samples or flops:
        raise ArgumentError("samples" if samples else "flops", "is for models that come along",
                            f"choose from {', '.join(MODELS)}; others have recorded times")
    if isinstance(model, StepModel):
        return model
    if isinstance(model, Mapping):
        return from_profile(model)
    try:
        return read(model)
    except ArgumentError as error:
        if os.path.exists(model):
            raise
        raise ArgumentError("model", f"{os.fspath(model)!r} is neither a file nor known",
                            f"{did_you_mean(os.fspath(model), MODELS)} choose from "
                            f"{', '.join(MODELS)}, or record one with "
                            "exchange.profile()".lstrip()) from error


def from_layers(name: str, layers: Iterable[Layer], samples: int, flops: float) -> StepModel:
    """Times of layers: the backward pass takes twice the operations of the forward pass.

    A layer's arrays are ready when its backward pass is over.
    """
    layers = tuple(layers)
    forward = sum(layer.flops for layer in layers) * samples / flops
    arrays, ready, now = [], [], forward
    for layer in reversed(layers):
        now += 2 * layer.flops * samples / flops
        for array, shape in reversed(layer.arrays):
            arrays.append(ArraySpec(f"{layer.name}.{array}", shape))
            ready.append(now)
    return StepModel(
        name, tuple(reversed(arrays)), tuple(reversed(ready)), max(now, *ready), forward,
        samples=samples, source=f"{sum(layer.flops for layer in layers) / 1e9:.4g} GFLOP forward "
        f"a sample, twice that backward, {samples} samples, at {flops / 1e12:g} TFLOP/s (assumed)")

"""Layers of well-known convolutional networks, in the order of their forward pass.

Shapes and order are those of ``named_parameters()`` in torchvision, so that the plan of buckets is
that of a real run. Floating-point operations count a multiplication and an addition as two;
normalisation, activations and pooling are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

#: Pixels of an image's side, and classes: those of ImageNet.
SIDE, CLASSES = 224, 1000


class Layer(NamedTuple):
    """A layer.

    Attributes:
        name: before the names of its arrays.
        arrays: their names and shapes.
        flops: of the forward pass, for one sample.
    """

    name: str
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    flops: float


def convolution(name: str, inputs: int, outputs: int, kernel: int, side: int,
                bias: bool = False) -> Layer:
    """A convolution whose output has ``side`` x ``side`` pixels."""
    weight = outputs, inputs, kernel, kernel
    return Layer(name, (("weight", weight), *([("bias", (outputs,))] if bias else [])),
                 2.0 * inputs * outputs * kernel * kernel * side * side)


def normalisation(name: str, features: int) -> Layer:
    """A batch or layer normalisation."""
    return Layer(name, (("weight", (features,)), ("bias", (features,))), 0.0)


def linear(name: str, inputs: int, outputs: int, rows: int = 1) -> Layer:
    """A dense layer applied to ``rows`` vectors of a sample."""
    return Layer(name, (("weight", (outputs, inputs)), ("bias", (outputs,))),
                 2.0 * inputs * outputs * rows)


def resnet50() -> Iterator[Layer]:
    """ResNet-50 v1.5: He et al., Deep Residual Learning, CVPR 2016; stride in the 3 x 3.

    25,557,032 parameters, 8.2 GFLOP forward.
    """
    yield convolution("conv1", 3, 64, 7, SIDE // 2)
    yield normalisation("bn1", 64)
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width, after = 64 << stage, SIDE // 4 >> stage
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            # The first block of every stage but the first halves the picture in its 3 x 3.
            before = after * 2 if stage and not block else after
            for number, (ins, outs, kernel, side) in enumerate((
                    (inputs, width, 1, before), (width, width, 3, after),
                    (width, 4 * width, 1, after)), 1):
                yield convolution(f"{name}.conv{number}", ins, outs, kernel, side)
                yield normalisation(f"{name}.bn{number}", outs)
            if not block:
                yield convolution(f"{name}.downsample.0", inputs, 4 * width, 1, after)
                yield normalisation(f"{name}.downsample.1", 4 * width)
            inputs = 4 * width
    yield linear("fc", inputs, CLASSES)


def vgg16() -> Iterator[Layer]:
    """VGG-16, configuration D: Simonyan and Zisserman, ICLR 2015.

    138,357,544 parameters, 31 GFLOP forward; most parameters in the first dense layer.
    """
    inputs, place, side = 3, 0, SIDE
    for count, width in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(count):
            yield convolution(f"features.{place}", inputs, width, 3, side, bias=True)
            inputs, place = width, place + 2
        place, side = place + 1, side // 2
    yield linear("classifier.0", inputs * side * side, 4096)
    yield linear("classifier.3", 4096, 4096)
    yield linear("classifier.6", 4096, CLASSES)

"""Schemes on ranks that are threads: what they are given, what comes out, what stays behind."""

from typing import Any, NamedTuple

import numpy

from hpccoll.training import compress
from support.threads import run_ranks

#: Every scheme in forms that matter, by its text; small blocks, so that small buckets have several.
FORMS = [
    "none", "fp16", "bf16", "int8", "int8:block=32",
    "onebit", "onebit:block=32", "onebit:block=64,scale=l1",
    "dithering:block=64", "dithering:kind=natural,block=32", "dithering:bits=8,norm=l2",
    "dithering:bits=2,block=32",
    "topk:density=0.05", "topk:density=0.05,method=sampled", "topk:density=0.05,momentum=0.5",
    "topk:density=0.02,momentum=0.5,masking=no,warmup=5",
    "randomk:density=0.2", "randomk:density=0.1,warmup=4",
    "csc:density=0.3,chunk=8", "csc:density=0.2,chunk=16,momentum=0.5",
    "csc:density=0.2,chunk=5,momentum=0.5,masking=no,warmup=5",
    "powersgd:dense_steps=0", "powersgd:rank=1,dense_steps=3",
    "powersgd:warm_start=no,rate=1.2,dense_steps=2",
]
#: Those that keep what they do not send.
FEEDBACK = [one for one in FORMS if one.startswith(("onebit", "topk", "randomk", "csc", "power"))]
#: Those of them that round nothing.
SELECTING = [one for one in FEEDBACK if one.startswith(("topk", "randomk", "csc"))]
RANKS = [1, 2, 3, 5, 7, 8]


class Ran(NamedTuple):
    """What one rank saw of some steps."""

    outs: list
    given: numpy.ndarray
    residual: numpy.ndarray
    sent: list
    expected: list
    reduction: Any


def shapes_of(count):
    """Arrays of so many elements together: matrices of several sizes where there is room."""
    shapes = []
    for shape in ((16, 20), (3,), (30, 7), (2, 2)):
        if count >= numpy.prod(shape):
            shapes.append(shape)
            count -= int(numpy.prod(shape))
    return [*shapes, (count,)]


def drifting(rank, step, count):
    """Whole numbers that drift, others on every rank."""
    random = numpy.random.default_rng([rank, step])
    drift = numpy.arange(count) % 11 - 5 + numpy.sin(step / 9) * 4
    return numpy.rint(drift + random.normal(0, 8, count)) * 840  # divisible by 1 ... 8


def run(form, size, count, steps, inputs=drifting, dtype="f8", shapes=None, state=None,
        reduction=None):
    """Make steps on ranks; a list of :class:`Ran`, by rank."""
    scheme = compress.parse(form)
    shapes = shapes_of(count) if shapes is None else shapes

    def work(comm):
        mine = (reduction or scheme.start)(comm, shapes)
        if state is not None:
            mine.load(state[comm.rank])
        outs, sent, expected, given = [], [], [], numpy.zeros(count)
        momentum = getattr(scheme, "momentum", 0)
        for step in range(steps):
            values = inputs(comm.rank, step, count).astype(dtype)
            given += values + momentum * mine.vectors.get("velocity", 0)
            expected.append(mine.wire_bytes())
            before = comm.sent_bytes
            compress.finish(mine.reduce(values))
            sent.append(comm.sent_bytes - before)
            outs.append(values)
        held = mine.residual()
        held = numpy.zeros(count) if held is None else held.astype("f8")
        return Ran(outs, given, held, sent, expected, mine)

    return run_ranks(size, work)

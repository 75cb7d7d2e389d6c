"""Every scheme trains: handwritten digits to 97 %, within a point of no compression."""

from functools import cache

import pytest
from unit.training.compress import digits

from hpccoll.training import compress
from hpccoll.training.optimizers import Adam, OneBitAdam, ZeroOneAdam
from support.threads import run_ranks

pytest.importorskip("sklearn")
pytestmark = pytest.mark.slow
STEPS, RATE = 300, 0.5
SCHEMES = ["fp16", "bf16", "int8", "onebit", "onebit:scale=l1", "dithering",
           "dithering:kind=natural", "topk", "topk:momentum=0.9,warmup=30,method=sampled",
           "randomk", "csc:chunk=64", "csc:chunk=16,density=0.2,momentum=0.9,warmup=30",
           "powersgd"]


@cache
def accuracy(form, size=2):
    scheme = compress.parse(form)

    def work(comm):
        mine = scheme.start(comm, digits.SHAPES)

        def step(number, parameters, gradients):
            compress.finish(mine.reduce(gradients))
            parameters -= RATE * (1 - number / STEPS) * gradients

        return digits.train(comm, step, STEPS)

    return run_ranks(size, work)[0]


def test_no_compression_reads_digits():
    assert accuracy("none") >= 0.97 and accuracy("none", 3) >= 0.97


@pytest.mark.long(every=4)
@pytest.mark.parametrize("form", SCHEMES)
def test_a_scheme_reads_digits_as_well(form):
    assert accuracy(form) >= accuracy("none") - 0.01


def test_all_schemes_are_here():
    assert {form.partition(":")[0] for form in SCHEMES} | {"none"} == set(compress.SCHEMES)


@cache
def adam(name):
    def work(comm):
        if name == "adam":
            optimizer = Adam(rate=0.01, epsilon=1e-3)
            state = optimizer.start(digits.COUNT)
            mine = compress.parse("none").start(comm, digits.SHAPES)

            def step(number, parameters, gradients):
                compress.finish(mine.reduce(gradients))
                optimizer.step(parameters, gradients, state, number + 1)
        else:
            # The pixels at the rim are hardly ever set: with the usual epsilon, noise wins there.
            settings = (
                OneBitAdam(rate=0.01, epsilon=1e-3, freeze_step=60) if name == "1-bit" else
                ZeroOneAdam(rate=0.01, epsilon=1e-3, freeze_step=60, local_doubling=60,
                            most_local=4))
            run = settings.start(comm, digits.COUNT)

            def step(number, parameters, gradients):
                compress.finish(run.step(parameters, gradients))
        return digits.train(comm, step, STEPS)

    return run_ranks(2, work)[0]


@pytest.mark.parametrize("name", ["1-bit", "0/1"])
def test_compressed_adam_reads_digits_as_well(name):
    assert adam("adam") >= 0.97 and adam(name) >= adam("adam") - 0.01

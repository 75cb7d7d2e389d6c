"""Pipelines: stages hand on what they must, in an order that keeps few microbatches."""

import numpy
import pytest

from hpccoll.errors import ArgumentError
from hpccoll.training.groups.pipeline import Pipeline, one_forward_one_backward
from support.threads import run_ranks


@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("microbatches", [0, 1, 2, 5, 11])
def test_a_stage_keeps_few_microbatches(stages, microbatches):
    for stage in range(stages):
        held, most, done = set(), 0, []
        for what, number in one_forward_one_backward(stage, stages, microbatches):
            if what == "forward":
                held.add(number)
            else:
                held.remove(number)
                done.append(number)
            most = max(most, len(held))
        assert done == list(range(microbatches)) and not held
        assert most == min(stages - stage, microbatches)


def test_ends_have_one_neighbour():
    def function(comm):
        stage = Pipeline(comm)
        if stage.is_first:
            for call in stage.receive_activations, stage.send_gradients:
                with pytest.raises(ArgumentError, match="stage 0.*2"):
                    call(numpy.zeros(1))
        if stage.is_last:
            for call in stage.send_activations, stage.receive_gradients:
                with pytest.raises(ArgumentError, match="stage 1.*2"):
                    call(numpy.zeros(1))

    run_ranks(2, function)


def test_memory_that_cannot_be_received_into():
    def function(comm):
        stage, fixed = Pipeline(comm), numpy.zeros(2)
        fixed.flags.writeable = False
        if stage.is_last:
            for array in fixed, numpy.zeros((2, 2))[:, 0]:
                with pytest.raises(ArgumentError, match="read-only.*contiguous"):
                    stage.receive_activations(array)

    run_ranks(2, function)

"""Pipelines: stages hand on what they must, in an order that keeps few microbatches."""

import numpy
import pytest

from hpccoll.errors import ArgumentError
from hpccoll.training.groups.pipeline import Pipeline, one_forward_one_backward
from support.threads import run_ranks


def train(comm, microbatches):
    """A pipeline in which stage r multiplies by r + 2; what each stage has seen and made."""
    stage, factor, waiting, inputs, results = Pipeline(comm), comm.rank + 2, [], {}, {}
    for what, number in stage.steps(microbatches):
        if what == "forward":
            inputs[number] = numpy.full(3, number + 1.0, "f4")
            if not stage.is_first:
                stage.receive_activations(inputs[number]).wait()
            if not stage.is_last:
                waiting.append(stage.send_activations(inputs[number] * factor))
        else:
            gradient = numpy.ones(3, "f4")
            if not stage.is_last:
                stage.receive_gradients(gradient).wait()
            if not stage.is_first:
                waiting.append(stage.send_gradients(gradient * factor))
            results[number] = float(inputs[number][0]), float(gradient[0])
    for passage in waiting:
        passage.wait()
    return results


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("microbatches", [0, 1, 4, 7])
def test_every_microbatch_goes_forward_and_back(size, microbatches):
    for rank, results in enumerate(run_ranks(size, lambda comm: train(comm, microbatches))):
        before = numpy.prod([2.0 + one for one in range(rank)])
        after = numpy.prod([2.0 + one for one in range(rank + 1, size)])
        assert results == {number: ((number + 1) * before, after)
                           for number in range(microbatches)}


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

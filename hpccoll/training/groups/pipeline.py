"""Pipeline stages: send activations to the next stage, gradients to the previous one.

Messages between two stages arrive in microbatch order. Only ``wait`` blocks: a stage posts its
receives before it computes, and both directions are in flight concurrently.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpccoll.errors import ArgumentError
from hpccoll.training.groups.neighbours import MessageRequest, receive, send

#: Tags of activations and of their gradients.
FORWARD_TAG, BACKWARD_TAG = 73, 74
FORWARD, BACKWARD = "forward", "backward"


class Pipeline:
    """One stage and its neighbours.

    Args:
        comm: the stages in order, such as ``mesh.pp``.

    Attributes:
        stage, stages: index of this stage, and number of stages.
        is_first, is_last: True if there is no previous or no next stage.
    """

    def __init__(self, comm: Any):
        self.comm, self.stage, self.stages = comm, comm.Get_rank(), comm.Get_size()
        self.is_first, self.is_last = self.stage == 0, self.stage == self.stages - 1

    def send_activations(self, array: Any) -> MessageRequest:
        """Send the activations of a microbatch to the next stage.

        The array must not change before ``wait`` of the result.

        Raises:
            ArgumentError: this is the last stage.
        """
        return send(self.comm, array, self._neighbour(1), FORWARD_TAG, "activations")

    def receive_activations(self, into: Any) -> MessageRequest:
        """Receive the input of a microbatch from the previous stage; ``wait`` before reading it.

        Raises:
            ArgumentError: this is the first stage, or the array is not writable.
        """
        return receive(self.comm, into, self._neighbour(-1), FORWARD_TAG, "activations")

    def send_gradients(self, array: Any) -> MessageRequest:
        """Send the gradient of a microbatch's input to the previous stage.

        Raises:
            ArgumentError: this is the first stage.
        """
        return send(self.comm, array, self._neighbour(-1), BACKWARD_TAG, "gradients")

    def receive_gradients(self, into: Any) -> MessageRequest:
        """Receive the gradient of a microbatch's result from the next stage.

        Raises:
            ArgumentError: this is the last stage, or the array is not writable.
        """
        return receive(self.comm, into, self._neighbour(1), BACKWARD_TAG, "gradients")

    def steps(self, microbatches: int) -> Iterator[tuple[str, int]]:
        """Return the schedule of this stage; see :func:`one_forward_one_backward`."""
        return one_forward_one_backward(self.stage, self.stages, microbatches)

    def _neighbour(self, distance: int) -> int:
        if not 0 <= self.stage + distance < self.stages:
            raise ArgumentError("stage", f"stage {self.stage} of {self.stages} has no stage "
                                         f"{'after' if distance > 0 else 'before'} it",
                                "check is_first and is_last")
        return self.stage + distance


def one_forward_one_backward(stage: int, stages: int, microbatches: int
                             ) -> Iterator[tuple[str, int]]:
    """Yield the 1F1B schedule of a stage, with at most ``stages - stage`` live microbatches.

    Source: PipeDream-Flush (Narayanan et al., ICML 2021), 1F1B. Its bubble is
    (stages - 1) / (microbatches + stages - 1) of the step.

    Yields:
        ``"forward"`` or ``"backward"``, and the index of the microbatch.

    >>> " ".join(f"{what[0]}{number}" for what, number in one_forward_one_backward(0, 2, 3))
    'f0 f1 b0 f2 b1 b2'
    """
    warm = min(stages - stage - 1, microbatches)
    for number in range(warm):
        yield FORWARD, number
    for number in range(warm, microbatches):
        yield FORWARD, number
        yield BACKWARD, number - warm
    for number in range(microbatches - warm, microbatches):
        yield BACKWARD, number

"""What a hook refuses before anything is sent."""

import pytest

from hpccoll.errors import ArgumentError

pytest.importorskip("torch")
hooks = pytest.importorskip("hpccoll.torch.hooks")


def test_a_state_of_another_hook():
    with pytest.raises(ArgumentError, match="CompressState"):
        hooks.compress_hook({}, None)


def test_a_bucket_of_an_old_torch():
    class Bucket:
        """It has a buffer, and nothing else."""

    state = hooks.CompressState("bf16")
    with pytest.raises(ArgumentError, match="too old"):
        hooks.compress_hook(state, Bucket())
    state.close()

"""What is worth trying."""

import pytest

from hpccoll.algorithms import ALGORITHMS
from hpccoll.tune.cost_model import plausible_algorithms


@pytest.mark.parametrize("size, nbytes, names, missing", [
    (2, 8, ("recursive_doubling", "ring", "linear"), ("leader",)),
    (1024, 8, ("recursive_doubling",), ("ring", "leader")),
    (64, 64 << 20, ("ring", "rabenseifner"), ("linear",))])
def test_hopeless_algorithms_are_not_tried(size, nbytes, names, missing):
    found = plausible_algorithms("allreduce", size, nbytes)
    assert set(names) <= set(found) and not set(missing) & set(found)


def test_something_is_left_to_try():
    for collective in ALGORITHMS:
        for size in (2, 3, 8, 100):
            assert plausible_algorithms(collective, size, 0) and plausible_algorithms(collective,
                                                                                      size, 1 << 20)
    assert "leader" in plausible_algorithms("allreduce", 4, 8, hierarchical=True)
    for collective in ("allreduce", "allgather", "reduce_scatter"):
        found = plausible_algorithms(collective, 64, 1 << 20, hierarchical=True)
        assert found.index("rails") < min(map(found.index, ("circulant", "pat", "swing")))

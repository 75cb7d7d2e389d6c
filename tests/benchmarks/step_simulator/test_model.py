"""Models from files and profiles: what is read, and what is refused."""


import pytest
from step_simulator.model import StepModel, from_profile, read

from hpccoll.errors import ArgumentError
from hpccoll.training.buckets import ArraySpec

ARRAYS = [{"name": "a", "shape": [2, 3], "dtype": "float32", "itemsize": 4},
          {"name": "b", "shape": [], "dtype": "bfloat16", "itemsize": 2}]
PROFILE = {"arrays": ARRAYS, "ready_seconds": [0.5, 0.25], "backward_seconds": 0.75}


def test_what_an_exchange_recorded():
    model = from_profile(PROFILE)
    assert model == StepModel(
        "recorded", (ArraySpec("a", (2, 3)), ArraySpec("b", (), "bfloat16", 2)), (0.5, 0.25), 0.75,
        source="recorded by exchange.profile()")
    assert model.nbytes == 26 and model.count == 7 and model.order == (1, 0)


@pytest.mark.parametrize("change, problem", [
    ({"arrays": []}, "arrays: .*array"),
    ({"arrays": ARRAYS[:1] * 2}, "arrays: .*name"),
    ({"arrays": [{"name": "a"}] * 2}, r"arrays\[0\]"),
    ({"arrays": [{**ARRAYS[0], "shape": [-1]}, ARRAYS[1]]}, "integers"),
    ({"arrays": [ARRAYS[0], {**ARRAYS[1], "itemsize": 0}]}, r"arrays\[1\]"),
    ({"ready_seconds": [0.5]}, "ready_seconds: .*2 times"),
    ({"ready_seconds": [0.5, None]}, r"ready_seconds\[1\].*0"),
    ({"ready_seconds": [0.5, float("nan")]}, r"ready_seconds\[1\]"),
    ({"backward_seconds": 0.3}, "forward_seconds.*backward_seconds"),
    ({"forward_seconds": 0.3}, "between"),
    ({"optimizer_seconds": -1}, "optimizer_seconds: .*number"),
    ({"batch": 3}, "batch.*ready_seconds")])
def test_what_is_no_profile(change, problem):
    with pytest.raises(ArgumentError, match=problem) as caught:
        from_profile({**PROFILE, **change})
    assert str(caught.value).startswith("model: profile: ")


@pytest.mark.parametrize("text, problem", [
    ("{", "JSON"), ("3", "object.*ready_seconds")])
def test_files_of_another_kind(text, problem, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=problem):
        read(path)

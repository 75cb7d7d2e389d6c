"""Training steps as a benchmark: models, candidates, and what is made of times."""


import pytest

pytest.importorskip("mpi4py")
pytest.importorskip("click")
pytest.importorskip("rich")

from emulated import EmulatedModel, layers
from training_steps import NONE, candidates, summary

from hpccoll.errors import ArgumentError


@pytest.mark.parametrize("nbytes, number", [(25 << 20, 50), (2 << 20, 10), (4, 1), (100, 3)])
def test_layers_have_about_so_many_bytes(nbytes, number):
    model = layers(nbytes, number, 0.1)
    assert len(model.shapes) == 2 * number
    side = model.shapes[0][0]
    # A side more or less is the nearest that squares can come.
    assert abs(model.nbytes - nbytes) <= 4 * number * (2 * side + 2)


@pytest.mark.parametrize("name", ["exchanges", "none:fp16", "", "gloo", "ddp:nccl"])
def test_unknown_candidates_are_refused_with_the_known_ones(name):
    if name.startswith("ddp"):
        pytest.importorskip("torch")
    with pytest.raises(ArgumentError, match="choose"):
        candidates([name])


def test_an_unknown_scheme_is_refused_before_anything_is_measured():
    assert list(candidates(["exchange", "exchange:topk:density=0.1"])) == [
        "exchange", "exchange:topk:density=0.1"]
    with pytest.raises(ArgumentError, match="'bf61'.*'bf16'"):
        candidates(["exchange:bf61"])


def test_what_shows_is_what_exceeds_the_backward_pass():
    times = [(NONE, 1.0), ("exchange", 2.0), ("exchange", 1.0), (NONE, 1.0), (NONE, 7.0),
             ("exchange", 1.5), ("ddp", 0.5)]
    found = {each.candidate: each for each in summary(EmulatedModel(((4,),), 9.0), times)}
    assert list(found) == ["ddp", NONE, "exchange"]  # the fastest first
    assert found["exchange"].median_seconds == 1.5 and found["exchange"].exposed_seconds == 0.5
    assert found["exchange"].exposed_part == pytest.approx(1 / 3)
    assert found["exchange"].efficiency == pytest.approx(2 / 3)
    assert found["ddp"].exposed_seconds == 0 and found["ddp"].efficiency == 1
    # Without the candidate that communicates nothing, the length that was asked for counts.
    assert summary(EmulatedModel(((4,),), 1.25), [("ddp", 1.5)])[0].exposed_seconds == 0.25

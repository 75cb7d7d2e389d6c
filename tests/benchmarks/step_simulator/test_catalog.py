"""Models by name, file and profile; parameters as published."""

import json

import pytest
from step_simulator.catalog import FLOPS, MODELS, find
from step_simulator.model import StepModel


@pytest.mark.parametrize("name, parameters, arrays, gigaflops", [
    ("resnet50", 25_557_032, 161, 8.18), ("vgg16", 138_357_544, 32, 30.9),
    ("bert-large", 336_226_108, 398, 368), ("gpt2-xl", 1_557_611_200, 580, 3507)])
def test_parameters_are_those_published(name, parameters, arrays, gigaflops):
    model = find(name, samples=1)
    assert model.count == parameters and len(model.arrays) == arrays
    assert model.forward * FLOPS == pytest.approx(gigaflops * 1e9, rel=2e-3)
    assert model.nbytes == 4 * parameters
    assert len({spec.name for spec in model.arrays}) == arrays
    assert model.source.endswith("1 samples, at 100 TFLOP/s (assumed)")


@pytest.mark.parametrize("name", MODELS)
def test_gradients_become_ready_from_the_last_layer_to_the_first(name):
    model = find(name)
    assert model.order == tuple(reversed(range(len(model.arrays))))
    assert model.forward <= min(model.ready) and max(model.ready) == model.backward
    assert model.backward == pytest.approx(3 * model.forward)
    assert sorted(model.ready, reverse=True) == list(model.ready)


def test_known_shapes():
    shapes = {spec.name: spec.shape for spec in find("resnet50").arrays}
    assert shapes["layer4.0.downsample.0.weight"] == (2048, 1024, 1, 1)
    assert shapes["layer2.0.conv2.weight"] == (128, 128, 3, 3)
    shapes = {spec.name: spec.shape for spec in find("gpt2-xl").arrays}
    assert shapes["transformer.h.47.attn.c_attn.weight"] == (1600, 4800)
    assert shapes["transformer.h.0.mlp.c_proj.weight"] == (6400, 1600)
    shapes = {spec.name: spec.shape for spec in find("vgg16").arrays}
    assert shapes["features.28.weight"] == (512, 512, 3, 3)
    assert shapes["classifier.0.weight"] == (4096, 25088)


def test_a_file_a_profile_and_a_model(tmp_path):
    model = find("resnet50")
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(model.as_json()))
    assert find(path) == find(str(path)) == find(model.as_json()) == find(model) == model
    assert isinstance(model, StepModel)

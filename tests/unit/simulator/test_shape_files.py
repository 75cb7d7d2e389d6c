"""Shapes as data and as text, and what is refused."""

import json

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.simulator.machine_model import machine_as_data, machine_from_text
from hpccoll.simulator.shape_files import shape_as_data, shape_from_data, shape_from_text

ALL = ["torus:5", "torus:4x3:wrap=truexfalse", "mesh:3x2x4", "fat_tree:4x3:up=2x3",
       "dragonfly:4x2x3:cables=3"]


@pytest.mark.parametrize("text", ALL)
def test_as_data_and_back(text):
    shape = shape_from_text(f"{text}:routing=adaptive:hop_seconds=1e-7:joules_per_byte=1e-11")
    assert shape_from_data(json.loads(json.dumps(shape_as_data(shape))), "f") == shape
    machine = {"name": "m", "reduce_bytes_per_second": 1e9, "shape": shape_as_data(shape),
               "levels": [{"name": "n", "alpha_seconds": 0, "bytes_per_second": 1e9}]}
    made = machine_from_text(json.dumps(machine), "f")
    assert made.shape == shape and machine_as_data(made)["shape"] == shape_as_data(shape)


@pytest.mark.parametrize(("data", "problem"), [
    (3, "f: shape: .*object"),
    ({}, "f: shape.kind: None .*torus, mesh, fat_tree, dragonfly"),
    ({"kind": []}, r"shape.kind: \[\]"),
    ({"kind": "torus"}, "f: .*field extents"),
    ({"kind": "torus", "extents": []}, "f: shape.extents of torus: .*nodes"),
    ({"kind": "torus", "extents": [0]}, "shape.extents of torus: .*integer.*1"),
    ({"kind": "torus", "extents": [2.5]}, "shape.extents of torus: .*integer"),
    ({"kind": "torus", "extents": [1e6, 1e6]}, "16,777,216"),
    ({"kind": "torus", "extents": [4], "cables": 2}, "f: shape .*cables"),
    ({"kind": "torus", "extents": [4], "wrap": 1}, "shape.wrap of torus: .*true"),
    ({"kind": "mesh", "extents": [4, 4, 4], "wrap": [True, False]}, "one or 3, got"),
    ({"kind": "torus", "extents": [4], "routing": "best"}, "shape.routing of torus: .*stat"),
    ({"kind": "torus", "extents": [4], "duplex": True}, "shape.duplex of torus: .*full"),
    ({"kind": "torus", "extents": [4], "hop_seconds": -1}, "shape.hop_seconds of torus: "),
    ({"kind": "torus", "extents": [4], "bytes_per_second": 0}, "shape.bytes_per_second of torus"),
    ({"kind": "torus", "extents": [4, 4, 4], "bytes_per_second": [1, 2]}, "rate.*3.*2"),
    ({"kind": "torus", "extents": [4], "joules_per_byte": "1"}, "joules"),
    ({"kind": "torus", "extents": [4], "positions": [0, 0]}, "positions of torus"),
    ({"kind": "torus", "extents": [4], "positions": [4]}, "numbers.*4"),
    ({"kind": "fat_tree", "extents": [4, 4], "up": [1]}, "shape.up of fat_tree: .*2"),
    ({"kind": "fat_tree", "extents": [4], "up": [0]}, "shape.up of fat_tree: .*integer"),
    ({"kind": "dragonfly", "extents": [4, 4]}, "shape.extents of dragonfly: .*groups"),
    ({"kind": "dragonfly", "extents": [4, 4, 1], "cables": 0}, "shape.cables of dragonfly")])
def test_bad_shapes(data, problem):
    with pytest.raises(ArgumentError, match=problem):
        shape_from_data(data, "f")


@pytest.mark.parametrize(("text", "problem"), [
    ("torus", "shape: 'torus': shape.extents of torus"), ("torus:4x", "integer"),
    ("torus:4:wrap", "'wrap'"), ("torus:4:wrap=true:wrap=true", "'wrap"),
    ("ring:4", "shape.kind")])
def test_bad_texts(text, problem):
    with pytest.raises(ArgumentError, match=problem):
        shape_from_text(text)

"""What is said where Keras 3 is missing, is older, or has no backend."""

import importlib
import os
import types

import pytest

from hpccoll.errors import FrameworkError


@pytest.fixture
def framework():
    """The module alone: its package imports Keras."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    pytest.importorskip("keras")
    return pytest.importorskip("hpccoll.keras.framework")


def test_missing(framework, monkeypatch):
    def absent(name):
        raise ModuleNotFoundError("No module named 'keras'", name="keras")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(FrameworkError, match=r"installed.*hpccoll\[keras\]"):
        framework.require_keras()


def test_without_a_backend(framework, monkeypatch):
    def absent(name):
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(FrameworkError, match=r"tensorflow.*KERAS_BACKEND.*\[keras,jax\]"):
        framework.require_keras()


@pytest.mark.parametrize("version", ["2.15.0", "1.0"])
def test_older(framework, monkeypatch, version):
    monkeypatch.setattr(importlib, "import_module",
                        lambda name: types.SimpleNamespace(__version__=version))
    with pytest.raises(FrameworkError, match=f"version {version}"):
        framework.require_keras()

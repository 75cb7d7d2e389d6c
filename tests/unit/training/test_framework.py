"""What is said where a framework is missing, is older, or lacks what it needs."""

import importlib
import types

import pytest

from hpccoll.errors import FrameworkError
from hpccoll.training.framework import require


def raises(monkeypatch, name):
    def absent(_):
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(importlib, "import_module", absent)


@pytest.mark.parametrize("extra, text", [("", r"hpccoll\[optax\]"), ("jax", r"hpccoll\[jax\]")])
def test_missing(monkeypatch, extra, text):
    raises(monkeypatch, "optax")
    with pytest.raises(FrameworkError, match=f"optax: is not installed.*{text}") as caught:
        require("optax", extra=extra)
    assert caught.value.framework == "optax" and isinstance(caught.value, ImportError)


def test_without_what_it_needs(monkeypatch):
    raises(monkeypatch, "tensorflow")
    with pytest.raises(FrameworkError, match=r"tensorflow.*set KERAS_BACKEND.*\[keras,jax\]"):
        require("keras", "3", "keras,jax", ": set KERAS_BACKEND")


@pytest.mark.parametrize("oldest, version", [
    ("3", "2.15.0"), ("3", "1.0"), ("0.5", "0.4.38"), ("0.5", "0.3"), ("0.5", "0.4.30.dev1")])
def test_too_old(monkeypatch, oldest, version):
    monkeypatch.setattr(importlib, "import_module",
                        lambda name: types.SimpleNamespace(__version__=version))
    with pytest.raises(FrameworkError, match=f"{version} is .*, {oldest} or later is required"):
        require("one", oldest)


@pytest.mark.parametrize("oldest, version", [
    ("3", "3.0.0"), ("3", "10.1"), ("0.5", "0.10.2"), ("0.5", "1.0"), ("0.5", "0.8.0rc1")])
def test_new_enough(monkeypatch, oldest, version):
    module = types.SimpleNamespace(__version__=version)
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    assert require("one", oldest) is module

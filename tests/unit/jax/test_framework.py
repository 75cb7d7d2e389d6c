"""What is said where JAX or optax is missing or too old."""

import subprocess
import sys
from importlib import metadata

import pytest

from hpccoll.errors import FrameworkError

pytest.importorskip("jax")
framework = pytest.importorskip("hpccoll.jax.framework")


@pytest.mark.parametrize("version", ["0.4.38", "0.3", "0.4.30.dev1"])
def test_too_old(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda package: version)
    with pytest.raises(FrameworkError, match=rf"{version}.* \d.*required"):
        framework.require_jax()


@pytest.mark.parametrize("version", ["0.10.2", "1.0", "0.8.0rc1"])
def test_new_enough(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda package: version)
    framework.require_jax()


def test_missing(monkeypatch):
    def version(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)
    for require, name in ((framework.require_jax, "jax"), (framework.require_optax, "optax")):
        with pytest.raises(ImportError, match=r"'hpccoll\[jax\]'") as caught:
            require()
        assert caught.value.framework == name


def test_the_package_says_so_itself():
    done = subprocess.run([sys.executable, "-c", (
        "from importlib import metadata\n"
        "def missing(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = missing\n"
        "import hpccoll.jax")], capture_output=True, text=True, timeout=60, check=False)
    assert "FrameworkError: jax: is not installed" in done.stderr

"""tests/mpi/test_keras.py on the other backends: Keras reads its choice once in a process.

``tests/launch.py`` runs it on JAX.
"""

import importlib.util
import sys

import pytest


@pytest.mark.long(every=2)
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_backend(job, monkeypatch, backend):
    if any(importlib.util.find_spec(name) is None for name in ("keras", "pytest_mpi", backend)):
        pytest.skip(f"no Keras with {backend} in this environment")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    status, output = job(2, sys.executable, "-m", "mpi4py", "-m", "pytest", "-q", "--with-mpi",
                         "-p", "no:cacheprovider", "--timeout-method=thread",
                         "tests/mpi/test_keras.py", "-k", "steps or metrics", seconds=110)
    assert status == 0, output
    assert " passed" in output

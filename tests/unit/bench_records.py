"""Records of a benchmark, made up for tests, and the commands that read them."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from hpccoll.cli import main
from hpccoll.tools.bench import records


def written(path, medians, library="MPICH 5.0.2", wrong=0, ranks=2, schema=records.SCHEMA,
            settings=None):
    """Write a record with a median in microseconds for every (collective, bytes, candidate)."""
    results = []
    for (collective, nbytes, candidate), median in medians.items():
        native = medians.get((collective, nbytes, "native"))
        results.append({
            "collective": collective, "candidate": candidate, "ranks": ranks, "root": None,
            "nbytes": nbytes, "dtype": "float32", "op": "sum", "in_place": False,
            "wrong": wrong, "changed": 0,
            "statistics": {"p50_seconds": median * 1e-6, "limit": None,
                           "ratio": native and native / median}})
    path.write_text(json.dumps({
        "schema": schema, "results": results, "settings": settings or {},
        "environment": {"mpi": f"{library}, a long text", "library": library, "ranks": ranks,
                        "cpu": "CPU", "cores": 2, "time": "2026-01-01T00:00:00"}}))
    return str(path)


OLD = {("allreduce", 8, "native"): 4, ("allreduce", 8, "ring"): 10,
       ("bcast", 1024, "native"): 20, ("bcast", 1024, "chain"): 10}


def bench(*words):
    return CliRunner().invoke(main, ["bench", *words])


def without_mpi(*words):
    return subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['mpi4py'] = None\n"
         "from hpccoll.cli import main; main(sys.argv[1:])", "bench", *words],
        capture_output=True, text=True, timeout=60, check=False)

"""The room: what its import needs."""

import subprocess
import sys


def test_importing_needs_the_standard_library_only():
    code = ("import sys, hpccoll.explain; "
            "print([m for m in ('numpy', 'mpi4py', 'matplotlib', 'click') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

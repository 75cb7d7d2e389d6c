"""The directory of a cluster or of hosts; those of processes that were killed are cleaned up."""

import os
import shutil
import tempfile
from pathlib import Path


def new_home(kind: str) -> Path:
    """Make a directory for this process, and remove those of processes that are no more."""
    for path in Path(tempfile.gettempdir()).glob(f"hpccoll-{kind}-*-*"):
        if not Path("/proc", path.name.split("-")[2]).exists():
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"hpccoll-{kind}-{os.getpid()}-"))

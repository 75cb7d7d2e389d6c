"""Tests on hosts and clusters of their own, all of this machine."""

import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))  # hosts.py and slurm.py are programs too


def pytest_configure(config):
    """Let who ends these tests early, as at a time limit, end their hosts and daemons too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)

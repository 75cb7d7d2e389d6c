"""Tests on hosts and clusters of their own, all of this machine."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))  # hosts.py and slurm.py are programs too

"""Tests here start jobs of their own and let something go wrong in them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))  # jobs.py is used by a program too

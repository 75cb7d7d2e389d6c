"""Algorithms over single ranks, one family a file; a new family is a file here and lines in ``table``."""

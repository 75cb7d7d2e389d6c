"""Proof that a lowered schedule does what its collective promises, for given block sizes."""

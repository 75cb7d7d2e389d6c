"""Algorithms over groups of ranks: compositions of the flat ones, for ragged groups too."""

"""Scripts that ranks run, used by several programs."""

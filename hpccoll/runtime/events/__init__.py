"""Records: a rank's log of calls, the ring of its events, and the Python logger."""

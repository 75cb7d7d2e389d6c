"""Progress of pending collectives: the ``engine``, the ``operations`` and their timeouts."""

"""Records: a rank's ``log`` of calls, ``moments`` inside calls, and the Python ``logger``."""

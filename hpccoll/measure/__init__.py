"""Timing of collectives on any communicator class that is handed in; never imports ``comm``."""

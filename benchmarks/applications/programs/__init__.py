"""One module for each program: its ``PROGRAM``, and where needed the script that ranks run."""

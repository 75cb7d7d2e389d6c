"""What is no test in this folder."""

#: Runs under the system's Python, which has SimGrid; this one need not.
collect_ignore = ["simgrid_platform.py"]

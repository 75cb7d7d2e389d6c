"""Programs behind the command line: benchmark, doctor, maps of the machine, job scripts."""

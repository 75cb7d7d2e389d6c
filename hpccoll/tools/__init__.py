"""Programs behind the command line: benchmark, doctor, maps of the machine, job scripts.

    bench      times compared with the host MPI's: tables, records, plots, comparisons
    doctor     diagnosis of a job's environment
    failures   diagnosis of the output of jobs that fail before doctor runs
    topo       the machine under a job
    jobs       job scripts for sites
    calibrate  a machine for the simulator, measured

Rule: no module prints or exits; ``cli`` does. Functions return values or write to a given file. A
new program is a package here and a sub-command in ``cli``.
"""

"""Programs behind the command line: benchmark, doctor, maps of the machine, job scripts.

    bench      times beside the host MPI's: tables, records, pictures, comparisons
    doctor     what is wrong with a job
    failures   what a job printed that ended before doctor could begin
    topo       the machine under a job
    jobs       job scripts for sites
    calibrate  a machine for the simulator, measured

The rule: they print nothing and end no process; ``cli`` does. Each returns values or writes to what
it is given. A new program is a package here and a sub-command in ``cli``.
"""

"""Results of a benchmark, made up for tests of what is said of them."""

from hpccoll.measure import results

ENVIRONMENT = {
    "hpccoll": "0.1.0", "mpi": "MPICH Version: 5.0.2 MPICH Release date: x", "mpi4py": "4.1",
    "numpy": "2.0", "python": "3.11", "thread_level": "multiple", "ranks": 4,
    "hosts": {"a": 2, "b": 2}, "topology": None, "cpu": "CPU", "cores": 2,
    "command": "hpccoll bench allreduce", "variables": {"UCX_TLS": "sm"}}


def result(candidate, microseconds, nbytes=1024, collective="allreduce", **changes):
    made = results.Result(
        collective, candidate, candidate, 4, None, nbytes, nbytes // 4, nbytes, "float32", "sum",
        False, 1e-3, tuple(n * 1e-6 for n in microseconds), (1e-6, 3e-6), 0, 0)
    return made._replace(**changes)


def written(made, groups, interrupted=False):
    made.begin(ENVIRONMENT)
    made.begin_collective("allreduce", ["native", "ring"])
    for group in groups:
        made.group(group, {"census": "a reason"})
    made.end(groups, interrupted)

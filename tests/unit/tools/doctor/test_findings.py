"""Findings of ``hpccoll doctor`` from facts made up."""

from dataclasses import replace

import pytest

from hpccoll.cuda.device_paths import AWARE, STAGED, WAYS, Answer, RankReport
from hpccoll.tools.doctor import RankFacts, examine
from hpccoll.tools.doctor.findings import ERROR, LEVELS, NOTE, OK, WARNING

PER_NODE = 2


def rank(number, size=4, **other):
    """A rank of a job where everything is as it should be: two ranks to a node."""
    node = number - number % PER_NODE
    values = {
        "rank": number, "size": size, "launched": (number, size), "launcher": "srun --mpi=pmi2",
        "host": f"n{node}", "mpi": "MPICH 5.0.2", "threads": "multiple",
        "versions": {"MPI library": "MPICH 5.0.2", "hpccoll": "0.1.0 (abc)", "mpi4py": "4.1.2"},
        "processors": (number % PER_NODE,), "variables": {"OMP_NUM_THREADS": "1"},
        "shared_bytes": 1 << 30, "ptrace_scope": 0, "node": node, "layout": "2x2", "right": True,
        "shared": True, "single_copy": True,
        "slurm": {"SLURM_NTASKS": str(size), "SLURMD_NODENAME": f"n{node}"}}
    return RankFacts(**{**values, **other})


def job(size=4, **changed):
    """A job; a value of ``changed`` is for all ranks, or a dictionary by rank for some."""
    made = []
    for number in range(size):
        values = {}
        for name, value in changed.items():
            if not (isinstance(value, dict) and any(isinstance(key, int) for key in value)):
                values[name] = value
            elif number in value:
                values[name] = value[number]
        made.append(rank(number, size, **values))
    return made


def bad(facts, expected=0):
    return [each for each in examine(facts, expected) if each.level != OK]


def one(facts, expected=0):
    found, = bad(facts, expected)
    return found


def test_a_good_job_has_nothing_to_complain_about():
    found = examine(job(), 4)
    assert {each.level for each in found} == {OK}
    assert {each.topic for each in found} >= {"world", "MPI", "layout", "binding", "memory",
                                              "result"}


def test_processes_that_use_the_cores_are_reported():
    assert not bad(job(others=0.04))
    found = one(job(others={2: 0.34, 3: 0.34}))
    assert (found.level, found.topic, found.ranks) == (WARNING, "load", (2, 3))
    assert "other processes used 34 % of the cores" in found.what


def test_a_clone_that_hides_what_is_installed_is_told():
    found = one(job(package="/home/me/hpccoll", hides={3: "/env/hpccoll"}))
    assert found.level == WARNING and found.ranks == (3,)
    assert "/home/me/hpccoll, which has no compiled parts" in found.what
    assert "/env/hpccoll has them" in found.what and "pip install -e" in found.remedy


def test_an_installation_without_compiled_parts_is_a_warning_with_price_and_remedy():
    python = {"versions": {**rank(0).versions, "executor": "python"}, "ruled": False}
    found = one(job(**python))
    assert found.level == WARNING and "nothing is compiled" in found.what
    assert "10 to 20 times" in found.what and "gcc" in found.remedy
    assert [each.topic for each in bad(job(**python, variables={
        "HPCCOLL_EXECUTOR": "python", "OMP_NUM_THREADS": "1"}))] == ["tuning"]  # as requested


def test_processes_that_compile_hpccoll_are_reported_with_the_cost():
    assert not bad(job(compile_seconds=0.01))
    found = one(job(compile_seconds={1: 0.37}))
    assert (found.level, found.topic, found.ranks) == (NOTE, "bytecode", (1,))
    assert "0.4 s" in found.what and "PYTHONDONTWRITEBYTECODE" in found.remedy


def test_findings_come_in_the_order_of_their_levels():
    levels = [each.level for each in examine(job(
        single_copy=False, versions={1: {"mpi4py": "4.0.0"}}, variables={0: {}}))]
    assert levels == sorted(levels, key=LEVELS.index)
    assert {ERROR, WARNING, NOTE, OK} == set(levels)


@pytest.mark.parametrize("mpi, started, remedy", [
    ("MPICH 5.0.2", "srun --mpi=none", "--mpi=pmi2"),
    ("Open MPI 5.0.11", "srun --mpi=pmi2", "--mpi=pmix"),
    ("CRAY MPICH 9.0", "srun --mpi=pmi2", "--mpi=cray_shasta"),
    ("MPICH 5.0.2", "srun --mpi=pmi2", "for the launcher's MPI library"),
    ("Open MPI 5.0.11", "mpiexec (MPICH's Hydra)", "use the mpiexec of mpi4py's")])
def test_processes_that_are_alone(mpi, started, remedy):
    alone = replace(rank(0, 1), launched=(2, 64), launcher=started, mpi=mpi)
    found = one([alone])
    assert found.level == ERROR and "started 64 processes" in found.what
    assert remedy in found.remedy


def test_number_of_ranks():
    assert one(job(), 8).what == "MPI.COMM_WORLD has 4 ranks, expected 8"
    other = {"SLURM_NTASKS": "8"}
    found = one(job(slurm=other))
    assert found.level == WARNING and "8 tasks" in found.what


def test_different_software_is_an_error_and_names_the_ranks():
    versions = {"MPI library": "MPICH 5.0.2", "hpccoll": "0.1.0 (abd)", "mpi4py": "4.1.2"}
    found = one(job(versions={2: versions}))
    assert found.level == ERROR and found.ranks == (2,)
    assert "hpccoll differs: 0.1.0 (abc) on ranks 0-1,3; 0.1.0 (abd) on rank 2" == found.what


def test_a_different_path_is_a_warning():
    facts = [replace(each, versions={**each.versions, "interpreter": f"/{each.node}/python"})
             for each in job()]
    assert one(facts).level == WARNING


def test_unequal_settings_are_an_error():
    found = one(job(variables={3: {"OMP_NUM_THREADS": "1", "HPCCOLL_TIMEOUT": "5"}}))
    assert found.level == ERROR and found.ranks == (3,)
    assert "HPCCOLL_TIMEOUT differs: (not set) on ranks 0-2; 5 on rank 3" == found.what


def test_unequal_settings_of_the_mpi_library_are_a_warning():
    common = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0"}
    found = one(job(variables={3: {**common, "MPICH_GPU_SUPPORT_ENABLED": "1"},
                               2: {**common, "CUDA_VISIBLE_DEVICES": "1"}}))
    assert found.level == WARNING and found.ranks == (3,)
    assert found.what == "MPICH_GPU_SUPPORT_ENABLED differs: (not set) on ranks 0-2; 1 on rank 3"
    assert found.remedy.startswith("unless this is intended")


def test_settings_without_sense_are_an_error():
    found = one(job(problem="HPCCOLL_TIMEOUT: cannot use 'x'"))
    assert found.level == ERROR and "HPCCOLL_TIMEOUT" in found.what


def test_nodes_that_mpi_does_not_see():
    found = one(job(node={n: n for n in range(4)}, layout="4x1"))
    assert found.level == WARNING
    assert "on 2 nodes, the MPI library sees 4 groups that share memory" in found.what


def test_nodes_that_mpi_takes_for_one():
    found = one(job(node=0, layout="4", processors={n: (n,) for n in range(4)}))
    assert found.level == ERROR
    assert "on 2 nodes, the MPI library sees 1 group that shares memory" in found.what
    assert "HPCCOLL_TOPOLOGY=2x2" in found.remedy


def test_ranks_dealt_out_over_nodes():
    facts = job(node={n: n % 2 for n in range(4)}, host={n: f"n{n % 2}" for n in range(4)},
                processors={n: (n // 2,) for n in range(4)})
    found = one(facts)
    assert found.level == WARNING and "not numbered node by node" in found.what


def test_uneven_nodes():
    assert one(job(3)).what == "nodes have different numbers of ranks"


@pytest.mark.parametrize("processors, level, what, ranks", [
    ((0,), WARNING, "more ranks than processors", (0, 1, 2, 3)),
    ({0: (0, 1), 1: (1, 2)}, WARNING, "the same processors", (0, 1)),
    ((0, 1, 2, 3), NOTE, "not bound", (0, 1, 2, 3))])
def test_binding(processors, level, what, ranks):
    found = one(job(processors=processors))
    assert found.level == level and what in found.what and found.ranks == ranks


@pytest.mark.parametrize("launcher, mpi, wanted, unwanted", [
    ("srun --mpi=pmi2", "MPICH 5.0.2", "srun --cpu-bind", "mpiexec"),
    ("mpiexec (MPICH's Hydra)", "MPICH 5.0.2", "mpiexec -bind-to core", "srun"),
    ("mpiexec (Open MPI)", "Open MPI 5.0.11", "mpiexec --bind-to core", "srun")])
def test_remedies_are_for_this_launcher_and_library(launcher, mpi, wanted, unwanted):
    facts = job(processors=(0, 1, 2, 3), launcher=launcher, mpi=mpi)
    assert wanted in one(facts).remedy and unwanted not in one(facts).remedy
    assert one(facts).remedy.endswith("python program.py")  # the whole command
    crowded = one(job(processors=(0,), launcher=launcher, mpi=mpi)).remedy
    assert "1 processor per node" in crowded
    assert ("mpi_yield_when_idle" in crowded) is mpi.startswith("Open")


def test_a_layout_is_said_in_words():
    said = {each.topic: each.what for each in examine(job())}
    assert said["layout"] == "2 nodes, 2 ranks on each; hpccoll uses the levels 2x2"
    alone = replace(rank(0, 1), layout="1", slurm={})
    assert "1 node, 1 rank on it" in [each.what for each in examine([alone])]


def test_cpus_per_task_that_were_lost():
    slurm = {"SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "8", "SLURMD_NODENAME": "x"}
    facts = [replace(each, slurm=slurm) for each in job()]
    found = one(facts)
    assert found.level == WARNING and "SRUN_CPUS_PER_TASK" in found.remedy


def test_threads():
    assert "not set" in one(job(variables={})).what
    assert one(job(variables={"OMP_NUM_THREADS": "4"})).ranks == (0, 1, 2, 3)
    assert [(each.topic, each.ranks) for each in bad(job(variables={1: {"OMP_NUM_THREADS": "4"}}))
            ] == [("settings", (1,)), ("threads", (1,))]


def test_memory():
    assert one(job(shared=False, single_copy=False)).what.startswith("ranks of a node have no")
    assert "less than 64 MiB" in one(job(shared_bytes={1: 1 << 20})).what
    found = one(job(single_copy=False, ptrace_scope=2))
    assert found.level == NOTE and "ptrace_scope is 2" in found.remedy
    assert "SYS_PTRACE" in one(job(single_copy=False, ptrace_scope=0)).remedy


def test_devices():
    both = {n: (f"0:{n % 2}", f"0:{1 - n % 2}") for n in range(4)}
    def told(can):
        found = {way.name: Answer(way is STAGED or way is AWARE and can, "tried") for way in WAYS}
        return {n: RankReport(0, both[n][0], found) for n in both}

    aware = {"device_report": told(True)}
    assert not bad(job(devices=both, **aware))
    ways, = (each.what for each in examine(job(devices=both, **aware))
             if "device data paths" in each.what)
    assert "ipc no: tried; mpi yes: tried; staged yes: tried" in ways
    assert "does not support device memory" in one(job(devices=both,
                                                       device_report=told(False))).what
    assert "same first device" in one(job(devices=("0:1", "0:2"), **aware)).what
    found = one(job(devices={n: both[n] for n in range(3)}, **aware))
    assert "have no device" in found.what and found.ranks == (3,)


def test_nccl():
    found = {way.name: Answer(way in (AWARE, STAGED), "tried") for way in WAYS}
    own = {"devices": {n: (f"0:{n % 2}",) for n in range(4)},
           "device_report": {n: RankReport(0, f"0:{n % 2}", found) for n in range(4)}}
    told = [each.what for each in examine(job(nccl="2.27.3", **own)) if each.topic == "devices"]
    assert "NCCL 2.27.3, for comm.using(allreduce='nccl')" in told
    found = one(job(nccl={n: "2.27.3" for n in range(3)}, no_nccl={3: "CuPy finds no NCCL"}, **own))
    assert (found.level, found.ranks) == (NOTE, (3,))
    assert "NCCL is not available: CuPy finds" in found.what
    assert not any("NCCL" in each.what for each in examine(job()))


def test_what_a_device_is_next_to():
    found = {way.name: Answer(True, "tried") for way in WAYS}
    pairs = (("0000:00:00.0", "0000:01:00.0", "NV4"), ("0000:01:00.0", "0000:02:00.0", "SYS"))
    own = {"devices": {n: (f"0000:0{n % 2}:00.0",) for n in range(4)}, "gpu_numa": 1,
           "device_report": {n: RankReport(0, f"0:{n % 2}", found) for n in range(4)},
           "gpu_links": {0: pairs, 2: pairs}}

    def told(**other):
        return [each.what for each in examine(job(**own, **other)) if each.topic == "devices"]

    near = told(gpu_distance=10)
    assert ("first device of the ranks of a node: 0000:00:00.0 (NUMA 1), "
            "0000:01:00.0 (NUMA 1)") in near
    assert "each rank runs on the NUMA node of its device" in near
    # Two nodes; the third device is nobody's.
    assert [what for what in near if "links" in what] == [
        "links of a node's devices, from nvidia-smi topo -m: NV4 between 2 pairs"]
    assert not any("GPUDirect" in what or "network" in what for what in near)
    far = one(job(**own, gpu_distance={n: 10 + 11 * (n == 3) for n in range(4)}))
    assert (far.level, far.ranks) == (NOTE, (3,)) and "distance 21" in far.what
    unable = one(job(**own, fabric=True))
    assert unable.level == NOTE and "nvidia_peermem" in unable.remedy
    able = told(fabric=True, gpu_direct=("nvidia_peermem",))
    assert "the network can read device memory: nvidia_peermem" in able
    one_node = examine(job(**own, fabric=True, node=0, layout="4", host="n0"))
    assert not any("GPUDirect" in each.what for each in one_node)


@pytest.mark.parametrize("slurm", [
    {"SLURM_GPUS_PER_TASK": "1"}, {"SLURM_TRES_BIND": "gres/gpu:per_task:1"},
    {"SLURM_TRES_PER_TASK": "cpu=4,gres/gpu=1"}])
def test_gpus_per_task(slurm):
    facts = [replace(each, slurm={**each.slurm, **slurm}) for each in job()]
    assert "--gpus-per-task hides" in one(facts).what


def test_a_wrong_result_is_an_error():
    found = one(job(right={2: False}))
    assert found.level == ERROR and found.ranks == (2,)


@pytest.mark.slow
def test_a_large_job_is_quick_and_named_in_few_words():
    facts = job(2000, shared={1999: False}, single_copy=False)
    assert any(each.ranks == (1999,) for each in examine(facts))


@pytest.mark.parametrize("left, level, remedy", [
    ((1 << 30, 2, 2), WARNING, "--clean removes them"), ((4096, 3, 1), NOTE, "--clean removes 1"),
    ((4096, 1, 0), NOTE, "outside of containers")])
def test_memory_of_dead_jobs(left, level, remedy):
    found = one(job(left={2: left}))
    assert (found.level, found.topic, found.ranks) == (level, "leftovers", (2,))
    assert remedy in found.remedy and f"{left[1]} file" in found.what


def test_whether_a_job_can_go_on_without_a_rank():
    assert "recovery" in {each.topic for each in examine(job())}
    assert "recovery" not in {each.topic for each in examine(job(no_recovery="no ULFM"))}


def test_helpers_that_mpiexec_starts_by_srun_are_no_ranks():
    facts = job(launcher="mpiexec (MPICH's Hydra)",
                slurm={"SLURM_NTASKS": "1", "SLURMD_NODENAME": "n0"}, node=0, layout="4",
                host="n0", processors={0: (0,), 1: (1,), 2: (2,), 3: (3,)})
    assert not [each for each in bad(facts) if each.topic == "world"]


def test_a_tuning_table_is_named_with_times_or_without():
    found = [each for each in examine(job(table="/site/tuning.json")) if each.topic == "tuning"]
    assert [(each.level, each.what) for each in found] == [
        (OK, "/site/tuning.json has times of such a job")]
    [found] = bad(job(untimed="t.json is not used: it has no measurements for 4 ranks"))
    assert (found.level, found.topic) == (NOTE, "tuning") and "tune" in found.remedy

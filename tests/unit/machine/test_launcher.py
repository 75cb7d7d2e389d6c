"""What started a process, and one message where no MPI library is there that knows of it."""

import os
import subprocess
import sys

import pytest
from mpi4py import MPI

from hpccoll.errors import HpccollError, MpiLibraryError
from hpccoll.machine.launcher import (
    check_transfer_library,
    explain_single_ranks,
    launcher,
    launcher_rank,
    require_mpi,
    serves_another,
)

OPEN_MPI = MPI.get_vendor()[0] == "Open MPI"
#: What another library's mpiexec sets.
ANOTHERS = ({"PMI_RANK": "{}", "PMI_SIZE": "2", "HYDI_CONTROL_FD": "99"} if OPEN_MPI else
            {"OMPI_COMM_WORLD_RANK": "{}", "OMPI_COMM_WORLD_SIZE": "2"})
#: How mpi4py and the dynamic loader say that there is no library.
BROKEN = {
    "no library": "raise RuntimeError('cannot load MPI library\\nlibmpi.so.12: cannot open')",
    "another ABI": "raise ImportError('libmpi.so.40: cannot open shared object file')"}
#: Commands of ranks, with arguments that get as far as MPI.
RANKED = [("doctor",), ("bench", "allreduce"), ("bench", "overlap", "bcast"),
          ("tune", "--quick"), ("topo",),
          ("simulate", "--calibrate", "x.json"), ("run", "-c", "from mpi4py import MPI")]
#: Their mistakes, which are said without MPI, too.
MISTAKEN = {("bench",): "hpccoll: bench: COLLECTIVE is missing: name one, such as allreduce; run "
                        "hpccoll bench --help\n",
            ("tune", "--seconds", "0"): "hpccoll: tune: Invalid value for '--seconds': 0.0 is not "
                                        "in the range x>0; run hpccoll tune --help\n"}
#: Commands that need no MPI.
FREE = [("--help",), ("bench", "--help"), ("bench", "overlap", "--help"), ("tune", "--help"),
        ("run", "--help"), ("bench", "matrix", "--help"), ("bench", "compare", "--help"),
        ("explain", "allreduce", "ring", "--size", "2"), ("run", "-c", "print(1)"),
        ("verify", "--ranks", "2", "--collective", "barrier"), ("job", "--site", "generic"),
        ("simulate", "allreduce", "--nodes", "2"), ("doctor", "--log", "/dev/null")]


def environment(path, **more):
    """Variables of a process that no launcher has started, and that finds modules there first."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("PMI", "OMPI_COMM", "HYD", "PRTE_", "SLURM_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, [path, *sys.path])), **more}


def python(*words, **given):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=100,
                          check=False, **given)


@pytest.fixture
def broken(tmp_path):
    """Makes a place that holds an mpi4py which fails to import its ``MPI``."""
    def make(statement):
        package = tmp_path / "mpi4py"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text("class rc: initialize, finalize = True, None\n")
        (package / "MPI.py").write_text(statement + "\n")
        return tmp_path
    return make


@pytest.mark.slow
@pytest.mark.parametrize("words", RANKED, ids=" ".join)
@pytest.mark.parametrize("how", BROKEN)
def test_a_command_without_a_library_says_so_in_one_line(broken, how, words, tmp_path):
    done = python("-m", "hpccoll", *words, env=environment(broken(BROKEN[how])), cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("hpccoll: mpi4py cannot load an MPI library (libmpi.so.")
    assert "pip install 'hpccoll[mpich]'" in done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize("words", MISTAKEN, ids=" ".join)
def test_what_is_wrong_with_options_is_said_without_a_library(broken, words):
    done = python("-m", "hpccoll", *words, env=environment(broken(BROKEN["no library"])))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", MISTAKEN[words])


@pytest.mark.slow
@pytest.mark.parametrize("words", RANKED, ids=" ".join)
def test_a_command_without_mpi4py_says_so_in_one_line(words, tmp_path):
    code = (f"import sys; sys.modules['mpi4py'] = None; sys.argv = ['hpccoll', *{words!r}]\n"
            "from hpccoll.__main__ import main; main()")
    done = python("-c", code, env=environment(""), cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("hpccoll: mpi4py is not installed; run pip install")


@pytest.mark.slow
@pytest.mark.parametrize("words", FREE, ids=" ".join)
def test_commands_that_need_no_mpi_do_without(broken, words):
    done = python("-m", "hpccoll", *words, env=environment(broken(BROKEN["no library"])))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("statement", [
    "hpccoll.Comm", "from hpccoll import Comm", "import mpi4py; hpccoll.Comm(None)"])
@pytest.mark.parametrize("how", BROKEN)
def test_the_communicator_without_a_library(broken, how, statement):
    done = python("-c", f"import hpccoll\n{statement}", env=environment(broken(BROKEN[how])))
    last = done.stderr.splitlines()[-1]
    assert last.startswith("hpccoll.errors.MpiLibraryError: mpi4py cannot load an MPI library")
    assert "pip install 'hpccoll[mpich]'" in last
    assert done.stderr.count("Traceback") == 1 and done.stderr.count("\n") < 15  # none of mpi4py's


def test_a_library_that_a_variable_names_is_said(broken):
    env = {**environment(broken(BROKEN["no library"])), "MPI4PY_LIBMPI": "/x/libmpi.so"}
    assert "correct or unset MPI4PY_LIBMPI" in python("-m", "hpccoll", "doctor", env=env).stderr


def test_a_program_may_do_without_a_library(broken, tmp_path):
    """Whichever of the two errors of the import it expects."""
    for error in ("ImportError", "RuntimeError"):
        code = f"try:\n    from mpi4py import MPI\nexcept {error}:\n    print('serial')"
        done = python("-m", "hpccoll", "run", "-c", code,
                      env=environment(broken(BROKEN["no library"])))
        assert (done.returncode, done.stdout, done.stderr) == (0, "serial\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("words", RANKED, ids=" ".join)
def test_a_command_under_anothers_mpiexec_says_so_once(words, rank, tmp_path):
    started = {name: value.format(rank) for name, value in ANOTHERS.items()}
    done = python("-m", "hpccoll", *words, env=environment("", **started), cwd=tmp_path)
    # All but the first end well: Open MPI's mpiexec would kill the first before it has spoken.
    assert done.returncode == (0 if rank else 2) and done.stdout == ""
    assert done.stderr.count("\n") == (rank == 0) and "Traceback" not in done.stderr
    if rank == 0:
        assert done.stderr.startswith("hpccoll: launcher does not match the MPI library: "
                                      f"{launcher(started)} started 2 processes")
        assert "use the mpiexec of mpi4py's MPI library" in done.stderr


def test_the_communicator_under_anothers_mpiexec():
    started = {name: value.format(1) for name, value in ANOTHERS.items()}
    done = python("-c", "import hpccoll; hpccoll.Comm", env=environment("", **started))
    last = done.stderr.splitlines()[-1]
    assert "MpiLibraryError: launcher does not match the MPI library" in last


def test_one_process_of_any_launcher_is_no_error():
    started = {name: value.format(0).replace("2", "1") for name, value in ANOTHERS.items()}
    code = ("from hpccoll.machine.launcher import serves_another\n"
            "import mpi4py; mpi4py.rc.initialize = False\n"
            "import hpccoll; hpccoll.Comm; from mpi4py import MPI\n"
            "print(serves_another(MPI.get_vendor()[0]))")
    assert python("-W", "ignore", "-c", code, env=environment("", **started)).stdout == "True\n"


def test_tasks_of_slurm_without_a_plugin():
    """A program may be started so; a command for many ranks may not."""
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4",
            "SLURM_MPI_TYPE": "none"}
    code = ("from hpccoll.machine.launcher import require_mpi; import sys\n"
            "require_mpi(steps='strict' in sys.argv)")
    assert python("-c", code, env=environment("", **step)).returncode == 0
    done = python("-c", code, "strict", env=environment("", **step))
    assert "use srun --mpi=pm" in done.stderr.splitlines()[-1]


class CrayMpich:
    """What is asked of ``mpi4py.MPI`` before Cray MPICH starts."""

    started = False

    @classmethod
    def Is_initialized(cls):
        return cls.started

    @staticmethod
    def Get_library_version():
        return "MPI VERSION    : CRAY MPICH version 8.1.30.12 (ANL base 3.4a2)"


def test_device_buffers_without_the_transfer_library_are_refused_before_mpi_ends_the_process(
        tmp_path, monkeypatch):
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp /opt/cray/pe/lib64/libmpi_gnu_123.so.12\n")
    with pytest.raises(MpiLibraryError, match="craype-accel.*MPICH_GPU_SUPPORT_ENABLED=0"):
        check_transfer_library(CrayMpich, str(maps))
    check_transfer_library(MPI, str(maps))  # another library
    check_transfer_library(CrayMpich, str(tmp_path / "none"))
    maps.write_text("7f00-7f01 r-xp /opt/cray/pe/lib64/libmpi_gtl_hsa.so.0\n")
    check_transfer_library(CrayMpich, str(maps))


def test_other_libraries_start_where_device_buffers_are_asked_for():
    code = "from hpccoll.machine.launcher import require_mpi\nprint(require_mpi().Is_initialized())"
    done = python("-c", code, env=environment("", MPICH_GPU_SUPPORT_ENABLED="1"))
    assert done.stdout == "True\n", done.stderr


def test_mpi_starts_as_its_import_would_have_started_it():
    """The name of the library is looked at before; settings of the program still count."""
    code = ("import mpi4py; mpi4py.rc.thread_level = 'serialized'\n"
            "from hpccoll.machine.launcher import require_mpi\n"
            "MPI = require_mpi(environ=held)\n"
            "print(MPI.Is_initialized(), MPI.Query_thread() == MPI.THREAD_SERIALIZED,"
            " MPI.COMM_WORLD.Get_errhandler() == MPI.ERRORS_RETURN)\n"
            "print(mpi4py.rc.initialize, mpi4py.rc.finalize)")
    name = "OMPI_COMM_WORLD_SIZE" if OPEN_MPI else "HYDI_CONTROL_FD"
    outputs = [python("-c", f"held = {held}\n{code}", env=environment("")).stdout
               for held in ({}, {name: "1"})]
    assert outputs == ["True True True\nTrue None\n"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("before", [
    {}, {"INITIALIZE": "false"}, {"INITIALIZE": "0", "FINALIZE": "on"}, {"FINALIZE": "NO"},
    {"THREADS": "n"}, {"THREAD_LEVEL": "Funneled"}, {"ERRORS": "fatal"}, {"INITIALIZE": "perhaps"},
    "import sys; del mpi4py.rc, sys.modules['mpi4py.rc']",
    "[setattr(mpi4py.rc, name, -7) for name in dir(mpi4py.rc) if name[0] != '_']",
    "mpi4py.rc(initialize='no', thread_level='single')"], ids=str)
def test_options_of_mpi4py_count_as_in_its_import(before):
    """Those of its variables, of ``rc``, which a program may delete, and those it does not know."""
    code = ("import mpi4py, warnings\nHOW\n"
            "with warnings.catch_warnings(record=True) as caught:\n"
            "    warnings.simplefilter('always')\n"
            "    from hpccoll.machine.launcher import require_mpi\n"
            "    MPI = require_mpi(environ=held)\n"
            "print(MPI.Is_initialized() and (MPI.Query_thread(), MPI.COMM_WORLD.Get_errhandler()"
            " == MPI.ERRORS_ARE_FATAL))\n"
            "print([getattr(getattr(mpi4py, 'rc', None), name, '-') for name in"
            " ('initialize', 'finalize', 'threads', 'thread_level')])\n"
            "import os; print({n: v for n, v in os.environ.items() if 'MPI4PY' in n})\n"
            "print(sorted(str(each.message) for each in caught))")
    variables = before if isinstance(before, dict) else {}
    code = code.replace("HOW", "" if isinstance(before, dict) else before)
    name = "OMPI_COMM_WORLD_SIZE" if OPEN_MPI else "HYDI_CONTROL_FD"
    outputs = [python("-c", f"held = {held}\n{code}", env=environment("", **{
        f"MPI4PY_RC_{one}": value for one, value in variables.items()}))
        for held in ({}, {name: "1"})]
    assert outputs[0].stdout and outputs[0].stdout == outputs[1].stdout, outputs


def test_the_error_is_what_both_kinds_of_callers_catch():
    error = MpiLibraryError(*explain_single_ranks(4, "srun --mpi=none", "MPICH 4"))
    assert isinstance(error, (HpccollError, ImportError)) and isinstance(error, RuntimeError)
    assert str(error).endswith("; use srun --mpi=pmi2; srun --mpi=list shows the installed "
                               "plug-ins")
    assert "site's compiler" in explain_single_ranks(4, "srun --mpi=pmi2", "MPICH 4")[1]
    assert "--mpi=pmix" in explain_single_ranks(4, "srun --mpi=pmi2", "Open MPI 5")[1]


@pytest.mark.parametrize("vendor, names, another", [
    ("MPICH", ["PMI_SIZE"], False), ("MPICH", ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK"], True),
    ("Intel MPI", ["PMIX_RANK"], True), ("Open MPI", ["PMIX_RANK"], False),
    ("Open MPI", ["PMI_SIZE"], True), ("Open MPI", [], False),
    ("MPICH", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"], False)])
def test_whose_launcher_it_is(vendor, names, another):
    assert serves_another(vendor, dict.fromkeys(names, "2")) is another


def test_this_process_has_its_own_library():
    assert require_mpi() is MPI


def test_what_launchers_say():
    assert launcher_rank({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}) == (3, 8)
    assert launcher({"PALS_RANKID": "1"}) == "mpiexec (HPE PALS)"


def test_launchers():
    assert launcher_rank({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8",
                          "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}) == (3, 8)
    step = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    assert launcher_rank(step) == (1, 4)
    assert launcher_rank({**step, "PMIX_RANK": "1"}) == (1, 4)
    # In the job script itself, not started by srun.
    assert launcher_rank({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) == (-1, -1)
    assert launcher({"PRTE_LAUNCHED": "1", "SLURM_STEP_ID": "1"}) == "mpiexec (Open MPI)"
    assert launcher({"SLURM_STEP_ID": "1"}) == "srun --mpi=none"


def test_hydra_inside_a_job_of_slurm_is_no_srun():
    step = {"SLURM_STEP_ID": "0", "SLURM_MPI_TYPE": "none", "PMI_RANK": "1", "PMI_SIZE": "2"}
    assert launcher(step) == "srun --mpi=none"
    assert launcher({**step, "MPI_LOCALRANKID": "1"}) == "mpiexec (MPICH's Hydra)"
    assert launcher({"FLUX_TASK_RANK": "0", "PMI_RANK": "0"}) == "flux run"

"""hpccoll verify, also with schedules from outside."""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpccoll.algorithms import ALGORITHMS, Algorithm, outside, schedule
from hpccoll.algorithms import table as algorithm_table
from hpccoll.algorithms.flat import ring
from hpccoll.cli import COMMANDS, main
from hpccoll.cli import verify as cli_verify
from hpccoll.explain import as_json, as_list, as_text
from hpccoll.ir.collectives import IN, OUT, collective_named
from hpccoll.ir.schedule import Program, at, copy
from hpccoll.ir.topology import Topology

# The commands ``hpccoll verify`` and ``hpccoll explain``, and how errors reach the user
pytest.importorskip("click")
pytest.importorskip("rich")


def call(*words):
    return CliRunner().invoke(main, list(words))


def keep(rank, size):
    """Copy the input: right for one rank only."""
    return Program(((copy(at(OUT, 0), at(IN, 0)),),))


def table(monkeypatch, **entries):
    """Make a table of these allreduces the only one."""
    for module in (algorithm_table, cli_verify):
        monkeypatch.setattr(module, "ALGORITHMS", {"allreduce": entries})


@pytest.mark.slow
def test_everything_is_proved_for_a_few_ranks():
    done = call("verify", "--ranks", "1-3", "--jobs", "1")
    assert done.exit_code == 0, done.output
    for collective, entries in ALGORITHMS.items():
        assert collective in done.output
        for name, entry in entries.items():
            assert name in done.output or entry.hierarchical
    assert "schedules proved" in done.output


def test_the_summary_tells_what_holds():
    done = call("verify", "--ranks", "1-5", "--collective", "allreduce",
                "--algorithm", "ring,recursive_doubling", "--jobs", "1")
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert "ring 5 any same bits 8 at 5" in lines
    assert "recursive_doubling 5 kept same bits 4 at 5" in lines
    assert "10 schedules proved" in lines
    assert "pat" not in done.output


def test_several_processes_prove_the_same():
    words = "verify", "--ranks", "1-4", "--algorithm", "ring"
    assert call(*words, "--jobs", "2").output == call(*words, "--jobs", "1").output


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_failure_ends_with_status_1_and_names_the_schedule(monkeypatch, jobs):
    table(monkeypatch, keep=Algorithm(keep))
    # Fresh processes would import the real table, and one with threads must not be forked.
    monkeypatch.setattr(cli_verify, "ProcessPoolExecutor",
                        lambda workers, context, start: ThreadPoolExecutor(workers))
    done = call("verify", "--ranks", "1-9", "--jobs", jobs)
    assert done.exit_code == 1
    assert "hpccoll: not proved: allreduce keep size=" in done.stderr
    assert "holds rank 0's block 0 instead of the contributions" in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("proved", [0, 2])
def test_ctrl_c_shows_what_is_proved(monkeypatch, proved):
    def stopping(work, jobs):
        yield from map(cli_verify.prove_job, work[:proved])
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_verify, "prove_all", stopping)
    done = call("verify", "--ranks", "1-9", "--collective", "allreduce", "--algorithm", "ring")
    assert done.exit_code == 130
    assert done.stderr == (f"hpccoll: verify: interrupted: {proved} of 9 cases (an algorithm, a "
                           "number of ranks) are proved\n")
    assert ("2 schedules proved" in done.stdout) is bool(proved)


def test_a_process_hears_ctrl_c_when_it_can_end_quietly(monkeypatch):
    """One that came while it began, too: deaf until then."""
    known, masks = [], []
    monkeypatch.setattr(signal, "signal", lambda *words: known.append(words))
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *words: masks.append(words))
    cli_verify.die_quietly()
    assert known == [(signal.SIGINT, signal.SIG_DFL)]
    assert masks == [(signal.SIG_UNBLOCK, {signal.SIGINT})]


@pytest.mark.parametrize("claims, problem", [
    ({"rounds": lambda p: 1}, "the closed form gives 1"),
    ({"sent": lambda p: 1}, "the closed form gives 1"),
    ({"rank_order": True}, "not combined in rank order, but the table has rank_order")])
@pytest.mark.parametrize("size", [4, 40])
def test_claims_of_the_table_are_proved_too(monkeypatch, claims, problem, size):
    table(monkeypatch, ring=Algorithm(ring.allreduce, blocks=lambda p: p, **claims))
    done = call("verify", "--ranks", str(size), "--jobs", "1")
    assert (done.exit_code, problem in done.stderr) == (1, True)


def test_results_that_differ_between_ranks_must_be_declared(monkeypatch):
    census = ALGORITHMS["allreduce"]["census"]
    table(monkeypatch, census=replace(census, exact_only=False))
    done = call("verify", "--ranks", "3", "--jobs", "1")
    assert done.exit_code == 1 and "does not have exact_only" in done.stderr


def test_hierarchical_algorithms_are_proved_on_layouts(monkeypatch):
    def build(rank, topology):
        return ring.allreduce(rank, topology.size)
    layered = Algorithm(build, blocks=lambda topology: topology.size, hierarchical=True)
    table(monkeypatch, ring=ALGORITHMS["allreduce"]["ring"], layered=layered)
    done = call("verify", "--topology", "2x2", "--topology", "2,1", "--jobs", "1")
    assert "2 schedules proved" in done.output and "6 at 2x2" in done.output
    assert "ring" not in done.output
    work = cli_verify.select(range(1, 65), [], [], [])
    assert {job.topology for job in work} == {None, *cli_verify.SHAPES}
    assert {job.topology for job in cli_verify.select([8], [], ["layered"], [])} == {
        shape for shape in cli_verify.SHAPES if Topology.parse(shape).size == 8}


def test_the_sample_covers_roots_and_parameters():
    def sample(size, thorough=False):
        job = cli_verify.ProofTask("bcast", "knomial", size, None, thorough)
        return [(s.root, s.params, varied) for s, varied in cli_verify.schedules(job)]
    ks = (("k", 2),), (("k", 3),), (("k", 4),), (("k", 8),)
    assert sample(9) == [(root, k, True) for root in (0, 4, 8) for k in ks]
    assert len(sample(40)) == 2 and sample(40) == sample(40)
    assert len(sample(40, thorough=True)) == 12
    assert len({s for size in range(33, 65) for s in sample(size)}) > 32
    assert {varied for size in range(33, 65) for *_, varied in sample(size)} == {True, False}


@pytest.mark.parametrize("words, message", [
    (["--ranks", "0"], "--ranks: cannot read '0'"),
    (["--ranks", "5-2"], "--ranks: cannot read '5-2'"),
    (["--collective", "reduceall"],
     "--collective: 'reduceall' is unknown; did you mean 'reduce' or 'allreduce'"),
    (["--algorithm", "rig"], "--algorithm: 'rig' is unknown; did you mean 'ring'"),
    (["--topology", "2x"], "topology: '2x' has no number"),
    (["--topology", "2x2", "--algorithm", "pat"], "select no case")])
def test_mistakes_are_one_line_and_status_2(words, message):
    done = call("verify", *words)
    assert done.exit_code == 2
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_explain_prints_text(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    done = call("explain", "bcast", "knomial", "--size", "5", "--root", "2", "--param", "k=3",
                "--nbytes", "100")
    assert done.exit_code == 0
    assert done.stdout == as_text(schedule("bcast", "knomial", 5, root=2, k=3), 100)


def test_explain_lists_algorithms(monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    assert call("explain", "--list").stdout == as_list(width=90)
    assert call("explain", "--list", "scan").stdout == as_list("scan", 90)
    done = call("explain", "--list", "scan", "linear")
    assert done.exit_code == 2 and "write --list or --list COLLECTIVE" in done.stderr
    assert call("explain", "scan").stdout.startswith(as_list("scan", 90))
    assert call("explain").stdout.startswith("allreduce") and "reduced over" in call(
        "explain").stdout


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_table_fits_and_says_what_its_columns_mean(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    done = call("verify", "--ranks", "1-4", "--collective", "allreduce,alltoall", "--jobs", "1")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if "algorithm" in line)
    for line in lines:
        if line.startswith("# "):
            assert f" {line[2:].partition(':')[0]}" in head
    assert sum(line.startswith("# ") for line in lines) == 4


@pytest.mark.parametrize("words, message", [
    (("explain", "--size", "2x4"), "explain: Invalid value for '--size': '2x4' is not a number of "
                                   "ranks; write a layout as --topology 2x4"),
    (("simulate", "allreduce", "--size", "3,5"), "write a layout as --topology 3,5"),
    (("explain", "allreduce", "ring", "--size", "some"), "'some' is not a number of ranks"),
    (("explain", "allreduce", "ring", "--size", "0"), "'--size': 0 is not in the range x>=1"),
    (("bench", "compare", "--nodez", "3"), "bench compare: No such option '--nodez'"),
    (("trace", "nowhere"), "trace: there is no folder 'nowhere'; run the program with"),
    (("trace", "diagnose", __file__),
     "test_verify.py' is no folder; run the program with HPCCOLL_TRACE=FOLDER"),
    (("trace", "calls", "--plt"), "run hpccoll trace calls --help")])
def test_a_users_mistake_is_one_line_of_ours(words, message):
    done = call(*words)
    assert done.exit_code == 2 and done.stdout == ""
    assert message in done.stderr and "Usage:" not in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("hpccoll: ")


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    ("explain", "Allreduce"), ("explain", "Iallreduce", "ring", "--size", "2"),
    ("explain", "MPI_Allreduce", "ring"), ("verify", "--collective", "Allreduce", "--ranks", "2"),
    ("simulate", "Allreduce", "--algorithm", "ring"),
    ("verify", "--collective", "Reduce_scatter_block,Allgatherv", "--ranks", "2")])
def test_collectives_are_known_by_their_names_in_mpi(words):
    done = call(*words)
    lower = call(*(word if word.startswith("-") else collective_named(word) if "," not in word
                   else "reduce_scatter,allgather" for word in words))
    assert done.exit_code == lower.exit_code == 0
    assert done.stdout == lower.stdout


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("words", [
    (), ("allreduce",), ("allreduce", "ring", "--size", "8"),
    ("alltoall", "two_phase", "--topology", "3x4"), ("bcast", "knomial", "--size", "20"),
    ("reduce", "rabenseifner", "--size", "7", "--nbytes", "1M", "--brief")])
def test_explain_fits(width, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = call("explain", *words).stdout.splitlines()
    assert max(map(len, lines)) <= width, max(lines, key=len)
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines)
    monkeypatch.setenv("COLUMNS", "1000")
    whole = call("explain", *words).stdout
    assert "".join(lines).replace(" ", "") == whole.replace("\n", "").replace(" ", "")


def test_explain_says_as_much_as_one_wants():
    whole, brief, one = (call("explain", "allreduce", "ring", "--size", "8", *words).stdout
                         for words in ((), ("--brief",), ("--rank", "3", "--nbytes", "1M")))
    assert len(brief.splitlines()) < 35 < len(whole.splitlines())
    assert "rank 3" in one and "rank 4\n" not in one and "128 KiB" in one
    done = call("explain", "allreduce", "ring", "--rank", "8")
    assert done.exit_code == 2 and "rank: 8 is not a rank of 0..7" in done.stderr
    done = call("explain", "allreduce", "ring", "--root", "2")
    assert done.exit_code == 2 and "allreduce has no root" in done.stderr
    assert call("explain", "bcast", "binomial", "--root", "2").exit_code == 0
    assert "cannot read '1Q'" in call("explain", "bcast", "binomial", "--nbytes", "1Q").stderr


def test_explain_writes_json(tmp_path):
    expected = as_json(schedule("allgather", "bruck", 8))
    assert json.loads(call("explain", "allgather", "bruck", "--json", "-").stdout) == expected
    path = tmp_path / "bruck.json"
    done = call("explain", "allgather", "bruck", "--json", str(path))
    assert (done.exit_code, done.stdout) == (0, "")
    assert json.loads(path.read_text()) == expected


def test_explain_draws(tmp_path):
    pytest.importorskip("matplotlib")
    done = call("explain", "allreduce", "ring", "--size", "3", "--draw", str(tmp_path / "x.svg"))
    assert done.exit_code == 0 and (tmp_path / "x.svg").exists()


@pytest.mark.parametrize("words, message", [
    (["allreduce", "rig"], "algorithm: allreduce has no algorithm 'rig'; did you mean 'ring'"),
    (["reduceall", "ring"], "collective: 'reduceall' is unknown"),
    (["allreduce", "ring", "--size", "0"], "'--size': 0 is not in the range x>=1"),
    (["allreduce", "ring", "--topology", "2x4", "--size", "9"], "has 8 ranks"),
    (["bcast", "linear", "--root", "8"], "root: 8 is not a rank of 0..7"),
    (["bcast", "knomial", "--param", "k"], "--param: cannot read 'k'; write it like k=4"),
    (["bcast", "knomial", "--param", "root=1"], "--param: root is not an algorithm parameter"),
    (["allreduce", "ring", "--param", "k=4"], "k: allreduce ring has no such parameter"),
    (["allreduce", "ring", "--json", "/nowhere/x"], "--json: cannot write '/nowhere/x'"),
    (["allreduce", "ring", "--draw", "x.xyz"], "has an unknown suffix")])
def test_explain_says_what_is_wrong(words, message):
    done = call("explain", *words)
    assert done.exit_code == 2
    assert done.stderr.startswith("hpccoll: ") and message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_lists_commands_without_importing_them():
    code = ("import sys; from hpccoll.cli import main; main(['--help'], standalone_mode=False); "
            "main(['verify', '--ranks', '2', '--jobs', '1', '--algorithm', 'pat'], "
            "standalone_mode=False); "
            "print([m for m in ('numpy', 'mpi4py', 'matplotlib', 'hpccoll.cli.bench', "
            "'hpccoll.cli.explain') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(f"  {name} " in done.stdout for name in COMMANDS)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_is_refused():
    assert call("prove").exit_code == 2


def test_a_missing_dependency_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="mpi4py")
    monkeypatch.setattr("hpccoll.cli.commands.import_module", missing)
    done = call("bench")
    assert done.exit_code == 2 and "bench requires mpi4py, which is not installed" in done.stderr


def test_the_module_runs_and_names_the_extra():
    done = subprocess.run([sys.executable, "-m", "hpccoll", "--version"], capture_output=True,
                          text=True)
    assert done.returncode == 0 and done.stdout.startswith("hpccoll, version ")
    code = "import sys; sys.modules['click'] = None; import hpccoll.__main__ as m; m.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == ("hpccoll: the command line requires click; run pip install "
                           "'hpccoll[cli]'\n")


# Algorithms of one's own on the command line: ``verify``, ``explain``, ``simulate``
pytest.importorskip("click")
pytest.importorskip("rich")


ROOT = Path(__file__).resolve().parents[3]
TORUS = str(ROOT / "examples" / "torus.py") + ":TORUS"
CUBE = "-p", "x=2", "-p", "y=2", "-p", "z=2"


def test_verify_proves_what_fits():
    done = call("verify", TORUS, "--size", "1-12", *CUBE, "--jobs", "1")
    assert done.exit_code == 0 and "1 schedule proved" in done.output, done.output
    # As bench and simulate call it: without folders, which a narrow terminal has no room for.
    assert "torus.py:TORUS:x=2:y=2:z=2 1 any same bits 6 at 8" in " ".join(done.output.split())
    done = call("verify", TORUS.replace("TORUS", "torus"), "--size", "8", *CUBE, "--collective",
                "allreduce", "--jobs", "1")
    assert done.exit_code == 1 and "does not exist: this rank has 1 slots" in done.stderr


def test_verify_and_explain_know_the_names_of_installed_packages(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: (
        EntryPoint("snake", "examples.torus:TORUS", group),))
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.chdir(ROOT)
    for function in (outside._points, outside._entry_point_algorithms):
        function.cache_clear()
    try:
        done = call("verify", "snake", "--size", "8", *CUBE, "--jobs", "1")
        assert done.exit_code == 0 and "1 schedule proved" in done.output, done.output
        listed = call("explain", "allreduce").output
        assert "  snake                  Reduce-scatter along each dimension" in listed
        assert "snake" not in call("explain", "bcast").output
    finally:
        for function in (outside._points, outside._entry_point_algorithms):
            function.cache_clear()


def test_verify_takes_a_name_for_every_collective_that_has_it():
    done = call("verify", "ring", "--size", "1-3", "--jobs", "1")
    assert done.exit_code == 0 and "9 schedules proved" in done.output, done.output
    done = call("verify", "rign", "--size", "4")
    assert done.exit_code == 2 and "'rign' is unknown; did you mean 'ring'" in done.stderr


def test_a_file_alone_names_what_it_has():
    for command in ("explain", "verify", "simulate"):
        done = call(command, TORUS.removesuffix(":TORUS"))
        assert done.exit_code == 2 and "torus.py:TORUS; it has TORUS, torus" in done.stderr


def test_verify_finds_a_slip(tmp_path):
    """Leaving the last round out is refused; without ``[:-1]`` this test fails."""
    (tmp_path / "slip.py").write_text(
        "from hpccoll import Algorithm\n"
        "from hpccoll.algorithms.flat import ring\n"
        "SLIP = Algorithm(lambda rank, size: ring.allgather(rank, size)._replace(\n"
        "    rounds=ring.allgather(rank, size).rounds[:-1]), 'allgather', rank_order=True)\n")
    done = call("verify", f"{tmp_path}/slip.py:SLIP", "--size", "4", "--jobs", "1")
    assert done.exit_code == 1 and "not proved: allgather SLIP size=4" in done.stderr


def test_explain_and_draw_beside(tmp_path):
    done = call("explain", TORUS, "--size", "8", *CUBE)
    assert done.exit_code == 0 and done.output.startswith("allreduce torus size=8 nblocks=16 x=2")
    assert call("explain", "allreduce", f"{TORUS}:x=2:y=2", "--size", "8", "-p",
                "z=2").output == done.output
    pytest.importorskip("matplotlib")
    path = tmp_path / "both.svg"
    done = call("explain", TORUS, "--size", "8", *CUBE, "--beside", "ring", "--beside",
                "rabenseifner", "--draw", str(path))
    assert done.exit_code == 0, done.output
    assert all(name in path.read_text() for name in ("torus", "ring", "rabenseifner"))


def test_simulate_compares():
    done = call("simulate", TORUS, "--size", "8", *CUBE, "--algorithm", "ring,knomial")
    assert done.exit_code == 2 and "no algorithm 'knomial'" in done.stderr
    done = call("simulate", TORUS, "--size", "8", *CUBE)
    assert done.exit_code == 0 and "6 rounds" in done.output
    done = call("simulate", "allreduce", "--nodes", "2", "--ppn", "4", "--algorithm",
                f"{TORUS}:x=4:y=2:z=1,ring")
    assert done.exit_code == 0 and "  torus.py:TORUS:x=4:y=2:z=1 " in done.output
    assert "ring" in done.output


@pytest.mark.parametrize("words, message", [
    (("verify", TORUS, "--size", "8"), "requires x, y, z"),
    (("verify", TORUS, "--size", "6", *CUBE),
     "supports none of them: size: torus does not support 6"),
    (("verify", "-p", "x=2"), "--param: requires NAME or FILE.py:NAME"),
    (("verify", TORUS.replace("TORUS", "torus"), *CUBE), "is a builder without"),
    (("explain", TORUS, "--size", "8", *CUBE, "--beside", "ring"), "requires --draw"),
    (("explain", f"{TORUS}:x=2", "--size", "8", *CUBE), "--param: x is given twice"),
    (("explain", "allredcue", "ring"), "did you mean 'allreduce'"),
    (("explain", "nowhere.py:x"), "there is no file 'nowhere.py'"),
    (("simulate", TORUS, "--size", "8", "--topology", "2x4", *CUBE), "does not go with --topology"),
    (("simulate", "allreduce", "-p", "k=2"), "requires FILE.py:NAME"),
    (("verify", "--algorithm", "rabensefner"), "did you mean 'rabenseifner'")])
def test_mistakes_are_one_line(words, message):
    done = call(*words)
    assert done.exit_code == 2 and message in done.stderr, done.output
    assert len(done.stderr.splitlines()) == 1

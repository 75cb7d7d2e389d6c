"""Records of the benchmark read again: two compared, and several libraries side by side."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from hpccoll.cli import main
from hpccoll.errors import HpccollError
from hpccoll.tools.bench import compare, records


def written(path, medians, library="MPICH 5.0.2", wrong=0, ranks=2, schema=records.SCHEMA,
            settings=None):
    """Write a record with a median in microseconds for every (collective, bytes, candidate)."""
    results = []
    for (collective, nbytes, candidate), median in medians.items():
        native = medians.get((collective, nbytes, "native"))
        results.append({
            "collective": collective, "candidate": candidate, "ranks": ranks, "root": None,
            "nbytes": nbytes, "dtype": "float32", "op": "sum", "in_place": False,
            "wrong": wrong, "changed": 0,
            "statistics": {"p50_seconds": median * 1e-6, "limit": None,
                           "ratio": native and native / median}})
    path.write_text(json.dumps({
        "schema": schema, "results": results, "settings": settings or {},
        "environment": {"mpi": f"{library}, a long text", "library": library, "ranks": ranks,
                        "cpu": "CPU", "cores": 2, "time": "2026-01-01T00:00:00"}}))
    return str(path)


OLD = {("allreduce", 8, "native"): 4, ("allreduce", 8, "ring"): 10,
       ("bcast", 1024, "native"): 20, ("bcast", 1024, "chain"): 10}


def bench(*words):
    return CliRunner().invoke(main, ["bench", *words])


# -- compare --------------------------------------------------------------------------------
def test_equal_records_have_no_regression(tmp_path):
    path = written(tmp_path / "a.json", OLD)
    ran = bench("--compare", path, path)
    assert ran.exit_code == 0, ran.output
    assert "regressions beyond 10 %: 0 of 4" in ran.output
    assert "differs" not in ran.output and "only in" not in ran.output


def test_regressions_are_found(tmp_path):
    old = written(tmp_path / "a.json", OLD)
    new = written(tmp_path / "b.json", {**OLD, ("allreduce", 8, "ring"): 11.5,
                                        ("bcast", 1024, "chain"): 5,
                                        ("bcast", 2048, "chain"): 5}, library="MPICH 6")
    ran = bench("--compare", old, new)
    assert ran.exit_code == 1
    row, = [line for line in ran.output.splitlines() if "ring" in line and "geometric" not in line]
    assert row.split() == ["allreduce", "2", "8", "ring", "10.00", "11.50", "0.87", "regression"]
    assert "geometric mean of the ratio, chain: 2.00 (1)" in ran.output
    assert "library differs: MPICH 5.0.2 and MPICH 6" in ran.output
    assert "1 of 5 results" in ran.output
    assert bench("--compare", old, new, "--tolerance", "16").exit_code == 0
    assert bench("--compare", old, new, "bcast").exit_code == 0
    assert bench("--compare", old, new, "barrier").exit_code == 2
    rows = [line for line in ran.output.splitlines() if not line.startswith("#")]
    assert len({line.index(".") for line in rows}) == 1


def test_exactly_the_tolerance_is_no_regression():
    pair = compare.ComparedCase(None, records.Entry(1.0, 0, None, None),
                                records.Entry(1.5, 0, None, None))
    assert not pair.regressed(0.5) and pair.regressed(0.49)


def test_wrong_results_are_a_regression(tmp_path):
    old = written(tmp_path / "a.json", OLD)
    ran = bench("--compare", old, written(tmp_path / "b.json", OLD, wrong=3))
    assert ran.exit_code == 1 and "WRONG: 3 elements" in ran.output


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1}', '{"schema": 99}',
                                  '{"schema": 1, "results": [1]}', "\0",
                                  '{"schema": 1, "results": [], "environment": {"mpi": ""}, '
                                  '"settings": {"settings": 3}}',
                                  pytest.param("[" * 100_000, id="nested"),
                                  pytest.param("1" * 5000, id="digits")])
def test_no_record(tmp_path, text):
    (tmp_path / "b.json").write_text(text)
    ran = bench("--compare", written(tmp_path / "a.json", OLD), str(tmp_path / "b.json"))
    assert ran.exit_code == 2 and ran.stdout == ""
    assert "b.json" in ran.stderr and ran.stderr.count("\n") == 1


def test_a_median_that_is_none(tmp_path):
    with pytest.raises(HpccollError, match="a.json"):
        records.read(written(tmp_path / "a.json", {("allreduce", 8, "ring"): float("nan")}))


def test_settings_that_differ_are_named(tmp_path):
    older = {"uneven": False, "dtype": "float32", "settings": {"warmup": None, "segment_bytes": 0}}
    newer = {"uneven": True, "registered": True, "sweeps": 6,
             "settings": {"warmup": 3, "rotate": 2, "segment_bytes": 65536, "topology": None}}
    old, new = (written(tmp_path / f"{n}.json", OLD, settings=made)
                for n, made in enumerate((older, newer)))
    ran = bench("--compare", old, new)
    assert ran.exit_code == 0, ran.output
    assert [line for line in ran.output.splitlines() if "differs" in line] == [
        "# uneven differs: False and True", "# segment_bytes differs: 0 and 65536",
        "# warmup differs: None and 3", "# sweeps differs: 1 and 6", "# rotate differs: 1 and 2"]
    # What an older record does not know was not chosen in it.
    same = written(tmp_path / "same.json", OLD, settings={**older, "sweeps": 1})
    assert "differs" not in bench("--compare", old, same).output


@pytest.mark.parametrize("change", [
    {"ranks": None}, {"ranks": "2"}, {"wrong": "many", "changed": "none"}, {"wrong": None},
    {"candidate": 3}, {"collective": None}, {"nbytes": "8"}, {"dtype": ["float32"]},
    {"statistics": 3}, {"statistics": {"p50_seconds": 0, "ratio": None}},
    {"statistics": {"p50_seconds": 10 ** 400, "ratio": None}},
    {"statistics": {"p50_seconds": 1e-320, "ratio": None}},
    {"statistics": {"p50_seconds": "1e-6", "ratio": None}},
    {"statistics": {"p50_seconds": 1e-6, "ratio": 0}},
    {"statistics": {"p50_seconds": 1e-6, "ratio": "1"}}])
def test_results_written_by_hand(tmp_path, change):
    path = tmp_path / "b.json"
    written(path, OLD)
    data = json.loads(path.read_text())
    data["results"][0] |= change
    path.write_text(json.dumps(data))
    ran = bench("--compare", written(tmp_path / "a.json", OLD), str(path))
    assert ran.exit_code == 2 and ran.stdout == ""
    assert "b.json" in ran.stderr and ran.stderr.count("\n") == 1


def test_nothing_in_common(tmp_path):
    old, new = written(tmp_path / "a.json", OLD), written(tmp_path / "b.json", OLD, ranks=4)
    ran = bench("--compare", old, new)
    assert ran.exit_code == 2 and "in common" in ran.stderr
    ran = bench("--compare", old, str(tmp_path / "none.json"))
    assert ran.exit_code == 2 and "No such file" in ran.stderr


def without_mpi(*words):
    return subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['mpi4py'] = None\n"
         "from hpccoll.cli import main; main(sys.argv[1:])", "bench", *words],
        capture_output=True, text=True, timeout=60, check=False)


def test_comparing_starts_no_mpi(tmp_path):
    path = written(tmp_path / "a.json", OLD)
    done = without_mpi("--compare", path, path)
    assert done.returncode == 0, done.stderr
    assert "0 of 4" in done.stdout


# -- matrix ---------------------------------------------------------------------------------
def environment(folder, name, medians, library, status=0):
    """A directory like a virtual environment, whose mpiexec leaves a record made before."""
    binaries = folder / name / "bin"
    binaries.mkdir(parents=True)
    record = written(folder / f"{name}.json", medians, library)
    (binaries / "mpiexec").write_text(
        '#!/bin/sh\necho : "$@" >> "$0.log"\nwhile [ "$1" != --json ]; do shift; done\n'
        f'cp "{record}" "$2"\nexit {status}\n')
    (binaries / "python").write_text("#!/bin/sh\n")
    for program in ("mpiexec", "python"):
        (binaries / program).chmod(0o755)
    return str(folder / name)


def test_matrix(tmp_path):
    pytest.importorskip("matplotlib")
    one = environment(tmp_path, "one", OLD, "MPICH 5.0.2")
    two = environment(tmp_path, "two", {**OLD, ("allreduce", 8, "ring"): 2}, "Open MPI 5")
    out = tmp_path / "new" / "folder"
    ran = bench("allreduce", "bcast", "-m", "1K", "-l", "--matrix", one, "--matrix", two,
                "--ranks", "2", "-o", str(out))
    assert ran.exit_code == 0, ran.output
    text = (out / "ratios.md").read_text()
    assert text in ran.output
    assert "| bytes | MPICH 5.0.2: ring | Open MPI 5: ring |" in text
    assert "| 8 | 0.40 | 2.00 |" in text and "| geometric mean | 2.00 | 2.00 |" in text
    assert (out / "ratios.png").stat().st_size > 5000
    said = (tmp_path / "two" / "bin" / "mpiexec.log").read_text().split()[1:]
    assert said[:2] == ["-n", "2"] and said[3:9] == [
        "-m", "hpccoll", "bench", "allreduce", "bcast", "--sizes"]
    assert said[9:12] == ["1K", "--in-place", "--json"]


def test_a_matrix_of_one_library_twice(tmp_path):
    pytest.importorskip("matplotlib")
    one = environment(tmp_path, "mpich", OLD, "MPICH 5.0.2")
    two = environment(tmp_path, "mpich-5.0", {**OLD, ("allreduce", 8, "ring"): 2}, "MPICH 5.0.2")
    three = environment(tmp_path, "open", OLD, "Open MPI 5")
    ran = bench("allreduce", "--matrix", one, "--matrix", two, "--matrix", three,
                "--ranks", "2,3", "-o", str(tmp_path / "out"))
    assert ran.exit_code == 0, ran.output
    assert ("| bytes | MPICH 5.0.2 (mpich): ring | MPICH 5.0.2 (mpich-5.0): ring "
            "| Open MPI 5: ring |") in ran.output
    assert "| 8 | 0.40 | 2.00 | 0.40 |" in ran.output
    assert "* MPICH 5.0.2 (mpich-5.0), 2 ranks" in ran.output


def test_matrix_says_what_failed(tmp_path):
    one = environment(tmp_path, "one", OLD, "MPICH 5.0.2")
    two = environment(tmp_path, "two", OLD, "Open MPI 5", status=1)
    (tmp_path / "two.json").write_text("{")
    ran = bench("allreduce", "--matrix", one, "--matrix", two, "--ranks", "2",
                "-o", str(tmp_path / "out"))
    assert ran.exit_code == 1
    assert "two, 2 ranks: exit status 1" in ran.stderr and "is no record" in ran.stderr
    assert "MPICH 5.0.2: ring" in ran.stdout


@pytest.mark.parametrize("words, problem", [
    (["--ranks", "x"], "--ranks"), (["--ranks", "0"], "--ranks"), (["--ranks", "2,2"], "twice"),
    (["--matrix", "/nonexistent"], "/nonexistent has no bin/python"),
    (["--json", "x.json"], "--json"), (["--overlap"], "--overlap"),
    (["-o", "/dev/null/x"], "cannot write")])
def test_matrix_refuses(tmp_path, words, problem):
    one = environment(tmp_path, "one", OLD, "MPICH 5.0.2")
    ran = bench("allreduce", "--matrix", one, "-o", str(tmp_path / "out"), *words)
    assert ran.exit_code == 2 and ran.stdout == ""
    assert problem in ran.stderr and ran.stderr.count("\n") == 1


def test_the_matrix_starts_no_mpi_itself(tmp_path):
    pytest.importorskip("matplotlib")
    one = environment(tmp_path, "one", OLD, "MPICH 5.0.2")
    done = without_mpi("allreduce", "--matrix", one, "--ranks", "2", "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr

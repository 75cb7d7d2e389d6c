"""The program ``benchmarks/bench_matrix.py``: several MPI libraries."""


import pytest
from bench_matrix import command
from click.testing import CliRunner
from unit.bench_records import OLD, written


def matrix(*words):
    return CliRunner().invoke(command, words)


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
    ran = matrix("allreduce", "bcast", "-m", "1K", "-l", "-e", one, "-e", two,
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
    ran = matrix("allreduce", "-e", one, "-e", two, "-e", three,
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
    ran = matrix("allreduce", "-e", one, "-e", two, "--ranks", "2",
                "-o", str(tmp_path / "out"))
    assert ran.exit_code == 1
    assert "two, 2 ranks: exit status 1" in ran.stderr and "is not a record" in ran.stderr
    assert "MPICH 5.0.2: ring" in ran.stdout


@pytest.mark.parametrize("words, problem", [
    (["--ranks", "x"], "--ranks"), (["--ranks", "0"], "--ranks"),
    (["-e", "missing"], "missing has no bin/python"),
    (["--json", "x.json"], "--json"), (["--overlap"], "--overlap"),
    (["-o", "/dev/null/x"], "cannot write")])
def test_matrix_refuses(tmp_path, monkeypatch, words, problem):
    monkeypatch.chdir(tmp_path)
    one = environment(tmp_path, "one", OLD, "MPICH 5.0.2")
    ran = matrix("allreduce", "-e", one, "-o", str(tmp_path / "out"), *words)
    assert ran.exit_code == 2 and ran.stdout == ""
    assert problem in ran.stderr and ran.stderr.count("\n") == 1

"""``hpccoll bench compare``."""

from pathlib import Path

import pytest
from unit.bench_records import OLD, bench, without_mpi, written

from hpccoll.tools.bench import compare, records


def test_equal_records_have_no_regression(tmp_path):
    path = written(tmp_path / "a.json", OLD)
    ran = bench("compare", path, path)
    assert ran.exit_code == 0, ran.output
    assert "regressions beyond 10 %: 0 of 4" in ran.output
    assert "differs" not in ran.output and "only in" not in ran.output


def test_regressions_are_found(tmp_path):
    old = written(tmp_path / "a.json", OLD)
    new = written(tmp_path / "b.json", {**OLD, ("allreduce", 8, "ring"): 11.5,
                                        ("bcast", 1024, "chain"): 5,
                                        ("bcast", 2048, "chain"): 5}, library="MPICH 6")
    ran = bench("compare", old, new)
    assert ran.exit_code == 1
    row, = [line for line in ran.output.splitlines() if "ring" in line and "geometric" not in line]
    assert row.split() == ["8", "B", "ring", "10", "us", "11.5", "us", "0.87", "regression"]
    assert "# allreduce, 2 ranks, float32, sum\n" in ran.output
    assert "geometric mean of the ratio, chain: 2.00 (1)" in ran.output
    assert "library differs: MPICH 5.0.2 and MPICH 6" in ran.output
    assert "1 of 5 results" in " ".join(ran.output.replace("#", "").split())  # behind a long path
    assert bench("compare", old, new, "--tolerance", "16").exit_code == 0
    assert bench("compare", old, new, "bcast").exit_code == 0
    assert bench("compare", old, new, "barrier").exit_code == 2


def test_where_native_moved_nothing_is_compared(tmp_path):
    """Two runs of one program, the second on a busy machine: native itself is 4.9 times slower.

    Fails where native is a candidate like others: that was once 'regressions: 4 of 4', or none.
    """
    old = written(tmp_path / "a.json", OLD)
    new = written(tmp_path / "b.json", {
        key: median * (4.9 if key[:2] == ("allreduce", 8) else 1) for key, median in OLD.items()})
    ran = bench("compare", old, new)
    assert ran.exit_code == 0, ran.output
    assert "native changed by up to 4.9x" in ran.output
    assert "regressions beyond 10 %: 0 of 2" in ran.output
    assert ran.output.count("native moved") == 2 and "regression\n" not in ran.output
    all_moved = written(tmp_path / "c.json", {key: 3 * median for key, median in OLD.items()})
    ran = bench("compare", old, all_moved)
    assert ran.exit_code == 3 and "regressions" not in ran.output
    # A wrong result is one, however busy the machine.
    wrong = written(tmp_path / "d.json", {key: 3 * median for key, median in OLD.items()}, wrong=1)
    assert bench("compare", old, wrong).exit_code == 1
    # Another library is another native.
    other = written(tmp_path / "e.json", {key: 3 * median for key, median in OLD.items()},
                    library="MPICH 6")
    assert bench("compare", old, other).exit_code == 1


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_table_fits(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    path = str(Path(__file__).parents[4] / "docs/data/others/mpich-2.json")
    ran = bench("compare", path, path)
    assert ran.exit_code == 0, ran.output
    assert max(map(len, ran.output.splitlines())) <= width
    assert "MiB" in ran.output and "67108864" not in ran.output


def test_exactly_the_tolerance_is_no_regression():
    pair = compare.ComparedCase(None, records.Entry(1.0, 0, None, None),
                                records.Entry(1.5, 0, None, None))
    assert not pair.has_regressed(0.5) and pair.has_regressed(0.49)


def test_wrong_results_are_a_regression(tmp_path):
    old = written(tmp_path / "a.json", OLD)
    ran = bench("compare", old, written(tmp_path / "b.json", OLD, wrong=3))
    assert ran.exit_code == 1 and "WRONG: 3 elements" in ran.output


def test_settings_that_differ_are_named(tmp_path):
    older = {"uneven": False, "dtype": "float32", "settings": {"warmup": None, "segment_bytes": 0}}
    newer = {"uneven": True, "registered": True, "sweeps": 6,
             "settings": {"warmup": 3, "rotate": 2, "segment_bytes": 65536, "topology": None}}
    old, new = (written(tmp_path / f"{n}.json", OLD, settings=made)
                for n, made in enumerate((older, newer)))
    ran = bench("compare", old, new)
    assert ran.exit_code == 0, ran.output
    assert [line for line in ran.output.splitlines() if "differs" in line] == [
        "# uneven differs: False and True", "# segment_bytes differs: 0 and 65536",
        "# warmup differs: None and 3", "# sweeps differs: 1 and 6", "# rotate differs: 1 and 2"]
    # What an older record does not know was not chosen in it.
    same = written(tmp_path / "same.json", OLD, settings={**older, "sweeps": 1})
    assert "differs" not in bench("compare", old, same).output


def test_nothing_in_common(tmp_path):
    old, new = written(tmp_path / "a.json", OLD), written(tmp_path / "b.json", OLD, ranks=4)
    ran = bench("compare", old, new)
    assert ran.exit_code == 2 and "share no" in ran.stderr
    ran = bench("compare", old, str(tmp_path / "none.json"))
    assert ran.exit_code == 2 and "No such file" in ran.stderr


def test_comparing_starts_no_mpi(tmp_path):
    path = written(tmp_path / "a.json", OLD)
    done = without_mpi("compare", path, path)
    assert done.returncode == 0, done.stderr
    assert "0 of 4" in done.stdout

"""``hpccoll bench --compare``."""

from unit.bench_records import OLD, bench, without_mpi, written

from hpccoll.tools.bench import compare, records


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


def test_nothing_in_common(tmp_path):
    old, new = written(tmp_path / "a.json", OLD), written(tmp_path / "b.json", OLD, ranks=4)
    ran = bench("--compare", old, new)
    assert ran.exit_code == 2 and "in common" in ran.stderr
    ran = bench("--compare", old, str(tmp_path / "none.json"))
    assert ran.exit_code == 2 and "No such file" in ran.stderr


def test_comparing_starts_no_mpi(tmp_path):
    path = written(tmp_path / "a.json", OLD)
    done = without_mpi("--compare", path, path)
    assert done.returncode == 0, done.stderr
    assert "0 of 4" in done.stdout

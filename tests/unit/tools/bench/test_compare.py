"""Results of the benchmark: comparison, bounds and overlap."""

import json
from types import SimpleNamespace

import numpy
import pytest
from click.testing import CliRunner
from mpi4py import MPI
from unit.bench_records import OLD, bench, without_mpi, written
from unit.bench_results import ENVIRONMENT, result

from hpccoll.cli import main
from hpccoll.cli.bench_more import overlap_command as command
from hpccoll.ir.methods import METHODS
from hpccoll.measure.cases import make
from hpccoll.tools.bench import comparison_result, overlap, roofline
from support.folded import folded
from support.gpu.device import installed


# ``hpccoll bench compare``
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
    """Two runs of one program, the second on a busy machine: native itself is 4.9 times slower."""
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


# What is said at the end of a benchmark, and when nothing may be said
pytest.importorskip("rich")


STEADY = [4.0] * 10


def groups(*ratios, serves="ring", start=8):
    """A size for every ratio of native's time to auto's, steadily measured."""
    return [[result("native", STEADY, nbytes=start << 2 * n),
             result("auto", [4 / ratio] * 10, nbytes=start << 2 * n, serves=serves)]
            for n, ratio in enumerate(ratios)]


def told(*ratios):
    return comparison_result.sentences(groups(*ratios), {**ENVIRONMENT, "hosts": {"a": 2}})[0]


@pytest.mark.parametrize("ratios, words", [
    ((1.6, 1.6), "allreduce: auto was 1.6x as fast as MPICH at all sizes"),
    ((1.0, 1.02, 2.0), "allreduce: auto was 2.0x as fast as MPICH at 128 B, equal up to 32 B"),
    ((0.8,), "allreduce: auto was 0.80x as fast as MPICH at 8 B"),
    ((1, 2, 0.5, 1), "allreduce: auto was 2.0x as fast as MPICH at 32 B, equal at 8 B and at "
                     "512 B, 0.50x as fast at 128 B"),
    ((3.0, 3.1, 2.9, 1.3, 1.3), "allreduce: auto was 3.0x as fast as MPICH up to 128 B, 1.3x as "
                                "fast at 512 B and above"),
    ((1.3, 2.9, 1.4, 3.0), "allreduce: auto was 1.3x to 3.0x as fast as MPICH at all sizes"),
    ((1, 2, 1, 2, 1, 2), "allreduce: auto was 2.0x as fast as MPICH at 3 of 6 sizes, equal at 3 of "
                         "6 sizes")])
def test_a_sentence(ratios, words):
    assert told(*ratios) == words


def left(*ratios):
    return comparison_result.sentences(groups(*ratios, serves="native"),
                                       {**ENVIRONMENT, "hosts": {"a": 2}})


def test_a_call_left_to_the_library_is_no_faster_than_the_library():
    near, far = left(1.1), left(1.5)
    assert near == ["allreduce: auto was equal to MPICH at 8 B, where it used MPICH"]
    assert far[0] == "allreduce: auto was too noisy to compare at 8 B"
    assert "other processes used these cores" in far[1]


def test_a_call_left_to_the_library_is_slower_only_by_what_handing_it_on_costs():
    """That the call took longer is said, not that an algorithm was slower."""
    near = left(0.9, 0.85, 1.0)
    assert near == [
        "allreduce: auto was equal to MPICH at all sizes, where it used MPICH",
        "2 sizes that auto passed to MPICH took up to 1.18x as long: forwarding cost, or noise of "
        "the machine"]
    far, = left(0.5)
    assert far == ("allreduce: auto was 0.50x as fast as MPICH at 8 B, where it used "
                   "MPICH"), "more than luck explains is named"


def test_a_loss_that_the_parts_of_a_run_do_not_agree_on_is_noise_where_the_library_served():
    wild = [8, 8, 30, 30, 8, 8, 30, 30, 12, 12]
    mine = [[result("native", STEADY), result("auto", wild, serves="native")]]
    assert "too noisy to compare" in comparison_result.sentences(mine, ENVIRONMENT)[0]


def test_sizes_left_to_the_library_are_told_from_equal_ones_that_were_served():
    mine = groups(1, 1, 1, 2)
    mine[1] = groups(1, 1, serves="native")[1]
    assert comparison_result.sentences(mine, ENVIRONMENT)[0] == (
        "allreduce: auto was 2.0x as fast as MPICH at 512 B, equal up to 128 B")
    mine[0], mine[2] = (groups(1, 1, 1, serves="native")[n] for n in (0, 2))
    assert comparison_result.sentences(mine, ENVIRONMENT)[0] == (
        "allreduce: auto was 2.0x as fast as MPICH at 512 B, equal up to 128 B, where it used "
        "MPICH")


def test_the_best_candidate_is_meant_where_there_is_no_auto():
    mine = [[result("native", STEADY), result("ring", [2] * 10), result("pat", [3] * 10)]]
    said = comparison_result.sentences(mine, ENVIRONMENT)
    assert said[0] == "allreduce: the best candidate was 2.0x as fast as MPICH at 1 KiB"


def test_parts_that_disagree_are_no_result():
    """Fails where noise is not looked for: the medians alone say 2.5x."""
    wild = [1, 1, 10, 10, 1, 1, 10, 10, 4, 4]
    mine = [[result("native", wild), result("auto", STEADY, serves="ring")]]
    said = comparison_result.sentences(mine, ENVIRONMENT)
    assert said[0].startswith("allreduce: auto was too noisy to compare")
    assert "too noisy to compare: 1 of 1 size" in said[1] and "repeat it" in said[1]


def test_a_ratio_that_no_algorithm_reaches_is_no_result():
    mine = [[result("native", [877] * 10, nbytes=8),
             result("auto", [9.4] * 10, nbytes=8, serves="ring")]]
    said = comparison_result.sentences(mine, ENVIRONMENT)
    assert "too noisy to compare" in said[0] and "93x is not plausible" in said[1]


def test_a_message_that_took_much_longer_than_a_larger_one_is_no_result():
    """Both were late, so the ratio of their times looks like any other."""
    mine = groups(3, 3, 3, 3)
    mine[1] = [r._replace(seconds=tuple(150 * one for one in r.seconds)) for r in mine[1]]
    said = comparison_result.sentences(mine, ENVIRONMENT)
    assert "too noisy to compare at 32 B" in said[0]
    assert "32 B took 150 times as long as a larger size" in said[1]


def test_sure_but_rough():
    """Always faster, but nobody knows how much."""
    wild = [8, 8, 30, 30, 8, 8, 30, 30, 12, 12]
    said = comparison_result.sentences(
        [[result("native", wild), result("auto", STEADY, serves="ring")]], ENVIRONMENT)
    assert "as fast as MPICH" in said[0]
    assert said[1].startswith("the faster one is certain, the ratio is not: 1 of 1 size")


def test_ranks_that_share_cores():
    crowded = {**ENVIRONMENT, "hosts": {"a": 4}}
    assert comparison_result.sentences(groups(1.6), crowded)[-1].startswith(
        "4 ranks share 2 cores: with one core")
    assert len(comparison_result.sentences(
        groups(1.6), {**ENVIRONMENT, "hosts": {"a": 2, "b": 2}})) == 1


def test_one_rank_has_no_verdict():
    said = comparison_result.sentences(groups(0.67), {**ENVIRONMENT, "ranks": 1})
    assert len(said) == 1 and "one rank sends no messages" in said[0]


# What memory allows
FLOAT = numpy.dtype("f4")


def demanded(case):
    """What :mod:`hpccoll.ir.collectives` demands: inputs that matter, outputs not there already."""
    read, written = set(), 0
    for rank in range(case.size):
        for block, ranks in case.expected_blocks(rank):
            there = tuple(ranks) == (rank,) and (case.shares(rank) or case.collective == "bcast")
            if not there:
                written += case.extent(block)
                read |= {(contributor, block) for contributor in ranks}
    return (sum(case.extent(block) for _, block in read) + written) * case.dtype.itemsize


@folded("collective", METHODS)
@folded("in_place", [False, True])
@folded("uneven", [False, True])
@folded("size", [1, 2, 3, 5])
def test_bytes_that_must_move(collective, in_place, uneven, size):
    case = make(collective, size, 600 * size, FLOAT, root=size - 1, in_place=in_place,
                uneven=uneven)
    assert roofline.memory_bytes(case) == demanded(case)


def test_limit_is_a_part_of_what_memory_allows():
    case = make("allreduce", 4, 1 << 20, FLOAT)
    seconds = roofline.min_seconds(case, 8e9)
    assert seconds == pytest.approx(2 * 4 * (1 << 20) / 8e9)
    assert result("ring", [2e6 * seconds], limit_seconds=seconds).limit == pytest.approx(0.5)
    assert result("ring", [1]).limit is None
    assert roofline.min_seconds(make("allreduce", 4, 1 << 10, FLOAT), 8e9) is None
    assert roofline.min_seconds(make("barrier", 4, 0, FLOAT), 8e9) is None


def test_copies_on_a_gpu_have_one_when_they_are_over(monkeypatch):
    monkeypatch.setattr(roofline, "ON_GPUS", 1 << 20)
    with installed(False) as cupy:
        waits = cupy.cuda.get_current_stream().synchronized
        assert 1e8 < roofline.copy_rate(MPI.COMM_SELF, on_device=True) < 1e13
        assert cupy.cuda.get_current_stream().synchronized == waits + roofline.TURNS


# Overlap of nonblocking collectives and computation
pytest.importorskip("click")
pytest.importorskip("rich")


def run_bench(*words):
    return CliRunner().invoke(main, ["bench", *words])


@pytest.mark.parametrize("pure, compute, overlapped, percent", [
    (10, 10, 10, 100), (10, 10, 20, 0), (10, 12, 17, 50), (10, 10, 40, 0), (10, 12, 11, 100)])
def test_overlap_is_what_osu_means(pure, compute, overlapped, percent):
    made = overlap.Overlap("allreduce", "ring", 2, None, 8, "float32", "sum", False, 0, "numpy",
                           (pure, pure, 99), (10,) * 3, (compute,) * 3, (overlapped,) * 3,
                           (1,) * 3, 0, 0)
    assert made.percent == pytest.approx(percent)
    assert made.gain == pytest.approx(10 * (20 - overlapped))


@pytest.mark.parametrize("kind", overlap.WORK)
def test_work_lasts_as_long_as_asked(kind):
    work = overlap.Computation(MPI.COMM_SELF, kind)
    assert 0 < work.unit < 0.1
    assert work.units(0) == 1 and work.units(100 * work.unit) == 100


def test_kinds_of_work(tmp_path):
    path = tmp_path / "record.json"
    ran = run_bench("overlap", "barrier", "-i", "1", "--algorithm", "native", "--json", str(path),
                *(word for kind in ("python", "asleep", "python") for word in ("--work", kind)))
    assert ran.exit_code == 0, ran.output
    works = [result["work"] for result in json.loads(path.read_text())["overlap"]]
    assert works == ["python", "asleep"]
    ran = run_bench("overlap", "barrier", "--work", "music")
    assert ran.exit_code == 2
    assert "'music' is unknown; choose from numpy, python, asleep" in ran.stderr
    offered, = [each.type.choices for each in command.params if each.name == "works"]
    assert tuple(offered) == overlap.WORK


def test_processor_time_is_that_of_the_collective(monkeypatch):
    """Not of meeting the other ranks before it, nor of restoring its input, nor of the work."""
    clock = SimpleNamespace(now=0)

    def spend(seconds, value=None):
        clock.now += seconds
        return value
    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(overlap, name, lambda: clock.now)
    request = SimpleNamespace(Test=lambda: spend(100), Wait=lambda: spend(1000))

    class Form(overlap.OverlappedForm):
        barrier = staticmethod(lambda: spend(1e6))
        work, units, tests = SimpleNamespace(do=spend), 6, 2
    formed = Form(SimpleNamespace(restorable=True, restore=lambda: spend(1e9), arguments=(),
                                  timed_callable=lambda method: method), lambda: spend(10, request))
    for _ in range(2):
        formed.prepare()
        formed.call(*formed.arguments)
        assert formed.sample(0.0) == (6, 6, 1216, 10 + 2 * 100 + 1000)


def test_overlap_command(tmp_path):
    path = tmp_path / "record.json"
    ran = run_bench("overlap", "allreduce", "barrier", "-m", "8:64", "-i", "4", "--tests", "2",
                "--json", str(path))
    assert ran.exit_code == 0, ran.output
    rows = [line for line in ran.output.splitlines() if not line.startswith("#")]
    assert len({line.index("|") for line in rows}) == 1 and "wrong elements: 0" in ran.output
    record = json.loads(path.read_text())
    assert record["results"] == [] and record["complete"]
    assert {(r["collective"], r["candidate"], r["work"]) for r in record["overlap"]} == {
        (*called, work) for work in ("numpy", "python") for called in (
            ("allreduce", "native"), ("allreduce", "recursive_doubling"),
            ("barrier", "native"), ("barrier", "dissemination"))}
    assert all(len(r["overlapped_seconds"]) == 4 and 0 <= r["statistics"]["overlap_percent"] <= 100
               for r in record["overlap"])

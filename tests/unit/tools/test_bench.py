"""The benchmark without a launcher: sizes, data, pace, statistics, forms, and its mistakes."""

import csv
import io
import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner
from mpi4py import MPI
from rich.console import Console

from hpccoll.algorithms import ALGORITHMS, Algorithm
from hpccoll.arrays.kernels import UFUNCS
from hpccoll.calls.resolve import METHODS
from hpccoll.cli import main
from hpccoll.cli.options import buffer_sizes
from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.explain import plotting
from hpccoll.ir.operators import OPERATORS
from hpccoll.ir.schedule import Program
from hpccoll.measure import candidates, inputs, results, shortlist, survey_plan, timing
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.cases import UNEVEN, arguments, data_type, make
from hpccoll.tools.bench import formats, gloo, overlap, plot, regret, report, roofline
from hpccoll.tune import fingerprint
from hpccoll.tune.pruning import plausible

FLOAT = numpy.dtype("f4")
ENVIRONMENT = {
    "hpccoll": "0.1.0", "mpi": "MPICH Version: 5.0.2 MPICH Release date: x", "mpi4py": "4.1",
    "numpy": "2.0", "python": "3.11", "thread_level": "multiple", "ranks": 4,
    "hosts": {"a": 2, "b": 2}, "topology": None, "cpu": "CPU", "cores": 2,
    "command": "hpccoll bench allreduce", "variables": {"UCX_TLS": "sm"}}


def bench(*words):
    return CliRunner().invoke(main, ["bench", *words])


def result(candidate, microseconds, nbytes=1024, collective="allreduce", **changes):
    made = results.Result(
        collective, candidate, candidate, 4, None, nbytes, nbytes // 4, nbytes, "float32", "sum",
        False, 1e-3, tuple(n * 1e-6 for n in microseconds), (1e-6, 3e-6), 0, 0)
    return made._replace(**changes)


# -- cases ----------------------------------------------------------------------------------
@pytest.mark.parametrize("text, step, expected", [
    ("8:128", 4, [8, 32, 128]), ("8:100", 4, [8, 32, 100]), ("1K:2K", 2, [1024, 2048]),
    ("64", 2, [8, 16, 32, 64]), ("4", 2, [4]), ("8M:", 2, [8 << 20, 16 << 20]),
    ("1g:1G", 2, [1 << 30])])
def test_sizes(text, step, expected):
    assert buffer_sizes(text, step) == expected


@pytest.mark.parametrize("text", ["", "x", "0", "9:8", "8:4:2", "-8", "8:1T", "1.5K"])
def test_bad_sizes(text):
    with pytest.raises(ArgumentError, match="-m"):
        buffer_sizes(text, 4)


@pytest.mark.parametrize("collective", METHODS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_size_of_a_case(collective, size):
    case = make(collective, size, 4096 * size, FLOAT)
    assert case.nbytes == (0 if collective == "barrier" else 4096 * size)
    assert case.count * 4 == case.nbytes
    tiny = make(collective, size, 1, FLOAT)
    assert all(tiny.counts)
    if collective in UNEVEN and size > 2:
        uneven = make(collective, size, 12 * size, FLOAT, uneven=True)
        assert len(set(uneven.counts)) == 3


@pytest.mark.parametrize("collective, expected", [
    ("allreduce", 64), ("alltoall", 64), ("allgather", 64), ("gather", 64), ("reduce_scatter", 64)])
def test_osu_means_the_message(collective, expected):
    case = make(collective, 4, 64, FLOAT, osu=True)
    assert case.message == expected
    assert case.nbytes == 64 * (4 if collective in ("alltoall", "allgather", "gather") else 1)


@pytest.mark.parametrize("collective", METHODS)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("uneven", [False, True])
def test_blocks_fit_together(collective, in_place, uneven):
    """What all ranks give of a block is what all ranks want of it."""
    case = make(collective, 3, 600, FLOAT, root=1, in_place=in_place, uneven=uneven)
    for rank in range(3):
        memory = CaseBuffers(case, rank)
        memory.refill(0)
        assert memory.changed(0) == 0
        assert memory.source.size == sum(case.extent(b) for b in case.given(rank))
        assert memory.result.size == sum(case.extent(w.block) for w in case.wanted(rank))
        for block, ranks in case.wanted(rank):
            assert all(block in case.given(r) for r in ranks)


def test_one_rank_of_every_collective():
    """The arguments are what mpi4py takes, and a collective of one rank is right."""
    for collective in METHODS:
        for in_place in (False, True):
            case = make(collective, 1, 20_000, FLOAT, in_place=in_place)
            memory = CaseBuffers(case, 0)
            memory.refill(7)
            getattr(MPI.COMM_SELF, collective.capitalize())(
                *arguments(case, 0, memory.send, memory.recv))
            assert memory.wrong(7) == 0, collective
            assert memory.changed(7) == 0, collective


@pytest.mark.parametrize("text, op", [("nonsense", None), ("S4", None), ("O", None),
                                      ("float32", "band"), ("float32", "plus"),
                                      ("float32", "maxloc"), ("complex64", "max")])
def test_bad_types(text, op):
    with pytest.raises(ArgumentError):
        data_type(text, op)


def test_types(monkeypatch):
    assert data_type("float16", "sum") == "f2"
    assert data_type("MPI_INT", "bxor") == "i4"
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ArgumentError, match=r"ml_dtypes; pip install 'hpccoll\[bf16\]'"):
        data_type("bfloat16")


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert data_type("bfloat16", "sum") == ml_dtypes.bfloat16
    with pytest.raises(ArgumentTypeError, match="MPI.BAND is not defined on bfloat16"):
        data_type("bfloat16", "band")


# -- data -----------------------------------------------------------------------------------
DTYPES = [numpy.dtype(code) for code in "efdgFDGbIq?"]


DEFINED = [(o.name, d) for o in OPERATORS.values() for d in DTYPES if o.defined_on(d.kind)]


@pytest.mark.parametrize("op, dtype", DEFINED)
@pytest.mark.parametrize("size", [1, 3, 16])
def test_any_order_gives_the_result(op, dtype, size):
    kernel = getattr(numpy, UFUNCS[op])
    parts = [inputs.contribution(op, dtype, r, size, 0, 5, 100) for r in range(size)]
    numpy.random.default_rng(size).shuffle(parts)
    total = parts[0]
    for part in parts[1:]:
        total = kernel(total, part).astype(dtype)
    expected = inputs.result(op, dtype, range(size), size, 0, 5, 100)
    assert inputs.wrong(total, expected, False) == 0
    if op in ("sum", "bxor") and size > 1:  # a contribution that is lost shows everywhere
        less = inputs.result(op, dtype, range(size - 1), size, 0, 5, 100)
        assert inputs.wrong(less, expected, False) > 90


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, inputs.PERIOD - 1, inputs.PERIOD, 2 * inputs.PERIOD + 3])
def test_wrong_elements_are_counted(dtype, count):
    period = inputs.contribution(None, dtype, 1, 4, 2, 3, count)
    array = numpy.empty(count, dtype)
    inputs.fill(array, period)
    assert inputs.wrong(array, period, True) == 0
    if count:
        for spoilt in {0, count // 2, count - 1}:
            copy = array.copy()
            copy[spoilt:spoilt + 1].view("u1")[0] ^= 1
            assert inputs.wrong(copy, period, True) == 1


def test_data_differs():
    """Between ranks, blocks and iterations, so nothing stale or misplaced passes."""
    made = {(r, b, i): inputs.contribution("sum", FLOAT, r, 4, b, i, 64).tobytes()
            for r in range(4) for b in range(3) for i in range(3)}
    made |= {("moved", r, b, i): inputs.contribution(None, FLOAT, r, 4, b, i, 64).tobytes()
             for r in range(4) for b in range(3) for i in range(3)}
    assert len(set(made.values())) == len(made)


# -- candidates -----------------------------------------------------------------------------
def test_candidates_are_read():
    found = candidates.parse("native, auto,knomial:k=8 ")
    assert [c.label for c in found] == ["native", "auto", "knomial:k=8"]
    assert candidates.parse("") == []


@pytest.mark.parametrize("text", ["nonsense", "ring,ring", "knomial:k", "knomial:k=x", "native:k=2",
                                  "knomial:k=-1"])
def test_bad_candidates(text):
    with pytest.raises(ArgumentError, match="--algorithm"):
        candidates.parse(text)


def test_candidates_are_in_the_table():
    assert set(candidates.PICKS) == set(ALGORITHMS)
    for base, picks in candidates.PICKS.items():
        assert all(name in ALGORITHMS[base] for names in picks for name in names)


def test_candidates_that_cannot_serve_are_refused():
    case = make("allreduce", 1, 64, FLOAT)
    wanted = candidates.parse("all,chain,native")
    chosen, refused = candidates.select(wanted, case, CaseBuffers(case, 0), False)
    assert "ring" in [c.name for c in chosen]
    assert set(refused) == {"census", "chain"}
    exact = make("allreduce", 1, 64, numpy.dtype("i4"))
    assert "census" not in candidates.select(wanted, exact, CaseBuffers(exact, 0), False)[1]


def test_plausible_is_what_tune_would_measure():
    for nbytes in (64, 1 << 20):
        case = make("allreduce", 64, nbytes, FLOAT)
        chosen, refused = candidates.select(candidates.parse("auto,plausible,native"), case,
                                            CaseBuffers(case, 0), False)
        names = [c.name for c in chosen]
        assert names[0] == "auto" and names[-1] == "native"
        assert set(names[1:-1]) | set(refused) == set(plausible("allreduce", 64, nbytes))
    assert "plausible" in candidates.WORDS
    with pytest.raises(ArgumentError, match="cannot read 'plausible:k=2'"):
        candidates.parse("plausible:k=2")


# -- pace -----------------------------------------------------------------------------------
def batches(settings, pace):
    done, spent, found = 0, 0.0, []
    while batch := timing.next_batch(settings, done, spent):
        found.append(batch)
        done += batch
        spent += batch * pace(done)
    return found, spent


def test_pace_keeps_the_budget():
    settings = timing.Settings(seconds=0.5)
    found, spent = batches(settings, lambda done: 1e-5)
    assert sum(found) == timing.MOST and len(found) >= timing.REPETITIONS
    found, spent = batches(settings, lambda done: 1e-3)
    assert 0.4 < spent < 0.6
    found, spent = batches(settings, lambda done: 1.0)
    assert sum(found) == timing.LEAST
    # The first iteration was lucky, the others are slow.
    found, spent = batches(settings, lambda done: 1e-6 if done < 2 else 0.05)
    assert sum(found) <= 2 * timing.LEAST


@pytest.mark.parametrize("iterations", [1, 7, 10, 1234])
def test_pace_counts_iterations(iterations):
    found, _ = batches(timing.Settings(iterations=iterations), lambda done: 100.0)
    assert sum(found) == iterations
    assert len(found) <= timing.REPETITIONS


# -- results --------------------------------------------------------------------------------
def test_statistics():
    one = result("native", [4, 1, 2, 3, 90])
    assert one.median == pytest.approx(3e-6)
    assert one.mean == pytest.approx(20e-6)
    assert one.algorithm_bandwidth(1e-3) == 1024e3
    assert one.bus_bandwidth(1e-3) == 1.5 * 1024e3
    assert results.ratios([one, result("ring", [6])]) == pytest.approx({"native": 1, "ring": 0.5})
    groups = [[result("native", [4]), result("ring", [2])],
              [result("native", [1]), result("ring", [8])]]
    assert results.mean_ratios(groups)["ring"] == pytest.approx((0.5, 2))
    assert results.ratios([result("ring", [1])]) == {}


@pytest.mark.parametrize("collective, factor", [
    ("allreduce", 1.5), ("allgatherv", 0.75), ("reduce_scatter_block", 0.75), ("alltoallw", 0.75),
    ("gather", 0.75), ("scatterv", 0.75), ("bcast", 1), ("reduce", 1), ("scan", 1)])
def test_bus_factors(collective, factor):
    assert results.bus_factor(collective, 4) == factor


@pytest.mark.parametrize("text, expected", [
    ("Open MPI v5.0.11, package: Open MPI user@host", "Open MPI 5.0.11"),
    ("MPICH Version: 5.0.2 MPICH Release date: Fri", "MPICH 5.0.2"),
    ("Intel(R) MPI Library 2021.18 for Linux* OS", "Intel MPI 2021.18"),
    ("MVAPICH Version : 4.0 MVAPICH", "MVAPICH 4.0"), ("Something else", "Something else")])
def test_library_names(text, expected):
    assert fingerprint.library(text) == expected


# -- the survey's goes ----------------------------------------------------------------------
def test_one_disturbed_iteration_keeps_nobody_out():
    rough = [result("native", [9, 9, 9]), result("ring", [5, 99, 99]), result("linear", [30, 9, 9]),
             result("pat", [1, 1, 1], wrong=1)]
    case = make("allreduce", 4, 1024, FLOAT)
    near = shortlist.near(rough, case, survey_plan.SurveyPlan())
    assert [c.name for c in near] == ["native", "ring"]  # native always


def test_only_what_is_close_gets_a_third_round():
    fine = [result("native", [8]), result("ring", [5]), result("linear", [5.7]),
            result("pat", [1], wrong=1)]
    assert [c.name for c in shortlist.close(fine)] == ["ring", "linear"]
    assert shortlist.close(fine[:2]) == []


def test_rounds_are_joined():
    joined = shortlist.of_all_rounds(
        [result("native", [9]), result("ring", [9], wrong=1), result("pat", [9])],
        [result("native", [2]), result("ring", [3]), result("ring:segment=64", [4])],
        [result("ring", [5], changed=2)])
    found = {r.candidate: (tuple(round(1e6 * s) for s in r.seconds), r.failures) for r in joined}
    assert found == {"native": ((2,), 0), "ring": ((3, 5), 3), "pat": ((9,), 0),
                     "ring:segment=64": ((4,), 0)}


def test_what_a_candidate_may_cost_grows_with_its_calls_only():
    latest = shortlist.Latest(64, idle=5.0, busy=1.0, order=())
    assert latest.seconds(64) == 6 and latest.seconds(640) == 15
    assert latest.seconds(8) == 6 and latest._replace(nbytes=0).seconds(2) == 7


def test_data_is_made_once_and_cannot_be_changed():
    for op in "sum", None:
        one, again = (inputs.contribution(op, FLOAT, 1, 4, 2, 3, 99) for _ in range(2))
        assert one is again and not one.flags.writeable
        assert inputs.contribution(op, FLOAT, 1, 4, 2, 4, 99) is not one
    whole, same = (inputs.result("sum", FLOAT, ranks, 4, 2, 3, 99) for ranks in ([0, 1], (0, 1)))
    assert whole is same and not whole.flags.writeable
    assert (inputs.result("sum", FLOAT, [0, 2], 4, 2, 3, 99) != whole).any()


# -- how near auto is -------------------------------------------------------------------------
def auto(serves, microseconds, **changes):
    return result("auto", microseconds, serves=serves, **changes)


def test_auto_is_the_algorithm_that_it_runs():
    near = regret.nearness([auto("ring", [5, 6, 5, 6]), result("ring", [4, 4, 4, 4]),
                              result("native", [4.8] * 4)])
    # Together 4.7, and the best but for noise; alone it would be 1.38 times slower.
    assert near[:4] == ("allreduce", 1024, "ring", pytest.approx(28e-6 / 6))
    assert near.again == pytest.approx(5.5 / 4)
    assert near.ratio == pytest.approx(1, abs=0.12)
    best = regret.nearness([auto("ring", [2, 3] * 4), result("ring", [2, 2] * 4),
                              result("native", [9] * 8)])
    assert (best.best, best.ratio) == ("ring", 1.0)


def test_auto_pays_for_its_way_to_native():
    near = regret.nearness([auto("native", [3] * 6), result("native", [2] * 6),
                              result("ring", [4] * 6)])
    assert near.ratio == pytest.approx(1.5) and near.best == "native" and near.again is None
    assert near.within(0.5) and not near.within(0.49)


def test_the_choice_is_judged_by_native_forwarded():
    group = [auto("native", [3, 5] * 3), result("native", [1] * 6), result("forwarded", [4] * 6),
             result("ring", [6] * 6)]
    near = regret.nearness(group)
    assert near[2:6] == ("native", pytest.approx(4e-6), "native", 1.0)
    assert near.again == pytest.approx(1)
    # Forwarded, native is what auto could have had.
    lost = regret.nearness([auto("ring", [6] * 6), *group[1:]])
    assert lost.best == "native" and lost.ratio == pytest.approx(1.5)
    # Two candidates that count are needed.
    assert regret.nearness(group[:3]) is None


def test_times_in_two_heaps_have_a_time_between_them():
    """As calls have that find the other ranks running, or have to wait for them."""
    rng = numpy.random.default_rng(1)
    runs = [rng.choice([2.0, 9.0], 400) + rng.normal(0, 0.1, 400) for _ in range(50)]
    medians, means = (numpy.array([measure(run) for run in runs])
                      for measure in (numpy.median, results.trimmed))
    assert medians.max() > 4 * medians.min() and means.max() < 1.3 * means.min()
    assert means.mean() == pytest.approx(5.5, abs=0.2)


@pytest.mark.parametrize("seconds, mean", [
    ([3], 3), ([3, 5], 4), ([3, 99, 4], 4), ([0, 4, 5, 6, 99], 5), ([9, 1, 2, 3], 2.5),
    ([*range(20)], 9.5), ([0, 0, *[5] * 16, 99, 999], 5)])
def test_extremes_do_not_count(seconds, mean):
    assert results.trimmed(seconds) == result("native", [s * 1e6 for s in seconds]).trimmed == (
        pytest.approx(mean))


def test_the_best_is_found_and_timed_by_different_iterations():
    rng = numpy.random.default_rng(1)
    ratios = []
    for _ in range(60):
        noisy = {name: rng.lognormal(0, 0.3, 40) for name in ("auto", *"abcdefgh")}
        group = [result(name, times, serves="a" if name == "auto" else name)
                 for name, times in noisy.items()]
        ratios.append(regret.nearness(group).ratio)
    # All are equally fast; compared with the smallest median, auto would lose by far.
    assert numpy.exp(numpy.mean(numpy.log(ratios))) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("group", [
    [], [result("native", [1, 1]), result("ring", [2, 2])],
    [auto("ring", [1, 1]), result("ring", [2, 2])],
    [auto("ring", [1, 1]), result("native", [1, 1]), result("gloo", [2, 2])],
    [auto("ring", [1, 1]), result("native", [1, 1]), result("ring", [2, 2], wrong=1)],
    [result("auto", [1, 1], serves="ring", wrong=1), result("native", [1, 1]),
     result("ring", [2, 2])],
    [auto("ring", [1]), result("native", [1]), result("ring", [2])]])
def test_what_is_no_point(group):
    assert regret.nearness(group) is None
    assert regret.summary([group], 0.1) is None and regret.lines([group], 0.1) == []


def test_points_that_were_missed_are_named():
    groups = [[auto("ring", [2] * 4, nbytes=nbytes), result("ring", [2] * 4, nbytes=nbytes),
               result("native", [native] * 4, nbytes=nbytes)]
              for nbytes, native in ((8, 1), (16, 1.9), (32, 3))]
    found = regret.summary(groups, 0.1)
    assert (found["points"], found["within"], len(found["missed"])) == (3, 2, 1)
    assert found["missed"][0]["nbytes"] == 8 and found["missed"][0]["ratio"] == pytest.approx(2)
    assert (found["same"], found["same_within"]) == (3, 3)
    said = ["auto within 10 % of the best candidate at 2 of 3 points",
            "noise: the same algorithm, as auto and by name, was that near itself at 3 of 3 points",
            "not at allreduce, 8 bytes: auto (ring) takes 2.00 times as long as native"]
    assert regret.lines(groups, 0.1) == said
    output, record = io.StringIO(), io.StringIO()
    written(report.TableReport(Console(file=output)), groups)
    assert all(f"# {line}\n" in output.getvalue() for line in said)
    written(formats.Json(lambda: nullcontext(record), {}, 1.5), groups)
    assert json.loads(record.getvalue())["auto"] == {
        "tolerance": 1.5, "points": 3, "within": 3, "same": 3, "same_within": 3, "missed": []}


# -- limit ----------------------------------------------------------------------------------
def demanded(case):
    """What :mod:`hpccoll.ir.collectives` demands: inputs that matter, outputs not there already."""
    read, written = set(), 0
    for rank in range(case.size):
        for block, ranks in case.wanted(rank):
            there = tuple(ranks) == (rank,) and (case.shares(rank) or case.collective == "bcast")
            if not there:
                written += case.extent(block)
                read |= {(contributor, block) for contributor in ranks}
    return (sum(case.extent(block) for _, block in read) + written) * case.dtype.itemsize


@pytest.mark.parametrize("collective", METHODS)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_bytes_that_must_move(collective, in_place, uneven, size):
    case = make(collective, size, 600 * size, FLOAT, root=size - 1, in_place=in_place,
                uneven=uneven)
    assert roofline.moved(case) == demanded(case)


def test_limit_is_a_part_of_what_memory_allows():
    case = make("allreduce", 4, 1 << 20, FLOAT)
    seconds = roofline.shortest(case, 8e9)
    assert seconds == pytest.approx(2 * 4 * (1 << 20) / 8e9)
    assert result("ring", [2e6 * seconds], limit_seconds=seconds).limit == pytest.approx(0.5)
    assert result("ring", [1]).limit is None
    assert roofline.shortest(make("allreduce", 4, 1 << 10, FLOAT), 8e9) is None
    assert roofline.shortest(make("barrier", 4, 0, FLOAT), 8e9) is None


def test_copies_have_a_rate(monkeypatch):
    monkeypatch.setattr(roofline, "COPIED", 1 << 20)
    assert 1e8 < roofline.copy_rate(MPI.COMM_SELF) < 1e13


# -- overlap --------------------------------------------------------------------------------
@pytest.mark.parametrize("pure, compute, overlapped, percent", [
    (10, 10, 10, 100), (10, 10, 20, 0), (10, 12, 17, 50), (10, 10, 40, 0), (10, 12, 11, 100)])
def test_overlap_is_what_osu_means(pure, compute, overlapped, percent):
    made = overlap.Overlap("allreduce", "ring", 2, None, 8, "float32", "sum", False, 0,
                           (pure, pure, 99), (compute,) * 3, (overlapped,) * 3, 0, 0)
    assert made.percent == pytest.approx(percent)


def test_work_lasts_as_long_as_asked():
    work = overlap.Computation(MPI.COMM_SELF)
    assert 0 < work.unit < 0.1
    assert work.units(0) == 1 and work.units(100 * work.unit) == 100


def test_overlap_command(tmp_path):
    path = tmp_path / "record.json"
    ran = bench("allreduce", "barrier", "-m", "8:64", "-i", "4", "--overlap", "--tests", "2",
                "--json", str(path))
    assert ran.exit_code == 0, ran.output
    rows = [line for line in ran.output.splitlines() if not line.startswith("#")]
    assert len({line.index("|") for line in rows}) == 1 and "wrong elements: 0" in ran.output
    record = json.loads(path.read_text())
    assert record["results"] == [] and record["complete"]
    assert {(r["collective"], r["candidate"]) for r in record["overlap"]} == {
        ("allreduce", "native"), ("allreduce", "recursive_doubling"),
        ("barrier", "native"), ("barrier", "dissemination")}
    assert all(len(r["overlapped_seconds"]) == 4 and 0 <= r["statistics"]["overlap_percent"] <= 100
               for r in record["overlap"])


# -- peers ----------------------------------------------------------------------------------
def test_without_pytorch_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    ran = bench("allreduce", "--peers")
    assert ran.exit_code == 2 and ran.stdout == ""
    assert ran.stderr.startswith("hpccoll: bench: --peers needs PyTorch; install it with: pip")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("collective, dtype, op, in_place, problem", [
    ("allreduce", "f4", "sum", False, ""), ("allreduce", "i8", "max", True, ""),
    ("barrier", "f4", "sum", False, ""), ("scan", "f4", "sum", False, "gloo has no scan"),
    ("bcast", "F", "sum", False, "gloo knows no complex64"),
    ("reduce", "i4", "bxor", False, "gloo has no operator bxor"),
    ("allgather", "f4", "sum", True, "gloo has no allgather in place")])
def test_what_gloo_can_serve(collective, dtype, op, in_place, problem):
    case = make(collective, 4, 1024, numpy.dtype(dtype), op=op, in_place=in_place)
    assert gloo.objection(case) == problem


# -- forms ----------------------------------------------------------------------------------
def written(made, groups, interrupted=False):
    made.begin(ENVIRONMENT)
    made.collective("allreduce", ["native", "ring"])
    for group in groups:
        made.group(group, {"census": "a reason"})
    made.end(groups, interrupted)


def test_table_is_aligned():
    output = io.StringIO()
    groups = [[result("native", [4], limit_seconds=2e-6), result("ring", [2e5], wrong=3)],
              [result("native", [123456.7], nbytes=1 << 30), result("ring", [5e5], nbytes=1 << 30)]]
    written(report.TableReport(Console(file=output), full=True), groups, interrupted=True)
    lines = output.getvalue().splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    head, = [line for line in lines if "candidate  " in line]
    assert len({len(line) for line in (head, *rows)}) == 1
    assert len({line.index("|") for line in (head, *rows)}) == 1
    assert rows[1].split("|")[0].strip() == ""
    assert "1073741824" in rows[2]
    text = output.getvalue()
    assert "\x1b" not in text
    assert text.count("census is left out: a reason") == 1
    assert "WRONG: allreduce ring" in text and "interrupted" in text
    assert "UCX_TLS=sm" in text and "MPICH 5.0.2" in text


def test_table_has_colours_on_terminals():
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, color_system="standard", highlight=False,
                      _environ={})
    written(report.TableReport(console), [[result("native", [4]), result("ring", [2]),
                                     result("pat", [8]), result("linear", [4.1])]])
    text = output.getvalue()
    assert re.search(r"\x1b\[32m +2\.00\x1b", text)
    assert re.search(r"\x1b\[31m +0\.50\x1b", text)
    assert re.search(r"(?<!m)  0\.98 ", text)


@pytest.mark.parametrize("labels", [["auto"], ["auto", "ring"]])
def test_osu_is_what_reframe_reads(labels):
    output = io.StringIO()
    made = formats.Osu(output, full=True, validation=True, tail=True)
    made.collective("allreduce", labels)
    for nbytes in (8, 16):
        made.group([result(label, [4, 6], nbytes=nbytes) for label in labels], {})
    made.end([], False)
    text = output.getvalue()
    assert re.search(r"^8.*Pass", text, re.M)
    assert re.search(r"^16\s+(\S+)", text, re.M)[1] == "2.00"
    assert text.count("# Datatype: MPI_FLOAT.") == len(labels)
    line = next(line for line in text.splitlines() if line.startswith("8 "))
    assert line[:10].strip() == "8" and line[10:30].strip() == "2.00"
    assert line[30:50].strip() == "1.00" and line[50:70].strip() == "3.00"
    assert line[70:82].strip() == "2" and line[82:102].strip() == "Pass"
    assert all(line.startswith(("#", "8 ", "16 ")) for line in text.splitlines())


def test_osu_fails_on_wrong_elements():
    output = io.StringIO()
    made = formats.Osu(output, full=False, validation=True, tail=False)
    made.collective("allreduce", ["auto"])
    made.group([result("auto", [4], nbytes=8, changed=1)], {})
    made.group([], {"ring": "a reason"})
    assert re.search(r"^8 +2.00 +Fail$", output.getvalue(), re.M)


def test_csv():
    output = io.StringIO()
    written(formats.Csv(output), [[result("native", [4]), result("ring", [2])]] * 2)
    rows = list(csv.DictReader(io.StringIO(output.getvalue())))
    assert [row["candidate"] for row in rows] == ["native", "ring"] * 2
    assert float(rows[1]["ratio"]) == pytest.approx(2)
    assert float(rows[1]["p50_seconds"]) == pytest.approx(2e-6)


def test_json_keeps_every_time():
    output = io.StringIO()
    made = formats.Json(lambda: nullcontext(output), {"op": "sum"})
    written(made, [[result("native", [4, 5, 6])]])
    record = json.loads(output.getvalue())
    assert record["schema"] == formats.SCHEMA
    assert record["complete"] is True
    entry, = record["results"]
    statistics = entry.pop("statistics")
    assert statistics["max_seconds"] == pytest.approx(6e-6)
    entry["seconds"], entry["rank_mean_seconds"] = map(
        tuple, (entry["seconds"], entry["rank_mean_seconds"]))
    assert results.Result(**entry) == result("native", [4, 5, 6])


@pytest.mark.parametrize("keep, kept", [
    (0, [*range(1, 11)]), (4, [1, 3, 6, 8]), (1, [1]), (10, [*range(1, 11)]),
    (99, [*range(1, 11)])])
def test_a_record_may_keep_some_of_the_times(keep, kept):
    record = io.StringIO()
    groups = [[result("native", [2]), result("ring", range(1, 11))]]
    written(formats.Json(lambda: nullcontext(record), {}, keep=keep), groups)
    native, ring = json.loads(record.getvalue())["results"]
    assert [round(1e6 * s) for s in ring["seconds"]] == kept and len(native["seconds"]) == 1
    assert ring["statistics"]["iterations"] == 10
    assert ring["statistics"]["p50_seconds"] == pytest.approx(5.5e-6)
    assert ring["statistics"]["trimmed_seconds"] == pytest.approx(5.5e-6)


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    groups = [[result("native", [4 * n], nbytes=n), result("ring", [2], nbytes=n)]
              for n in (8, 1024)]
    groups += [[result(name, [400], nbytes=1 << 20, limit_seconds=1e-4)
                for name in ("native", "ring")]]
    barrier = [[result("native", [4], nbytes=0, collective="barrier", dtype=None, op=None)]]
    for name, drawn in (("one.png", groups), ("many.svg", groups + barrier),
                        ("none.pdf", [[result("ring", [2])]])):
        plotting.check(str(tmp_path / name))
        plot.draw(drawn, ENVIRONMENT, str(tmp_path / name))
        assert (tmp_path / name).stat().st_size > 5000


# -- the command ----------------------------------------------------------------------------
def test_command_on_one_rank(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["hpccoll", "bench", "allreduce"])
    ran = bench("allreduce", "-m", "8:64", "-i", "5", "--json", str(tmp_path / "record.json"))
    assert ran.exit_code == 0, ran.output
    assert "mpiexec -n 4 python -m hpccoll bench allreduce\n" in ran.output
    assert "wrong elements: 0" in ran.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert {r["candidate"] for r in record["results"]} == {"native", "auto", "recursive_doubling"}
    assert all(len(r["seconds"]) == 5 for r in record["results"])


def test_command_in_registered_memory(tmp_path):
    ran = bench("allreduce", "gather", "-m", "1M:1M", "-i", "2", "--rotate", "2", "--registered",
                "--algorithm", "native,auto", "--json", str(tmp_path / "record.json"))
    assert ran.exit_code == 0, ran.output
    # One rank has nobody to read its memory.
    assert "# not every rank has registered memory" in ran.output
    assert "# limit is the part reached" in ran.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["environment"]["buffers"] == "unregistered"
    assert record["settings"]["registered"]
    assert all(r["statistics"]["limit"] > 0 for r in record["results"])


@pytest.mark.parametrize("calls, about", [("persistent", "# calls: persistent: "),
                                          ("lower-case", "# calls: lower case: "),
                                          ("blocking", None)])
def test_command_with_other_calls(tmp_path, calls, about):
    """One rank's calls are native, whichever; the record says of what kind they were."""
    ran = bench("allreduce", "-m", "8:64", "-i", "2", "--calls", calls, "--json",
                str(tmp_path / "record.json"))
    assert ran.exit_code == 0, ran.output
    assert about in ran.output if about else "# calls:" not in ran.output
    assert json.loads((tmp_path / "record.json").read_text())["settings"]["settings"][
        "form"] == calls


def test_an_old_record_stays_until_there_is_a_new_one(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    path.write_text("the old one")
    words = "allreduce", "-m", "8:8", "-i", "2", "--json", str(path)
    monkeypatch.setattr("hpccoll.tools.bench.session.run", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(main, ["bench", *words], catch_exceptions=False)
    assert path.read_text() == "the old one"
    monkeypatch.undo()
    assert bench(*words).exit_code == 0
    assert json.loads(path.read_text())["complete"]
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]


def test_what_is_no_file_is_written_to():
    assert bench("allreduce", "-m", "8:8", "-i", "2", "--json", "/dev/null").exit_code == 0
    assert Path("/dev/null").is_char_device()


def test_a_record_on_standard_output():
    ran = bench("allreduce", "-m", "8:8", "-i", "2", "--format", "csv", "--json", "-")
    assert ran.exit_code == 0 and not Path("-").exists()
    assert json.loads(ran.stdout[ran.stdout.index("{"):])["complete"]


def test_native_through_us_overlaps_without_an_algorithm(tmp_path):
    ran = bench("gatherv", "-m", "8:8", "-i", "2", "--overlap", "--topology", "1", "--algorithm",
                "native,forwarded", "--json", str(tmp_path / "record.json"))
    assert ran.exit_code == 0, ran.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert {r["candidate"] for r in record["overlap"]} == {"native", "forwarded"}
    assert record["environment"]["topology"] == "1"


def test_wrong_results_are_found(monkeypatch):
    idle = Algorithm(lambda rank, size: Program(()))
    monkeypatch.setitem(ALGORITHMS["allreduce"], "ring", idle)
    ran = bench("allreduce", "-m", "64:64", "-i", "2", "--algorithm", "native,ring")
    assert ran.exit_code == 1
    assert "WRONG: allreduce ring (ring), 64 bytes: 32 wrong elements" in ran.output
    assert "wrong elements: 32" in ran.output


@pytest.mark.parametrize("words", [
    ["nonsense"], [], ["allreduce", "--nonsense"], ["allreduce", "-i", "x"],
    ["allreduce", "-m", "9:8"], ["allreduce", "--dtype", "S3"], ["allreduce", "--op", "plus"],
    ["allreduce", "--algorithm", "bruck"], ["allreduce", "--algorithm", "census"],
    ["bcast", "--algorithm", "knomial:z=1"], ["bcast", "--root", "9999"],
    ["bcast", "--topology", "4096x2"], ["bcast", "--segment-bytes", "0"],
    ["bcast", "--json", "/nonexistent/x"], ["bcast", "--plot", "/nonexistent/x.png"],
    ["bcast", "--plot", "x.nonsense"], ["bcast", "--rotate", "0"], ["bcast", "--format", "x"],
    ["bcast", "--overlap", "--format", "csv"], ["bcast", "--overlap", "--plot", "x.png"],
    ["bcast", "--overlap", "--peers"], ["bcast", "--overlap", "--sweeps", "2"],
    ["bcast", "--overlap", "--rotate", "2"], ["bcast", "--sweeps", "0"],
    ["bcast", "--overlap", "--keep", "9"], ["bcast", "--keep", "0"],
    ["bcast", "--overlap", "--calls", "persistent"], ["bcast", "--calls", "x"],
    ["allreduce", "alltoall", "--calls", "lower-case"],
    ["allreduce", "--calls", "lower-case", "--in-place"],
    ["allreduce", "--calls", "lower-case", "--algorithm", "ring"],
    ["allreduce", "--calls", "persistent", "--peers"],
    ["bcast", "--dtype", ">f8"], ["bcast", "--seconds", "nan"], ["bcast", "--seconds", "inf"],
    ["bcast", "--tolerance", "nan"]])
def test_bad_options_are_one_line(words):
    if "--plot" in words:
        pytest.importorskip("matplotlib")
    ran = bench(*words)
    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("hpccoll: bench: ") and ran.stderr.count("\n") == 1


def test_bad_environment_is_one_line(monkeypatch):
    monkeypatch.setenv("HPCCOLL_ALGORITHM", "nonsense")
    ran = bench("bcast")
    assert ran.exit_code == 2
    assert ran.stderr.startswith("hpccoll: bench: HPCCOLL_ALGORITHM")


def test_candidates_take_turns_in_changing_order():
    names = list("abcd")
    orders = [timing.in_turn(names, repetition) for repetition in range(40)]
    assert all(sorted(order) == names for order in orders)
    assert orders == [timing.in_turn(names, repetition) for repetition in range(40)]
    after = {(one, two) for order in orders for one, two in zip(order, order[1:])}
    assert len(after) == 12 and {order[0] for order in orders} == set(names)

"""Options and ranks of commands, and what interrupts them."""

import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from mpi4py import MPI

from hpccoll.algorithms import ALGORITHMS
from hpccoll.cli import COMMANDS, Commands, main, ranks, tune
from hpccoll.cli.bench import SECTIONS as BENCH
from hpccoll.cli.bench import command as bench
from hpccoll.cli.bench_more import overlap_command as overlap
from hpccoll.cli.options import (
    OneOf,
    buffer_sizes,
    names,
    parameters,
    parse_algorithm,
    split_collectives,
)
from hpccoll.cli.simulate import SECTIONS as SIMULATE
from hpccoll.cli.simulate import command as simulate
from hpccoll.errors import ArgumentError, HpccollError, MpiLibraryError, did_you_mean
from hpccoll.ir.methods import METHODS
from hpccoll.measure.rounds import SurveyPlan
from hpccoll.measure.survey import Survey
from hpccoll.tools import tuning_report
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.table import Candidate, Fingerprint, read

# Commands of many ranks: who speaks, and how they end
pytest.importorskip("click")


SELF = MPI.COMM_SELF


def refuse():
    raise ArgumentError("--option", "is wrong")


def test_what_goes_wrong_on_one_rank_is_raised_on_all():
    assert ranks.agree(SELF, lambda: 7) == 7
    for agree in (ranks.agree, ranks.agree_on_rank_0):
        with pytest.raises(HpccollError, match="^--option: .*wrong"):
            agree(SELF, refuse)


def test_a_complaint_is_one_line(capsys):
    ranks.complain("bench", "one\n  two")
    assert capsys.readouterr().err == "hpccoll: bench: one two\n"


def test_one_rank_alone_ends_with_its_error():
    with pytest.raises(ZeroDivisionError):
        ranks.abort(SELF, ZeroDivisionError())


def test_an_error_on_purpose_ends_all_ranks_in_one_line(monkeypatch, capsys):
    ended = []
    comm = SimpleNamespace(Get_size=lambda: 2, Abort=ended.append)
    monkeypatch.setattr("hpccoll.cli.ranks.os._exit", ended.append)
    ranks.abort(comm, ArgumentError("--json", "cannot write 'x'"))
    assert capsys.readouterr().err == "hpccoll: --json: cannot write 'x'\n" and ended == [1, 1]
    ranks.abort(comm, ZeroDivisionError("ours"))
    assert "Traceback" in (said := capsys.readouterr().err) or "ZeroDivisionError" in said


@pytest.mark.parametrize("rank, status", [(None, 2), (0, 2), (1, 0)])
def test_the_first_process_speaks_where_there_is_no_mpi(monkeypatch, capsys, rank, status):
    monkeypatch.setattr(ranks, "launcher_rank", lambda: (-1, -1) if rank is None else (rank, 2))
    assert ranks.without_mpi(MpiLibraryError("no library", "install one")) == status
    said = capsys.readouterr().err
    assert said == ("hpccoll: no library; install one\n" if status else "")


def test_the_first_interrupt_is_noted_and_a_later_one_ends(monkeypatch):
    before, raised = signal.getsignal(signal.SIGINT), []
    with ranks.stoppable() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # a launcher passes it on, too
        assert stopped()
        monkeypatch.setattr(ranks, "INSIST", 0.0)
        monkeypatch.setattr(signal, "raise_signal", raised.append)
        signal.getsignal(signal.SIGINT)(signal.SIGINT, None)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL and raised == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is before


# Ctrl-C in a command that has nothing to show yet: one line, status 130, no rank that waits
pytest.importorskip("click")
pytest.importorskip("rich")


@pytest.mark.parametrize("size, ended", [(1, []), (2, [130])])
def test_ctrl_c_in_a_command_that_knows_nothing_yet(monkeypatch, capsys, size, ended):
    """Ranks that are elsewhere may wait for this one."""
    found = []
    world = SimpleNamespace(Get_size=lambda: size, Abort=found.append)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(
        COMM_WORLD=world, Is_initialized=lambda: True, Is_finalized=lambda: False))
    waited = []
    monkeypatch.setattr(ranks, "sleep", waited.append)
    for rank in (-1, 0, 1):
        monkeypatch.setattr(ranks, "launcher_rank", lambda rank=rank: (rank, 2))
        assert ranks.report_interrupt("doctor") == 130
    assert capsys.readouterr().err == "hpccoll: doctor: interrupted\n" * 2 and found == 3 * ended
    assert waited == [ranks.MOMENT]  # for the first one's line


def test_ctrl_c_is_one_line_of_every_command(monkeypatch):
    def stopped():
        raise KeyboardInterrupt

    monkeypatch.setattr(ranks, "launcher_rank", lambda: (-1, -1))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    monkeypatch.setattr(Commands, "get_command",
                        lambda self, context, name: click.Command(name, callback=stopped))
    for name in COMMANDS:
        done = CliRunner().invoke(main, name.split())
        assert (done.exit_code, done.stderr) == (130, f"hpccoll: {name}: interrupted\n")


# Values of options: lists, sizes, parameters
pytest.importorskip("click")
pytest.importorskip("rich")


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


def test_lists_and_ranges():
    assert names(["ring, bruck", "pat,"]) == ["ring", "bruck", "pat"]
    assert parameters(["k=4", "n=2"]) == {"k": 4, "n": 2}
    for texts in (["k"], ["k="], ["=3"], ["k=-1"], ["k=x"], ["k=1", "k=2"], ["size=2"]):
        with pytest.raises(ArgumentError):
            parameters(texts)


def test_a_word_that_is_nearly_right_is_named():
    kinds = OneOf(["blocking", "nonblocking"])
    assert kinds.convert("blocking", None, None) == "blocking"
    with pytest.raises(click.UsageError, match="'blokcing'.*'blocking'"):
        kinds.convert("blokcing", None, None)


# Help pages: options in groups, each option once
pytest.importorskip("rich")


@pytest.mark.parametrize("commands, sections", [
    ((bench, overlap), BENCH), ((simulate,), SIMULATE)])
def test_every_option_stands_in_one_group(commands, sections):
    """Also where an option is added: what no group names is seen here."""
    options = {each.name for command in commands for each in command.params
               if isinstance(each, click.Option)}
    named = [name for names in sections.values() for name in names]
    assert sorted(named) == sorted(options)


@pytest.mark.parametrize("word, meant", [("explian", "'explain'"), ("Bench", "'bench'")])
def test_a_command_that_is_none_names_the_likely_one(word, meant):
    done = CliRunner().invoke(main, [word, "--whatever"])
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1
    assert f"command: '{word}' is unknown; did you mean {meant}" in done.stderr


@pytest.mark.parametrize("words, meant", [
    (["bench", "comapre", "a", "b"], "compare"), (["bench", "Compare"], "compare"),
    (["bench", "--overlap", "x"], "overlap"), (["bench", "overlp", "bcast"], "overlap")])
def test_a_second_word_that_is_none_names_the_likely_one(words, meant):
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1
    assert f"'{words[0]} {words[1]}' is unknown; did you mean '{meant}'" in done.stderr


def test_a_folder_of_traces_that_is_a_misspelt_command():
    done = CliRunner().invoke(main, ["trace", "reprt", "traces"])
    assert done.exit_code == 2
    assert "'reprt' is not a command or a folder; did you mean 'report'" in done.stderr


def test_no_collective_is_taken_for_a_second_word():
    seconds = [name.split()[1] for name in COMMANDS if " " in name]
    assert seconds
    assert not [name for name in (*ALGORITHMS, *METHODS, "all") if did_you_mean(name, seconds)]


def every_command():
    """Names and commands, those of groups too."""
    group = click.Context(main, info_name="hpccoll", terminal_width=80)
    for name in COMMANDS:
        command = main.get_command(group, name)
        yield click.Context(command, info_name=name, parent=group, terminal_width=80)
        for inner, each in getattr(command, "commands", {}).items():
            yield click.Context(each, info_name=f"{name} {inner}", parent=group, terminal_width=80)


def test_help_fits_eighty_columns():
    """Examples, which stand as they are, too."""
    pages = [context.get_help() for context in every_command()]
    assert len(pages) > len(COMMANDS)
    wide = [line for page in pages for line in page.splitlines() if len(line) > 80]
    assert not wide


@pytest.mark.parametrize("words, begun, found", [
    ([], "sim", {"simulate"}), (["simulate"], "--no", {"--nodes", "--no-fold"}),
    (["bench", "compare"], "--to", {"--tolerance"}), (["trace"], "di", {"diagnose"}),
    (["bench", "--format"], "o", {"osu"}),
    (["bench", "overlap", "--work"], "as", {"asleep"}), ([], "bench", {"bench", "bench compare"}),
    (["bnech"], "--", {"--help"})])
def test_a_shell_completes_words(words, begun, found):
    """A mistake before the word is no error yet."""
    made = ShellComplete(main, {}, "hpccoll", "_HPCCOLL_COMPLETE").get_completions(words, begun)
    assert found <= {each.value for each in made}


def test_groups_are_shown():
    text = CliRunner().invoke(main, ["bench", "--help"]).output
    assert [title for title in BENCH if f"{title}:" in text] == list(BENCH)
    assert text.count("--sweeps N") == 1 and "--help" in text
    plain = CliRunner().invoke(main, ["doctor", "--help"]).output
    assert "Options:" in plain


# ``hpccoll tune`` and algorithms of one's own: which are measured, shown, and noted
pytest.importorskip("click")
pytest.importorskip("rich")


TORUS = str(Path(__file__).resolve().parents[3] / "examples" / "torus.py") + ":TORUS"
MACHINE = Fingerprint("MPI 1", "host", 4, "4", False)


def test_ones_own_are_planned_for_their_collective():
    plan = tune._add_algorithms(SurveyPlan(), (parse_algorithm(f"{TORUS}:x=2"),), {"y": 2, "z": 1},
                                4, False)
    assert plan.collectives == ("allreduce",)
    assert plan.brought == {"allreduce": (Candidate(TORUS, (("x", 2), ("y", 2), ("z", 1))),)}
    assert tune._add_algorithms(SurveyPlan(), (), {}, 4, False) == SurveyPlan()


@pytest.mark.parametrize("words, params, message", [
    ((TORUS,), {}, "x, y, z"), ((TORUS,), {"x": 2, "y": 2, "z": 2}, "support 4"),
    (("ring",), {}, "user-defined"), ((), {"x": 2}, "requires")])
def test_mistakes_are_found_before_anything_is_measured(words, params, message):
    with pytest.raises(ArgumentError, match=message):
        tune._add_algorithms(SurveyPlan(), tuple(map(parse_algorithm, words)), params, 4, False)


def test_ones_own_are_shown_but_not_noted(tmp_path):
    """A table is data: a job that reads it runs no code that it names."""
    path, own = tmp_path / "table.json", Candidate(TORUS, (("x", 4),))
    times = {Candidate("native"): 3e-6, Candidate("ring"): 2e-6, own: 4e-6}
    outcome = Survey(MACHINE, {("allreduce", True): ((64, times),)}, {}, False)
    shown, stayed = tune._add(str(path), MACHINE, outcome, False)
    assert not stayed
    assert shown[("allreduce", True)][0][1][own] == 4e-6
    assert "torus" not in path.read_text() and set(read(path)[MACHINE]) == {("allreduce", True)}
    lines = tuning_report.lines(MACHINE, tuning_report.fastest_candidates(shown, JobTimes(shown)),
                                ())
    assert "ratio  torus.py:TORUS" in lines[1] and lines[2].endswith("1.50            4 us")
    assert "# torus.py:TORUS: its time, which is not saved" in lines


def test_tune_prints_a_line_per_tenth_of_its_time(capsys):
    show = tune._progress_lines(600)
    for part in (0.0, 0.05, 0.101, 0.15, 0.39):
        show("allreduce 512", part)
    assert capsys.readouterr().err.splitlines() == [
        "hpccoll: tune: 61 s of 600 s, allreduce 512 B",
        "hpccoll: tune: 230 s of 600 s, allreduce 512 B"]


@pytest.mark.parametrize("words, collectives, algorithms", [
    (["allreduce", "Bcast"], ["allreduce", "bcast"], []), (["ring"], [], ["ring"]),
    (["allreduce", TORUS], ["allreduce"], [TORUS])])
def test_collectives_are_words_of_verify_and_tune(words, collectives, algorithms):
    found, others = split_collectives(map(parse_algorithm, words))
    assert found == collectives and [each.name for each in others] == algorithms

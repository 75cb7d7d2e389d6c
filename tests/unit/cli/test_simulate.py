"""The command ``hpccoll simulate``: what it prints, writes and refuses."""

import json

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from hpccoll.cli import main
from hpccoll.cli import simulate as command_module
from hpccoll.simulator import symmetry


def call(*words):
    return CliRunner().invoke(main, ["simulate", *words])


def test_one_simulation_is_a_report():
    done = call("allreduce", "--nodes", "16", "--ppn", "2x4", "--nbytes", "1G",
                "--algorithm", "rails")
    assert done.exit_code == 0, done.output
    for text in ("allreduce rails size=128", "1 GiB per rank on hdr, layout 16x2x4",
                 "128 ranks in 1 class", "critical path", "busiest", "idle per rank"):
        assert text in done.output


def test_several_are_a_table():
    done = call("bcast", "--nodes", "2,4", "--ppn", "2", "--nbytes", "1K,1M",
                "--algorithm", "binomial,knomial:k=3", "--root", "1")
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.output.splitlines()
             if line.strip() and not line.startswith("#")]
    assert sum("binomial" in line for line in lines) == 4
    assert sum("knomial:k=3" in line for line in lines) == 4
    assert any(line.removeprefix("* ").startswith("4 8 1 MiB ") for line in lines)
    assert any(" 1.00 " in line for line in lines)


def test_slow_algorithms_that_nobody_named_are_left_out_by_name(monkeypatch):
    for module, name in ((command_module, "LONG"), (command_module, "PATIENCE"),
                         (symmetry, "WORTH")):
        monkeypatch.setattr(module, name, 0.0)
    words = "allreduce", "--nodes", "4", "--ppn", "8"
    done = call(*words)
    assert done.exit_code == 0 and "omitted" in done.stderr and "ring (about" in done.stderr
    assert done.stdout.startswith("allreduce rails")  # something is shown in any case
    done = call(*words, "--algorithm", "ring,rails")
    assert done.exit_code == 0 and "omitted" not in done.stderr and " ring " in done.stdout


def test_usual_algorithms_of_every_collective():
    from hpccoll.algorithms import ALGORITHMS
    from hpccoll.cli.simulate import USUAL
    assert set(USUAL) == set(ALGORITHMS)
    for collective in ALGORITHMS:
        done = call(collective, "--nodes", "2", "--ppn", "2", "--nbytes", "4K")
        assert done.exit_code == 0, done.output


def test_all_algorithms():
    done = call("allreduce", "--nodes", "3", "--nbytes", "64", "--algorithm", "all",
                "--itemsize", "4", "--no-fold")
    assert done.exit_code == 0, done.output
    assert "double_tree" in done.output


def test_json(tmp_path):
    file = tmp_path / "out.json"
    assert call("allgather", "--nodes", "4", "--algorithm", "ring,bruck", "--json",
                str(file)).exit_code == 0
    data = json.loads(file.read_text())
    assert data["machine"]["name"] == "hdr"
    assert [r["algorithm"] for r in data["results"]] == ["ring", "bruck"]
    assert data["results"][0]["nodes"] == 4
    printed = call("allgather", "--nodes", "4", "--algorithm", "ring,bruck", "--json", "-")
    assert json.loads(printed.stdout) == data


def test_where_results_go_is_looked_at_first(tmp_path, monkeypatch):
    monkeypatch.setattr("hpccoll.cli.simulate.simulate", lambda *_, **__: pytest.fail("too late"))
    done = call("barrier", "--json", str(tmp_path / "no" / "x"))
    assert done.exit_code == 2 and "--json: cannot write" in done.output


def test_without_data_there_is_one_size(tmp_path):
    file = tmp_path / "out.json"
    words = ("barrier", "--nbytes", "8,1K", "--algorithm", "linear,recursive_doubling")
    assert call(*words, "--json", str(file)).exit_code == 0
    assert [r["nbytes"] for r in json.loads(file.read_text())["results"]] == [0, 0]
    done = call(*words)
    assert "# barrier on hdr, 2 nodes, 2 ranks\n" in done.output and "GB/s" not in done.output
    assert " ns" not in call("barrier", "--nodes", "4", "--ppn", "2").output  # of rounding
    assert "--nbytes: cannot read '1Q'" in call("barrier", "--nbytes", "1Q").output


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    ("--nodes", "2:8", "--nbytes", "1K,1M"), ("--nodes", "4", "--nbytes", "1K:1M"),
    ("--nodes", "4", "--nbytes", "1M"), ("--nodes", "4", "--nbytes", "0,1K")])
def test_picture(tmp_path, words):
    pytest.importorskip("matplotlib")
    file = tmp_path / "a.png"
    done = call("allreduce", *words, "--plot", str(file))
    assert done.exit_code == 0, done.output
    assert file.read_bytes().startswith(b"\x89PNG")


def test_machines_are_listed():
    done = call("--machines")
    assert done.exit_code == 0
    names = [line.split()[0] for line in done.output.splitlines() if line[:1].strip()]
    assert {"dgx-h100", "frontier", "hdr"} <= set(names) and names == sorted(names)


def test_a_layout_of_unequal_nodes():
    done = call("allreduce", "--topology", "3,5,4", "--algorithm", "ring,rails")
    assert done.exit_code == 0, done.output
    assert "12" in done.output


@pytest.mark.parametrize(("words", "problem"), [
    ((), "collective: a collective is required"),
    (("sum",), "collective: 'sum' is unknown"),
    (("allreduce", "--nodes", "0"), "--nodes: cannot read '0'"),
    (("allreduce", "--nodes", "two"), "--nodes: cannot read 'two'"),
    (("allreduce", "--nodes", "8:2"), "--nodes: '8:2' is not a range"),
    (("allreduce", "--nbytes", "1Q"), "--nbytes: cannot read '1Q'"),
    (("allreduce", "--nbytes", "-1"), "--nbytes: cannot read '-1'"),
    (("allreduce", "--nbytes", ""), "--nbytes: cannot read ''"),
    (("allreduce", "--nbytes", "9999T"), "more than 1 PiB"),
    (("allreduce", "--segment-bytes", "x"), "--segment-bytes: cannot read 'x'"),
    (("allreduce", "--segment-bytes", ""), "--segment-bytes: cannot read ''"),
    (("allreduce", "--segment-bytes", "1K:4K"), "--segment-bytes: cannot read '1K:4K' as a size"),
    (("allreduce", "--segment-bytes", "1K,4K"), "--segment-bytes: cannot read '1K,4K' as a size"),
    (("allreduce", "--ppn", "0"), "--ppn: '0'"),
    (("allreduce", "--ppn", "2y"), "hpccoll: --ppn: cannot read '2y'"),
    (("allreduce", "--ppn", "2:8"), "hpccoll: --ppn: cannot read '2:8'"),
    (("allreduce", "--topology", "2x"), "hpccoll: --topology: '2x' has no number"),
    (("allreduce", "--machine", "nix"), "machine: cannot read 'nix'"),
    (("allreduce", "--algorithm", "best"), "allreduce has no algorithm 'best'"),
    (("bcast", "--algorithm", "knomial:k=0"), "k: expected a positive integer"),
    (("bcast", "--algorithm", "knomial:k"), "--algorithm: cannot read 'k'; write it like k=4"),
    (("bcast", "--algorithm", "knomial:k=2:k=2"), "--algorithm: k is given twice"),
    (("bcast", "--algorithm", "knomial:size=2"), "--algorithm: size is not an algorithm parameter"),
    (("bcast", "--root", "7"), "root: 7 is not a rank"),
    (("allreduce", "--plot", "x.doc"), "has an unknown suffix")])
def test_bad_input(words, problem):
    done = call(*words)
    assert done.exit_code == 2
    assert problem in done.output
    assert "Traceback" not in done.output


def test_ctrl_c_shows_what_is_known(monkeypatch):
    from hpccoll.cli import simulate as cli

    def stopping(made, *words, progress, **more):
        if made.algorithm == "rails":
            progress("messages", 0.25, "3 us are simulated")
            raise KeyboardInterrupt
        return whole(made, *words, progress=progress, **more)

    whole = cli.simulate
    monkeypatch.setattr(cli, "simulate", stopping)
    done = call("allreduce", "--nodes", "2", "--ppn", "2", "--algorithm", "ring,rails,circulant")
    assert done.exit_code == 130
    assert "ring" in done.stdout and "circulant" not in done.stdout
    assert ("stopped after 1 of 3 simulations, in rails, 25% of its messages, 3 us are simulated"
            in done.stderr)


def test_what_takes_long_is_said_first(monkeypatch):
    from hpccoll.cli import simulate as cli

    monkeypatch.setattr(cli, "LONG", 0.0)
    done = call("bcast", "--nodes", "300", "--algorithm", "binomial")
    assert done.exit_code == 0
    assert "binomial: 300 programs and" in done.output and "Ctrl-C ends it" in done.output


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_table_fits_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    done = call("allreduce", "--nodes", "8,64", "--ppn", "8", "--nbytes", "1M,1G",
                "--machine", "frontier")
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= width
    assert "recursive_doubling" in done.output and "note: frontier" in done.output
    full = call("allreduce", "--nodes", "8,64", "--nbytes", "1M,1G", "--full").output
    assert "sharing" in full and "idle" in full


def test_one_that_is_shallower_than_its_machine_is_said_to_be():
    done = call("allreduce", "--nodes", "4", "--ppn", "8", "--machine", "frontier",
                "--algorithm", "rails")
    assert "note: frontier has the levels" in done.stderr and "simulated" in done.stdout


def test_shapes_and_what_a_call_meets(tmp_path):
    pytest.importorskip("matplotlib")
    done = call("allreduce", "--nodes", "8", "--algorithm", "ring", "--nbytes", "64K",
                "--shape", "torus:2x2x2:bytes_per_second=2e9", "--late", "exponential:20us",
                "--noise", "uniform:1us", "--compute-noise", "normal:1us:0.1us",
                "--compute", "1us,0.1ns/B", "--seed", "3", "--repeat", "3")
    assert done.exit_code == 0, done.output
    for text in ("shape: torus 2x2x2, static routes", "seeds 3 to 5", "torus link",
                 "the median of 3 repeats", "of 48 used", "coming late"):
        assert text in done.output
    done = call("allreduce", "--nodes", "8", "--algorithm", "ring,rabenseifner", "--shape",
                "fat_tree:4x2:up=1x2", "--late", "one:2:1ms", "--json", str(tmp_path / "j"),
                "--plot", str(tmp_path / "p.svg"))
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "j").read_text())
    assert written["machine"]["shape"]["extents"] == [4, 2]
    assert all(r["last_came"] == 1e-3 and r["links"] for r in written["results"])
    assert "links of the fat_tree" in (tmp_path / "p.svg").read_text()


@pytest.mark.parametrize(("words", "problem"), [
    (("--shape", "cube:4"), "shape: 'cube:4': shape.kind: 'cube' is unknown; choose from torus"),
    (("--shape", "torus:3"), "8 nodes exceed the 3 positions of hdr"),
    (("--late", "soon"), "late: cannot parse 'soon'"),
    (("--repeat", "2"), "no random distribution"),
    (("--compute", "5 apples"), "--compute: cannot read '5 apples' as a time"),
    (("--late", "one:8:1us"), "rank 8 is out of range for 8 ranks")])
def test_shapes_and_conditions_that_cannot_be(words, problem):
    done = call("allreduce", "--nodes", "8", "--algorithm", "ring", *words)
    assert done.exit_code == 2 and problem in " ".join(done.output.split()), done.output

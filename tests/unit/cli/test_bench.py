"""``hpccoll bench`` on one rank, and its mistakes."""

import json
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from hpccoll.algorithms import ALGORITHMS, Algorithm
from hpccoll.cli import main
from hpccoll.ir.schedule import Program


def bench(*words):
    return CliRunner().invoke(main, ["bench", *words])


def test_command_on_one_rank(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["hpccoll", "bench", "allreduce"])
    ran = bench("allreduce", "-m", "8:64", "-i", "5", "--json", str(tmp_path / "record.json"))
    assert ran.exit_code == 0, ran.output
    assert "mpiexec -n 4 python -m hpccoll bench allreduce" in " ".join(
        ran.output.replace("#", "").split())
    assert "wrong elements: 0" in ran.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert {r["candidate"] for r in record["results"]} == {"native", "auto", "recursive_doubling"}
    assert all(len(r["seconds"]) == 5 for r in record["results"])


def test_command_in_registered_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    ran = bench("allreduce", "gather", "-m", "1M:1M", "-i", "2", "--rotate", "2", "--registered",
                "--algorithm", "native,auto", "--json", str(tmp_path / "record.json"))
    assert ran.exit_code == 0, ran.output
    # One rank has nobody to read its memory.
    assert "# some ranks have no registered memory" in ran.output
    assert "# limit: share of the copy bandwidth" in ran.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["environment"]["buffers"] == "unregistered"
    assert record["settings"]["registered"]
    assert all(r["statistics"]["limit"] > 0 for r in record["results"])


@pytest.mark.parametrize("calls, about", [("persistent", "# calls: persistent: "),
                                          ("lower-case", "# calls: lower case: "),
                                          ("nonblocking", "# calls: nonblocking: "),
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
    ran = bench("overlap", "gatherv", "-m", "8:8", "-i", "2", "--topology", "1", "--algorithm",
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
    assert "WRONG: allreduce ring (ring), 64 B: 32 wrong elements" in ran.output
    assert "wrong elements: 32" in ran.output


@pytest.mark.parametrize("words", [
    ["nonsense"], [], ["allreduce", "--nonsense"], ["allreduce", "-i", "x"],
    ["allreduce", "-m", "9:8"], ["allreduce", "--dtype", "S3"], ["allreduce", "--op", "plus"],
    ["allreduce", "--algorithm", "bruck"], ["allreduce", "--algorithm", "census"],
    ["bcast", "--algorithm", "knomial:z=1"], ["bcast", "--root", "9999"],
    ["bcast", "--topology", "4096x2"], ["bcast", "--segment-bytes", "0"],
    ["bcast", "--json", "missing/x"], ["bcast", "--plot", "missing/x.png"],
    ["bcast", "--plot", "x.nonsense"], ["bcast", "--rotate", "0"], ["bcast", "--format", "x"],
    ["overlap", "bcast", "--format", "csv"], ["overlap", "bcast", "--plot", "x.png"],
    ["overlap", "bcast", "--peers"], ["overlap", "bcast", "--sweeps", "2"],
    ["overlap", "bcast", "--rotate", "2"], ["bcast", "--sweeps", "0"],
    ["overlap", "bcast", "--keep", "9"], ["bcast", "--keep", "0"],
    ["overlap", "bcast", "--calls", "persistent"], ["bcast", "--calls", "x"],
    ["bcast", "--tests", "2"], ["bcast", "--work", "numpy"],
    ["overlap", "bcast", "--work", "music"], ["overlap", "bcast", "--device", "cuda"],
    ["overlap"], ["overlap", "bcast", "--root", "9999"], ["--algorithm", "ring"],
    ["bcast", "--ranks", "2"], ["bcast", "-o", "x"],
    ["allreduce", "alltoall", "--calls", "lower-case"],
    ["allreduce", "--calls", "lower-case", "--in-place"],
    ["allreduce", "--calls", "lower-case", "--algorithm", "ring"],
    ["allreduce", "--calls", "persistent", "--peers"],
    ["bcast", "--dtype", ">f8"], ["bcast", "--seconds", "nan"], ["bcast", "--seconds", "inf"],
    ["bcast", "--tolerance", "nan"]])
def test_bad_options_are_one_line(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    if "--plot" in words:
        pytest.importorskip("matplotlib")
    ran, command = bench(*words), "bench overlap" if "overlap" in words else "bench"
    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith(f"hpccoll: {command}: ") and ran.stderr.count("\n") == 1


def test_bad_environment_is_one_line(monkeypatch):
    monkeypatch.setenv("HPCCOLL_ALGORITHM", "nonsense")
    ran = bench("bcast")
    assert ran.exit_code == 2
    assert ran.stderr.startswith("hpccoll: bench: HPCCOLL_ALGORITHM")


def test_ones_own_algorithm_is_measured_beside_the_usual():
    torus = str(Path(__file__).resolve().parents[3] / "examples" / "torus.py") + ":TORUS"
    ones = [word for name in "xyz" for word in ("-p", f"{name}=1")]
    ran = bench(torus, *ones, "-m", "64:64", "-i", "2", "--format", "csv")
    assert ran.exit_code == 0, ran.output
    assert "native" in ran.output and "TORUS:x=1:y=1:z=1" in ran.output
    for words in ([torus], [torus, "-p", "x=1"], [torus + "X", *ones], ["allreduce", *ones]):
        assert bench(*words, "-m", "64:64").exit_code == 2


@pytest.mark.slow
def test_command_on_a_gpu(tmp_path):
    from support.gpu.device import installed
    with installed(False):
        ran = bench("allreduce", "bcast", "-m", "1K:1K", "-i", "3", "--device", "cuda", "--json",
                    str(tmp_path / "record.json"), "--algorithm",
                    "native,ring,nccl,nccl+rails,nccl+leader")
    assert ran.exit_code == 0, ran.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert {(r["collective"], r["candidate"]) for r in record["results"]} >= {
        ("allreduce", "nccl"), ("allreduce", "nccl+rails"), ("allreduce", "nccl+leader"),
        ("bcast", "nccl")}
    assert record["environment"]["buffers"] == "device"
    assert "# buffers are on GPUs" in ran.output
    with installed(False):  # one rank has nobody to register for
        ran = bench("allreduce", "-m", "1M:1M", "-i", "3", "--device", "cuda", "--registered",
                    "--algorithm", "native")
    assert ran.exit_code == 0 and "# registration failed" in ran.output


@pytest.mark.parametrize("words, said", [
    (("--device", "cuda"), "--device: CuPy is not installed"),
    (("--algorithm", "nccl"), "nccl cannot run: it requires GPU arrays: --device cuda"),
    (("--device", "cuda", "--peers"), "--device: does not go with --peers"),
    (("--device", "cuda", "--calls", "persistent"), "--device: does not go with --peers or other"),
    (("--device", "tpu"), "cuda")])
def test_what_a_gpu_is_needed_for(words, said):
    ran = bench("allreduce", "-m", "8:8", *words)
    assert ran.exit_code == 2 and said in " ".join(ran.output.split()), ran.output

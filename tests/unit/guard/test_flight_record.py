"""Flight records without ranks: what is written, when, and when it cannot be."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

from hpccoll.guard.flight_record import CommunicatorName, FlightRecorder
from hpccoll.guard.rank_status import RankActivity
from hpccoll.runtime.events.call_log import LOG_BYTES, NUMBER, SOME_TIME, Log
from hpccoll.runtime.planning.description import Description

RING = Description("allreduce", "1000", "f8", "sum", "", "ring")


class MadeGuard:
    """A guard of three ranks: this one, one that waits and one that was killed."""

    def __init__(self):
        logs = {rank: Log(numpy.zeros(LOG_BYTES, "u1")) for rank in range(3)}
        for log in logs.values():
            log.describe(RING.call_hash(), RING)
            for number, end in ((1, 7_000_000_000), (2, SOME_TIME), (3, 0)):
                log.write_start(number, RING.call_hash(), 6_000_000_000)
                log.write_end(number, end)
                log.words[NUMBER] = number
        self.rank = 0
        self.logs = SimpleNamespace(logs=logs)
        comm = SimpleNamespace(Get_name=lambda: "hpccoll private of WORLD")
        self.ranks = SimpleNamespace(comm=comm)

    def activities(self):
        return [RankActivity(0, "in no wait", 3, 2), RankActivity(1, "waiting", 3, 2),
                RankActivity(2, "killed", 3, 2)]


@pytest.fixture
def recorder():
    made = FlightRecorder()
    guard = made.guard = MadeGuard()
    made.guards[guard] = CommunicatorName("c", (0, 1, 2))
    return made


def test_a_rank_writes_of_itself_and_of_those_that_cannot(recorder, tmp_path):
    path = recorder.dump("asked for", tmp_path / "deep")
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    assert data["kind"] == "flight" and data["why"] == "asked for"
    [comm] = data["communicators"]
    assert comm["name"] == "WORLD" and list(comm["records"]) == ["0", "2"]
    calls = comm["records"]["2"]["calls"]
    assert [call["number"] for call in calls] == [1, 2, 3]
    assert calls[0]["end"] - calls[0]["start"] == pytest.approx(1)
    assert [call["end"] for call in calls[1:]] == ["yes", None]
    assert calls[0]["algorithm"] == "ring" and "root" not in calls[0]


def test_nothing_is_written_that_nobody_asked_for(recorder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorder.write_record("a long wait")
    assert not list(tmp_path.iterdir())


def test_the_first_failure_stays(recorder, tmp_path):
    recorder.folder = str(tmp_path)
    for why, failed in (("a long wait", False), ("an error", True), ("a long wait", False)):
        recorder.write_record(why, failed)
    [file] = tmp_path.iterdir()
    assert json.loads(file.read_text())["why"] == "an error"
    recorder.dump("asked for")
    assert json.loads(file.read_text())["why"] == "asked for"


def test_a_folder_that_cannot_be_written_is_said_and_no_error(recorder, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert recorder.dump("asked for", tmp_path / "file" / "folder") == ""
    assert "cannot write the flight record of rank 0" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("loop", ["", "add_signal_handler(2, print)", "remove_signal_handler(2)"])
def test_signals_beside_asyncio(tmp_path, number, loop):
    """Its first signal handler takes the wakeup descriptor that the thread reads."""
    program = f"""if True:
        import asyncio, os, time
        from hpccoll.guard.flight_record import FlightRecorder
        from hpccoll.guard.flight_signals import listen
        recorder = FlightRecorder()
        recorder.folder = {str(tmp_path)!r}
        listen(recorder)
        if {loop!r}:
            loop = asyncio.new_event_loop()
            loop.add_signal_handler(2, print)
            loop.{loop or "close()"}
        os.kill(os.getpid(), {int(number)})
        time.sleep(1)
        """
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == (-number if number == signal.SIGTERM else 0)
    [file] = tmp_path.iterdir()
    assert json.loads(file.read_text())["why"] == number.name

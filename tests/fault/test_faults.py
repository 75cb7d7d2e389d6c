"""Ranks that are killed, stopped, busy, gone or in another call are named on every other rank.

Each test starts a job of its own. More of the same, with tables of times: ``campaign.py``.

``tests/broken.py`` shows them fail. With ``Board.look`` that finds nobody, killed ranks are named
at the deadline only; with ``WATCHDOG.add`` that adds nothing, jobs in the library's calls hang
until they are killed here; with ``state_of`` that takes stopped for dead, a stopped rank is named
too early; with ``Natives.watch_blocking`` that returns its function, nobody sees who is in a call
of the library's, and a rank that differs hangs; with ``Bounded.Wait`` that calls the library's, who
waits for a request hangs.
"""

import math
import sys
from pathlib import Path

import launch
import pytest

import jobs
from hpccoll.runtime.execution.built import BUILT

BIN = Path(sys.executable).parent
TIMEOUT = 6.0
pytestmark = pytest.mark.skipif(launch.mpiexec(BIN) is None, reason="there is no mpiexec here")


@pytest.fixture(scope="module")
def library():
    return jobs.library(BIN)


def check(found, odd, kinds, words, soonest=0.0, latest=2.0):
    """Every other rank got such an error, in time, that begins with the odd rank."""
    for rank, one in found.items():
        if rank == odd:
            continue
        assert one.kind in kinds, (rank, one)
        told = one.stderr if one.kind == "Ended" else one.text
        first = next((line for line in told.splitlines() if line.startswith("hpccoll: ")), "")
        assert first.startswith(f"hpccoll: rank {odd} {words}"), (rank, one)
        assert soonest <= one.seconds < max(latest, jobs.SHORTEST), (rank, one)
        if one.kind == "PeerLost":
            # A launcher ends the others, too: whoever has told an outcome was not lost.
            assert odd in one.ranks and not set(one.ranks) & set(found) - {odd}, (rank, one)


@pytest.mark.parametrize("size, odd, when", [(2, 0, "before"), (4, 3, "during")])
def test_a_killed_rank(library, size, odd, when):
    case = {"odd": odd, "fault": "kill", "served": "ours", "when": when, "bcast": 1,
            "count": 400_000 if when == "during" else 8}
    check(jobs.run(BIN, library, size, case, TIMEOUT), odd, ["PeerLost"], "was killed")


@pytest.mark.parametrize("how", [
    pytest.param("signal", marks=pytest.mark.once), "read", "abort"])
@pytest.mark.parametrize("served, kind", [("ours", "PeerLost"), ("native", "Ended")])
def test_a_rank_that_crashes(library, how, served, kind):
    """By a segmentation fault, sent or its own, or by abort(): a library may catch these."""
    case = {"odd": 1, "fault": "crash", "how": how, "served": served}
    check(jobs.run(BIN, library, 3, case, TIMEOUT), 1, [kind], "was killed", latest=4.0)


def test_a_killed_rank_in_calls_of_the_library(library):
    """The others are ended, and say why: nothing can make the library return."""
    case = {"odd": 1, "fault": "kill", "served": "native"}
    check(jobs.run(BIN, library, 3, case, TIMEOUT), 1, ["Ended"], "was killed", latest=4.0)


@pytest.mark.parametrize("form, kind", [
    ("nonblocking", "PeerLost"), ("posted", "PeerLost"), ("persistent", "PeerLost"),
    ("objects", "Ended")])
def test_a_killed_rank_in_other_forms_of_the_librarys_calls(library, form, kind):
    """Who waits for a request gets an error; a call of mpi4py's with objects is a blocking one."""
    case = {"odd": 1, "fault": "kill", "served": "native", "form": form}
    check(jobs.run(BIN, library, 3, case, TIMEOUT), 1, [kind], "was killed", latest=4.0)


@pytest.mark.parametrize("form, kind", [("exchange", "RankFailed"), ("ring", "PeerLost")])
def test_a_killed_rank_in_training(library, form, kind):
    """Without a time-out: an exchange of gradients, and messages around a ring."""
    case = {"odd": 1, "fault": "kill", "served": "native", "form": form}
    check(jobs.run(BIN, library, 3, case, math.inf), 1, [kind], "was killed", latest=6.0)


def test_a_stopped_rank_while_others_wait_for_a_request(library):
    case = {"odd": 1, "fault": "stop", "served": "native", "form": "nonblocking"}
    found = jobs.run(BIN, library, 3, case, 2.0)
    check(found, 1, ["CollectiveTimeout", "BrokenCommunicatorError"], "is stopped", 2.0, 6.0)


def test_a_rank_killed_before_the_first_call(library):
    """Setting up is the library's; rank 0 is who would have read measured times."""
    case = {"odd": 0, "fault": "kill", "served": "ours", "when": "first"}
    check(jobs.run(BIN, library, 2, case, TIMEOUT), 0, ["Ended", "PeerLost"], "was killed",
          latest=4.0)


@pytest.mark.parametrize("fault, form, when, words", [
    ("kill", "blocking", "alone", "was killed"), ("exit", "blocking", "alone", "has ended"),
    ("kill", "split", "alone", "was killed"), ("kill", "split", "before", "was killed"),
    ("kill", "empty", "before", "was killed")])
def test_rank_gone_before_a_call_that_makes_a_communicator_or_memory(
        library, fault, form, when, words):
    """``alone``: no collective came before on the communicator; the job's logs name the rank."""
    case = {"odd": 2, "fault": fault, "served": "ours", "when": when, "form": form}
    check(jobs.run(BIN, library, 3, case, TIMEOUT), 2, ["PeerLost"], words, latest=4.0)


@pytest.mark.parametrize("fault, form, when", [
    ("inside", "inside", "alone"), ("inside", "inside", "before"), ("kill", "group", "alone")])
def test_rank_killed_while_the_library_makes_a_communicator(library, fault, form, when):
    case = {"odd": 2, "fault": fault, "served": "ours", "when": when, "form": form}
    check(jobs.run(BIN, library, 3, case, TIMEOUT), 2, ["Ended"], "was killed", latest=5.0)


@pytest.mark.skipif(not BUILT, reason="a thread of C's checks")
def test_rank_killed_before_the_others_end_their_program(library):
    """MPI_Finalize waits for it: for ever in MPICH, a while in Open MPI."""
    case = {"odd": 2, "fault": "kill", "served": "ours", "form": "exit"}
    found = jobs.run(BIN, library, 3, case, TIMEOUT)
    if library == "openmpi" and {one.kind for one in found.values()} == {"status 0"}:
        return
    check(found, 2, ["Ended"], "was killed", latest=6.0)


def test_a_killed_rank_in_calls_of_the_library_that_are_compared(library):
    """At the level ``always`` there is an error to catch."""
    case = {"odd": 1, "fault": "kill", "served": "native", "contract": "always"}
    check(jobs.run(BIN, library, 3, case, TIMEOUT), 1, ["PeerLost"], "was killed")


def test_a_killed_rank_without_shared_memory(library):
    case = {"odd": 1, "fault": "kill", "served": "ours"}
    check(jobs.run(BIN, library, 3, case, TIMEOUT, HPCCOLL_SHARED_MEMORY="no"), 1, ["PeerLost"],
          "was killed", latest=5.0)


@pytest.mark.parametrize("served, kind", [("ours", "CollectiveTimeout"), ("native", "Ended")])
def test_a_stopped_rank(library, served, kind):
    """At the deadline, not before; and it does not blame others when it goes on."""
    case = {"odd": 1, "fault": "stop", "served": served}
    timeout = 2.0
    found = jobs.run(BIN, library, 3 if served == "ours" else 4, case, timeout,
                     resume=4.5 if served == "ours" else None)
    check(found, 1, [kind, "BrokenCommunicatorError"], "is stopped", timeout, 2 * timeout + 2)
    if served == "ours":  # the others have left by os._exit
        assert found[1].kind == "BrokenCommunicatorError", found[1]
        assert found[1].text.startswith("hpccoll: rank 1 is stopped: communicator is broken: rank ")


@pytest.mark.parametrize("served, kind", [("ours", "CollectiveTimeout"), ("native", "Ended")])
def test_without_a_time_out_a_rank_that_stays_stopped_ends_the_wait(library, served, kind):
    """At the second report: the first one names it, and it may go on."""
    case = {"odd": 1, "fault": "stop", "served": served}
    found = jobs.run(BIN, library, 3, case, math.inf, report=1.2)
    check(found, 1, [kind, "BrokenCommunicatorError"], "is stopped", 2.3, 6.0)
    assert any("has waited" in one.stderr for one in found.values())


@pytest.mark.parametrize("served, kind", [("ours", "CollectiveTimeout"), ("native", "Ended")])
def test_a_rank_that_holds_the_interpreter_lock(library, served, kind):
    """It cannot tell where it is; when it comes, it learns why the others have left."""
    case = {"odd": 1, "fault": "lock", "served": served, "seconds": 6.0}
    words = "is in code that holds the interpreter lock, not in call 43 (one call behind): "
    found = jobs.run(BIN, library, 4 if served == "ours" else 3, case, 2.5)
    late = found.pop(1)
    check(found, 1, [kind, "BrokenCommunicatorError"], words, 2.4, 5.5)
    assert late.kind == "BrokenCommunicatorError", late
    assert late.text.startswith(f"hpccoll: rank 1 {words}communicator is broken: rank "), late


@pytest.mark.parametrize("served", ["ours", "native"])
def test_a_rank_that_holds_the_interpreter_lock_for_less_than_the_deadline(library, served):
    """The others wait for it, and it for nobody; none of them reports it."""
    case = {"odd": 1, "fault": "lock", "served": served, "seconds": 1.5, "calls": 3}
    found = jobs.run(BIN, library, 3, case, timeout=4.0)
    assert {one.kind for one in found.values()} == {""} and not any(
        one.stderr for one in found.values())


@pytest.mark.once
def test_a_rank_that_goes_on_in_time(library):
    """A stop below the deadline is no failure, and no report of it comes too early."""
    case = {"odd": 1, "fault": "stop", "served": "ours", "calls": 3}
    found = jobs.run(BIN, library, 2, case, timeout=3.0, resume=1.5)
    assert {one.kind for one in found.values()} == {""}


@pytest.mark.parametrize("served", [
    pytest.param("ours", marks=pytest.mark.once), "native"])
def test_a_long_computation(library, served):
    """Reports with the line that it is at; no error, for how long it may take."""
    case = {"odd": 1, "fault": "compute", "served": served, "seconds": 4.0, "calls": 3}
    found = jobs.run(BIN, library, 2, case, math.inf, report=1.5)
    assert {one.kind for one in found.values()} == {""}
    told, program = found[0].stderr, Path(jobs.__file__).with_name("program.py")
    lines = program.read_text().splitlines()
    first = next(n for n, line in enumerate(lines, 1) if "THE COMPUTATION" in line)
    places = [f"rank 1 is at {program}:{line}" for line in (first, first + 1)]
    assert any(place in told for place in places), told
    assert "its last call was call 42, bcast" in told and found[1].stderr == ""
    assert told.count("has waited") >= 2


@pytest.mark.parametrize("fault, words", [("exit", "has ended"), ("free", "has freed")])
def test_a_rank_that_leaves_early(library, fault, words):
    case = {"odd": 1, "fault": fault, "served": "ours", "seconds": 2.0}
    check(jobs.run(BIN, library, 3, case, TIMEOUT), 1, ["PeerLost"], words)


def test_one_rank_in_the_library_and_the_others_in_ours(library):
    found = jobs.run(BIN, library, 3, {"odd": 1, "fault": "differ", "served": "mixed"}, TIMEOUT)
    for rank in (0, 2):
        assert found[rank].kind == "ContractError" and found[rank].ranks == (1,), found[rank]
        assert found[rank].seconds < max(1.5, jobs.SHORTEST)
    assert found[1].kind == "Ended", found[1]
    assert "ranks disagree on algorithm in blocking call 3:\n  rank 1: native" in found[1].stderr


@pytest.mark.parametrize("served", [
    pytest.param("ours", marks=pytest.mark.once), "native"])
def test_late_ranks_are_no_failure(library, served):
    """Each rank in turn is late, by up to half the deadline."""
    case = {"odd": -1, "fault": "", "served": served, "calls": 4, "delay": 0.5}
    found = jobs.run(BIN, library, 3, case, timeout=1.0)
    assert {one.kind for one in found.values()} == {""} and not any(
        one.stderr for one in found.values())

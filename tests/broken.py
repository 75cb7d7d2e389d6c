"""Break the build on purpose, one place at a time, and see the tests fail.

    python tests/broken.py [-k WORD] ENVIRONMENT

A test that cannot fail proves nothing. Each line of ``BREAKS`` names an edit of the sources and
tests that must notice it. The tree is copied; in the copy the tests pass first, then the edit is
made, C is built where it is C, and all tests of the line must fail, or not come to an end. With
several ranks the first test that fails ends the job, so those lines name one test. Prints a line
for each break; the status says whether all were noticed. ``make broken`` runs it on MPICH.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import launch
from breaks import DEVICES, INTERRUPTED, NEWEST, QUEUED, SHARED_CACHE, WAITS, Break

#: What is copied, and what is not.
PARTS = ("hpccoll", "tests", "docs", "examples", "benchmarks", "setup.py", "setup.cfg",
         "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "mkdocs.yml", "Makefile")
#: Seconds until tests that hang are taken to have failed.
LIMIT = 100.0
NOTICED, UNNOTICED, WRONG = "noticed", "NOT NOTICED", "CANNOT BE TRIED"


STAMPS = "hpccoll/runtime/planning/description.py"
TOLD = '"\\0".join(told)'
GUARD, BOARD = "hpccoll/guard/guard.py", "hpccoll/guard/board.py"
NATIVES = "hpccoll/guard/natives.py"
CALLS = "hpccoll/runtime/execution/_recognition.c"
FAULTS, ENDINGS = "tests/fault/test_faults.py", "tests/fault/test_endings.py"
CONTRACT, BROKEN = "tests/mpi/test_contract.py", "tests/mpi/test_broken.py"


def no_field(field: str, way: str) -> Break:
    """A field is left out of the stamps of calls."""
    return Break(f"stamps without the {field}",
                 ((STAMPS, TOLD, f'"\\0".join(told._replace({field}=""))'),),
                 f"{CONTRACT} -k test_every_rank_learns.*{way}".replace(".*", " and "), 3)


BREAKS = (
    *NEWEST,
    # Ranks that disagree.
    no_field("dtype", "dtype-allreduce-allreduce-compiled"),
    no_field("operator", "operator-allreduce-allreduce-compiled"),
    no_field("count", "count-allreduce-allreduce-compiled"),
    no_field("root", "root-bcast-bcast-compiled"),
    no_field("algorithm", "algorithm-allreduce-allreduce-compiled"),
    no_field("collective", "collective-scan-exscan-compiled"),
    Break("types of what only moves are not told",
          ((STAMPS, "kind = 0 if one.operator else KINDS.get(one.dtype, 0)", "kind = 0"),),
          f"{CONTRACT} -k test_every_rank_learns and dtype-bcast-bcast-compiled", 3),
    Break("no call sites",
          (("hpccoll/guard/sites.py", "_site(sys._current_frames().get(thread) if thread "
            "else sys._getframe(1))", '""'),), f"{CONTRACT} -k halves", 2),
    Break("calls that the others have made are not looked up",
          ((GUARD, "if self.logs.disagree(settled=True):", "if False:"),),
          f"{CONTRACT} -k test_every_rank_learns and collective", 3),
    Break("calls that have ended are not compared",
          ((NATIVES, "            self._look_back()\n", "            pass\n"),),
          f"{CONTRACT} -k have_ended and operator", 2),
    Break("calls that have ended are only found where two looks find the same one",
          ((NATIVES, "or not before or self.told", "or self.odd != before or self.told"),),
          "tests/unit/guard/test_natives.py -k fast_loop"),
    Break("what the thread finds is told before it is known",
          ((GUARD, "            if in_thread:  # before", "            if False:  # before"),),
          "tests/unit/guard/test_natives.py -k while_the_thread or was_given_up"),
    Break("what has no elements has a type", ((STAMPS, " and one.count}", "}"),),
          "tests/unit/runtime/planning/test_description.py -k who_has_nothing and one2"),
    Break("calls are not compared at the end of a communicator",
          ((GUARD, "        self.natives.last_look()\n", ""),),
          f"{CONTRACT} -k compared_at_the_end", 2),
    Break("ranks that come late to a call are unknown",
          (("hpccoll/guard/exchange.py", "log.words[NUMBER] >= number for", "True for"),),
          "tests/unit/guard/test_exchange.py -k late_rank and numbers1"),
    Break("who gives up later has the last word",
          (("hpccoll/guard/exchange.py", "while not 0 < log.words", "if not 0 < log.words"),),
          "tests/unit/guard/test_exchange.py -k at_once and 4-numbers1"),
    Break("the first rank is right, whoever the others are",
          (("hpccoll/errors/contract.py", "(-len(group.ranks), group.ranks))", "group.ranks)"),),
          "tests/unit/guard/test_verdict.py -k minority_is_named"),
    Break("always compares nothing",
          ((GUARD, "            if not same:\n", "            if False:\n"),),
          f"{CONTRACT} -k always and operator-native", 2),
    # After a call has failed.
    Break("broken communicators serve calls",
          ((GUARD, "        raise self._again()", "        return  # type: ignore"),),
          f"{BROKEN} -k every_later_call", 2),
    Break("late ranks do not learn that the others gave up",
          ((GUARD, "if self.logs.rung(in_turn):", "if False:"),),
          f"{BROKEN} -k late_rank and large", 2),
    Break("the library's words are passed on where a rank has left",
          ((GUARD, "error, (BrokenCommunicatorError, MPI.Exception)):",
            "error, BrokenCommunicatorError):"),), f"{ENDINGS} -k takes_its_memory and no"),
    # Ranks that are killed, stopped, or gone.
    Break("the board finds nobody", ((BOARD, "if at_once or now - self.looked >= BETWEEN:",
                                      "if False:"),),
          f"{FAULTS} -k test_a_killed_rank[ or leaves_early"),
    Break("a request's wait is the library's",
          (("hpccoll/guard/begun.py", "test = super().Test", "return super().Wait(status)"),),
          f"{FAULTS} -k other_forms and nonblocking"),
    Break("who waits for several requests waits in the library",
          (("hpccoll/comm/together.py", "    if looks:\n", "    if False:\n"),),
          "tests/mpi/test_together.py -k does_not_come and Waitall-native", 2),
    Break("a complete request is blamed for those who are late",
          (("hpccoll/guard/begun.py", "over = super().Get_status", "over = bool"),),
          "tests/mpi/test_together.py -k complete_one", 2),
    Break("an error ends the thread that looks",
          (("hpccoll/guard/watcher.py", "                except Exception as error:  # one",
            "                except KeyError as error:  # one"),),
          "tests/unit/guard/test_watcher.py -k cannot_be_looked_at"),
    Break("hosts of other ranks are not told",
          ((BOARD, "node=self.far.get(rank, \"\")", "node=\"\""),),
          "tests/unit/guard/test_board.py -k other_machines"),
    Break("nothing is watched", (("hpccoll/guard/watcher.py", "self.watched.add(one)", "return"),),
          f"{FAULTS} -k (test_a_killed_rank_in_calls or test_one_rank_in_the_library) and not "
          "compared"),
    Break("stopped ranks are dead",
          (("hpccoll/machine/processes.py", '"T": STOPPED', '"T": DEAD'),),
          f"{FAULTS} -k test_a_stopped_rank or goes_on"),
    Break("nobody sees who is in a call of the library's",
          ((NATIVES, "return noted(function, self.log, stamp, self.guard.refused,\n"
            "                     partial(self._failed, name, pickles))", "return function"),),
          f"{FAULTS} -k test_one_rank_in_the_library"),
    # Threads, forks, the end.
    Break("two calls may enter", (("hpccoll/runtime/execution/_tape.h",
                                   "if (entrance->holder)", "if (0)"),),
          "tests/mpi/test_threads.py -k test_two_threads_on_one and ours", 2),
    Break("forks go unnoticed", (("hpccoll/comm/lifetime.py",
                                  "os.register_at_fork(after_in_child=cls.forked)", "pass"),),
          f"{ENDINGS} -k forked"),
    Break("nothing is told at the end", (("hpccoll/comm/lifetime.py",
                                          "atexit.register(PROGRESS.report)", "pass"),),
          f"{ENDINGS} -k exit_with_work"),
    Break("what is freed is kept",
          (("hpccoll/runtime/context.py", "failure is None:\n                self.comm.Free()\n",
            "failure is None:\n                self.comm.Free()\n"
            "            sys.__dict__.setdefault('kept', []).append(self)\n"),
           ("hpccoll/runtime/context.py", "import weakref\n", "import sys\nimport weakref\n")),
          "tests/mpi/test_many.py -k thousands", 2),
    Break("flight records keep no calls",
          (("hpccoll/runtime/events/log.py", "        return found\n\n    def record",
            "        return []\n\n    def record"),), "tests/mpi/test_flight.py -k on_request", 2),
    # Numbers.
    Break("checksums are not compared",
          (("hpccoll/transport/checked.py", "if (found, expected) == (number, actual):",
            "if True:"),),
          "tests/unit/testing/test_havoc.py -k every_bit or one_bit"),
    Break("the census finds nobody",
          (("hpccoll/guard/census.py", "    if told:", "    if False:"),),
          "tests/mpi/test_numbers.py -k census", 2),
    Break("all results are equal", (("hpccoll/guard/census.py", "if len(set(records)) == 1:",
                                     "if True:"),),
          "tests/mpi/test_numbers.py -k equality", 2),
    Break("bfloat16 is rounded away from even",
          (("hpccoll/arrays/_half.c", "bits + 0x7fff + (bits >> 16 & 1)", "bits + 0x8000"),),
          "tests/unit/arrays/test_half.py -k machine_code_rounds_bfloat16"),
    Break("messages are announced before their bytes are there",
          (("hpccoll/runtime/execution/_running.c",
            "number << SIZE_BITS | step[5],\n                          memory_order_release",
            "number << SIZE_BITS | step[5],\n                          memory_order_relaxed"),),
          "tests/sanitize/test_channels.py -k whole_and_in_order[thread]"),
    Break("a compiler that fails ends the installation",
          (("setup.py", "depends=depends, optional=True", "depends=depends, optional=False"),),
          "tests/doc/test_install.py"),
    Break("chains of 16-bit numbers are rounded at each step",
          (("hpccoll/runtime/execution/_running.c",
            "form & LEFT_WIDE ? held : operands[0]", "operands[0]"),),
          "tests/mpi/test_half.py -k test_a_chain", 3),
    # Calls that are taken for others, choices, proofs.
    Break("the native thread moves nothing on",
          (("hpccoll/runtime/execution/_background.c", "        int moved = pass();",
            "        int moved = STILL;"),),
          "tests/unit/runtime/execution/test_taped.py -k nobody_calls"),
    Break("the native thread runs what Python has claimed",
          (("hpccoll/runtime/execution/_requests.h", "    char free = FREE;",
            "    char free = how == RUNNING ? operation->busy : FREE;"),),
          "tests/unit/runtime/execution/test_taped.py -k python_claims"),
    Break("after a failure the next one of the lane begins",
          (("hpccoll/runtime/execution/_background.c",
            "    lane->broken = 1;", "    lane->broken = 0;"),),
          "tests/unit/runtime/execution/test_taped.py -k nobody_begins"),
    Break("the next request goes on with the channels of one that failed",
          (("hpccoll/runtime/execution/_background.c",
            "    lane->broken = 1;", "    lane->broken = 0;"),),
          f"{BROKEN} -k sends_nothing and Ctrl", 2),
    Break("an operation runs when it was taken out of service",
          (("hpccoll/runtime/execution/_requests.c", "!has_ended(self) && !self->over",
            "!has_ended(self)"),),
          "tests/unit/runtime/execution/test_taped.py -k taken_out_of_service"),
    Break("a start does not wait for who still looks",
          (("hpccoll/runtime/execution/_requests.c",
            "        given_back(self, STARTED);", "        ;"),),
          "tests/unit/runtime/execution/test_taped.py -k still_looks"),
    Break("the native thread blocks signals of its own faults",
          (("hpccoll/runtime/execution/_background.c", "sigdelset(&others, own[i]);", ";"),),
          "tests/unit/runtime/execution/test_taped.py -k own_faults"),
    Break("Python fetches messages for what is over",
          (("hpccoll/runtime/execution/taped.py", "not self.over and (self.lane is None",
            "(self.lane is None"),),
          "tests/unit/runtime/execution/test_taped.py -k fetches_nothing"),
    Break("the processor's time has the barrier before the collective",
          (("hpccoll/tools/bench/overlap.py", "            used -= self.used\n",
            "            used -= process_time()\n"),),
          "tests/unit/tools/bench/test_overlap.py -k processor_time"),
    Break("segments share channels",
          (("hpccoll/runtime/execution/tape.py", "shift, index % depth", "shift, 0"),),
          "tests/unit/runtime/execution/test_tape.py -k segments_follow"),
    Break("calls with other displacements are alike",
          ((CALLS, " && same_vector(&one->displs, &other->displs)", ""),),
          "tests/unit/runtime/execution/test_compiled.py -k other_vectors"),
    Break("calls with other counts are alike",
          ((CALLS, "&& same_vector(&one->counts, &other->counts) && same_vector(&one->displs",
            "&& same_vector(&one->displs"), (CALLS, "i < vector->length - 1 && i < HASHED", "0")),
          "tests/unit/runtime/execution/test_compiled.py -k other_vectors"),
    Break("rules speak of what they do not know",
          (("hpccoll/tune/rules.py", "if not facts.reduces_by_calls:", "if True:"),),
          "tests/unit/tune/test_choose.py -k pairs_are_left or test_an_operator"),
    Break("messages may meet in memory", (("hpccoll/proof/memory_rules.py",
                                           "if plain and len(used) > 1:", "if False:"),),
          "tests/unit/proof/test_slots.py -k race_that_packing or race_in_place"),
    Break("lanes may share memory that one of them writes", (
        ("hpccoll/proof/memory_rules.py", "                return last\n",
         "                return None\n"),),
          "tests/unit/proof/test_rendezvous.py -k without_any_single_wait"),
    Break("a transport has what it lacks", (("hpccoll/runtime/planning/capabilities.py",
          "if need not in offers]", "if not need]"),),
          "tests/unit/runtime/planning/test_capabilities.py -k without_them_says"
          " or refused_before"),
    Break("lanes wait for no other lane", (("hpccoll/runtime/execution/lanes.py",
          "if not all(map(self.over.__getitem__, self.waits[self.phase])):", "if False:"),),
          "tests/unit/runtime/execution/test_lanes.py -k test_every_order_of_deliveries"),
    Break("the compiled event loop shares otherwise", (("hpccoll/simulator/_events.c",
          "me->left[other] - of->weight * level, 0.0", "me->left[other] - of->weight, 0.0"),),
          "tests/unit/simulator/test_compiled_loop.py -k every_algorithm and allreduce-ragged"),
    Break("messages that are no longer held keep their rates",
          (("hpccoll/simulator/fair_share.py", "if len(found) == before:", "if True:"),),
          "tests/unit/simulator/test_fair_share.py -k kept_are"),
    Break("colours are not split again", (("hpccoll/simulator/colouring.py",
                                           "dirty.update(peers[rank])", "pass"),),
          "tests/unit/simulator/test_colouring.py -k change_nothing and 13x2 and (scan or bcast-)"),
    Break("a torus never wraps round", (("hpccoll/simulator/grids.py",
                                         "if self.wraps(dimension) else b - a",
                                         "if False else b - a"),),
          "tests/unit/simulator/test_routes.py -k shifts_round_a_ring"),
    Break("adaptive routes are static", (("hpccoll/simulator/event_loop.py",
                                          "min(flow.channel.ways, key=self.crowded)",
                                          "flow.channel.ways[0]"),),
          "tests/unit/simulator/test_routes.py -k opposite_nodes"),
    Break("what both ways share is held twice", (("hpccoll/simulator/routes.py",
                                                  "_replace(kind=PORT)", "_replace()"),),
          "tests/unit/simulator/test_routes.py -k half_duplex_ports"),
    Break("nobody comes late", (("hpccoll/simulator/event_loop.py",
                                 "if late and late[self.ranks[thread.rank]]:", "if False:"),),
          "tests/unit/simulator/test_conditions.py -k all_wait"),
    # Devices that are none.
    Break("a kernel takes the first of equal numbers",
          (("hpccoll/cuda/reduce.cu", "less(b, a) || is_nan", "!less(a, b) || is_nan"),),
          "tests/unit/cuda/test_kernels.py -k rare_numbers and max"),
    Break("captured streams are not looked for",
          (("hpccoll/cuda/device.py", "if stream.is_capturing():", "if False:"),),
          "tests/unit/cuda/test_device_order.py -k captured_stream_is_refused"),
    *DEVICES,
    *INTERRUPTED,
    *WAITS,
    *QUEUED,
    *SHARED_CACHE,
)


def copied(tree: Path) -> None:
    """Copy what tests need, compiled extensions included."""
    for part in PARTS:
        source = launch.ROOT / part
        if source.is_dir():
            shutil.copytree(source, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, tree / part)


def build(tree: Path, bin: Path) -> None:
    """Build the extensions of a tree where it lies."""
    subprocess.run([bin / "python", "setup.py", "-q", "build_ext", "--inplace", "--force"],
                   cwd=tree, check=True, capture_output=True)


def outcome(one: Break, tree: Path, bin: Path) -> str:
    """What pytest printed; ``hangs`` where it did not come to its end."""
    path, _, word = one.tests.partition(" -k ")
    command = [str(bin / "python"), *(["-m", "mpi4py"] if one.ranks else []), *launch.PYTEST,
               *(["-x", "--with-mpi", "--timeout-method=thread"] if one.ranks else []), "-rf",
               path, "-k", word]
    logs = tree / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    if one.ranks:
        command = [str(launch.mpiexec(bin)), "-n", str(one.ranks), "sh", "-c", launch.RANK,
                   str(logs), *command]
    environment = {**launch.settings(bin), "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests'}"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=tree, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=output)
        try:
            process.wait(LIMIT)
            end = ""
        except subprocess.TimeoutExpired:
            end = "\nhangs\n"
            process.terminate()  # mpiexec takes its ranks along
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        output.seek(0)
        others = "".join(log.read_text(errors="replace") for log in sorted(logs.glob("rank*")))
        return others + output.read().decode(errors="replace") + end


def failed(text: str) -> bool:
    """Tell whether tests failed, and none passed beside them where each was run."""
    if text.endswith("\nhangs\n") or "*** rank" in text or "Timeout" in text:
        return True
    return re.search(r"\b\d+ failed", text) is not None and not re.search(r"\b\d+ passed", text)


def passed(text: str) -> bool:
    """Tell whether some tests ran, and all of them passed."""
    return re.search(r"\b\d+ passed", text) is not None and "failed" not in text and (
        not text.endswith("\nhangs\n"))


def tried(one: Break, tree: Path, bin: Path, good: dict[tuple[str, int], bool]) -> tuple[str, str]:
    """Break a tree, run the tests, mend it; what came of it, and what was printed."""
    key = one.tests, one.ranks
    if key not in good:
        text = outcome(one, tree, bin)
        good[key] = passed(text)
        if not good[key]:
            return WRONG, f"the tests do not pass without the break\n{text}"
    compiled = any(file.endswith((".c", ".h")) for file, *_ in one.edits)
    before = {file: (tree / file).read_text(encoding="utf-8") for file, *_ in one.edits}
    try:
        for file, text, instead in one.edits:
            now = (tree / file).read_text(encoding="utf-8")
            if now.count(text) != 1:
                return WRONG, f"{file} has {now.count(text)} times {text!r}"
            (tree / file).write_text(now.replace(text, instead), encoding="utf-8")
        if compiled:
            build(tree, bin)
        text = outcome(one, tree, bin)
    finally:
        for file, text_before in before.items():
            (tree / file).write_text(text_before, encoding="utf-8")
        if compiled:
            build(tree, bin)
    return (NOTICED if failed(text) else UNNOTICED), text


def main() -> int:
    """Try the breaks; the status says whether each was noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("environment", type=Path, help="a virtual environment with one MPI")
    parser.add_argument("-k", default="", metavar="WORD", help="only breaks with it in their words")
    options = parser.parse_args()
    bin = options.environment.absolute() / "bin"
    chosen = [one for one in BREAKS if options.k in one.what]
    good: dict[tuple[str, int], bool] = {}
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        copied(tree)
        for one in chosen:
            start = time.monotonic()
            verdict, text = tried(one, tree, bin, good)
            print(f"{verdict:<15} {time.monotonic() - start:4.0f} s  {one.what}: {one.tests}",
                  flush=True)
            if verdict != NOTICED:
                missed += 1
                print("    " + "\n    ".join(text.splitlines()[-25:]), flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} breaks noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""What ``broken.py`` breaks, first part: the newest, by subject."""

from __future__ import annotations

from typing import NamedTuple


class Break(NamedTuple):
    """Something that is broken, and the tests that must fail then.

    Attributes:
        what: in words.
        edits: file, text that stands there once, and what stands there instead.
        tests: words for pytest.
        ranks: that the tests run on; 0 where they need no launcher.
    """

    what: str
    edits: tuple[tuple[str, str, str], ...]
    tests: str
    ranks: int = 0


NOTED = (
    Break("the compiled executor does not note when it waits",
          (("hpccoll/runtime/execution/tape.py",
            "self.note(number, Activity.WAITING)\n                self.put(Instruction.TAKE",
            "self.put(Instruction.TAKE"),),
          "tests/unit/runtime/execution/test_tape.py -k moments"),
    Break("the interpreter does not note when it waits",
          (("hpccoll/runtime/planning/binding.py",
            "*self._note(place, Activity.WAITING), wait]", "wait]"),),
          "tests/unit/runtime/events/test_moments.py -k goes_over_to"),
    Break("what was done inside of a call lasts until its end",
          (("hpccoll/measure/observed/phases.py", "stops[:-1][follows] = starts[1:][follows]",
            "pass"),), "tests/unit/measure/observed/test_phases.py -k lasts_until"),
    Break("a ring of moments has less rows than it says",
          (("hpccoll/runtime/execution/_running.c", "moments[0]++ & (kept - 1)",
            "moments[0]++ & (kept - 2)"),),
          "tests/unit/runtime/events/test_moments.py -k machine_code_notes"),
    Break("real ranks note what they reduce as something else",
          (("hpccoll/runtime/events/moments.py",
            "Activity.REDUCING if any", "Activity.COPYING if any"),),
          "tests/mpi/test_phases.py -k every_phase", 2),
    Break("a request behind one that failed is never over",
          (("hpccoll/runtime/progress/engine.py",
            "if lane is not None and lane.stopped:", "if False:"),),
          "tests/unit/runtime/execution/test_taped.py -k after_a_failure"),
    Break("who tests a request behind one that failed is told nothing",
          (("hpccoll/runtime/progress/engine.py",
            "if lane is not None and lane.stopped:", "if False:"),),
          "tests/mpi/test_broken.py -k sends_nothing", 2),
    Break("who failed waits until the dead are told",
          (("hpccoll/guard/exchange.py", "sender.join(SENDING)", "sender.join()"),),
          "tests/cluster/test_hosts.py -k that_was_killed"),
    Break("who is told waits until all of it has come",
          (("hpccoll/guard/exchange.py", "self.comm.Irecv([data, MPI.BYTE], other, ALARM_TAG)",
            "self.comm.Recv([data, MPI.BYTE], other, ALARM_TAG)"),),
          "tests/unit/guard/test_exchange.py -k before_what_others_tell"),
    Break("ranks do not meet before the first call that makes a communicator",
          (("hpccoll/guard/setup.py", "if self.comm is not None:\n                self._meet",
            "if False:\n                self._meet"),),
          "tests/fault/test_missing.py -k first"),
    Break("a rank that was killed before the others end is not looked for",
          (("hpccoll/runtime/execution/_finalize.c",
            "Py_AtExit(start_check);", "(void)start_check;"),),
          "tests/fault/test_faults.py -k end_their_program"),
    Break("the host of a rank that is not heard of is not named",
          (("hpccoll/guard/board.py", 'UNKNOWN: f"is not heard of{far}"',
            'UNKNOWN: "is not heard of"'),), "tests/cluster/test_hosts.py -k that_was_killed"),
)

WAITS = (
    Break("a rank that stays stopped ends no wait",
          (("hpccoll/errors/waits.py", "if before & self.stopped:", "if False:"),),
          "tests/unit/runtime/execution/test_executor.py -k stays_stopped"),
    Break("a rank under a debugger counts as stopped",
          (("hpccoll/machine/processes.py", '"t": TRACED', '"t": STOPPED'),),
          "tests/unit/machine/test_processes.py -k debugger"),
    Break("a late rank reads that its peers were killed, not why they left",
          (("hpccoll/guard/guard.py", "if len(failed) == len(lost):", "if False:"),),
          "tests/fault/test_faults.py -k interpreter_lock"),
    Break("nobody looks whether ranks live while messages of training are missing",
          (("hpccoll/guard/guard.py", "        if killed or ended:\n", "        if False:\n"),),
          "tests/fault/test_faults.py -k killed_rank_in_training"),
)
INTERRUPTED = (
    Break("a rank that is told to stop keeps it to itself",
          (("hpccoll/tools/topo/links.py", "if together(comm, stopped()):", "if together(comm):"),),
          "tests/doc/test_interrupted.py -k topo"),
    Break("processes that begin hear Ctrl-C before they can end quietly",
          (("hpccoll/cli/verify.py", "(signal.SIG_BLOCK, {signal.SIGINT})",
            "(signal.SIG_BLOCK, set())"),),
          "tests/doc/test_interrupted.py -k several_processes"),
)

SHARED_CACHE = (
    Break("the faster rank decides whether two ranks share a cache",
          (("hpccoll/transport/shm/caches.py", "max(pair.allgather(fastest))",
            "min(pair.allgather(fastest))"),),
          "tests/unit/transport/shm/test_caches.py -k here"),
    Break("a rule for a shared cache holds everywhere",
          (("hpccoll/tune/rules.py", "(self.shared_cache, place.shared_cache)",
            "(None, place.shared_cache)"),),
          "tests/unit/tune/test_rules.py -k first_to_fit"),
)
#: Calls that are queued on GPUs.
QUEUED = (
    Break("a rank that does not come to a queued call is not missed",
          (("hpccoll/guard/queued.py", "if one.begun < first.number)", "if one.begun < 0)"),),
          "tests/unit/guard/test_queued.py -k until_the_deadline", 0),
    Break("faults that NCCL has found are not asked for",
          (("hpccoll/guard/queued.py", "fault = self._fault(first)", "fault = None"),),
          "tests/unit/guard/test_queued.py -k fault_of_the_library", 0),
    Break("what has failed leaves queued calls to themselves",
          (("hpccoll/guard/queued.py", "                self.end()\n            if isinstance(",
            "            if isinstance("),),
          "tests/unit/guard/test_queued.py -k fails_in_the_call", 0),
    Break("ranks do not ask who shares a GPU",
          (("hpccoll/cuda/nccl.py", "        if len(ranks) > 1 and not all(",
            "        if False and not all("),),
          "tests/unit/cuda/test_nccl_group.py -k share_a_device", 0),
    Break("the share of an allreduce across nodes lacks what is left over",
          (("hpccoll/cuda/nccl_group.py", " + self.rest * (rank == self.owner))", ")"),),
          "tests/unit/cuda/test_nccl_group.py -k both_halves and 4-leader", 0),
    Break("GPUs that no NVLink joins are one island",
          (("hpccoll/cuda/gpus.py", 'if link.startswith("NV"):', "if link:"),),
          "tests/unit/cuda/test_gpus.py -k islands", 0),
    Break("calls of NCCL are not noted",
          (("hpccoll/cuda/nccl_runner.py", "self.guard.queueing(self._begin, description)",
            "self._begin"),), "tests/mpi/test_nccl.py -k unlike_things_are_named and tags", 2),
    Break("who waits for a part across nodes is not told of a failure",
          (("hpccoll/cuda/nccl_runner.py", "if known is not None:", "if False:"),),
          "tests/mpi/test_nccl.py -k told_of_a_failure and reduceScatter", 2),
    Break("device memory of a peer's is read before it says that it is written",
          (("hpccoll/cuda/transport.py",
            "self.queue.follow(READY, self.index, self.channel.tag, self.place)", "pass"),),
          "tests/mpi/test_ipc.py -k work_before and ring-f4", 2),
    Break("device memory is written again before a peer has read it",
          (("hpccoll/cuda/transport.py",
            "self.queue.follow(READ, self.index, self.channel.tag, self.place)", "pass"),),
          "tests/contract/test_messages.py -k pair_arrive and double", 2),
    Break("a call of NCCL's that failed is told as the one before",
          (("hpccoll/guard/queued.py", "number, which = max(begun, words[NUMBER])",
            "number, which = words[NUMBER]"),),
          "tests/mpi/test_nccl.py -k call_before_can_end", 2),
    Break("captured streams are not looked for before NCCL",
          (("hpccoll/cuda/resident.py", "if stream.is_capturing():", "if False:"),),
          "tests/unit/cuda/test_nccl_runner.py -k capture_goes_on", 0),
)
COMPARED = (
    Break("frames of another lower-case call are used",
          (("hpccoll/comm/objects/messages.py", "if frame[STAMP:] != self.stamp:", "if False:"),),
          "tests/mpi/test_objects_errors.py -k disagree and operator-allreduce-allreduce-array", 3),
    Break("persistent calls are not compared when they are made",
          (("hpccoll/comm/persistent.py", "        if self._guards:\n", "        if False:\n"),),
          "tests/mpi/test_contract.py -k when_they_are_made and Allreduce_init", 3),
    Break("the communicator of a failed call is freed",
          (("hpccoll/runtime/context.py",
            "if self.guard is None or self.guard.failure is None:", "if True:"),),
          "tests/mpi/test_objects_errors.py -k never_received", 3),
)
MEASURED = (
    Break("times are saved although other processes use the cores",
          (("hpccoll/cli/tune.py", '"" if busy and not force else path', "path"),),
          "tests/mpi/test_tune.py -k beside_a_busy_process", 2),
    Break("the processor time of the ranks counts as that of others",
          (("hpccoll/measure/load.py", "(busy - own)", "busy"),),
          "tests/unit/measure/test_load.py -k fill_the_cores"),
    Break("a time is averaged with one that differs too much",
          (("hpccoll/tune/table.py", "a if _disturbed(a, b) else (a + b) / 2", "(a + b) / 2"),),
          "tests/unit/tune/test_store.py -k differs_too_much"),
)
NEWEST = NOTED + COMPARED + MEASURED

#: Device memory, and its double.
DEVICES = (
    Break("a fault of a stream is taken for a type that CuPy lacks",
          (("hpccoll/calls/memory.py", "array = as_cupy(obj)",
            "return borrow(obj, as_cupy(obj), argument)"),),
          "tests/unit/cuda/test_device_order.py -k fault_of_the_stream"),
    Break("a phase begins without the copies that it reads",
          (("hpccoll/cuda/windows.py",
            "return all(happened(cupy, self.arrived[number][group])",
            "return all(True"),),
          "tests/unit/cuda/test_device_order.py -k random_calls"),
    Break("the stand-in takes a call that CuPy refuses",
          (("tests/support/gpu/device.py", "def copyto(dst: DeviceArray, src: DeviceArray)",
            "def copyto(src: DeviceArray, dst: DeviceArray)"),),
          "tests/gpu/test_interface.py -k no_call_that_cupy_refuses"),
)

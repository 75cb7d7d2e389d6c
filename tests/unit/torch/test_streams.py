"""Calls on CUDA tensors come behind what their caller has queued, in whatever thread they run."""

import threading
from types import SimpleNamespace

import pytest

from hpccoll.errors import BufferArgumentError
from support.gpu.device import installed
from support.gpu.streams import Devices, Stream
from support.gpu.tensors import TorchStream, torch_cuda

pytest.importorskip("torch")
streams = pytest.importorskip("hpccoll.torch.streams")
work = pytest.importorskip("hpccoll.torch.process_group.work")
TENSOR = SimpleNamespace(is_cuda=True, device=SimpleNamespace(index=0))


@pytest.fixture
def machine(monkeypatch):
    made = Devices()
    monkeypatch.setattr(streams, "torch", SimpleNamespace(cuda=torch_cuda(made)))
    return made


@pytest.mark.parametrize("where", ["here", "another thread"])
def test_a_call_waits_for_its_callers_stream_alone(machine, where):
    memory, later = {"tensor": 0, "seen": None, "result": None}, []
    caller, other = (Stream(machine, 0, non_blocking=True) for _ in range(2))

    def run():
        """What a collective does: wait for the current stream, read, and queue a last step."""
        current = TorchStream(machine.current())
        current.synchronize()
        memory["seen"] = memory["tensor"]
        current.stream.push(lambda: memory.update(result=memory["seen"] + 1))

    other.push(lambda: later.append("other"))
    with caller:
        caller.push(lambda: memory.update(tensor=7))
        one = work.GroupWork("call", run, [TENSOR], 1.0)
        caller.push(lambda: later.append("caller"))
    if where == "here":
        one.do()
    else:
        thread = threading.Thread(target=one.do)
        thread.start()
        thread.join()
    assert one.error is None and one.wait()
    assert memory == {"tensor": 7, "seen": 7, "result": 8} and later == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_cupy_uses_the_stream_of_torch(machine, asynchronous):
    """hpccoll queues calls of NCCL on CuPy's current stream: torch must wait for that one."""
    caller, seen = Stream(machine, 0, non_blocking=True), []
    with installed(False, machine) as cupy:
        with caller:
            one = work.GroupWork("call", lambda: seen.append(cupy.cuda.get_current_stream()),
                                 [TENSOR], 1.0)
        if asynchronous:
            one.do()
            assert seen[0] is not caller and not seen[0].null and seen[0].last.done
        else:
            with caller, streams.current_in_cupy(TENSOR.device):
                assert cupy.cuda.get_current_stream() is caller
        assert cupy.cuda.get_current_stream().null


def test_a_captured_stream_is_refused_and_the_capture_goes_on(machine):
    stream, done = Stream(machine, 0, non_blocking=True), []
    stream.begin_capture()
    with stream:
        with pytest.raises(BufferArgumentError, match="CUDA"):
            work.GroupWork("call", None, [TENSOR], 1.0)
        stream.push(lambda: done.append(1))
    for run in stream.end_capture():
        run()
    assert done == [1]


def test_tensors_of_the_cpu_have_no_stream(machine):
    assert streams.caller_stream([]) is None
    assert streams.caller_stream([SimpleNamespace(is_cuda=False)]) is None

"""Operations and tensors of PyTorch."""

import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from hpccoll.errors import ArgumentError, ArgumentTypeError, BufferArgumentError
from support.gpu.device import installed
from support.gpu.streams import Devices, Stream
from support.gpu.tensors import TorchStream, torch_cuda
from support.threads import run_ranks

# Operations on tensors, on ranks that are threads: exact, for every number of ranks
torch = pytest.importorskip("torch")
OperationLine = pytest.importorskip("hpccoll.torch.operation_queue").OperationLine


# The line: one operation after the other, results and errors where they belong
pytest.importorskip("torch")
line = pytest.importorskip("hpccoll.torch.operation_queue")


class Request:
    """Complete after so many looks."""

    def __init__(self, looks=0):
        self.looks = looks

    def Test(self):
        self.looks -= 1
        return self.looks < 0


@pytest.fixture
def running():
    each = line.OperationLine(None)
    yield each
    each.close()


def operation(log, name, looks=3, result=None):
    for turn in range(2):
        log.append((name, turn))
        yield Request(looks)
    return result


def test_one_after_the_other(running):
    log = []
    first, second = (running.start(operation(log, name, result=name)) for name in "ab")
    assert second.wait() == "b" and first.done() and first.wait() == "a"
    assert log == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert second() == "b"


def test_looking_moves_it_on(running):
    pending = running.start(operation([], "a"))
    for _ in range(10000):
        if pending.done():
            break
    assert pending.done()


def test_an_error_ends_one_operation(running):
    def failing():
        yield Request()
        raise ValueError("of this one")

    first, second = running.start(failing()), running.start(operation([], "b", result=2))
    assert second.wait() == 2
    for _ in range(2):
        with pytest.raises(ValueError, match="of this one"):
            first.wait()


def test_a_request_that_fails_ends_the_line():
    class Broken:
        def Test(self):
            raise OSError("lost")

    def failing():
        yield Broken()

    broken = line.OperationLine(None)
    first, second = broken.start(failing()), broken.start(operation([], "b"))
    for pending in (first, second):
        with pytest.raises(OSError, match="lost"):
            pending.wait()
    broken.close()


def test_several_as_one_and_results_once(running):
    calls = []
    pending = line.then(line.join_results([running.start(operation([], name, result=name))
                                       for name in "abc"]), lambda found: calls.append(found) or 7)
    assert pending.wait() == 7 and pending.wait() == 7
    assert calls == [["a", "b", "c"]]
    assert line.join_results([]).wait() == [] and line.join_results([]).done()


def test_names():
    def rank(comm):
        each = line.OperationLine(comm)
        names = [each.name("sum", None), each.name("sum", "w"), each.name("sum", None),
                 each.name("max", None)]
        each.close()
        return names

    for names in run_ranks(2, rank):
        assert names == ["sum.noname.1", "sum.w", "sum.noname.2", "max.noname.1"]


# Tensors as arrays: what shares memory, what is copied, what is refused
tensors = pytest.importorskip("hpccoll.torch.tensors")
TwoTensor = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor


@pytest.mark.parametrize("dtype", sorted([*tensors.PLAIN, torch.bfloat16], key=str), ids=str)
def test_arrays_share_the_memory(dtype):
    tensor = torch.zeros(4, dtype=dtype)
    array = tensors.values(tensor)
    assert array.ctypes.data == tensor.data_ptr() and array.nbytes == tensor.nbytes
    assert array.dtype.name == str(dtype).removeprefix("torch.")
    tensor.fill_(1)
    assert (array == 1).all()


def test_a_tensor_stays_resizable():
    """FSDP frees what it has gathered, and makes room for it again."""
    tensor = torch.ones(4)
    arrays = tensors.values(tensor), tensors.memory(tensor), tensors.values(torch.ones(0, 3))
    assert [array.shape for array in arrays] == [(4,), (4,), (0, 3)]
    tensor.untyped_storage().resize_(64)
    assert tensor.resize_(16).numel() == 16


def test_an_array_keeps_its_memory():
    array = tensors.values(torch.full((1000,), 3.0))
    torch.zeros(1000)
    assert (array == 3).all()


def test_any_type_can_be_moved():
    for dtype in torch.float8_e5m2, torch.bfloat16, torch.bool:
        tensor = torch.ones(2, 3).to(dtype)
        array = tensors.memory(tensor)
        assert array.ndim == 1 and array.nbytes == tensor.nbytes
        assert array.ctypes.data == tensor.data_ptr()
    with pytest.raises(ArgumentTypeError, match="float8_e5m2"):
        tensors.values(torch.ones(2).to(torch.float8_e5m2))


def test_dense():
    tensor = torch.arange(6.0).reshape(2, 3)
    assert tensors.as_dense(tensor) is tensor
    assert tensors.as_dense(tensor.t()).is_contiguous()
    leaf = torch.ones(2, requires_grad=True)
    assert tensors.as_dense(leaf).data_ptr() == leaf.data_ptr()
    assert not tensors.as_dense(leaf).requires_grad
    number = torch.tensor([1 + 2j])
    assert torch.view_as_real(tensors.as_dense(number.conj())).tolist() == [[1, -2]]
    with pytest.raises(BufferArgumentError, match="layout torch.sparse_coo.*reduce"):
        tensors.as_dense(tensor.to_sparse())


def test_other_devices_are_refused():
    with pytest.raises(ArgumentTypeError, match="device meta"):
        tensors.values(torch.ones(2, device="meta"))


@pytest.mark.parametrize("sizes", [[3], [3, 2], [0, 4, 0, 1], [1] * 7])
def test_neighbours_are_joined_without_a_copy(sizes):
    whole = torch.arange(float(sum(sizes)))
    parts = list(whole.split(sizes))
    flat = tensors.concatenate(parts)
    assert flat.data_ptr() == whole.data_ptr() and torch.equal(flat, whole)


def test_others_are_joined_by_a_copy_and_split_again():
    parts = [torch.ones(2), torch.zeros(3), torch.full((2, 2), 5.0).t()]
    for joined in parts, parts[::-1], [parts[0], parts[0]]:
        flat = tensors.concatenate(joined)
        assert torch.equal(flat, torch.cat([part.reshape(-1) for part in joined]))
    flat = tensors.concatenate(parts, fill=False)
    flat.copy_(torch.arange(9.0))
    tensors.split_back(flat, parts)
    assert parts[1].tolist() == [2, 3, 4] and parts[2].tolist() == [[5, 6], [7, 8]]


def test_neighbours_of_two_storages_are_no_neighbours():
    """Two tensors may lie next to each other by chance, each in memory of its own."""
    whole = torch.arange(8.0)
    foreign = torch.frombuffer(whole.numpy(), dtype=torch.float32, count=4)
    rest = torch.frombuffer(whole.numpy(), dtype=torch.float32, offset=16)
    flat = tensors.concatenate([foreign, rest])
    assert torch.equal(flat, whole)


def test_overlap():
    whole = torch.zeros(10)
    assert tensors.overlap(whole, whole[9:]) and not tensors.overlap(whole[:5], whole[5:])
    assert not tensors.overlap(whole[:0], whole)


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        return torch.ones(4)


def of_a_transformation(transform):
    """A tensor inside of a function that is transformed, where it has no memory."""
    seen = []
    with suppress(RuntimeError):
        transform(lambda x: seen.append(x) or x)(torch.ones(2, 4))
    return seen[0]


WITHOUT_MEMORY = {
    "FakeTensor": fake, "TwoTensor": lambda: TwoTensor(torch.ones(4), torch.ones(4)),
    "zero": lambda: torch._efficientzerotensor(4),
    "vmap": lambda: of_a_transformation(torch.vmap),
    "functionalize": lambda: of_a_transformation(torch.func.functionalize)}


@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
def test_tensors_without_memory_are_named(kind):
    """Everything that reads a tensor's address starts with ``as_dense``; groups test each call."""
    name = kind if kind.endswith("Tensor") else "Tensor"
    with pytest.raises(ArgumentTypeError, match=f"tensor: {name} of torch.float32.*no memory"):
        tensors.as_dense(WITHOUT_MEMORY[kind]())
    assert tensors.as_dense(torch.ones(0, 3)).numel() == 0
    leaf = torch.nn.Parameter(torch.ones(3))
    assert tensors.as_dense(leaf).data_ptr() == leaf.data_ptr()


# What a hook refuses before anything is sent
pytest.importorskip("torch")
hooks = pytest.importorskip("hpccoll.torch.hooks")


def test_a_state_of_another_hook():
    with pytest.raises(ArgumentError, match="CompressState"):
        hooks.compress_hook({}, None)


def test_a_bucket_of_an_old_torch():
    class Bucket:
        """It has a buffer, and nothing else."""

    state = hooks.CompressState("bf16")
    with pytest.raises(ArgumentError, match="too old"):
        hooks.compress_hook(state, Bucket())
    state.close()


# Calls on CUDA tensors come behind what their caller has queued, in whatever thread they run
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

"""Tensors as arrays: what shares memory, what is copied, what is refused."""

from contextlib import suppress

import pytest

from hpccoll.errors import ArgumentTypeError, BufferArgumentError

torch = pytest.importorskip("torch")
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

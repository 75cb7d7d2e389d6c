"""Arrays of any kind, seen without a copy where that can be."""

import array

import numpy
import pytest

from hpccoll.errors import ArgumentTypeError
from hpccoll.training.arrays import as_array, dtype_of, is_writable, spec_of, specs_of
from hpccoll.training.buckets import ArraySpec


class Exporter:
    """Shares its memory through DLPack, as tensors of a framework do."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__()

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __array__(self, dtype=None, copy=None):
        return self.values


class Copier(Exporter):
    """Gives ``numpy.asarray`` a copy: what is written there would be lost."""

    def __array__(self, dtype=None, copy=None):
        return self.values.copy()


def test_shared_memory_is_written():
    values = numpy.zeros(3)
    view = as_array(Exporter(values))
    assert is_writable(view)
    view[...] = 5
    assert values.tolist() == [5, 5, 5]
    assert as_array(values) is values
    assert is_writable(as_array(array.array("d", [1, 2])))


def test_what_is_a_copy_or_read_only_is_not_written():
    assert not is_writable(as_array(Copier(numpy.zeros(3))))
    values = numpy.zeros(3)
    values.flags.writeable = False
    assert not is_writable(as_array(values))
    assert not is_writable(as_array(numpy.frombuffer(bytes(8), "f8")))


@pytest.mark.parametrize("bad", [
    [1.0], 1.0, numpy.array(["text"]), numpy.array([None]), numpy.zeros(2, ">f4"), object(),
    numpy.zeros(2, "M8[s]")])
def test_what_cannot_be_exchanged_is_refused_by_name(bad):
    with pytest.raises(ArgumentTypeError, match="weights"):
        as_array(bad, "weights")


def test_specifications():
    assert spec_of("w", numpy.zeros((2, 3), "f4")) == ArraySpec("w", (2, 3), "float32", 4)
    declared = ArraySpec("x", (5,))
    assert spec_of("ignored", declared) is declared
    assert [spec.name for spec in specs_of([numpy.zeros(1), numpy.zeros(2)])] == ["0", "1"]
    with pytest.raises(ValueError):
        specs_of([numpy.zeros(1)], ["a", "b"])


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    spec = spec_of("w", numpy.zeros(3, ml_dtypes.bfloat16))
    assert (spec.dtype, spec.itemsize) == ("bfloat16", 2)
    assert dtype_of("bfloat16") == ml_dtypes.bfloat16 and dtype_of("float64") == numpy.float64


def test_jax_arrays_are_seen_and_not_written():
    jax = pytest.importorskip("jax")
    view = as_array(jax.numpy.arange(3.0))
    assert view.tolist() == [0, 1, 2] and not is_writable(view)


def test_torch_tensors_are_written():
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(3)
    as_array(tensor)[...] = 2
    assert tensor.tolist() == [2, 2, 2]
    with pytest.raises(ArgumentTypeError):
        as_array(torch.zeros(3, requires_grad=True), "w")


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_torch_tensors_of_types_that_numpy_lacks(name):
    """``numpy.asarray`` raises for these; JAX exports them by itself."""
    torch, ml_dtypes = pytest.importorskip("torch"), pytest.importorskip("ml_dtypes")
    tensor = torch.arange(6.0).reshape(2, 3).t().to(getattr(torch, name))
    view = as_array(tensor)
    assert view.dtype == getattr(ml_dtypes, name) and view.astype("f4").tolist() == [
        [0, 3], [1, 4], [2, 5]]
    view[0] = 7
    assert tensor[0].tolist() == [7, 7] and spec_of("w", tensor).dtype == name


def test_a_torch_tensor_that_was_viewed_can_be_resized():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(4)
    view = as_array(tensor)
    tensor.untyped_storage().resize_(64)
    assert view.shape == (4,) and tensor.resize_(16).numel() == 16


@pytest.mark.parametrize("kind, reason", [
    ("meta", "no memory"), ("sparse", "storage"), ("conj", "resolve_conj"), ("leaf", "detach")])
def test_torch_tensors_without_plain_memory(kind, reason):
    torch = pytest.importorskip("torch")
    tensor = {"meta": lambda: torch.ones(3, device="meta"),
              "sparse": lambda: torch.ones(3).to_sparse(),
              "conj": lambda: torch.zeros(3, dtype=torch.complex64).conj(),
              "leaf": lambda: torch.nn.Parameter(torch.ones(3))}[kind]()
    with pytest.raises(ArgumentTypeError, match=f"^w: .*{reason}"):
        as_array(tensor, "w")

"""Every name of CuPy that hpccoll uses, and how: against what CuPy says, recorded and installed."""

import inspect
import json

import pytest

from support.gpu import cupy_interface as interface

RECORDED = json.loads(interface.RECORD.read_text())["names"]


def misfits(names):
    """Calls that the stand-in takes and CuPy would not, attributes that are none there."""
    for name, mine in interface.doubled().items():
        if mine is None:
            if names[name] and name != "ndarray":
                yield f"{name} is a function in CuPy: {names[name]}"
        elif found := interface.misfit(mine, names[name]):
            yield f"{name} {found}"


def test_every_name_in_the_sources_is_one_of_the_stand_in_or_listed():
    used = interface.used()
    assert not used - set(interface.doubled()) - interface.ELSEWHERE
    assert used >= {"RawKernel", "cuda.ExternalStream", "cuda.runtime.is_hip", "arange"}
    assert used >= interface.ELSEWHERE  # the list has nothing that is no longer used


def test_the_stand_in_takes_no_call_that_cupy_refuses():
    assert not list(misfits(RECORDED))


@pytest.mark.parametrize(("mine", "real", "why"), [
    (lambda a, out: 0, "(a)", "has out"),
    (lambda a, out=None: 0, "(a, stream=, out=)", "in another place"),
    (lambda a, *, out=None: 0, "(a, stream=, out=)", None),
    (lambda a, out=None: 0, "(a, *, out=)", "in another place"),
    (lambda a=0: 0, "(a)", "need not be told a"),
    (lambda a: 0, "(a, stream)", "is not told stream"),
    (lambda *a: 0, "(a, b=)", "any number"),
    (lambda self, *shape: 0, "(self, *shape, order=)", None),
    (lambda a: 0, "(a, *, device=, copy=)", None)])
def test_what_does_not_fit(mine, real, why):
    found = interface.misfit(inspect.signature(mine), real)
    assert found is None if why is None else why in found


def test_a_name_that_cupy_lacks_is_an_error():
    with pytest.raises(AttributeError):
        interface.told(inspect, "cuda")


def test_the_installed_cupy_is_as_the_record_says():
    pytest.importorskip("cupy", reason="CuPy is not installed: make cuda")
    said = interface.record()
    assert not list(misfits(said["names"]))
    if said["package"] == json.loads(interface.RECORD.read_text())["package"]:
        assert said["names"] == RECORDED

"""Every kernel is compiled for the devices in use, by the compiler that CuPy uses; no driver."""

import re

import numpy
import pytest

from hpccoll.cuda import kernels
from hpccoll.cuda.kernels import define
from hpccoll.ir.operators import OPERATORS
from support.gpu.kernel_types import types_of

nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc",
                            reason="CuPy is not installed: make cuda")

#: V100, A100 and H100.
ARCHITECTURES = ("sm_70", "sm_80", "sm_90")


def compiled(options, architecture, before=""):
    """The kernel as machine code; with ``compute_`` as PTX, which that is made of.

    CuPy's own way asks the driver which device there is.
    """
    if architecture == "sm_70" and nvrtc.getVersion() >= (13, 0):
        pytest.skip("CUDA 13 has no V100")
    program = nvrtc.createProgram(before + kernels.source(), "reduce.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*options, "--device-as-default-execution-space", "-ftz=true",
                                       f"-arch={architecture}"))
        if architecture.startswith("sm_"):
            return nvrtc.getCUBIN(program)
        text = nvrtc.getPTX(program)
        return text if isinstance(text, str) else text.decode()
    finally:
        nvrtc.destroyProgram(program)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_machine_code(operator, architecture):
    for dtype in types_of(operator):
        code = compiled(kernels.options(operator, dtype, False), architecture)
        assert code[:4] == b"\x7fELF", dtype


@pytest.mark.parametrize("operator", OPERATORS)
def test_sixteen_bytes_at_once_and_no_fused_products(operator):
    for dtype in types_of(operator):
        text = compiled(kernels.options(operator, dtype, False), "compute_80")
        # A read for each operand, at the least, and a write.
        for access, least in (("ld", kernels.MOST), ("st", 1)):
            assert len(re.findall(rf"{access}\.global\.(?:v4\.\w32|v2\.\w64)", text)) >= least
        assert "fma" not in text and ".local" not in text, dtype
        # CuPy asks for it; the host keeps small numbers.
        assert ".ftz" not in text, dtype


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_expressions_of_ones_own(architecture):
    every = {str(dtype): dtype for name in OPERATORS for dtype in types_of(name)}.values()
    assert {dtype.kind for dtype in every} >= set("biufcV")
    for dtype in every:
        text = ("a.real > b.real ? a : b" if dtype.kind == "c" else
                "a.value > b.value ? a : b" if dtype.names else "sqrt((double)a * a + b * b)")
        code = compiled(kernels.options("user", dtype, False), architecture, define(text, dtype))
        assert code[:4] == b"\x7fELF", dtype


def test_an_expression_that_is_none_is_refused():
    dtype = numpy.dtype("f4")
    with pytest.raises(nvrtc.NVRTCError):
        compiled(kernels.options("user", dtype, False), "sm_80", define("a +* ", dtype))


def test_what_is_wrong_is_refused():
    with pytest.raises(nvrtc.NVRTCError):
        compiled(("-DELEMENT=quadruple", "-DOPERATOR=sum"), "sm_80")


def test_products_would_be_fused_with_sums_without_the_option():
    options = kernels.options("prod", numpy.dtype("c16"), False)
    assert options[0] == "--fmad=false" and "fma" in compiled(options[1:], "compute_80")

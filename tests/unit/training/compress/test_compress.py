"""The table of schemes, and how they are read from text."""

import inspect
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest
from unit.training.compress.runs import FORMS

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.training import compress
from hpccoll.training.compress.powersgd import PowerSgd
from hpccoll.training.compress.topk import TopK

MODULES = Path(compress.__file__).parent


def test_the_table():
    assert compress.names() == list(compress.SCHEMES)
    for name, scheme in compress.SCHEMES.items():
        module = Path(inspect.getfile(scheme))
        assert scheme.name == name and module.parent == MODULES
        assert re.search("[Ss]ource|wire", module.read_text())
    assert {form.partition(":")[0] for form in FORMS} == set(compress.SCHEMES)


@pytest.mark.parametrize("form", [*compress.SCHEMES, *FORMS])
def test_text_and_scheme_are_one(form):
    scheme = compress.parse(form)
    assert compress.parse(str(scheme)) == scheme and compress.parse(scheme) is scheme
    assert hash(scheme) == hash(compress.parse(f" {form} "))
    for field in fields(scheme):
        with pytest.raises(FrozenInstanceError):
            setattr(scheme, field.name, 1)


def test_values_of_every_kind():
    assert compress.parse("topk: density = 0.5 , masking=no, method=sampled") == TopK(
        density=0.5, masking=False, method="sampled")
    assert compress.parse("powersgd:rank=4,rate=1.5") == PowerSgd(rank=4, rate=1.5)


@pytest.mark.parametrize("text, message", [
    ("topq", "compress: .*'topq'.*'topk'.*fp16, bf16"),
    ("", "''.*none"),
    ("zip", "'zip'"),
    ("topk:densty=1", "topk: .*'densty'.*'density'"),
    ("bf16:bits=8", "bf16: 'bits'"),
    ("topk:density", "density: .*''"),
    ("topk:density=0", "topk: .*0.0.*0.*1"),
    ("topk:density=nan", "density: .*nan"),
    ("topk:density=1.5", "density"), ("topk:warmup=-1", "warmup: .*-1.*0"),
    ("topk:momentum=1", "momentum"), ("topk:masking=maybe", "masking: .*'maybe'"),
    ("topk:method=best", "method: .*'best'.*exact.*sampled"),
    ("randomk:seed=-1", "seed"), ("csc:chunk=0", "chunk"), ("csc:chunk=many", "integer"),
    ("int8:block=100", "block: .*100.*32"), ("onebit:block=0", "block"),
    ("onebit:scale=l3", "scale: .*'l3'.*l1.*l2"),
    ("dithering:bits=3", "bits: .*3"), ("dithering:kind=natural,bits=8", "bits: .*8"),
    ("dithering:kind=odd", "kind"), ("dithering:norm=l1", "norm"), ("dithering:seed=-2", "seed"),
    ("powersgd:rank=0", "rank"), ("powersgd:rate=0", "rate"), ("powersgd:dense_steps=-1", "dense"),
    ("powersgd:seed=-1", "seed"),
])
def test_what_cannot_be_read(text, message):
    with pytest.raises(ArgumentError, match=message):
        compress.parse(text)


def test_other_types():
    with pytest.raises(ArgumentTypeError, match="scheme.*3"):
        compress.parse(3)


def test_the_page_has_the_bytes_of_the_closed_forms():
    page = (MODULES.parents[2] / "docs" / "training" / "compress.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    assert [name for name, *_ in rows] == [*compress.SCHEMES][:5] + [
        "dithering", "topk", "randomk", "csc", "powersgd"]
    for name, *numbers in rows:
        assert [int(number.replace(",", "")) for number in numbers] == [
            compress.parse(name).wire_bytes([(1600, 1024)] * 4, size) for size in (8, 64)]

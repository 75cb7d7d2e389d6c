"""Memory that is sent again and again moves to huge pages, and keeps its contents."""

import ctypes
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pages = pytest.importorskip("hpccoll.torch.huge_pages")
tensors = pytest.importorskip("hpccoll.torch.tensors")

COUNT = 4 << 20


def huge_bytes(address):
    """Bytes in huge pages of the mapping with an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        mapping = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if mapping:
            start, stop = (int(end, 16) for end in mapping.groups())
            inside = start <= address < stop
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    return 0


def can_move(page):
    """Whether the kernel moves memory when it is asked without any code of ours."""
    other = torch.ones(COUNT, dtype=torch.int32)
    start = -(-other.data_ptr() // page) * page
    return not ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(page), 25)


def used(known, tensor, times=pages.FIRST):
    for _ in range(times):
        known.count_use(tensor.data_ptr(), tensor.nbytes)


@pytest.fixture
def tensor():
    values = torch.arange(COUNT, dtype=torch.int32)
    if huge_bytes(values.data_ptr()):
        pytest.skip("all memory has huge pages here")
    return values


def test_the_fourth_use_moves_it(tensor):
    known = pages.HugePages()
    if not known.nbytes:
        pytest.skip("the system gives no huge pages")
    used(known, tensor, pages.FIRST - 1)
    assert not huge_bytes(tensor.data_ptr())
    used(known, tensor, 1)
    if not huge_bytes(tensor.data_ptr()) and not can_move(known.nbytes):
        pytest.skip("this kernel cannot move memory to huge pages, or has none left")
    assert huge_bytes(tensor.data_ptr()) >= tensor.nbytes - 2 * known.nbytes
    assert torch.equal(tensor, torch.arange(COUNT, dtype=torch.int32))


def test_arrays_of_large_tensors_are_noted(tensor, monkeypatch):
    seen = []
    monkeypatch.setattr(tensors.PAGES, "count_use", lambda *memory: seen.append(memory))
    for array_of in tensors.values, tensors.memory:
        array_of(tensor)
        array_of(tensor[:1000])
    assert seen == [(tensor.data_ptr(), 4 * COUNT)] * 2


def test_not_where_it_is_not_wanted(tensor, monkeypatch):
    monkeypatch.setenv("HPCCOLL_HUGE_PAGES", "no")
    known = pages.HugePages()
    used(known, tensor)
    assert not known.nbytes and not known.uses and not huge_bytes(tensor.data_ptr())


def test_memory_without_a_whole_page_is_left(monkeypatch):
    known = pages.HugePages()
    monkeypatch.setattr(known, "nbytes", 2 << 20, raising=False)
    monkeypatch.setattr(known, "_madvise", lambda *args: pytest.fail("moved"), raising=False)
    for _ in range(pages.FIRST):
        known.count_use((1 << 20) + 4096, 2 << 20)


def test_it_forgets(monkeypatch):
    known = pages.HugePages()
    monkeypatch.setattr(known, "nbytes", 1 << 40, raising=False)
    for address in range(pages.MOST + 1):
        known.count_use(address, 8)
    assert len(known.uses) == 1


@pytest.mark.parametrize("enabled, size, found", [
    ("always [madvise] never", "2097152", 2 << 20), ("[always] madvise never", "2097152", 2 << 20),
    ("always madvise [never]", "2097152", 0), ("always [madvise] never", "", 0), (None, None, 0)])
def test_what_the_system_says(tmp_path, enabled, size, found):
    if enabled is not None:
        (tmp_path / "enabled").write_text(enabled)
        (tmp_path / "hpage_pmd_size").write_text(size)
    assert pages.page_bytes(tmp_path) == found

"""Huge pages for tensors that are sent repeatedly.

Ranks of a node copy large messages through the kernel, which translates each page. PyTorch
allocates pages of 4 KiB unless the system always uses huge pages; such memory is read two to three
times more slowly (docs/internal/notebook/memory.md). NumPy requests huge pages on allocation, but a
tensor already exists, so the kernel must move it (``MADV_COLLAPSE``, Linux 6.1). That takes as long
as about ten sends, so only memory that is used repeatedly is moved.
"""

from __future__ import annotations

import ctypes
from functools import cached_property
from pathlib import Path
from typing import Any

from hpccoll import config

#: Kernel settings of huge pages.
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
#: ``MADV_COLLAPSE``.
COLLAPSE = 25
#: Smallest tensor in bytes for which huge pages are faster.
LEAST = 4 << 20
#: Number of uses after which memory is moved, and interval of uses between later moves: the address
#: may have been reused for other memory.
FIRST, AGAIN = 4, 512
#: Largest number of recorded addresses; beyond it, all are dropped.
MOST = 1024


class HugePages:
    """Use counts of the memory that this process sends.

    Attributes:
        uses: use counts, by address and bytes.
    """

    def __init__(self) -> None:
        self.uses: dict[tuple[int, int], int] = {}

    @cached_property
    def nbytes(self) -> int:
        """Size of a huge page in bytes; 0 if unsupported or disabled."""
        return page_bytes(SETTINGS) if config.load().huge_pages else 0

    @cached_property
    def _madvise(self) -> Any:
        return ctypes.CDLL(None).madvise

    def count_use(self, address: int, nbytes: int) -> None:
        """Count a send or receive of memory; move the memory to huge pages if it is due."""
        if not self.nbytes:
            return
        if len(self.uses) >= MOST:
            self.uses.clear()
        count = self.uses[address, nbytes] = self.uses.get((address, nbytes), 0) + 1
        if count % AGAIN == FIRST:
            start = -(-address // self.nbytes) * self.nbytes
            length = (address + nbytes) // self.nbytes * self.nbytes - start
            if length > 0:
                # Without free huge pages, the kernel changes nothing.
                self._madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), COLLAPSE)


def page_bytes(settings: Path) -> int:
    """Return the size of a huge page in bytes from the system settings; 0 if disabled."""
    try:
        if "[never]" in (settings / "enabled").read_text():
            return 0
        return int((settings / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0

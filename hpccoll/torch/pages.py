"""Huge pages for tensors that are sent again and again.

Ranks of a node read each other's large messages through the kernel, which looks every page up.
PyTorch's memory has pages of 4 KiB unless the system gives all memory huge ones, and is then read
two to three times more slowly (docs/internal/notebook/memory.md). NumPy asks for huge pages by
itself, when it allocates; a tensor is there already, so the kernel has to move it
(``MADV_COLLAPSE``, Linux 6.1). That takes as long as sending it some ten times, and so is done for
memory that comes again.
"""

from __future__ import annotations

import ctypes
from functools import cached_property
from pathlib import Path
from typing import Any

from hpccoll import config

#: What the kernel says of huge pages.
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
#: ``MADV_COLLAPSE``.
COLLAPSE = 25
#: Bytes of a tensor from which on this pays.
LEAST = 4 << 20
#: The use of some memory that moves it, and after how many more it is looked after again: it may
#: be other memory at the same address by then.
FIRST, AGAIN = 4, 512
#: Places remembered, before all are forgotten.
MOST = 1024


class HugePages:
    """What this process knows of the memory that it sends.

    Attributes:
        uses: of memory, by address and bytes.
    """

    def __init__(self) -> None:
        self.uses: dict[tuple[int, int], int] = {}

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a huge page; 0 where there are none, or none are wanted."""
        return page_bytes(SETTINGS) if config.load().huge_pages else 0

    @cached_property
    def _madvise(self) -> Any:
        return ctypes.CDLL(None).madvise

    def used(self, address: int, nbytes: int) -> None:
        """Note that memory is sent or received now; nothing happens to its contents."""
        if not self.nbytes:
            return
        if len(self.uses) >= MOST:
            self.uses.clear()
        count = self.uses[address, nbytes] = self.uses.get((address, nbytes), 0) + 1
        if count % AGAIN == FIRST:
            start = -(-address // self.nbytes) * self.nbytes
            length = (address + nbytes) // self.nbytes * self.nbytes - start
            if length > 0:
                # Where the kernel has no such pages left, everything stays as it was.
                self._madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), COLLAPSE)


def page_bytes(settings: Path) -> int:
    """Bytes of a huge page as the system says; 0 where it gives none."""
    try:
        if "[never]" in (settings / "enabled").read_text():
            return 0
        return int((settings / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0

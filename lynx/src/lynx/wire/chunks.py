"""Memory for received bytes, used again when nobody looks at it any more.

Fresh memory costs a page fault every 4 KiB, which on a virtual machine is several times the price of receiving
into it. A chunk is leased as a `memoryview`; when the last view of it is gone, the chunk goes back by itself.
"""

import weakref

import numpy as np
from numpy.typing import NDArray

GRAIN_BYTES = 1 << 20


class Chunks:
    """A pool of chunks; may be used, and views dropped, in any thread.

    Args:
        keep_bytes: free memory kept for later.
    """

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._free: list[NDArray[np.uint8]] = []

    @property
    def free_bytes(self) -> int:
        """Memory kept for later now."""
        return len(self._free) * GRAIN_BYTES

    def lease(self, size: int) -> memoryview:
        """A writable view of ``size`` or more bytes, content undefined. Above 1 MiB it is always fresh."""
        if size > GRAIN_BYTES:
            return memoryview(bytearray(size))
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(GRAIN_BYTES, np.uint8)
        lease = memory[:]  # views keep this object alive, not `memory`: its end is the end of the last view
        weakref.finalize(lease, self._give_back, memory).atexit = False
        return lease.data

    def _give_back(self, memory: NDArray[np.uint8]) -> None:
        if self.free_bytes < self._keep_bytes:
            self._free.append(memory)

"""The one error that this room adds to the tree of `k40s.errors`: what the kernel said.

An outcome that is expected (a group already gone, a process already dead) is no error.
"""

from __future__ import annotations

import errno

from k40s.errors import EffectFailed


class KernelRefused(EffectFailed):
    """The kernel answered a request with an error. `code` is its errno."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: {errno.errorcode.get(code, str(code))}")
        self.code = code

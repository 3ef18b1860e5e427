"""The interface that every codec implements.

A codec maps a batch of pages to one or two *planes*. A codec with one plane (``bf16``, ``int8``, ``int4``,
``kivi4``) sends everything in its anchor; a *split* codec (``nested``, ``lynx``) has an anchor from which a
draft can start and a residual that completes the code bit for bit.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lynx.layout import KvDtype, PageRef

Pages = NDArray[Any]
"""``[pages, tokens, channels]``, C-contiguous; float32, float16, or uint16 holding bfloat16 bits."""

Payload = bytes | bytearray | memoryview
"""The bytes of one plane of one page."""

Early = Sequence[NDArray[np.uint16]]
"""For each page, the tokens whose residual travels in the anchor payload: strictly increasing indices."""


class Plane(IntEnum):
    """One bit-layer of the quantised KV; the value is its id on the wire."""

    ANCHOR = 0
    RESIDUAL = 1


class Codec(Protocol):
    """Encodes and decodes pages. Instances are stateless and may be used from several threads."""

    @property
    def name(self) -> str:
        """What `by_name` and the wire's handshake call it."""
        ...

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes of a page, in the order in which `encode` returns their payloads."""
        ...

    def payload_bytes(self, tokens: int, channels: int, early: int = 0, part: int = 0) -> tuple[int, ...]:
        """Exact payload length of each plane of a page of which ``early`` tokens are early.

        A payload is never longer than with ``early = tokens`` for the anchor and 0 for the residual: bounds
        for a receiver that must not buffer what cannot be.
        """
        ...

    def encode(
        self, pages: Pages, dtype: KvDtype, early: Early, refs: Sequence[PageRef]
    ) -> list[tuple[Payload, ...]]:
        """Encode pages that share a token count.

        Args:
            pages: ``[P, tokens, channels]``, tokens 1 to 256.
            dtype: what ``pages`` holds.
            early: for each page, the sorted token indices (0 to tokens - 1) whose residual travels in the
                anchor payload; ignored by codecs with one plane.
            refs: for each page, where it lies; ``kivi4`` reads the part, the others only name it in errors.

        Returns:
            For each page one payload per plane of ``self.planes``.

        Raises:
            BadInput: a value is NaN, infinite or 2**126 and beyond (layer, part, token and channel are
                named), or a shape is off.
        """
        ...

    def decode(self, payloads: Sequence[tuple[Payload, ...]], dtype: KvDtype, out: Pages) -> None:
        """Decode pages that share a token count into ``out``.

        Args:
            payloads: for each page its anchor alone (anchor level) or every plane (full level).
            dtype: what ``out`` holds.
            out: ``[P, tokens, channels]``, overwritten.

        Raises:
            PageCorrupt: a payload's length or content is impossible for this shape.
            BadInput: ``out`` has another shape or type than it must.
        """
        ...

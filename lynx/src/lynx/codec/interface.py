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


class Plane(IntEnum):
    """One bit-layer of the quantised KV; the value is its id on the wire."""

    ANCHOR = 0
    RESIDUAL = 1


class Codec(Protocol):
    """Encodes and decodes pages. Instances are stateless and may be used from several threads."""

    name: str
    planes: tuple[Plane, ...]

    def encode(
        self, pages: Pages, dtype: KvDtype, early: Sequence[NDArray[np.uint16]], refs: Sequence[PageRef]
    ) -> list[tuple[bytes | bytearray | memoryview, ...]]:
        """Encode pages that share a token count.

        Args:
            pages: ``[P, tokens, channels]``, tokens 1 to 256.
            dtype: what ``pages`` holds.
            early: for each page, the sorted token indices (0 to tokens - 1) whose residual travels in the
                anchor payload; ignored by codecs with one plane.
            refs: for each page, where it lies; used in error messages only.

        Returns:
            For each page one payload per plane of ``self.planes``.

        Raises:
            BadInput: a value is NaN or infinite (layer, part, token and channel are named) or a shape is off.
        """
        ...

    def decode(
        self,
        payloads: Sequence[tuple[bytes | bytearray | memoryview, ...]],
        dtype: KvDtype,
        out: Pages,
    ) -> None:
        """Decode pages that share a token count into ``out``.

        Args:
            payloads: for each page its anchor alone (anchor level) or every plane (full level).
            dtype: what ``out`` holds.
            out: ``[P, tokens, channels]``, overwritten.

        Raises:
            PageCorrupt: a payload's length or content is impossible for this shape.
        """
        ...

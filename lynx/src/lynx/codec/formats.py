"""Constants and lengths of the payload formats: what `docs/codec.md` says in words.

Shared by the reference and the fast path; does no arithmetic on values.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lynx.errors import BadInput
from lynx.layout import CHUNK_TOKENS, PageRef

CodecName = Literal["nested", "lynx", "bf16", "int8", "int4", "kivi4"]
CODEC_NAMES: tuple[CodecName, ...] = get_args(CodecName)

RULER_CELLS = 22
"""Cells into which ``nested`` divides a channel's range; 22 is the most whose intervals fit in a byte."""

INTERVALS: NDArray[np.uint8] = np.array(
    [(first, end) for first in range(RULER_CELLS) for end in range(first + 1, RULER_CELLS + 1)], np.uint8
)
"""``[253, 2]``: first cell and end cell of each interval of the ruler, in the order of their codes."""

SHIFT_CELLS = 254
"""Cells into which ``lynx`` divides a channel's range for the mean and the peak of its chunks, a u8 each."""

COMPANDING_A = 1.0
"""The ``a`` of the companding law, which the paper does not give: of 0.5, 1, 2, 4, 8 and 15 the one with the
least squared error of anchors, K and V, on SmolLM2-135M-Instruct at 2,048 tokens."""

COMPANDING_SCALE = 120
"""Magnitude of the companded peak: 7 anchor steps of 16 and the residual 8, the most that 4 + 4 bits hold."""

INT_GROUP = 64
"""Channels of one token that share a scale in ``int8`` and ``int4``."""

KIVI_GROUP = 32
"""Tokens (K) or channels (V) that share a scale in ``kivi4``."""


EXACT_TOKENS = 4
"""First tokens of a sequence that ``nested`` sends as they are: attention sinks (StreamingLLM, arXiv 2309.17453).

Nearly every query looks at them, and their values are small beside those of the tokens that share their scales: in
8 bits their error alone was seven eighths of the full level's on SmolLM2-135M-Instruct."""


def exact_tokens(name: CodecName, ref: PageRef) -> int:
    """How many tokens of a page travel as they are, behind everything else in its anchor payload."""
    return min(EXACT_TOKENS, ref.tokens) if name == "nested" and ref.first_token == 0 else 0


def chunks(tokens: int) -> int:
    """Chunks of a page; the last may be short."""
    return -(-tokens // CHUNK_TOKENS)


def groups(channels: int, group: int) -> int:
    """Groups of ``group`` channels; the last may be short."""
    return -(-channels // group)


def nibble_bytes(tokens: int, channels: int) -> int:
    """Bytes of 4-bit codes ``[tokens, channels]``: a row for each token, two channels to a byte."""
    return tokens * -(-channels // 2)


def bitmap_bytes(tokens: int) -> int:
    """Bytes of one bit for each token."""
    return -(-tokens // 8)


def scale_bytes(name: CodecName, tokens: int, channels: int, part: int) -> int:
    """Bytes of the scales that open an anchor payload."""
    match name:
        case "nested":
            return 4 * channels + chunks(tokens) * channels
        case "lynx":
            return 4 * channels + 2 * chunks(tokens) * channels
        case "int8" | "int4":
            return 4 * tokens * groups(channels, INT_GROUP)
        case "kivi4" if part == 0:
            return 4 * chunks(tokens) * channels
        case "kivi4":
            return 4 * tokens * groups(channels, KIVI_GROUP)
        case "bf16":
            return 0


def is_split(name: CodecName) -> bool:
    """Whether the codec has a residual plane."""
    return name in ("nested", "lynx")


def payload_bytes(
    name: CodecName, tokens: int, channels: int, early: int = 0, part: int = 0
) -> tuple[int, ...]:
    """Payload length of each plane of a page of which ``early`` tokens are early, and none is exact.

    Raises:
        BadInput: more early tokens than tokens.
    """
    if not 0 <= early <= tokens:
        raise BadInput(f"early is {early}; it must be 0 to the page's {tokens} tokens")
    scales = scale_bytes(name, tokens, channels, part)
    match name:
        case "nested" | "lynx":
            anchor = scales + nibble_bytes(tokens, channels) + bitmap_bytes(tokens)
            return anchor + nibble_bytes(early, channels), nibble_bytes(tokens - early, channels)
        case "bf16":
            return (2 * tokens * channels,)
        case "int8":
            return (scales + tokens * channels,)
        case "int4":
            return (scales + nibble_bytes(tokens, channels),)
        case "kivi4":
            return (scales + nibble_bytes(tokens, channels) + 1,)

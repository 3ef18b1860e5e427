"""Geometry of a KV cache: the only module that knows what the axes of its tensors mean.

A *page* is the unit that is quantised, sent, checked and refined: up to 256 consecutive tokens of one
layer's K or V, as a C-contiguous array ``[tokens, channels]`` with ``channels = kv_heads * head_size``
innermost. MLA caches have one part (the latent) instead of two.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from lynx.errors import BadInput

PAGE_TOKENS = 256
"""Tokens of a full page."""

CHUNK_TOKENS = 32
"""Tokens that share one scale within a channel."""

KvDtype = Literal["bfloat16", "float16", "float32"]
DTYPE_BYTES: dict[KvDtype, int] = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class PageRef:
    """Where one page lies: ``layer``, ``part`` (0 = K or MLA latent, 1 = V), first token and token count."""

    layer: int
    part: int
    first_token: int
    tokens: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Shape of the KV cache of one model.

    Args:
        layers: attention layers, 1 to 1024.
        parts: 2 for K and V, 1 for an MLA latent.
        kv_heads: KV heads of a layer, 1 to 1024.
        head_size: channels of a head, 1 to 1024.
        dtype: element type of the cache.

    Raises:
        BadInput: a field is out of its range.
    """

    layers: int
    parts: int
    kv_heads: int
    head_size: int
    dtype: KvDtype

    def __post_init__(self) -> None:
        for field, value, top in (
            ("layers", self.layers, 1024),
            ("parts", self.parts, 2),
            ("kv_heads", self.kv_heads, 1024),
            ("head_size", self.head_size, 1024),
        ):
            if not 1 <= value <= top:
                raise BadInput(f"layout field {field} is {value}; it must be 1 to {top}")
        if self.dtype not in get_args(KvDtype):
            raise BadInput(f"layout dtype is {self.dtype!r}; use one of {', '.join(get_args(KvDtype))}")

    @property
    def channels(self) -> int:
        """Channels of a page: ``kv_heads * head_size``."""
        return self.kv_heads * self.head_size

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in the cache, over all layers."""
        return self.layers * self.parts * self.channels * DTYPE_BYTES[self.dtype]

    def page_count(self, tokens: int) -> int:
        """Number of pages that ``tokens`` tokens make."""
        return self.layers * self.parts * -(-tokens // PAGE_TOKENS)

    def pages(self, tokens: int) -> Iterator[PageRef]:
        """All pages of a context of ``tokens`` tokens, in page-index order: token range, layer, part."""
        for first in range(0, tokens, PAGE_TOKENS):
            count = min(PAGE_TOKENS, tokens - first)
            for layer in range(self.layers):
                for part in range(self.parts):
                    yield PageRef(layer, part, first, count)

    def fingerprint(self, model: str) -> bytes:
        """16 bytes that two instances must share to exchange KV: BLAKE2b over model name and shape.

        The dtype is left out on purpose: codes are dtype-free, so an fp32 prefill may feed a bf16 decode.
        """
        text = f"{model}\0{self.layers}\0{self.parts}\0{self.kv_heads}\0{self.head_size}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

"""The codecs by name: the only way the rest of Lynx gets one."""

from collections.abc import Sequence

import numpy as np

from lynx.codec.formats import CODEC_NAMES
from lynx.codec.interface import Codec
from lynx.codec.pages import NUMPY_DTYPE
from lynx.errors import BadInput
from lynx.layout import CHUNK_TOKENS, KvDtype, PageRef


def names() -> tuple[str, ...]:
    """Every name that `by_name` knows."""
    return CODEC_NAMES


def by_name(name: str, threads: int = 1) -> Codec:
    """The codec of that name; ``threads`` share the pages of each call.

    Raises:
        BadInput: no codec has that name, or ``threads`` is not 1 to 64.
    """
    if not 1 <= threads <= 64:
        raise BadInput(f"codec threads is {threads}; it must be 1 to 64")
    for known in CODEC_NAMES:
        if name == known:
            from lynx.codec.fast.batch import FastCodec  # numba's import is slow; naming a plane needs none

            return FastCodec(known, threads)
    raise BadInput(f"codec is {name!r}; use one of {', '.join(CODEC_NAMES)}")


def warm_up(codecs: Sequence[str] = CODEC_NAMES, dtype: KvDtype = "float32") -> None:
    """Compile these codecs for pages of ``dtype``, or load them where numba has them cached.

    The first time on a machine this takes seconds of CPU time for each codec; later processes take tens of
    milliseconds. Call it before the first request, which would otherwise wait for it.

    Raises:
        BadInput: a codec or dtype is unknown.
    """
    if dtype not in NUMPY_DTYPE:
        raise BadInput(f"dtype is {dtype!r}; use one of {', '.join(NUMPY_DTYPE)}")
    pages = np.zeros((1, CHUNK_TOKENS, 64), NUMPY_DTYPE[dtype])
    for name in codecs:
        codec = by_name(name)
        payloads = codec.encode(pages, dtype, [np.zeros(0, np.uint16)], [PageRef(0, 0, 0, CHUNK_TOKENS)])
        codec.decode(payloads, dtype, np.empty_like(pages))

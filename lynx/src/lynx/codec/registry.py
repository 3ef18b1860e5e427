"""The codecs by name: the only way the rest of Lynx gets one."""

from lynx.codec.formats import CODEC_NAMES
from lynx.codec.interface import Codec
from lynx.codec.reference import ReferenceCodec
from lynx.errors import BadInput


def names() -> tuple[str, ...]:
    """Every name that `by_name` knows."""
    return CODEC_NAMES


def by_name(name: str) -> Codec:
    """The codec of that name.

    Raises:
        BadInput: no codec has that name.
    """
    for known in CODEC_NAMES:
        if name == known:
            return ReferenceCodec(known)
    raise BadInput(f"codec is {name!r}; use one of {', '.join(CODEC_NAMES)}")


def warm_up() -> None:
    """Make the first request as fast as the second: compile or load the fast path now."""

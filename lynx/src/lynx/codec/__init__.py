"""Codecs: pages of KV in, planes of bytes out, and back."""

from lynx.codec.interface import Codec, Early, Pages, Payload, Plane
from lynx.codec.registry import by_name, names, warm_up

__all__ = ["Codec", "Early", "Pages", "Payload", "Plane", "by_name", "names", "warm_up"]

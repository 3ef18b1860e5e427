"""The fast codecs behind the interface of all codecs: lays out a batch, splits it over threads, names faults.

Whatever a kernel cannot do goes to the reference: naming what is wrong with a page (so that the words are the
same), and odd channel counts (which no model has).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynx.codec import formats
from lynx.codec.fast import affine, companded, nested
from lynx.codec.fast.bits import address_of
from lynx.codec.formats import CodecName
from lynx.codec.interface import Early, Pages, Payload, Plane
from lynx.codec.pages import check_counts, check_pages, from_float32
from lynx.codec.reference import ReferenceCodec, exact_rows
from lynx.layout import KvDtype, PageRef

Offsets = NDArray[np.int64]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="lynx-codec")


def _first_fault(kernel: Callable[[slice], int], pages: int, threads: int) -> int:
    """Run ``kernel`` over all pages, split evenly over threads; the first faulty page, or -1."""
    step = -(-pages // threads) or 1
    parts = [slice(start, min(start + step, pages)) for start in range(0, pages, step)]
    results = map(kernel, parts) if len(parts) == 1 else _pool(threads).map(kernel, parts)
    faults = [part.start + fault for part, fault in zip(parts, results, strict=True) if fault >= 0]
    return min(faults, default=-1)


def _words(pages: Pages) -> NDArray[Any]:
    """Two bfloat16 channels as one uint32; float32 as it is."""
    return pages.view(np.uint32) if pages.dtype == np.uint16 else pages


def _keys(pages: Pages) -> NDArray[Any]:
    return pages.view(np.int16 if pages.dtype == np.uint16 else np.int32)


def _kernel_input(pages: Pages) -> Pages:
    """The pages as the one array type that kernels are compiled for, whoever owns them and wherever they lie."""
    if pages.dtype == np.float16:
        pages = pages.astype(np.float32)
    elif not _words(pages).flags.aligned:
        pages = pages.copy()
    view = pages.view()
    view.flags.writeable = False
    return view


def _offsets(sizes: NDArray[Any], start: int = 0) -> Offsets:
    """Where sections of these sizes lie one behind the other, and where the last ends."""
    return np.concatenate([[start], start + np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


def _addresses(payloads: list[Payload | None]) -> tuple[list[Any], Offsets, Offsets]:
    """Views that keep the payloads alive, their addresses, and their lengths (-1 for None)."""
    views = [None if payload is None else np.frombuffer(payload, np.uint8) for payload in payloads]
    where = [0 if view is None else address_of(view) for view in views]
    lengths = [-1 if view is None else len(view) for view in views]
    return views, np.array(where, np.int64), np.array(lengths, np.int64)


@dataclass(frozen=True, slots=True)
class FastCodec:
    """A codec whose pages are coded by compiled kernels, ``threads`` of them at a time.

    The payloads of one `encode` call are views of one buffer, which lives until the last of them is gone.
    """

    name: CodecName
    threads: int = 1

    @property
    def planes(self) -> tuple[Plane, ...]:
        """See `Codec.planes`."""
        return self._reference.planes

    @property
    def _reference(self) -> ReferenceCodec:
        return ReferenceCodec(self.name)

    def payload_bytes(self, tokens: int, channels: int, early: int = 0, part: int = 0) -> tuple[int, ...]:
        """See `Codec.payload_bytes`."""
        return formats.payload_bytes(self.name, tokens, channels, early, part)

    def encode(
        self, pages: Pages, dtype: KvDtype, early: Early, refs: Sequence[PageRef]
    ) -> list[tuple[Payload, ...]]:
        """See `Codec.encode`."""
        count, _, channels = check_pages(pages, dtype)
        check_counts(count, early, refs)
        if channels % 2 or not count:
            return self._reference.encode(pages, dtype, early, refs)
        wide = _kernel_input(pages)
        planes, fault = (
            self._encode_split(wide, early, refs, pages)
            if formats.is_split(self.name)
            else self._encode_plain(wide, np.array([ref.part for ref in refs], np.int64))
        )
        if fault >= 0:
            at = slice(fault, fault + 1)
            self._reference.encode(pages[at], dtype, early[at], refs[at])
            raise AssertionError(f"page {fault}: {self.name} kernel refuses what its reference accepts")
        return planes

    def _encode_split(
        self, pages: Pages, early: Early, refs: Sequence[PageRef], given: Pages
    ) -> tuple[list[tuple[Payload, ...]], int]:
        """``given`` are the pages in their own type, of which exact tokens are copies."""
        count, tokens, channels = pages.shape
        chosen = np.concatenate(early).astype(np.int64)
        sizes = np.array([len(indices) for indices in early], np.int64)
        if sizes.max() > tokens:
            return [], int(sizes.argmax())
        anchor, rest = self.payload_bytes(tokens, channels)
        row = channels // 2
        early_at = _offsets(sizes)
        exact = np.array([formats.exact_tokens(self.name, ref) for ref in refs], np.int64)
        exact_bytes = exact * channels * given.itemsize
        anchor_at = _offsets(anchor + sizes * row + exact_bytes)
        rest_at = _offsets(rest - sizes * row, int(anchor_at[-1]))
        out = np.empty(rest_at[-1], np.uint8)
        words, keys = _words(pages), _keys(pages)
        kernel = nested.encode if self.name == "nested" else companded.encode

        def run(at: slice) -> int:
            ends = slice(at.start, at.stop + 1)
            return kernel(words[at], keys[at], chosen, early_at[ends], out, anchor_at[at], rest_at[at])

        fault = _first_fault(run, count, self.threads)
        for page in np.flatnonzero(exact):
            end = anchor_at[page + 1]
            out[end - exact_bytes[page] : end] = given[page, : exact[page]].reshape(-1).view(np.uint8)
        return _cut(out, anchor_at, rest_at), fault

    def _encode_plain(self, pages: Pages, parts: Offsets) -> tuple[list[tuple[Payload, ...]], int]:
        count, tokens, channels = pages.shape
        sizes = np.array([self.payload_bytes(tokens, channels, part=int(part))[0] for part in parts])
        at = _offsets(sizes)
        out = np.empty(at[-1], np.uint8)
        words, keys = _words(pages), _keys(pages)
        kernel = affine.ENCODERS[self.name]
        fault = _first_fault(
            lambda some: kernel(words[some], keys[some], parts[some], out, at[some]), count, self.threads
        )
        return _cut(out, at), fault

    def decode(self, payloads: Sequence[tuple[Payload, ...]], dtype: KvDtype, out: Pages) -> None:
        """See `Codec.decode`."""
        count, tokens, channels = check_pages(out, dtype)
        most = len(self.planes)
        planes_differ = any(not 1 <= len(planes) <= most for planes in payloads)
        if channels % 2 or not count or len(payloads) != count or planes_differ:
            self._reference.decode(payloads, dtype, out)
            return
        is_direct = dtype != "float16" and _words(out).flags.aligned
        wide = out if is_direct else np.empty(out.shape, np.float32)
        fault, behind = self._decode(payloads, wide)
        if fault >= 0:
            at = slice(fault, fault + 1)
            self._reference.decode(payloads[at], dtype, out[at])
            raise AssertionError(f"page {fault}: {self.name} kernel refuses what its reference accepts")
        if not is_direct:
            out[...] = from_float32(wide, dtype)
        for page in np.flatnonzero(behind):
            exact = exact_rows(payloads[page][0], int(behind[page]), tokens, channels, dtype)
            out[page, : len(exact)] = exact

    def _decode(self, payloads: Sequence[tuple[Payload, ...]], out: Pages) -> tuple[int, Offsets]:
        """The first faulty page, or -1, and how many bytes of exact tokens each page still has to be given."""
        words, channels = _words(out), out.shape[2]
        alive, anchors, anchor_bytes = _addresses([planes[0] for planes in payloads])
        if not formats.is_split(self.name):
            plain = affine.DECODERS[self.name]
            fault = _first_fault(
                lambda at: plain(anchors[at], anchor_bytes[at], words[at], channels), len(out), self.threads
            )
            return fault, np.zeros(0, np.int64)
        rest = [planes[1] if len(planes) > 1 else None for planes in payloads]
        alive_rests, rests, rest_bytes = _addresses(rest)
        behind = np.zeros(len(out), np.int64)

        def run(at: slice) -> int:
            given = anchors[at], anchor_bytes[at], rests[at], rest_bytes[at], words[at], channels
            return nested.decode(*given, behind[at]) if self.name == "nested" else companded.decode(*given)

        fault = _first_fault(run, len(out), self.threads)
        del alive, alive_rests
        return fault, behind


def _cut(out: NDArray[np.uint8], *planes: Offsets) -> list[tuple[Payload, ...]]:
    """The payloads of each page as views of ``out``, given where each plane's lie."""
    view = out.data
    edges = [at.tolist() for at in planes]
    return [tuple(view[at[page] : at[page + 1]] for at in edges) for page in range(len(edges[0]) - 1)]

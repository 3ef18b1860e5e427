"""How fast are the codecs, as a share of copying the same memory? Prints a table, draws build/bench/codec.png.

Pages of BF16 KV of the default model's shape become checksummed payloads (encode) and checked payloads become
pages again (decode). All speeds are GB/s of the BF16 bytes, whatever the codec reads or writes. Before each
measurement stands a memcpy of those bytes, and ``share`` is the median of the quotients: on a busy machine a
speed says little, a share in one moment more. One thread is timed by its CPU time, so that waiting for a core
that others hold does not count; several by the clock on the wall.

    python bench/codec/run.py --rounds 15
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from lynx import codec
from lynx.codec import Payload
from lynx.layout import PAGE_TOKENS, KvDtype, PageRef

mpl.use("Agg")
from matplotlib import pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench import report

PAGES, CHANNELS = 480, 192
"""2,048 tokens of the default model: 47 MB of BF16, more than a cache holds, as in life."""
BATCH_PAGES = 60
"""Pages of one call: a token range of every layer's K and V."""
EARLY_TOKENS = PAGE_TOKENS // 10
U16 = NDArray[np.uint16]


@dataclass(slots=True)
class Case:
    """One line of the table and what it takes to measure it."""

    codec: str
    op: str
    threads: int
    dtype: KvDtype
    run: Callable[[], object]
    seconds: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)


def sample_pages() -> NDArray[np.float32]:
    """KV-like values that BF16 holds: channels with scales and offsets of their own, tokens that drift."""
    random = np.random.default_rng(0)
    shape = (PAGES, PAGE_TOKENS, CHANNELS)
    scale = np.exp(random.normal(size=(PAGES, 1, CHANNELS)))
    offset = 3 * random.normal(size=(PAGES, 1, CHANNELS))
    drift = np.cumsum(0.1 * random.normal(size=shape), axis=1)
    values = ((random.normal(size=shape) + drift) * scale + offset).astype(np.float32)
    truncated: NDArray[np.float32] = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return truncated


def codec_cases(name: str, dtype: KvDtype, values: NDArray[np.float32], threads: int) -> list[Case]:
    """Encode, and decode of each level, of one of Lynx's codecs."""
    coder = codec.by_name(name, threads)
    pages = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16) if dtype == "bfloat16" else values
    random = np.random.default_rng(1)
    chosen = np.sort(random.choice(PAGE_TOKENS, EARLY_TOKENS, replace=False)).astype(np.uint16)
    early = [chosen] * BATCH_PAGES
    # One layer after the other, as a producer hands them over: the first page of each part has exact tokens.
    refs = [PageRef(0, page % 2, page // 2 * PAGE_TOKENS, PAGE_TOKENS) for page in range(BATCH_PAGES)]
    out = np.empty_like(pages)
    batches = [slice(start, start + BATCH_PAGES) for start in range(0, PAGES, BATCH_PAGES)]

    def encode_batch(batch: slice) -> list[tuple[tuple[Payload, int], ...]]:
        planes = coder.encode(pages[batch], dtype, early, refs)
        return [tuple((payload, xxh3_64_intdigest(payload)) for payload in page) for page in planes]

    def encode() -> None:
        for batch in batches:
            encode_batch(batch)

    frames = [encode_batch(batch) for batch in batches]

    def decode(planes: int) -> None:
        for batch, some in zip(batches, frames, strict=True):
            for page in some:
                for payload, digest in page[:planes]:
                    if xxh3_64_intdigest(payload) != digest:
                        raise SystemExit("a checksum differs: the bench's own memory changed")
            coder.decode([tuple(payload for payload, _ in page[:planes]) for page in some], dtype, out[batch])

    cases = [Case(name, "encode", threads, dtype, encode)]
    if len(coder.planes) > 1:
        cases.append(Case(name, "decode_anchor", threads, dtype, lambda: decode(1)))
    return [*cases, Case(name, "decode_full", threads, dtype, lambda: decode(2))]


def zstd_cases(pages: U16) -> list[Case]:
    """The lossless peer: zstd at its fastest ordinary level, page by page."""
    squeeze, unsqueeze = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    packed = [squeeze.compress(page.tobytes()) for page in pages]
    return [
        Case("zstd", "encode", 1, "bfloat16", lambda: [squeeze.compress(page.data) for page in pages]),
        Case("zstd", "decode_full", 1, "bfloat16", lambda: [unsqueeze.decompress(data) for data in packed]),
    ]


def torch_cases(pages: U16) -> list[Case]:
    """What one writes first: the same 4 + 4 bits by whole-tensor operations of torch."""
    chunked = torch.from_numpy(pages.copy()).view(torch.bfloat16).view(PAGES, -1, 32, CHANNELS)

    def encode() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        values = chunked.float()
        low, high = values.amin(2, keepdim=True), values.amax(2, keepdim=True)
        step = (high - low) / 256
        code = ((values - low) / step).clamp(0, 255).to(torch.uint8)
        top, rest = code >> 4, code & 15
        return top[..., 0::2] | top[..., 1::2] << 4, rest[..., 0::2] | rest[..., 1::2] << 4, low, step

    anchor, _, low, step = encode()

    def decode() -> torch.Tensor:
        code = torch.stack([anchor & 15, anchor >> 4], -1).view(PAGES, -1, 32, CHANNELS)
        return (low + (code * 16 + 8) * step).to(torch.bfloat16)

    return [
        Case("torch", "encode", 1, "bfloat16", encode),
        Case("torch", "decode_anchor", 1, "bfloat16", decode),
    ]


def measure(cases: list[Case], pages: U16, rounds: int) -> Case:
    """Run every case ``rounds`` times, in turn, a memcpy before each; returns the memcpy's own case."""
    target = np.empty_like(pages)
    copy = Case("memcpy", "copy", 1, "bfloat16", lambda: np.copyto(target, pages))

    def seconds(case: Case) -> float:
        clock = time.thread_time if case.threads == 1 else time.perf_counter
        start = clock()
        case.run()
        case.seconds.append(clock() - start)
        return case.seconds[-1]

    for case in cases:
        case.run()
    for _ in range(rounds):
        for case in cases:
            copied = seconds(copy)
            copy.shares.append(1.0)
            case.shares.append(copied / seconds(case))
    return copy


def main() -> None:
    """Measure, print, write, draw."""
    parser = argparse.ArgumentParser(description="Codec speed as a share of memcpy.")
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    values = sample_pages()
    pages = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    print("compiling kernels that numba has not cached yet", flush=True)
    cases = [case for name in codec.names() for case in codec_cases(name, "bfloat16", values, 1)]
    cases += codec_cases("nested", "bfloat16", values, 2)
    cases += zstd_cases(pages) + torch_cases(pages)
    cases += [case for name in codec.names() for case in codec_cases(name, "float32", values, 1)]
    copy = measure(cases, pages, rounds)
    rows: list[dict[str, Any]] = [
        {
            "codec": case.codec,
            "op": case.op,
            "threads": case.threads,
            "dtype": case.dtype,
            "gbps": round(pages.nbytes / float(np.median(case.seconds)) / 1e9, 3),
            "share": round(float(np.median(case.shares)), 3),
        }
        for case in [copy, *cases]
    ]
    print(f"{'codec':8}{'op':15}{'threads':>8}  {'dtype':10}{'GB/s':>8}{'of memcpy':>11}")
    for row in rows:
        print("{codec:8}{op:15}{threads:>8}  {dtype:10}{gbps:>8.2f}{share:>11.2f}".format(**row))
    report.FOLDER.mkdir(parents=True, exist_ok=True)
    picture = report.FOLDER / "codec.png"
    draw([row for row in rows if row["dtype"] == "bfloat16"], picture)
    print(f"wrote {report.write('codec', rows, picture)} and {picture}")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars of the shares, memcpy on top."""
    colours = {
        "copy": "0.6",
        "encode": "tab:blue",
        "decode_anchor": "tab:orange",
        "decode_full": "tab:green",
    }
    figure, axes = plt.subplots(figsize=(8, 0.28 * len(rows) + 1.2), layout="constrained")
    names = [f"{row['codec']} {row['op']}" + f" x{row['threads']}" * (row["threads"] != 1) for row in rows]
    axes.barh(names, [float(row["share"]) for row in rows], color=[colours[str(row["op"])] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("share of memcpy of the same BF16 bytes, checksum included")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()

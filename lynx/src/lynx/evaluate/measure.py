"""One codec on one prompt: how well a draft on its KV follows, and how far its attention is off.

A draft is kept while it says what the reference says, so up to the first difference its text *is* the
reference's. One forward pass over the reference answer, on the codec's KV, therefore tells what a draft of one
token at a time would have done: the accepted prefix ends where the pass first chooses another token.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lynx.codec import Codec
from lynx.evaluate.model import Model, from_pages, to_pages
from lynx.evaluate.reference import Reference, attention_outputs, continued, greedy
from lynx.evaluate.transfer import Level, transfer
from lynx.importance import early_tokens
from lynx.layout import KvLayout
from lynx.speculate import accepted_prefix


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How near KV of one level is to exact KV.

    Args:
        choices: greedy choice at each position of the reference answer.
        accepted: leading choices that are the reference's.
        vnmse: of attention outputs, ``|a - b|^2 / |b|^2`` in each layer, mean over layers.
        kl: divergence of the next token's distribution from the exact one in nats, mean over the answer.
        bits: bits per element received.
    """

    choices: tuple[int, ...]
    accepted: int
    vnmse: float
    kl: float
    bits: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One codec on one prompt.

    Args:
        anchor: with the Anchor stream alone.
        full: with everything; the anchor itself where there is one plane.
        kept: drafts on the anchor that verification at the full level keeps; with one plane, ``anchor.accepted``.
    """

    anchor: Fidelity
    full: Fidelity
    kept: int


def bfloat16_bits(values: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """Bits of values that bfloat16 can hold, as pages ``[layers, 2, tokens, channels]``."""
    pages = to_pages(values)
    return (pages.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def measure(
    model: Model, reference: Reference, codecs: Mapping[str, Codec], share: float
) -> dict[str, Sample]:
    """Every codec on one prompt.

    Args:
        model: what made ``reference``.
        reference: the prompt on exact KV.
        codecs: by the name of their row.
        share: share of tokens whose residual travels in the anchor.
    """
    layout = KvLayout(model.layers, 2, model.kv_heads, model.head_size, "bfloat16")
    kv = bfloat16_bits(reference.kv)
    early = [
        early_tokens(
            reference.queries[layer].transpose(0, 1).contiguous().numpy(),
            kv[layer, 0].reshape(kv.shape[2], model.kv_heads, model.head_size),
            "bfloat16",
            share,
            model.scaling,
        )
        for layer in range(model.layers)
    ]
    return {
        name: _sample(model, reference, transfer(codec, layout, kv, early)) for name, codec in codecs.items()
    }


def _sample(model: Model, reference: Reference, levels: list[Level]) -> Sample:
    anchor, *residual = (_fidelity(model, reference, level) for level in levels)
    if not residual:
        return Sample(anchor, anchor, anchor.accepted)
    return Sample(anchor, residual[0], _kept(model, reference, levels, anchor, residual[0]))


def _fidelity(model: Model, reference: Reference, level: Level) -> Fidelity:
    answer, kv = reference.answer, from_pages(level.kv, model.kv_heads)
    context = continued(model, reference, kv)
    logits = model.extend(context, [reference.prompt[-1], *answer.tokens[:-1]], len(answer.tokens))
    choices = tuple(logits.argmax(-1).tolist())
    exact, found = answer.logits.log_softmax(-1), logits.log_softmax(-1)
    outputs = attention_outputs(model, torch.cat([kv, reference.written], dim=3), answer.queries)
    error = (outputs - reference.outputs).square().sum(dim=(1, 2, 3))
    return Fidelity(
        choices=choices,
        accepted=accepted_prefix(choices, answer.tokens),
        vnmse=float((error / reference.outputs.square().sum(dim=(1, 2, 3))).mean()),
        kl=float((exact.exp() * (exact - found)).sum(-1).mean()),
        bits=level.bits,
    )


def _kept(model: Model, reference: Reference, levels: list[Level], anchor: Fidelity, full: Fidelity) -> int:
    """Drafts on the anchor that the full level confirms, which itself may leave the exact answer."""
    tokens, at = reference.answer.tokens, min(anchor.accepted, full.accepted)
    apart = anchor.accepted != full.accepted or at == len(tokens) or anchor.choices[at] != full.choices[at]
    if apart:
        return at
    # Both leave the exact answer at one place with one token: follow the full level from there.
    text = [*reference.prompt, *tokens[:at], full.choices[at]]
    anchor_context, full_context = (
        continued(model, reference, from_pages(level.kv, model.kv_heads)) for level in levels
    )
    behind = text[len(reference.prompt) - 1 : -1]
    model.extend(anchor_context, behind, 1)
    model.extend(full_context, behind, 1)
    left = len(tokens) - at - 1
    if not left:
        return at + 1
    answer = greedy(model, full_context, text, left)
    logits = model.extend(anchor_context, [text[-1], *answer.tokens[:-1]], left)
    return at + 1 + accepted_prefix(logits.argmax(-1).tolist(), answer.tokens)

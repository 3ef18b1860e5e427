"""What a prompt gives without any codec: its exact KV, its greedy answer, and what was attended to on the way."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lynx.evaluate.model import Context, Model, attention
from lynx.speculate import accepted_prefix

LOOKED_UP = 7
"""Tokens guessed at a time while the reference answer is made; a pass of 8 costs little more than one of 1."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy continuation.

    Args:
        tokens: ids; written on past the model's end-of-text.
        logits: ``[len(tokens), vocabulary]``, row ``i`` chose token ``i``.
        queries: ``[layers, heads, len(tokens), head_size]``, the queries behind each row.
    """

    tokens: tuple[int, ...]
    logits: Tensor
    queries: Tensor


@dataclass(frozen=True, slots=True)
class Reference:
    """One prompt on exact KV.

    Args:
        prompt: all token ids of the prompt.
        kv: ``[layers, 2, kv_heads, len(prompt) - 1, head_size]``, bfloat16-valued: what travels. The decode
            instance computes the last prompt token itself.
        written: ``[layers, 2, kv_heads, len(answer), head_size]``, KV of that token and the answer.
        queries: ``[layers, heads, n, head_size]`` of the last tokens in ``kv``, at prefill.
        answer: the greedy answer.
        outputs: ``[layers, heads, len(answer), head_size]``, attention outputs of the answer's queries.
    """

    prompt: tuple[int, ...]
    kv: Tensor
    written: Tensor
    queries: Tensor
    answer: Answer
    outputs: Tensor


def greedy(model: Model, context: Context, text: Sequence[int], count: int) -> Answer:
    """Write ``count`` tokens after ``text``, whose last token is not in ``context`` yet.

    Long prompts are quoted from, so the tokens that followed the same two tokens before are tried several at a
    time; a wrong guess is taken back. The answer is that of one token at a time.
    """
    text, start = list(text), len(text)
    logits: list[Tensor] = []
    queries: list[Tensor] = []
    while len(text) - start < count:
        guess = _looked_up(text, min(LOOKED_UP, count - (len(text) - start) - 1))
        rows = model.extend(context, [text[-1], *guess], len(guess) + 1)
        chosen = rows.argmax(-1).tolist()
        kept = accepted_prefix(guess, chosen) + 1
        context.tokens -= len(chosen) - kept
        text += chosen[:kept]
        logits.append(rows[:kept])
        queries.append(context.queries[:, :, -len(chosen) :][:, :, :kept].clone())
    return Answer(tuple(text[start:]), torch.cat(logits), torch.cat(queries, dim=2))


def _looked_up(text: list[int], most: int) -> list[int]:
    """Up to ``most`` tokens that followed the latest earlier place of the last two; none if there is none."""
    for at in range(len(text) - 2, 1, -1):
        if text[at - 2 : at] == text[-2:]:
            return text[at : at + most]
    return []


def make_reference(model: Model, prompt: Sequence[int], count: int) -> Reference:
    """Prefill ``prompt``, round its KV to bfloat16 as an engine keeps it, and answer from that."""
    tokens = len(prompt) - 1
    context = model.room(len(prompt) + count)
    model.extend(context, prompt, 1)
    queries = context.queries[:, :, :-1].clone()
    context.tokens = tokens
    context.kv[:, :, :, :tokens] = context.kv[:, :, :, :tokens].bfloat16().float()
    answer = greedy(model, context, prompt, count)
    kv = context.kv[:, :, :, : context.tokens]
    outputs = attention_outputs(model, kv, answer.queries)
    return Reference(tuple(prompt), kv[:, :, :, :tokens], kv[:, :, :, tokens:], queries, answer, outputs)


def attention_outputs(model: Model, kv: Tensor, queries: Tensor) -> Tensor:
    """Attention outputs of the last tokens' queries in every layer: ``[layers, heads, n, head_size]``."""
    return torch.stack([attention(queries[layer], kv[layer], model.scaling) for layer in range(model.layers)])


def continued(model: Model, reference: Reference, kv: Tensor) -> Context:
    """A context that holds ``kv`` in place of the reference's, with room for the answer."""
    context = model.room(len(reference.prompt) + len(reference.answer.tokens))
    context.tokens = kv.shape[3]
    context.kv[:, :, :, : context.tokens] = kv
    return context

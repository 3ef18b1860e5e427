"""`lynx eval`: codecs on real prompts without a network; prints a table, writes JSON and a page."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lynx import codec as codecs
from lynx import model as models
from lynx import report
from lynx.errors import BadInput
from lynx.evaluate import figures, picture
from lynx.evaluate.measure import Sample, measure
from lynx.evaluate.model import Model
from lynx.evaluate.reference import make_reference
from lynx.importance import DEFAULT_SHARE
from lynx.report import Row
from lynx.speculate import MAX_DRAFTS
from lynx.texts import long_prompts

Say = Callable[[str], None]


def evaluate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    *,
    codec: Sequence[str] = (),
    drafts: int = MAX_DRAFTS,
    early_share: float = DEFAULT_SHARE,
    say: Say = lambda _: None,
) -> list[Row]:
    """Rows of the table, one a codec.

    Args:
        model: as loaded.
        prompts: token ids of each prompt, at least 2 each.
        codec: names; empty means all.
        drafts: tokens of each answer, at least 1.
        early_share: share of tokens whose residual travels in the anchor.
        say: takes a line of progress.

    Raises:
        BadInput: a name is unknown or a prompt does not fit the model's context.
    """
    chosen = {name: codecs.by_name(name) for name in codec or codecs.names()}
    if drafts < 1:
        raise BadInput(f"drafts is {drafts}; it must be at least 1")
    longest = max(len(prompt) for prompt in prompts)
    if longest + drafts > model.limit:
        raise BadInput(
            f"prompts have up to {longest} tokens and answers {drafts}, but the model's context is "
            f"{model.limit} tokens; use fewer --tokens"
        )
    samples: dict[str, list[Sample]] = {name: [] for name in chosen}
    for number, prompt in enumerate(prompts, 1):
        begun = time.monotonic()
        for name, sample in measure(
            model, make_reference(model, prompt, drafts), chosen, early_share
        ).items():
            samples[name].append(sample)
        kept = " ".join(f"{name} {of[-1].kept}" for name, of in samples.items())
        say(f"prompt {number}/{len(prompts)}, {time.monotonic() - begun:.0f} s, accepted: {kept}")
    return [
        figures.row(name, of, prompts=len(prompts), tokens=longest, drafts=drafts, early_share=early_share)
        for name, of in samples.items()
    ]


def main(
    model: str = models.DEFAULT_MODEL,
    *,
    codec: Sequence[str] = (),
    prompts: int = 24,
    tokens: int = 2048,
    drafts: int = MAX_DRAFTS,
    early_share: float = DEFAULT_SHARE,
    json: Path | None = None,
    html: Path | None = None,
    say: Say = print,
) -> list[Row]:
    """Evaluate codecs on long prompts made from this machine's own texts, and print the table.

    Args:
        model: default model's name, a Hugging Face directory, or owner/name.
        codec: names; empty means all.
        prompts: how many prompts.
        tokens: tokens of each prompt.
        drafts: drafted tokens after each prompt.
        early_share: share of tokens whose residual travels in the anchor, 0 to 1.
        json: where to write schema 1 (see `lynx.report`).
        html: where to write the page.
        say: takes a line of output.

    Raises:
        BadInput: an argument cannot be used; the message says what would do.
    """
    for name in codec:
        codecs.by_name(name)
    if not 0 <= early_share <= 1:
        raise BadInput(f"early share is {early_share}; it must be 0 to 1")
    network, tokenizer = Model.load(models.ensure(model, say))
    texts = [prompt.token_ids for prompt in long_prompts(tokenizer, tokens, prompts)]
    rows = evaluate(network, texts, codec=codec, drafts=drafts, early_share=early_share, say=say)
    say(figures.table(rows))
    if json is not None:
        report.write(json, rows, model=models.name_of(model, Path(model)))
        say(f"figures: {json}")
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(picture.page(rows, f"Codecs on {Path(model).name}"), encoding="utf-8")
        say(f"page: {html}")
    return rows

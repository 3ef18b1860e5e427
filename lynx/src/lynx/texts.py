"""Long real prompts without a network: what measurements, benchmarks and the demonstration ask the model.

The documents are those that a machine already has: the licence texts that every Debian carries in
``/usr/share/common-licenses`` and the language reference inside Python (``pydoc_data.topics``). Nothing of
them is copied into this package. A prompt is an excerpt of one document and a question whose answer is
long. The same machine gives the same prompts every time; another Python version may word its topics
differently. This module knows no model, only how to count tokens.
"""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Protocol

from lynx.errors import BadInput

LICENCES = Path("/usr/share/common-licenses")

_LICENCE_QUESTIONS = (
    "Explain to a small company, point by point and in detail, "
    "what it must do when it distributes such a work.",
    "Write a detailed summary of this text, one paragraph for each of its sections.",
    "What may the reader of this text do, and what may he not do? Explain every point at length.",
    "Write a long letter that explains this text to a friend who is not a lawyer, "
    "with an example for each rule.",
    "List the most important terms of this text and explain in detail what each of them means.",
)
_REFERENCE_QUESTIONS = (
    "Write a tutorial for a beginner about what this text describes, with a worked example for each idea.",
    "Write a detailed summary of this text, one paragraph for each of its sections.",
    "Which mistakes can a programmer make with what this text describes? Explain each of them at length.",
    "List the most important rules of this text and explain in detail what each of them means.",
    "Explain to a colleague, step by step and in detail, how the things in this text work together.",
)


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """One document excerpt and a question about it.

    Args:
        title: name of the document.
        question: what is asked.
        content: the user's message: excerpt, then question.
        token_ids: the message as the model's chat template renders it, ready to be answered.
    """

    title: str
    question: str
    content: str
    token_ids: tuple[int, ...]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation in the form that a chat endpoint takes."""
        return [{"role": "user", "content": self.content}]


@dataclass(frozen=True, slots=True)
class _Document:
    title: str
    text: str
    questions: tuple[str, ...]


def long_prompts(tokenizer: Tokenizer, tokens: int, count: int) -> list[Prompt]:
    """Make ``count`` different prompts of just under ``tokens`` tokens each.

    Args:
        tokenizer: the model's; one without a chat template gets plain text.
        tokens: most tokens of a prompt, chat template included, at least 256; all but the last few are used.
        count: prompts, at least 1. Documents are cut into excerpts that do not overlap, licence and language
            reference in turn; when all are used up the excerpts come again with other questions.

    Raises:
        BadInput: ``tokens`` or ``count`` is too small, or ``count`` is more than the documents give.
    """
    if tokens < 256:
        raise BadInput(f"tokens is {tokens}; a long prompt has at least 256")
    if count < 1:
        raise BadInput(f"count is {count}; ask for at least 1 prompt")
    excerpts: list[tuple[_Document, str]] = []
    prompts: list[Prompt] = []
    for document, start in _turns(tokenizer, tokens):
        excerpts.append((document, start))
        prompts.append(_fit(tokenizer, tokens, document, start, len(excerpts) - 1))
        if len(prompts) == count:
            return prompts
    for again in range(1, 5):
        for at, (document, start) in enumerate(excerpts):
            prompts.append(_fit(tokenizer, tokens, document, start, at + again))
            if len(prompts) == count:
                return prompts
    raise BadInput(
        f"count is {count}; this machine's documents give {len(prompts)} prompts of {tokens} tokens"
    )


def _turns(tokenizer: Tokenizer, tokens: int) -> Iterator[tuple[_Document, str]]:
    """All excerpts, kinds of document in turn, the first of every document before the second of any."""
    kinds = [list(_excerpts(kind, tokenizer, tokens)) for kind in (_licences(), _reference())]
    ordered = [[pair for layer in zip_longest(*kind) for pair in layer if pair] for kind in kinds]
    return (pair for pair in chain.from_iterable(zip_longest(*ordered)) if pair)


def _excerpts(
    documents: Sequence[_Document], tokenizer: Tokenizer, tokens: int
) -> Iterator[list[tuple[_Document, str]]]:
    """For each document its excerpts, each starting at a paragraph and long enough for a whole prompt."""
    for document in documents:
        size = len(tokenizer.encode(document.text, add_special_tokens=False))
        chars = int(tokens * len(document.text) / size * 1.02)  # a little more than the prompt will hold
        found, at = [], 0
        while len(document.text) - at >= chars:
            found.append((document, document.text[at : at + chars + 2000]))
            at = document.text.find("\n\n", at + chars) + 2
            if at < 2:
                break
        if found:
            yield found


def _fit(tokenizer: Tokenizer, tokens: int, document: _Document, start: str, turn: int) -> Prompt:
    """The prompt with as many of the excerpt's lines, then words, as fit."""
    question = document.questions[turn % len(document.questions)]
    words = start.split(" ")
    low, high = 0, len(words)
    while low < high:  # most words that fit
        middle = (low + high + 1) // 2
        if len(_render(tokenizer, _content(words[:middle], question))) <= tokens:
            low = middle
        else:
            high = middle - 1
    if not low:
        raise BadInput(f"tokens is {tokens}; the chat template alone needs more, use a larger number")
    content = _content(words[:low], question)
    return Prompt(document.title, question, content, tuple(_render(tokenizer, content)))


def _content(words: list[str], question: str) -> str:
    return f"Here is an excerpt of a document.\n\n{' '.join(words)}\n\n{question}"


def _render(tokenizer: Tokenizer, content: str) -> list[int]:
    if getattr(tokenizer, "chat_template", None) is None:
        return tokenizer.encode(f"{content}\n\nAnswer:", add_special_tokens=True)
    chat = [{"role": "user", "content": content}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


def _licences() -> list[_Document]:
    """Licence texts by name, links between them left out; none where the folder is missing."""
    if not LICENCES.is_dir():
        return []
    files = sorted(file for file in LICENCES.iterdir() if file.is_file() and not file.is_symlink())
    return [
        _Document(file.name, file.read_text(encoding="utf-8", errors="replace").strip(), _LICENCE_QUESTIONS)
        for file in files
    ]


def _reference() -> list[_Document]:
    """Chapters of Python's language reference, longest first."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    chapters = sorted(topics.values(), key=lambda text: (-len(text), text))
    return [
        _Document(text.strip().split("\n", 1)[0], text.strip(), _REFERENCE_QUESTIONS) for text in chapters
    ]

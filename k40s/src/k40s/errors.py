"""Every error that k4.0s raises, as one tree.

A message is one sentence: which field, what was found, what would do. Expected outcomes of a question
(may this job run here?) are values (`Verdict`, `Refusal`), never exceptions.

K40sError
├── BadInput            the caller's value cannot be used (exit code 2, HTTP 400)
│   └── InvalidManifest one or more fields of a manifest, each named with path, value and remedy
├── NotFound            no object of that kind and name (exit code 1, HTTP 404)
├── Conflict            the object or resource is held or changed by someone else (HTTP 409)
├── Unsupported         this machine lacks what the job needs; found out and said before anything runs
├── EffectFailed        the kernel or a tool refused an effect that the machine claims to support
└── Unreachable         the daemon or a peer does not answer
"""

from collections.abc import Sequence
from dataclasses import dataclass


class K40sError(Exception):
    """Root of the tree; never raised itself."""


class BadInput(K40sError):
    """The caller's value cannot be used."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a manifest: where, what was found, what would do."""

    path: str
    """Dotted path from the document's root, e.g. `spec.containers[0].tasks[1].period`; may be empty."""
    found: str
    """The value as the user wrote it, shortened."""
    remedy: str
    """What would do, as the second half of a sentence."""
    document: str = ""
    """Which document of the file, e.g. `document 2 (CriticalJob/loop)`."""

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.document, self.path) if part) or "manifest"
        return f"{where}: {self.found}; {self.remedy}"


class InvalidManifest(BadInput):
    """One or more fields of a manifest cannot be used; `problems` has one entry for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class NotFound(K40sError):
    """No object of that kind and name."""


class Conflict(K40sError):
    """The object or resource is held, or was changed, by someone else."""


class Unsupported(K40sError):
    """This machine lacks what the job needs."""


class EffectFailed(K40sError):
    """The kernel or a tool refused an effect that the machine claims to support."""


class Unreachable(K40sError):
    """The daemon or a peer does not answer."""

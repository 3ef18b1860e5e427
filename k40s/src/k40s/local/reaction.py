"""How far the reaction to trouble has gone on this node. Nothing reacts yet: it needs the ladder of `reconcile`."""

from __future__ import annotations

from dataclasses import dataclass

from k40s.api import Level


@dataclass(slots=True)
class Reaction:
    """The node's mode."""

    mode: Level = Level.LO

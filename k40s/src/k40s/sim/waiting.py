"""Jobs that are not placed, kept by kind: where one job of a kind finds no room, its equals need not be asked."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from k40s.api.level import Level


@dataclass(slots=True)
class Waiting:
    """Who waits: first come, first served within a kind, and kinds in order of criticality."""

    kinds: dict[tuple[int, str], dict[str, None]] = field(default_factory=dict)
    """By criticality, the highest first, and by what the jobs ask for; each job once, in order of coming."""
    kind_of: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, job: str, level: Level, asks: str) -> None:
        """A job waits; `asks` is equal for jobs that only differ by name."""
        kind = (-level, asks)
        self.kind_of[job] = kind
        self.kinds.setdefault(kind, {})[job] = None

    def drop(self, job: str) -> None:
        """It waits no more; nothing happens if it did not."""
        if (kind := self.kind_of.pop(job, None)) is not None:
            del self.kinds[kind][job]
            if not self.kinds[kind]:
                del self.kinds[kind]

    def __contains__(self, job: str) -> bool:
        return job in self.kind_of

    def __len__(self) -> int:
        return len(self.kind_of)

    def __iter__(self) -> Iterator[str]:
        return iter(self.kind_of)

    def by_level(self) -> dict[str, int]:
        """How many wait, by criticality."""
        counts: Counter[str] = Counter()
        for (minus_level, _), jobs in self.kinds.items():
            counts[Level(-minus_level).name] += len(jobs)
        return {level.name: counts[level.name] for level in Level}

"""Stage 1: is a number bad, or on its way to it? One step for each sample, state in and state out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Threshold:
    """An alarm at or above `raise_at` that lasts `hold_ns`, cleared below `clear_at`; in between nothing changes."""

    raise_at: int
    clear_at: int
    hold_ns: int = 0

    def __post_init__(self) -> None:
        if self.clear_at > self.raise_at:
            raise ValueError(f"clear_at {self.clear_at} must not exceed raise_at {self.raise_at}")

    def step(self, state: ThresholdState, at_ns: int, value: int) -> ThresholdState:
        """The state after a sample. Time that goes back counts as none."""
        if value < self.clear_at:
            return ThresholdState()
        if state.alarmed:
            return state
        if value < self.raise_at:
            return replace(state, above_since_ns=None)
        since_ns = at_ns if state.above_since_ns is None else min(state.above_since_ns, at_ns)
        return ThresholdState(since_ns, alarmed=at_ns - since_ns >= self.hold_ns)


@dataclass(frozen=True, slots=True)
class ThresholdState:
    """Since when a value has been at or above `raise_at`, and whether that is an alarm."""

    above_since_ns: int | None = None
    alarmed: bool = False


@dataclass(frozen=True, slots=True)
class Trend:
    """Whether a number will reach `limit` within `horizon_ns`, by the line of least squares through its last samples.

    Needs `least` samples, and a line that explains at least half of their variance, so that noise raises nothing.
    """

    limit: int
    horizon_ns: int
    least: int = 6

    def reaches_limit_in_ns(self, samples: Sequence[tuple[int, int]]) -> int | None:
        """Nanoseconds from the last sample until the limit, 0 when it is passed; None when it is not in sight.

        `samples` are (time, value), oldest first.
        """
        if samples and samples[-1][1] >= self.limit:
            return 0
        if len(samples) < self.least:
            return None
        count = len(samples)
        mean_at = sum(at for at, _ in samples) / count
        mean_value = sum(value for _, value in samples) / count
        spread_at = sum((at - mean_at) ** 2 for at, _ in samples)
        spread_value = sum((value - mean_value) ** 2 for _, value in samples)
        together = sum((at - mean_at) * (value - mean_value) for at, value in samples)
        if spread_at == 0 or together <= 0 or together**2 < 0.5 * spread_at * spread_value:
            return None
        slope = together / spread_at
        left_ns = round((self.limit - mean_value) / slope + mean_at - samples[-1][0])
        return max(0, left_ns) if left_ns <= self.horizon_ns else None

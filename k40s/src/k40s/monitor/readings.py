"""Counters into readings: rates in parts per million, as the node's assurance takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from k40s.assurance.evidence import Measured, Reading, Unknown

PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters of one metric at one time, by core, container or device (`""` for the machine)."""

    at_ns: int
    values: Mapping[str, int]


def ratio_ppm(part: int, whole: int) -> int:
    """Part of a whole in millionths, kept within 0..1e6; 0 of nothing."""
    return max(0, min(PPM, part * PPM // whole)) if whole > 0 else 0


def change(before: Counted | None, now: Counted | None) -> tuple[int, int] | None:
    """Sum of changes and nanoseconds between two readings; None without two, or when time did not pass.

    A counter that went back began anew: it counts from zero.
    """
    if before is None or now is None or now.at_ns <= before.at_ns:
        return None
    total = sum(
        value - old if value >= (old := before.values.get(key, value)) else value
        for key, value in now.values.items()
    )
    return total, now.at_ns - before.at_ns


def rate(before: Counted | None, now: Counted | None, unit_ns: int, what: str, shares: int = 1) -> Reading:
    """Time spent (in units of `unit_ns`) as a part of the time passed on `shares` cores or containers."""
    changed = change(before, now)
    if changed is None:
        return Unknown(f"{what}: not read twice yet")
    spent, passed_ns = changed
    ppm = ratio_ppm(spent * unit_ns, passed_ns * max(1, shares))
    return Measured(ppm, f"{ppm / 10_000:.2f} % of {passed_ns / 1e9:.1f} s")


def count(before: Counted | None, now: Counted | None, what: str) -> Reading:
    """Events between two readings."""
    changed = change(before, now)
    if changed is None:
        return Unknown(f"{what}: not read twice yet")
    events, passed_ns = changed
    return Measured(max(0, events), f"{events} in {passed_ns / 1e9:.1f} s")

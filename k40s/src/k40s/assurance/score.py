"""From evidence to a score: (alpha + beta + gamma) / 20, its level, and the reason for every point.

Points are integers in thousandths, so that placement and the daemon reach the same decision on every machine.
Gamma is the over-commit points scaled by what is measured: the product of one factor for each signal, 1 while
the reading is good and 1 - severity once it is bad. Harm acts at once and is forgotten with the policy's
half-life; a level falls at once and rises only after the score has held clear of the threshold for the
policy's hold time. Time is handed in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from k40s.api.level import Level
from k40s.api.policy import AssurancePolicySpec, Signal
from k40s.assurance.evidence import Absent, Evidence, Measured, Present, Unknown
from k40s.assurance.overcommit import RULES, Amounts, Load, overcommit_points, rules_held

MOST_MILLIPOINTS = 20_000
"""A score of 1."""
PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """What one piece of evidence gives: `points` and `most` in thousandths of a point."""

    part: str
    """alpha, beta, gamma (over-commit) or scale (a signal; its points are what it leaves of gamma, per
    thousand)."""
    name: str
    points: int
    most: int
    found: str
    why: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What one assessment hands to the next; the empty one is the start."""

    harm_ppm: Mapping[str, int] = field(default_factory=dict)
    """How bad each signal still counts, 0 (good) to a million (bad)."""
    level: Level = Level.NO
    rising_since_ns: int | None = None
    """Since when the score has been clear of the next level's threshold."""
    at_ns: int | None = None
    """Time of the last assessment."""


@dataclass(frozen=True, slots=True)
class Assurance:
    """A node's assurance at one time."""

    alpha: int
    beta: int
    gamma: int
    """Thousandths of a point."""
    overcommit: int
    """Thousandths of a point, before scaling."""
    scale_ppm: int
    """What the run-time evidence leaves of the over-commit points."""
    level: Level
    lines: tuple[Line, ...]

    @property
    def millipoints(self) -> int:
        """0 to 20,000."""
        return self.alpha + self.beta + self.gamma

    @property
    def score(self) -> Fraction:
        """0 to 1."""
        return Fraction(self.millipoints, MOST_MILLIPOINTS)


def millipoints_for(floor: Fraction) -> int:
    """Fewest thousandths of a point whose score is at least `floor`, in [0, 1]."""
    return -(-floor.numerator * MOST_MILLIPOINTS // floor.denominator)


def gamma_millipoints(points: int, scale_ppm: int) -> int:
    """Over-commit points (whole ones, 0 to 10) as scaled by run-time evidence, in thousandths."""
    return points * 1000 * scale_ppm // PPM


def assess(
    evidence: Evidence,
    load: Load,
    capacity: Amounts,
    policy: AssurancePolicySpec,
    memory: Memory = Memory(),
    now_ns: int = 0,
) -> tuple[Assurance, Memory]:
    """The assurance now, and what to remember for the next time. `now_ns` is monotonic; a step back counts as
    no time."""
    alpha = _capability_lines("alpha", policy.weights.alpha, evidence)
    beta = _capability_lines("beta", policy.weights.beta, evidence)
    commit = tuple(
        Line("gamma", f"overcommit-{number}", points * 1000 * holds, points * 1000, _yes(holds), words)
        for number, ((points, words), holds) in enumerate(
            zip(RULES, rules_held(load, capacity), strict=True), start=1
        )
    )
    harm = _harm_now(evidence, policy, memory, now_ns)
    scale_ppm, scale_lines = _scale(evidence, policy.signals, harm)
    points = overcommit_points(load, capacity)
    assurance = Assurance(
        alpha=sum(line.points for line in alpha),
        beta=sum(line.points for line in beta),
        gamma=gamma_millipoints(points, scale_ppm),
        overcommit=points * 1000,
        scale_ppm=scale_ppm,
        level=Level.NO,
        lines=(*alpha, *beta, *commit, *scale_lines),
    )
    level, rising_since_ns = _level(assurance.score, policy, memory, now_ns)
    return replace(assurance, level=level), Memory(harm, level, rising_since_ns, now_ns)


def _yes(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def _capability_lines(part: str, weights: Mapping[str, float], evidence: Evidence) -> tuple[Line, ...]:
    lines = []
    for name, points in weights.items():
        most = round(points * 1000)
        match evidence.capability(name):
            case Present(found):
                lines.append(Line(part, name, most, most, found, "present"))
            case Absent(found):
                lines.append(Line(part, name, 0, most, found, "absent"))
            case Unknown(reason):
                lines.append(Line(part, name, 0, most, f"unknown: {reason}", "unknown counts as absent"))
    return tuple(lines)


def _harm_of(signal: Signal, value: int) -> int:
    """0 up to `good`, a million from `bad` on, linear between."""
    above = min(max(0, value - signal.good), signal.bad - signal.good)
    return above * PPM // (signal.bad - signal.good)


def _harm_now(evidence: Evidence, policy: AssurancePolicySpec, memory: Memory, now_ns: int) -> dict[str, int]:
    """Fresh harm, or what is left of old harm, whichever is more."""
    passed_ns = 0 if memory.at_ns is None else max(0, now_ns - memory.at_ns)
    left = 0.5 ** (passed_ns / policy.hysteresis.half_life_ns)
    harm = {}
    for name, signal in policy.signals.items():
        reading = evidence.reading(name)
        fresh = _harm_of(signal, reading.value) if isinstance(reading, Measured) else PPM
        harm[name] = max(fresh, int(memory.harm_ppm.get(name, 0) * left))
    return harm


def _scale(
    evidence: Evidence, signals: Mapping[str, Signal], harm: Mapping[str, int]
) -> tuple[int, tuple[Line, ...]]:
    scale = PPM
    lines = []
    for name, signal in signals.items():
        severity_ppm = signal.severity.numerator * PPM // signal.severity.denominator
        kept = PPM - severity_ppm * harm[name] // PPM
        scale = scale * kept // PPM
        rule = f"good up to {signal.good}, bad from {signal.bad}; bad leaves {1000 - severity_ppm // 1000} of 1000"
        match evidence.reading(name):
            case Measured(value, found):
                lines.append(Line("scale", name, kept // 1000, 1000, found or str(value), rule))
            case Unknown(reason):
                shown = f"unknown: {reason}"
                lines.append(Line("scale", name, kept // 1000, 1000, shown, "unknown counts as bad"))
    return scale, tuple(lines)


def _level(
    score: Fraction, policy: AssurancePolicySpec, memory: Memory, now_ns: int
) -> tuple[Level, int | None]:
    """Falls at once; rises one level at a time, after the score has been clear of it for the hold time."""
    thresholds = {Level.LO: policy.thresholds.lo, Level.HI: policy.thresholds.hi}
    earned = max((level for level, floor in thresholds.items() if score >= floor), default=Level.NO)
    if memory.at_ns is None:
        return earned, None
    if earned < memory.level:
        return earned, None
    if earned == memory.level or score < thresholds[Level(memory.level + 1)] + policy.hysteresis.rise:
        return memory.level, None
    since_ns = now_ns if memory.rising_since_ns is None else min(memory.rising_since_ns, now_ns)
    if now_ns - since_ns >= policy.hysteresis.hold_ns:
        return Level(memory.level + 1), None
    return memory.level, since_ns


def explain(assurance: Assurance) -> tuple[str, ...]:
    """Every point of the score in words, one line for each, the sum first."""
    head = (
        f"score {float(assurance.score):.3f} ({assurance.level}) = "
        f"(alpha {assurance.alpha / 1000:g} + beta {assurance.beta / 1000:g} + gamma {assurance.gamma / 1000:g}) / 20"
    )
    scaled = (
        f"gamma {assurance.gamma / 1000:g} = over-commit {assurance.overcommit / 1000:g} "
        f"times {assurance.scale_ppm / PPM:.4f}, the product of the scales"
    )
    lines = [head, scaled]
    for line in assurance.lines:
        given = f"{line.points / 1000:g} of {line.most / 1000:g}"
        lines.append(f"{line.part:5} {line.name:24} {given:14} {line.found} ({line.why})")
    return tuple(lines)

"""How likely a job works when its replicas stand on nodes of given assurance.

A node's score is read as the probability that it behaves; nodes fail independently. The number of good
replicas then follows the Poisson-binomial distribution, computed exactly in fractions. Knows nothing of nodes
or jobs.
"""

from collections.abc import Sequence
from fractions import Fraction

from k40s.api.job import RedundancyMode


def at_least(needed: int, probabilities: Sequence[Fraction]) -> Fraction:
    """Probability that `needed` or more of independent events happen; O(n**2)."""
    exactly = [Fraction(1)]  # exactly[k]: probability that k of the events so far happened
    for p in probabilities:
        shifted = [Fraction(0), *(p * q for q in exactly)]
        stayed = [*((1 - p) * q for q in exactly), Fraction(0)]
        exactly = [a + b for a, b in zip(shifted, stayed, strict=True)]
    return sum(exactly[max(0, needed) :], Fraction(0))


def needed_of(mode: RedundancyMode, replicas: int) -> int:
    """How many replicas must be good."""
    return replicas // 2 + 1 if mode is RedundancyMode.MAJORITY else 1


def dependability(mode: RedundancyMode, probabilities: Sequence[Fraction]) -> Fraction:
    """Probability that enough replicas are good."""
    return at_least(needed_of(mode, len(probabilities)), probabilities)

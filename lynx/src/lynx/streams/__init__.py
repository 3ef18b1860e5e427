"""What is sent next: pure, no clock, no IO."""

from lynx.streams.bucket import TokenBucket
from lynx.streams.schedule import Late, Objective, OnTime, Policy, Schedule

__all__ = ["Late", "Objective", "OnTime", "Policy", "Schedule", "TokenBucket"]

"""k4.0s: orchestration of mixed-criticality, real-time containers."""

__version__ = "0.1.0"

"""A token bucket, for machines where the kernel may not be asked to shape: pure, time handed in."""

from lynx.errors import BadInput


class TokenBucket:
    """Lets ``rate_bps`` bits per second through, on average from its start, ``burst_bytes`` at once.

    What is sent is spent afterwards and may overdraw: a burst goes out whole, and the next waits longer.

    Raises:
        BadInput: rate or burst is not positive.
    """

    def __init__(self, rate_bps: int, burst_bytes: int, now_ns: int) -> None:
        if rate_bps < 1 or burst_bytes < 1:
            raise BadInput(f"rate_bps is {rate_bps} and burst_bytes {burst_bytes}; both must be positive")
        self.burst_bytes = burst_bytes
        self._rate_bps = rate_bps
        self._cap = burst_bytes * 8_000_000_000
        self._level = self._cap  # bits x 10^9, so that no rounding is ever lost
        self._at_ns = now_ns

    def wait_ns(self, now_ns: int) -> int:
        """Nanoseconds until something may be sent; 0 = now."""
        self._level = min(self._cap, self._level + (now_ns - self._at_ns) * self._rate_bps)
        self._at_ns = now_ns
        return 0 if self._level > 0 else -(self._level // self._rate_bps) + 1

    def spend(self, count: int) -> None:
        """Note ``count`` bytes sent."""
        self._level -= count * 8_000_000_000

"""The token bucket lets the rate through, on average, whatever the sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx.errors import BadInput
from lynx.streams import TokenBucket


@given(
    st.lists(st.integers(1, 300_000), min_size=1, max_size=100),
    st.integers(10_000, 10**11),
    st.integers(1, 10**6),
)
def test_never_above_the_rate_never_idle_for_nothing(sizes: list[int], rate_bps: int, burst: int) -> None:
    bucket, now_ns, sent = TokenBucket(rate_bps, burst, 0), 0, 0
    for size in sizes:
        now_ns += bucket.wait_ns(now_ns)
        assert bucket.wait_ns(now_ns) == 0, "the wait it asked for was not enough"
        before = sent * 8 * 10**9
        assert before <= now_ns * rate_bps + burst * 8 * 10**9
        bucket.spend(size)
        sent += size
    last = sizes[-1]
    # All but the last burst went out no later than the rate allows, up to a nanosecond a step.
    assert now_ns <= (sent - last) * 8 * 10**9 // rate_bps + len(sizes) + 1


def test_idle_time_is_not_saved_beyond_the_burst() -> None:
    bucket = TokenBucket(8_000_000_000, 1000, 0)
    assert bucket.wait_ns(10**12) == 0
    bucket.spend(1000)
    assert bucket.wait_ns(10**12) == 1


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (1, 0), (-5, 5)])
def test_impossible_rates(rate: int, burst: int) -> None:
    with pytest.raises(BadInput, match="positive"):
        TokenBucket(rate, burst, 0)

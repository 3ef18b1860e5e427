"""Quantities are exact, and their texts come back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k40s.api import quantity

whole = st.integers(0, quantity.LARGEST)
PAIRS = [
    (quantity.parse_duration, quantity.format_duration),
    (quantity.parse_rate, quantity.format_rate),
    (quantity.parse_size, quantity.format_size),
    (quantity.parse_cpu, quantity.format_cpu),
]


@pytest.mark.parametrize(("parse", "write"), PAIRS)
@settings(deadline=None)
@given(value=whole)
def test_every_value_comes_back(parse, write, value: int) -> None:
    assert parse(write(value)) == value


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (quantity.parse_duration, "5ms", 5_000_000),
        (quantity.parse_duration, "2.5us", 2_500),
        (quantity.parse_duration, "1h", 3_600_000_000_000),
        (quantity.parse_rate, "10Mbit", 10_000_000),
        (quantity.parse_rate, "1.5Gbit/s", 1_500_000_000),
        (quantity.parse_size, "64Mi", 67_108_864),
        (quantity.parse_size, "1500", 1500),
        (quantity.parse_cpu, "500m", 500),
        (quantity.parse_cpu, "0.5", 500),
    ],
)
def test_examples(parse, text: str, value: int) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (quantity.parse_duration, "5"),
        (quantity.parse_duration, "0.5ns"),
        (quantity.parse_duration, "-1ms"),
        (quantity.parse_duration, "1e3ms"),
        (quantity.parse_duration, "99999999999h"),
        (quantity.parse_rate, "10Mbps"),
        (quantity.parse_rate, "10"),
        (quantity.parse_size, "64Mo"),
        (quantity.parse_cpu, "0.0001"),
        (quantity.parse_cpu, "²"),
    ],
)
def test_what_is_not_exact_or_not_clear_is_refused(parse, text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        parse(text)

"""Quantities as people write them ("5ms", "10Mbit", "500m", "64Mi"), as exact integers.

Times are nanoseconds, rates bits per second, memory bytes, CPU thousandths of a core. Nothing is rounded: a
text that is not a whole number of the unit is refused. Knows no model and does no IO.
"""

import re
from collections.abc import Mapping
from fractions import Fraction

LARGEST = 2**63 - 1
"""Every quantity fits a signed 64-bit integer, as the kernel's own interfaces do."""

_NUMBER = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,12})?)\s*([A-Za-zµ/]*)")

_TIME_NS: Mapping[str, int] = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_RATE_BPS: Mapping[str, int] = {
    "bit": 1,
    "kbit": 1_000,
    "Mbit": 1_000_000,
    "Gbit": 1_000_000_000,
    "Tbit": 1_000_000_000_000,
}
_SIZE_BYTES: Mapping[str, int] = {
    "": 1,
    "B": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_CPU_MILLI: Mapping[str, int] = {"": 1000, "m": 1}


def _parse(text: str, units: Mapping[str, int], what: str, example: str) -> int:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise ValueError(f"write {what} as a number and a unit ({known}), e.g. {example}")
    exact = Fraction(match[1]) * units[match[2]]
    if exact.denominator != 1:
        raise ValueError(f"write {what} with fewer decimals: it is not a whole number of the smallest unit")
    if exact > LARGEST:
        raise ValueError(f"write a smaller {what}: it does not fit 64 bits")
    return int(exact)


def _format(value: int, units: Mapping[str, int], skip: frozenset[str] = frozenset()) -> str:
    """The shortest exact text: the largest unit that divides the value."""
    for unit, size in sorted(units.items(), key=lambda item: (-item[1], item[0] == "µs")):
        if unit not in skip and value and value % size == 0:
            return f"{value // size}{unit}"
    return f"{value}{min(units, key=lambda unit: (units[unit], unit))}"


def parse_duration(text: str) -> int:
    """Nanoseconds in e.g. "5ms", "2.5us", "1h"; "0" needs no unit. Raises ValueError with the remedy."""
    return 0 if text.strip() == "0" else _parse(text, _TIME_NS, "a duration", '"5ms"')


def format_duration(duration_ns: int) -> str:
    """Inverse of `parse_duration`."""
    return _format(duration_ns, _TIME_NS, frozenset({"µs", "d"})) if duration_ns else "0s"


def parse_rate(text: str) -> int:
    """Bits per second in e.g. "10Mbit", as `tc` writes it ("/s" may follow). Raises ValueError with the
    remedy."""
    bare = text.strip().removesuffix("/s")
    if bare.lower().endswith("bps"):
        raise ValueError(
            'write a rate in bits, e.g. "10Mbit": "bps" means bits to some tools, bytes to others'
        )
    return _parse(bare, _RATE_BPS, "a rate", '"10Mbit"')


def format_rate(rate_bps: int) -> str:
    """Inverse of `parse_rate`."""
    return _format(rate_bps, _RATE_BPS)


def parse_size(text: str) -> int:
    """Bytes in e.g. "64Mi", "1500", "1500B", "1k". Raises ValueError with the remedy."""
    return _parse(text, _SIZE_BYTES, "a size", '"64Mi"')


def format_size(size_bytes: int) -> str:
    """Inverse of `parse_size`; binary units, as memory is counted in them."""
    return _format(size_bytes, _SIZE_BYTES, frozenset({"B", "k", "M", "G", "T"}))


def parse_cpu(text: str) -> int:
    """Thousandths of a core in e.g. "500m", "2", "0.5". Raises ValueError with the remedy."""
    return _parse(text, _CPU_MILLI, "CPU", '"500m" or "2"')


def format_cpu(cpu_milli: int) -> str:
    """Inverse of `parse_cpu`."""
    return _format(cpu_milli, _CPU_MILLI)

"""The three levels, and the labels of safety standards that map onto them.

The same ordered scale serves a job's criticality and a node's assurance: a job of a level asks for a node of
at least that level. A label (SIL, ASIL, DAL) is a name that a user brings along; it maps onto a level and
claims no certification.
"""

import enum
import re
from collections.abc import Mapping


class Level(enum.IntEnum):
    """`NO < LO < HI`."""

    NO = 0
    LO = 1
    HI = 2

    def __str__(self) -> str:
        return self.name


LEVEL_BY_LABEL: Mapping[str, Level] = {
    "SIL 1": Level.LO,
    "SIL 2": Level.LO,
    "SIL 3": Level.HI,
    "SIL 4": Level.HI,
    "QM": Level.NO,
    "ASIL A": Level.LO,
    "ASIL B": Level.LO,
    "ASIL C": Level.HI,
    "ASIL D": Level.HI,
    "DAL E": Level.NO,
    "DAL D": Level.LO,
    "DAL C": Level.LO,
    "DAL B": Level.HI,
    "DAL A": Level.HI,
}
"""IEC 61508 safety integrity levels, ISO 26262 automotive ones, DO-178C design assurance levels."""


def canonical_label(text: str) -> str:
    """Labels "sil3", "SIL-3" and "SIL 3" are one. Raises ValueError with the remedy."""
    match = re.fullmatch(r"(SIL|ASIL|DAL)[\s_-]?([0-9A-E])", text.strip().upper())
    label = f"{match[1]} {match[2]}" if match else text.strip().upper()
    if label not in LEVEL_BY_LABEL:
        raise ValueError(f"use one of {', '.join(LEVEL_BY_LABEL)}")
    return label


def parse_level(value: object) -> Level:
    """A level from its name. Raises ValueError with the remedy."""
    match value:
        case Level():
            return value
        case "NO" | "LO" | "HI":
            return Level[value]
        case False:  # YAML 1.1 reads an unquoted NO as false, and other tools may have written it so
            return Level.NO
        case _:
            raise ValueError('use "NO", "LO" or "HI" (a SIL, ASIL or DAL label goes to criticalityLabel)')


class TrafficType(enum.StrEnum):
    """Traffic types of the IEC/IEEE 60802 industrial profile, most demanding first."""

    ISOCHRONOUS = "isochronous"
    CYCLIC_SYNCHRONOUS = "cyclic-synchronous"
    CYCLIC_ASYNCHRONOUS = "cyclic-asynchronous"
    ALARMS_AND_EVENTS = "alarms-and-events"
    CONFIGURATION_AND_DIAGNOSTICS = "configuration-and-diagnostics"
    NETWORK_CONTROL = "network-control"
    BEST_EFFORT = "best-effort"


PCP_BY_TRAFFIC: Mapping[TrafficType, int] = {
    TrafficType.NETWORK_CONTROL: 7,
    TrafficType.ISOCHRONOUS: 6,
    TrafficType.CYCLIC_SYNCHRONOUS: 5,
    TrafficType.CYCLIC_ASYNCHRONOUS: 4,
    TrafficType.ALARMS_AND_EVENTS: 3,
    TrafficType.CONFIGURATION_AND_DIAGNOSTICS: 2,
    TrafficType.BEST_EFFORT: 0,
}
"""VLAN priority when the flow names none; 7 is served first."""

DSCP_BY_TRAFFIC: Mapping[TrafficType, int] = {
    TrafficType.NETWORK_CONTROL: 48,
    TrafficType.ISOCHRONOUS: 46,
    TrafficType.CYCLIC_SYNCHRONOUS: 40,
    TrafficType.CYCLIC_ASYNCHRONOUS: 32,
    TrafficType.ALARMS_AND_EVENTS: 24,
    TrafficType.CONFIGURATION_AND_DIAGNOSTICS: 16,
    TrafficType.BEST_EFFORT: 0,
}
"""DSCP when the flow names none: EF for isochronous, class selectors for the rest, in the order of their
PCPs."""

"""An assurance as the status of a NodeAssurance object."""

from k40s.api.level import Level
from k40s.api.node import AssurancePart, EvidenceLine, NodeAssuranceStatus
from k40s.assurance.score import Assurance


def to_status(assurance: Assurance, mode: Level = Level.LO, observed_at: str = "") -> NodeAssuranceStatus:
    """The object's status; `observed_at` in RFC 3339. Signals stand among gamma's evidence, as what they
    leave of 1."""
    return NodeAssuranceStatus(
        score=float(assurance.score),
        level=assurance.level,
        alpha=_part(assurance, assurance.alpha, 5, "alpha"),
        beta=_part(assurance, assurance.beta, 5, "beta"),
        gamma=_part(assurance, assurance.gamma, 10, "gamma", "scale"),
        mode=mode,
        observed_at=observed_at,
    )


def _part(assurance: Assurance, millipoints: int, most: int, *parts: str) -> AssurancePart:
    return AssurancePart(
        points=millipoints / 1000,
        most=most,
        evidence=tuple(
            EvidenceLine(
                name=line.name,
                points=line.points / 1000,
                most=line.most / 1000,
                found=line.found,
                why=line.why,
            )
            for line in assurance.lines
            if line.part in parts
        ),
    )

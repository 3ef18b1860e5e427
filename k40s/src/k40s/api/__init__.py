"""The objects that users write and k4.0s keeps: types, manifests, schemas.

    from k40s.api import CriticalJob, load, to_yaml
    (job,) = load(text)

Knows nothing of scheduling, machines or clusters; does no IO (`schema` alone writes files, when run as a
program).
"""

from k40s.api.fields import API_VERSION, Condition, ObjectMeta
from k40s.api.job import (
    Amount,
    Command,
    Container,
    CriticalJob,
    CriticalJobSpec,
    CriticalJobStatus,
    Flow,
    JobPhase,
    Limit,
    Peer,
    Policy,
    Preemption,
    Redundancy,
    RedundancyMode,
    Replica,
    Resources,
    Task,
    TaskStatus,
    Wcet,
    WorkloadPlacement,
)
from k40s.api.level import LEVEL_BY_LABEL, Level, TrafficType
from k40s.api.manifest import Resource, load, to_data, to_json, to_yaml
from k40s.api.node import (
    AssurancePart,
    EvidenceLine,
    NodeAssurance,
    NodeAssuranceSpec,
    NodeAssuranceStatus,
    NodeClass,
    NodeClassSpec,
    NodeLink,
    NodeMatch,
)
from k40s.api.policy import (
    AssurancePolicy,
    AssurancePolicySpec,
    Hysteresis,
    Rung,
    Signal,
    Step,
    Thresholds,
    Weights,
)

__all__ = [
    "API_VERSION",
    "LEVEL_BY_LABEL",
    "Amount",
    "AssurancePart",
    "AssurancePolicy",
    "AssurancePolicySpec",
    "Command",
    "Condition",
    "Container",
    "CriticalJob",
    "CriticalJobSpec",
    "CriticalJobStatus",
    "EvidenceLine",
    "Flow",
    "Hysteresis",
    "JobPhase",
    "Level",
    "Limit",
    "NodeAssurance",
    "NodeAssuranceSpec",
    "NodeAssuranceStatus",
    "NodeClass",
    "NodeClassSpec",
    "NodeLink",
    "NodeMatch",
    "ObjectMeta",
    "Peer",
    "Policy",
    "Preemption",
    "Redundancy",
    "RedundancyMode",
    "Replica",
    "Resource",
    "Resources",
    "Rung",
    "Signal",
    "Step",
    "Task",
    "TaskStatus",
    "Thresholds",
    "TrafficType",
    "Wcet",
    "Weights",
    "WorkloadPlacement",
    "load",
    "to_data",
    "to_json",
    "to_yaml",
]

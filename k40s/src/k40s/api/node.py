"""NodeClass and NodeAssurance: what kind of machine a node is, and how far it can be trusted."""

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from k40s.api.fields import (
    API_VERSION,
    Condition,
    Cpu,
    Duration,
    LevelField,
    Model,
    Name,
    ObjectMeta,
    Rate,
    Ratio,
    Size,
    Text,
    Whole,
)


class NodeLink(Model):
    """A link that every node of the class has."""

    name: Name
    rate_bps: Rate
    propagation_ns: Duration = 0
    """Delay of the wire and of the switch behind it."""


class NodeMatch(Model):
    """How a node of this class is recognised; every given field must hold."""

    cpu_model: Text | None = None
    """Shell pattern over the CPU's model name, e.g. `*EPYC 7*`."""
    architecture: Text | None = None
    kernel: Text | None = None
    """Shell pattern over the kernel release."""
    labels: dict[Text, Text] = Field(default_factory=dict)


class NodeClassSpec(Model):
    """Machines that are alike enough for one WCET to hold on all of them."""

    description: Text = ""
    match: NodeMatch = NodeMatch()
    cores: Annotated[int, Field(strict=True, ge=1, le=4096)]
    real_time_cores: tuple[Whole, ...] | None = None
    """Cores that may carry servers; absent: all of them."""
    real_time_share: Ratio = Fraction(19, 20)
    """Largest share of a core that servers may take together; the rest keeps the kernel alive."""
    memory_bytes: Size
    reserved_cpu_milli: Cpu = 0
    """CPU kept for the system."""
    reserved_memory_bytes: Size = 0
    devices: dict[Text, Whole] = Field(default_factory=dict)
    links: tuple[NodeLink, ...] = ()
    wakeup_latency_ns: Duration = 0
    """Largest delay between a timer and the thread that it wakes, added to every task's jitter."""

    @property
    def server_cores(self) -> tuple[int, ...]:
        """Numbers of the cores that may carry servers."""
        return tuple(range(self.cores)) if self.real_time_cores is None else self.real_time_cores


class NodeClass(Model):
    """A class of machines; WCETs are given per class."""

    api_version: Literal["k40s.dev/v1alpha1"] = API_VERSION
    kind: Literal["NodeClass"] = "NodeClass"
    metadata: ObjectMeta
    spec: NodeClassSpec


class EvidenceLine(Model):
    """One line of the explanation: what was looked at, what was found, what it is worth."""

    name: Name
    """Which evidence, e.g. `ecc-memory`."""
    points: float
    """Points that it gives."""
    most: float
    """Points that it could give."""
    found: Text
    """What was found, as text; `unknown` counts as absent."""
    why: Text
    """The rule, in words."""


class AssurancePart(Model):
    """Alpha, beta or gamma."""

    points: Annotated[float, Field(ge=0, le=10)]
    most: Annotated[float, Field(ge=0, le=10)]
    evidence: tuple[EvidenceLine, ...] = ()


class NodeAssuranceSpec(Model):
    """Which node this is about."""

    node_class: Name
    policy: Name = "default"
    """Name of the AssurancePolicy that scores it."""


class NodeAssuranceStatus(Model):
    """The score, and what it rests on."""

    score: Annotated[float, Field(ge=0, le=1)]
    """(alpha + beta + gamma) / 20."""
    level: LevelField
    alpha: AssurancePart
    """Hardware, 0 to 5."""
    beta: AssurancePart
    """Software, 0 to 5."""
    gamma: AssurancePart
    """What is measured while it runs, 0 to 10."""
    mode: LevelField
    """Mode of the node, LO or HI."""
    conditions: tuple[Condition, ...] = ()
    observed_at: Text = ""
    """RFC 3339."""


class NodeAssurance(Model):
    """How far a node can be trusted; the object has the node's name."""

    api_version: Literal["k40s.dev/v1alpha1"] = API_VERSION
    kind: Literal["NodeAssurance"] = "NodeAssurance"
    metadata: ObjectMeta
    spec: NodeAssuranceSpec
    status: NodeAssuranceStatus | None = None

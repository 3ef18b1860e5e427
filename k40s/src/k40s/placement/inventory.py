"""From API objects to the nodes that placement judges."""

from k40s import api
from k40s.assurance.overcommit import Amounts
from k40s.assurance.score import Assurance
from k40s.placement.snapshot import Node


def node_of(name: str, node_class: api.NodeClass, assurance: Assurance, ready: bool = True) -> Node:
    """A node of a class, with its assurance as assessed. The first link of the class is the one to the switch."""
    spec = node_class.spec
    numbers = spec.server_cores
    link = spec.links[0] if spec.links else None
    return Node(
        name=name,
        node_class=node_class.metadata.name,
        capacity=capacity_of(node_class),
        cores=len(numbers),
        trust=assurance.alpha + assurance.beta,
        scale_ppm=assurance.scale_ppm,
        core_numbers=numbers,
        share=spec.real_time_share,
        wakeup_ns=spec.wakeup_latency_ns,
        labels=dict(node_class.spec.match.labels),
        devices=dict(spec.devices),
        uplink_bps=link.rate_bps if link else None,
        propagation_ns=link.propagation_ns if link else 0,
        ready=ready,
    )


def capacity_of(node_class: api.NodeClass) -> Amounts:
    """CPU and memory for jobs: what the system keeps is taken off."""
    spec = node_class.spec
    return Amounts(
        1000 * spec.cores - spec.reserved_cpu_milli, spec.memory_bytes - spec.reserved_memory_bytes
    )

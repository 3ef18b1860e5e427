"""Policies and affinity: one suite for the kernel's scheduler and the fake one."""

import errno
import subprocess
from collections.abc import Iterator
from typing import TypeAlias

import pytest

from k40s.node.errors import KernelRefused
from k40s.node.scheduling import (
    Deadline,
    FakeScheduling,
    Fifo,
    LinuxScheduling,
    Other,
    Policy,
    RoundRobin,
    Scheduling,
    set_policy_of_all,
)

Subject: TypeAlias = tuple[Scheduling, int]


@pytest.fixture(params=["fake", pytest.param("linux", marks=pytest.mark.root)])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    process = subprocess.Popen(["sleep", "60"])
    if request.param == "fake":
        fake = FakeScheduling()
        fake.add(process.pid)
        yield fake, process.pid
    else:
        yield LinuxScheduling.open(), process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "policy",
    [Fifo(10), RoundRobin(1), Deadline(1_000_000, 5_000_000, 10_000_000), Other(5), Other(-20), Other(0)],
)
def test_a_policy_that_is_set_is_read(subject: Subject, policy: Policy) -> None:
    scheduling, pid = subject
    scheduling.set_policy(pid, policy)
    assert scheduling.policy(pid) == policy


@pytest.mark.parametrize(
    "policy", [Fifo(0), Fifo(100), RoundRobin(0), Deadline(2, 1, 1), Deadline(10**7, 10**6, 10**8)]
)
def test_impossible_policies_are_refused_and_change_nothing(subject: Subject, policy: Policy) -> None:
    scheduling, pid = subject
    with pytest.raises(KernelRefused) as refused:
        scheduling.set_policy(pid, policy)
    assert refused.value.code == errno.EINVAL
    assert scheduling.policy(pid) == Other(0)


def test_cores_that_are_set_are_read(subject: Subject) -> None:
    scheduling, pid = subject
    first = min(scheduling.cores(pid))
    scheduling.set_cores(pid, frozenset({first}))
    assert scheduling.cores(pid) == {first}
    with pytest.raises(KernelRefused):
        scheduling.set_cores(pid, frozenset({4095}))


def test_a_thread_that_is_gone_is_said(subject: Subject) -> None:
    scheduling, _ = subject
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert scheduling.threads(gone.pid) == frozenset()
    set_policy_of_all(scheduling, [gone.pid], Fifo(1))
    for ask in (scheduling.policy, scheduling.cores):
        with pytest.raises(KernelRefused) as refused:
            ask(gone.pid)
        assert refused.value.code == errno.ESRCH


def test_all_threads_of_all_processes_are_set(subject: Subject) -> None:
    scheduling, pid = subject
    set_policy_of_all(scheduling, [pid], RoundRobin(3))
    assert {scheduling.policy(tid) for tid in scheduling.threads(pid)} == {RoundRobin(3)}

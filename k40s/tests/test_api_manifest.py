"""Manifests: what goes in comes out, and every problem is named."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from k40s import api
from k40s.api import Level, load, to_json, to_yaml
from k40s.errors import BadInput, InvalidManifest

ROOT = Path(__file__).resolve().parents[2]
HEAD = "apiVersion: k40s.dev/v1alpha1\nkind: CriticalJob\nmetadata: {name: j}\n"

names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)
times = st.integers(1, 10**12)


@st.composite
def tasks(draw: st.DrawFn, level: Level) -> api.Task:
    lo_ns = draw(times)
    other_ns = draw(st.integers(0, 10**12))
    hi_ns = lo_ns + other_ns if level is Level.HI else min(lo_ns, other_ns)
    return api.Task(
        name=draw(names),
        period_ns=draw(times),
        deadline_ns=draw(st.none() | times),
        jitter_ns=draw(st.integers(0, 10**9)),
        wcet={draw(names): api.Wcet(lo_ns=lo_ns, hi_ns=draw(st.none() | st.just(hi_ns)))},
        priority=draw(st.none() | st.integers(1, 98)),
    )


@st.composite
def flows(draw: st.DrawFn) -> api.Flow:
    return api.Flow(
        name=draw(names),
        peer=api.Peer(job=draw(names)),
        rate_bps=draw(st.integers(1, 10**12)),
        burst_bytes=draw(st.integers(0, 10**9)),
        latency_bound_ns=draw(st.none() | times),
        traffic=draw(st.sampled_from(list(api.TrafficType))),
    )


@st.composite
def criticaljobs(draw: st.DrawFn) -> api.CriticalJob:
    level = draw(st.sampled_from(list(Level)))
    command = api.Command(
        name=draw(names),
        command=tuple(draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3))),
        tasks=tuple(draw(st.lists(tasks(level), max_size=2, unique_by=lambda task: task.name))),
        resources=api.Resources(
            requests=api.Amount(
                cpu_milli=draw(st.integers(0, 10**6)), memory_bytes=draw(st.integers(0, 2**50))
            ),
            degraded_cpu_milli=draw(st.none() | st.integers(0, 10**5)),
        ),
    )
    return api.CriticalJob(
        metadata=api.ObjectMeta(name=draw(names), labels={"a": draw(st.text(max_size=5))}),
        spec=api.CriticalJobSpec(
            criticality=level,
            commands=(command,),
            flows=tuple(draw(st.lists(flows(), max_size=2, unique_by=lambda f: f.name))),
            required_assurance=draw(st.none() | st.fractions(0, 1, max_denominator=1000)),
            on_partition=draw(st.sampled_from(["keep", "stop"])),
        ),
    )


def job_called(name: str) -> api.CriticalJob:
    command = api.Command(name="c", command=("true",))
    return api.CriticalJob(
        metadata=api.ObjectMeta(name=name),
        spec=api.CriticalJobSpec(criticality=Level.NO, commands=(command,)),
    )


@settings(deadline=None, max_examples=40)
@example([job_called("0e0")])  # a number for YAML 1.2, text for YAML 1.1
@given(st.lists(criticaljobs(), min_size=1, max_size=3))
def test_yaml_and_json_give_back_equal_objects(jobs: list[api.CriticalJob]) -> None:
    assert load(to_yaml(*jobs)) == tuple(jobs)
    assert load(to_json(*jobs)) == tuple(jobs)


@settings(deadline=None, max_examples=40)
@given(
    st.text(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    ).map(lambda value: f"{HEAD}spec: {value!r}")
)
def test_any_text_is_read_or_refused_with_problems(text: str) -> None:
    try:
        load(text)
    except InvalidManifest as invalid:
        assert invalid.problems
        assert all(problem.remedy for problem in invalid.problems)


@pytest.mark.parametrize(
    ("spec", "path", "found", "remedy"),
    [
        (
            "{criticality: HIGH, commands: [{name: a, command: [x]}]}",
            "spec.criticality",
            '"HIGH"',
            '"NO", "LO" or "HI"',
        ),
        ("{criticality: HI}", "spec.containers", "missing", "at least one entry"),
        (
            "{criticality: HI, commands: [{name: a, command: [x], tsks: []}]}",
            "spec.commands[0].tsks",
            "[]",
            "did you mean tasks",
        ),
        ("{criticality: HI, commands: [{name: A_b, command: [x]}]}", "spec.commands[0].name", '"A_b"', "a-z"),
        (
            "{criticality: HI, commands: [{name: a, command: []}]}",
            "spec.commands[0].command",
            "[]",
            "at least one",
        ),
        ("{criticality: LO, commands: [{name: a}]}", "spec.commands[0].command", "missing", "add it"),
        (
            "{criticality: LO, containers: [{name: a}]}",
            "spec.containers[0]",
            "",
            "exactly one of image and rootFs",
        ),
        (
            "{criticality: LO, commands: [{name: a, command: [x], tasks: [{name: t, period: 5}]}]}",
            "spec.commands[0].tasks[0].period",
            "5",
            "add a unit",
        ),
        (
            "{criticality: HI, commands: [{name: a, command: [x], "
            "tasks: [{name: t, period: 5ms, wcet: {c: {lo: 2ms, hi: 1ms}}}]}]}",
            "spec.commands[0].tasks[0].wcet.c.hi",
            '"1ms"',
            "at least lo (2ms)",
        ),
        (
            "{criticality: LO, commands: [{name: a, command: [x], "
            "resources: {requests: {cpu: 2}, limits: {cpu: 500m}}}]}",
            "spec.commands[0].resources.limits.cpu",
            '"500m"',
            "at least requests.cpu (2)",
        ),
        (
            "{criticality: NO, commands: [{name: a, command: [x]}], flows: [{name: f, peer: {job: p}, rate: 10Mbps}]}",
            "spec.flows[0].rate",
            '"10Mbps"',
            "bits",
        ),
        ("{criticalityLabel: SIL 9, commands: [{name: a, command: [x]}]}", "spec", "", "SIL 1"),
        (
            "{criticality: LO, criticalityLabel: ASIL D, commands: [{name: a, command: [x]}]}",
            "spec.criticality",
            '"LO"',
            "use HI",
        ),
        (
            "{criticality: NO, commands: [{name: a, command: [x]}, {name: a, command: [x]}]}",
            "spec.commands[1].name",
            '"a"',
            "another name",
        ),
        (
            "{criticality: NO, requiredAssurance: 1.5, commands: [{name: a, command: [x]}]}",
            "spec.requiredAssurance",
            "1.5",
            "0 to 1",
        ),
        (
            "{criticality: NO, redundancy: {replicas: 3}, commands: [{name: a, command: [x]}]}",
            "spec.redundancy.replicas",
            "3",
            "hot-standby",
        ),
    ],
)
def test_a_problem_is_named_with_path_value_and_remedy(spec: str, path: str, found: str, remedy: str) -> None:
    with pytest.raises(InvalidManifest) as raised:
        load(f"{HEAD}spec: {spec}")
    (problem,) = raised.value.problems
    assert problem.path == path
    assert found in problem.found
    assert remedy in problem.remedy
    assert problem.document == "document 1 (CriticalJob/j)"


def test_all_problems_of_all_documents_are_told_at_once() -> None:
    bad = f"{HEAD}spec: {{criticality: X, commands: [{{name: a, command: [x], tasks: [{{name: t, period: 1}}]}}]}}\n"
    with pytest.raises(InvalidManifest) as raised:
        load(f"{bad}---\nkind: Nonsense\n---\n{bad}")
    assert [p.document[:10] for p in raised.value.problems] == ["document 1"] * 2 + ["document 2"] + [
        "document 3"
    ] * 2
    assert isinstance(raised.value, BadInput)


@pytest.mark.parametrize("level", ["NO", '"NO"', "false"])
def test_no_is_a_level_however_yaml_tools_wrote_it(level: str) -> None:
    (job,) = load(f"{HEAD}spec: {{criticality: {level}, commands: [{{name: a, command: [x]}}]}}")
    assert isinstance(job, api.CriticalJob)
    assert job.spec.criticality is Level.NO
    assert "'NO'" in to_yaml(job)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "---\n---\n",
        "a: &x [1]\nb: *x",
        "{a: 1, a: 2}",
        "[" * 5000,
        "a: \x00",
        "!!python/object:os.system {}",
        "1",
        "a: [1",
        "? [1]\n: 2",
    ],
)
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(InvalidManifest):
        load(text)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_valid_and_survive_a_round(path: Path) -> None:
    objects = load(path.read_text())
    assert load(to_yaml(*objects)) == objects


@pytest.mark.parametrize(
    ("label", "level"), [("sil3", Level.HI), ("ASIL-B", Level.LO), ("DAL E", Level.NO), ("qm", Level.NO)]
)
def test_a_label_maps_onto_a_level(label: str, level: Level) -> None:
    (job,) = load(f"{HEAD}spec: {{criticalityLabel: {label}, commands: [{{name: a, command: [x]}}]}}")
    assert isinstance(job, api.CriticalJob)
    assert job.spec.criticality is level

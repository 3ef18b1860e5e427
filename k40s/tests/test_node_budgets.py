"""Real-time bandwidth: any change from any state, on the kernel's and the fake groups."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k40s.node.budgets import RtBudget, free_ppm, read_budget, set_budgets, with_parents
from k40s.node.cgroups import CgroupFiles, Controller, LinuxCgroups, subtree
from k40s.node.errors import KernelRefused
from k40s.node.fakes import FakeCgroups

ROOT = f"/k40s-test-rt-{os.getpid()}"
LEAVES = [f"{ROOT}/{level}/job{number}/main" for level in ("HI", "LO") for number in range(2)]


@pytest.fixture(params=["fake", pytest.param("linux", marks=pytest.mark.root)])
def files(request: pytest.FixtureRequest) -> Iterator[CgroupFiles]:
    files: CgroupFiles = FakeCgroups(ROOT) if request.param == "fake" else LinuxCgroups.open(ROOT)
    for leaf in LEAVES:
        files.make(Controller.CPU, leaf)
    yield files
    for name in subtree(files, Controller.CPU, ROOT):
        files.remove(Controller.CPU, name)


budgets = st.builds(
    lambda period_us, permille: RtBudget(period_us * permille // 1000, period_us),
    st.sampled_from([500, 1000, 2500, 7919, 10_000, 1_000_000]),
    st.integers(0, 150),
)
trees = st.dictionaries(st.sampled_from(LEAVES), budgets)


def check_every_change_is_reached(files: CgroupFiles, changes: list[dict[str, RtBudget]]) -> None:
    for wanted in changes:
        set_budgets(files, wanted)
        for leaf in LEAVES:
            in_force = read_budget(files, leaf)
            expected = wanted.get(leaf)
            assert in_force == expected if expected is not None else in_force.runtime_us == 0


@given(st.lists(trees, max_size=4))
def test_every_change_is_reached_from_every_state(changes: list[dict[str, RtBudget]]) -> None:
    fake = FakeCgroups(ROOT)
    for leaf in LEAVES:
        fake.make(Controller.CPU, leaf)
    check_every_change_is_reached(fake, changes)


def test_changes_of_share_and_period_in_both_directions(files: CgroupFiles) -> None:
    a, b, *_ = LEAVES
    check_every_change_is_reached(
        files,
        [
            {a: RtBudget(100, 1000), b: RtBudget(2000, 10_000)},
            {a: RtBudget(4000, 10_000), b: RtBudget(50, 1000)},
            {a: RtBudget(100, 500)},
            {b: RtBudget(1, 1_000_000)},
            {leaf: RtBudget(100, 3000) for leaf in LEAVES},
            {},
        ],
    )


def test_too_much_is_refused_and_what_was_in_force_stays(files: CgroupFiles) -> None:
    a, b, *_ = LEAVES
    set_budgets(files, {a: RtBudget(100, 1000)})
    free = free_ppm(files)
    with pytest.raises(KernelRefused):
        set_budgets(files, {a: RtBudget(500, 1000), b: RtBudget(960, 1000)})
    assert read_budget(files, a) == RtBudget(100, 1000)
    assert read_budget(files, b).runtime_us == 0
    assert free_ppm(files) == free


def test_what_is_free_counts_what_is_taken(files: CgroupFiles) -> None:
    before = free_ppm(files)
    set_budgets(files, {LEAVES[0]: RtBudget(2, 10)})
    assert before - 200_100 <= free_ppm(files) <= before - 200_000


@given(trees)
def test_a_parent_holds_its_children(wanted: dict[str, RtBudget]) -> None:
    tree = with_parents(wanted, ROOT)
    for group in {*tree} - {*wanted}:
        below = [budget for leaf, budget in wanted.items() if leaf.startswith(group + "/")]
        assert tree[group].share >= sum(budget.share for budget in below)


@pytest.mark.parametrize(("runtime_us", "period_us"), [(2, 1), (-1, 10), (0, 0)])
def test_a_budget_beyond_its_period_is_no_budget(runtime_us: int, period_us: int) -> None:
    with pytest.raises(ValueError, match="runtime must lie"):
        RtBudget(runtime_us, period_us)

import pytest

from lynx.bench import modes
from lynx.bench.compare import Equal, Parted, compare
from lynx.bench.figures import NS, Equality, row, sample
from lynx.errors import BadInput


def record(**changes):
    """Prefill ends at 10 s; two of three drafts are kept."""
    fields = {
        "drafted": [5, 6, 9],
        "draft_ns": [11 * NS, 12 * NS, 13 * NS],
        "verified": [5, 6, 7, 8],
        "verified_ns": [14 * NS, 15 * NS, 15 * NS, 16 * NS],
        "accepted": 2,
        "transfer": {
            "anchor_first_ns": 10 * NS, "anchor_end_ns": 11 * NS, "anchor_bytes": 100,
            "residual_first_ns": 11 * NS, "residual_end_ns": 13 * NS, "residual_bytes": 80,
        },
    }  # fmt: skip
    return fields | changes


def test_kept_drafts_count_when_they_were_drafted_and_others_when_verified():
    one = sample("lynx", 0, 10 * NS, record())
    assert one.drafted_s == (1.0, 2.0, 5.0, 6.0)
    assert one.verified_s == (4.0, 5.0, 5.0, 6.0)
    assert (one.anchor_bytes, one.wire_bytes) == (100, 180)
    assert ("anchor", 0.0, 1.0) in one.phases
    assert ("residual", 1.0, 3.0) in one.phases


def test_without_drafts_both_figures_are_the_same():
    one = sample("int8", 0, 10 * NS, record(drafted=[], draft_ns=[], accepted=0))
    assert one.drafted_s == one.verified_s
    assert all(name != "draft" for name, _, _ in one.phases)


def test_row_is_the_median_with_its_spread():
    samples = [sample("lynx", i, (10 - i) * NS, record()) for i in range(3)]
    figures = row("lynx", samples, Equality(equal=2, ties=1, different=0))
    assert figures["ttft_drafted_s"] == 2.0
    assert (figures["ttft_drafted_s_min"], figures["ttft_drafted_s_max"]) == (1.0, 3.0)
    assert figures["tt32t_verified_s"] is None
    assert (figures["prompts"], figures["accepted_mean"], figures["wire_bytes"]) == (3, 2.0, 180)
    assert (figures["equal"], figures["ties"], figures["different"]) == (2, 1, 0)


def test_equal_answers():
    assert compare([1, 2], [1, 2], [], "float32") == Equal()


@pytest.mark.parametrize(("gap", "tie"), [(0.0, True), (0.0005, True), (0.5, False)])
def test_answers_that_part_are_a_tie_only_at_equal_logits(gap, tie):
    parted = compare([1, 2], [1, 3], [{1: 0.0}, {3: -1.0, 2: -1.0 - gap}], "float32")
    assert parted == Parted(1, 2, 3, -1.0 - gap, -1.0, tie)


def test_unknown_logit_is_no_tie():
    assert compare([2], [3], [{3: -1.0}], "bfloat16") == Parted(0, 2, 3, None, -1.0, tie=False)


def test_answers_of_unequal_length_are_no_tie():
    parted = compare([1], [1, 2], [{1: 0.0}, {2: 0.0}], "float32")
    assert isinstance(parted, Parted)
    assert not parted.tie


def test_unknown_mode_is_named():
    with pytest.raises(BadInput, match="mode is 'fp4'"):
        modes.by_names(["int8", "fp4"])

"""Who is behind an alarm: the one furthest beyond its promise."""

from hypothesis import given
from hypothesis import strategies as st

from k40s.api.level import Level
from k40s.monitor.culprit import Resource, Suspect, find_culprit

suspects = st.lists(
    st.builds(
        Suspect,
        st.sampled_from(["a", "b", "c", "d"]),
        st.just("main"),
        st.sampled_from(Level),
        st.integers(0, 2000),
        st.integers(0, 2000),
    ),
    max_size=6,
)


@given(suspects)
def test_nobody_uses_more_beyond_the_promise_than_the_culprit(found: list[Suspect]) -> None:
    culprit = find_culprit(Resource.CPU, found)
    if culprit is None:
        assert all(suspect.used <= suspect.promised for suspect in found)
    else:
        assert culprit.suspect.excess == max(suspect.excess for suspect in found) > 0
        assert 0 <= culprit.share_percent <= 100


def test_of_equals_the_less_critical_is_named_with_its_numbers() -> None:
    hi, no = Suspect("loop", "main", Level.HI, 900, 100), Suspect("hog", "main", Level.NO, 900, 100)
    culprit = find_culprit(Resource.CPU, [hi, no])
    assert culprit is not None
    assert (
        str(culprit) == "hog/main (NO) uses 900 of cpu and was promised 100: 50 % of all use beyond promises"
    )

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx.errors import BadInput
from lynx.vllm.params import Consume, Draft, Produce, draft_params, offer_key, parse

DECODE = {"role": "decode", "session": "s", "endpoint": "10.0.0.1:7000"}


def test_absent_object_is_no_lynx_request():
    assert parse(None) is None
    assert parse({}) is None
    assert parse({"other": {}}) is None


def test_roles():
    assert parse({"lynx": {"role": "prefill", "session": "s"}}) == Produce("s", None)
    assert parse({"lynx": DECODE}) == Consume("s", "10.0.0.1:7000", True, None, 60.0)
    consume = parse({"lynx": DECODE | {"draft": False, "first_token": 7, "timeout_s": 2}})
    assert consume == Consume("s", "10.0.0.1:7000", False, 7, 2.0)
    assert isinstance(consume, Consume)
    assert parse(draft_params(consume, 12)) == Draft("s", "10.0.0.1:7000", 12, 2.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"role": "both"}, "role"),
        ({"session": ""}, "session"),
        ({"session": 7}, "session"),
        ({"session": "x" * 129}, "session"),
        ({"endpoint": "nowhere"}, "endpoint"),
        ({"endpoint": "host:0"}, "endpoint"),
        ({"endpoint": "host:70000"}, "endpoint"),
        ({"draft": "yes"}, "draft"),
        ({"first_token": -1}, "first_token"),
        ({"first_token": True}, "first_token"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": "soon"}, "timeout_s"),
    ],
)
def test_malformed_field_is_named(change, named):
    with pytest.raises(BadInput, match=rf"kv_transfer_params\.lynx\.{named} "):
        parse({"lynx": DECODE | change})


def test_unknown_codec_is_named():
    with pytest.raises(BadInput, match="nested"):
        parse({"lynx": {"role": "prefill", "session": "s", "codec": "zip"}})


def test_object_of_another_type_is_refused():
    with pytest.raises(BadInput, match="must be an object"):
        parse({"lynx": "decode"})


prompts = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(st.text(max_size=20), prompts, st.text(max_size=20), prompts)
def test_keys_tell_sessions_and_prompts_apart(session, prompt, other_session, other_prompt):
    same = (session, prompt) == (other_session, other_prompt)
    assert (offer_key(session, prompt) == offer_key(other_session, other_prompt)) is same

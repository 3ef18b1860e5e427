"""Event streams cut at their ends, and the events that the router makes itself."""

import json
from http import HTTPStatus

from hypothesis import given
from hypothesis import strategies as st

from lynx.serve.answer import EventSplitter, error_body, error_event, event_data, lynx_event

LINES = st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1)


@given(events=st.lists(LINES, max_size=6), rest=LINES, data=st.data())
def test_events_come_out_whole_however_they_arrive(events: list[str], rest: str, data: st.DataObject) -> None:
    wire = b"".join(f"data: {line}\n\n".encode() for line in events) + rest.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    splitter = EventSplitter()
    found = [
        event
        for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)
        for event in splitter.feed(wire[start:end])
    ]
    assert found == [f"data: {line}\n\n".encode() for line in events]
    assert splitter.rest == rest.encode()


def test_other_line_ends_end_events_too() -> None:
    assert EventSplitter().feed(b"data: 1\r\n\r\ndata: 2\r\rdata: 3\n\n") == [
        b"data: 1\r\n\r\n",
        b"data: 2\r\r",
        b"data: 3\n\n",
    ]


def test_event_data_is_the_object_or_nothing() -> None:
    assert event_data(b'data: {"a": 1}\n\n') == {"a": 1}
    assert event_data(b'event: x\ndata:{"a": 1}\n\n') == {"a": 1}
    for other in (b": comment\n\n", b"data: [DONE]\n\n", b"data: 5\n\n", b"\n\n"):
        assert event_data(other) is None


def test_a_draft_is_a_chunk_without_choices() -> None:
    event = lynx_event("chat", "s1", "m", 12, {"event": "draft", "token_ids": [3], "text": "é"})
    assert EventSplitter().feed(event) == [event]
    assert event_data(event) == {
        "id": "chatcmpl-s1",
        "object": "chat.completion.chunk",
        "created": 12,
        "model": "m",
        "choices": [],
        "lynx": {"event": "draft", "token_ids": [3], "text": "é"},
    }


def test_errors_have_the_stock_servers_shape() -> None:
    assert json.loads(error_body(HTTPStatus.BAD_REQUEST, "m", "p")) == {
        "error": {"message": "m", "type": "BadRequestError", "param": "p", "code": 400}
    }
    assert (
        json.loads(error_body(HTTPStatus.INTERNAL_SERVER_ERROR, "m"))["error"]["type"]
        == "InternalServerError"
    )
    assert error_event(HTTPStatus.BAD_GATEWAY, "m").endswith(b"\n\ndata: [DONE]\n\n")

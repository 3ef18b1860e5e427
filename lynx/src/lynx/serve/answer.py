"""OpenAI-shaped pieces that the router writes itself: errors, and the marked events of drafts. Pure.

A draft travels as a chunk with empty ``choices`` and a ``lynx`` object, which clients that know nothing of it
skip, as they skip the chunk that carries usage::

    data: {..., "choices": [], "lynx": {"event": "draft", "token_ids": [12, 7], "text": " the link"}}
    data: {..., "choices": [], "lynx": {"event": "correction", "accepted": 11}}
"""

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from lynx.serve.plan import Api

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_OBJECTS: dict[Api, str] = {"chat": "chat.completion.chunk", "completions": "text_completion"}
_IDS: dict[Api, str] = {"chat": "chatcmpl", "completions": "cmpl"}


def error_body(status: HTTPStatus, message: str, param: str | None = None) -> bytes:
    """One error in the shape of the stock server's."""
    kind = status.phrase.title().replace(" ", "")
    kind = kind if kind.endswith("Error") else f"{kind}Error"
    return _json({"error": {"message": message, "type": kind, "param": param, "code": int(status)}})


def error_event(status: HTTPStatus, message: str) -> bytes:
    """The same error for a stream that has begun, then the stream's end."""
    return b"data: " + error_body(status, message) + b"\n\ndata: [DONE]\n\n"


def lynx_event(api: Api, session: str, model: object, created_s: int, event: Mapping[str, Any]) -> bytes:
    """One ``draft`` or ``correction`` as a chunk that ordinary clients skip.

    Args:
        api: which endpoint's chunk it looks like.
        session: the request's id.
        model: what the client asked for.
        created_s: Unix time of the request.
        event: ``event``, and what goes with it.
    """
    chunk = {
        "id": f"{_IDS[api]}-{session}",
        "object": _OBJECTS[api],
        "created": created_s,
        "model": model,
        "choices": [],
        "lynx": dict(event),
    }
    return b"data: " + _json(chunk) + b"\n\n"


class EventSplitter:
    """Cuts a server-sent event stream at the ends of its events, bytes unchanged."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that ``data`` completes, each with its blank line."""
        self._rest += data
        events, start = [], 0
        for end in _EVENT_END.finditer(self._rest):
            events.append(self._rest[start : end.end()])
            start = end.end()
        self._rest = self._rest[start:]
        return events

    @property
    def rest(self) -> bytes:
        """What has come since the last event's end."""
        return self._rest


def event_data(event: bytes) -> dict[str, Any] | None:
    """The JSON object of an event's one data line; ``None`` for comments, ``[DONE]`` and anything else."""
    for line in event.splitlines():
        if line.startswith(b"data:"):
            try:
                value = json.loads(line[5:])
            except ValueError:
                return None
            return value if isinstance(value, dict) else None
    return None


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

"""What a request carries in ``kv_transfer_params["lynx"]``, and the key that names its KV on the wire.

The key is a digest of the session and the prompt's token ids, so several prompts of one session (a batch)
and several answers to one prompt (``n > 1``) need no bookkeeping between router, prefill and decode.
"""

import array
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lynx import codec as codecs
from lynx.errors import BadInput

DEFAULT_TIMEOUT_S = 60.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Produce:
    """On prefill: offer this prompt's KV under ``session`` once it is computed.

    Args:
        session: the user request's id, chosen by the router.
        codec: name of the codec, or ``None`` for the instance's own.
    """

    session: str
    codec: str | None


@dataclass(frozen=True, slots=True)
class Consume:
    """On decode: fetch the prompt's KV from ``endpoint``.

    Args:
        session: the user request's id, chosen by the router.
        endpoint: ``host:port`` of the prefill instance's KV server.
        draft: whether to draft on the anchor; without, this is a plain transfer.
        first_token: the prompt's next token as prefill computed it, if it was sent along.
        timeout_s: how long the whole fetch may take.
    """

    session: str
    endpoint: str
    draft: bool
    first_token: int | None
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Draft:
    """On decode, made by the front alone: the draft twin of a ``Consume`` request.

    Args:
        session: as in the main request.
        endpoint: as in the main request.
        kv_tokens: how many leading tokens of this prompt have KV to fetch (the main request's prompt).
        timeout_s: as in the main request.
    """

    session: str
    endpoint: str
    kv_tokens: int
    timeout_s: float


Params = Produce | Consume | Draft


def parse(kv_transfer_params: Mapping[str, Any] | None) -> Params | None:
    """Read the ``lynx`` object of a request's ``kv_transfer_params``; ``None`` when there is none.

    Raises:
        BadInput: the object is there but malformed; the message names the field.
    """
    raw = (kv_transfer_params or {}).get("lynx")
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise BadInput(f"kv_transfer_params.lynx is {type(raw).__name__}; it must be an object")
    session = _field(raw, "session", str)
    if not 1 <= len(session) <= 128:
        raise BadInput(f"kv_transfer_params.lynx.session has {len(session)} characters; use 1 to 128")
    role = raw.get("role")
    if role == "prefill":
        name = raw.get("codec")
        if name is not None:
            codecs.by_name(name)
        return Produce(session, name)
    if role == "decode":
        first_token = raw.get("first_token")
        if first_token is not None and not (_is_int(first_token) and 0 <= first_token < 1 << 31):
            raise BadInput(
                f"kv_transfer_params.lynx.first_token is {first_token!r}; it must be a token id or null"
            )
        draft = raw.get("draft", True)
        if not isinstance(draft, bool):
            raise BadInput(f"kv_transfer_params.lynx.draft is {draft!r}; it must be true or false")
        return Consume(session, _endpoint(raw), draft, first_token, _timeout(raw))
    if role == "draft":
        return Draft(session, _endpoint(raw), _field(raw, "kv_tokens", int), _timeout(raw))
    raise BadInput(f"kv_transfer_params.lynx.role is {role!r}; use prefill or decode")


def draft_params(consume: Consume, kv_tokens: int) -> dict[str, Any]:
    """``kv_transfer_params`` of the draft twin of ``consume``."""
    return {
        "lynx": {
            "role": "draft",
            "session": consume.session,
            "endpoint": consume.endpoint,
            "kv_tokens": kv_tokens,
            "timeout_s": consume.timeout_s,
        }
    }


def offer_key(session: str, prompt_token_ids: Sequence[int]) -> bytes:
    """16 bytes that name one prompt's KV within one session."""
    digest = hashlib.blake2b(session.encode(), digest_size=16)
    digest.update(b"\0")
    digest.update(array.array("I", prompt_token_ids).tobytes())
    return digest.digest()


def _endpoint(raw: Mapping[str, Any]) -> str:
    endpoint = _field(raw, "endpoint", str)
    host, colon, port = endpoint.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise BadInput(f"kv_transfer_params.lynx.endpoint is {endpoint!r}; it must be host:port")
    return endpoint


def _timeout(raw: Mapping[str, Any]) -> float:
    timeout_s = raw.get("timeout_s", DEFAULT_TIMEOUT_S)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= 3600:
        raise BadInput(
            f"kv_transfer_params.lynx.timeout_s is {timeout_s!r}; it must be above 0 and at most 3600"
        )
    return float(timeout_s)


def _field(raw: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
    value = raw.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadInput(f"kv_transfer_params.lynx.{name} is {value!r}; it must be {kind.__name__}")
    return value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

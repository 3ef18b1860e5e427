"""One instance: vLLM's own OpenAI server, unchanged, over an engine with Lynx's connector.

Adds ``/lynx/info``, ``/lynx/requests/{session}`` and ``/lynx/drafts/{session}`` (server-sent events) to the
stock application. The HTTP socket is bound before the engine is loaded, so that a taken port is said at once,
and before a network namespace is entered, so that HTTP stays reachable from where the instance was started.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import socket
from argparse import Namespace
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol, cast

from lynx.errors import BadInput
from lynx.serve.answer import error_body
from lynx.serve.config import InstanceConfig
from lynx.serve.host import prepare_environment
from lynx.serve.link import enter_namespace
from lynx.serve.listener import bind


class Sessions(Protocol):
    """What a drafting engine tells of its sessions (``lynx.vllm.front.DraftingEngine``)."""

    def record(self, session: str) -> dict[str, Any] | None:
        """The breakdown of a session's requests."""
        ...

    def drafts(self, session: str) -> AsyncIterator[dict[str, Any]]:
        """Draft and correction events as they happen; waits for a session that has not begun."""
        ...


def run_instance(config: InstanceConfig, netns: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        config: what to serve.
        netns: name of the network namespace to live in; HTTP stays in the one that this was started in.

    Raises:
        BadInput: the port is taken, the namespace is not there, or the model cannot be served as configured.
    """
    listener = bind(config.host, config.port)
    if netns:
        enter_namespace(netns)
    prepare_environment(os.environ)
    signal.signal(signal.SIGTERM, _stop_loading)
    import uvloop

    with listener:
        uvloop.run(_serve(config, listener))


def fingerprint(model: Path) -> str:
    """16 hex digits that instances of one model share: of its ``config.json`` and its weights' sizes."""
    digest = hashlib.blake2b((model / "config.json").read_bytes(), digest_size=8)
    for weights in sorted(model.glob("*.safetensors")):
        digest.update(f"{weights.name} {weights.stat().st_size}".encode())
    return digest.hexdigest()


async def _serve(config: InstanceConfig, listener: socket.socket) -> None:
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.launcher import serve_http

    host, port = listener.getsockname()[:2]
    engine = _engine(config)
    try:
        _refuse_undraftable_defaults(config, engine.model_config.get_diff_sampling_param())
        args = _front_arguments(config)
        tasks = await engine.get_supported_tasks()
        app = build_app(args, tasks, engine.model_config)
        _add_lynx_routes(app, _info(config, engine), engine)
        await init_app_state(engine, app.state, args, tasks)
        stopped = await serve_http(
            app, sock=listener, host=host, port=port, log_level="warning", access_log=False
        )
    finally:
        engine.shutdown(timeout=engine.vllm_config.shutdown_timeout)
    await stopped


def _engine(config: InstanceConfig) -> Any:
    """The engine client: vLLM's own for prefill, the drafting one for decode."""
    from vllm.v1.engine.async_llm import AsyncLLM

    from lynx.vllm.config import decode_args, prefill_args
    from lynx.vllm.front import DraftingEngine

    args = prefill_args(config) if config.role == "prefill" else decode_args(config)
    try:
        engine_config = args.create_engine_config()
    except (ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[-1 if isinstance(error, OSError) else 0]
        raise BadInput(f"the engine cannot serve {config.model} as configured: {reason}") from error
    kind = AsyncLLM if config.role == "prefill" else DraftingEngine
    return kind.from_vllm_config(engine_config)


def _front_arguments(config: InstanceConfig) -> Namespace:
    """The stock server's own defaults, with the model's names."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    words = ["--model", str(config.model), "--served-model-name", config.served_name]
    return cast(Namespace, make_arg_parser(FlexibleArgumentParser()).parse_args(words))


def _info(config: InstanceConfig, engine: Any) -> dict[str, Any]:
    return {
        "role": config.role,
        "model": config.served_name,
        "fingerprint": fingerprint(config.model),
        "codec": config.codec,
        "drafts": config.drafts if config.role == "decode" else 0,
        "dtype": config.dtype,
        "max_model_len": engine.model_config.max_model_len,
        "pid": os.getpid(),
    }


def _refuse_undraftable_defaults(config: InstanceConfig, defaults: dict[str, Any]) -> None:
    """A drafting engine refuses min_p; a model that sets it for every request could answer none."""
    if config.role == "decode" and config.drafts and defaults.get("min_p"):
        raise BadInput(
            f"generation_config.json of the model sets min_p to {defaults['min_p']}, which a drafting engine "
            "cannot serve; start decode with --drafts 0"
        )


def _add_lynx_routes(app: Any, info: dict[str, Any], engine: Any) -> None:
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse

    sessions = cast(Sessions, engine) if hasattr(engine, "drafts") else None
    decode_text = engine.renderer.tokenizer.decode

    async def about(_: Request) -> Response:
        return JSONResponse(info)

    async def record(request: Request) -> Response:
        session = request.path_params["session"]
        found = sessions.record(session) if sessions else None
        if found is None:
            body = error_body(HTTPStatus.NOT_FOUND, f"session {session!r} is not known here, or long past")
            return Response(body, HTTPStatus.NOT_FOUND, media_type="application/json")
        return JSONResponse(found)

    async def drafts(request: Request) -> Response:
        async def events(of: Sessions) -> AsyncIterator[bytes]:
            async for event in of.drafts(request.path_params["session"]):
                text = decode_text(event.get("token_ids", []))
                yield b"data: " + json.dumps(event | {"text": text}).encode() + b"\n\n"

        if sessions is None:
            body = error_body(
                HTTPStatus.NOT_FOUND, "a prefill instance drafts nothing; ask a decode instance"
            )
            return Response(body, HTTPStatus.NOT_FOUND, media_type="application/json")
        return StreamingResponse(events(sessions), media_type="text/event-stream")

    app.add_route("/lynx/info", about, ["GET"])
    app.add_route("/lynx/requests/{session}", record, ["GET"])
    app.add_route("/lynx/drafts/{session}", drafts, ["GET"])


def _stop_loading(*_: object) -> None:
    """SIGTERM while the engine loads; the server puts its own handler in place once it runs.

    An exception would be lost in the event loop's C code, so this ends the process itself.
    """
    for child in multiprocessing.active_children():
        child.terminate()
    os._exit(128 + signal.SIGTERM)

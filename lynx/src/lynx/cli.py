"""The command ``lynx``: reads the command line, calls what does the work, puts errors into one sentence.

Exit codes: 0 done, 2 the input cannot be used (the sentence on stderr says why), 1 anything else.
"""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from lynx import __version__, model
from lynx.errors import BadInput, LynxError
from lynx.importance import DEFAULT_SHARE
from lynx.serve.config import (
    DSCP_CS1,
    DSCP_EF,
    EngineDtype,
    InstanceConfig,
    LoadFailurePolicy,
    Role,
    StreamPolicy,
)

_RESTARTS = 20


class _Commands(TyperGroup):
    """The commands, of which those that draw pictures are imported when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), "bench", "demo"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in ("bench", "demo"):
            return super().get_command(ctx, cmd_name)
        from lynx.bench.command import bench_command, demo_command

        one = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        one.command(cmd_name)(bench_command if cmd_name == "bench" else demo_command)
        return typer.main.get_command(one)


app = typer.Typer(
    cls=_Commands,
    help="Progressive KV-cache transfer for disaggregated LLM inference.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Model = Annotated[str, typer.Option(help="Default model, a Hugging Face directory, or owner/name.")]
Name = Annotated[str | None, typer.Option(help="Name that clients use; default: the model's own.")]
Dtype = Annotated[
    Literal["auto", "bfloat16", "float16", "float32"],
    typer.Option(help="Arithmetic; auto is bfloat16 where the processor has it, else float32."),
]
Host = Annotated[str, typer.Option(help="Address of the HTTP server.")]
Port = Annotated[int, typer.Option(help="Its port; 0 picks a free one.")]
Codec = Annotated[str, typer.Option(help="nested, lynx, bf16, int8, int4 or kivi4; the same on both sides.")]
MaxLen = Annotated[int | None, typer.Option(help="Longest prompt and answer together, in tokens.")]
KvMib = Annotated[int, typer.Option(help="Memory of the engine's KV cache, in MiB.")]
Users = Annotated[int, typer.Option(help="Requests served at a time.")]
Netns = Annotated[str | None, typer.Option(help="Network namespace to live in; HTTP stays outside.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command("model")
def model_command(
    name: Annotated[str, typer.Argument(help="What to get ready.")] = model.DEFAULT_MODEL,
    out: Annotated[Path | None, typer.Option(help="Where to make the default model.")] = None,
    as_json: Json = False,
) -> None:
    """Get a model ready and print its directory.

    Examples: `lynx model`, `lynx model --out /srv/smollm2`, `lynx model Qwen/Qwen2.5-0.5B-Instruct`
    """
    if out is not None and name != model.DEFAULT_MODEL:
        raise BadInput(
            f"--out goes with {model.DEFAULT_MODEL} only, not with {name!r}; leave one of them out"
        )
    path = model.make(out, _say) if out else model.ensure(name, _say)
    _print({"model": model.name_of(name, path), "path": str(path)}, as_json, str(path))


@app.command()
def prefill(
    model: Model = model.DEFAULT_MODEL,
    name: Name = None,
    dtype: Dtype = "auto",
    host: Host = "127.0.0.1",
    port: Port = 8001,
    kv_host: Annotated[str, typer.Option(help="Address at which decode fetches KV.")] = "127.0.0.1",
    kv_port: Annotated[int, typer.Option(help="Its port; 0 picks a free one.")] = 0,
    codec: Codec = "nested",
    policy: Annotated[
        StreamPolicy, typer.Option(help="What is sent first: anchors always, or by deadline.")
    ] = "edf",
    rate: Annotated[str | None, typer.Option(help="Hold KV to a rate, as 200mbit.")] = None,
    early_share: Annotated[
        float, typer.Option(help="Share of tokens sent whole in the anchor.")
    ] = DEFAULT_SHARE,
    anchor_dscp: Annotated[int, typer.Option(help="DSCP of the anchor connection.")] = DSCP_EF,
    residual_dscp: Annotated[int, typer.Option(help="DSCP of the residual connection.")] = DSCP_CS1,
    hold: Annotated[float, typer.Option(help="Seconds that KV is kept for a decode to fetch it.")] = 60.0,
    max_model_len: MaxLen = None,
    kv_cache_mib: KvMib = 2048,
    max_users: Users = 8,
    netns: Netns = None,
) -> None:
    """Serve prompts: compute their KV and offer it to decode instances.

    Examples: `lynx prefill`, `lynx prefill --host 0.0.0.0 --kv-host 10.0.0.5 --kv-port 8101`
    """
    from lynx.serve.link import parse_rate

    _serve(
        "prefill",
        model,
        name,
        dtype,
        netns,
        host=host,
        port=port,
        kv_host=kv_host,
        kv_port=kv_port,
        codec=codec,
        policy=policy,
        rate_bps=parse_rate(rate) if rate else None,
        early_share=early_share,
        anchor_dscp=anchor_dscp,
        residual_dscp=residual_dscp,
        hold_s=hold,
        max_model_len=max_model_len,
        kv_cache_bytes=kv_cache_mib << 20,
        max_users=max_users,
    )


@app.command()
def decode(
    model: Model = model.DEFAULT_MODEL,
    name: Name = None,
    dtype: Dtype = "auto",
    host: Host = "127.0.0.1",
    port: Port = 8002,
    codec: Codec = "nested",
    drafts: Annotated[int, typer.Option(help="Longest run of drafted tokens; 0 drafts nothing.")] = 64,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait at most for KV before --on-failure.")
    ] = 60.0,
    on_failure: Annotated[
        LoadFailurePolicy, typer.Option(help="What becomes of a request without KV.")
    ] = "recompute",
    max_model_len: MaxLen = None,
    kv_cache_mib: KvMib = 2048,
    max_users: Users = 8,
    netns: Netns = None,
) -> None:
    """Serve answers: fetch KV anchor first, draft on it, verify when it is complete.

    Examples: `lynx decode`, `lynx decode --drafts 32 --on-failure fail`
    """
    _serve(
        "decode",
        model,
        name,
        dtype,
        netns,
        host=host,
        port=port,
        codec=codec,
        drafts=drafts,
        timeout_s=timeout,
        load_failure=on_failure,
        max_model_len=max_model_len,
        kv_cache_bytes=kv_cache_mib << 20,
        max_users=max_users,
    )


@app.command()
def route(
    prefill: Annotated[list[str], typer.Option(help="URL of a prefill instance; may be repeated.")],
    decode: Annotated[list[str], typer.Option(help="URL of a decode instance; may be repeated.")],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    timeout: Annotated[float, typer.Option(help="Seconds that a client may wait without a byte.")] = 300.0,
) -> None:
    """Serve the OpenAI API over prefill and decode instances.

    Example: `lynx route --prefill http://127.0.0.1:8001 --decode http://127.0.0.1:8002`
    """
    from lynx.serve.router import RouterConfig, run_router

    _say(f"Routing at http://{host}:{port}/v1")
    run_router(RouterConfig(prefill=tuple(prefill), decode=tuple(decode), timeout_s=timeout), host, port)


@app.command()
def up(
    model_name: Annotated[
        str, typer.Option("--model", help="As for prefill and decode.")
    ] = model.DEFAULT_MODEL,
    dtype: Dtype = "auto",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    link: Annotated[str | None, typer.Option(help="Shape the link between the two, as 200mbit.")] = None,
    codec: Codec = "nested",
    drafts: Annotated[int, typer.Option(help="Longest run of drafted tokens.")] = 64,
    prefills: Annotated[int, typer.Option(help="Number of prefill instances.")] = 1,
    decodes: Annotated[int, typer.Option(help="Number of decode instances.")] = 1,
    max_model_len: MaxLen = None,
    kv_cache_mib: KvMib = 2048,
    max_users: Users = 8,
    timeout: Annotated[float, typer.Option(help="Seconds that a client may wait without a byte.")] = 300.0,
) -> None:
    """Start prefill, decode and router on this machine; Ctrl-C ends them.

    Examples: `lynx up`, `lynx up --link 200mbit` (as root: a link between two network namespaces)
    """
    from lynx.serve.link import parse_rate
    from lynx.serve.up import UpConfig, interrupt_on_sigterm, running

    interrupt_on_sigterm()
    path = model.ensure(model_name, _say)
    shared = ["--model", str(path), "--name", model.name_of(model_name, path), "--dtype", dtype]
    shared += ["--codec", codec, "--kv-cache-mib", str(kv_cache_mib), "--max-users", str(max_users)]
    shared += ["--max-model-len", str(max_model_len)] if max_model_len else []
    config = UpConfig(
        prefill=tuple(shared),
        decode=(*shared, "--drafts", str(drafts)),
        host=host,
        port=port,
        link_bps=parse_rate(link) if link else None,
        prefills=prefills,
        decodes=decodes,
        timeout_s=timeout,
    )
    with running(config, _say) as lynx:
        _say(f"Ready: {lynx.router}/v1 (model {model.name_of(model_name, path)}); Ctrl-C ends it")
        for _ in range(_RESTARTS):
            while (process := lynx.ended()) is None:
                time.sleep(0.5)
            _say(f"{process.ended}; starting it again, the others serve meanwhile")
            process.start()
        _say(f"Processes ended {_RESTARTS} times; giving up")
        raise typer.Exit(1)


@app.command("eval")
def eval_command(
    model_name: Annotated[
        str, typer.Option("--model", help="As for prefill and decode.")
    ] = model.DEFAULT_MODEL,
    codec: Annotated[list[str] | None, typer.Option(help="A codec; may be repeated. Default: all.")] = None,
    prompts: Annotated[int, typer.Option(help="Different prompts.", min=1)] = 24,
    tokens: Annotated[int, typer.Option(help="Length of a prompt.", min=256)] = 2048,
    drafts: Annotated[int, typer.Option(help="Drafted tokens after each prompt.", min=1)] = 64,
    early_share: Annotated[
        float, typer.Option(help="Share of tokens sent whole in the anchor.")
    ] = DEFAULT_SHARE,
    json_file: Annotated[Path, typer.Option("--json", help="Where the rows go.")] = Path(
        "build/eval/lynx.json"
    ),
    page: Annotated[Path | None, typer.Option(help="Where the page goes; default: beside the rows.")] = None,
) -> None:
    """Measure codecs without a network: accepted drafts, attention error, divergence, bits.

    Examples: `lynx eval`, `lynx eval --codec nested --codec lynx --prompts 4`
    """
    from lynx.evaluate import main as evaluate

    evaluate(
        model_name,
        codec=codec or (),
        prompts=prompts,
        tokens=tokens,
        drafts=drafts,
        early_share=early_share,
        json=json_file,
        html=page or json_file.with_suffix(".html"),
    )


def _serve(
    role: Role, model_name: str, name: str | None, dtype: str, netns: str | None, **fields: Any
) -> None:
    from lynx.serve.host import this_dtype
    from lynx.serve.instance import run_instance

    path = model.ensure(model_name, _say)
    chosen: EngineDtype = this_dtype() if dtype == "auto" else dtype  # type: ignore[assignment]  # typer's choice
    served_name = name or model.name_of(model_name, path)
    config = InstanceConfig(role=role, model=path, served_name=served_name, dtype=chosen, **fields)
    _say(f"{role} of {served_name} ({chosen}) at http://{config.host}:{config.port}: loading")
    run_instance(config, netns)


def _say(line: str) -> None:
    """Progress goes to stderr, so that what is printed can be piped."""
    print(line, file=sys.stderr, flush=True)


def _print(value: object, as_json: bool, text: str) -> None:
    print(json.dumps(value) if as_json else text)


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except LynxError as error:
        print(f"lynx: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

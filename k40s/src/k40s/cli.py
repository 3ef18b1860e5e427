"""`k40s`: one machine's jobs of several criticalities, from the command line.

Exit codes: 0 done; 1 refused, not found or unreachable; 2 the input cannot be used. Every error is one sentence.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import Progress, TaskID

from k40s import __version__, api, errors
from k40s.local.client import Client
from k40s.local.config import DEFAULT_STATE, Config, socket_path

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Mixed-criticality jobs with guarantees that are proved before and enforced while they run.",
    epilog="Start: sudo k40s up, then k40s apply -f examples/cell.yaml, then k40s top",
)
node_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="This node and its assurance.",
    epilog="Example: k40s node explain",
)
app.add_typer(node_app, name="node")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(help="Job, as NAME or NAMESPACE/NAME.")]
State = Annotated[Path, typer.Option(help="Where the daemon keeps its state.")]
Files = Annotated[
    list[Path], typer.Option("--file", "-f", help="Manifest, YAML or JSON; - for standard input.")
]
START_PATIENCE_S = 60.0


@contextmanager
def _said() -> Iterator[None]:
    """Errors as one sentence and an exit code."""
    try:
        yield
    except errors.BadInput as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    except errors.K40sError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


def _print(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2))


def _draw(view: Any) -> None:
    console = Console()
    # Piped, a table must not be folded to a terminal's width that is not there.
    Console(width=console.width if console.is_terminal else 200).print(view)


def _text(files: list[Path]) -> str:
    texts = []
    for path in files:
        try:
            texts.append(sys.stdin.read() if str(path) == "-" else path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise errors.BadInput(f"file {str(path)!r} cannot be read: {error}") from error
    return "\n---\n".join(texts)


@app.command(epilog="Example: sudo k40s up   or, in the foreground: sudo k40s up --foreground")
def up(
    state: State = DEFAULT_STATE,
    group: Annotated[str, typer.Option(help="Group that may talk to the daemon besides root.")] = "root",
    cgroup_root: Annotated[str, typer.Option(help="Group that all of ours lie below.")] = "/k40s",
    tick_ms: Annotated[int, typer.Option(help="How often what is wanted is compared with what is.")] = 250,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay; log to standard error.")] = False,
) -> None:
    """Start the daemon; jobs that ran before are adopted or started."""
    from k40s.local import daemon

    with _said():
        config = Config(
            state=state, socket=socket_path(), group=group, cgroup_root=cgroup_root, tick_ms=tick_ms
        )
        if foreground:
            daemon.log_to(None)
            daemon.run(config)
            return
        _start_in_background(config)


def _start_in_background(config: Config) -> None:
    config.state.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "k40s.cli", "up", "--foreground", "--state", str(config.state)]
    words += ["--group", config.group, "--cgroup-root", config.cgroup_root, "--tick-ms", str(config.tick_ms)]
    log = config.state / "daemon.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "K40S_SOCKET": str(config.socket)},
        )
    until = time.monotonic() + START_PATIENCE_S
    while time.monotonic() < until:
        if process.poll() is not None:
            said = log.read_text(errors="replace").strip().splitlines() or ["no reason given"]
            kind = errors.BadInput if process.returncode == 2 else errors.EffectFailed
            raise kind(f"the daemon did not start: {said[-1].removeprefix('error: ')}")
        try:
            with Client(config.socket) as client:
                health = client.health()
        except errors.Unreachable:
            time.sleep(0.05)
            continue
        typer.echo(f"k4.0s {health['version']} is up on {health['node']}, socket {config.socket}")
        return
    raise errors.EffectFailed(f"the daemon does not answer within {START_PATIENCE_S:g} s: see {log}")


@app.command(epilog="Example: k40s apply -f examples/cell.yaml")
def apply(file: Files, as_json: Json = False) -> None:
    """Hand in manifests; each job is admitted with a proof or refused with reasons (exit code 1)."""
    with _said(), Client() as client:
        text = _text(file)
        api.load(text)  # every problem is said here, also when no daemon runs
        done = client.apply(text)
    if as_json:
        _print([one.model_dump() for one in done])
    else:
        for one in done:
            typer.echo(f"{one.kind}/{one.name} {one.outcome}")
            for reason in one.reasons:
                typer.echo(f"  {reason}")
    if any(one.outcome == "refused" for one in done):
        raise typer.Exit(1)


@app.command(epilog="Example: k40s get   or: k40s get loop --json")
def get(
    name: Annotated[str | None, typer.Argument(help="Job; all when left out.")] = None, as_json: Json = False
) -> None:
    """List jobs with their phase, misses and worst response."""
    from k40s.local.view import jobs_table

    with _said(), Client() as client:
        jobs = [client.job(name)] if name else client.jobs()
    if as_json:
        _print([json.loads(api.to_json(job)) for job in jobs])
    else:
        _draw(jobs_table(jobs))


@app.command(epilog="Example: k40s describe loop")
def describe(name: Name, as_json: Json = False) -> None:
    """Show a job with all of its status, and its last events."""
    from k40s.local.view import events_table

    with _said(), Client() as client:
        job = client.job(name)
        full = f"{job.metadata.namespace}/{job.metadata.name}"
        events = [event for event in client.events(most=1000) if event.subject == full][-20:]
    if as_json:
        _print({"job": json.loads(api.to_json(job)), "events": [event.model_dump() for event in events]})
    else:
        typer.echo(api.to_yaml(job))
        _draw(events_table(events))


@app.command("why-not", epilog="Example: k40s why-not loop")
def why_not(name: Name, as_json: Json = False) -> None:
    """Say why a job does not run: for each node and core, what stands in the way."""
    with _said(), Client() as client:
        lines = client.why_not(name)
    if as_json:
        _print(lines)
    else:
        typer.echo("\n".join(lines))


@app.command(epilog="Example: k40s delete hog")
def delete(name: Name) -> None:
    """Stop a job and forget it; nothing of it is left on the machine."""
    with _said(), Client() as client:
        client.delete(name)
    typer.echo(f"{name} deleted")


@app.command(epilog="Example: k40s events   or, as they come: k40s events --follow")
def events(
    as_json: Json = False,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more.")] = False,
    most: Annotated[int, typer.Option(min=1, max=1000, help="How many to show.")] = 50,
) -> None:
    """Show what happened: admissions, starts, alarms, reactions."""
    from k40s.local.view import events_table

    with _said(), Client() as client:
        after = 0
        while True:
            found = client.events(after, most)
            if as_json:
                for event in found:
                    typer.echo(event.model_dump_json())
            elif found:
                _draw(events_table(found))
            if not follow:
                return
            after = found[-1].id if found else after
            time.sleep(0.5)


@node_app.command(epilog="Example: k40s node explain")
def explain(as_json: Json = False) -> None:
    """Explain every point of the node's assurance, what it can enforce, and what is measured how often."""
    with _said(), Client() as client:
        if as_json:
            typer.echo(api.to_json(client.node()))
        else:
            typer.echo("\n".join(client.explain()))


@app.command(epilog="Example: k40s top   or, for programs: k40s top --once --json")
def top(
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    as_json: Json = False,
    interval_s: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
) -> None:
    """Watch criticality, budgets, misses and assurance live."""
    from k40s.local.view import top_view

    with _said(), Client() as client:
        if once or as_json:
            found = client.top()
            if as_json:
                typer.echo(found.model_dump_json(indent=2))
            else:
                _draw(top_view(found))
            return
        with Live(top_view(client.top()), refresh_per_second=4, screen=True) as live:
            _until_interrupted(lambda: live.update(top_view(client.top())), interval_s)


def _until_interrupted(look: Callable[[], None], interval_s: float) -> None:
    try:
        while True:
            time.sleep(interval_s)
            look()
    except KeyboardInterrupt:
        return


@app.command(epilog="Example: k40s plan -f examples/cell.yaml --nodes 3")
def plan(
    file: Files,
    nodes: Annotated[
        int, typer.Option(min=1, max=5000, help="Nodes of each class that has no NodeAssurance.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Find the best placement offline, and how far the online answer is from it. Asks no daemon.

    Without a NodeClass in the manifests it plans for machines like this one.
    """
    from k40s.local.engine import class_of
    from k40s.local.planning import plan_for
    from k40s.node.probe import hardware

    with _said():
        resources = api.load(_text(file))
        if not any(isinstance(one, api.NodeClass) for one in resources):
            resources = (*resources, class_of(hardware()))
        found = plan_for(resources, nodes)
    if as_json:
        _print({"best": found.best, "online": found.online, "bound": found.bound, "gap": found.gap})
        return
    for job, where in found.best.items():
        online = ", ".join(found.online[job]) or "nowhere"
        typer.echo(f"{job}: best {', '.join(where) or 'nowhere'}; online {online}")
        for reason in found.refusals.get(job, ()):
            typer.echo(f"  {reason}")
    proved = "the best that there is" if found.is_optimal else f"at most {found.bound} jobs are possible"
    typer.echo(f"{proved}; the online answer is {100 * found.gap:.1f} % from it")


@app.command(
    epilog="Examples: k40s simulate examples/scenarios/line.yaml   or, with pictures: "
    "k40s simulate examples/scenarios/plant.yaml --report build/plant   or, with other luck and beside Kubernetes: "
    "k40s simulate examples/scenarios/line.yaml --scorer assurance-waste --scorer LeastAllocated --seed 8 --json"
)
def simulate(
    scenario: Annotated[Path, typer.Argument(help="Scenario, YAML or JSON; - for standard input.")],
    report_to: Annotated[
        Path | None, typer.Option("--report", help="Folder for simulation.json and simulation.png.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the scenario's.")] = None,
    scorer: Annotated[
        list[str] | None, typer.Option(help="Instead of the scenario's; one run for each.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Play a plant of 1 to 5,000 nodes in virtual time: who is placed, what fails, what is done. Asks no daemon.

    The same scenario and seed give the same outcome on every machine. Scorers are assurance-waste, worst-fit and
    first-fit, and Kubernetes' LeastAllocated, MostAllocated and RequestedToCapacityRatio.
    """
    from k40s import sim

    with _said():
        played = sim.read_scenario(_text([scenario]))
        played = sim.with_choices(played, seed, tuple(scorer or ()))
        with _progress() as progress:
            outcomes = sim.simulate(played, progress)
        written = () if report_to is None else sim.report.write(outcomes, report_to)
    if as_json:
        _print({"rows": sim.report.rows(outcomes)})
        return
    typer.echo(sim.report.text(outcomes))
    for path in written:
        typer.echo(f"wrote {path}")


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """A bar for each name on a terminal's standard error; elsewhere nothing."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(name: str, share: float) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=1.0)
            bars.update(tasks[name], completed=share)

        yield tell


@app.command(epilog="Example: sudo k40s down   or, with all jobs: sudo k40s down --jobs")
def down(
    jobs: Annotated[bool, typer.Option("--jobs", help="Stop all jobs too, and forget them.")] = False,
) -> None:
    """Stop the daemon; its jobs run on with their guarantees, unless --jobs is given."""
    with _said(), Client() as client:
        client.down(everything=jobs)
    until = time.monotonic() + START_PATIENCE_S
    while socket_path().exists():
        if time.monotonic() > until:
            with _said():
                raise errors.EffectFailed("the daemon has not ended yet: see its log")
        time.sleep(0.05)
    typer.echo("stopped with all jobs" if jobs else "stopped; jobs run on")


@app.command(epilog="Example: sudo k40s uninstall")
def uninstall(
    state: State = DEFAULT_STATE,
    cgroup_root: Annotated[str, typer.Option(help="Group that all of ours lie below.")] = "/k40s",
) -> None:
    """Stop the daemon and all jobs, undo everything that was set, remove the state."""
    from k40s.local import daemon

    with _said():
        try:
            with Client() as client:
                client.down(everything=True)
        except errors.Unreachable:
            daemon.uninstall(Config(state=state, socket=socket_path(), cgroup_root=cgroup_root))
        else:
            until = time.monotonic() + START_PATIENCE_S
            while socket_path().exists() and time.monotonic() < until:
                time.sleep(0.05)
    typer.echo("nothing of k4.0s is left on this machine but its program")


@app.command(epilog="Example: k40s version")
def version() -> None:
    """Print the version."""
    typer.echo(f"k40s {__version__}")


def main() -> None:
    """The program."""
    app()


if __name__ == "__main__":
    main()

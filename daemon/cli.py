"""The `gpuwarden` command: only wires options to `daemon.commands`.

Commands are imported when they run, so that `--help` answers at once and `xid decode` starts without pandas.

Exit codes: 0 done; 1 a check found problems; 2 wrong usage or configuration; 3 Prometheus or the API server cannot be
asked; 4 the ledger cannot be used; 5 a file cannot be read or written.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from daemon.cli_options import ConfigOption, Output, OutputOption
from daemon.cli_people import people_app

app = typer.Typer(
    name="gpuwarden",
    help="""Finds failing GPUs through the Prometheus and the kernel logs that are already there, and explains each
    verdict.

    Exit codes: 0 done; 1 a check found problems, nothing has that name, or there is nothing to do; 2 wrong usage or
    configuration; 3 Prometheus or the API server cannot be asked; 4 the ledger cannot be used; 5 a file cannot be read
    or written.
    """,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
xid_app = typer.Typer(help="Fault codes: what a kernel log says.", no_args_is_help=True)
rules_app = typer.Typer(help="Rule packs: check them before they are used.", no_args_is_help=True)
bench_app = typer.Typer(help="Measure one part against its reference, in one run.", no_args_is_help=True)
app.add_typer(xid_app, name="xid")
app.add_typer(rules_app, name="rules")
app.add_typer(bench_app, name="bench")
app.add_typer(people_app)  # without a name: its commands stand beside the others


class Mode(StrEnum):
    """How far gpuwarden goes by itself; the same words as `remediation.modes`, without its imports."""

    OBSERVE = "observe"
    APPROVE = "approve"
    AUTO = "auto"


def _print_version(asked: bool) -> None:
    if asked:
        from daemon.version import own_version

        typer.echo(f"gpuwarden {own_version()}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """What goes before any command."""


@app.command()
def run(
    config: ConfigOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the configuration and the rules, print what is in effect, and stop.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="One tick, then stop; exit code 3 if Prometheus did not answer.")
    ] = False,
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", help="How far to go by itself; where the configuration is stricter, that holds."),
    ] = None,
) -> None:
    """Watch the fleet: poll, detect, decide and record. In observe mode nothing is ever changed.

    approve carries out what a person approves, auto what the gates let pass. Both need the section `kubernetes`.

    Serves /metrics, /healthz and /readyz on listen.host:listen.port. SIGTERM ends it after the tick.

    Example: gpuwarden run --config gpuwarden.yaml
    """
    from daemon.commands.run import run as command
    from remediation.modes import Mode as Setting

    raise typer.Exit(command(config, check=check, once=once, mode=None if mode is None else Setting(mode)))


@app.command()
def agent(
    config: ConfigOption = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Say whether log, spool and controller can be used, and what to fix, and stop."),
    ] = False,
) -> None:
    """Read this node's kernel log and send its fault events to the controller. Needs the section `agent`.

    Nothing is lost: what was read is kept in agent.spool until the controller has it in its ledger.

    Example: gpuwarden agent --config gpuwarden.yaml --check
    """
    from daemon.commands.agent import agent as command

    raise typer.Exit(command(config, check=check))


@app.command()
def audit(
    out: Annotated[Path, typer.Option("--out", help="Folder for report.json and report.html.")],
    start: Annotated[str, typer.Option("--start", help="RFC 3339 (2026-11-01T00:00:00Z) or unix seconds.")],
    end: Annotated[str, typer.Option("--end", help="As --start; the span is [start, end).")],
    prometheus: Annotated[
        str | None, typer.Option("--prometheus", metavar="URL", help="Base URL; overrides the configuration.")
    ] = None,
    kernel_log: Annotated[
        list[str] | None,
        typer.Option("--kernel-log", metavar="NODE=FILE", help="A node's kernel log; may be repeated."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels", metavar="FILE", help="CSV node,gpu_uuid,class,onset,failed_at: what was really wrong."
        ),
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", help="Time between ticks, e.g. 60s; measured if not given.")
    ] = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay a span of the past: what would have been found and done, and what each gate would have said.

    Changes nothing. Exit code 3 where Prometheus cannot be asked, 5 where a file cannot be read or written.

    Example: gpuwarden audit --prometheus http://127.0.0.1:9090 --start 2026-11-01T00:00:00Z
    --end 2026-11-02T00:00:00Z --kernel-log gpu001=/var/log/gpu001.log --out audit
    """
    from daemon.commands.audit import AuditOptions
    from daemon.commands.audit import audit as command

    options = AuditOptions(out, start, end, prometheus, tuple(kernel_log or ()), labels, step, config, output.value)
    raise typer.Exit(command(options))


@app.command()
def explain(
    thing: Annotated[
        str, typer.Argument(metavar="GPU|NODE", help="A GPU's UUID (or its beginning), a node, or NODE/INDEX.")
    ],
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Why a GPU or a node has the verdict it has: each signal with its value, its limit and where to look.

    And what has been done about it: the plan with its gates, what was tried and how it ended, what people have said,
    and the incidents of the last day that are over.

    Reads the ledger, so it answers whether the daemon runs or not. Exit code 1 where nothing has that name.

    Example: gpuwarden explain gpu001/3
    """
    from daemon.commands.explain import explain as command

    raise typer.Exit(command(thing, config, output.value))


class ThingKind(StrEnum):
    """What `gpuwarden chronic` ranks."""

    GPU = "gpu"
    NODE = "node"
    SLOT = "slot"


@app.command()
def chronic(
    kind: Annotated[ThingKind, typer.Argument(metavar="gpu|node|slot", help="What is ranked.")] = ThingKind.NODE,
    config: ConfigOption = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many are shown.")] = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """Which GPUs, nodes or slots keep failing, and when things of this site fail again after they came back.

    From the incidents in the ledger; docs/chronic.md says what the score is, what it is worth, and what is done by it.

    Example: gpuwarden chronic gpu --top 10
    """
    from daemon.commands.chronic import chronic as command

    raise typer.Exit(command(config, kind.value, top, output.value))


@app.command()
def mttr(
    config: ConfigOption = None,
    days: Annotated[float, typer.Option(min=0.01, metavar="DAYS", help="How far back to look.")] = 30.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """How long jobs took to come back: from the fault's first signal to the resume level reached, by class of failure.

    P50, P95 and P99 over the restarts in the ledger; the levels are explained in docs/workloads.md.

    Example: gpuwarden mttr --days 7
    """
    from daemon.commands.mttr import mttr as command

    raise typer.Exit(command(config, days, output.value))


@app.command()
def plan(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node's name, as the cluster has it.")],
    config: ConfigOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run/--no-dry-run", help="Have the API server judge each eviction, without doing it."),
    ] = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """What would happen to a node now: plans, gates, the exact patch, and the fate of each pod. It changes nothing.

    Looks at the cluster of the section `kubernetes` and at the ledger. Exit code 1 where no node has that name, 3 where
    the API server cannot be asked.

    Example: gpuwarden plan gpu001 --config gpuwarden.yaml
    """
    from daemon.commands.plan import plan as command

    raise typer.Exit(command(node, config, output.value, dry_run=dry_run))


@xid_app.command("decode")
def xid_decode(
    file: Annotated[Path, typer.Argument(metavar="FILE|-", help="A kernel log; - reads standard input.")] = Path("-"),
    driver_version: Annotated[
        str | None, typer.Option("--driver-version", help="E.g. 580.105.08; decides how NVLink 5 registers are read.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Print one JSON object a line for each fault in a kernel log, in the log's order.

    Example: journalctl -k -o json | gpuwarden xid decode -
    """
    from daemon.commands.xid import command

    raise typer.Exit(command(file, driver_version, config))


@rules_app.command("check")
def rules_check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="A site's own packs; the shipped ones are always checked."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check rule packs: file, line, key and reason for whatever is wrong, and what the packs add up to.

    Exit code 1 where something is wrong.

    Example: gpuwarden rules check our-limits.yaml
    """
    from daemon.commands.rules import check as command

    raise typer.Exit(command(tuple(files or ()), output.value))


GpusOption = Annotated[int, typer.Option("--gpus", min=1, help="How many GPUs.")]
MetricsOption = Annotated[int, typer.Option("--metrics", min=1, help="How many metrics for each.")]


@bench_app.command("ingest")
def bench_ingest(gpus: GpusOption = 2048, metrics: MetricsOption = 60, output: OutputOption = Output.TABLE) -> None:
    """From the HTTP answer to the aligned matrix, against prometheus-api-client with pandas building the same one."""
    from daemon.commands.bench import ingest as command

    raise typer.Exit(command(gpus, metrics, output.value))


@bench_app.command("tick")
def bench_tick(gpus: GpusOption = 504, metrics: MetricsOption = 751, output: OutputOption = Output.TABLE) -> None:
    """A whole tick: ingest, detect, decide; against json.loads of the same bytes."""
    from daemon.commands.bench import tick as command

    raise typer.Exit(command(gpus, metrics, output.value))


@bench_app.command("score")
def bench_score(gpus: GpusOption = 16384, metrics: MetricsOption = 60, output: OutputOption = Output.TABLE) -> None:
    """Peer comparison of all GPUs at once, against numpy taking one cohort after the other."""
    from daemon.commands.bench import score as command

    raise typer.Exit(command(gpus, metrics, output.value))


@bench_app.command("xid")
def bench_xid(
    lines: Annotated[int, typer.Option("--lines", min=1, help="How many lines.")] = 800_000,
    output: OutputOption = Output.TABLE,
) -> None:
    """Kernel-log lines to classified faults, and a flood of one XID, against one regular expression a line."""
    from daemon.commands.bench import xid as command

    raise typer.Exit(command(lines, output.value))


def main() -> None:
    """The console script."""
    app()

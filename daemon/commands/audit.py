"""`gpuwarden audit`: replay a span through detectors, plans and gates, and write the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from daemon.audit.evidence import EvidenceFinder
from daemon.audit.report import build, fleet_rows, write
from daemon.audit.tally import Tally
from daemon.audit.truth import Label, LabelsError, parse_time, read_labels
from daemon.commands.output import (
    CommandError,
    ExitCode,
    complain,
    progress,
    say,
    settings,
    show,
)
from daemon.config import Config, PrometheusConfig
from daemon.history import History
from daemon.ingest.assemble import Assembler
from daemon.ingest.decode import PrometheusError, decode
from daemon.ingest.queries import TARGETS, with_matchers
from daemon.logs import LogFile, LogSourceError, parse_log_option, require_text, unreadable
from daemon.prometheus import Prometheus
from daemon.replay import Replay, Span
from daemon.report.decisions import fold
from daemon.report.model import Evidence
from daemon.report.reading import DecisionRow, read_decisions
from daemon.secrets import without_password
from detectors.engine import Engine
from detectors.verdict import still_there
from remediation.decide import decide
from rules.base import parse_duration
from rules.schema import RuleBook

_MOST_EVIDENCE = 200
#: A measured step lies between these; a given one may be as short as a second.
_SHORTEST_STEP_S, _LONGEST_STEP_S = 15.0, 300.0
_LEAST_STEP_S = 1.0
#: Characters of the reason that the table shows.
_SHOWN_WHY = 80
#: Names of nodes that one message lists.
_SHOWN_NODES = 5


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The command line as it was given."""

    out: Path
    start: str
    end: str
    prometheus: str | None
    kernel_logs: tuple[str, ...]
    labels: Path | None
    step: str | None
    config: Path | None
    output: str
    #: said on the report's page, beside what went wrong while it was made
    notes: tuple[str, ...] = ()


def audit(options: AuditOptions) -> int:
    """Run the audit; prints a table of incidents and the report's path, or a message and an exit code."""
    try:
        config, rules = settings(options.config)
        return _audit(options, _with_url(config, options.prometheus), rules)
    except CommandError as error:
        complain(str(error))
        return error.code
    except PrometheusError as error:
        complain(str(error))
        return ExitCode.SOURCE
    except LogSourceError as error:
        complain(str(error))
        return ExitCode.FILE


def _audit(options: AuditOptions, config: Config, rules: RuleBook) -> int:
    # Whatever can be wrong with the command line is found before the long part begins.
    start, end = _times(options)
    logs = [*(LogFile(log.node, log.path) for log in config.kernel_logs), *map(_log_file, options.kernel_logs)]
    for log in logs:
        _require_file(log)
    labels = _labels(options.labels)
    _require_folder(options.out)
    client = Prometheus(config.prometheus)
    span = Span(start, end, _step(options, client, config, start, end))
    replay = Replay(client, config, rules, span, logs)
    tally = Tally()
    engine = Engine(rules)
    with progress("replaying", span.ticks()) as tell:
        for number, snapshot in enumerate(replay.snapshots(), 1):
            detection = engine.step(snapshot)
            decisions = decide(
                detection.incidents, snapshot, still_there(detection.verdicts, snapshot), rules.policy,
                now=snapshot.at, ledger_writable=True,
            )  # fmt: skip
            tally.take(snapshot, detection, decisions, span.step_s)
            tell(number)
    source = without_password(client.url)
    if not tally.gpus:
        complain(_no_gpus(source, span, replay.counts["refused_no_gpu_identity"], config.labels.gpu_uuid))
    strangers = _strangers(logs, labels or (), replay.assembler) if tally.gpus else []
    for stranger in strangers:
        complain(stranger)
    report = build(tally, span, labels, replay.counts, config.mode)
    evidence, failures = _evidence(config, rules, tally, end)
    try:
        json_path, html_path = write(
            report, fleet_rows(tally), evidence, options.out,
            source=source, generated_at=datetime.now(UTC),
            notes=(*options.notes, *strangers, *replay.errors, *failures),
        )  # fmt: skip
    except OSError as error:
        raise CommandError(f"the report cannot be written to {options.out}: {error}", ExitCode.FILE) from error
    _print(report, options.output, json_path, html_path)
    return ExitCode.OK


# ------------------------------------------------------------------------------------------------ the command line


def _with_url(config: Config, url: str | None) -> Config:
    if url is None:
        return config
    try:
        prometheus = PrometheusConfig.model_validate(config.prometheus.model_dump() | {"url": url})
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise CommandError(f"--prometheus: {reason}", ExitCode.USAGE) from error
    return config.model_copy(update={"prometheus": prometheus})


def _times(options: AuditOptions) -> tuple[datetime, datetime]:
    times = []
    for name, text in (("--start", options.start), ("--end", options.end)):
        try:
            times.append(parse_time(text))
        except ValueError as error:
            raise CommandError(f"{name}: {text!r} is neither RFC 3339 nor unix seconds", ExitCode.USAGE) from error
    start, end = times
    if end <= start:
        raise CommandError("--end must lie after --start", ExitCode.USAGE)
    return start, end


def _log_file(text: str) -> LogFile:
    try:
        return parse_log_option(text)
    except ValueError as error:
        raise CommandError(f"--kernel-log: {error}", ExitCode.USAGE) from error


def _require_file(log: LogFile) -> None:
    """A log that the replay could not read, or could read only once, would pass for a healthy node's."""
    try:
        is_pipe = log.path.is_fifo()
    except OSError as error:
        raise unreadable(log.path, error) from error
    if is_pipe:
        said = "it is a pipe, and a log is read more than once; write it to a file first"
        raise LogSourceError(f"kernel log {log.path} cannot be used: {said}")
    require_text(log)


def _labels(path: Path | None) -> list[Label] | None:
    if path is None:
        return None
    try:
        return read_labels(path)
    except LabelsError as error:
        raise CommandError(str(error), ExitCode.FILE) from error


def _require_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--out {out} cannot be made: {error.strerror}", ExitCode.FILE) from error


def _step(options: AuditOptions, client: Prometheus, config: Config, start: datetime, end: datetime) -> float:
    """The asked step, or the spacing of the samples of `up`, so that no tick lacks a sample and none is idle."""
    if options.step is not None:
        return _step_given(options.step, (end - start).total_seconds())
    probe = f"{with_matchers(TARGETS, config.prometheus.matchers)}[10m]"
    middle = min(start.timestamp() + 3600.0, (start.timestamp() + end.timestamp()) / 2)
    batch = decode(client.query(probe, middle))
    order = np.lexsort((batch.at, batch.series))
    gaps = np.diff(batch.at[order])[np.diff(batch.series[order]) == 0]
    spacing = float(np.median(gaps)) if len(gaps) else config.prometheus.poll_interval
    step_s = float(np.clip(round(spacing), _SHORTEST_STEP_S, _LONGEST_STEP_S))
    return min(step_s, (end - start).total_seconds())


def _step_given(text: str, span_s: float) -> float:
    try:
        step_s = parse_duration(text)
    except ValueError as error:
        raise CommandError(f"--step: {error}", ExitCode.USAGE) from error
    if not _LEAST_STEP_S <= step_s <= span_s:
        raise CommandError("--step must be at least 1s and no longer than the span", ExitCode.USAGE)
    return step_s


# ------------------------------------------------------------------------------------------------ the result


def _no_gpus(source: str, span: Span, refused: int, uuid_labels: Sequence[str]) -> str:
    """Why there is nothing to report on, and what to look at."""
    where = f"between {span.start.isoformat()} and {span.end.isoformat()}"
    if refused:
        return (
            f"{source} has GPU metrics {where}, but {refused:,} of its series say no GPU's UUID; "
            f"name the label that has it in labels.gpu_uuid (now: {', '.join(uuid_labels)})"
        )
    return (
        f"{source} has no GPU metrics {where}; check the span, prometheus.matchers and that a GPU exporter is scraped"
    )


def _strangers(logs: Sequence[LogFile], labels: Sequence[Label], assembler: Assembler) -> list[str]:
    """Nodes of the command line that the metrics do not know: most likely another spelling of one that they do."""
    told = []
    for option, given in (("--kernel-log", [log.node for log in logs]), ("--labels", [label.node for label in labels])):
        unknown = sorted({node for node in given if assembler.fleet.find_node(node) is None})
        if unknown:
            more = f" and {len(unknown) - _SHOWN_NODES:,} more" if len(unknown) > _SHOWN_NODES else ""
            told.append(
                f"{option}: no metric of the span names {', '.join(unknown[:_SHOWN_NODES])}{more}; "
                "check the spelling against the metrics' node names"
            )
    return told


def _evidence(config: Config, rules: RuleBook, tally: Tally, end: datetime) -> tuple[list[Evidence], list[str]]:
    chosen = sorted(tally.episodes(), key=lambda i: (i.tier, i.opened))[:_MOST_EVIDENCE]
    history = History(config.prometheus)
    finder = EvidenceFinder(history, rules, tally.gpus, config.labels.gpu_uuid, end)
    evidence = []
    try:
        with progress("evidence", len(chosen)) as tell:
            for number, incident in enumerate(chosen, 1):
                evidence.append(finder.of(incident))
                tell(number)
    finally:
        history.close()
    return evidence, finder.failures


def _print(report: dict[str, Any], form: str, json_path: Path, html_path: Path) -> None:
    if form != "table":
        show(report["summary"] | {"report": str(json_path), "page": str(html_path)}, form)
        return
    # The strongest answer there was about an incident, as on the page.
    told: dict[str | None, DecisionRow] = {}
    for ruled in fold(read_decisions(report["decisions"])):
        told.setdefault(ruled.decision.incident, ruled.decision)
    rows = [_row(incident, told.get(incident["id"])) for incident in report["incidents"]]
    show(None, form, rows, ("OPENED (UTC)", "NODE", "GPU", "CAUSE", "TIER", "WOULD", "WHY"))
    summary = report["summary"]
    say()
    say(
        f"{summary['gpu_days']:.1f} GPU-days of {summary['gpus']} GPUs, {summary['episodes']} incidents, "
        f"coverage {100 * summary['coverage']:.1f} %. Dry run: nothing was changed."
    )
    if "recall" in summary:
        found = sum(one["found"] for one in summary["recall"].values())
        total = sum(one["total"] for one in summary["recall"].values())
        false = summary["false_alarms_per_day"]
        say(
            f"labels: {found} of {total} found; false alarms {false['rate']:.2f} a day "
            f"(95 % interval {false['low']:.2f} to {false['high']:.2f})"
        )
    say(f"report: {html_path}\n        {json_path}")


def _row(incident: dict[str, Any], decision: DecisionRow | None) -> tuple[str, ...]:
    gpus, nodes = incident["gpu_uuids"], incident["nodes"]
    gpu = gpus[0] if len(gpus) == 1 else f"{len(gpus)} GPUs" if gpus else "-"
    node = incident["node"] if len(nodes) <= 1 else f"{len(nodes)} nodes"
    would = f"{decision.action} ({decision.verdict})" if decision else ""
    opened = incident["opened"][:16].replace("T", " ")
    why = incident["why"] if len(incident["why"]) <= _SHOWN_WHY else f"{incident['why'][: _SHOWN_WHY - 1].rstrip()}…"
    return opened, node, gpu, incident["cause_class"], str(incident["tier"]), would, why

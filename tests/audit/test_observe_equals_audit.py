"""An audit of the past and a daemon that watched it come to the same: same incidents, same decisions, same moments."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from daemon.audit.tally import Tally
from daemon.config import Config
from daemon.ledger import EntryKind, Ledger, encode_body
from daemon.logs import LogFile, utc
from daemon.loop import Loop
from daemon.metrics import Metrics
from daemon.prometheus import Prometheus
from daemon.replay import Replay, Span
from detectors.engine import Engine
from fixtures.fleet import klog
from fixtures.fleet.shape import Framing, Node
from fixtures.fleet.telemetry import Fleet
from remediation.decide import decide
from rules.schema import RuleBook
from tests.scripted_prometheus import ScriptedPrometheus

STEP_S = 60.0


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    def drop(_logger: object, _name: str, _event: object) -> str:
        raise structlog.DropEvent

    structlog.configure(processors=[drop])
    yield
    structlog.reset_defaults()


@pytest.fixture
def config(prometheus: ScriptedPrometheus, fleet: Fleet, tmp_path: Path) -> Config:
    """Logs that grow while the daemon watches; when it has ended they are whole, for the audit."""
    logs = [{"node": node.name, "path": str(tmp_path / f"{node.name}.log")} for node in fleet.shape.nodes]
    for log in logs:
        Path(log["path"]).touch()
    prometheus_config = {"url": prometheus.url, "poll_interval": STEP_S, "slow_interval": 300, "warm_up": 0}
    return Config.model_validate({"prometheus": prometheus_config, "kernel_logs": logs})


def timed_lines(fleet: Fleet, node: Node) -> Iterator[tuple[float, str]]:
    """A node's log file line by line, each with the unix second at which it is written."""
    lines = klog.framed(fleet, node)
    for record in klog.log_lines(fleet, node):
        count = record.text.count("\n") + 1
        if node.framing is Framing.JOURNAL:
            count = 1
        elif node.framing is Framing.MONOTONIC and record.program != "kernel":
            count = 0
        for _ in range(count):
            yield fleet.start_s + record.at_s, next(lines)


def audited(fleet: Fleet, config: Config, rules: RuleBook) -> Tally:
    logs = [LogFile(log.node, log.path) for log in config.kernel_logs]
    span = Span(fleet.start, fleet.end, STEP_S)
    replay = Replay(Prometheus(config.prometheus), config, rules, span, logs)
    tally, engine = Tally(), Engine(rules)
    for snapshot in replay.snapshots():
        detection = engine.step(snapshot)
        decisions = decide(
            detection.incidents, snapshot, detection.verdicts, rules.policy,
            now=snapshot.at, ledger_writable=True,
        )  # fmt: skip
        tally.take(snapshot, detection, decisions, STEP_S)
    return tally


def observed(fleet: Fleet, config: Config, rules: RuleBook, ledger: Ledger) -> None:
    """The daemon, its clock stepping over the same span."""
    now_s = fleet.start.timestamp()
    coming = {
        Path(log.path): list(timed_lines(fleet, node))
        for log, node in zip(config.kernel_logs, fleet.shape.nodes, strict=True)
    }
    loop = Loop(config, rules, ledger, metrics=Metrics(), clock=lambda: now_s)
    loop.start()
    while now_s + STEP_S <= fleet.end.timestamp():
        now_s += STEP_S
        for path, lines in coming.items():
            due = [line for at_s, line in lines if now_s - STEP_S < at_s <= now_s]
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in due)
        assert not loop.tick().blind
    loop.close()


def test_observe_and_audit_come_to_the_same(fleet: Fleet, config: Config, rules: RuleBook, tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=lambda: utc(0)) as ledger:
        observed(fleet, config, rules, ledger)
        entries = list(ledger.entries())
    tally = audited(fleet, config, rules)
    decided = [entry.body for entry in entries if entry.kind is EntryKind.DECISION]
    assert decided == [encode_body(decision) for decision in tally.decisions]
    kinds = (EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_CHANGED, EntryKind.INCIDENT_CLOSED)
    newest = {entry.incident: entry.body for entry in entries if entry.kind in kinds}
    assert set(newest) == set(tally.incidents)
    assert len(newest) >= 3
    for incident in tally.incidents.values():
        if incident.closed is not None:
            assert newest[incident.id] == encode_body(incident)
        else:
            assert told(newest[incident.id]) == told(encode_body(incident))


def told(body: object) -> dict[str, object]:
    """What of an open incident is recorded whenever it changes; counts and last times go on without a record."""
    names = ("id", "opened", "scope", "nodes", "gpu_uuids", "cause_class", "tier", "first_signal_at", "action", "held")
    return {name: body[name] for name in names}  # type: ignore[index]

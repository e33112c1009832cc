"""A small fleet with a few faults, its Prometheus and its kernel logs, and one audit of it that several tests read."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon.commands import output
from daemon.commands.audit import AuditOptions, audit
from fixtures.fleet import klog, labels
from fixtures.fleet.faults import AppXids, EccUncontained, Maintenance, OffBus
from fixtures.fleet.responder import Answers
from fixtures.fleet.shape import A100, H100, Framing, Pool, build_shape
from fixtures.fleet.telemetry import Fleet
from fixtures.fleet.workload import Run, WorkKind
from rules.loader import load_rules
from rules.schema import RuleBook
from tests.scripted_prometheus import ScriptedPrometheus

START_S = 1772409600.0
HOUR = 3600.0


@pytest.fixture(scope="session")
def rules() -> RuleBook:
    return load_rules()


@pytest.fixture
def loaded(rules: RuleBook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process use the rules that are loaded already, which saves each a second."""
    monkeypatch.setattr(output, "load_rules", lambda _extra: rules)


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    """Two hours of four nodes: a GPU leaves the bus, memory breaks, a program crashes; the last node is rebooted."""
    framings = (Framing.RFC3339, Framing.MONOTONIC, Framing.JOURNAL)
    shape = build_shape(3, (Pool(H100, 3, framings=framings), Pool(A100, 1, framings=(Framing.MONOTONIC,))), START_S)
    run = Run("llama", "training", WorkKind.TRAIN, (0, 1, 2), 300.0, 2 * HOUR)
    planted = (
        OffBus(node=0, slot=3, at_s=0.6 * HOUR, fading_s=0.2 * HOUR),
        EccUncontained(node=1, slot=5, at_s=0.5 * HOUR, growing_s=0.5 * HOUR),
        AppXids(node=2, others=(), at_s=1.4 * HOUR),
        Maintenance(node=3, at_s=0.8 * HOUR, lasts_s=0.25 * HOUR),
    )
    return Fleet(3, shape, (run,), planted, START_S, 2, 60.0)


@pytest.fixture(scope="session")
def answers(fleet: Fleet) -> Answers:
    return Answers(fleet)


@pytest.fixture(scope="session")
def prometheus(fleet: Fleet, answers: Answers) -> Iterator[ScriptedPrometheus]:
    """Serves every test; one that spoils it brings its own."""
    with ScriptedPrometheus(answers, fleet.end.timestamp()).serving() as serving:
        yield serving


@pytest.fixture(scope="session")
def kernel_logs(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The file of each node."""
    return {path.stem: path for path in klog.write_logs(fleet, tmp_path_factory.mktemp("logs"))}


@pytest.fixture(scope="session")
def truth(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("truth") / "labels.csv"
    labels.write_labels(fleet, path)
    return path


@pytest.fixture(scope="session")
def options(
    fleet: Fleet, prometheus: ScriptedPrometheus, kernel_logs: dict[str, Path], truth: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AuditOptions:  # fmt: skip
    """The whole span with every log and the labels."""
    return AuditOptions(
        out=tmp_path_factory.mktemp("out"), start=fleet.start.isoformat(), end=fleet.end.isoformat(),
        prometheus=prometheus.url, kernel_logs=tuple(f"{node}={path}" for node, path in kernel_logs.items()),
        labels=truth, step=None, config=None, output="table",
    )  # fmt: skip


Audit = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def audited(options: AuditOptions) -> Audit:
    """Runs an audit with some options changed, and gives report.json."""

    def run(**changes: Any) -> dict[str, Any]:
        changed = replace(options, **changes)
        assert audit(changed) == 0
        report: dict[str, Any] = json.loads((changed.out / "report.json").read_text(encoding="utf-8"))
        return report

    return run


@pytest.fixture(scope="session")
def report(audited: Audit) -> dict[str, Any]:
    return audited()

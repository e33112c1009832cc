"""The whole way on real input: a real Prometheus with 24 hours of 16 simulated nodes, kernel logs, and the audit.

The day holds every planted fault once, beside what must not alarm: application XIDs on many nodes, a driver roll-out,
exporter restarts, gaps, HA duplicates, blanks, maintenance, a forged XID. All of it synthetic.
"""

import csv
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from daemon.commands.audit import AuditOptions, audit
from fixtures.fleet import klog, labels, scenarios
from fixtures.fleet.openmetrics import backfill
from fixtures.fleet.telemetry import Fleet
from rules.vocabulary import DISRUPTIVE
from tests.prometheus_server import PrometheusServer

SEED = 11


class Audited:
    """One audit of the planted day, and what was planted."""

    def __init__(self, fleet: Fleet, folder: Path, url: str) -> None:
        self.fleet = fleet
        klog.write_logs(fleet, folder / "logs")
        labels.write_labels(fleet, folder / "labels.csv")
        self.code = audit(
            AuditOptions(
                out=folder / "out", start=fleet.start.isoformat(), end=fleet.end.isoformat(), prometheus=url,
                kernel_logs=tuple(f"{path.stem}={path}" for path in sorted((folder / "logs").glob("*.log"))),
                labels=folder / "labels.csv", step=None, config=None, output="json",
            )
        )  # fmt: skip
        self.report: dict[str, Any] = json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))
        self.page = (folder / "out" / "report.html").read_text(encoding="utf-8")
        with (folder / "labels.csv").open(encoding="utf-8") as file:
            self.truth = list(csv.DictReader(file))

    def incidents_of(self, node: str, gpu: str) -> list[dict[str, Any]]:
        return [
            incident
            for incident in self.report["incidents"]
            if node in incident["nodes"] and (not gpu or gpu in incident["gpu_uuids"])
        ]


@pytest.fixture(scope="module")
def audited(prometheus_binary: Path, promtool_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    folder = tmp_path_factory.mktemp("day")
    (folder / "logs").mkdir()
    fleet = scenarios.day(SEED)
    assert backfill(fleet, folder / "tsdb", promtool_binary) > 5_000_000
    (folder / "p.yml").write_text("global: {scrape_interval: 60s}\n", encoding="utf-8")
    with PrometheusServer(prometheus_binary, folder / "p.yml", folder / "tsdb") as server:
        return Audited(fleet, folder, server.url)


def test_every_planted_fault_of_tiers_0_and_1_is_found_on_the_right_gpu_with_the_right_cause(audited: Audited) -> None:
    assert audited.code == 0
    strong = [row for row in audited.truth if not is_suspicion(audited.fleet, row)]
    assert len(strong) >= 15
    missed = []
    for row in strong:
        found = audited.incidents_of(row["node"], row["gpu_uuid"])
        if not any(i["cause_class"] == row["class"] and i["tier"] <= 1 for i in found):
            missed.append((row["node"], row["gpu_uuid"], row["class"], [(i["cause_class"], i["tier"]) for i in found]))
    assert missed == []


def test_faults_that_only_peers_can_show_are_raised_as_suspicion(audited: Audited) -> None:
    weak = [row for row in audited.truth if is_suspicion(audited.fleet, row)]
    assert weak
    for row in weak:
        assert any(i["cause_class"] == row["class"] for i in audited.incidents_of(row["node"], row["gpu_uuid"])), row


def test_no_healthy_gpu_would_be_taken_out(audited: Audited) -> None:
    """Neither for an application's XIDs, nor a roll-out, an exporter's restart, missing telemetry or a forged line."""
    sick = {(row["node"], row["gpu_uuid"]) for row in audited.truth if row["class"] not in ("application", "driver")}
    sick |= {(row["node"], row["gpu_uuid"]) for row in audited.truth if row["class"] == "driver" and row["gpu_uuid"]}
    by_id = {incident["id"]: incident for incident in audited.report["incidents"]}
    wrong = []
    for decision in audited.report["decisions"]:
        if decision["action"] not in DISRUPTIVE or decision["verdict"] != "act" or decision["action"] == "restart_job":
            continue
        incident = by_id.get(decision["incident"])
        gpus = incident["gpu_uuids"] if incident is not None else [decision["gpu_uuid"]]
        if not any((decision["node"], gpu) in sick for gpu in gpus) and (decision["node"], "") not in sick:
            wrong.append((decision["action"], decision["node"], gpus))
    assert wrong == []


def test_an_applications_crash_on_many_nodes_is_one_incident_that_asks_for_nothing(audited: Audited) -> None:
    crashed = {row["node"] for row in audited.truth if row["class"] == "application"}
    found = [i for i in audited.report["incidents"] if i["cause_class"] == "application" and crashed <= set(i["nodes"])]
    assert len(found) == 1
    assert {d["action"] for d in audited.report["decisions"] if d["incident"] == found[0]["id"]} == {"watch"}


def test_a_driver_roll_out_is_one_held_incident(audited: Audited) -> None:
    hit = {row["node"] for row in audited.truth if row["class"] == "driver" and not row["gpu_uuid"]}
    found = [i for i in audited.report["incidents"] if i["cause_class"] == "driver" and hit <= set(i["nodes"])]
    assert [i["held"] for i in found] == [True]
    rulings = {d["verdict"] for d in audited.report["decisions"] if d["incident"] == found[0]["id"]}
    assert "act" not in rulings


def test_a_forged_line_opens_nothing(audited: Audited) -> None:
    forged = [item for item in audited.fleet.planted if item.kind == "forged_xid"]
    assert forged
    node = audited.fleet.shape.nodes[forged[0].nodes_hit[0]].name
    at = audited.fleet.start.timestamp() + forged[0].at_s
    near = [
        i for i in audited.incidents_of(node, "")
        if i["cause_class"] == "hardware" and abs(datetime.fromisoformat(i["opened"]).timestamp() - at) < 900
    ]  # fmt: skip
    assert near == []


def test_false_alarms_recall_and_lead_are_reported_with_their_interval(audited: Audited) -> None:
    summary = audited.report["summary"]
    assert summary["gpu_days"] == pytest.approx(128, rel=0.02)
    assert all(one["recall"] == 1.0 for one in summary["recall"].values()), summary["recall"]
    false = summary["false_alarms_per_day"]
    assert false["low"] <= false["rate"] <= false["high"]
    assert false["count"] == 0
    assert summary["coverage"] > 0.9


def test_the_page_shows_every_incident(audited: Audited) -> None:
    assert all(incident["id"] in audited.page for incident in audited.report["incidents"])


def is_suspicion(fleet: Fleet, row: dict[str, str]) -> bool:
    """Whether a label row comes from a fault that was planted without any mark that a fact or a trend could see."""
    kinds = {
        (fleet.shape.nodes[node].name, item.cause)
        for item in fleet.planted
        if getattr(item, "tier", 0) == 2 and item.cause is not None
        for node in item.nodes_hit
    }
    return (row["node"], row["class"]) in kinds

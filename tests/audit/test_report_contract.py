"""report.json is read by tools outside the project: its fields, their types and their words are fixed."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from daemon.commands.audit import AuditOptions
from fixtures.fleet.telemetry import Fleet
from remediation.decide import Ruling
from rules.vocabulary import Action, CauseClass, IncidentScope
from tests.audit.conftest import Audit

pytestmark = pytest.mark.usefixtures("loaded")

UTC_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")

CAUSES = {
    "hardware", "memory", "link", "thermal", "power", "driver", "application", "job", "storage", "network", "telemetry",
    "maintenance", "unknown",
}  # fmt: skip
ACTIONS = {
    "watch", "restart_job", "checkpoint", "no_new_work", "cordon", "drain", "diagnose", "reset_gpu", "reboot_node",
    "quarantine", "release",
}  # fmt: skip

Check = Callable[[Any], bool]


def is_time(value: Any) -> bool:
    return isinstance(value, str) and UTC_TIME.fullmatch(value) is not None


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(check(item) for item in value)


def one_of(*words: str) -> Check:
    return lambda value: value in words


def maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def obj(**fields: Check) -> Check:
    """An object that has at least these fields."""
    return lambda value: isinstance(value, dict) and not wrong(value, fields)


def wrong(value: dict[str, Any], fields: dict[str, Check]) -> list[str]:
    return [f"{name}={value.get(name, 'absent')!r}" for name, check in fields.items() if not check(value.get(name))]


SIGNAL = obj(
    detector=is_text, rule=is_text, node=is_text, gpu=is_text, tier=one_of(0, 1, 2), cause_class=one_of(*CAUSES),  # type: ignore[arg-type]
    value=maybe(is_number), limit=maybe(is_number), unit=is_text, since=is_time, last=is_time, look=is_text,
)  # fmt: skip
INCIDENT = {
    "id": is_text, "opened": is_time, "closed": maybe(is_time), "scope": one_of(*IncidentScope), "node": is_text,
    "gpu_uuids": list_of(is_text), "cause_class": one_of(*CAUSES), "tier": one_of(0, 1, 2),  # type: ignore[arg-type]
    "first_signal_at": is_time, "signals": list_of(SIGNAL),
}  # fmt: skip
DECISION = {
    "at": is_time, "node": is_text, "gpu_uuid": is_text, "action": one_of(*ACTIONS), "mode": one_of("observe"),
    "verdict": one_of("act", "wait", "ask", "refuse"), "affected": list_of(is_text), "incident": is_text,
    "gates": list_of(obj(name=is_text, passed=lambda value: isinstance(value, bool), reason=is_text)),
}  # fmt: skip
SUMMARY = {
    "gpu_days": is_number, "episodes": is_count, "coverage": is_number,
    "episodes_per_day": lambda value: set(value) == {"0", "1", "2"} and all(map(is_number, value.values())),
}  # fmt: skip
RECALL = obj(found=is_count, total=is_count, recall=is_number)
WITH_LABELS = {
    "recall": lambda value: set(value) <= CAUSES and all(map(RECALL, value.values())),
    "lead_seconds": obj(median=maybe(is_number), p10=maybe(is_number), p90=maybe(is_number), missed=is_count),
    "false_alarms_per_day": obj(count=is_count, rate=is_number, low=is_number, high=is_number, confidence=is_number),
    "precision": maybe(is_number),
}  # fmt: skip


def test_each_incident_has_the_fields_of_the_contract(report: dict[str, Any]) -> None:
    assert report["incidents"]
    assert [wrong(incident, INCIDENT) for incident in report["incidents"] if wrong(incident, INCIDENT)] == []


def test_each_decision_has_the_fields_of_the_contract(report: dict[str, Any]) -> None:
    assert report["decisions"]
    assert [wrong(decision, DECISION) for decision in report["decisions"] if wrong(decision, DECISION)] == []
    assert {decision["incident"] for decision in report["decisions"]} <= {one["id"] for one in report["incidents"]}


def test_the_summary_has_the_fields_of_the_contract(report: dict[str, Any]) -> None:
    assert wrong(report["summary"], SUMMARY | WITH_LABELS) == []


def test_without_labels_the_summary_says_nothing_about_them(audited: Audit, tmp_path: Path, fleet: Fleet) -> None:
    end = datetime.fromtimestamp(fleet.start_s + 900, fleet.start.tzinfo).isoformat()
    summary = audited(labels=None, end=end, out=tmp_path)["summary"]
    assert wrong(summary, SUMMARY) == []
    assert set(summary) & set(WITH_LABELS) == set()


def test_the_words_are_those_of_the_contract() -> None:
    assert set(CauseClass) == CAUSES
    assert set(Action) == ACTIONS
    assert set(Ruling) == {"act", "wait", "ask", "refuse"}


def test_every_time_is_utc_with_a_z(report: dict[str, Any]) -> None:
    looks_like_one = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")
    found = [text for text in texts(report) if looks_like_one.fullmatch(text)]
    assert found
    assert [text for text in found if UTC_TIME.fullmatch(text) is None] == []


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in ("look", "text", "why", "reason"):
                yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value


def test_it_is_json_without_nan_or_infinity(report: dict[str, Any], options: AuditOptions) -> None:
    del report  # written by now

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    text = (options.out / "report.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=refuse)["summary"]


def test_what_was_planted_is_found_and_nothing_else_is_accused(report: dict[str, Any]) -> None:
    summary = report["summary"]
    assert {name: (one["found"], one["total"]) for name, one in summary["recall"].items()} == {
        "application": (1, 1), "hardware": (1, 1), "memory": (1, 1),
    }  # fmt: skip
    assert summary["false_alarms_per_day"]["count"] == 0
    assert summary["precision"] == 1.0
    assert summary["gpus"] == 32
    assert summary["gpu_days"] == pytest.approx(32 * 2 / 24, rel=0.02)
    assert 0.9 < summary["coverage"] < 1.0, "the node that was rebooted was not seen for a while"


def test_an_application_takes_no_hardware_out(report: dict[str, Any]) -> None:
    of_programs = {one["id"] for one in report["incidents"] if one["cause_class"] == "application"}
    actions = {decision["action"] for decision in report["decisions"] if decision["incident"] in of_programs}
    assert of_programs
    assert actions <= {"watch", "restart_job"}


def test_the_same_data_gives_the_same_bytes(report: dict[str, Any], audited: Audit, tmp_path: Path) -> None:
    again = audited(out=tmp_path)
    for part in ("incidents", "decisions"):
        assert json.dumps(again[part], sort_keys=False) == json.dumps(report[part], sort_keys=False)
    assert again["summary"] == report["summary"]


def test_the_page_is_there_beside_it(report: dict[str, Any], options: AuditOptions) -> None:
    page = (options.out / "report.html").read_text(encoding="utf-8")
    assert all(incident["id"] in page for incident in report["incidents"])

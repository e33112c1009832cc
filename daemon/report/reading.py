"""Reads the dictionaries of report.json into types, so that everything after it has names and units.

`daemon.report.page` calls it first. A dictionary that breaks the contract is refused with the place of the fault;
keys that the page does not know are ignored, keys that it can do without have defaults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, TypeVar

import msgspec

from daemon.report.model import JsonObject
from remediation.decide import Ruling
from rules.vocabulary import Action, CauseClass, IncidentScope, Tier

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
T = TypeVar("T")


class ReportShapeError(ValueError):
    """The report dictionary breaks its contract. The message names the part and the field."""


@dataclass(frozen=True, slots=True)
class SignalRow:
    """One observation against one expectation, as report.json says it."""

    detector: str
    rule: str
    tier: Tier
    node: str = ""
    gpu: str | None = None
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    since: Moment | None = None
    last: Moment | None = None
    look: str = ""
    text: str = ""
    count: int = 1
    code: int | None = None


@dataclass(frozen=True, slots=True)
class LostWorkRow:
    """What an incident's jobs lost, as far as the audit knows it: None is not known."""

    stops_work: bool = False
    jobs: tuple[str, ...] = ()
    gang_gpus: int | None = None
    detection_seconds: float | None = None
    detection_gpu_hours: float | None = None
    gpu_hours_per_hour_of_interval: float | None = None


@dataclass(frozen=True, slots=True)
class LostWorkSum:
    """The same over the incidents that would have stopped work; of `unknown` of them nobody knows whose that was."""

    incidents: int
    unknown: int = 0
    gang_gpus: int | None = None
    detection_gpu_hours: float | None = None
    gpu_hours_per_hour_of_interval: float | None = None


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """One incident; `closed` is None while it is open at the span's end."""

    id: str
    opened: Moment
    closed: Moment | None
    scope: IncidentScope
    node: str
    cause_class: CauseClass
    tier: Tier
    first_signal_at: Moment
    nodes: tuple[str, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    signals: tuple[SignalRow, ...] = ()
    why: str = ""
    action: str = ""
    held: bool = False
    lost_work: LostWorkRow | None = None


@dataclass(frozen=True, slots=True)
class GateRow:
    """One gate's answer."""

    name: str
    passed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """What would be done at one moment, and what each gate said to it."""

    at: Moment
    node: str
    action: Action
    verdict: Ruling
    gpu_uuid: str | None = None
    mode: str = ""
    gates: tuple[GateRow, ...] = ()
    affected: tuple[str, ...] = ()
    incident: str | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of (GPU, signal, time) that was known, 0 to 1, and what was missing, in words."""

    share: float | None
    detail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recall:
    """How many of the labelled faults of one class were found."""

    found: int
    total: int
    recall: float | None = None


@dataclass(frozen=True, slots=True)
class LeadSeconds:
    """Seconds between detection and failure (negative: detected after it), over the labelled faults found."""

    median: float | None = None
    p10: float | None = None
    p90: float | None = None
    missed: int = 0


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """False alarms a day with the 95 % interval."""

    rate: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class LabelRow:
    """One labelled fault and what the audit made of it; `incident` is None where it was missed."""

    node: str
    cause: str
    onset: Moment | None = None
    failed_at: Moment | None = None
    gpu_uuid: str | None = None
    incident: str | None = None
    lead_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers over the whole span. The last five are there only when labels were given."""

    start: Moment
    end: Moment
    gpu_days: float
    episodes: int
    episodes_per_day: dict[str, float] = field(default_factory=dict)
    coverage: Coverage = Coverage(None)
    generated_by: str = ""
    mode: str = "observe"
    lost_work: LostWorkSum | None = None
    recall: dict[str, Recall] | None = None
    lead_seconds: LeadSeconds | None = None
    false_alarms_per_day: FalseAlarms | None = None
    precision: float | None = None
    labels: tuple[LabelRow, ...] = ()

    @property
    def has_labels(self) -> bool:
        """Whether the audit was compared with labels."""
        return self.recall is not None or bool(self.labels) or self.false_alarms_per_day is not None


def read_summary(given: JsonObject) -> Summary:
    """The summary of report.json. Raises ReportShapeError.

    `coverage` is a share with an optional `coverage_detail`, or an object {share, detail}; the detail is a text, a
    list of texts or an object. `labels` is an optional list of single labelled faults, each with its `class`.
    """
    fields = dict(given)
    fields["coverage"] = _coverage(given.get("coverage"), given.get("coverage_detail"))
    fields["labels"] = [{"cause": label.get("class", ""), **label} for label in given.get("labels") or ()]
    return _convert(fields, Summary, "summary")


def read_incidents(given: Sequence[JsonObject]) -> tuple[IncidentRow, ...]:
    """All incidents, in the order given. Raises ReportShapeError."""
    return _convert([dict(one) for one in given], tuple[IncidentRow, ...], "incidents")


def read_decisions(given: Sequence[JsonObject]) -> tuple[DecisionRow, ...]:
    """All decisions, in the order given. Raises ReportShapeError."""
    return _convert([dict(one) for one in given], tuple[DecisionRow, ...], "decisions")


def _coverage(share: object, detail: object) -> dict[str, object]:
    if isinstance(share, Mapping):
        return _coverage(share.get("share"), share.get("detail"))
    if isinstance(detail, Mapping):
        return {"share": share, "detail": [f"{name}: {_figure(value)}" for name, value in detail.items()]}
    return {"share": share, "detail": [detail] if isinstance(detail, str) else detail or []}


def _figure(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _convert(given: object, into: type[T], part: str) -> T:
    try:
        return msgspec.convert(given, into)
    except msgspec.ValidationError as error:
        raise ReportShapeError(
            f"report {part}: {error}; the page reads report.json's contract, so mend what builds this dictionary"
        ) from error

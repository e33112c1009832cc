"""What was really wrong, from a labels file, held against what was found: recall, lead, false alarms, precision.

The labels are CSV: node,gpu_uuid,class,onset,failed_at (RFC 3339; gpu_uuid may be empty for a node's fault, failed_at
where it never came to that). Only alarms about machines count as alarms: incidents of class application, telemetry
and maintenance tell owners something and accuse no hardware.
"""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from daemon.audit.tally import end_of
from detectors.findings import Incident
from rules.vocabulary import CauseClass

_COLUMNS = ("node", "gpu_uuid", "class", "onset", "failed_at")
#: A fault may show a little before its labelled onset (clocks, rounding), and some time after it.
_EARLY = timedelta(minutes=15)
_LATE = timedelta(hours=2)
NOT_ALARMS = frozenset({CauseClass.APPLICATION, CauseClass.TELEMETRY, CauseClass.MAINTENANCE})


class LabelsError(Exception):
    """The labels file cannot be used: which line, why."""


@dataclass(frozen=True, slots=True)
class Label:
    """One thing that was really wrong."""

    node: str
    gpu_uuid: str
    cause_class: CauseClass
    onset: datetime
    failed_at: datetime | None

    @property
    def over(self) -> datetime:
        """The last moment that the label speaks of."""
        return self.failed_at or self.onset


@dataclass(frozen=True, slots=True)
class Match:
    """A label and the incident that found it, if any.

    `lead_s` is from the incident's opening, or the fault's onset if that is later, to the failure; None where the
    label says no failure.
    """

    label: Label
    incident: Incident | None
    lead_s: float | None

    @property
    def right_class(self) -> bool:
        """Whether the incident also named the right class."""
        return self.incident is not None and self.incident.cause_class is self.label.cause_class


def parse_time(text: str) -> datetime:
    """An aware UTC time from RFC 3339 or unix seconds; one without a zone is UTC. Raises ValueError."""
    stripped = text.strip()
    try:
        seconds = float(stripped)
    except ValueError:
        at = datetime.fromisoformat(stripped.upper())
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError) as error:
        raise ValueError(f"{stripped} seconds since 1970 is no time") from error


def read_labels(path: Path) -> list[Label]:
    """The labels of a CSV file. Raises LabelsError with the file and line."""
    labels = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, strict=True)
            missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise LabelsError(f"{path}:1: no column {', '.join(missing)}; expected {','.join(_COLUMNS)}")
            for row in rows:
                try:
                    labels.append(_label(row))
                except ValueError as error:
                    raise LabelsError(f"{path}:{rows.line_num}: {error}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LabelsError(f"{path} cannot be read: {error}") from error
    return labels


def _label(row: Mapping[str, str | None]) -> Label:
    """One row. Raises ValueError."""
    node, gpu_uuid, named, onset_at, failed = ((row[name] or "").strip() for name in _COLUMNS)
    if not node:
        raise ValueError("node: empty; a fault is on some node")
    if named.lower() not in set(CauseClass):
        raise ValueError(f"class: {named!r} is none of {', '.join(CauseClass)}")
    onset = _time("onset", onset_at)
    failed_at = _time("failed_at", failed) if failed else None
    if failed_at is not None and failed_at < onset:
        raise ValueError(f"failed_at: {failed} lies before onset {onset_at}")
    return Label(node, gpu_uuid, CauseClass(named.lower()), onset, failed_at)


def _time(column: str, text: str) -> datetime:
    try:
        return parse_time(text)
    except ValueError as error:
        raise ValueError(f"{column}: {text!r} is neither RFC 3339 nor unix seconds") from error


def within(labels: Sequence[Label], start: datetime, end: datetime) -> list[Label]:
    """The labels of faults that an audit of [start, end) could have found."""
    return [label for label in labels if label.onset < end and label.over >= start]


def match(labels: Sequence[Label], incidents: Sequence[Incident], span_end: datetime) -> list[Match]:
    """For each label the incident that found it: right class before any class, then the earliest."""
    matches = []
    for label in labels:
        fitting = [i for i in incidents if fits(label, i, span_end)]
        best = min(fitting, key=lambda i: (i.cause_class is not label.cause_class, i.opened, i.id), default=None)
        lead_s = None
        if best is not None and label.failed_at is not None:
            # An incident that is older than the fault foresaw nothing; it gets no credit for its age.
            lead_s = (label.failed_at - max(best.opened, label.onset)).total_seconds()
        matches.append(Match(label, best, lead_s))
    return matches


def fits(label: Label, incident: Incident, span_end: datetime) -> bool:
    """Whether an incident is about what a label says: the place, the kind of accusation, and the time.

    An incident began in time if one of its signals about the place did; one of the right class that was open already
    fits too. An incident that accuses no machine explains no machine's fault, and no machine is to blame for what a
    program, a blind monitor or a person at work did: those classes fit only themselves.
    """
    if not _same_node(label.node, incident.nodes):
        return False
    if label.gpu_uuid and incident.gpu_uuids and label.gpu_uuid not in incident.gpu_uuids:
        return False
    same_class = incident.cause_class is label.cause_class
    if not same_class and not NOT_ALARMS.isdisjoint((incident.cause_class, label.cause_class)):
        return False
    earliest, latest = label.onset - _EARLY, label.over + _LATE
    if any(earliest <= at <= latest for at in _beginnings(label, incident)):
        return True
    return same_class and incident.first_signal_at < earliest and end_of(incident, span_end) >= label.onset


def _beginnings(label: Label, incident: Incident) -> Iterator[datetime]:
    yield incident.first_signal_at
    for signal in incident.signals:
        if _same_node(label.node, (signal.node,)) and (not label.gpu_uuid or signal.gpu in ("", label.gpu_uuid)):
            yield signal.since


def _same_node(name: str, nodes: Sequence[str]) -> bool:
    return any(name == node or name.split(".", 1)[0] == node.split(".", 1)[0] for node in nodes)


def poisson_interval(count: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact (Garwood) interval of a Poisson mean from one count.

    >>> poisson_interval(0)[0], round(poisson_interval(0)[1], 2)
    (0.0, 3.69)
    """
    from scipy.stats import chi2  # noqa: PLC0415 - heavy, and only needed where labels are given

    tail = (1 - confidence) / 2
    low = float(chi2.ppf(tail, 2 * count) / 2) if count else 0.0
    return low, float(chi2.ppf(1 - tail, 2 * count + 2) / 2)


def score(
    labels: Sequence[Label], incidents: Sequence[Incident], start: datetime, end: datetime, days: float
) -> Mapping[str, Any]:
    """The part of the report's summary that needs labels. Labels outside [start, end) explain alarms and are not found.

    `days` is the time that was watched, which rates are of. False alarms are incidents that accuse a machine and fit
    no label at all; the second incident about one fault is a true alarm too.
    """
    known = within(labels, start, end)
    matches = match(known, incidents, end)
    by_class: dict[str, list[Match]] = defaultdict(list)
    for one in matches:
        by_class[one.label.cause_class.value].append(one)
    alarms = [i for i in incidents if i.cause_class not in NOT_ALARMS]
    true = sum(any(fits(label, i, end) for label in labels) for i in alarms)
    false = len(alarms) - true
    low, high = poisson_interval(false)
    leads = [m.lead_s for m in matches if m.lead_s is not None]
    return {
        "recall": {name: _recall(group) for name, group in sorted(by_class.items())},
        "lead_seconds": {
            "median": float(np.median(leads)) if leads else None,
            "p10": float(np.percentile(leads, 10)) if leads else None,
            "p90": float(np.percentile(leads, 90)) if leads else None,
            "missed": sum(m.incident is None for m in matches),
        },
        "false_alarms_per_day": {
            "count": false, "rate": false / days, "low": low / days, "high": high / days, "confidence": 0.95,
        },
        "precision": true / len(alarms) if alarms else None,
        "labels_outside_span": len(labels) - len(known),
        "labels": [_told(m) for m in matches],
    }  # fmt: skip


def _recall(group: Sequence[Match]) -> dict[str, float]:
    found = sum(m.incident is not None for m in group)
    right = sum(m.right_class for m in group)
    return {"found": found, "right_class": right, "total": len(group), "recall": found / len(group)}


def _told(one: Match) -> dict[str, Any]:
    label = one.label
    return {
        "node": label.node,
        "gpu_uuid": label.gpu_uuid,
        "class": label.cause_class,
        "onset": label.onset,
        "failed_at": label.failed_at,
        "incident": one.incident.id if one.incident is not None else None,
        "lead_seconds": one.lead_s,
        "right_class": one.right_class,
    }

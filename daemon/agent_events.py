"""What agents report, between the request and the ledger: taken apart, judged one by one, and made entries. Pure.

`daemon.intake` writes the entries, `daemon.event_inbox` reads them for the loop. Whatever an agent sends, what comes
out of here breaks no tick: its node is the token's, its numbers are in bounds, and its times have zones.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec

from daemon.agent.wire import MAX_REPORTS, MAX_TEXT, Refused, Report, WireError, report_id
from daemon.ledger import Entry, EntryKind, decode_body
from detectors.events import EXPORTER, KernelEvent
from detectors.identity import normal_pci
from rules.vocabulary import EventKind

#: A report is refused that is longer than this as JSON, and a batch whose name of something is.
MAX_REPORT_BYTES = 8192
_MAX_NAME = 253
#: A node's clock may be this much ahead; its events count as of now then, and where it is more, nothing of it counts.
MAX_AHEAD = timedelta(days=1)
#: No kernel logged anything about GPUs before.
_FIRST_YEAR, _LAST_YEAR = 2000, 2200
#: A machine that has been up for a century has a broken stamp.
_LONGEST_UPTIME_S = 3.2e9
_MOST_REPEATS = 10**9
_INT64 = 1 << 63
_BOOT_ID = re.compile(r"[0-9A-Za-z-]{0,64}")
_SOURCE = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_GPU_UUID = re.compile(r"[0-9A-Za-z-]{1,64}")
#: Sources of events that the daemon makes itself, which mean something of their own.
_OURS = frozenset({EXPORTER, "operation"})


class _Envelope(msgspec.Struct, frozen=True):
    node: str
    boot_id: str
    version: str
    reports: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_REPORTS)] = []


class _Named(msgspec.Struct, frozen=True):
    id: str


@dataclass(frozen=True, slots=True)
class Parcel:
    """A batch whose reports have been looked at one by one."""

    node: str
    version: str
    good: tuple[Report, ...] = ()
    refused: tuple[Refused, ...] = ()


def opened(body: bytes, now: datetime) -> Parcel:
    """A batch as it was sent, each report judged at `now`. Raises WireError, which says where it is none."""
    try:
        envelope = msgspec.json.decode(body, type=_Envelope)
    except (ValueError, RecursionError) as error:
        raise WireError(str(error)) from error
    for name in ("node", "boot_id", "version"):
        if len(getattr(envelope, name)) > _MAX_NAME:
            raise WireError(f"{name} is longer than {_MAX_NAME} characters")
    found = [_report(raw, number, now) for number, raw in enumerate(envelope.reports)]
    good = tuple(one for one in found if isinstance(one, Report))
    refused = tuple(one for one in found if isinstance(one, Refused))
    return Parcel(envelope.node, envelope.version, good, refused)


def _report(raw: msgspec.Raw, number: int, now: datetime) -> Report | Refused:
    """One report, or why it is not taken. Raises WireError where it cannot even be named."""
    try:
        name = msgspec.json.decode(raw, type=_Named).id
    except (ValueError, RecursionError) as error:
        raise WireError(f"reports[{number}]: {error}") from error
    if len(name) > _MAX_NAME:
        raise WireError(f"reports[{number}].id is longer than {_MAX_NAME} characters")
    if memoryview(raw).nbytes > MAX_REPORT_BYTES:
        return Refused(name, f"the report is longer than {MAX_REPORT_BYTES} bytes")
    try:
        report = msgspec.json.decode(raw, type=Report)
    except (ValueError, RecursionError) as error:
        return Refused(name, str(error))
    why = why_not(report)
    return Refused(name, why) if why else _believed(report, now)


def why_not(report: Report) -> str:
    """Why a report is never taken, "" where it is."""
    event = report.event
    if len(event.text) > MAX_TEXT:
        return f"event.text is longer than {MAX_TEXT} characters"
    checks = (_wrong_name(report), _wrong_place(event), _wrong_number(event), _wrong_time(report))
    return next(filter(None, checks), "")


def _wrong_name(report: Report) -> str:
    event = report.event
    if event.sequence is None or not 0 <= event.sequence < _INT64:
        return f"event.sequence {event.sequence} is no place in a log"
    if _SOURCE.fullmatch(event.source) is None or event.source in _OURS:
        return f"event.source {event.source!r} is not an agent's"
    if _BOOT_ID.fullmatch(event.boot_id) is None:
        return "event.boot_id is no boot id"
    if report.id != report_id(event):
        return f"its id does not fit its event, whose own is {report_id(event)}"
    return ""


def _wrong_place(event: KernelEvent) -> str:
    if event.pci is not None and normal_pci(event.pci) != event.pci:
        return "event.pci is no PCI address like 0000:5c:00"
    if event.gpu_uuid is not None and _GPU_UUID.fullmatch(event.gpu_uuid) is None:
        return "event.gpu_uuid is no UUID"
    return ""


def _wrong_number(event: KernelEvent) -> str:
    if not 1 <= event.count <= _MOST_REPEATS:
        return f"event.count is not within 1 and {_MOST_REPEATS}"
    if event.monotonic_s is not None and not 0 <= event.monotonic_s <= _LONGEST_UPTIME_S:
        return "event.monotonic_s is no time since boot"
    for name in ("line", "code", "gpu_instance", "compute_instance", "pid", "secondary_to", "recovery_value"):
        number = getattr(event, name)
        if number is not None and not -_INT64 <= number < _INT64:
            return f"event.{name} has more than 64 bits"
    if not all(0 <= register < 2 * _INT64 for register in event.registers):
        return "event.registers has one of more than 64 bits"
    return ""


def _wrong_time(report: Report) -> str:
    for name, at in (("event.at", report.event.at), ("last_at", report.last_at)):
        if at is not None and at.tzinfo is None:
            return f"{name} has no time zone"
    return ""


def _believed(report: Report, now: datetime) -> Report:
    """The report without times that no fault can have: a node whose clock is wrong loses no fault by it.

    A clock without a battery says 1970 until somebody sets it, and that is when a node that is ill boots.
    """
    event = report.event
    if event.at is not None and _is_wrong(event.at, now):
        note = f"the node's clock was wrong, it said {event.at:%Y-%m-%d}"
        return replace(report, event=replace(event, at=None, notes=(*event.notes, note)), last_at=None)
    if report.last_at is not None and _is_wrong(report.last_at, now):
        return replace(report, last_at=None)
    return report


def _is_wrong(at: datetime, now: datetime) -> bool:
    return not _FIRST_YEAR <= at.year < _LAST_YEAR or at > now + MAX_AHEAD


# ------------------------------------------------------------------------------------------------------- ledger entries


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """The body of an entry: what an agent reported. `last_at` is the time of the last of `event.count` equal ones."""

    event: KernelEvent
    last_at: datetime | None = None
    agent: str = ""
    pod: str = ""


_DEFAULTS: Mapping[str, Any] = msgspec.to_builtins(KernelEvent(EventKind.XID, None, ""))
_ALWAYS = frozenset({"kind", "code", "text", "trusted"})


def entries_of(reports: Sequence[Report], node: str, agent: str, pod: str, now: datetime) -> list[Entry]:
    """One entry a report, in their order, under keys by which a report that comes again is known. The node is this one.

    What every event has and says nothing is left out, so that a flood costs as little as it can.
    """
    found = []
    for report in reports:
        # msgspec and not `encode_body`, which takes ten times as long; there is no NaN in what was sent as JSON
        event = msgspec.to_builtins(report.event) | {"node": node, "at": _utc(report.event.at)}
        body = {
            "event": {name: value for name, value in event.items() if name in _ALWAYS or value != _DEFAULTS[name]},
            "last_at": _utc(report.last_at), "agent": agent, "pod": pod,
        }  # fmt: skip
        at = now if report.event.at is None else min(report.event.at.astimezone(UTC), now)
        found.append(Entry(EntryKind.EVENT, at, body, None, node, report.event.gpu_uuid, f"event/{node}/{report.id}"))
    return found


def _utc(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def events_in(entry: Entry, now: datetime) -> tuple[KernelEvent, ...]:
    """The events of an entry: one, or the first and the last of several equal ones, the last with the others' count.

    A time that the event does not have, or that has not come yet, is the time of the entry. Raises EntryError.
    """
    told = decode_body(entry.body, AgentEvent)
    latest = min(now, entry.written or now)
    event = replace(
        told.event, node=entry.node or "", at=min(told.event.at or latest, latest), source=f"agent {told.event.source}"
    )
    if event.count <= 1 or event.at is None:
        return (event,)
    last_at = max(event.at, min(told.last_at or event.at, latest))
    moved_s = (last_at - event.at).total_seconds()
    monotonic_s = None if event.monotonic_s is None else event.monotonic_s + moved_s
    return replace(event, count=1), replace(event, count=event.count - 1, at=last_at, monotonic_s=monotonic_s)

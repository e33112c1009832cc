"""What one entry of the ledger is, and how the house's values become its body and come back.

Used by whoever writes (the loop, the executor, the console) and whoever reads (reports, the console, a restart).
Values only; `daemon.ledger.store` does the I/O.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from numbers import Integral, Real
from typing import Any, NoReturn, TypeAlias, TypeVar

import msgspec

#: What JSON can hold.
Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

#: The body of an entry: plain JSON values only, as `encode_body` makes them.
Body = Mapping[str, Any]

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class EntryError(ValueError):
    """A value that cannot go into the ledger. The text says where in the body it is, and what is wrong with it."""


class EntryKind(StrEnum):
    """What an entry records.

    `ATTEMPT` is written before the cluster is changed, `OUTCOME` after it. `RESTART` is how far the restart of a job
    has come, written before each step of it. `OPERATION` is how far work on a node itself has come. `TICKET` is how far
    a ticket to people has come, written before it is sent and after its answer. `HUMAN` is what a person said: an
    approval, a hold, a label. `EVENT` is what the agent of a node reported, written before the agent may forget it.
    """

    RUN_STARTED = "run_started"
    INCIDENT_OPENED = "incident_opened"
    INCIDENT_CHANGED = "incident_changed"
    INCIDENT_CLOSED = "incident_closed"
    VERDICT_CHANGED = "verdict_changed"
    DECISION = "decision"
    ATTEMPT = "attempt"
    OUTCOME = "outcome"
    RESTART = "restart"
    TICKET = "ticket"
    OPERATION = "operation"
    HUMAN = "human"
    COVERAGE = "coverage"
    EVENT = "event"


#: Kinds of which the newest, for one incident, says whether it is open and what is known about it.
INCIDENT_KINDS = (EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_CHANGED, EntryKind.INCIDENT_CLOSED)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the record.

    `at` is when the thing happened, `written` when the ledger took it; both are aware and exact to the microsecond.
    An entry that is not written yet has id 0 and no `written`. Ids start at 1, grow in the order of commits, and
    have no gaps. `key` makes a retry harmless: of all entries with one key only the first is written.
    """

    kind: EntryKind
    at: datetime
    body: Body
    incident: str | None = None
    node: str | None = None
    gpu_uuid: str | None = None
    key: str | None = None
    id: int = 0
    written: datetime | None = None

    def __post_init__(self) -> None:
        if self.at.tzinfo is None:
            raise EntryError(f"{self.kind}: at: {self.at.isoformat()} has no time zone; give an aware UTC time")
        for name in ("incident", "node", "gpu_uuid", "key"):
            text = getattr(self, name)
            if text is not None and not _is_storable(text):
                raise EntryError(f"{self.kind}: {name}: {text!r} holds a NUL or half a surrogate pair; clean it first")


def _is_storable(text: str) -> bool:
    """Whether both databases take the text as it is: PostgreSQL refuses NUL, neither takes a lone surrogate."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def to_micros(moment: datetime) -> int:
    """Integer microseconds since 1970-01-01 UTC of an aware time, exact."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The UTC time of integer microseconds since 1970-01-01 UTC, exact."""
    return _EPOCH + micros * _MICROSECOND


# ------------------------------------------------------------------------------------------- to JSON


def encode_body(value: object) -> Body:
    """A dataclass or a map as the body of an entry, keys sorted.

    Raises:
        EntryError: it is neither, or holds something that `to_jsonable` refuses.
    """
    body = to_jsonable(value)
    if not isinstance(body, dict):
        raise EntryError(f"a body is a dataclass or a map, not {type(value).__name__}; wrap it: {{'value': ...}}")
    return body


def to_jsonable(value: object) -> Plain:
    """Plain JSON values for the house's own: dataclasses, enums, aware datetimes, tuples, sets, and their nestings.

    Datetimes become RFC 3339 UTC with `Z`, microseconds where there are any. Sets become sorted lists, numpy's scalars
    plain numbers. JSON has no NaN and no infinities, so they become the text `NaN`, `Infinity`, `-Infinity`, which
    `decode_body` reads back.

    Raises:
        EntryError: a naive datetime, a key that is not text, or a type that has no JSON form; with the path to it.
    """
    try:
        return _convert(value)
    except _RefusedError as refusal:
        raise EntryError(f"{'.'.join(reversed(refusal.path)) or 'the value'}: {refusal.reason}") from None


def dump(body: Body) -> str:
    """The body as the text that is stored: sorted keys, no spaces, ASCII, so any text of a kernel log passes."""
    try:
        return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EntryError(f"the body is not plain JSON: {error}; make it with encode_body()") from error


class _RefusedError(Exception):
    """Carries a refusal up to the root; each level adds its own part of the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


def _convert(value: object) -> Plain:
    kind = type(value)
    convert = _CONVERTERS.get(kind)
    if convert is None:
        convert = _CONVERTERS[kind] = _converter(kind)
    return convert(value)


def _converter(kind: type) -> Callable[[Any], Plain]:
    """How values of exactly this type are converted."""
    if kind in (str, int, bool, type(None)):
        return lambda value: value
    if is_dataclass(kind):
        names = sorted(field.name for field in fields(kind))
        return lambda value: _map((name, getattr(value, name)) for name in names)
    if issubclass(kind, Enum):
        return lambda value: _convert(value.value)
    for base, convert in _BY_BASE:
        if issubclass(kind, base):
            return convert
    return _refuse


def _map(items: Iterable[tuple[Any, Any]]) -> dict[str, Plain]:
    converted: dict[str, Plain] = {}
    for key, value in items:
        if not isinstance(key, str):
            raise _RefusedError(f"the key {key!r} is {type(key).__name__}; JSON has text keys only")
        try:
            converted[str(key)] = _convert(value)
        except _RefusedError as refusal:
            refusal.path.append(key)
            raise
    return converted


def _mapping(value: Mapping[Any, Any]) -> dict[str, Plain]:
    return dict(sorted(_map(value.items()).items()))


def _sequence(value: list[Any] | tuple[Any, ...]) -> list[Plain]:
    converted: list[Plain] = []
    for index, item in enumerate(value):
        try:
            converted.append(_convert(item))
        except _RefusedError as refusal:
            refusal.path.append(str(index))
            raise
    return converted


def _set(value: set[Any] | frozenset[Any]) -> list[Plain]:
    return sorted(_sequence(list(value)), key=lambda item: json.dumps(item, sort_keys=True))


def _float(value: float) -> float | str:
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _datetime(value: datetime) -> str:
    if value.tzinfo is None:
        raise _RefusedError(f"{value.isoformat()} has no time zone; give an aware UTC time")
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _refuse(value: object) -> NoReturn:
    raise _RefusedError(f"{type(value).__name__} has no JSON form; convert it first")


_BY_BASE: tuple[tuple[type, Callable[[Any], Plain]], ...] = (
    (datetime, _datetime),
    (str, str),
    (Mapping, _mapping),
    (list, _sequence),
    (tuple, _sequence),
    (set, _set),
    (frozenset, _set),
    (Integral, int),
    (Real, _float),
)


#: Filled as types are met: a tick converts the same few types a hundred thousand times.
_CONVERTERS: dict[type, Callable[[Any], Plain]] = {}


# ----------------------------------------------------------------------------------------- from JSON


def load(text: str) -> Body:
    """The body that `dump` wrote."""
    body: Body = json.loads(text)
    return body


def decode_body(body: Body, as_type: type[T]) -> T:
    """A body as the dataclass it was made from; fields that the type no longer has are left out.

    Raises:
        EntryError: a field that the type needs is absent or has another type.
    """
    try:
        return msgspec.convert(body, as_type, strict=False)  # not strict: "NaN" and "Infinity" are floats here
    except msgspec.ValidationError as error:
        raise EntryError(f"the body is no {as_type.__name__}: {error}") from error

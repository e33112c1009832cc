"""What agent and controller say to each other: reports in batches, and a receipt. Values and their JSON; no I/O.

A report's id is made of where it stands in its log, so that sending it again is the same report. The node is what the
token is bound to; what a batch says of it has to agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import msgspec

from detectors.events import KernelEvent

T = TypeVar("T")

#: Where the controller takes batches.
PATH = "/api/v1/agent/events"
#: The audience that an agent's token has to have.
AUDIENCE = "gpuwarden"
#: Beyond these a batch is refused as a whole.
MAX_BATCH_BYTES = 1 << 20
MAX_REPORTS = 500
MAX_TEXT = 1024


class WireError(ValueError):
    """What was sent is no batch, or no receipt. The text says where it is wrong."""


@dataclass(frozen=True, slots=True)
class Report:
    """One event on its way. `last_at` is the time of the last of `event.count` equal ones, None for a single one."""

    id: str
    event: KernelEvent
    last_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What one request carries. `boot_id` is the node's present boot, `version` the agent's."""

    node: str
    boot_id: str
    version: str
    reports: tuple[Report, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A report that the controller will never take, and why: the agent counts it and lets it go."""

    id: str
    why: str


#: The header by which an agent knows that the intake itself refuses, and why, and not something in between.
RESULT_HEADER = "Gpuwarden-Result"


@dataclass(frozen=True, slots=True)
class Receipt:
    """Ids of the reports that are in the ledger now, new or known before; and those that never will be."""

    taken: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = field(default=())


def report_id(event: KernelEvent) -> str:
    """Where an event stands in its log: `source:boot:sequence`.

    >>> from rules.vocabulary import EventKind
    >>> report_id(KernelEvent(EventKind.XID, 79, "", boot_id="b", sequence=7, source="kmsg"))
    'kmsg:b:7'
    """
    return f"{event.source}:{event.boot_id}:{event.sequence}"


def encode(value: Batch | Receipt) -> bytes:
    """As JSON."""
    return msgspec.json.encode(value)


def decode_batch(body: bytes) -> Batch:
    """Raises WireError."""
    return _decoded(body, Batch)


def decode_receipt(body: bytes) -> Receipt:
    """Raises WireError."""
    return _decoded(body, Receipt)


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind, strict=True)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise WireError(str(error)) from error


def batches(reports: Sequence[Report], node: str, boot_id: str, version: str) -> tuple[Batch, bytes] | None:
    """The first reports as one batch that the controller would take, with its JSON; None for no reports."""
    some = list(reports[:MAX_REPORTS])
    while some:
        batch = Batch(node, boot_id, version, tuple(some))
        body = encode(batch)
        if len(body) <= MAX_BATCH_BYTES:
            return batch, body
        some = some[: len(some) // 2]
    return None

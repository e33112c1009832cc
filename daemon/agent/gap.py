"""A stretch of a log that nobody read, as an event: silence there is not health (NVSentinel 1417)."""

from dataclasses import replace
from datetime import datetime

from daemon.agent.position import Position
from detectors.events import KernelEvent
from rules.vocabulary import EventKind, Severity


def gap(begin: datetime | None, end: datetime, what: str, *, sequence: int, boot_id: str, source: str) -> KernelEvent:
    """The event of a gap from `begin` (None: nobody knows) to `end`; `what` says what is missing or why.

    `sequence` is that of a record that is missing, so no other event has it.
    """
    since = f"from {_stamp(begin)} to" if begin is not None else "up to"
    return KernelEvent(
        EventKind.COVERAGE_LOST, None, f"log coverage lost {since} {_stamp(end)}: {what}", at=end, sequence=sequence,
        boot_id=boot_id, source=source,
    )  # fmt: skip


def reboot_gap(since: Position, booted: datetime, source: str) -> KernelEvent:
    """The end of the boot before: what the kernel said after `since` is in no log that outlived the reboot.

    Most of what it may have said is over with that boot, so it is recorded and nobody is called for it.
    """
    told = gap(
        since.at, booted, "the node booted anew, and the end of the log before is gone",
        sequence=since.sequence + 1, boot_id=since.boot_id, source=source,
    )  # fmt: skip
    return replace(told, severity=Severity.INFO)


def _stamp(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"

"""`gpuwarden mttr`: how long it took from a fault until the jobs that it hit had resumed, by class of failure.

Measured, from the first signal of the incident to the level of the resume ladder that was reached, over the restarts
in the ledger. Restarts that failed are counted beside, and not among the times: a job that never came back has none.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from daemon.commands.output import ExitCode, settings, show
from daemon.commands.record import ended, require_ledger, restarts_of
from daemon.config import Config
from daemon.ledger import EntryKind, Ledger
from daemon.ledger.entries import to_jsonable
from remediation.restoring import Restart, Stage

_HEAD = ("CLASS", "LEVEL", "RESTARTS", "FAILED", "P50", "P95", "P99", "LOST")


@dataclass(frozen=True, slots=True)
class Recovery:
    """The restarts of one class of failure that reached one level. Times in seconds, None where none ended well.

    `lost_gpu_hours` is the sum over those whose checkpoint was known.
    """

    cause_class: str
    level: int
    restarts: int
    failed: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    lost_gpu_hours: float


def mttr(path: Path | None, days: float, form: str, *, now: datetime | None = None) -> int:
    """Print the table of the last `days`."""
    return ended(lambda: _mttr(settings(path)[0], days, form, now or datetime.now(UTC)))


def _mttr(config: Config, days: float, form: str, now: datetime) -> int:
    require_ledger(config)
    since = now - timedelta(days=days)
    with Ledger.open(config.ledger.url, now=lambda: now) as ledger:
        restarts = [one for one in restarts_of(ledger, None, since) if one.moves]
        classes = {
            str(entry.incident): str(entry.body.get("cause_class", "unknown"))
            for entry in ledger.entries(kind=EntryKind.INCIDENT_OPENED, incident={one.incident for one in restarts})
        }
    rows = recoveries(restarts, classes)
    show({"days": days, "recoveries": to_jsonable(rows)}, form, _table(rows), _HEAD)
    return ExitCode.OK


def recoveries(restarts: Sequence[Restart], classes: dict[str, str]) -> tuple[Recovery, ...]:
    """The restarts that have ended, by class of failure and by the level that they reached."""
    groups: dict[tuple[str, int], list[Restart]] = defaultdict(list)
    for one in restarts:
        if not one.stage.is_open:
            groups[classes.get(one.incident, "unknown"), one.level].append(one)
    return tuple(_of(cause, level, several) for (cause, level), several in sorted(groups.items()))


def _of(cause_class: str, level: int, several: Sequence[Restart]) -> Recovery:
    times = [one.recovery_s for one in several if one.stage is Stage.DONE and one.recovery_s is not None]
    p50, p95, p99 = (float(np.percentile(times, share)) if times else None for share in (50, 95, 99))
    failed = sum(one.stage is Stage.FAILED for one in several)
    lost = sum(one.lost_gpu_hours or 0.0 for one in several)
    return Recovery(cause_class, level, len(several), failed, p50, p95, p99, lost)


def _table(rows: Iterable[Recovery]) -> Iterable[tuple[str, ...]]:
    for one in rows:
        level = f"L{one.level}" if one.level >= 0 else "-"
        times = (("-" if value is None else f"{value:.0f} s") for value in (one.p50_s, one.p95_s, one.p99_s))
        yield one.cause_class, level, str(one.restarts), str(one.failed), *times, f"{one.lost_gpu_hours:.1f} GPU-h"

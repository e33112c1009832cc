"""`gpuwarden chronic`: which GPUs, nodes and slots keep failing, and when things of this site fail after a return.

Read from the ledger's incidents: each counts against the things that it was seen on, whatever was reset or repaired
since. Suspicion counts for nothing, and neither does what hit many nodes at once. It says too what the daemon does by
it, if anything.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from daemon.commands.output import CommandError, ExitCode, say, settings, show
from daemon.commands.record import another_version, as_values, ended, remembered, require_ledger
from daemon.config import Config
from daemon.ledger import EntryKind, Ledger, to_jsonable
from daemon.memory import read_created
from daemon.outages import exposures_of, outages_of, too_many
from detectors.chronic import ChronicLimits, ChronicScore, scores
from detectors.findings import Incident
from detectors.hazard import HazardRow, HazardTable, hazard_table, kind_of
from rules.restore_schema import ChronicPolicy
from rules.schema import RuleBook

_HEAD = ("THING", "OUTAGES", "LAST RETURN (UTC)", "NEXT WEEK", "x FLEET", "CHANCE", "CHRONIC", "WHY")
_ROWS = ("SINCE RETURN", "OUTAGES", "DAYS IN SERVICE", "A DAY", "x FLEET", "95 % INTERVAL")


def chronic(path: Path | None, kind: str, top: int, form: str, *, now: datetime | None = None) -> int:
    """Print the `top` things of one kind, the likeliest to fail next first, and the table of this site's returns."""
    return ended(lambda: _chronic(*settings(path), kind, top, form, now or datetime.now(UTC)))


def _chronic(config: Config, rules: RuleBook, kind: str, top: int, form: str, now: datetime) -> int:
    require_ledger(config)
    with Ledger.open(config.ledger.url, now=lambda: now) as ledger:
        known, created = remembered(ledger), _created(ledger)
        begun = next(iter(ledger.entries(kind=EntryKind.RUN_STARTED, limit=1)), None)
        bodies = (one.body for one in ledger.entries(kind=(EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_CLOSED)))
        incidents = {one.id: one for one in as_values(ledger, bodies, Incident)}
    if begun is None:
        raise CommandError("the ledger holds no run yet", ExitCode.PROBLEMS)
    every = outages_of(incidents.values(), known.places, created)
    outages = [one for one in every if kind_of(one.thing) == kind]
    there = {one.gpu for one in known.verdicts}
    places = {gpu: place for gpu, place in known.places.items() if gpu in there}
    things = list(exposures_of(places, kind, begun.at, created))
    ranked = scores(outages, things, now, ChronicLimits.of(rules.policy.chronic))
    table = hazard_table(outages, things, (begun.at, max(now, begun.at + timedelta(seconds=1))))
    acts = _acts(kind, ranked, rules.policy.chronic)
    if form != "table":
        told = {"since": begun.at, "quarantine": rules.policy.chronic.quarantine, "acts": acts, "things": ranked[:top]}
        show({**{name: to_jsonable(one) for name, one in told.items()}, "returns": _as_data(table)}, form)
        return ExitCode.OK
    failed = [one for one in ranked if one.outages]
    show(None, "table", (_row(one) for one in failed[:top]), _HEAD)
    say(acts)
    say()
    count = sum(one.until is None for one in things)
    say(f"since {begun.at:%Y-%m-%d %H:%M} UTC: {count} {kind}s, {len(failed)} with an outage; when they fail again")
    show(None, "table", _hazard_rows(table), _ROWS)
    return ExitCode.OK


def _created(ledger: Ledger) -> dict[str, datetime]:
    try:
        return read_created(ledger)
    except ValueError as error:
        raise another_version(ledger, "nodes", error) from error


def _acts(kind: str, ranked: Sequence[ChronicScore], policy: ChronicPolicy) -> str:
    """What the daemon does by these scores."""
    if kind == "slot":
        return "nothing is done by the scores of slots"
    if not policy.quarantine:
        return "nothing is done by the scores: policy chronic.quarantine is off"
    said = f"the next outage of a chronic {kind} ends in quarantine for service, where the daemon sees the cluster"
    return too_many(ranked, policy) or said


def _row(one: ChronicScore) -> tuple[str, ...]:
    times = one.rate_per_day / one.fleet_rate_per_day if one.fleet_rate_per_day else math.nan
    returned = "out now" if one.out_now else "-" if one.last_return is None else f"{one.last_return:%Y-%m-%d %H:%M}"
    mark = "yes" if one.chronic else "no"
    week = f"{one.hazard_next_week:.3f}"
    return one.thing, str(one.outages), returned, week, f"{times:.1f}", f"{one.chance:.2f}", mark, one.why


def _hazard_rows(table: HazardTable) -> Iterator[tuple[str, ...]]:
    for row in table.rows:
        until = f" to {row.to_day:g} d" if math.isfinite(row.to_day) else " d +"
        yield _hazard_row(f"{row.from_day:g}{until}", row)
    yield _hazard_row("never failed before", table.before_first)
    yield _hazard_row("all", table.fleet)


def _hazard_row(name: str, row: HazardRow) -> tuple[str, ...]:
    interval = f"{row.low_per_day:.4f} to {row.high_per_day:.4f}" if row.exposure_days else "-"
    return (
        name, str(row.outages), f"{row.exposure_days:.1f}", f"{row.hazard_per_day:.4f}" if row.exposure_days else "-",
        f"{row.times_fleet:.1f}" if row.exposure_days else "-", interval,
    )  # fmt: skip


def _as_data(table: HazardTable) -> dict[str, Any]:
    """The table with null where a row has no end, or nothing is known."""
    rows = {"rows": [_plain(row) for row in table.rows]}
    return {**rows, "before_first": _plain(table.before_first), "fleet": _plain(table.fleet)}


def _plain(row: HazardRow) -> dict[str, float | None]:
    values = {name: float(getattr(row, name)) for name in HazardRow.__dataclass_fields__}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}

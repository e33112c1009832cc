"""The four to six numbers on top of the page. `page` calls `tiles`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from daemon.report import wording
from daemon.report.decisions import Ruled, would_act
from daemon.report.model import FleetRow
from daemon.report.reading import FalseAlarms, IncidentRow, LostWorkSum, Summary
from remediation.decide import Ruling
from rules.vocabulary import Tier

TIER_NAMES = {Tier.FACT: "fact", Tier.TREND: "trend", Tier.SUSPICION: "suspicion"}
_DETAILS = 4


@dataclass(frozen=True, slots=True)
class Number:
    """One tile: a title, the number, and lines that qualify it."""

    title: str
    value: str
    lines: tuple[str, ...]


def tiles(
    summary: Summary, incidents: Sequence[IncidentRow], ruled: Sequence[Ruled], fleet: Sequence[FleetRow]
) -> tuple[Number, ...]:
    """The tiles; false alarms only where labels were given, lost work only where the report has it."""
    numbers = [
        Number("GPU-days watched", wording.number(summary.gpu_days), _watched(summary, fleet)),
        Number("Incidents", f"{len(incidents):,}", _by_tier(incidents, summary)),
        Number("Would have acted", f"{len(would_act(ruled)):,}", _rulings(ruled)),
        Number("Coverage", wording.percent(summary.coverage.share), _coverage(summary)),
    ]
    if summary.lost_work is not None:
        numbers.append(_lost_work(summary.lost_work))
    if summary.false_alarms_per_day is not None:
        numbers.append(_false_alarms(summary.false_alarms_per_day, summary.precision))
    return tuple(numbers)


def _watched(summary: Summary, fleet: Sequence[FleetRow]) -> tuple[str, ...]:
    span = f"over {wording.duration((summary.end - summary.start).total_seconds())}"
    gpus = sum(len(row.gpus) for row in fleet)
    return (f"{wording.plural(gpus, 'GPU')} on {wording.plural(len(fleet), 'node')}", span) if gpus else (span,)


def _by_tier(incidents: Sequence[IncidentRow], summary: Summary) -> tuple[str, ...]:
    count = Counter(incident.tier for incident in incidents)
    rates = {Tier(int(tier)): rate for tier, rate in summary.episodes_per_day.items() if tier in {"0", "1", "2"}}
    return tuple(
        wording.plural(count[tier], name) + (f", {wording.number(rates[tier])} a day" if tier in rates else "")
        for tier, name in TIER_NAMES.items()
    )


def _rulings(ruled: Sequence[Ruled]) -> tuple[str, ...]:
    disruptive = [one for one in ruled if one.is_disruptive]
    nodes = len({one.decision.node for one in disruptive})
    verdicts = Counter(one.decision.verdict for one in ruled)
    others = ", ".join(
        f"{verdicts[verdict]:,} {word}"
        for verdict, word in ((Ruling.ASK, "asked"), (Ruling.WAIT, "waited"), (Ruling.REFUSE, "refused"))
    )
    if not disruptive:
        return ("nothing disruptive", others)
    return (f"{len(disruptive):,} of them disruptive, on {wording.plural(nodes, 'node')}", others)


def _coverage(summary: Summary) -> tuple[str, ...]:
    detail = summary.coverage.detail
    shown = tuple(wording.short(line, 80) for line in detail[:_DETAILS])
    more = (f"and {len(detail) - _DETAILS} more kinds",) if len(detail) > _DETAILS else ()
    return shown + more or ("of signals, GPUs and time",)


def _lost_work(lost: LostWorkSum) -> Number:
    """What is sure (the detection of facts), and what each hour since the last checkpoints adds to it."""
    stopped = wording.plural(lost.incidents, "incident")
    if not lost.incidents:
        return Number("Lost work", "none", ("no incident called for a job's stop",))
    lines = [f"GPU-hours of detection, in {stopped} that would stop jobs"]
    if lost.gpu_hours_per_hour_of_interval is not None:
        rate = wording.number(lost.gpu_hours_per_hour_of_interval)
        lines.append(f"and {rate} for each hour since their last checkpoints, and until they are back")
    if lost.unknown:
        lines.append(f"{wording.plural(lost.unknown, 'incident')} of jobs that no metric names")
    return Number("Lost work", wording.number(lost.detection_gpu_hours), tuple(lines))


def _false_alarms(rate: FalseAlarms, precision: float | None) -> Number:
    lines: list[str] = []
    if rate.low is not None and rate.high is not None:
        lines.append(f"95 % interval {wording.number(rate.low)} to {wording.number(rate.high)}")
    if precision is not None:
        lines.append(f"precision {wording.percent(precision)}")
    return Number("False alarms a day", wording.number(rate.rate), tuple(lines))

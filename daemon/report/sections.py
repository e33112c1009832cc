"""What one incident's section and its row in the table hold. `page` makes them, its templates show them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from daemon.report import wording
from daemon.report.decisions import Ruled
from daemon.report.model import FleetRow, LogLine, Plot
from daemon.report.plotting import Drawing, draw_plot
from daemon.report.reading import IncidentRow, LostWorkRow, SignalRow

MOST_PLOTS = 8
MOST_SIGNALS = 40
MOST_LOG_LINES = 60
MOST_NAMES = 24
_SIGNALS_OPEN = 6
_LOG_LINES_OPEN = 12
_DECISIONS_OPEN = 3
_MOST_DECISIONS = 20
_MOST_JOBS = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Folded(Generic[T]):
    """A list of which the page shows a first part at once, a second on request, and counts the rest."""

    shown: tuple[T, ...]
    folded: tuple[T, ...]
    cut: int


@dataclass(frozen=True, slots=True)
class Listed:
    """An incident in the page's order: its anchor, where it is in words, and its decisions, strongest first."""

    incident: IncidentRow
    anchor: str
    where: str
    ruled: tuple[Ruled, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """All that is shown of one incident."""

    listed: Listed
    gpus: tuple[str, ...]
    nodes: tuple[str, ...]
    lost: tuple[str, ...]
    decisions: Folded[Ruled]
    drawings: tuple[Drawing, ...]
    cut_plots: int
    signals: Folded[SignalRow]
    log_lines: Folded[LogLine]

    @property
    def incident(self) -> IncidentRow:
        """The incident itself."""
        return self.listed.incident


class Names:
    """What people call a GPU: its node, index and model, looked up by UUID."""

    def __init__(self, fleet: Sequence[FleetRow]) -> None:
        self._known = {cell.uuid: (row.node, cell.index, cell.model) for row in fleet for cell in row.gpus}
        self._racks = {row.node: row.rack for row in fleet}

    def index(self, uuid: str) -> str | None:
        """`GPU 3`, or None for a GPU that the fleet does not list."""
        known = self._known.get(uuid)
        return f"GPU {known[1]}" if known is not None and known[1] else None

    def gpu(self, uuid: str) -> str:
        """`node-7 GPU 3, H100`; empty for a GPU that the fleet does not list."""
        node, _, model = self._known.get(uuid, ("", "", ""))
        return ", ".join(part for part in (f"{node} {self.index(uuid) or ''}".strip(), model) if part)

    def where(self, incident: IncidentRow) -> str:
        """`node-7 GPU 3`, `node-7, 4 GPUs`, `12 nodes of rack r2` or, without a node, the scope."""
        nodes = incident.nodes or ((incident.node,) if incident.node else ())
        if not nodes:
            return str(incident.scope)
        if len(nodes) > 1:
            racks = {self._racks.get(node, "") for node in nodes}
            rack = racks.pop() if len(racks) == 1 else ""
            return wording.plural(len(nodes), "node") + (f" of rack {rack}" if rack else "")
        if not incident.gpu_uuids:
            return nodes[0]
        if len(incident.gpu_uuids) == 1:
            uuid = incident.gpu_uuids[0]
            return f"{nodes[0]} {self.index(uuid) or wording.short(uuid, 12)}"
        return f"{nodes[0]}, {len(incident.gpu_uuids)} GPUs"


def make_section(
    listed: Listed,
    plots: Sequence[Plot],
    log_lines: Sequence[LogLine],
    points: int,
) -> Section:
    """The section; each plot line gets at most `points` points."""
    incident = listed.incident
    signals = sorted(incident.signals, key=lambda one: (one.tier, one.detector, one.rule))
    return Section(
        listed,
        incident.gpu_uuids[:MOST_NAMES],
        (incident.nodes or (incident.node,))[:MOST_NAMES],
        _lost(incident.lost_work) if incident.lost_work is not None else (),
        fold_list(listed.ruled, _DECISIONS_OPEN, _MOST_DECISIONS),
        tuple(draw_plot(plot, f"{listed.anchor}.p{place}", points) for place, plot in enumerate(plots[:MOST_PLOTS])),
        max(len(plots) - MOST_PLOTS, 0),
        fold_list(signals, _SIGNALS_OPEN, MOST_SIGNALS),
        fold_list(log_lines, _LOG_LINES_OPEN, MOST_LOG_LINES),
    )


def _lost(lost: LostWorkRow) -> tuple[str, ...]:
    """An incident's lost work in sentences: whose, and what it comes to as far as an audit can know."""
    if lost.gang_gpus is None:
        return ("not known: no metric says whose job ran here",)
    if not lost.gang_gpus:
        return ("none: no job ran here",)
    more = f" and {len(lost.jobs) - _MOST_JOBS} more" if len(lost.jobs) > _MOST_JOBS else ""
    whose = f"{wording.plural(lost.gang_gpus, 'GPU')} of {', '.join(lost.jobs[:_MOST_JOBS])}{more}"
    rate = wording.number(lost.gpu_hours_per_hour_of_interval)
    lines = [whose, f"{rate} GPU-hours for each hour since the last checkpoint, and until the job is back"]
    if lost.detection_gpu_hours is not None:
        took = wording.duration(lost.detection_seconds)
        lines.append(f"{wording.number(lost.detection_gpu_hours)} GPU-hours for the detection, {took}")
    if not lost.stops_work:
        lines.append("its plan stops no job, so that is lost only where the job ends by itself")
    return tuple(lines)


def fold_list(items: Sequence[T], at_once: int, most: int) -> Folded[T]:
    """The first `at_once` items open, the next up to `most` folded, the rest counted."""
    return Folded(tuple(items[:at_once]), tuple(items[at_once:most]), max(len(items) - most, 0))


def by_incident(ruled: Sequence[Ruled]) -> Mapping[str, list[Ruled]]:
    """Decisions by the incident they are about; "" for those about none."""
    found: dict[str, list[Ruled]] = {}
    for one in ruled:
        found.setdefault(one.decision.incident or "", []).append(one)
    return found

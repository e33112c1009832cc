"""The fleet at a glance: which rows are shown, and what each cell says. `page` calls `glance`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from daemon.report import wording
from daemon.report.model import FleetCell, FleetRow
from detectors.findings import GpuState

MOST_ROWS = 256
#: A GPU that was out of sight for longer than this share of the span is marked, whatever its state.
_MUCH_UNKNOWN = 0.05

LETTERS = {
    GpuState.HEALTHY: "H",
    GpuState.DEGRADED: "D",
    GpuState.FAILING: "F",
    GpuState.FAILED: "X",
    GpuState.UNKNOWN: "?",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """One GPU's cell. `anchor` leads to its first incident on this page."""

    state: GpuState
    letter: str
    told: str
    anchor: str | None
    much_unknown: bool


@dataclass(frozen=True, slots=True)
class GlanceRow:
    """One node: its cells, and the row in words for those who don't see them."""

    node: str
    rack: str
    marks: tuple[Mark, ...]
    told: str


@dataclass(frozen=True, slots=True)
class Glance:
    """The rows shown, how many GPUs are in each state over the whole fleet, and how many rows were left out."""

    rows: tuple[GlanceRow, ...]
    counts: tuple[tuple[GpuState, int], ...]
    cut_rows: int
    cut_all_healthy: bool


def glance(fleet: Sequence[FleetRow], anchors: Mapping[str, str]) -> Glance:
    """Every row in the order given; beyond MOST_ROWS, rows with nothing to tell are left out first."""
    counts = Counter(GpuState(cell.state) for row in fleet for cell in row.gpus)
    shown = list(fleet)
    if len(fleet) > MOST_ROWS:
        kept = sorted(range(len(fleet)), key=lambda place: (_is_quiet(fleet[place]), place))[:MOST_ROWS]
        shown = [fleet[place] for place in sorted(kept)]
    names = {id(row) for row in shown}
    cut = [row for row in fleet if id(row) not in names]
    return Glance(
        tuple(_row(row, anchors) for row in shown),
        tuple((state, counts[state]) for state in LETTERS),
        len(cut),
        all(_is_quiet(row) for row in cut),
    )


def _is_quiet(row: FleetRow) -> bool:
    return all(cell.state == GpuState.HEALTHY and not cell.incidents for cell in row.gpus)


def _row(row: FleetRow, anchors: Mapping[str, str]) -> GlanceRow:
    counts = Counter(GpuState(cell.state) for cell in row.gpus)
    told = ", ".join(f"{counts[state]} {state}" for state in LETTERS if counts[state]) or "no GPUs"
    return GlanceRow(row.node, row.rack, tuple(_mark(cell, anchors) for cell in row.gpus), told)


def _mark(cell: FleetCell, anchors: Mapping[str, str]) -> Mark:
    state = GpuState(cell.state)
    told = [f"GPU {cell.index}: {state}", cell.model, cell.uuid]
    if cell.score is not None:
        told.append(f"highest score {wording.number(cell.score)}")
    told += [f"{name} for {wording.duration(seconds)}" for name, seconds in cell.seconds_in if seconds > 0]
    if cell.share_unknown > 0:
        told.append(f"not known for {wording.percent(cell.share_unknown)} of the time")
    if cell.incidents:
        more = f" and {len(cell.incidents) - 3} more" if len(cell.incidents) > 3 else ""
        told.append(f"incidents {', '.join(cell.incidents[:3])}{more}")
    anchor = next((anchors[name] for name in cell.incidents if name in anchors), None)
    text = " · ".join(wording.short(part, 120) for part in told if part)
    return Mark(state, LETTERS[state], text, anchor, cell.share_unknown > _MUCH_UNKNOWN)

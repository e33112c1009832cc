"""When and where: all incidents over the span, a lane for each node, as inline SVG. `page` calls `draw_timeline`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from daemon.report import svg, wording
from daemon.report.reading import IncidentRow
from daemon.report.scales import Scale, time_ticks
from rules.vocabulary import Tier

WIDTH = 1160
MOST_LANES = 60
_LEFT, _RIGHT, _TOP = 132, 1150, 22
_SLOT, _MOST_SLOTS, _PADDING = 13, 5, 6
_MARK = 5.0
_REST = "\0rest"  # no node can have this name


@dataclass(frozen=True, slots=True)
class Entry:
    """An incident, the lane it belongs to (its node, or where it is), and the anchor that its mark leads to."""

    incident: IncidentRow
    lane: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One row: its label and its incidents, each with the slot (0 is the top) that keeps it off its neighbours."""

    label: str
    placed: tuple[tuple[Entry, int], ...]

    @property
    def slots(self) -> int:
        """How many slots the lane needs."""
        return 1 + max(slot for _, slot in self.placed)


def draw_timeline(entries: Sequence[Entry], start: datetime, end: datetime, order: Sequence[str]) -> Markup:
    """The lanes, nodes following `order` and nodes that aren't in it after those.

    Fleets with more than MOST_LANES bad nodes get the worst in lanes of their own and one lane for the rest.
    """
    low, high = start.timestamp(), end.timestamp()
    x = Scale(low, high if high > low else low + 1, _LEFT, _RIGHT)
    lanes = _lanes(entries, order, x)
    top: float = _TOP
    parts: list[Markup] = []
    stripes: list[Markup] = []
    for index, lane in enumerate(lanes):
        height = lane.slots * _SLOT + _PADDING
        if index % 2 == 0:
            stripes.append(svg.element("rect", class_="stripe", x=0.0, y=top, width=float(WIDTH), height=float(height)))
        label = lane.label if len(lane.label) <= 19 else f"{lane.label[:9]}…{lane.label[-9:]}"
        parts.append(svg.element("text", svg.element("title", lane.label), label, class_="lane", x=4.0, y=top + 13.5))
        parts += [_mark(entry, x, top + _PADDING / 2 + slot * _SLOT + _SLOT / 2) for entry, slot in lane.placed]
        top += height
    title = f"{wording.plural(len(entries), 'incident')} from {wording.utc(start)} to {wording.utc(end)}, a lane a node"
    layers = (svg.element("g", *stripes), _axis(x, top), *parts)
    return svg.map_of_links((WIDTH, top + 4), title, *layers, ident="timeline", class_="timeline")


def _axis(x: Scale, bottom: float) -> Markup:
    parts: list[Markup] = []
    for moment, label in time_ticks(x.low, x.high, 10):
        at = x.px(moment)
        anchor = "start" if at < _LEFT + 20 else "end" if at > _RIGHT - 20 else "mid"
        parts.append(svg.element("path", class_="grid", d=f"M{svg.pixel(at)} {_TOP - 4}V{svg.pixel(bottom)}"))
        parts.append(svg.element("text", label, class_=f"tick {anchor}", x=at, y=_TOP - 9.0))
    return svg.element("g", *parts)


def _mark(entry: Entry, x: Scale, y: float) -> Markup:
    incident = entry.incident
    first, opened, closed = _pixels(incident, x)
    cause = f"c-{incident.cause_class}"
    parts = [
        svg.element("title", _told(entry)),
        svg.element("path", class_="wait", d=f"M{svg.pixel(first)} {svg.pixel(y)}H{svg.pixel(opened)}"),
        svg.element("rect", class_="bar", x=opened, y=y - 2.5, width=max(closed - opened, 1), height=5.0),
        svg.element("path", class_=f"tier t{int(incident.tier)}", d=tier_shape(incident.tier, opened, y)),
    ]
    if incident.closed is None:
        parts.append(svg.element("path", class_="open-end", d=f"M{svg.pixel(closed - 4)} {svg.pixel(y - 5)}l5 5-5 5"))
    return svg.element("a", *parts, class_=cause, href=f"#{entry.anchor}")


def tier_shape(tier: Tier, x: float, y: float) -> str:
    """Path data of a tier's mark: a square is a fact, a triangle a trend, a diamond a suspicion."""
    size = _MARK
    if tier is Tier.FACT:
        return f"M{svg.pixel(x - size)} {svg.pixel(y - size)}h{2 * size:g}v{2 * size:g}h-{2 * size:g}z"
    if tier is Tier.TREND:
        return f"M{svg.pixel(x)} {svg.pixel(y - size - 1)}l{size + 1:g} {2 * size + 1:g}h-{2 * size + 2:g}z"
    reach = size + 1
    return f"M{svg.pixel(x)} {svg.pixel(y - reach)}l{reach:g} {reach:g}-{reach:g} {reach:g}-{reach:g}-{reach:g}z"


def _pixels(incident: IncidentRow, x: Scale) -> tuple[float, float, float]:
    """First signal, opening and closing, kept inside the lane."""

    def inside(at: datetime) -> float:
        return min(max(x.px(at.timestamp()), _LEFT), _RIGHT)

    closed = _RIGHT if incident.closed is None else inside(incident.closed)
    return inside(incident.first_signal_at), inside(incident.opened), closed


def _told(entry: Entry) -> str:
    incident = entry.incident
    until = "still open" if incident.closed is None else f"closed {wording.utc(incident.closed)}"
    head = f"{incident.id}: {incident.cause_class}, tier {int(incident.tier)}, {entry.lane}"
    return wording.short(f"{head}, opened {wording.utc(incident.opened)}, {until}. {incident.why}", 300)


def _lanes(entries: Sequence[Entry], order: Sequence[str], x: Scale) -> list[Lane]:
    by_node: dict[str, list[Entry]] = {}
    for entry in entries:
        by_node.setdefault(entry.lane, []).append(entry)
    label = ""
    if len(by_node) > MOST_LANES:
        worst_first = sorted(by_node, key=lambda node: (_best_tier(by_node[node]), -len(by_node[node]), node))
        rest = worst_first[MOST_LANES - 1 :]
        by_node[_REST] = [entry for node in rest for entry in by_node.pop(node)]
        label = f"{len(rest):,} other nodes"
    rank = {node: place for place, node in enumerate(order)}
    nodes = sorted(by_node, key=lambda node: (node == _REST, rank.get(node, len(rank)), node))
    return [Lane(label if node == _REST else node, _placed(by_node[node], x)) for node in nodes]


def _best_tier(entries: Sequence[Entry]) -> Tier:
    return min(entry.incident.tier for entry in entries)


def _placed(entries: Sequence[Entry], x: Scale) -> tuple[tuple[Entry, int], ...]:
    """Slots so that bars that overlap lie under each other; when all slots are taken, the last is shared."""
    free_from: list[float] = []
    placed: list[tuple[Entry, int]] = []
    for entry in sorted(entries, key=lambda one: (one.incident.first_signal_at, one.incident.id)):
        first, opened, closed = _pixels(entry.incident, x)
        left, right = min(first, opened - _MARK) - 1, max(closed, opened + _MARK) + 2
        slot = next((index for index, taken in enumerate(free_from) if taken <= left), len(free_from))
        slot = min(slot, _MOST_SLOTS - 1)
        if slot == len(free_from):
            free_from.append(right)
        free_from[slot] = max(free_from[slot], right)
        placed.append((entry, slot))
    return tuple(placed)

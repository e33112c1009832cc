"""Which faults are the consequence of an earlier one on the same GPU.

A GPU that falls off the bus takes its links, its jobs and its switches with it; one cause then writes hundreds of
records. The rule packs say which code may follow from which, and for how long. Used by `gpuwarden xid decode` and
`detectors.faults`; it has no clock: time is what the events say.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace

from detectors.classify import xid_rule
from detectors.events import KernelEvent
from detectors.kernel_text import off_bus_code
from rules.schema import RuleBook
from rules.vocabulary import EventKind

#: Without times, an earlier fault explains what follows within this many lines.
REACH_LINES = 200
#: Records of several CPUs may come a little out of order; more than that is another boot.
DISORDER_S = 1.0
#: GPUs whose recent faults are remembered; the one that was quiet longest is forgotten first.
MAX_GPUS = 4096

_Place = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Seen:
    """An earlier fault that may explain later ones. `root` is the code that explains it in turn, or its own."""

    event: KernelEvent
    root: int
    order: int


class SecondaryTracker:
    """Marks each fault that an earlier one explains, over the events of any number of nodes, in their order.

    A chain leads to its root: where 45 follows from 119 and 119 from 62, both name 62. An event that is not trusted
    never explains a trusted one. Memory is bounded by MAX_GPUS and by the codes that the packs name as causes.
    """

    def __init__(self, rules: RuleBook) -> None:
        self._rules = rules
        self._off_bus = off_bus_code(rules)
        every_rule = (*rules.xid.values(), *rules.sxid.values(), *rules.sxid_default.values())
        self._causes: set[int | None] = {self._off_bus, *(code for rule in every_rule for code in rule.secondary_to)}
        self._seen: OrderedDict[_Place, dict[tuple[EventKind, int], _Seen]] = OrderedDict()
        self._order = 0

    def mark(self, event: KernelEvent) -> KernelEvent:
        """The event, with `secondary_to` set where an earlier one explains it; remembers it for later ones."""
        if event.kind is EventKind.DRIVER_LOAD:
            self._forget_node(event)
        if event.code is None:
            return event
        cause = self._cause_of(event)
        if event.kind in (EventKind.XID, EventKind.OFF_BUS) and event.code in self._causes:
            self._remember(event, event.code, event.code if cause is None else cause.root)
        return event if cause is None else replace(event, secondary_to=cause.root)

    def _cause_of(self, event: KernelEvent) -> _Seen | None:
        """The first of the remembered faults that explains this one."""
        rule = xid_rule(event, self._rules)
        if rule is None:
            return None
        codes = set(rule.secondary_to) - {event.code}
        # A switch has an address of its own, so any GPU of the node may be what it lost.
        seen = self._seen.get(_node(event) if event.kind is EventKind.SXID else _gpu(event), {})
        explaining = [
            earlier
            for (kind, code), earlier in seen.items()
            if (code in codes or self._same_loss(event, kind, code))
            and (earlier.event.trusted or not event.trusted)
            and _within(earlier.event, event, rule.secondary_window)
        ]
        return min(explaining, key=lambda earlier: earlier.order, default=None)

    def _same_loss(self, event: KernelEvent, kind: EventKind, code: int) -> bool:
        """Whether the earlier one tells the loss of the same GPU the driver's other way: with a number or without."""
        pair = {event.kind, kind} == {EventKind.XID, EventKind.OFF_BUS}
        return pair and event.code == code == self._off_bus

    def _remember(self, event: KernelEvent, code: int, root: int) -> None:
        self._order += 1
        for place in (_gpu(event), _node(event)):
            known = self._seen.setdefault(place, {})
            earlier = known.get((event.kind, code))
            if earlier is None or event.trusted or not earlier.event.trusted:
                known[event.kind, code] = _Seen(event, root, self._order)
            self._seen.move_to_end(place)
        while len(self._seen) > MAX_GPUS:
            self._seen.popitem(last=False)

    def _forget_node(self, event: KernelEvent) -> None:
        """A freshly loaded driver starts with no faults behind it."""
        if not event.trusted:
            return
        for place in [place for place in self._seen if place[:2] == (event.node, event.boot_id)]:
            del self._seen[place]


def _gpu(event: KernelEvent) -> _Place:
    return event.node, event.boot_id, event.pci or "?"


def _node(event: KernelEvent) -> _Place:
    return event.node, event.boot_id, ""


def _within(earlier: KernelEvent, later: KernelEvent, window_s: float) -> bool:
    if earlier.at is not None and later.at is not None:
        return abs((later.at - earlier.at).total_seconds()) <= window_s
    if earlier.monotonic_s is not None and later.monotonic_s is not None:
        return -DISORDER_S <= later.monotonic_s - earlier.monotonic_s <= window_s
    return 0 <= later.line - earlier.line <= REACH_LINES

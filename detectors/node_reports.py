"""What nodes' agents say of their own GPU stacks, as signals: it does not answer, GPUs are missing, the fabric is down.

Suspicion, not fact: the node's own tools say so, and a driver that is being installed looks the same for a while. It
stands while the agent repeats it, and until it says that all is well, another boot, or silence.
"""

from datetime import timedelta

from detectors.events import KernelEvent
from detectors.findings import Signal
from detectors.snapshot import Snapshot
from rules.vocabulary import CauseClass, EventKind, FaultAction, Severity, Tier

#: An agent repeats it every ten minutes; what it has not repeated for longer is over, or nobody knows any more.
HOLDS_FOR = timedelta(minutes=25)
_CLASSES = {
    "gpu_stack": CauseClass.DRIVER,
    "gpu_count": CauseClass.HARDWARE,
    "fabric_manager": CauseClass.LINK,
}


class NodeReports:
    """The newest bad state of each node by its name."""

    def __init__(self) -> None:
        self._bad: dict[tuple[str, str], tuple[KernelEvent, KernelEvent]] = {}

    def look(self, snapshot: Snapshot) -> list[Signal]:
        """One signal a node and state that is bad."""
        events = [event for event in snapshot.events if event.kind is EventKind.NODE_STATE and event.place in _CLASSES]
        for event in sorted(events, key=lambda event: (event.at or snapshot.at, event.node, event.text)):
            self._take(event)
        boots = {node.name: node.boot_id for node in snapshot.nodes if node.boot_id}
        oldest = snapshot.at - HOLDS_FOR
        self._bad = {
            key: (first, last)
            for key, (first, last) in self._bad.items()
            if (last.at or snapshot.at) >= oldest and boots.get(key[0], last.boot_id) == last.boot_id
        }
        return [_signal(first, last, snapshot) for _, (first, last) in sorted(self._bad.items())]

    def _take(self, event: KernelEvent) -> None:
        key = event.node, event.place or ""
        if event.severity is Severity.INFO:
            self._bad.pop(key, None)
            return
        first = self._bad[key][0] if key in self._bad else event
        self._bad[key] = (first if first.boot_id == event.boot_id else event), event


def _signal(first: KernelEvent, last: KernelEvent, snapshot: Snapshot) -> Signal:
    return Signal(
        detector="node",
        rule=last.place or "",
        node=last.node,
        gpu="",
        tier=Tier.SUSPICION,
        cause_class=_CLASSES[last.place or ""],
        action=FaultAction.INSPECT,
        weight=0.0,
        value=None,
        limit=None,
        unit="",
        since=first.at or snapshot.at,
        last=last.at or snapshot.at,
        look=last.text,
        text=last.text,
        sources=(last.source,),
    )

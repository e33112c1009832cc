"""Which nodes booted anew: the boundary that most faults of a kernel log don't outlive.

Two witnesses: the boot time that the node's exporter tells, and the boot id that a journal's records carry. A boot
time also moves when NTP sets the clock, so it counts only where it lies after the node was last seen up. Used by
`detectors.faults`.
"""

from datetime import UTC, datetime, timedelta

import numpy as np

from detectors.events import KernelEvent
from detectors.snapshot import Snapshot
from rules.vocabulary import EventKind

#: Clocks of nodes and of Prometheus agree within this; a boot time that moves by less is a clock being set.
_CLOCK_STEP_S = 120.0
_JITTER = timedelta(seconds=2)


class BootWatch:
    """When each node booted, as far as anybody said."""

    def __init__(self) -> None:
        self._boot_at: dict[str, float] = {}
        self._seen_up: dict[str, float] = {}
        self._boot_id: dict[str, tuple[str, datetime]] = {}

    def look(self, snapshot: Snapshot) -> list[tuple[str, datetime]]:
        """The nodes that booted since the last look, each with the time of its boot."""
        found = []
        age = snapshot.node.of("node_boot_time_seconds", "age_s").tolist()
        for row, (node, boot_at) in enumerate(zip(snapshot.nodes, snapshot.boot_at.tolist(), strict=True)):
            if node.boot_id and self._new_id(node.name, node.boot_id, snapshot.at):
                found.append((node.name, snapshot.at if np.isnan(boot_at) else datetime.fromtimestamp(boot_at, UTC)))
            if np.isnan(boot_at):
                continue
            before = self._boot_at.get(node.name, -np.inf)  # the first look ends what is older than this boot
            seen_up = self._seen_up.get(node.name, -np.inf)
            if boot_at - before > _CLOCK_STEP_S and boot_at > seen_up - _CLOCK_STEP_S:
                found.append((node.name, datetime.fromtimestamp(boot_at, UTC)))
            self._boot_at[node.name] = boot_at
            self._seen_up[node.name] = snapshot.now - (0.0 if np.isnan(age[row]) else age[row])
        return found

    def told_by(self, event: KernelEvent, at: datetime) -> datetime | None:
        """When the node booted, if this event is the first one of another boot than the node's last events."""
        if not (event.trusted and event.boot_id) or event.kind is EventKind.COVERAGE_LOST:
            return None  # a gap is told by the boot after it
        before = self._boot_id.get(event.node)
        if not self._new_id(event.node, event.boot_id, at) or before is None:
            return None
        if event.monotonic_s is not None:
            return at - timedelta(seconds=event.monotonic_s)
        known = self._known(event.node)
        return known if known is not None and before[1] < known <= at else at

    def is_over(self, node: str, boot_id: str, at: datetime) -> bool:
        """Whether what was said at `at` belongs to a boot that has ended: an old log that is read again, or read late.

        `boot_id` is "" where the record has none.
        """
        current = self._boot_id.get(node)
        if boot_id and current is not None:
            return boot_id != current[0]
        booted = self._known(node)
        return booted is not None and at < booted - _JITTER

    def remember(self, node: str, boot_id: str, at: datetime) -> None:
        """A boot id that was known before a restart of ours."""
        if boot_id:
            self._new_id(node, boot_id, at)

    def _known(self, node: str) -> datetime | None:
        boot_at = self._boot_at.get(node)
        return None if boot_at is None else datetime.fromtimestamp(boot_at, UTC)

    def _new_id(self, node: str, boot_id: str, at: datetime) -> bool:
        """Whether a boot id replaces another one; an older record's id never does."""
        before = self._boot_id.get(node)
        if before is not None and (at < before[1] or before[0] == boot_id):
            if before[0] == boot_id:
                self._boot_id[node] = boot_id, max(at, before[1])
            return False
        self._boot_id[node] = boot_id, at
        return before is not None

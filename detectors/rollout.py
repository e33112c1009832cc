"""Driver changes: which nodes got another driver, or loaded theirs again, a short while ago.

A bad driver hits a whole pool at once. What then looks like many sick GPUs is one cause, and nobody should drain
a pool for it; incidents ask here before they speak of single machines.
"""

from bisect import bisect_left, bisect_right
from datetime import datetime, timedelta

from detectors.identity import GpuRef, same_refs
from detectors.snapshot import Snapshot
from rules.schema import CommonCausePolicy
from rules.vocabulary import EventKind


class RolloutWatch:
    """When each node's driver last changed, from the driver label of its GPUs and from the driver's own load line."""

    def __init__(self, policy: CommonCausePolicy) -> None:
        self._policy = policy
        self._gpus: tuple[GpuRef, ...] = ()
        self._version: dict[str, str] = {}
        self._changed: dict[str, datetime] = {}
        self._times: list[datetime] = []

    def look(self, snapshot: Snapshot) -> None:
        """Take one snapshot in."""
        if not same_refs(snapshot.gpus, self._gpus):
            self._gpus = snapshot.gpus
            # Each GPU against itself: a GPU that died before a roll-out keeps the old driver's label for ever.
            for gpu in snapshot.gpus:
                before = self._version.get(gpu.uuid, gpu.driver)
                if before and gpu.driver and before != gpu.driver:
                    self._changed[gpu.node] = snapshot.at
                self._version[gpu.uuid] = gpu.driver or before
        for event in snapshot.events:
            if event.kind is EventKind.DRIVER_LOAD and event.trusted:
                at = event.at or snapshot.at
                self._changed[event.node] = max(at, self._changed.get(event.node, at))
        oldest = snapshot.at - timedelta(seconds=2 * self._policy.driver_change_window)
        self._changed = {node: at for node, at in self._changed.items() if at >= oldest}
        self._times = sorted(self._changed.values())

    def covers(self, node: str, since: datetime) -> bool:
        """Whether the node's driver changed in the window before `since`, and those of others with it.

        Or shortly after it, as labels lag behind logs. Fewer than `min_nodes` are no roll-out: one node's reload is
        maintenance.
        """
        changed = self._changed.get(node)
        first = since - timedelta(seconds=self._policy.driver_change_window)
        last = since + timedelta(seconds=self._policy.window)
        if changed is None or not first <= changed <= last:
            return False
        others = bisect_right(self._times, last) - bisect_left(self._times, first)
        return others >= self._policy.min_nodes

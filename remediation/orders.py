"""What one tick wants done to the cluster, and whether it still may be: values that the loop hands to the executor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from remediation.operations import Wanted
from remediation.wish import Condition, NodeWish


@dataclass(frozen=True, slots=True)
class Orders:
    """The whole of it, level-triggered: the next tick's replaces it.

    `releases` gives for each node that is to be given back the incident that its marks name, `probations` are those of
    them that are put on probation first. `standing` are the incidents that are open. `conditions` say what GPUHealthy
    should be on each node.
    """

    at: datetime
    wishes: Mapping[str, NodeWish] = field(default_factory=dict)
    releases: Mapping[str, str] = field(default_factory=dict)
    probations: frozenset[str] = frozenset()
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    standing: frozenset[str] = frozenset()
    #: the work on nodes themselves that may be done now, in the order of the ladders
    operations: tuple[Wanted, ...] = ()
    #: namespace and name of the pods whose GPUs compute; None where nobody knows
    computing: frozenset[tuple[str, str]] | None = None
    #: by UID of a job that names a metric for it: when its last checkpoint was committed
    measured: Mapping[str, datetime] = field(default_factory=dict)

    def is_stale(self, now: datetime, max_age_s: float) -> bool:
        """Whether they are from a tick that is too long ago to act on."""
        return abs(now - self.at) > timedelta(seconds=max_age_s)

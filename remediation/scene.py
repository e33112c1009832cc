"""What only the cluster, the record and people can tell the gates, at one moment. Values, made once a tick.

`daemon.acting` fills it; without a cluster (an audit of the past, a daemon that only reads Prometheus) there is none,
and the gates that need it are not asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from remediation.breaker import BreakerState, TakenOut
from remediation.limits import Attempt, Fleet
from remediation.objects import PdbView, PodView, WorkloadView
from remediation.operations import Operation
from remediation.people import Said


@dataclass(frozen=True, slots=True)
class Scene:
    """The cluster as `remediation.cluster.view` sees it, what has been tried, and what people have said.

    `leads` says whether this process is the one that would act, `leader` who is. `stale_s` are the seconds since the
    API server's last sign of life. `history` holds the attempts, `taken` the nodes that were decided to be taken out,
    for the breaker. `over` are the incidents of our marks of which the record says that they have ended, `ended` says
    when. `unread_kinds` are kinds of workloads that this identity may not read. `measured` says when a job's last
    checkpoint was committed, by the job's UID, where it names a metric for that. `operations` are all that are known.
    `chronic` says of GPUs and nodes (`gpu:<UUID>`, `node:<name>`) of open incidents why they are chronic.
    """

    fleet: Fleet
    pods_by_node: Mapping[str, tuple[PodView, ...]] = field(default_factory=dict)
    pdbs: tuple[PdbView, ...] = ()
    workloads: Mapping[str, WorkloadView] = field(default_factory=dict)
    unread_kinds: tuple[str, ...] = ()
    stale_s: float = 0.0
    leads: bool = True
    leader: str = "this process decides"
    history: tuple[Attempt, ...] = ()
    breaker: BreakerState = field(default_factory=BreakerState)
    taken: tuple[TakenOut, ...] = ()
    said: Said = field(default_factory=Said)
    over: frozenset[str] = frozenset()
    ended: Mapping[str, datetime] = field(default_factory=dict)
    measured: Mapping[str, datetime] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()
    chronic: Mapping[str, str] = field(default_factory=dict)

"""What plans and drains need to know of the cluster: nodes, pods, disruption budgets, and the marks that are ours.

Values only, with nothing of Kubernetes' client in them: `remediation.cluster` makes them from the API's JSON, tests
make them by hand. Fields that nobody decides by are left out, so that 20,000 pods stay small.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

PREFIX = "gpuwarden.io/"
#: The taint that keeps new work away; its value is the reason.
TAINT_KEY = PREFIX + "quarantine"
CONDITION = "GPUHealthy"
INCIDENT = PREFIX + "incident"
REASON = PREFIX + "reason"
SINCE = PREFIX + "since"
CORDONED_BY = PREFIX + "cordoned-by"
#: Tells Kubernetes that a node is off, so that it takes pods that hang there, and their volumes, off the books.
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
#: What stands here is OWNER where that taint is ours.
DECLARED_OFF_BY = PREFIX + "declared-off-by"
#: How far it has come: one of Stage.
STAGE = PREFIX + "stage"
#: A taint that prefers other nodes, and a label by which short or pre-emptible work can be steered there: both say that
#: the node has come back a short while ago. The annotation says since when.
PROBATION = PREFIX + "probation"
PROBATION_SINCE = PREFIX + "probation-since"
#: What stands here is "required" where no reset lifts the quarantine, but only a person's word.
SERVICE = PREFIX + "service"
#: What stands in CORDONED_BY where the cordon is ours.
OWNER = "gpuwarden"
#: A node's label that opts it out ("false"), a pod's annotation that does ("true").
MANAGED = PREFIX + "managed"
DO_NOT_EVICT = PREFIX + "do-not-evict"


class Effect(StrEnum):
    """What a taint does to pods that don't tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Stage(StrEnum):
    """How far a node has been taken out, for people who look at it with kubectl."""

    NO_NEW_WORK = "no-new-work"
    CORDONED = "cordoned"
    DRAINING = "draining"
    QUARANTINED = "quarantined"
    PROBATION = "probation"


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """A taint; its identity is key and effect. `time_added` is kept as it came, since the list is written whole."""

    key: str
    effect: str
    value: str = ""
    time_added: str = ""


#: How we declare a node off. The value is the one that Kubernetes' own documentation uses for such a machine.
OFF_TAINT = Taint(OUT_OF_SERVICE, Effect.NO_EXECUTE, "nodeshutdown")


@dataclass(frozen=True, slots=True)
class OwnerRef:
    """Who controls an object."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the API server shows it. `version` is its resourceVersion at the read."""

    name: str
    uid: str
    version: str
    unschedulable: bool
    ready: bool | None
    taints: tuple[Taint, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    boot_id: str = ""
    gpus: int = 0
    created: datetime | None = None

    @property
    def keeps_new_work_off(self) -> bool:
        """Whether it carries our taint."""
        return any(taint.key == TAINT_KEY for taint in self.taints)

    @property
    def is_declared_off_by_us(self) -> bool:
        """Whether it carries the taint out-of-service, and from us."""
        return any(taint.key == OUT_OF_SERVICE and self.is_ours(taint) for taint in self.taints)

    def is_ours(self, taint: Taint) -> bool:
        """Whether a taint on it comes from us. Another's out-of-service looks different, or stands there unsigned."""
        if taint.key == OUT_OF_SERVICE:
            return self.annotation(DECLARED_OFF_BY) == OWNER and replace(taint, time_added="") == OFF_TAINT
        return taint.key in (TAINT_KEY, PROBATION)

    @property
    def on_probation(self) -> bool:
        """Whether it has come back, and is watched."""
        return self.annotation(STAGE) == Stage.PROBATION

    @property
    def needs_service(self) -> bool:
        """Whether it stays out until a person says that it was mended."""
        return bool(self.annotation(SERVICE))

    def label(self, name: str) -> str:
        """A label's value, "" where it isn't set."""
        return dict(self.labels).get(name, "")

    def annotation(self, name: str) -> str:
        """An annotation's value, "" where it isn't set."""
        return next((value for key, value in self.annotations if key == name), "")

    @property
    def cordon_is_ours(self) -> bool:
        """Whether the node is cordoned, and by us."""
        return self.unschedulable and self.annotation(CORDONED_BY) == OWNER


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod as far as a drain has to know it.

    `empty_dirs` names its emptyDir volumes that are not in memory, `host_dirs` those that are folders of its node.
    """

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    ready: bool
    owner: OwnerRef | None
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    empty_dirs: tuple[str, ...] = ()
    memory_dirs: tuple[str, ...] = ()
    host_dirs: tuple[str, ...] = ()
    gpus: int = 0
    grace_s: float = 30.0
    deleting_since: datetime | None = None
    is_mirror: bool = False
    priority: int = 0
    started: datetime | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name; the UID says whether it is still the same pod."""
        return self.namespace, self.name

    def annotation(self, name: str) -> str:
        """An annotation's value, "" where it isn't set."""
        return next((value for key, value in self.annotations if key == name), "")


@dataclass(frozen=True, slots=True)
class Selector:
    """A label selector: all of `match` and all of `expressions` (key, operator, values) must hold."""

    match: tuple[tuple[str, str], ...] = ()
    expressions: tuple[tuple[str, str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class PdbView:
    """A disruption budget. `current` says whether its status is as new as its spec (observedGeneration)."""

    namespace: str
    name: str
    selector: Selector
    allowed: int
    current: bool
    healthy: int = 0
    desired_healthy: int = 0
    expected: int = 0
    evict_unready_always: bool = False


@dataclass(frozen=True, slots=True)
class FailureRule:
    """What a JobSet does about a Job that failed for one of `reasons`, of one of the `targets` (replicated jobs).

    Where one of these is empty, any matches. `by_message` says that the failure's message has to match too.
    """

    action: str
    reasons: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    by_message: bool = False


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """A job as its controller keeps it, and how often that starts it again (`remediation.workloads` reads it).

    `restarts_used` counts what the controller counts against `restarts_allowed` (None: there is no limit): one more
    than allowed ends it for good. An indexed Job may also allow each index its own `index_restarts_allowed`.
    `ignores_disruption` says that an eviction counts for nothing, `ends_at_once` why the first one is the last whatever
    the numbers, "" where it isn't. `rules` are a JobSet's; the first that matches holds.

    `active` are the pods that the controller counts as there, terminating ones too; `running_since` is when it last
    said that the job runs, None where it does not. `queue` is the Kueue queue that the job was put into, `managed_by` a
    controller other than the kind's own, `child` the name of the object that runs it now (a RayJob's cluster).
    """

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str
    owner: OwnerRef | None
    restarts_used: int = 0
    restarts_allowed: int | None = None
    ignores_disruption: bool = False
    suspended: bool = False
    finished: bool = False
    annotations: tuple[tuple[str, str], ...] = ()
    index_restarts_allowed: int | None = None
    ends_at_once: str = ""
    rules: tuple[FailureRule, ...] = ()
    active: int = 0
    running_since: datetime | None = None
    queue: str = ""
    managed_by: str = ""
    child: str = ""

    def annotation(self, name: str) -> str:
        """An annotation's value, "" where it isn't set."""
        return next((value for key, value in self.annotations if key == name), "")

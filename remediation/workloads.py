"""What a pod belongs to, and whether its eviction would end that for good.

Pure. A plan says it before anything happens, a gate holds an eviction that a job would not survive. What counts is what
controllers count: an evicted pod is a failed one, and each kind of job has its own limit of these. Only the eviction
itself is counted: whether the job's other pods fail too once one of them is gone depends on the program, and so does
whether it goes on from a checkpoint.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from remediation.drain import FINISHED
from remediation.objects import FailureRule, OwnerRef, PodView, WorkloadView

#: Kinds that keep their pods running for ever, by API group and kind. What isn't known to be one has work to lose.
SERVICES = frozenset(
    {
        ("apps", "ReplicaSet"),
        ("apps", "Deployment"),
        ("apps", "StatefulSet"),
        ("apps", "DaemonSet"),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
        ("ray.io", "RayService"),
        ("", "ReplicationController"),
        ("", "Node"),
    }
)
#: Kinds that never start a job of theirs again: where it ends, so do they, or they go on to the next.
_FOLLOWS = frozenset({("batch", "CronJob"), ("kubeflow.org", "MPIJob"), ("trainer.kubeflow.org", "TrainJob")})
_JOB_SET = ("jobset.x-k8s.io", "JobSet")
#: Which custom resource a Ray cluster was made for; a label of its pods.
_RAY_ORIGIN = "ray.io/originated-from-crd"
#: How often the pods of this index have failed before this one; the Job controller annotates each pod.
_INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
_INDEX = "batch.kubernetes.io/job-completion-index"
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
#: A JobSet's answers to a failed Job that leave its count of restarts alone (jobset_types.go).
FORGIVING = frozenset({"RestartJobSetAndIgnoreMaxRestarts", "RestartJobAndIgnoreMaxRestarts"})
FATAL = "FailJobSet"


def resource(api_version: str, kind: str) -> str:
    """A kind as kubectl names its resource with version and group: "jobsets.v1alpha2.jobset.x-k8s.io"."""
    group, _, version = api_version.rpartition("/")
    return ".".join(filter(None, [f"{kind.lower()}s", version, group]))


def root_of(pod: PodView, workloads: Mapping[str, WorkloadView]) -> OwnerRef | WorkloadView | None:
    """What a pod belongs to in the end: its controller, or that one's controller, as far up as is known.

    None for a pod that nothing controls. The last one is an OwnerRef where it is of a kind that the view doesn't hold.
    """
    owner, seen = pod.owner, set[str]()
    while owner is not None and (found := workloads.get(owner.uid)) is not None:
        if found.owner is None or found.uid in seen:
            return found
        seen.add(found.uid)
        owner = found.owner
    return owner


def is_training(pod: PodView, workloads: Mapping[str, WorkloadView]) -> bool:
    """Whether a pod does work that runs to an end and that an eviction may set back, rather than a service.

    A pod without a controller does. So does one of a kind that is not known: work is lost sooner than a service.
    """
    root = root_of(pod, workloads)
    return not pod.is_mirror and (root is None or not _serves(root, pod))


def ends_for_good(
    pod: PodView,
    workloads: Mapping[str, WorkloadView],
    unread_kinds: Collection[str] = (),
    *,
    before: int = 0,
) -> str:
    """Why one more eviction of this pod would end its job for good, or why nobody can tell; "" where it would not.

    `workloads` is keyed by UID, `unread_kinds` names the kinds in which it may lack something or be out of date, as
    `resource` does. `before` are evictions of other pods of the same controller that it has not counted yet.
    """
    if pod.is_mirror or pod.phase in FINISHED or pod.deleting_since is not None:
        return ""  # this eviction changes nothing
    owner = pod.owner
    if owner is None:
        return "no controller would start it again"
    if _serves(owner, pod):
        return ""
    found = _known(owner, workloads, unread_kinds)
    if isinstance(found, str):
        return f"it is not known how often {_name(owner, pod)} starts again: {found}"
    if found.finished:
        return ""
    said = _after_eviction(found, pod, before)
    return said and _above(found, said, pod, workloads, unread_kinds)


def endings(
    pods: Iterable[PodView], workloads: Mapping[str, WorkloadView], unread_kinds: Collection[str] = ()
) -> dict[str, str]:
    """The same for pods that are evicted one after the other, in this order: {UID: why}, without those that may go.

    Each eviction that passes takes its share from the ones after it.
    """
    passed: Counter[str] = Counter()
    told = {}
    for pod in pods:
        uid = pod.owner.uid if pod.owner is not None else ""
        why = ends_for_good(pod, workloads, unread_kinds, before=passed[uid])
        if why:
            told[pod.uid] = why
        elif pod.phase not in FINISHED and pod.deleting_since is None:
            passed[uid] += 1
    return told


def _group_kind(found: OwnerRef | WorkloadView) -> tuple[str, str]:
    return found.api_version.rpartition("/")[0], found.kind


def _name(found: OwnerRef | WorkloadView, pod: PodView) -> str:
    return f"{found.kind} {pod.namespace}/{found.name}"


def _serves(found: OwnerRef | WorkloadView, pod: PodView) -> bool:
    group_kind = _group_kind(found)
    if group_kind == ("ray.io", "RayCluster"):
        return dict(pod.labels).get(_RAY_ORIGIN) == "RayService"
    return group_kind in SERVICES


def _known(owner: OwnerRef, workloads: Mapping[str, WorkloadView], unread_kinds: Collection[str]) -> WorkloadView | str:
    """The workload, or why it isn't known."""
    if (name := resource(owner.api_version, owner.kind)) in unread_kinds:
        return f"{name} cannot be read at the moment"
    return workloads.get(owner.uid) or "it is not among the workloads that are known"


def _after_eviction(found: WorkloadView, pod: PodView, before: int) -> str:
    """Why this workload would not start this pod again, "" where it would."""
    name = _name(found, pod)
    if found.ignores_disruption:
        return ""
    if found.ends_at_once:
        return f"{name} would end for good: {found.ends_at_once}"
    limit = found.index_restarts_allowed
    if limit is not None:
        failures = pod.annotation(_INDEX_FAILURES)
        index = f"index {pod.annotation(_INDEX) or '?'} of {name}"
        if not (failures.isascii() and failures.isdecimal()):
            return f"it is not known how often {index} starts again: the pod has no {_INDEX_FAILURES}"
        if int(failures) + 1 > limit:
            return f"{index} would end for good: it has used {failures} of {limit} restarts"
    # The other kinds restart as a whole: several of their pods that go together are one restart.
    counted = before if _group_kind(found) == ("batch", "Job") else 0
    return _over(found, name, counted)


def _over(found: WorkloadView, name: str, before: int) -> str:
    """Why one more is one too many, "" where it isn't."""
    used, limit = found.restarts_used, found.restarts_allowed
    if limit is None or used + before + 1 <= limit:
        return ""
    too = f", and {before} evictions before this one count too" if before else ""
    return f"{name} would end for good: it has used {used} of {limit} restarts{too}"


def _above(
    found: WorkloadView, said: str, pod: PodView, workloads: Mapping[str, WorkloadView], unread_kinds: Collection[str]
) -> str:
    """What remains of `said`, why a workload ends, where its own controller may start it again."""
    seen = {found.uid}
    reasons = _reasons(found)
    while (owner := found.owner) is not None and owner.uid not in seen:
        group_kind = _group_kind(owner)
        if group_kind in _FOLLOWS:
            return said
        parent = _known(owner, workloads, unread_kinds)
        if group_kind != _JOB_SET or isinstance(parent, str):
            return f"{said}; it is not known whether {_name(owner, pod)} starts it again"
        if parent.finished:
            return ""
        said = _after_failure(parent, pod, reasons)
        if not said:
            return ""
        seen.add(owner.uid)
        found = parent
    return said


def _reasons(job: WorkloadView) -> frozenset[str]:
    """What may stand as the reason in the Failed condition of a Job that an eviction ended (batch/v1 types.go)."""
    if job.ends_at_once:
        return frozenset({"PodFailurePolicy"})
    if job.index_restarts_allowed is not None:
        return frozenset({"BackoffLimitExceeded", "FailedIndexes", "MaxFailedIndexesExceeded"})
    return frozenset({"BackoffLimitExceeded"})


def _after_failure(found: WorkloadView, pod: PodView, reasons: frozenset[str]) -> str:
    """Why a JobSet would not start again after one of its Jobs has failed, "" where it would."""
    name = _name(found, pod)
    if found.ends_at_once:
        return f"{name} would end for good: {found.ends_at_once}"
    if found.ignores_disruption:
        return ""
    surely_forgiven = True
    for rule in found.rules:
        applies = _applies(rule, pod, reasons)
        if applies is False:
            continue
        if rule.action == FATAL:
            return f"{name} would end for good: a rule of its failure policy says {FATAL}"
        if rule.action not in FORGIVING:
            surely_forgiven = False
        elif applies and surely_forgiven:
            return ""
        if applies:
            break
    return _over(found, name, 0)


def _applies(rule: FailureRule, pod: PodView, reasons: frozenset[str]) -> bool | None:
    """Whether a rule holds for a failure of the pod's Job; None where it may."""
    replicated_job = dict(pod.labels).get(_REPLICATED_JOB, "")
    if rule.targets and replicated_job and replicated_job not in rule.targets:
        return False
    if rule.reasons and not reasons & set(rule.reasons):
        return False
    sure = (
        not rule.by_message
        and (not rule.targets or bool(replicated_job))
        and (not rule.reasons or reasons <= set(rule.reasons))
    )
    return True if sure else None

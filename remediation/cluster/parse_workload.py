"""From the API's JSON to `WorkloadView`: what a Job and a JobSet allow in restarts, and what they have used of that.

Called by `view` for each object; the kinds of training operators are in `parse_operator`. What a controller counts is
read from its source, which is named at each function. Where one cannot know, the answer with fewer restarts is taken.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime

import msgspec

from remediation.cluster.parse import Condition, Meta, Moment, Shared, annotations_of, decode, once, owner_of
from remediation.objects import FailureRule, WorkloadView
from remediation.workloads import FORGIVING

#: The API server's own default of a Job's backoffLimit.
JOB_BACKOFF = 6
#: What Kubernetes writes for "no limit": the largest int32.
NO_LIMIT = 2**31 - 1
#: How a process ends that an eviction has asked (SIGTERM) or forced (SIGKILL) to.
_KILLED = frozenset({143, 137})
_DISRUPTION = "DisruptionTarget"
#: The label by which a job is put into a queue of Kueue, which then owns its suspension.
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
#: What stands in `managedBy` where a kind's own controller is at work.
_JOB_CONTROLLER = frozenset({"", "kubernetes.io/job-controller"})
_JOB_SET_CONTROLLER = frozenset({"", "jobset.sigs.k8s.io/jobset-controller"})


class _Pattern(msgspec.Struct):
    type: str = ""
    status: str | None = None


class _ExitCodes(msgspec.Struct):
    operator: str = ""
    values: list[int] | None = None


class _PodRule(msgspec.Struct, rename="camel"):
    action: str = ""
    on_exit_codes: _ExitCodes | None = None
    on_pod_conditions: list[_Pattern] | None = None


class _PodPolicy(msgspec.Struct):
    rules: list[_PodRule] | None = None


class _JobSpec(msgspec.Struct, rename="camel"):
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    suspend: bool | None = None
    managed_by: str | None = None
    parallelism: int | None = None
    pod_failure_policy: _PodPolicy | None = None
    pod_replacement_policy: str | None = None


class _Uncounted(msgspec.Struct):
    failed: list[str] | None = None


class _JobStatus(msgspec.Struct, rename="camel"):
    failed: int | None = None
    terminating: int | None = None
    active: int | None = None
    ready: int | None = None
    start_time: Moment | None = None
    uncounted_terminated_pods: _Uncounted | None = None
    conditions: list[Condition] | None = None


class _Job(msgspec.Struct):
    metadata: Meta
    spec: _JobSpec | None = None
    status: _JobStatus | None = None


class _SetRule(msgspec.Struct, rename="camel"):
    action: str = ""
    on_job_failure_reasons: list[str] | None = None
    on_job_failure_message_patterns: list[str] | None = None
    target_replicated_jobs: list[str] | None = None


class _SetPolicy(msgspec.Struct, rename="camel"):
    max_restarts: int | None = None
    rules: list[_SetRule] | None = None


class _SetSpec(msgspec.Struct, rename="camel"):
    failure_policy: _SetPolicy | None = None
    suspend: bool | None = None
    managed_by: str | None = None


class _Replicated(msgspec.Struct, rename="camel"):
    job_restarts_count_towards_max: list[int] | None = None
    active: int | None = None
    ready: int | None = None
    suspended: int | None = None
    succeeded: int | None = None


class _SetStatus(msgspec.Struct, rename="camel"):
    restarts: int | None = None
    restarts_count_towards_max: int | None = None
    replicated_jobs_status: list[_Replicated] | None = None
    conditions: list[Condition] | None = None


class _Set(msgspec.Struct):
    metadata: Meta
    spec: _SetSpec | None = None
    status: _SetStatus | None = None


def parse_job(raw: bytes | msgspec.Raw, shared: Shared) -> WorkloadView:
    """A batch/v1 Job (pkg/controller/job in Kubernetes): it fails when more pods have failed than its limit says.

    Evicted pods count as failed, and while they terminate only where replacements wait for their end
    (podReplacementPolicy Failed); otherwise the status has them at once.

    Raises:
        BadObject: a field has a wrong type.
    """
    job = decode(raw, _Job, "Job")
    spec, status = job.spec or _JobSpec(), job.status or _JobStatus()
    used = (status.failed or 0) + len((status.uncounted_terminated_pods or _Uncounted()).failed or ())
    if spec.pod_replacement_policy == "Failed":
        used += status.terminating or 0
    policy = _on_disruption((spec.pod_failure_policy or _PodPolicy()).rules or ())
    per_index = spec.backoff_limit_per_index
    limit = (NO_LIMIT if per_index is not None else JOB_BACKOFF) if spec.backoff_limit is None else spec.backoff_limit
    return replace(
        workload(job.metadata, "batch/v1", "Job", shared),
        restarts_used=used,
        restarts_allowed=None if limit >= NO_LIMIT else limit,
        ignores_disruption=policy == "Ignore",
        suspended=bool(spec.suspend),
        active=(status.active or 0) + (status.terminating or 0),
        running_since=status.start_time if (status.ready or 0) >= (spec.parallelism or 1) else None,
        managed_by=once(other_controller(spec.managed_by, _JOB_CONTROLLER), shared),
        finished=any_true(status.conditions, {"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"}),
        index_restarts_allowed=0 if policy == "FailIndex" and per_index is not None else per_index,
        ends_at_once="its pod failure policy fails it (FailJob)" if policy == "FailJob" else "",
    )


def _on_disruption(rules: Iterable[_PodRule]) -> str:
    """The action of a pod failure policy for an evicted pod, "Count" where it has none; the first match decides.

    With which code an evicted pod's process ends is not known beforehand, so a rule on exit codes that may match is
    taken at its worst.
    """
    counted = False
    for rule in rules:
        if rule.on_exit_codes is not None:
            values = set(rule.on_exit_codes.values or ())
            hit = _KILLED & values if rule.on_exit_codes.operator == "In" else _KILLED - values
            if hit and rule.action in ("FailJob", "FailIndex"):
                return rule.action
            counted |= bool(hit) and rule.action != "Ignore"
        elif any(one.type == _DISRUPTION and (one.status or "True") == "True" for one in rule.on_pod_conditions or ()):
            return "Count" if counted and rule.action == "Ignore" else rule.action
    return "Count"


def parse_job_set(raw: bytes | msgspec.Raw, shared: Shared) -> WorkloadView:
    """A JobSet (pkg/controllers/failure_policy.go): a failed Job restarts it, up to maxRestarts times.

    Without a failure policy, the first Job that fails ends it. Releases before rules existed count all restarts.

    Raises:
        BadObject: a field has a wrong type.
    """
    found = decode(raw, _Set, "JobSet")
    spec, status = found.spec or _SetSpec(), found.status or _SetStatus()
    policy = spec.failure_policy or _SetPolicy()
    rules = tuple(
        FailureRule(
            once(rule.action, shared),
            _words(rule.on_job_failure_reasons, shared),
            _words(rule.target_replicated_jobs, shared),
            bool(rule.on_job_failure_message_patterns),
        )
        for rule in policy.rules or ()
    )
    used = status.restarts_count_towards_max
    if used is None:
        used = 0 if rules else status.restarts or 0
    used += sum(sum(each.job_restarts_count_towards_max or ()) for each in status.replicated_jobs_status or ())
    first = rules[0] if rules else FailureRule("")
    return replace(
        workload(found.metadata, "jobset.x-k8s.io/v1alpha2", "JobSet", shared),
        restarts_used=used,
        restarts_allowed=policy.max_restarts or 0,
        ignores_disruption=first == FailureRule(first.action) and first.action in FORGIVING,
        suspended=bool(spec.suspend),
        active=sum(each.active or 0 for each in status.replicated_jobs_status or ()),
        running_since=_resumed_at(status),
        managed_by=once(other_controller(spec.managed_by, _JOB_SET_CONTROLLER), shared),
        finished=any_true(status.conditions, {"Completed", "Failed"}),
        ends_at_once="" if spec.failure_policy else "it has no failure policy, so its first Job that fails ends it",
        rules=once(rules, shared),
    )


def _resumed_at(status: _SetStatus) -> datetime | None:
    """When a JobSet was last let run, where its Jobs have pods that are ready; its Suspended condition says when."""
    jobs = status.replicated_jobs_status or []
    if not jobs or any(each.suspended or not (each.ready or each.succeeded) for each in jobs):
        return None
    told = [each for each in status.conditions or () if each.type == "Suspended"]
    return told[0].last_transition_time if told and told[0].status == "False" else None


def other_controller(controller: str | None, own: Collection[str]) -> str:
    """The controller that a job names, where it is not its kind's own."""
    return "" if controller is None or controller in own else controller


def workload(meta: Meta, version: str, kind: str, shared: Shared) -> WorkloadView:
    """A workload of which nothing is known yet but whose it is."""
    return WorkloadView(
        kind=kind,
        api_version=version,
        namespace=once(meta.namespace, shared),
        name=meta.name,
        uid=meta.uid,
        owner=owner_of(meta, shared),
        annotations=annotations_of(meta.annotations, shared),
        queue=once((meta.labels or {}).get(KUEUE_QUEUE, ""), shared),
    )


def any_true(conditions: Iterable[Condition] | None, kinds: Collection[str]) -> bool:
    """Whether a condition of one of these kinds holds."""
    return any(each.type in kinds and each.status == "True" for each in conditions or ())


def _words(words: Iterable[str] | None, shared: Shared) -> tuple[str, ...]:
    return once(tuple(once(word, shared) for word in words or ()), shared)

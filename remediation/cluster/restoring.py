"""The hands for whole jobs: ask for a checkpoint, stop, start, and watch, as `remediation.restoring` decides.

Level-triggered like the rest. A stage is written down before the request that it needs, so a process that takes over
sends that request again; what is on the job's own object says whether it was carried out. A job is started only when
the API server itself, asked at that moment, has no pod of it left: two writers would ruin its checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import structlog

from remediation.cluster import announce
from remediation.cluster.answers import ClusterError, Failure
from remediation.cluster.asking import ask_by_http
from remediation.cluster.hands import not_ours_to_touch
from remediation.cluster.marking import Tools
from remediation.cluster.parse import BadObject, parse_pod
from remediation.cluster.view import WORKLOADS, ClusterSnapshot
from remediation.contract import REQUEST, asking_of, checkpoint_of
from remediation.disruption import passages
from remediation.drain import FINISHED, Fate, fates, opts_out
from remediation.jobs import RESTART, RESTARTED, Adapter, Change, adapter_of, path_of, restarted_whole
from remediation.moving import drain_started
from remediation.objects import NodeView, PodView, WorkloadView
from remediation.orders import Orders
from remediation.record import RecordUnavailable
from remediation.restoring import Restart, Seen, Stage, advance, begin, may_restart, restart_id
from remediation.wish import NodeWish
from remediation.workloads import resource, root_of
from rules.schema import Policy

log = structlog.get_logger()

#: Between two tries to reach a job's own URL.
_ASK_AGAIN = timedelta(seconds=30)
_PARSERS = {(version, kind): parse for version, kind, parse in WORKLOADS}


@dataclass(frozen=True, slots=True)
class _Job:
    """A job with all of its pods."""

    job: WorkloadView
    adapter: Adapter
    pods: tuple[PodView, ...]


class Restorer:
    """Keeps the restarts of all jobs going. One thread calls `turn`."""

    def __init__(self, tools: Tools, policy: Policy) -> None:
        self._tools = tools
        self._policy = policy
        #: what was said of a restart last, so that it is told once
        self._told: dict[str, str] = {}
        self._ask_again_at: dict[str, datetime] = {}

    def turn(self, orders: Orders, seen: ClusterSnapshot) -> None:
        """Whatever can be done now. Raises nothing that the API server or the record may cause."""
        restarts = self._tools.record.restarts()
        is_open = {one.job.uid: one for one in restarts.values() if one.stage.is_open}
        wanted = {name: wish for name, wish in orders.wishes.items() if wish.drain or wish.asks}
        if not self._policy.restart.enabled:
            wanted = {}
        if not (is_open or wanted):
            return
        jobs = _jobs(seen)
        try:
            self._begin(wanted, seen, jobs, restarts, is_open, orders)
            for restart in is_open.values():
                self._go_on(restart, orders, seen, jobs)
        except RecordUnavailable as error:
            log.warning("no job is restarted: it could not be written down", detail=str(error))

    # ----------------------------------------------------------------------------------------------------- beginning

    def _begin(
        self,
        wanted: Mapping[str, NodeWish],
        seen: ClusterSnapshot,
        jobs: Mapping[str, _Job],
        restarts: Mapping[str, Restart],
        is_open: dict[str, Restart],
        orders: Orders,
    ) -> None:
        """A restart for each job on the nodes that are to be emptied, once their marks keep new work off."""
        now = self._tools.now()
        new: list[Restart] = []
        begun: set[str] = set()  # two nodes of one job may be wanted at once
        for name, wish in wanted.items():
            node = seen.nodes.get(name)
            if node is None or not node.keeps_new_work_off or (wish.drain and not node.unschedulable):
                continue
            for uid in self._on(node, wish, seen, now):
                under_way = is_open.get(uid)
                if uid in begun or (under_way is not None and not _is_superseded(under_way, wish)):
                    continue
                if under_way is not None:
                    why = f"{wish.incidents[0]} hit it on {name} before it had come back"
                    new.append(replace(under_way, stage=Stage.FAILED, at=now, detail=why))
                    del is_open[uid]
                found = jobs[uid]
                made = self._made(wish, name, found.job, self._seen(found, name, orders, seen, now), restarts, now)
                if made is not None:
                    new.append(made)
                    begun.add(uid)
        if new and self._tools.may_act():
            self._tools.record.note(new)
            is_open |= {one.job.uid: one for one in new if one.stage.is_open}
            for restart in new:
                self._tell(restart, seen)

    def _made(
        self, wish: NodeWish, node: str, job: WorkloadView, told: Seen, restarts: Mapping[str, Restart], now: datetime
    ) -> Restart | None:
        """The restart to begin; one that has failed without a stop begins anew where a person has approved since."""
        incident = wish.incidents[0]
        approval = self._tools.record.said.approval(incident)
        before = restarts.get(restart_id(incident, job.uid, moves=wish.drain))
        if before is not None and (
            before.stopped_at is not None or approval is None or approval.at <= before.at or not wish.drain
        ):
            return None
        asks = wish.asks and before is None
        made = begin(incident, node, wish.detected_at or wish.since, told, now, asks=asks, moves=wish.drain)
        doubt = may_restart(told.checkpoint, self._policy.restart, now)
        if made is not None and made.stage is Stage.STOPPING and doubt and approval is None:
            # the gate let it pass because it could be asked, and now nobody asks
            why = f"{doubt}: it is left running, and a person has to decide"
            return replace(made, stage=Stage.FAILED, stopped_at=None, detail=why)
        return made

    def _on(self, node: NodeView, wish: NodeWish, seen: ClusterSnapshot, now: datetime) -> list[str]:
        """UIDs of the jobs with pods on a node that a drain would move now, or that are only to be asked."""
        here = seen.pods_by_node.get(node.name, ())
        if wish.drain:
            begun = drain_started(self._tools.record.history(), node.name, now)
            moved = fates(here, node, self._policy.drain, started=begun, now=now)
            here = tuple(fate.pod for fate in moved if fate.fate is Fate.EVICT)
        roots: dict[str, None] = {}
        for pod in here:
            if pod.gpus and pod.phase not in FINISHED:
                found = restarted_whole(pod, seen.workloads, self._policy.restart)
                if found is not None:
                    roots[found[0].uid] = None
        return list(roots)

    # ----------------------------------------------------------------------------------------------------- going on

    def _go_on(self, restart: Restart, orders: Orders, seen: ClusterSnapshot, jobs: Mapping[str, _Job]) -> None:
        ref = restart.job
        if resource(ref.api_version, ref.kind) in seen.unread_kinds:
            return  # whether the job is there isn't known
        now = self._tools.now()
        found = jobs.get(ref.uid)
        if found is None:
            job = seen.workloads.get(ref.uid)
            adapter = adapter_of(job) if job is not None else None
            if job is None or adapter is None:
                self._note(replace(restart, stage=Stage.FAILED, at=now, detail="the job isn't there any more"), seen)
                return
            found = _Job(job, adapter, ())
        found = replace(found, pods=_with_old(found.pods, restart, seen))
        told = self._seen(found, restart.node, orders, seen, now)
        if restart.incident not in orders.standing and restart.stage is Stage.ASKING:
            self._note(replace(restart, stage=Stage.FAILED, at=now, detail="cancelled: the incident is over"), seen)
            return
        further = advance(restart, told, self._policy.restart, now)
        if further != restart:
            self._note(further, seen)
        if further.stage.is_open and self._tools.may_act():
            self._act(further, found, orders, seen)

    def _note(self, restart: Restart, seen: ClusterSnapshot) -> None:
        if self._tools.may_act():
            self._tools.record.note([restart])
            self._tell(restart, seen)

    def _seen(self, found: _Job, name: str, orders: Orders, seen: ClusterSnapshot, now: datetime) -> Seen:
        """What is known of a job that had pods on this node."""
        longest_s = self._policy.restart.request_deadline
        node = seen.nodes.get(name)
        out = name in orders.wishes or (node is not None and node.keeps_new_work_off)
        return Seen(
            job=found.job,
            adapter=found.adapter,
            pods=found.pods,
            checkpoint=checkpoint_of(found.job, found.pods, now, orders.measured.get(found.job.uid)),
            asking=asking_of(found.job, longest_s),
            out=(name,) if out else (),
            computing=None
            if orders.computing is None
            else {pod.uid for pod in found.pods if pod.key in orders.computing},
        )

    def _act(self, restart: Restart, found: _Job, orders: Orders, seen: ClusterSnapshot) -> None:
        """Send the request that the stage needs, where the live job shows that it is still needed."""
        try:
            job = self._live(restart)
            match restart.stage:
                case Stage.ASKING:
                    self._ask(restart, job, found.adapter)
                case Stage.STOPPING:
                    self._stop(restart, job, found, orders, seen)
                case Stage.STARTING:
                    self._start(restart, job, found.adapter, seen)
                case _:
                    pass
        except ClusterError as error:
            self._say_once(restart.id, f"not done yet: {error}")
        except BadObject as error:
            self._say_once(restart.id, f"the job can't be read: {error}")

    def _live(self, restart: Restart) -> WorkloadView:
        """The job as the API server has it. Raises ClusterError, BadObject."""
        ref = restart.job
        raw = self._tools.cluster.get(path_of(ref))
        job = _PARSERS[ref.api_version, ref.kind](msgspec.Raw(msgspec.json.encode(raw)), {})
        if job.uid != ref.uid:
            raise BadObject(f"{ref} is another job by now, with UID {job.uid}")
        return job

    def _ask(self, restart: Restart, job: WorkloadView, adapter: Adapter) -> None:
        if job.annotation(REQUEST) == restart.id:
            return
        asking = asking_of(job, self._policy.restart.request_deadline)
        if asking.url:
            now = self._tools.now()
            if now < self._ask_again_at.get(restart.id, now):
                return
            wrong = ask_by_http(asking.url, restart.id, asking.deadline_s)
            if wrong:
                self._ask_again_at[restart.id] = now + _ASK_AGAIN
                self._say_once(restart.id, wrong)
                return
        self._send(job, adapter.request_checkpoint(job, restart.id))

    def _stop(self, restart: Restart, job: WorkloadView, found: _Job, orders: Orders, seen: ClusterSnapshot) -> None:
        now, wish = self._tools.now(), orders.wishes.get(restart.node)
        is_over = restart.incident not in orders.standing
        if job.annotation(RESTART) == restart.id:
            change = found.adapter.stop(job, restart.id)
            if not job.suspended and change is not None and change.creates:
                self._tools.cluster.create(change.creates, dict(change.body))  # it may never have been ordered
            elif not job.suspended:
                why = "somebody has started it again while it was stopped: it is left alone"
                self._send(job, Change({"metadata": {"annotations": {RESTART: None}}}))
                self._note(replace(restart, stage=Stage.FAILED, at=now, detail=why), seen)
            return
        if job.annotation(RESTARTED) == restart.id:
            self._note(replace(restart, stage=Stage.FAILED, at=now, detail="it was restarted for this before"), seen)
            return
        if not is_over and (wish is None or not wish.drain or restart.incident not in wish.incidents):
            self._say_once(restart.id, f"not stopped yet: {restart.node} is not to be emptied now; a gate may hold it")
            return
        held = "" if is_over else self._held(restart.node, found, seen)
        if held and now - restart.at < timedelta(seconds=self._policy.restart.stop_within):
            self._say_once(restart.id, f"not stopped yet: {held}")
            return
        if held:
            self._note(
                replace(restart, stage=Stage.FAILED, stopped_at=None, at=now, detail=f"not stopped: {held}"), seen
            )
            return
        why = "the incident is over" if is_over else found.adapter.can_restart(job)
        if why:
            said = f"cancelled: {why}"
            self._note(replace(restart, stage=Stage.FAILED, stopped_at=None, at=now, detail=said), seen)
            return
        change = found.adapter.stop(job, restart.id)
        if change is not None:
            self._send(job, change, mark={RESTART: restart.id})

    def _held(self, name: str, found: _Job, seen: ClusterSnapshot) -> str:
        """What the live node, a budget, or a pod itself says against the stop of the whole job; "" where nothing does.

        Raises ClusterError, BadObject.
        """
        node = self._tools.hands.look(name)
        if not (node.unschedulable and node.keeps_new_work_off):
            return f"the marks of {name} are gone"
        if claimed := not_ours_to_touch(node):
            return f"{name}: {claimed}"
        for one in passages(found.pods, seen.pdbs):
            if not one.passes:
                return f"pod {one.pod.namespace}/{one.pod.name}: {one.reason}"
        for pod in found.pods:
            if why := opts_out(pod):
                return f"pod {pod.namespace}/{pod.name}: {why}"
        return ""

    def _start(self, restart: Restart, job: WorkloadView, adapter: Adapter, seen: ClusterSnapshot) -> None:
        if job.annotation(RESTARTED) == restart.id:
            return
        if job.annotation(RESTART) != restart.id:
            why = "somebody has taken our mark off it while it was stopped: it is left to them"
            self._note(replace(restart, stage=Stage.FAILED, at=self._tools.now(), detail=why), seen)
            return
        left = self._pods_left(restart, job, adapter)
        if left:
            self._say_once(restart.id, f"not started: {', '.join(left[:3])} may still write")
            return
        self._send(job, adapter.restart(job, restart.id), mark={RESTART: None, RESTARTED: restart.id})

    def _pods_left(self, restart: Restart, job: WorkloadView, adapter: Adapter) -> list[str]:
        """Names of its pods that the API server has at this moment and that have not ended.

        Without a selector, they are known by the UIDs that they had when it was stopped. Raises ClusterError.
        """
        selector = adapter.pods(job)
        left = []
        path = f"/api/v1/namespaces/{job.namespace}/pods"
        for page in self._tools.cluster.list_pages(path, label_selector=selector):
            pods = [parse_pod(raw, {}) for raw in page.items]
            its_own = (pod for pod in pods if selector or pod.uid in restart.old)
            left += [pod.name for pod in its_own if pod.phase not in FINISHED and pod.node]
        return left

    def _send(self, job: WorkloadView, change: Change, mark: Mapping[str, str | None] | None = None) -> None:
        """One change of a job as it was just read. Where it is an object of its own, the job is marked beside it.

        A stop is marked before it is ordered, a start after it: so neither is forgotten.
        """
        if not self._tools.may_act():
            return
        if not change.creates:
            self._patch(job, change.body)
            return
        annotations: dict[str, Any] = {"metadata": {"annotations": dict(mark or {})}}
        if (mark or {}).get(RESTART) is not None:
            self._patch(job, annotations)
            self._tools.cluster.create(change.creates, dict(change.body))
            return
        self._tools.cluster.create(change.creates, dict(change.body))
        self._patch(job, annotations)

    def _patch(self, job: WorkloadView, body: Mapping[str, Any]) -> None:
        """Raises ClusterError; a job of another UID under this name is a conflict."""
        metadata = {**body.get("metadata", {}), "uid": job.uid}
        try:
            self._tools.cluster.patch_merge(path_of(job), {**body, "metadata": metadata})
        except ClusterError as error:
            if error.kind is not Failure.CONFLICT:
                raise
            log.info("job changed meanwhile", job=f"{job.kind} {job.namespace}/{job.name}", detail=str(error))

    # ----------------------------------------------------------------------------------------------------- telling

    def _tell(self, restart: Restart, seen: ClusterSnapshot) -> None:
        node = seen.nodes.get(restart.node)
        if node is not None and restart.detail:
            announce.tell(self._tools.cluster, announce.job_restart(node, restart, self._tools.now()))

    def _say_once(self, restart: str, why: str) -> None:
        if self._told.get(restart) != why:
            self._told[restart] = why
            log.warning("restart", id=restart, detail=why)


def _is_superseded(restart: Restart, wish: NodeWish) -> bool:
    """Whether another fault that empties a node has hit a job that is on its way back."""
    return wish.drain and restart.stage is Stage.WATCHING and restart.incident not in wish.incidents


def _with_old(pods: Sequence[PodView], restart: Restart, seen: ClusterSnapshot) -> tuple[PodView, ...]:
    """With those that it had when it was stopped, also where what owned them has gone before them."""
    known = {pod.uid for pod in pods}
    old = frozenset(restart.old) - known
    if not old:
        return tuple(pods)
    return (*pods, *(pod for here in seen.pods_by_node.values() for pod in here if pod.uid in old))


def _jobs(seen: ClusterSnapshot) -> dict[str, _Job]:
    """All jobs that have pods and an adapter, by UID."""
    pods: dict[str, list[PodView]] = {}
    roots: dict[str, WorkloadView] = {}
    for here in seen.pods_by_node.values():
        for pod in here:
            root = root_of(pod, seen.workloads) if pod.owner is not None else None
            if isinstance(root, WorkloadView):
                roots[root.uid] = root
                pods.setdefault(root.uid, []).append(pod)
    found = {}
    for uid, root in roots.items():
        adapter = adapter_of(root)
        if adapter is not None:
            found[uid] = _Job(root, adapter, tuple(pods[uid]))
    return found

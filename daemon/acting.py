"""The daemon's side of acting: gathers what the gates need of cluster and record, and hands orders to the executor.

The loop asks for a scene before it decides, and calls `carry_out` once its decisions are in the ledger. In observe mode
the cluster is only read: there is no election and no executor, and the decisions are the same.
"""

import socket
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import structlog

from daemon.chronicle import Chronicle
from daemon.config import Config, KubernetesConfig
from daemon.journal import BREAKER, BreakerMemory, Journal, read_breaker
from daemon.ledger import Ledger, LedgerUnavailable
from daemon.measuring import computing
from daemon.memory import Place
from daemon.metrics import Metrics
from daemon.tickets import TicketDesk
from detectors.events import KernelEvent
from detectors.findings import GpuState, Incident, Verdict
from detectors.snapshot import Snapshot
from remediation.breaker import BreakerState, heard
from remediation.cluster.answers import ClusterError
from remediation.cluster.client import Cluster
from remediation.cluster.executor import Executor, Reach
from remediation.cluster.lease import Candidate, Election
from remediation.cluster.view import ClusterSnapshot, ClusterView
from remediation.contract import CHECKPOINT_METRIC
from remediation.decide import Decision, advanced, newly_taken, taken_by
from remediation.limits import Fleet
from remediation.objects import INCIDENT, NodeView
from remediation.operations import Operation, passed_resets
from remediation.operations import wanted as operations_wanted
from remediation.orders import Orders
from remediation.people import Said
from remediation.release import to_probation
from remediation.restoring import Stage
from remediation.scene import Scene
from remediation.wish import Condition, NodeWish, carried_out, condition_of, wishes
from rules.schema import Policy
from rules.vocabulary import Action, EventKind

log = structlog.get_logger()

#: Attempts are taken up from so far back: longer than any limit counts.
_HISTORY = timedelta(days=7)
_LEADS = "no other process acts in its place"
_LEADS_NOT = "this process does not hold the lease"


class NoClusterError(Exception):
    """The configuration leads to no cluster. The text says why, and what to do."""


def connect(config: KubernetesConfig) -> Cluster:
    """The cluster that the configuration names. Raises NoClusterError."""
    try:
        if config.kubeconfig is None:
            return Cluster.in_cluster()
        return Cluster.from_kubeconfig(config.kubeconfig, config.context)
    except ClusterError as error:
        raise NoClusterError(str(error)) from error


def scene_of(
    seen: ClusterSnapshot, journal: Journal, policy: Policy, incidents: Sequence[Incident], breaker: BreakerMemory
) -> Scene:
    """What cluster and record say at this moment, for a process that may act. Raises LedgerUnavailable."""
    sick = {name for incident in incidents for name in incident.nodes}
    fleet = Fleet.of((node for node in seen.nodes.values() if _has_gpus(node) or node.name in sick), policy.limits)
    marks = {node.annotation(INCIDENT) for node in fleet.nodes.values()} - {""}
    ended = journal.over(marks - {incident.id for incident in incidents})
    return Scene(
        fleet=fleet,
        pods_by_node=seen.pods_by_node,
        pdbs=seen.pdbs,
        workloads=seen.workloads,
        unread_kinds=seen.unread_kinds,
        stale_s=seen.stale_s,
        leads=True,
        leader=_LEADS,
        history=journal.history(),
        operations=tuple(journal.operations().values()),
        breaker=breaker.state,
        taken=breaker.taken,
        said=journal.said,
        over=frozenset(ended),
        ended=ended,
    )


def _has_gpus(node: NodeView) -> bool:
    """A node whose device plugin died shows no GPUs any more, but our mark."""
    return node.gpus > 0 or bool(node.annotation(INCIDENT))


class Acting:
    """One cluster's view, election and executor. Made once a process; `take_up` begins each term as a leader."""

    def __init__(self, config: Config, policy: Policy, ledger: Ledger, metrics: Metrics, cluster: Cluster) -> None:
        where = config.kubernetes or KubernetesConfig()
        self.modes = config.how_far.able(policy.operations.enabled)
        self._policy = policy
        self._ledger = ledger
        self._metrics = metrics
        self._cluster = cluster
        self._view = ClusterView(cluster)
        self._journal = Journal(ledger)
        self._chronicle = Chronicle(ledger, policy.chronic)
        self._breaker = BreakerMemory(BreakerState(), ())
        self._is_recorded = False
        self._ordered: Orders | None = None
        self._incidents: tuple[Incident, ...] = ()
        #: when a node that is wanted out was last seen to answer
        self._answered: dict[str, datetime] = {}
        self._measured: Mapping[str, datetime] = {}
        self._ended: Mapping[str, datetime] = {}
        #: resets by our own Jobs, by id: those of this tick, and those that ticks have taken in
        self._resets: Mapping[str, Operation] = {}
        self._taken_in: set[str] = set()
        self._term = 0
        self._stop = threading.Event()
        self._election: Election | None = None
        self._executor: Executor | None = None
        self._thread: threading.Thread | None = None
        self._tickets = TicketDesk(config.tickets if self.modes.acts else None, ledger, metrics, self._may_act)
        if self.modes.acts:
            who = Candidate(where.namespace, where.lease, f"{socket.gethostname()}_{uuid.uuid4()}")
            self._election = Election(cluster, who, policy.lease, steady=_boot_time_s)
            reach = Reach(cluster, self._view, where.parallel)
            self._executor = Executor(reach, self._journal, policy, self._may_act)
            self._thread = threading.Thread(target=self._election.run, args=(self._stop,), name="lease", daemon=True)

    # ------------------------------------------------------------------------------------------------ life cycle

    def start(self, *, reads_only: bool = False) -> None:
        """Begin to look at the cluster, and to stand for election where this process may act and not only read."""
        self._view.start()
        if reads_only:
            return
        if self._thread is not None:
            self._thread.start()
        self._tickets.start()
        if self._executor is not None:
            self._executor.start()

    def stop(self) -> None:
        """End: no more writes, the lease given back, threads joined."""
        self._is_recorded = False
        if self._executor is not None:
            self._executor.stop()
        self._stop.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        self._tickets.stop()
        self._view.stop()
        self._cluster.close()

    def stands_by(self) -> str:
        """Why this process should not even watch now: who else does; "" where it should."""
        if self._election is None:
            return ""
        if self._election.out_of_touch:
            return "standing by: another process may lead, after so long without a look at the lease"
        other = self._election.other_leader()
        return f"standing by: {other} leads" if other else ""

    @property
    def leads(self) -> bool:
        """Whether this process holds the lease."""
        return self._election is not None and self._election.may_act()

    @property
    def trouble(self) -> tuple[str, ...]:
        """What keeps it from acting that is not a matter of one decision, for /readyz."""
        seen = [f"the cluster's {kind.name}: {kind.error}" for kind in self._view.health() if kind.error]
        if self._election is not None and not self._election.may_act():
            seen.append(_LEADS_NOT)
        if self._breaker.state.open_since is not None:
            seen.append(f"the circuit breaker is open: {self._breaker.state.reason}")
        return tuple(seen)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the cluster has been listed once."""
        return self._view.wait(timeout_s)

    def take_up(self, now: datetime) -> None:
        """Begin a term: read what was tried and said before, forget what was ordered. Raises LedgerUnavailable."""
        term = self._election.term if self._election is not None else 0
        if self._executor is not None:
            self._executor.begin_anew()
        self._journal.read(now - _HISTORY)
        self._tickets.take_up()
        try:
            self._breaker = read_breaker(self._ledger)
        except ValueError as error:
            log.warning("not taken up from before", what=BREAKER, detail=str(error))
        self._term = term

    # ----------------------------------------------------------------------------------------------------- a tick

    def has_news(self) -> bool:
        """Whether somebody has said something since the last tick."""
        try:
            return self._journal.listen() > 0
        except LedgerUnavailable:
            return False  # the tick will find out

    def scene(
        self,
        at: datetime,
        incidents: Sequence[Incident],
        closed: Sequence[Incident] = (),
        measured: Mapping[str, datetime] = {},
        places: Mapping[str, Place] = {},
    ) -> Scene:
        """What the gates need to know beside telemetry; `closed` are the incidents that have just ended.

        `measured` says, by the UID of a job that names a metric for it, when its last checkpoint was committed;
        `places` where each GPU sits that was ever seen.

        Where the ledger cannot be read, nothing is known, and no gate that needs it passes.
        """
        try:
            if self._election is not None and self._term != self._election.term:
                self.take_up(at)  # the lease has been won since, and another process may have acted before
            self._journal.listen()
            state = heard(self._breaker.state, self._journal.said, at)
            if state != self._breaker.state:
                log.info("circuit breaker", state="closed", why=state.reason)
            self._breaker = BreakerMemory(state, self._breaker.taken)
            scene = scene_of(self._view.snapshot(), self._journal, self._policy, incidents, self._breaker)
        except LedgerUnavailable as error:
            log.warning("the record cannot be read", detail=str(error))
            scene = Scene(Fleet.of((), self._policy.limits), stale_s=float("inf"))
        state = advanced(scene.breaker, scene.taken, scene, self._policy, at)
        leads = self._election is None or self._election.may_act()
        over = scene.over | {incident.id for incident in closed}
        leader = _LEADS if leads else _LEADS_NOT
        self._measured, self._ended = measured, scene.ended
        chronic = self._chronicle.look(scene.fleet, incidents, closed, places)
        told = replace(scene, over=over, measured=measured, chronic=chronic)
        return replace(told, breaker=state, leads=leads, leader=leader)

    def decided(self, at: datetime, scene: Scene, decisions: Sequence[Decision], incidents: Sequence[Incident]) -> None:
        """Count what these decisions take out, for the breaker."""
        open_now = {incident.id for incident in incidents}
        since = at - timedelta(seconds=self._policy.breaker.window)
        kept = tuple(one for one in self._breaker.taken if one.incident in open_now or one.at > since)
        taken = (*kept, *newly_taken(kept, taken_by(decisions, incidents, self.modes, scene.said)))
        state = advanced(scene.breaker, taken, scene, self._policy, at)
        if (state.open_since is None) != (self._breaker.state.open_since is None):
            told = log.error if state.open_since is not None else log.info
            told("circuit breaker", state="open" if state.open_since is not None else "closed", why=state.reason)
        self._breaker = BreakerMemory(state, taken)
        self._metrics.breaker_open.set(float(state.open_since is not None))
        self._metrics.leader.set(float(self.leads))
        self._metrics.cluster_age.set(scene.stale_s)
        self._metrics.nodes_out.set(len(scene.fleet.out))

    def checkpoint_metrics(self) -> dict[str, str]:
        """By UID of a job, the expression that it names for the time of its last checkpoint. For any thread."""
        if not self._policy.restart.enabled:
            return {}
        jobs = self._view.workloads()
        return {job.uid: told for job in jobs if (told := job.annotation(CHECKPOINT_METRIC)) and not job.finished}

    def own_events(self) -> tuple[KernelEvent, ...]:
        """The resets that went well, for incidents that are open still: to a fault they are what a line of a log is.

        The next tick that is carried through has taken them in.
        """
        done = passed_resets(self._journal.operations().values(), {one.id for one in self._incidents})
        self._resets = {name: one for name, one in done.items() if name not in self._taken_in}
        return tuple(reset_event(one) for one in self._resets.values())

    def memory(self) -> dict[str, bytes]:
        """What has to survive a restart, for the ledger's state table."""
        return {BREAKER: msgspec.json.encode(self._breaker)}

    def carry_out(
        self,
        at: datetime,
        decisions: Sequence[Decision],
        incidents: Sequence[Incident],
        verdicts: Sequence[Verdict],
        *,
        recorded: bool,
        snapshot: Snapshot | None = None,
    ) -> None:
        """Hand over what is to be done, where the decisions are in the ledger; else stop what goes on."""
        self._taken_in.update(self._resets)
        recorded = recorded and self._journal.write_waiting()
        if self._executor is None:
            return
        if recorded:
            orders = self._orders(at, decisions, incidents, verdicts)
            if snapshot is not None and self._policy.restart.enabled:
                orders = replace(orders, computing=computing(snapshot, self._policy.restart.busy_share))
            self._incidents, self._ordered = tuple(incidents), orders
            self._executor.give(orders)
            self._tickets.give(decisions, incidents, self._journal.history())
        self._is_recorded = recorded
        self._metrics.advance(self._metrics.evictions, "result", self._executor.counts.items())
        for (action, ending), count in self._journal.take_endings().items():
            self._metrics.outcomes.labels(action.value, ending.value).inc(count)
        causes = {incident.id: incident.cause_class.value for incident in incidents}
        for restart in self._journal.take_restarted():
            self._metrics.restarts.labels(restart.stage.value).inc()
            if restart.stage is Stage.DONE and restart.recovery_s is not None:
                cause = causes.get(restart.incident, "unknown")
                self._metrics.recovery.labels(cause, f"L{restart.level}").observe(restart.recovery_s)

    def go_blind(self, verdicts: Sequence[Verdict]) -> None:
        """Nothing could be asked: say so on the nodes, and order nothing new; what was ordered soon grows too old."""
        if self._executor is not None and self._ordered is not None:
            told = conditions(self._view.nodes(), self._incidents, verdicts)
            self._executor.give(replace(self._ordered, conditions=told))

    def _orders(
        self, at: datetime, decisions: Sequence[Decision], incidents: Sequence[Incident], verdicts: Sequence[Verdict]
    ) -> Orders:
        said = self._journal.said
        releases = {
            one.plan.node: one.plan.incident
            for one in decisions
            if Action.RELEASE in carried_out(one, self.modes, said)
        }
        wanted = wishes(decisions, incidents, self.modes, said)
        nodes = self._view.nodes()
        self._answered.update((name, at) for name in wanted if name in nodes and nodes[name].ready)
        for name in wanted:
            releases.pop(name, None)  # somebody gave it back, and something else wants it out by now
        return Orders(
            at=at,
            wishes={name: self._with_fence(wish, said) for name, wish in wanted.items()},
            releases=releases,
            probations=frozenset(
                name for name in releases if name in nodes and to_probation(nodes[name], said, self._policy.comeback)
            ),
            conditions=conditions(nodes, incidents, verdicts),
            standing=frozenset(incident.id for incident in incidents),
            measured=self._measured,
            operations=operations_wanted(decisions, incidents, self.modes, said, self._ended),
        )

    def _with_fence(self, wish: NodeWish, said: Said) -> NodeWish:
        """A node is given up as off only where policy knows that, and a person has said so since it answered last."""
        since = max(wish.since, self._answered.get(wish.node, wish.since))
        return replace(wish, off=wish.drain and self._policy.drain.out_of_service and said.fenced(wish.node, since))

    def _may_act(self) -> bool:
        election = self._election
        return self._is_recorded and election is not None and self._term == election.term and election.may_act()


def conditions(
    nodes: Mapping[str, NodeView], incidents: Sequence[Incident], verdicts: Sequence[Verdict]
) -> dict[str, Condition]:
    """What GPUHealthy should say on each node that has GPUs; it can be judged where each of its GPUs can."""
    unknown = {verdict.node for verdict in verdicts if verdict.state is GpuState.UNKNOWN}
    known = {verdict.node for verdict in verdicts} - unknown
    by_node: dict[str, list[Incident]] = {}
    for incident in incidents:
        for name in incident.nodes:
            by_node.setdefault(name, []).append(incident)
    return {
        name: condition_of(name, by_node.get(name, ()), is_known=name in known)
        for name, node in nodes.items()
        if node.gpus or name in known or name in unknown
    }


def reset_event(done: Operation) -> KernelEvent:
    """What a reset that one of our Jobs has made is to the fault that it ends."""
    return KernelEvent(
        EventKind.GPU_RESET, None, f"reset by {done.id}", at=done.at, gpu_uuid=done.gpus[0], node=done.node,
        source="operation",
    )  # fmt: skip


def _boot_time_s() -> float:
    """Seconds since boot, going on while the machine sleeps (where the system has such a clock)."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

"""`gpuwarden plan`: what would happen to a node now, from the live cluster and the record; it changes nothing.

The one command beside `run` that looks at the cluster. It asks the gates that the daemon asks, as the process that may
act would, and has the API server judge each eviction in a dry run.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from daemon.acting import NoClusterError, conditions, connect, scene_of
from daemon.commands.around import Look, circumstances, works_of
from daemon.commands.marks import marks, wish_of
from daemon.commands.output import CommandError, ExitCode, progress, settings, show
from daemon.commands.plan_table import print_report
from daemon.commands.planned import Report, as_data, planned, shown, way_back
from daemon.commands.record import (
    HISTORY,
    as_values,
    breaker_of,
    ended,
    mode_of_daemon,
    node_called,
    remembered,
    require_ledger,
    restarts_of,
    same_node,
    some_of,
)
from daemon.commands.stakes import at_stake, held_up, lost_work, pod_fates, pods_shown
from daemon.config import Config, KubernetesConfig
from daemon.journal import BreakerMemory, Journal
from daemon.ledger import Ledger
from daemon.memory import Remembered, newest_decision
from detectors.findings import Incident
from remediation.breaker import BreakerState, heard
from remediation.cluster.answers import ClusterError, Eviction
from remediation.cluster.client import Cluster
from remediation.cluster.evictions import Evictor, PodOutcome
from remediation.cluster.hands import Hands
from remediation.cluster.marking import is_drained
from remediation.cluster.parse import BadObject
from remediation.cluster.view import ClusterSnapshot, ClusterView
from remediation.decide import Decision, advanced, decide_on
from remediation.drain import PodFate
from remediation.gates import GateResult
from remediation.lost_work import Resume, resume_of
from remediation.modes import Modes
from remediation.objects import NodeView
from remediation.scene import Scene
from rules.schema import Policy, RuleBook

T = TypeVar("T")

#: How long the first list of the cluster may take.
_FIRST_LIST_S = 30.0
#: How long a job takes to resume is told by the restarts of so long.
_RESUMED_WITHIN = timedelta(days=30)
#: Only a refusal of RBAC names the resource that was to be created.
_MAY_NOT_EVICT = 'cannot create resource "pods/eviction"'
_LEADER = "asked as the process that may act"
_STEPS = 4


@dataclass(frozen=True, slots=True)
class _Record:
    """What the ledger knows. `before` are the gates of the newest decision about each incident."""

    known: Remembered
    incidents: tuple[Incident, ...]
    before: dict[str, tuple[GateResult, ...]]
    journal: Journal
    breaker: BreakerMemory
    mode_of_daemon: str
    resume: Resume


def plan(thing: str, path: Path | None, form: str, *, dry_run: bool = True) -> int:
    """Print what would happen to a node. Without `dry_run`, the API server is not asked about evictions."""
    return ended(lambda: _plan(thing, *settings(path), form, dry_run=dry_run))


def _plan(thing: str, config: Config, rules: RuleBook, form: str, *, dry_run: bool) -> int:
    if config.kubernetes is None:
        why = (
            "there is no section `kubernetes`, so no cluster to look at; add `kubernetes: {}` for the one that this"
            " runs in, or `kubernetes: {kubeconfig: FILE}` for another"
        )
        raise CommandError(why, ExitCode.USAGE)
    require_ledger(config)
    with closing(_connected(config.kubernetes)) as cluster, progress("looking", _STEPS) as tell:
        with Ledger.open(config.ledger.url, now=lambda: datetime.now(UTC)) as ledger:
            record = _read(ledger, rules.policy)
            tell(1)
            seen = _snapshot(cluster)
            tell(2)
            node = _live(cluster, _name(thing, seen, record))
            scene = replace(_scene(seen, record, rules.policy), chronic=_chronic(ledger, seen, record, rules.policy))
        tell(3)
        modes = config.how_far.able(rules.policy.operations.enabled)
        decisions = _decisions(seen, record, scene, rules.policy, modes)
        look = Look(node, scene, record.incidents, decisions, rules.policy, modes, seen.as_of)
        told = pod_fates(look)
        answers, note = _rehearsed(cluster, config.kubernetes, told, seen) if dry_run else ({}, "not asked for")
        report = _report(look, record, told, answers, note)
        tell(_STEPS)
    if form == "table":
        print_report(report)
    else:
        show(as_data(report), form)
    return ExitCode.OK


def _report(
    look: Look, record: _Record, told: Sequence[PodFate], answers: dict[str, str], note: str
) -> Report:  # fmt: skip
    whole = wish_of(look)
    drained = whole is not None and is_drained(whole, look.node, look.scene.history)
    every = planned(look)
    known = record.known
    told_conditions = conditions({look.node.name: look.node}, look.incidents, known.verdicts)
    return Report(
        at=look.now,
        verdicts_at=known.at,
        source=known.source,
        mode=str(look.modes),
        mode_of_daemon=record.mode_of_daemon,
        node=shown(look),
        condition=told_conditions.get(look.node.name),
        planned=every,
        marks=marks(look, drained=drained),
        pods=pods_shown(look, told, answers),
        held_up=held_up(look, told),
        at_stake=at_stake(look, told),
        lost_work=lost_work(look, known.verdicts, record.resume),
        dry_run=note,
        way_back=way_back(look, every, whole),
    )


# ---------------------------------------------------------------------------------------------------------- the record


def _read(ledger: Ledger, policy: Policy) -> _Record:
    incidents = as_values(ledger, ledger.open_incidents(), Incident)
    newest = {one.id: newest_decision(ledger, one.id) for one in incidents}
    journal = Journal(ledger)
    now = datetime.now(UTC)
    journal.read(now - HISTORY)
    return _Record(
        known=remembered(ledger),
        incidents=tuple(incidents),
        before={
            name: tuple(as_values(ledger, body["gates"], GateResult)) for name, body in newest.items() if body
        },
        journal=journal,
        breaker=breaker_of(ledger) or BreakerMemory(BreakerState(), ()),
        mode_of_daemon=mode_of_daemon(ledger),
        resume=resume_of(restarts_of(ledger, None, now - _RESUMED_WITHIN), policy.restart),
    )  # fmt: skip


def _scene(seen: ClusterSnapshot, record: _Record, policy: Policy) -> Scene:
    """The scene of the process that may act, with the circuit breaker as the next tick would find it."""
    now, memory = seen.as_of, record.breaker
    state = heard(memory.state, record.journal.said, now)
    scene = scene_of(seen, record.journal, policy, record.incidents, BreakerMemory(state, memory.taken))
    return replace(scene, leader=_LEADER, breaker=advanced(state, memory.taken, scene, policy, now))


def _chronic(ledger: Ledger, seen: ClusterSnapshot, record: _Record, policy: Policy) -> dict[str, str]:
    """Which things of the open incidents are chronic, as the daemon's own ticks find it."""
    if not policy.chronic.quarantine:
        return {}
    from daemon.outages import OutageBook

    created = {name: node.created for name, node in seen.nodes.items() if node.created is not None}
    return OutageBook(ledger, policy.chronic).chronic(record.incidents, record.known.places, created)


def _decisions(
    seen: ClusterSnapshot, record: _Record, scene: Scene, policy: Policy, modes: Modes
) -> tuple[Decision, ...]:
    """About all incidents, since they share the limits."""
    around = circumstances(record.known, record.before, record.incidents, scene, seen.as_of)
    return decide_on(
        record.incidents, works_of(scene), record.known.verdicts, policy,
        around=around, modes=modes, scene=scene,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------- the cluster


def _connected(config: KubernetesConfig) -> Cluster:
    try:
        return connect(config)
    except NoClusterError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error


def _snapshot(cluster: Cluster) -> ClusterSnapshot:
    """The cluster, listed once. Raises CommandError where the API server is out of reach or says no."""
    # A view keeps trying; whoever waits at a terminal wants to know at once.
    _asked(lambda: next(cluster.list_pages("/api/v1/nodes", limit=1)))
    with ClusterView(cluster) as view:
        if not view.wait(_FIRST_LIST_S):
            wrong = "; ".join(kind.error for kind in view.health() if kind.error) or "no answer yet"
            raise CommandError(f"the cluster could not be listed: {wrong}", ExitCode.SOURCE)
        return view.snapshot()


def _name(thing: str, seen: ClusterSnapshot, record: _Record) -> str:
    """The node that is meant. Raises CommandError with the nodes known."""
    found = node_called(thing, seen.nodes)
    if found is not None:
        return found
    known = some_of(name for name, node in seen.nodes.items() if node.gpus) or some_of(seen.nodes) or "none"
    why = f"the cluster has no node {thing!r}; nodes known: {known}"
    if any(same_node(node, thing) for one in record.incidents for node in one.nodes):
        why += f"; an incident names it all the same, see `gpuwarden explain {thing}`"
    raise CommandError(why, ExitCode.PROBLEMS)


def _live(cluster: Cluster, name: str) -> NodeView:
    """The node as it is at this moment."""
    return _asked(lambda: Hands(cluster, lambda: False).look(name))


def _asked(ask: Callable[[], T]) -> T:
    """The API server's answer. Raises CommandError."""
    try:
        return ask()
    except ClusterError as error:
        raise CommandError(f"the API server cannot be asked: {error}", ExitCode.SOURCE) from error
    except BadObject as error:
        raise CommandError(f"the node cannot be read: {error}", ExitCode.SOURCE) from error


def _rehearsed(
    cluster: Cluster, config: KubernetesConfig, told: Sequence[PodFate], seen: ClusterSnapshot
) -> tuple[dict[str, str], str]:
    """What the API server says to each eviction, by UID, and how that went as a whole."""
    with Evictor(cluster, lambda: True, parallel=config.parallel) as evictor:
        outcomes = evictor.round(told, seen.pdbs, dry_run=True)
    answers = {one.pod.uid: _answer(one) for one in outcomes}
    forbidden = sum(_is_forbidden(one) for one in outcomes)
    if forbidden:
        return (
            answers,
            f"{forbidden} of {len(outcomes)} evictions not judged: this identity may not create pods/eviction",
        )
    asked = sum(one.evicted is not None for one in outcomes)
    return answers, f"{asked} of {len(outcomes)} evictions judged by the API server"


def _is_forbidden(outcome: PodOutcome) -> bool:
    evicted = outcome.evicted
    return evicted is not None and evicted.result is Eviction.REFUSED and _MAY_NOT_EVICT in evicted.detail


def _answer(outcome: PodOutcome) -> str:
    if _is_forbidden(outcome):
        return "not judged: this identity may not (403)"
    if outcome.evicted is None:
        return outcome.detail
    if outcome.evicted.result is Eviction.DONE:
        return "would be evicted"
    return f"{outcome.evicted.result}: {outcome.detail}"

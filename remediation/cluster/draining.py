"""Drains: round after round of evictions on the nodes that are to be emptied, until nothing is left to move.

Level-triggered like the marks. What a round may do is worked out from the pods as they are now (`remediation.drain`),
each node is read again before its pods are touched, and a drain is written down before its first eviction.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from remediation.cluster import announce
from remediation.cluster.answers import ClusterError
from remediation.cluster.evictions import Evictor, PodOutcome
from remediation.cluster.hands import not_ours_to_touch
from remediation.cluster.marking import Tools, drains_done, is_drained
from remediation.cluster.parse import BadObject
from remediation.cluster.view import ClusterSnapshot
from remediation.drain import Drain, PodFate, drain, fates
from remediation.jobs import by_job
from remediation.limits import Attempt, Ending
from remediation.objects import NodeView, PdbView
from remediation.orders import Orders
from remediation.record import RecordUnavailable
from remediation.wish import NodeWish
from rules.schema import Policy
from rules.vocabulary import Action

log = structlog.get_logger()

#: Evictions asked for in one round: rounds stay short, so that new orders are heeded soon.
_MOST_A_ROUND = 256
#: A pod that was just evicted is not asked for again while the watch may not have told of it yet.
_ASKED = timedelta(seconds=5)
#: A server that refuses, or gives no verdict, is asked again for the same pod after so long; later where it says so.
_REFUSED_S = 2.0
_LONGEST_S = 60.0
#: A node has to look empty for so long: a pod may have been bound to it just before the cordon.
_EMPTY_FOR = timedelta(seconds=1)


@dataclass(slots=True)
class _Progress:
    """One node's drain, as far as this process has seen it."""

    attempt: Attempt
    rehearsed: bool = False
    held: str = ""
    empty_since: datetime | None = None
    told: set[str] = field(default_factory=set)


class Drainer:
    """Keeps all drains going. One thread calls `turn`. `counts` takes the evictions by their result."""

    def __init__(self, tools: Tools, evictor: Evictor, policy: Policy, counts: Counter[str]) -> None:
        self._counts = counts
        self._tools = tools
        self._evictor = evictor
        self._policy = policy
        self._progress: dict[str, _Progress] = {}
        #: pods, by UID, that are not asked for before this time
        self._not_before: dict[str, datetime] = {}
        #: nodes whose drain has failed, with the time of it: whether to try again is for a later tick to decide
        self._failed: dict[str, datetime] = {}

    def turn(self, orders: Orders, seen: ClusterSnapshot) -> None:
        """One round for all nodes together, so that they share the room of their disruption budgets."""
        now = self._tools.now()
        try:
            wanted = self._begin(orders, seen, now)
            self._give_up(orders, seen, now)
            self._round(wanted, seen, now)
        except RecordUnavailable as error:
            log.warning("no pod is moved: it could not be written down", detail=str(error))
        self._not_before = {uid: at for uid, at in self._not_before.items() if now < at}

    def _round(self, wanted: Sequence[tuple[NodeView, NodeWish]], seen: ClusterSnapshot, now: datetime) -> None:
        todo: list[PodFate] = []
        ended: list[tuple[Attempt, Ending, str]] = []
        for node, wish in wanted:
            plan = self._look(node, wish, self._progress[node.name], seen, ended, now)
            if plan is not None:
                todo.extend(fate for fate in plan.evict if now >= self._not_before.get(fate.pod.uid, now))
        if ended:
            self._tools.record.end(ended, now)
        if todo:
            nodes = {node.name: (node, wish) for node, wish in wanted}
            self._evict(self._agreed(todo[:_MOST_A_ROUND], nodes, seen.pdbs), seen.pdbs)

    def _begin(self, orders: Orders, seen: ClusterSnapshot, now: datetime) -> list[tuple[NodeView, NodeWish]]:
        """The nodes to be emptied that carry our marks already; a drain that is new is written down first."""
        history = self._tools.record.history()
        done = drains_done(history)
        pending = [one for one in history if _is_open_drain(one)]
        wanted, new = [], []
        for name, wish in orders.wishes.items():
            node = seen.nodes.get(name)
            if not wish.drain or node is None or not _is_marked(node) or is_drained(wish, node, done):
                self._progress.pop(name, None)
                continue
            # Whichever of the wish's incidents it began for, it is one drain, with the deadlines that it began with.
            mine = (one for one in pending if one.node == name and one.incident in wish.incidents)
            attempt = next(mine, None)
            failed_at = self._failed.get(name)
            if attempt is None and failed_at is not None and orders.at <= failed_at:
                self._progress.pop(name, None)
                continue
            known = self._progress.get(name)
            if attempt is None or known is None or known.attempt != attempt:
                begun = attempt or Attempt(now, wish.incidents[0], name, Action.DRAIN, Ending.PENDING)
                new.append((_Progress(begun), node, wish))
            wanted.append((node, wish))
        for name in self._progress.keys() - orders.wishes.keys():
            del self._progress[name]
        if new and self._tools.may_act():
            self._tools.record.begin([progress.attempt for progress, _, _ in new])
            self._progress.update((node.name, progress) for progress, node, _ in new)
            events = (
                announce.drain_begins(node, wish, len(seen.pods_by_node.get(node.name, ())), now)
                for _, node, wish in new
            )
            list(self._tools.pool.map(lambda event: announce.tell(self._tools.cluster, event), events))
        return [one for one in wanted if one[0].name in self._progress] if self._tools.may_act() else []

    def _look(
        self,
        node: NodeView,
        wish: NodeWish,
        progress: _Progress,
        seen: ClusterSnapshot,
        ended: list[tuple[Attempt, Ending, str]],
        now: datetime,
    ) -> Drain | None:
        """What may be done on a node in this round; None where it has `ended`, or nothing may be done."""
        policy, attempt = self._policy.drain, progress.attempt
        pods = seen.pods_by_node.get(node.name, ())
        whole = by_job(seen.workloads, self._policy.restart)
        told = fates(pods, node, policy, started=attempt.at, now=now, whole=whole)
        plan = drain(told, policy)
        if plan.done:
            progress.empty_since = progress.empty_since or now
            if now - progress.empty_since >= _EMPTY_FOR:
                said = f"empty; {len(told)} pods stay that no drain moves"
                ended.append((attempt, Ending.DONE, said))
            return None
        progress.empty_since = None
        for fate in (*plan.asks, *(one for one in plan.wait if one.stuck)):
            self._ask(node, wish, progress, f"pod {fate.pod.namespace}/{fate.pod.name}: {fate.reason}")
        said = self._overdue(plan, attempt, now)
        if said:
            why = f"{said}{f'; {progress.held}' if progress.held else ''}"
            ended.append((attempt, Ending.FAILED, why))
            self._failed[node.name] = now
            self._ask(node, wish, progress, said)
            return None
        if wish.asks and any(fate.whole for fate in told):
            return None  # nothing is evicted before the jobs that can still save have done so, and gone
        return plan

    def _overdue(self, plan: Drain, attempt: Attempt, now: datetime) -> str:
        """That a drain has taken too long, and what is left on the node; "" where it has not."""
        if plan.done or now - attempt.at < timedelta(seconds=self._policy.limits.attempt_timeout):
            return ""
        if _waits_its_turn(plan, now):
            return ""
        left = ", ".join(f"{one.pod.namespace}/{one.pod.name}" for one in (*plan.evict, *plan.wait, *plan.asks)[:5])
        return f"not empty after {(now - attempt.at).total_seconds():.0f} s: {left}"

    def _give_up(self, orders: Orders, seen: ClusterSnapshot, now: datetime) -> None:
        """End drains that a gate has held back for too long: no round looks at them, so nobody would be told."""
        for attempt in self._tools.record.pending():
            node, wish = seen.nodes.get(attempt.node), orders.wishes.get(attempt.node)
            if node is None or not _is_open_drain(attempt) or (wish is not None and wish.drain):
                continue
            pods = seen.pods_by_node.get(node.name, ())
            told = fates(pods, node, self._policy.drain, started=attempt.at, now=now)
            said = self._overdue(drain(told, self._policy.drain), attempt, now)
            if said and self._tools.may_act():
                held = f"{said}; a gate holds it back, and `gpuwarden explain {node.name}` says which"
                self._tools.record.end([(attempt, Ending.FAILED, held)], now)
                if wish is not None:
                    self._ask(node, wish, _Progress(attempt), held)

    def _ask(self, node: NodeView, wish: NodeWish, progress: _Progress, why: str) -> None:
        """Tell people once what only they can decide."""
        if why not in progress.told:
            progress.told.add(why)
            log.warning("a drain waits for a person", node=node.name, incident=wish.incidents[0], why=why)
            announce.tell(self._tools.cluster, announce.drain_waits(node, wish, why, self._tools.now()))

    def _agreed(
        self, todo: Sequence[PodFate], nodes: Mapping[str, tuple[NodeView, NodeWish]], pdbs: Sequence[PdbView]
    ) -> list[PodFate]:
        """The evictions that the live nodes, and in a first round a dry run on the API server, say nothing against."""
        by_node: dict[str, list[PodFate]] = {}
        for fate in todo:
            by_node.setdefault(fate.pod.node, []).append(fate)
        said = dict(zip(by_node, self._tools.pool.map(self._objection, by_node), strict=True))
        new = [name for name in by_node if not said[name] and not self._progress[name].rehearsed]
        refusals = self._rehearse([fate for name in new for fate in by_node[name]], pdbs)
        agreed: list[PodFate] = []
        for name, here in by_node.items():
            progress = self._progress[name]
            progress.held = said[name] or refusals.get(name, "")
            if progress.held:
                self._ask(*nodes[name], progress, progress.held)
                continue
            progress.rehearsed = True
            agreed.extend(here)
        return agreed

    def _rehearse(self, todo: Sequence[PodFate], pdbs: Sequence[PdbView]) -> dict[str, str]:
        """Ask the API server without doing it, for all nodes side by side: by node, what only a person can mend.

        Pods of one controller are alike in what it judges, so one of them speaks for all.
        """
        alike: dict[tuple[str, str], list[PodFate]] = {}
        for fate in todo:
            pod = fate.pod
            alike.setdefault((pod.namespace, pod.owner.uid if pod.owner is not None else pod.uid), []).append(fate)
        asked = {several[0].pod.uid: several for several in alike.values()}
        refused: dict[str, list[PodOutcome]] = {}
        for one in self._evictor.round([several[0] for several in asked.values()], pdbs, dry_run=True):
            if one.needs_a_person:
                for node in {fate.pod.node for fate in asked[one.pod.uid]}:
                    refused.setdefault(node, []).append(one)
        return {
            name: "; ".join(f"pod {one.pod.namespace}/{one.pod.name}: {one.detail}" for one in several[:3])
            for name, several in refused.items()
        }

    def _objection(self, name: str) -> str:
        """Why the live node must not be drained now, "" where it may."""
        try:
            node = self._tools.hands.look(name)
        except (ClusterError, BadObject) as error:
            return f"the node could not be read again: {error}"
        if not _is_marked(node):
            return "its marks are gone"
        return not_ours_to_touch(node)

    def _evict(self, agreed: Sequence[PodFate], pdbs: Sequence[PdbView]) -> None:
        if agreed:  # what a ledger that has failed since the last tick cannot take is not done
            self._tools.record.begin([self._progress[name].attempt for name in {fate.pod.node for fate in agreed}])
        for outcome in self._evictor.round(agreed, pdbs):
            self._count(outcome)
            evicted, now = outcome.evicted, self._tools.now()
            if evicted is not None and evicted.is_over:
                self._not_before[outcome.pod.uid] = now + _ASKED
                continue
            if outcome.asked:
                asked_s = (evicted.retry_after_s if evicted is not None else None) or 0.0
                self._not_before[outcome.pod.uid] = now + timedelta(seconds=min(max(asked_s, _REFUSED_S), _LONGEST_S))
            if (progress := self._progress.get(outcome.pod.node)) is not None:
                progress.held = f"pod {outcome.pod.namespace}/{outcome.pod.name}: {outcome.detail}"

    def _count(self, outcome: PodOutcome) -> None:
        no_verdict = "no_verdict" if outcome.asked else "not_asked"
        result = no_verdict if outcome.evicted is None else outcome.evicted.result.value
        self._counts[result] += 1
        log.info(
            "eviction", pod=f"{outcome.pod.namespace}/{outcome.pod.name}", node=outcome.pod.node, result=result,
            detail=outcome.detail,
        )  # fmt: skip


def _is_open_drain(attempt: Attempt) -> bool:
    return attempt.action is Action.DRAIN and attempt.ending is Ending.PENDING


def _is_marked(node: NodeView) -> bool:
    """Whether new work is kept off it, by us."""
    return node.unschedulable and node.keeps_new_work_off


def _waits_its_turn(plan: Drain, now: datetime) -> bool:
    """Whether some pod has a later deadline of its own."""
    return any(fate.deadline is not None and now < fate.deadline and not fate.stuck for fate in plan.wait)

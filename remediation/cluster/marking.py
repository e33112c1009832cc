"""Marks on nodes toward what is wanted: taint, cordon, stage, release, condition, and heed of a person's order.

Level-triggered: each turn compares the nodes as they are with the orders of the newest tick. What a killed process had
begun is found by that comparison, and gone on with or written off. Each change is written down before it is made, and
its outcome after; each reads the live node first (`remediation.cluster.hands`).
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import structlog

from remediation.cluster import announce
from remediation.cluster.client import Cluster
from remediation.cluster.hands import Hands, Outcome
from remediation.cluster.wire import Object
from remediation.limits import Attempt, Ending
from remediation.objects import INCIDENT, STAGE, NodeView, Stage
from remediation.orders import Orders
from remediation.patches import Order, apply, order_of
from remediation.people import Saying, Word
from remediation.record import Record, RecordUnavailable
from remediation.wish import Condition, NodeWish
from rules.vocabulary import OPERATIONS, Action

log = structlog.get_logger()

#: An attempt, how it ended, and why.
Ended = tuple[Attempt, Ending, str]
#: Nodes that are marked before what came of it is written down.
_AT_ONCE = 64
#: Conditions that are written in one turn; all nodes have one to be written after a start.
_SHOWN_AT_ONCE = 64
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
#: Attempts that end with the node's marks; a drain has its own end.
_BY_MARK = frozenset({Action.NO_NEW_WORK, Action.CORDON, Action.QUARANTINE})
_GIVEN_BACK = "its marks are taken back"


@dataclass(frozen=True, slots=True)
class Tools:
    """What acting needs. `may_act` says whether anything may be changed at this very moment."""

    cluster: Cluster
    hands: Hands
    record: Record
    pool: ThreadPoolExecutor
    may_act: Callable[[], bool]
    now: Callable[[], datetime]


class Marker:
    """Keeps the marks of all nodes. One thread calls `turn`."""

    def __init__(self, tools: Tools, hold_off_s: float) -> None:
        self._tools = tools
        self._hold_off = timedelta(seconds=hold_off_s)
        self._pauses: dict[str, tuple[datetime, float]] = {}
        #: nodes that a person took back, with the time of it: orders from before it are void
        self._taken_back: dict[str, datetime] = {}
        #: nodes on which something has failed, likewise: whether to try again is for a later tick to decide
        self._failed: dict[str, datetime] = {}
        #: the version at which a node was seen before our last change of it: the watch has not told of that yet
        self._changed: dict[str, str] = {}
        self._shown: dict[str, tuple[str, str, str]] = {}
        self._show_pause_s, self._show_at = 0.0, datetime.min.replace(tzinfo=UTC)

    def turn(self, orders: Orders, nodes: Mapping[str, NodeView]) -> None:
        """Whatever can be done now. Raises nothing that the API server or the record may cause."""
        try:
            self._heed(nodes)
            self._settle(orders, nodes)
            self._mark(orders, nodes)
            self._release(orders, nodes)
            self._show(orders, nodes)
        except RecordUnavailable as error:
            log.warning("nothing is done: it could not be written down", detail=str(error))

    # ------------------------------------------------------------------------------------------- a person's order

    def _heed(self, nodes: Mapping[str, NodeView]) -> None:
        """Somebody took our marks off: write it down, drop the rest of them, and leave the node alone."""
        for name, node in nodes.items():
            order = order_of(node)
            if order is Order.NONE or not self._tools.may_act():
                continue
            incident, now = node.annotation(INCIDENT), self._tools.now()
            if name not in self._taken_back:
                who, why = "somebody in the cluster", f"{order} while it was out"
                words = [Saying(now, Word.RELEASE, who, name, (incident,) if incident else (), why=why)]
                held, until = self._tools.record.said.hold_on(name, now), now + self._hold_off
                if held is None or (held.until is not None and held.until < until):
                    words.append(Saying(now, Word.HOLD, who, name, until=until, why=why))
                self._tools.record.say(words)
                self._taken_back[name] = now
                self._tell(announce.ordered_off(node, incident, order.value, now))
            else:
                self._tools.record.begin([])
            outcome = self._tools.hands.forget(name)
            log.warning("a person's order", node=name, order=order.value, incident=incident, detail=outcome.detail)
            for attempt in self._tools.record.pending():
                if attempt.node == name:
                    self._end(attempt, Ending.FAILED, f"cancelled: somebody has {order} the node")

    # -------------------------------------------------------------------------------------------- what is left over

    def _settle(self, orders: Orders, nodes: Mapping[str, NodeView]) -> None:
        """End what had begun and is wanted no more, or is so already: after a restart, or when a fault has ended."""
        for attempt in self._tools.record.pending():
            node, wish = nodes.get(attempt.node), orders.wishes.get(attempt.node)
            if attempt.at > orders.at or attempt.action in OPERATIONS:
                continue  # begun since, or ended by `remediation.cluster.operating`
            if node is None:
                self._end(attempt, Ending.FAILED, "cancelled: the node isn't there any more")
            elif attempt.action is Action.RELEASE:
                if not node.annotation(INCIDENT):
                    self._tell(announce.released(node, attempt.incident, _GIVEN_BACK, self._tools.now()))
                    self._end(attempt, Ending.DONE, "it carries nothing of ours")
                elif node.on_probation and attempt.node not in orders.releases:
                    self._end(attempt, Ending.DONE, "it is on probation")
                elif attempt.node not in orders.releases:
                    self._end(attempt, Ending.FAILED, "cancelled: it is not to be given back any more")
            elif attempt.incident not in orders.standing:
                self._end(attempt, Ending.FAILED, "cancelled: the incident is over")
            elif attempt.action in _BY_MARK and wish is not None and self._is_done(attempt, wish, node):
                self._tell_of(node, wish, is_quarantine=attempt.action is Action.QUARANTINE)
                self._end(attempt, Ending.DONE, "it was so already")

    def _is_done(self, attempt: Attempt, wish: NodeWish, node: NodeView) -> bool:
        return attempt.incident in wish.incidents and attempt.action not in _missing(node, self.completed(wish, node))

    def completed(self, wish: NodeWish, node: NodeView) -> NodeWish:
        """The wish, with what is known of its drain."""
        return replace(wish, drained=is_drained(wish, node, self._tools.record.history()))

    # ---------------------------------------------------------------------------------------------------- marks

    def _mark(self, orders: Orders, nodes: Mapping[str, NodeView]) -> None:
        todo: list[tuple[NodeView, NodeWish, list[Attempt]]] = []
        history = drains_done(self._tools.record.history()) if orders.wishes else ()
        now = self._tools.now()
        for name, wish in orders.wishes.items():
            node = nodes.get(name)
            if node is None or self._is_left_alone(node, orders, now) or order_of(node) is not Order.NONE:
                continue
            whole = replace(wish, drained=is_drained(wish, node, history))
            if apply(node, whole) is not None:
                actions = _missing(node, whole)
                todo.append(
                    (node, whole, [Attempt(now, wish.incidents[0], name, one, Ending.PENDING) for one in actions])
                )
        if todo and self._tools.may_act():
            self._tools.record.begin([attempt for _, _, attempts in todo for attempt in attempts])
            for start in range(0, len(todo), _AT_ONCE):
                some = todo[start : start + _AT_ONCE]
                outcomes = self._tools.pool.map(lambda one: self._mark_one(*one), some)
                told = zip(some, outcomes, strict=True)
                self._end_all(
                    [ending for (node, _, attempts), out in told for ending in self._marked(node, attempts, out)]
                )

    def _mark_one(self, node: NodeView, wish: NodeWish, attempts: list[Attempt]) -> Outcome:
        """In a thread of the pool: the mark, and the Event about it."""
        outcome = self._tools.hands.mark(node.name, wish)
        if outcome.is_so and attempts:
            self._tell_of(node, wish, is_quarantine=wish.stage is Stage.QUARANTINED)
        return outcome

    def _marked(self, node: NodeView, attempts: list[Attempt], outcome: Outcome) -> list[Ended]:
        """What is to be written about it."""
        if outcome.again:
            self._pause(node.name, outcome.detail)
            return []
        self._pauses.pop(node.name, None)
        if outcome.is_so:
            self._changed[node.name] = node.version
        else:
            self._failed[node.name] = self._tools.now()
            self._pause(node.name, outcome.detail)
        return [(attempt, Ending.DONE if outcome.is_so else Ending.FAILED, outcome.detail) for attempt in attempts]

    def _release(self, orders: Orders, nodes: Mapping[str, NodeView]) -> None:
        now = self._tools.now()
        wanted = {
            name: incident
            for name, incident in orders.releases.items()
            if name in nodes
            and _is_to_come_back(nodes[name], orders)
            and not self._is_left_alone(nodes[name], orders, now)
        }
        if not wanted or not self._tools.may_act():
            return
        attempts = {
            name: Attempt(now, incident, name, Action.RELEASE, Ending.PENDING) for name, incident in wanted.items()
        }
        self._tools.record.begin(list(attempts.values()))
        names = list(wanted)
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            outcomes = self._tools.pool.map(lambda name: self._release_one(nodes[name], orders), some)
            told = zip(some, outcomes, strict=True)
            self._end_all([ending for name, out in told for ending in self._released(nodes[name], attempts[name], out)])

    def _release_one(self, node: NodeView, orders: Orders) -> Outcome:
        """In a thread of the pool: the marks, and the Event about it."""
        now, incident = self._tools.now(), orders.releases[node.name]
        if node.name in orders.probations:
            outcome, said = self._tools.hands.put_on_probation(node.name, now), "it is on probation"
        else:
            outcome, said = self._tools.hands.release(node.name), _GIVEN_BACK
        if outcome.is_so:
            self._tell(announce.released(node, incident, said, now))
        return outcome

    def _released(self, node: NodeView, attempt: Attempt, outcome: Outcome) -> list[Ended]:
        """What is to be written about it."""
        if outcome.is_so:
            self._pauses.pop(node.name, None)
            self._changed[node.name] = node.version
            return [(attempt, Ending.DONE, outcome.detail)]
        self._pause(node.name, outcome.detail)
        return [] if outcome.again else [(attempt, Ending.FAILED, outcome.detail)]

    def _is_left_alone(self, node: NodeView, orders: Orders, now: datetime) -> bool:
        name = node.name
        if self._changed.get(name) == node.version:
            return True
        taken_back = self._taken_back.get(name)
        if taken_back is not None:
            if orders.at <= taken_back:
                return True
            del self._taken_back[name]
        failed_at = self._failed.get(name)
        if failed_at is not None:
            if orders.at <= failed_at:
                return True
            del self._failed[name]
        pause = self._pauses.get(name)
        return pause is not None and now < pause[0]

    def _pause(self, name: str, why: str) -> None:
        _, before_s = self._pauses.get(name, (None, _FIRST_PAUSE_S / 2))
        wait_s = min(_LONGEST_PAUSE_S, 2 * before_s)
        self._pauses[name] = (self._tools.now() + timedelta(seconds=wait_s), wait_s)
        log.warning("not done yet", node=name, again_in_s=wait_s, detail=why)

    def _tell_of(self, node: NodeView, wish: NodeWish, *, is_quarantine: bool) -> None:
        told = announce.quarantined if is_quarantine else announce.taken_out
        self._tell(told(node, wish, self._tools.now()))

    def _tell(self, event: Object) -> None:
        """Before the attempt ends: whoever is killed in between tells it again, which changes nothing."""
        announce.tell(self._tools.cluster, event)

    def _end(self, attempt: Attempt, ending: Ending, detail: str) -> None:
        self._end_all([(attempt, ending, detail)])

    def _end_all(self, endings: list[Ended]) -> None:
        self._tools.record.end(endings, self._tools.now())

    # ------------------------------------------------------------------------------------------------ conditions

    def _show(self, orders: Orders, nodes: Mapping[str, NodeView]) -> None:
        """Write conditions that say something new; how often a fault was seen since is not new."""
        wanted = [
            (name, condition)
            for name, condition in orders.conditions.items()
            if name in nodes and self._shown.get(name) != _gist(condition)
        ][:_SHOWN_AT_ONCE]
        now = self._tools.now()
        if not wanted or now < self._show_at or not self._tools.may_act():
            return
        self._tools.record.begin([])  # what a condition says is in the ledger since the tick: can it still be written?
        outcomes = list(self._tools.pool.map(lambda one: self._tools.hands.show(one[0], one[1], now), wanted))
        for (name, condition), outcome in zip(wanted, outcomes, strict=True):
            if outcome.is_so:
                self._shown[name] = _gist(condition)
            elif not outcome.again:
                self._shown[name] = _gist(condition)  # asking again would be refused again
                log.warning("condition not written", node=name, detail=outcome.detail)
        later = [outcome.detail for outcome in outcomes if outcome.again]
        self._show_pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self._show_pause_s)) if later else 0.0
        self._show_at = now + timedelta(seconds=self._show_pause_s)
        if later:
            log.warning("conditions not written yet", count=len(later), again_in_s=self._show_pause_s, detail=later[0])


def _is_to_come_back(node: NodeView, orders: Orders) -> bool:
    """Whether something of a release is still to be done on it."""
    return bool(node.annotation(INCIDENT)) and not (node.on_probation and node.name in orders.probations)


def drains_done(history: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """The drains of a history that were seen to their end: all that `is_drained` looks at."""
    return tuple(one for one in history if one.action is Action.DRAIN and one.ending is Ending.DONE)


def is_drained(wish: NodeWish, node: NodeView, history: Iterable[Attempt]) -> bool:
    """Whether the drain for one of the wish's incidents has been seen to its end, by the record or by the node."""
    if node.annotation(INCIDENT) in wish.incidents and node.annotation(STAGE) == Stage.QUARANTINED:
        return True
    return any(
        one.node == node.name
        and one.incident in wish.incidents
        and one.action is Action.DRAIN
        and one.ending is Ending.DONE
        for one in history
    )


def _missing(node: NodeView, wish: NodeWish) -> tuple[Action, ...]:
    """The actions of which the node does not show the effect yet."""
    missing = []
    if not node.keeps_new_work_off:
        missing.append(Action.NO_NEW_WORK)
    if wish.cordon and not node.unschedulable:
        missing.append(Action.CORDON)
    if wish.stage is Stage.QUARANTINED and node.annotation(STAGE) != Stage.QUARANTINED:
        missing.append(Action.QUARANTINE)
    return tuple(missing)


def _gist(condition: Condition) -> tuple[str, str, str]:
    return condition.status, condition.reason, condition.message.partition(":")[0]

"""Limits of acting on a cluster: how much of a pool or a rack at once, how often, when, and on whose nodes.

Each check is a pure function of one question and says why, with its numbers, like those of `remediation.gates`, beside
which they stand. They hold only for what takes capacity away or ends work: recovery and observation always pass.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import get_args

from remediation.gates import GateResult
from remediation.objects import NodeView
from remediation.ownership import claimed_by_others, is_out_for_good, opted_out, out_because
from remediation.plan import TAKES_OUT, Plan
from remediation.shares import at_most
from rules.policy_schema import Weekday
from rules.schema import LimitPolicy, MaintenanceWindow, Policy
from rules.vocabulary import DISRUPTIVE, Action

#: What limits hold for.
LIMITED = DISRUPTIVE | TAKES_OUT
_HOUR = timedelta(hours=1)
_WEEKDAYS: tuple[str, ...] = get_args(Weekday)


class Ending(StrEnum):
    """How an attempt ended. A skipped one was never made and doesn't count; no ending is ever taken back."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One action that was begun on one node for one incident, as the ledger keeps it."""

    at: datetime
    incident: str
    node: str
    action: Action
    ending: Ending


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes with GPUs at one moment, by name; worked out once for all questions of a tick.

    `out` says of each node that is out of service why; `settled` are those of them that stay so until somebody changes
    it, so that a plan takes nothing more away there; `pools` and `domains` say as label=value where a node belongs.
    """

    nodes: Mapping[str, NodeView]
    out: Mapping[str, str]
    pools: Mapping[str, str]
    domains: Mapping[str, str]
    settled: frozenset[str] = frozenset()

    @staticmethod
    def of(nodes: Iterable[NodeView], limits: LimitPolicy) -> "Fleet":
        """The fleet that these nodes make, as they were read from the API server."""
        by_name = {node.name: node for node in nodes}
        out = {name: out_because(node, limits.ordinary_taints) for name, node in by_name.items()}
        pools = {name: group_of(node, limits.pool_labels) or "no pool" for name, node in by_name.items()}
        domains = {name: group_of(node, limits.domain_labels) for name, node in by_name.items()}
        return Fleet(
            nodes=by_name,
            out={name: why for name, why in out.items() if why},
            pools=pools,
            domains={name: group for name, group in domains.items() if group},
            settled=frozenset(name for name, node in by_name.items() if is_out_for_good(node)),
        )


@dataclass(frozen=True, slots=True)
class History:
    """Attempts that were really made, by what the limits ask of them; worked out once for all questions of a tick.

    Each list is oldest first. `begun` says when anything that limits hold for began last, by incident and node.
    """

    of_incident: Mapping[str, tuple[Attempt, ...]] = field(default_factory=dict)
    on_node: Mapping[str, tuple[Attempt, ...]] = field(default_factory=dict)
    begun: Mapping[tuple[str, str], datetime] = field(default_factory=dict)

    @staticmethod
    def of(attempts: Iterable[Attempt]) -> "History":
        """The history that these attempts make, in whatever order they come."""
        made = (one for one in attempts if one.ending is not Ending.SKIPPED)
        of_incident: dict[str, list[Attempt]] = {}
        on_node: dict[str, list[Attempt]] = {}
        begun: dict[tuple[str, str], datetime] = {}
        for one in sorted(made, key=lambda one: (one.at, one.node, one.incident, one.action, one.ending)):
            of_incident.setdefault(one.incident, []).append(one)
            on_node.setdefault(one.node, []).append(one)
            if one.action in LIMITED:
                begun[one.incident, one.node] = one.at
        return History(
            of_incident={name: tuple(several) for name, several in of_incident.items()},
            on_node={name: tuple(several) for name, several in on_node.items()},
            begun=begun,
        )


@dataclass(frozen=True, slots=True)
class Question:
    """What a limit is asked about.

    `nodes` are the plan's own, `wanted_out` those that plans before this one take out, `history` the attempts: all of
    those that are open, and everybody's of the last hour and of `attempts_window`.
    """

    plan: Plan
    nodes: frozenset[str]
    now: datetime
    policy: Policy
    fleet: Fleet
    wanted_out: frozenset[str] = frozenset()
    history: History = field(default_factory=History)

    @property
    def views(self) -> tuple[NodeView, ...]:
        """The plan's nodes that the cluster knows, by name."""
        return tuple(self.fleet.nodes[name] for name in sorted(self.nodes & self.fleet.nodes.keys()))


def in_cluster(ask: Question) -> GateResult:
    """The cluster knows the nodes."""
    missing = sorted(ask.nodes - ask.fleet.nodes.keys())
    if missing and ask.plan.does(LIMITED):
        return GateResult("in_cluster", passed=False, reason=f"no node with GPUs is called {', '.join(missing)}")
    return GateResult("in_cluster", passed=True, reason="the cluster has each node that is acted on")


def managed(ask: Question) -> GateResult:
    """Nobody has opted the nodes out."""
    said = [f"{node.name} has {label}" for node in ask.views if (label := opted_out(node))]
    return _unless(ask, "managed", said, "no label opts a node out")


def ownership(ask: Question) -> GateResult:
    """Nobody else is at work on the nodes."""
    said = [f"{node.name}: {sign}" for node in ask.views for sign in claimed_by_others(node)]
    return _unless(ask, "ownership", said, "nobody else is at work here")


def pool_limit(ask: Question) -> GateResult:
    """Not too much of a node pool would be out at once. Nodes without a pool's label make one pool together."""
    limits = ask.policy.limits
    share, count = limits.max_unavailable_share_of_pool, limits.max_unavailable_nodes_of_pool
    return _group_limit(ask, "pool_limit", ask.fleet.pools, share, count)


def domain_limit(ask: Question) -> GateResult:
    """Not too much of a rack or an NVLink domain would be out at once. Nodes without such a label are in none."""
    limits = ask.policy.limits
    share, count = limits.max_unavailable_share_of_domain, limits.max_unavailable_nodes_of_domain
    return _group_limit(ask, "domain_limit", ask.fleet.domains, share, count)


def group_of(node: NodeView, labels: Iterable[str]) -> str:
    """label=value for the first of these labels that the node has, "" where it has none."""
    return next((f"{name}={value}" for name in labels if (value := node.label(name))), "")


def action_rate(ask: Question) -> GateResult:
    """Not too many incidents are acted on within an hour. One that was begun may be gone on with."""
    if not ask.plan.does(LIMITED):
        return _passes_freely(ask, "action_rate")
    limits = ask.policy.limits
    recent = {thing for thing, at in ask.history.begun.items() if ask.now - at < _HOUR}
    stands = {(one.incident, one.node) for one in _own(ask) if not _failed(one, limits, ask.now)}
    mine = {(ask.plan.incident, node) for node in ask.nodes}
    most = limits.max_actions_per_hour
    if mine <= recent | stands:
        said = f"begun already; {len(recent)} actions within an hour, limit {most}"
        return GateResult("action_rate", passed=True, reason=said)
    total = len(recent | mine)
    return GateResult("action_rate", total <= most, f"{total} actions within an hour, limit {most}")


def one_at_a_time(ask: Question) -> GateResult:
    """The last action on each node for another incident has ended.

    What was begun for this one may be gone on with, and so may the same action: a node is drained once for all.
    """
    if not ask.plan.does(LIMITED):
        return _passes_freely(ask, "one_at_a_time")
    wanted = ask.plan.does(LIMITED)
    running = [
        one
        for node in ask.nodes
        for one in ask.history.on_node.get(node, ())
        if one.incident != ask.plan.incident
        and one.action not in wanted
        and not has_ended(one, ask.policy.limits, ask.now)
    ]
    if not running:
        return GateResult("one_at_a_time", passed=True, reason="nothing is under way here")
    first = min(running, key=lambda one: (one.at, one.node, one.incident, one.action))
    said = f"{first.action} for {first.incident} is under way on {first.node} since {_at(first.at)}"
    return GateResult("one_at_a_time", passed=False, reason=said)


def has_ended(attempt: Attempt, limits: LimitPolicy, now: datetime) -> bool:
    """Whether an attempt is over; one without an outcome for too long has failed."""
    return attempt.ending is not Ending.PENDING or now - attempt.at >= timedelta(seconds=limits.attempt_timeout)


def attempts(ask: Question) -> GateResult:
    """What is tried has not been tried too often, for the incident and on the node: then it is up to people."""
    limits = ask.policy.limits
    since = ask.now - timedelta(seconds=limits.attempts_window)
    for action, node in _to_begin(ask):
        same = [one for one in ask.history.on_node.get(node, ()) if one.action is action]
        for_this = sum(one.incident == ask.plan.incident for one in same)
        recent = sum(one.at > since for one in same)
        said = ""
        if for_this >= limits.max_attempts_per_incident:
            said = f"{for_this} times for this incident, limit {limits.max_attempts_per_incident}"
        elif recent >= limits.max_attempts_per_node:
            said = f"{recent} times within {limits.attempts_window:.0f} s, limit {limits.max_attempts_per_node}"
        if said:
            return GateResult("attempts", passed=False, reason=f"{action} on {node} was tried {said}: up to people now")
    return GateResult("attempts", passed=True, reason="not tried too often")


def backoff(ask: Question) -> GateResult:
    """Enough time has passed since the last attempt at the same; it doubles with each one for the incident."""
    base_s = ask.policy.limits.attempt_backoff
    due = []
    for action, node in _to_begin(ask):
        tries = [one.at for one in _own(ask) if (one.action, one.node) == (action, node)]
        if tries:
            due.append((max(tries) + timedelta(seconds=base_s * 2 ** (len(tries) - 1)), action, node))
    if due and ask.now < max(due)[0]:
        when, action, node = max(due)
        said = f"{action} on {node} was tried; not again before {_at(when)}"
        return GateResult("backoff", passed=False, reason=said)
    return GateResult("backoff", passed=True, reason="no attempt is so recent")


def maintenance_window(ask: Question) -> GateResult:
    """What ends work happens only within a window, where a site has set any."""
    windows = ask.policy.maintenance.windows
    waits = ask.plan.does(ask.policy.maintenance.actions)
    if not windows or not waits:
        said = f"{ask.plan.action} needs no window" if windows else "no windows are set"
        return GateResult("maintenance_window", passed=True, reason=said)
    names = ", ".join(waits)
    if any(is_open(window, ask.now) for window in windows):
        return GateResult("maintenance_window", passed=True, reason=f"a window for {names} is open")
    return GateResult("maintenance_window", passed=False, reason=f"no window for {names} is open at {_at(ask.now)}")


def is_open(window: MaintenanceWindow, now: datetime) -> bool:
    """Whether a weekly window holds `now`, its first minute included and its last not. `now` may be of any zone."""
    at = now.astimezone(UTC)
    minute = at.hour * 60 + at.minute
    today, yesterday = _WEEKDAYS[at.weekday()], _WEEKDAYS[at.weekday() - 1]
    if window.from_minute < window.to_minute:
        return today in window.days and window.from_minute <= minute < window.to_minute
    begun = today in window.days and minute >= window.from_minute
    return begun or (yesterday in window.days and minute < window.to_minute)


LIMITS: tuple[Callable[[Question], GateResult], ...] = (
    in_cluster,
    managed,
    ownership,
    pool_limit,
    domain_limit,
    one_at_a_time,
    action_rate,
    attempts,
    backoff,
    maintenance_window,
)


def _group_limit(ask: Question, name: str, groups: Mapping[str, str], share: float, count: int | None) -> GateResult:
    """No group that one of the plan's nodes belongs to would have more nodes out than it may."""
    if not ask.plan.does(TAKES_OUT):
        return _passes_freely(ask, name)
    before = ask.wanted_out | ask.fleet.out.keys()
    newly = ask.nodes - ask.wanted_out - ask.fleet.settled
    if not newly:
        return GateResult(name, passed=True, reason=f"{', '.join(sorted(ask.nodes))}: out already")
    within: list[str] = []
    too_many: list[str] = []
    for group in sorted({groups[node] for node in newly if node in groups}):
        members = frozenset(node for node, of in groups.items() if of == group)
        would_be, most = len(members & (before | newly)), at_most(share, count, len(members))
        said = f"{group}: {would_be} of {len(members)} nodes would be out, limit {most}"
        (within if would_be <= most else too_many).append(said)
    if too_many:
        return GateResult(name, passed=False, reason="; ".join(too_many))
    return GateResult(name, passed=True, reason="; ".join(within) or "no label puts a node in a group")


def _to_begin(ask: Question) -> tuple[tuple[Action, str], ...]:
    """What limits hold for among the plan's steps, on each of its nodes, but what is under way or done already."""
    last: dict[tuple[Action, str], Attempt] = {}
    for one in _own(ask):
        last[one.action, one.node] = one
    steps = ((action, node) for action in ask.plan.does(LIMITED) for node in sorted(ask.nodes))
    return tuple(step for step in steps if step not in last or _failed(last[step], ask.policy.limits, ask.now))


def _failed(attempt: Attempt, limits: LimitPolicy, now: datetime) -> bool:
    return attempt.ending is not Ending.DONE and has_ended(attempt, limits, now)


def _own(ask: Question) -> tuple[Attempt, ...]:
    """The attempts for the plan's incident at what limits hold for, oldest first."""
    return tuple(one for one in ask.history.of_incident.get(ask.plan.incident, ()) if one.action in LIMITED)


def _unless(ask: Question, name: str, problems: Collection[str], fine: str) -> GateResult:
    if not ask.plan.does(LIMITED):
        return _passes_freely(ask, name)
    return GateResult(name, not problems, "; ".join(problems) or fine)


def _passes_freely(ask: Question, name: str) -> GateResult:
    return GateResult(name, passed=True, reason=f"{ask.plan.action} takes nothing away")


def _at(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")

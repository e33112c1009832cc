"""Incidents: signals that share a cause, from one GPU to the whole fleet, for as long as the cause lasts.

Level-triggered: each tick, the signals that stand now are grouped anew (`detectors.grouping`) and matched with the
incidents that are open. A job that crashes on 40 nodes is one incident; so is a driver roll-out that hits a pool, or a
GPU that takes its links and its jobs with it.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from detectors.findings import Incident, Signal
from detectors.grouping import (
    ROLLOUT,
    Group,
    GroupKind,
    SignalKey,
    add_consequences,
    alike,
    common_causes,
    home,
    join_sides,
    slow_nodes,
    speaks,
)
from detectors.rollout import RolloutWatch
from detectors.snapshot import Snapshot
from rules.schema import IncidentPolicy
from rules.vocabulary import CauseClass, FaultAction, IncidentScope, Tier


@dataclass(frozen=True, slots=True)
class Changes:
    """What one tick did to the incidents. `open` holds all that are open now, in a fixed order."""

    open: tuple[Incident, ...]
    opened: tuple[Incident, ...]
    changed: tuple[Incident, ...]
    closed: tuple[Incident, ...]


@dataclass(slots=True)
class _Case:
    """An open incident while it grows: all signals it has ever had, each as it was last seen."""

    incident: Incident
    signals: dict[SignalKey, Signal] = field(default_factory=dict)


class IncidentBook:
    """All open incidents. `step` takes the signals that stand now."""

    def __init__(self, policy: IncidentPolicy) -> None:
        self._policy = policy
        self._rollout = RolloutWatch(policy.common_cause)
        self._cases: dict[Group, _Case] = {}

    def step(self, snapshot: Snapshot, signals: Iterable[Signal]) -> Changes:
        """Group, match, grow and close; the order of `signals` does not matter."""
        self._rollout.look(snapshot)
        standing = sorted((signal for signal in signals if speaks(signal)), key=lambda s: (s.since, s.key))
        closed = self._close_replaced(dict(snapshot.replaced), snapshot.at)
        groups = self._group(standing, snapshot)
        stands = {signal.key for signal in standing}
        for group, members in groups.items():
            self._learn_gpu(group, members, stands)
        opened, changed = self._grow(snapshot, groups)
        closed += self._close_quiet(snapshot.at, groups, changed)
        still = tuple(sorted((case.incident for case in self._cases.values()), key=lambda i: (i.opened, i.id)))
        return Changes(still, tuple(opened), tuple(changed), tuple(closed))

    def restore(self, incidents: Iterable[Incident]) -> None:
        """Take up incidents that were open before a restart; they grow or close with the next steps."""
        for incident in incidents:
            kind, where, about = incident.group
            group = Group(GroupKind(kind), where, CauseClass(about))
            self._cases[group] = _Case(incident, {signal.key: signal for signal in incident.signals})

    # --------------------------------------------------------------- grouping

    def _group(self, standing: Sequence[Signal], snapshot: Snapshot) -> dict[Group, list[Signal]]:
        """The groups of this tick. A signal stays in the widest group that it was ever found to belong to."""
        roots = [signal for signal in standing if signal.secondary_to is None]
        common, slow = common_causes(roots, snapshot, self._policy.common_cause), slow_nodes(roots)
        groups: dict[Group, list[Signal]] = defaultdict(list)
        for signal in roots:
            group = self._rolled_out(signal) or common.get(signal.key) or self._kept(signal, alike(signal))
            group = group or slow.get(signal.key) or self._kept(signal, _job_lag(signal)) or home(signal)
            groups[group].append(signal)
        add_consequences(groups, (signal for signal in standing if signal.secondary_to is not None))
        known = {group: case.signals.keys() for group, case in self._cases.items()}
        return join_sides(groups, known, self._policy.join_window)

    def _rolled_out(self, signal: Signal) -> Group | None:
        """The roll-out's group for a driver fault on a node whose driver was just changed together with others'."""
        if signal.cause_class is not CauseClass.DRIVER:
            return None
        return ROLLOUT if self._rollout.covers(signal.node, signal.since) else self._kept(signal, ROLLOUT)

    def _kept(self, signal: Signal, group: Group | None) -> Group | None:
        """The group, if it has an open incident that this signal is part of."""
        case = self._cases.get(group) if group is not None else None
        return group if case is not None and signal.key in case.signals else None

    def _learn_gpu(self, group: Group, members: Sequence[Signal], stands: Collection[SignalKey]) -> None:
        """A log line's GPU became known: its node's incident goes on as the GPU's.

        The line's signal has another key then, and the one without a GPU stands no more; it is told by its code and
        its beginning. Where the node's incident is about something else too, it stays the node's.
        """
        if group.kind is not GroupKind.GPU or group in self._cases:
            return
        before = Group(GroupKind.NODE, members[0].node, group.about)
        case = self._cases.get(before)
        if case is None:
            return
        join = timedelta(seconds=self._policy.join_window)
        same = {
            old.key
            for old in case.signals.values()
            for new in members
            if not old.gpu and old.key not in stands
            if old.code is not None and (old.code, old.place) == (new.code, new.place)
            if abs(old.since - new.since) <= join
        }
        if same and case.signals.keys() <= same | {new.key for new in members}:
            self._cases[group] = self._cases.pop(before)
        for key in same:
            del case.signals[key]

    # ---------------------------------------------------------------- growing

    def _grow(
        self, snapshot: Snapshot, groups: Mapping[Group, Sequence[Signal]]
    ) -> tuple[list[Incident], list[Incident]]:
        """(opened, changed) by the signals of each group."""
        opened, changed = [], []
        racks = {node.name: rack for node, rack in zip(snapshot.nodes, snapshot.racks, strict=False)}
        for group, members in sorted(groups.items()):
            case = self._cases.get(group)
            is_new = case is None
            if case is None:
                case = self._cases[group] = _Case(_begun(group, members, snapshot.at))
            before = case.incident
            case.signals.update({signal.key: signal for signal in members})
            case.incident = _grown(before, group, case.signals.values(), members, racks)
            if is_new:
                opened.append(case.incident)
            elif _telling(before) != _telling(case.incident):
                changed.append(case.incident)
        return opened, changed

    # ---------------------------------------------------------------- closing

    def _close_quiet(
        self, now: datetime, groups: Mapping[Group, Sequence[Signal]], changed: list[Incident]
    ) -> list[Incident]:
        """Close what nothing stands of any more, at once where another incident took its signals over."""
        moved = {signal.key: group for group, members in groups.items() for signal in members}
        closed = []
        for group in [group for group in self._cases if group not in groups]:
            case = self._cases[group]
            elsewhere = {moved[key] for key in case.signals if key in moved}
            quiet = (now - case.incident.last_signal_at).total_seconds()
            if elsewhere:
                because = "merged into " + ", ".join(sorted(self._cases[other].incident.id for other in elsewhere))
            elif quiet >= self._policy.close_after:
                because = "no signal stands any more"
            else:
                if case.incident.standing:
                    case.incident = replace(case.incident, standing=False, action=FaultAction.NONE)
                    changed.append(case.incident)
                continue
            closed.append(self._close(group, now, because))
        return closed

    def _close_replaced(self, replaced: Mapping[str, str], now: datetime) -> list[Incident]:
        """Close the incidents of boards that were taken out; what their place shows now is another board's."""
        return [
            self._close(group, now, f"replaced by {replaced[gpu]}")
            for group in list(self._cases)
            if group.kind is GroupKind.GPU and (gpu := group.where.rpartition("/")[2]) in replaced
        ]

    def _close(self, group: Group, now: datetime, because: str) -> Incident:
        """The incident with the strongest it has had, for the record."""
        case = self._cases.pop(group)
        roots = _roots(case.signals.values())
        return replace(
            case.incident,
            closed=now,
            closed_because=because,
            standing=False,
            tier=min([case.incident.tier, *(signal.tier for signal in roots)]),
            action=max([case.incident.action, *(signal.action for signal in roots)], key=lambda action: action.rank),
        )


def _job_lag(signal: Signal) -> Group | None:
    """The group of a GPU that lags behind its job, once its whole node was found to."""
    lags = signal.detector == "peers" and bool(signal.jobs)
    return Group(GroupKind.JOB, signal.jobs[0], CauseClass.JOB) if lags else None


def _roots(signals: Iterable[Signal]) -> list[Signal]:
    """The signals that no other explains, or all where every one is explained."""
    known = list(signals)
    return [signal for signal in known if signal.secondary_to is None] or known


def _begun(group: Group, members: Sequence[Signal], now: datetime) -> Incident:
    """A new incident. Its id follows from what it is about and when that began, so a restart finds the same one."""
    first = min(signal.since for signal in members)
    name = "|".join((*group, first.isoformat()))
    return Incident(
        id=f"inc-{hashlib.sha256(name.encode()).hexdigest()[:12]}",
        opened=now,
        closed=None,
        scope=IncidentScope.GPU,
        node="",
        nodes=(),
        gpu_uuids=(),
        cause_class=group.about,
        tier=Tier.SUSPICION,
        first_signal_at=first,
        last_signal_at=first,
        action=FaultAction.NONE,
        signals=(),
        why="",
        group=group,
    )


def _grown(
    before: Incident,
    group: Group,
    ever: Iterable[Signal],
    members: Sequence[Signal],
    racks: Mapping[str, str],
) -> Incident:
    """The incident with what stands now; what it has been about before is kept."""
    known = sorted(ever, key=lambda s: (s.tier, s.secondary_to is not None, s.since, s.key))
    roots = _roots(known)
    nodes = tuple(sorted({signal.node for signal in known}))
    gpus = tuple(sorted({signal.gpu for signal in roots if signal.gpu}))
    whole_node = any(not signal.gpu for signal in known)
    tier = min(signal.tier for signal in _roots(members))
    # Suspicion beside a trend adds to the picture, and nothing to what is asked for.
    asking = [signal for signal in members if tier is Tier.SUSPICION or signal.tier is not Tier.SUSPICION]
    return replace(
        before,
        scope=_scope(nodes, gpus, racks, whole_node=whole_node),
        node=roots[0].node,
        nodes=nodes,
        gpu_uuids=gpus,
        tier=tier,
        first_signal_at=min(before.first_signal_at, *(signal.since for signal in known)),
        last_signal_at=max(signal.last for signal in known),
        action=max((signal.action for signal in asking), key=lambda action: action.rank),
        signals=tuple(known),
        why=_why(group, roots[0], nodes, len(roots)),
        count=sum(signal.count for signal in roots),
        held=group.is_shared,
        standing=True,
        group=group,
    )


def _telling(incident: Incident) -> tuple[object, ...]:
    """What has to change for a change to be worth a record."""
    return (
        incident.scope,
        incident.nodes,
        incident.gpu_uuids,
        incident.tier,
        incident.action,
        incident.held,
        incident.standing,
        tuple((s.key, s.tier, s.action, len(str(s.count))) for s in incident.signals),
    )


def _scope(nodes: Sequence[str], gpus: Sequence[str], racks: Mapping[str, str], *, whole_node: bool) -> IncidentScope:
    if len(nodes) > 1:
        where = {racks.get(node, "") for node in nodes}
        return IncidentScope.RACK if len(where) == 1 and "" not in where else IncidentScope.FLEET
    return IncidentScope.GPU if len(gpus) == 1 and not whole_node else IncidentScope.NODE


def _why(group: Group, head: Signal, nodes: Sequence[str], signals: int) -> str:
    match group.kind:
        case GroupKind.ROLLOUT:
            return f"driver faults on {len(nodes)} nodes whose driver was just changed: {head.text}"
        case GroupKind.FLEET:
            return f"the same on {len(nodes)} nodes within minutes, so one common cause is likely: {head.text}"
        case GroupKind.JOB if head.jobs:
            return f"job {head.jobs[0]} on {len(nodes)} node{'s'[: len(nodes) - 1]}: {head.text}"
        case _:
            others = signals - 1
            return f"{head.text}, and {others} more signal{'s'[: others - 1]}" if others else head.text

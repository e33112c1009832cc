"""Which signals share a cause: pure functions from the signals that stand now to groups of them.

From the widest cause to the narrowest: a driver roll-out, the same thing on many nodes, a job, a node, a GPU.
`detectors.incidents` calls them every tick and keeps what has been grouped before together.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from detectors.findings import Signal
from detectors.snapshot import Snapshot
from rules.schema import CommonCausePolicy
from rules.vocabulary import CauseClass, Tier

#: Classes that belong to a GPU or a node, and may turn out to be sides of one fact about it.
PHYSICAL = frozenset(
    {
        CauseClass.HARDWARE,
        CauseClass.MEMORY,
        CauseClass.LINK,
        CauseClass.THERMAL,
        CauseClass.POWER,
        CauseClass.DRIVER,
        CauseClass.UNKNOWN,
    }
)
OF_A_JOB = frozenset({CauseClass.APPLICATION, CauseClass.JOB})

#: So many GPUs of one node that fall behind their job together are a slow node, not so many slow GPUs.
_SLOW_NODE_GPUS = 4

SignalKey = tuple[str, str, str, str]


class GroupKind(StrEnum):
    """How wide a group is."""

    GPU = "gpu"
    NODE = "node"
    JOB = "job"
    TELEMETRY = "telemetry"
    FLEET = "fleet"
    ROLLOUT = "rollout"


class Group(NamedTuple):
    """What a signal belongs to: how wide, its name (a GPU, a node, a job, a rule), and the class of its cause."""

    kind: GroupKind
    where: str
    about: CauseClass

    @property
    def is_shared(self) -> bool:
        """Whether it is a common cause, so that nobody should act on single machines."""
        return self.kind in (GroupKind.FLEET, GroupKind.ROLLOUT)


ROLLOUT = Group(GroupKind.ROLLOUT, "", CauseClass.DRIVER)


def speaks(signal: Signal) -> bool:
    """Whether a signal can open an incident: trusted, and about something.

    Telemetry's signals and a job's weigh nothing in a GPU's score and are about something all the same.
    """
    about = signal.cause_class in OF_A_JOB or signal.cause_class is CauseClass.TELEMETRY
    return signal.trusted and (signal.weight > 0 or about)


def home(signal: Signal) -> Group:
    """The group of a signal that has nothing to do with others."""
    if signal.cause_class is CauseClass.TELEMETRY:
        return Group(GroupKind.TELEMETRY, signal.node, signal.cause_class)
    if signal.cause_class in OF_A_JOB:
        return Group(GroupKind.JOB, signal.jobs[0] if signal.jobs else signal.node, signal.cause_class)
    if signal.gpu:
        return Group(GroupKind.GPU, f"{signal.node}/{signal.gpu}", signal.cause_class)
    return Group(GroupKind.NODE, signal.node, signal.cause_class)


def alike(signal: Signal) -> Group | None:
    """The fleet-wide group of everything like this signal; None for what its job explains already."""
    if signal.cause_class in OF_A_JOB and signal.jobs:
        return None
    return Group(GroupKind.FLEET, signal.rule.split(" ", 1)[0], signal.cause_class)


def common_causes(roots: Sequence[Signal], snapshot: Snapshot, policy: CommonCausePolicy) -> dict[SignalKey, Group]:
    """The same thing on many nodes within a short time: one cause, whoever it shows on.

    "Many" is a share of the nodes that have GPUs, whatever else the same Prometheus watches.
    """
    enough = max(policy.min_nodes, int(policy.share * len(np.unique(snapshot.node_of))))
    by_group: dict[Group, list[Signal]] = defaultdict(list)
    for signal in roots:
        group = alike(signal)
        if group is not None:
            by_group[group].append(signal)
    return {
        signal.key: group
        for group, members in by_group.items()
        for signal in _crowded(members, enough, timedelta(seconds=policy.window))
    }


def _crowded(members: Sequence[Signal], enough: int, window: timedelta) -> list[Signal]:
    """Signals with at least `enough` nodes (their own included) that began within `window` of them."""
    ordered = sorted(members, key=lambda s: s.since)
    times = [signal.since for signal in ordered]
    near: Counter[str] = Counter()
    begin = end = 0
    found = []
    for signal in ordered:
        while end < len(ordered) and times[end] <= signal.since + window:
            near[ordered[end].node] += 1
            end += 1
        for old in ordered[begin : bisect_left(times, signal.since - window, begin)]:
            near[old.node] -= 1
            begin += 1
            if not near[old.node]:
                del near[old.node]
        if len(near) >= enough:
            found.append(signal)
    return found


def slow_nodes(roots: Iterable[Signal]) -> dict[SignalKey, Group]:
    """GPUs of one node that lag behind the same job: one matter of the job."""
    lagging: dict[tuple[str, str], list[Signal]] = defaultdict(list)
    for signal in roots:
        if signal.detector == "peers" and signal.jobs:
            lagging[signal.node, signal.jobs[0]].append(signal)
    return {
        signal.key: Group(GroupKind.JOB, job, CauseClass.JOB)
        for (_, job), members in lagging.items()
        if len({s.gpu for s in members}) >= _SLOW_NODE_GPUS
        for signal in members
    }


def add_consequences(groups: dict[Group, list[Signal]], consequences: Iterable[Signal]) -> None:
    """Put each signal that an earlier fault explains with that fault: of the same GPU first, else of the same node."""
    causes: dict[tuple[str, int | None], list[tuple[str, Group]]] = defaultdict(list)
    for group, members in groups.items():
        for signal in members:
            causes[signal.node, signal.code].append((signal.gpu, group))
    for signal in consequences:
        known = causes.get((signal.node, signal.secondary_to), [])
        mine = [group for gpu, group in known if gpu == signal.gpu] or [group for _, group in known]
        groups[mine[0] if mine else home(signal)].append(signal)


def join_sides(
    groups: Mapping[Group, Sequence[Signal]], joined_before: Mapping[Group, Collection[SignalKey]], join_s: float
) -> dict[Group, list[Signal]]:
    """A fact about a GPU takes in what else shows on that GPU: other classes are then sides of the same fault.

    `joined_before` holds the signals of each open incident. What was taken in before stays, also when the fact has
    ended and only the sides still show; and the incident that did so goes on, also when a second fact turns up.
    """
    merged = {group: list(members) for group, members in groups.items()}
    by_gpu: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        if _is_side(group):
            by_gpu[group.where].append(group)
    for where, same in by_gpu.items():
        for group in same:
            keys = {signal.key for signal in groups[group]}
            older = [
                other
                for other, known in joined_before.items()
                if other != group and other.where == where and _is_side(other) and keys & set(known)
            ]
            if older:
                merged.setdefault(older[0], []).extend(merged.pop(group))
        sides = [group for group in dict.fromkeys([*same, *joined_before]) if group in merged and group.where == where]
        _take_in(merged, [group for group in sides if _is_side(group)], joined_before, timedelta(seconds=join_s))
    return merged


def _is_side(group: Group) -> bool:
    return group.kind is GroupKind.GPU and group.about in PHYSICAL


def _take_in(
    merged: dict[Group, list[Signal]],
    same: Sequence[Group],
    open_now: Collection[Group],
    join: timedelta,
) -> None:
    """Merge the groups of one GPU into the one whose fact came first, those with an open incident before others."""
    began = {
        group: min(signal.since for signal in merged[group] if signal.tier is Tier.FACT)
        for group in same
        if any(signal.tier is Tier.FACT for signal in merged[group])
    }
    if not began:
        return
    head = min(began, key=lambda group: (group not in open_now, began[group], group))
    for group in same:
        if group != head and any(signal.last >= began[head] - join for signal in merged[group]):
            merged[head].extend(merged.pop(group))

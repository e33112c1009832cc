"""Which pods of a node a drain moves, waits for, leaves or refuses to touch, and why.

Pure; the plan shows it before anything happens, and the hands ask again before each eviction. Evictions themselves
still have to pass disruption budgets (`remediation.disruption`). The order of the checks is kubectl's, and so is the
rule that one pod which must not be touched stops the drain, unless policy says otherwise.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from remediation.objects import DO_NOT_EVICT, PREFIX, NodeView, PodView
from rules.schema import DrainMode, DrainPolicy, parse_duration

#: A pod's annotations that choose its mode and its deadline over its namespace's.
DRAIN_MODE = PREFIX + "drain-mode"
DRAIN_DEADLINE = PREFIX + "drain-deadline"
#: Annotations that forbid to move a pod. Karpenter's own may also hold a duration, so anything but "false" forbids.
OPT_OUTS = (DO_NOT_EVICT, "karpenter.sh/do-not-disrupt")
FINISHED = frozenset({"Succeeded", "Failed"})


class Fate(StrEnum):
    """What a drain does about one pod. WAIT ends by itself, REFUSE needs a person."""

    EVICT = "evict"
    WAIT = "wait"
    LEAVE = "leave"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class PodFate:
    """A pod's fate and why.

    `deadline` is when a WAIT ends: in an eviction, in a question to a person, or for a pod that terminates in being
    told as `stuck`. `grace_s` is what an eviction has to grant, never less than the pod's own. `whole`: its job is
    restarted elsewhere as a whole, which takes the pod along.
    """

    pod: PodView
    fate: Fate
    reason: str
    deadline: datetime | None = None
    grace_s: float = 0.0
    stuck: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """What a drain may do at one moment. `evict` is empty while a refusal holds everything up.

    `asks` says, pod by pod, what a person has to decide; `done` that no pod is left to move or to wait for.
    """

    evict: tuple[PodFate, ...]
    wait: tuple[PodFate, ...]
    asks: tuple[PodFate, ...]

    @property
    def done(self) -> bool:
        """Whether the node holds nothing any more that a drain cares for."""
        return not (self.evict or self.wait or self.asks)


def drain(fates: Iterable[PodFate], policy: DrainPolicy) -> Drain:
    """All fates of a node together: by default, one refusal and nothing is evicted."""
    told = tuple(fates)
    asks = tuple(each for each in told if each.fate is Fate.REFUSE)
    held = bool(asks) and policy.on_refusal == "ask"
    evict = () if held else tuple(each for each in told if each.fate is Fate.EVICT)
    waits = tuple(each for each in told if each.fate is Fate.WAIT or (held and each.fate is Fate.EVICT))
    return Drain(evict=evict, wait=waits, asks=asks)


def fates(
    pods: Iterable[PodView],
    node: NodeView,
    policy: DrainPolicy,
    *,
    started: datetime,
    now: datetime,
    whole: Callable[[PodView], str] = lambda _: "",
) -> tuple[PodFate, ...]:
    """The fate of each pod of `node`, lowest priority first, then by name; pods of other nodes are passed over.

    `started` is when this drain began, so that asking again moves no deadline. `whole` says of a pod that would be
    evicted what happens to its whole job instead, "" where nothing does.
    """
    here = sorted((pod for pod in pods if pod.node == node.name), key=lambda pod: (pod.priority, pod.key, pod.uid))
    told = (_fate(pod, node, policy, started, now) for pod in here)
    return tuple(_with_its_job(fate, whole(fate.pod)) if fate.fate is Fate.EVICT else fate for fate in told)


def _with_its_job(fate: PodFate, instead: str) -> PodFate:
    return PodFate(fate.pod, Fate.WAIT, instead, whole=True) if instead else fate


def _fate(pod: PodView, node: NodeView, policy: DrainPolicy, started: datetime, now: datetime) -> PodFate:
    leave = _left(pod, policy)
    if leave:
        return PodFate(pod, Fate.LEAVE, leave)
    if pod.deleting_since is not None:
        return _terminating(pod, pod.deleting_since, node, policy, now)
    refuse = _refused(pod, policy)
    if refuse:
        return PodFate(pod, Fate.REFUSE, refuse)
    return _by_mode(pod, policy, started, now)


def _left(pod: PodView, policy: DrainPolicy) -> str:
    """Why a drain has nothing to do with a pod, "" where it has."""
    owner = pod.owner
    if pod.is_mirror:
        return "a mirror pod: the API server cannot remove what the kubelet runs from a file"
    if owner is not None and owner.kind == "DaemonSet" and owner.api_version == "apps/v1":
        return f"DaemonSet {owner.name} would put it back at once"
    if pod.phase in FINISHED:
        return f"it has ended ({pod.phase}) and uses nothing"
    pattern = next((one for one in policy.leave_namespaces if fnmatchcase(pod.namespace, one)), None)
    return f"policy leaves pods of namespace {pattern} where they are" if pattern is not None else ""


def _terminating(pod: PodView, since: datetime, node: NodeView, policy: DrainPolicy, now: datetime) -> PodFate:
    """A pod that is on its way. Nobody deletes it by force: on a silent node it may still run, and write."""
    deadline = since + timedelta(seconds=pod.grace_s + policy.stuck_after)
    if now < deadline:
        return PodFate(pod, Fate.WAIT, f"terminating, grace {pod.grace_s:.0f} s", deadline)
    for_s = (now - since).total_seconds()
    said = f"stuck: terminating for {for_s:.0f} s with a grace of {pod.grace_s:.0f} s"
    if node.ready:
        said += "; look for a finalizer or for a process that cannot die"
    else:
        said += "; its node does not answer. Once it is certain that the machine is off, a person may taint it"
        said += " node.kubernetes.io/out-of-service; no pod is deleted by force from here"
    return PodFate(pod, Fate.WAIT, said, deadline, stuck=True)


def opts_out(pod: PodView) -> str:
    """Which annotation of a pod forbids to move it, "" where none does."""
    for name in OPT_OUTS:
        wish = pod.annotation(name)
        if wish.strip().lower() not in ("", "false"):
            return f"its annotation {name} is {wish}"
    return ""


def _refused(pod: PodView, policy: DrainPolicy) -> str:
    """Why a drain must not touch a pod, "" where it may."""
    if wish := opts_out(pod):
        return wish
    if pod.empty_dirs and not policy.allow_empty_dir:
        volumes = ", ".join(pod.empty_dirs)
        return f"what it keeps in emptyDir {volumes} would be lost (drain.allow_empty_dir permits it)"
    if pod.owner is None and not policy.allow_unmanaged:
        return "no controller would start it again elsewhere (drain.allow_unmanaged permits it)"
    return ""


def _by_mode(pod: PodView, policy: DrainPolicy, started: datetime, now: datetime) -> PodFate:
    try:
        mode, wait_s = _mode(pod, policy)
    except ValueError as wrong:
        return PodFate(pod, Fate.REFUSE, str(wrong))
    if mode is DrainMode.EVICT_NOW:
        return _evict(pod, policy, "it may be moved now")
    deadline = started + timedelta(seconds=wait_s)
    if now < deadline:
        then = "is evicted" if mode is DrainMode.EVICT_AFTER_DEADLINE else "asks a person"
        return PodFate(pod, Fate.WAIT, f"{mode}: it may finish by itself, and {then} after {wait_s:.0f} s", deadline)
    if mode is DrainMode.EVICT_AFTER_DEADLINE:
        return _evict(pod, policy, f"its deadline of {wait_s:.0f} s has passed", deadline)
    said = f"it has not finished within {wait_s:.0f} s, and nothing may evict it ({mode})"
    return PodFate(pod, Fate.REFUSE, said, deadline)


def _evict(pod: PodView, policy: DrainPolicy, reason: str, deadline: datetime | None = None) -> PodFate:
    return PodFate(pod, Fate.EVICT, reason, deadline, grace_s=max(pod.grace_s, policy.min_grace))


def _mode(pod: PodView, policy: DrainPolicy) -> tuple[DrainMode, float]:
    """A pod's mode and how long it is waited for, in seconds. Raises ValueError for an annotation that says nothing."""
    mode, wait_s = _mode_of_namespace(pod.namespace, policy), policy.deadline
    asked, deadline = pod.annotation(DRAIN_MODE), pod.annotation(DRAIN_DEADLINE)
    if deadline:
        try:
            wait_s = min(parse_duration(deadline), policy.max_wait)
        except ValueError as wrong:
            raise ValueError(f"its annotation {DRAIN_DEADLINE} is no time: {wrong}") from wrong
        # Who names a deadline wants the time until then.
        mode = DrainMode.EVICT_AFTER_DEADLINE if mode is DrainMode.EVICT_NOW else mode
    if asked:
        if asked not in tuple(DrainMode):
            raise ValueError(f"its annotation {DRAIN_MODE} is {asked}, which is none of {', '.join(DrainMode)}")
        mode = DrainMode(asked)
    return mode, wait_s if deadline or mode is DrainMode.EVICT_AFTER_DEADLINE else policy.max_wait


def _mode_of_namespace(namespace: str, policy: DrainPolicy) -> DrainMode:
    fitting = [pattern for pattern in policy.modes if fnmatchcase(namespace, pattern)]
    return policy.modes[max(fitting, key=lambda pattern: (len(pattern), pattern))] if fitting else policy.mode

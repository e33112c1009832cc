"""The patches that make a node what is wished for, and that take back what is ours and nothing else.

Pure: a node as it was just read and a wish give a JSON merge patch, or None where nothing has to change. Each carries
the resourceVersion of the read, since `spec.taints` is one atomic list and a blind patch would wipe others' taints
(kubernetes 128304). Ownership is written in the same patch as the cordon and the taint that it marks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from remediation.objects import (
    CORDONED_BY,
    DECLARED_OFF_BY,
    INCIDENT,
    OFF_TAINT,
    OUT_OF_SERVICE,
    OWNER,
    PROBATION,
    PROBATION_SINCE,
    REASON,
    SERVICE,
    SINCE,
    STAGE,
    TAINT_KEY,
    Effect,
    NodeView,
    Stage,
    Taint,
)
from remediation.wish import Condition, NodeWish, label_value

Patch = Mapping[str, Any]

_OURS = (INCIDENT, REASON, SINCE, STAGE, PROBATION_SINCE, SERVICE)
_REQUIRED = "required"


class Order(StrEnum):
    """What a person told us by changing the node under our marks."""

    NONE = "none"
    UNCORDONED = "uncordoned"
    UNTAINTED = "untainted"


def order_of(node: NodeView) -> Order:
    """Whether somebody took back what our marks say that we did: an order to stop, not a state to repair."""
    if node.annotation(CORDONED_BY) == OWNER and not node.unschedulable:
        return Order.UNCORDONED
    ours = PROBATION if node.on_probation else TAINT_KEY
    if node.annotation(INCIDENT) and not any(taint.key == ours for taint in node.taints):
        return Order.UNTAINTED
    return Order.NONE


def apply(node: NodeView, wish: NodeWish) -> Patch | None:
    """Taint, cordon and marks as wished. A cordon that somebody else made stays theirs: it gets no mark of ours."""
    taints = [Taint(TAINT_KEY, Effect.NO_SCHEDULE, wish.taint_value)]
    marks: dict[str, str | None] = {
        INCIDENT: wish.incidents[0], REASON: wish.reason, SINCE: _stamp(wish.since), STAGE: wish.stage.value,
        PROBATION_SINCE: None,
    }  # fmt: skip
    if wish.service:
        marks[SERVICE] = _REQUIRED
    is_off, declared = wish.off and node.ready is not True, node.annotation(DECLARED_OFF_BY) == OWNER
    if is_off and (node.is_declared_off_by_us or not (declared or _is_declared_off(node))):
        taints.append(OFF_TAINT)
        marks[DECLARED_OFF_BY] = OWNER
    elif not is_off and declared:
        marks[DECLARED_OFF_BY] = None
    spec: dict[str, Any] = {}
    if {_identity(one) for one in _our_taints(node)} != {_identity(one) for one in taints}:
        spec["taints"] = [*_taints_of_others(node), *map(_plain, taints)]
    if wish.cordon and not node.unschedulable:
        spec["unschedulable"] = True
        marks[CORDONED_BY] = OWNER
    return _patch(node, spec, {name: value for name, value in marks.items() if node.annotation(name) != (value or "")})


def put_on_probation(node: NodeView, now: datetime) -> Patch | None:
    """Open it to new work, with a taint that prefers other nodes; None where that is so. Its incident stays named."""
    if node.on_probation:
        return None
    value = label_value(node.annotation(REASON))
    spec: dict[str, Any] = {
        "taints": [*_taints_of_others(node), _plain(Taint(PROBATION, Effect.PREFER_NO_SCHEDULE, value))]
    }
    if node.cordon_is_ours:
        spec["unschedulable"] = False
    marks: dict[str, str | None] = {STAGE: Stage.PROBATION.value, PROBATION_SINCE: _stamp(now)}
    gone = (name for name in (CORDONED_BY, DECLARED_OFF_BY) if node.annotation(name) == OWNER)
    return _patch(node, spec, {**marks, **dict.fromkeys(gone)}, {PROBATION: "true"})


def release(node: NodeView) -> Patch | None:
    """Take back our taint, our cordon and our marks; None where nothing of ours is there."""
    spec: dict[str, Any] = {}
    if _our_taints(node):
        spec["taints"] = _taints_of_others(node)
    if node.cordon_is_ours:
        spec["unschedulable"] = False
    return _patch(node, spec, _without_marks(node))


def forget(node: NodeView) -> Patch | None:
    """Drop our marks and taint after a person's order, and leave the node schedulable or not as the person left it."""
    spec: dict[str, Any] = {}
    if _our_taints(node):
        spec["taints"] = _taints_of_others(node)
    return _patch(node, spec, _without_marks(node))


@dataclass(frozen=True, slots=True)
class Shown:
    """The condition as the node shows it now; `since` is its lastTransitionTime."""

    condition: Condition
    since: datetime


def condition_patch(kind: str, wanted: Condition, shown: Shown | None, now: datetime) -> Patch | None:
    """A strategic merge patch of the status subresource; the transition time moves only with the status."""
    if shown is not None and shown.condition == wanted:
        return None
    moved = shown is None or shown.condition.status != wanted.status
    since = now if moved or shown is None else shown.since
    condition = {
        "type": kind,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastTransitionTime": _stamp(since),
        "lastHeartbeatTime": _stamp(now),
    }
    return {"status": {"conditions": [condition]}}


def _without_marks(node: NodeView) -> dict[str, None]:
    """Our annotations taken off; who else made a cordon stays written there."""
    names = [name for name in (*_OURS, DECLARED_OFF_BY) if node.annotation(name)]
    if node.annotation(CORDONED_BY) == OWNER:
        names.append(CORDONED_BY)
    return dict.fromkeys(names)


def _our_taints(node: NodeView) -> tuple[Taint, ...]:
    return tuple(one for one in node.taints if node.is_ours(one))


def _taints_of_others(node: NodeView) -> list[dict[str, str]]:
    return [_plain(one) for one in node.taints if not node.is_ours(one)]


def _is_declared_off(node: NodeView) -> bool:
    return any(taint.key == OUT_OF_SERVICE for taint in node.taints)


def _identity(taint: Taint) -> tuple[str, str, str]:
    """What makes two taints the same; when one was added does not."""
    return taint.key, taint.value, taint.effect


def _plain(taint: Taint) -> dict[str, str]:
    fields = {"key": taint.key, "value": taint.value, "effect": taint.effect, "timeAdded": taint.time_added}
    return {name: value for name, value in fields.items() if value}


def _patch(
    node: NodeView,
    spec: Mapping[str, Any],
    annotations: Mapping[str, str | None] | Mapping[str, None],
    labels: Mapping[str, str] = {},
) -> Patch | None:
    """The label of a probation goes with it, whatever else is changed."""
    changed: dict[str, str | None] = dict(labels)
    if not labels and node.label(PROBATION):
        changed[PROBATION] = None
    if not spec and not annotations and not changed:
        return None
    metadata: dict[str, Any] = {"resourceVersion": node.version, "uid": node.uid}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if changed:
        metadata["labels"] = changed
    return {"metadata": metadata, **({"spec": dict(spec)} if spec else {})}


def _stamp(at: datetime) -> str:
    """RFC 3339 in whole seconds, as the API writes its times."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""Events on nodes, for people who look with kubectl: one function for each kind of news, each told once.

An Event's name is made of what it tells, so telling it again changes nothing, also after a restart.
"""

import hashlib
from datetime import UTC, datetime

import structlog

from remediation.cluster.answers import ClusterError
from remediation.cluster.client import Cluster
from remediation.cluster.wire import Object
from remediation.objects import OWNER, NodeView
from remediation.operations import Operation, Result
from remediation.restoring import Restart, Stage
from remediation.wish import NodeWish

log = structlog.get_logger()

#: Events about what has no namespace live here.
_NAMESPACE = "default"
_LONGEST = 1024


def taken_out(node: NodeView, wish: NodeWish, now: datetime) -> Object:
    """It takes no new work any more, or is cordoned."""
    how = "Cordoned" if wish.cordon else "NoNewWork"
    said = f"{wish.reason}: {'cordoned and ' if wish.cordon else ''}tainted for {', '.join(wish.incidents)}"
    return _event(node, f"GPUWarden{how}", said, "Warning", wish.incidents[0], now)


def drain_begins(node: NodeView, wish: NodeWish, pods: int, now: datetime) -> Object:
    """Its pods are moved away."""
    said = f"{wish.reason}: {pods} pods are to be evicted for {wish.incidents[0]}"
    return _event(node, "GPUWardenDraining", said, "Warning", wish.incidents[0], now)


def drain_waits(node: NodeView, wish: NodeWish, why: str, now: datetime) -> Object:
    """A person has to decide about a pod."""
    said = f"the drain for {wish.incidents[0]} waits for a person: {why}"
    return _event(node, "GPUWardenDrainNeedsAPerson", said, "Warning", f"{wish.incidents[0]}/{why}", now)


def quarantined(node: NodeView, wish: NodeWish, now: datetime) -> Object:
    """It is empty, and stays out until its fault is over."""
    said = f"{wish.reason}: quarantined for {wish.incidents[0]}; `gpuwarden explain {node.name}` says why"
    return _event(node, "GPUWardenQuarantined", said, "Warning", wish.incidents[0], now)


def job_restart(node: NodeView, restart: Restart, now: datetime) -> Object:
    """A job that had pods here is asked, stopped, started, or back."""
    said = f"{restart.job}: {restart.stage}, {restart.detail} ({restart.incident})"
    kind = "Warning" if restart.stage is Stage.FAILED else "Normal"
    about = f"{restart.id}/{restart.stage}/{restart.level}/{restart.detail}"
    return _event(node, f"GPUWardenJob{restart.stage.value.capitalize()}", said, kind, about, now)


def operation(node: NodeView, one: Operation, now: datetime) -> Object:
    """A diagnosis, a reset or a reboot begins, or has come out."""
    state = one.result.value if one.result is not None else "begins"
    kind = "Normal" if one.result in (None, Result.PASSED) else "Warning"
    name = "".join(part.capitalize() for part in one.action.value.split("_"))
    said = f"{one.action} {one.id} for {one.incident} {state}: {one.detail}"
    return _event(node, f"GPUWarden{name}{state.capitalize()}", said, kind, f"{one.id}/{state}", now)


def released(node: NodeView, incident: str, why: str, now: datetime) -> Object:
    """It has been given back."""
    return _event(node, "GPUWardenReleased", f"given back after {incident}: {why}", "Normal", f"{incident}/{why}", now)


def ordered_off(node: NodeView, incident: str, order: str, now: datetime) -> Object:
    """A person took our marks off."""
    said = f"somebody has {order} it while it was out for {incident}: gpuwarden leaves it alone"
    return _event(node, "GPUWardenOrderedOff", said, "Normal", incident, now)


def tell(cluster: Cluster, event: Object) -> None:
    """Store it. An Event is a courtesy: where it can't be stored, the ledger has the same story."""
    try:
        cluster.create_event(event)
    except ClusterError as error:
        log.warning("event not stored", reason=event["reason"], detail=str(error))


def _event(node: NodeView, reason: str, message: str, kind: str, about: str, now: datetime) -> Object:
    # The UID of the Node object is left out on purpose: kubectl describe looks Events of nodes up by name as UID.
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    once = hashlib.sha256(f"{node.uid}/{reason}/{about}".encode()).hexdigest()[:16]
    return {
        "metadata": {"name": f"{node.name[:200]}.{once}", "namespace": _NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.name},
        "reason": reason,
        "message": message[:_LONGEST],
        "type": kind,
        "source": {"component": OWNER},
        "reportingComponent": OWNER,
        "reportingInstance": OWNER,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }

"""Scenes: an idle cluster in good health that this process leads, with one thing changed."""

from collections import defaultdict
from collections.abc import Iterable

from remediation.limits import Attempt, Ending, Fleet
from remediation.objects import INCIDENT, REASON, STAGE, TAINT_KEY, NodeView, OwnerRef, PodView, Stage, Taint
from remediation.people import Said, Saying
from remediation.scene import Scene
from rules.schema import LimitPolicy
from tests.acting.views import JOB, node, pod
from tests.decide.circumstances import NODES

SERVICE = OwnerRef("apps/v1", "ReplicaSet", "web-5d", "uid-web")


OUR_TAINT = Taint(TAINT_KEY, "NoSchedule", "xid_79")


def marked(name: str = "n000", incident: str = "inc-1", **fields) -> NodeView:
    """A node that we have cordoned and keep free of new work, unless told otherwise."""
    marks = {INCIDENT: incident, REASON: "xid_79", STAGE: Stage.CORDONED.value}
    return node(name, **({"ours": True, "annotations": marks, "taints": (OUR_TAINT,)} | fields))


def calm_scene(
    *nodes: NodeView,
    count: int = NODES,
    pods: Iterable[PodView] = (),
    said: Iterable[Saying] = (),
    limits: LimitPolicy | None = None,
    **fields,
) -> Scene:
    """n000, n001, … in service, as in the circumstances of tests.decide; `nodes` stand for those of the same name."""
    fleet = {one.name: one for one in [*(node(f"n{number:03d}") for number in range(count)), *nodes]}
    by_node: dict[str, list[PodView]] = defaultdict(list)
    for one in pods:
        by_node[one.node].append(one)
    told = {
        "fleet": Fleet.of(fleet.values(), limits or LimitPolicy()),
        "pods_by_node": {name: tuple(found) for name, found in by_node.items()},
        "said": Said.of(said),
    } | fields
    return Scene(**told)


def training(name: str = "llama-0", where: str = "n000", **fields) -> PodView:
    """A pod of a Job with all GPUs of a node."""
    return pod(name, **({"node": where, "owner": JOB, "gpus": 8} | fields))


def serving(name: str = "web-0", where: str = "n000", **fields) -> PodView:
    """A pod of a service with one GPU."""
    return pod(name, **({"node": where, "owner": SERVICE, "gpus": 1, "namespace": "web"} | fields))


def attempt(at, action, *, incident: str = "inc-1", name: str = "n000", ending: Ending = Ending.DONE) -> Attempt:
    return Attempt(at, incident, name, action, ending)

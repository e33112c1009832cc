"""Nodes, pods and budgets as a test needs them: in good health, with one thing changed."""

from datetime import UTC, datetime

from remediation.objects import CORDONED_BY, OWNER, NodeView, OwnerRef, PdbView, PodView, Selector, WorkloadView

AT = datetime(2026, 3, 4, 12, tzinfo=UTC)  # a Wednesday
JOB = OwnerRef("batch/v1", "Job", "llama", "uid-job")


def node(name: str = "n1", *, labels=None, annotations=None, ours: bool = False, **fields) -> NodeView:
    """A node in service; `ours` cordons it as gpuwarden does."""
    marks = dict(annotations or {})
    if ours:
        fields["unschedulable"] = True
        marks[CORDONED_BY] = OWNER
    told = {"uid": f"uid-{name}", "version": "1", "unschedulable": False, "ready": True, "gpus": 8} | fields
    return NodeView(name=name, labels=pairs(labels), annotations=pairs(marks), **told)


def pod(name: str = "llama-0", *, labels=None, annotations=None, **fields) -> PodView:
    """A ready pod of a Job on n1."""
    told = {
        "namespace": "train",
        "uid": f"uid-{name}",
        "node": "n1",
        "phase": "Running",
        "ready": True,
        "owner": JOB,
    } | fields
    return PodView(name=name, labels=pairs(labels), annotations=pairs(annotations), **told)


def pdb(name: str = "llama", allowed: int = 1, *, match=None, expressions=(), **fields) -> PdbView:
    """A budget whose status is up to date; without `match` and `expressions` it covers its whole namespace."""
    told = {"namespace": "train", "current": True, "healthy": allowed + 2, "desired_healthy": 2} | fields
    return PdbView(name=name, selector=Selector(pairs(match), tuple(expressions)), allowed=allowed, **told)


def workload(of: OwnerRef = JOB, **fields) -> WorkloadView:
    """The workload that a pod's owner names, with room for restarts; the pods of `pod()` are its own."""
    told = {"namespace": "train", "uid": of.uid, "owner": None, "restarts_allowed": 6} | fields
    return WorkloadView(kind=of.kind, api_version=of.api_version, name=of.name, **told)


def pairs(given) -> tuple[tuple[str, str], ...]:
    return tuple((given or {}).items())

"""Circumstances in which every gate passes, with one thing changed."""

from datetime import timedelta

from detectors.findings import Incident
from remediation.gates import Asked, Circumstances
from remediation.plan import Plan, Step
from rules.schema import Policy
from rules.vocabulary import Action
from tests.decide.incidents import AT, incident

NODES = 40


def plan_of(*actions: Action, gpu: str = "GPU-0000-0") -> Plan:
    """A plan with these steps."""
    steps = tuple(Step(action, "nothing") for action in actions)
    return Plan("inc-1", "n000", gpu, actions[-1], steps, (), (), "because")


def around(**fields) -> Circumstances:
    names = [f"n{number:03d}" for number in range(NODES)]
    told = {
        "now": AT + timedelta(seconds=10),
        "snapshot_at": AT,
        "source_ok": True,
        "ledger_writable": True,
        "fleet": dict.fromkeys(names, True),
        "gpu_nodes": frozenset(names),
        "wanted_out": frozenset(),
        "already_out": frozenset(),
        "settled_out": frozenset(),
        "standing": frozenset({"inc-1"}),
        "known_share": 1.0,
    } | fields
    return Circumstances(**told)


def asked(plan: Plan | None = None, about: Incident | None = None, *, policy: Policy | None = None, **fields) -> Asked:
    """A drain of one node for a fact about it, unless told otherwise; `fields` are those of the circumstances."""
    wanted = plan or plan_of(Action.CORDON, Action.DRAIN)
    return Asked(wanted, about or incident(), around(**fields), policy or Policy())

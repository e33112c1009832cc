"""What the tests of decisions in a cluster share: an incident that asks for the whole ladder, and how it is ruled."""

from detectors.findings import Incident
from remediation.breaker import BreakerState
from remediation.decide import Decision, decide_on
from remediation.people import Saying, Word
from remediation.plan import Works
from remediation.scene import Scene
from rules.loader import load_rules
from rules.schema import MaintenancePolicy, MaintenanceWindow, Policy
from rules.vocabulary import Action, CauseClass, FaultAction
from tests.acting.scenes import training
from tests.acting.views import workload
from tests.decide.circumstances import NODES, around
from tests.decide.incidents import AT, incident

POLICY = load_rules().policy
NOW = around().now
WHOLE = (Action.NO_NEW_WORK, Action.CHECKPOINT, Action.CORDON, Action.DRAIN, Action.QUARANTINE)
BEFORE_THE_DRAIN = WHOLE[:3]
POOL, RACK = "karpenter.sh/nodepool", "nvidia.com/gpu.clique"
#: Every node but the first is full of other work.
FULL = [training(f"full-{number}", f"n{number:03d}") for number in range(1, NODES)]


def sick(name: str = "inc-1", where: str = "n000", **fields) -> Incident:
    """A fact that asks for another board: the whole ladder up to quarantine."""
    return incident(name, where, **({"action": FaultAction.REPLACE, "cause_class": CauseClass.HARDWARE} | fields))


def ruled(incidents: list[Incident], scene: Scene, policy: Policy = POLICY, verdicts=(), **fields) -> list[Decision]:
    standing = frozenset(one.id for one in incidents)
    out = {"already_out": frozenset(scene.fleet.out), "settled_out": scene.fleet.settled}
    told = around(**({"standing": standing} | out | fields))
    return list(decide_on(incidents, Works(), verdicts, policy, around=told, scene=scene))


def failed(decision: Decision) -> set[str]:
    return {gate.name for gate in decision.gates if not gate.passed}


def says(word: Word, **fields) -> Saying:
    told = {"at": AT, "word": word, "by": "ann", "node": "n000", "incidents": ("inc-1",)}
    return Saying(**(told | fields))


def policy_with(**sections) -> Policy:
    return POLICY.model_copy(update=sections)


NIGHT = MaintenanceWindow.model_validate({"days": ["mon"], "from": "22:00", "to": "23:00"})
CLOSED = policy_with(maintenance=MaintenancePolicy(windows=(NIGHT,)))
QUIET = policy_with(maintenance=MaintenancePolicy(windows=(NIGHT,), actions=(Action.CORDON, Action.DRAIN)))
OPEN = BreakerState(AT, "3 of 40 nodes were taken out")
LAST = {workload().uid: workload(restarts_used=6)}
JOBS = {workload().uid: workload()}
#: The limits that a fleet has reached, where its nodes are in one pool and in no rack.
FULL_UP = {"blast_radius", "pool_limit"}

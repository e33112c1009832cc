"""Gates: each says whether a plan may go ahead, and why. All are asked, and all answers are recorded.

Pure functions of what a gate is asked about. A gate looks at every step of a plan, not at its last one. What takes
nothing away (watch, diagnose) passes the gates that protect capacity without being asked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from detectors.findings import Incident
from remediation.plan import NOT_HARDWARE, TAKES_OUT, Plan
from remediation.shares import at_most
from rules.schema import Policy
from rules.vocabulary import DISRUPTIVE, Action, Tier


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate's answer."""

    name: str
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the gates need to know beside the plan.

    `snapshot_at` is when the evidence was taken, `source_ok` whether all of it could be asked for. `fleet` maps node
    name to whether the node's identity is certain; `gpu_nodes` are those of it that have GPUs and are certain.
    `wanted_out` are the nodes that the plans before this one take out, `already_out` those that are out of service
    now, by us or by anybody else, `settled_out` those of them that stay so until somebody changes it. `standing` are
    the ids of incidents that are open right now. `known_share` is the share of GPUs that can be judged, 0 to 1.
    """

    now: datetime
    snapshot_at: datetime
    source_ok: bool
    ledger_writable: bool
    fleet: dict[str, bool]
    gpu_nodes: frozenset[str]
    wanted_out: frozenset[str]
    already_out: frozenset[str]
    settled_out: frozenset[str]
    standing: frozenset[str]
    known_share: float


@dataclass(frozen=True, slots=True)
class Asked:
    """What a gate is asked about: a plan, its incident, the circumstances, and the policy."""

    plan: Plan
    incident: Incident
    around: Circumstances
    policy: Policy


def fresh(asked: Asked) -> GateResult:
    """The evidence is recent and complete."""
    age = (asked.around.now - asked.around.snapshot_at).total_seconds()
    limit = asked.policy.limits.max_snapshot_age
    if not asked.around.source_ok:
        return GateResult("snapshot_fresh", passed=False, reason="part of the telemetry could not be asked for")
    return GateResult("snapshot_fresh", abs(age) <= limit, f"evidence is {age:.0f} s old, limit {limit:.0f} s")


def ledger(asked: Asked) -> GateResult:
    """What is done can be written down before it is done."""
    writable = asked.around.ledger_writable
    said = "the ledger takes entries" if writable else "the ledger cannot be written"
    return GateResult("ledger_writable", writable, said)


def evidence(asked: Asked) -> GateResult:
    """The tier and the class of the evidence allow this action."""
    incident = asked.incident
    tier, cause = incident.tier, incident.cause_class
    grave = asked.plan.does(DISRUPTIVE)
    if not grave:
        return GateResult("evidence_tier", passed=True, reason=f"tier {int(tier)} may cause {asked.plan.action}")
    strong = tier is not Tier.SUSPICION and cause not in NOT_HARDWARE
    said = f"tier {int(tier)} evidence of class {cause}"
    return GateResult("evidence_tier", strong, f"{said} {'allows' if strong else 'never allows'} {', '.join(grave)}")


def still_there(asked: Asked) -> GateResult:
    """The fault is still open at this moment."""
    incident = asked.incident
    if incident.id not in asked.around.standing or incident.closed is not None:
        return GateResult("fault_still_open", passed=False, reason="the incident has closed")
    there = incident.standing or not asked.plan.does(DISRUPTIVE)
    return GateResult("fault_still_open", there, "the incident is open" if there else "none of its signals stands now")


def known_node(asked: Asked) -> GateResult:
    """It is certain which machine this is."""
    nodes = asked.incident.nodes
    unsure = [node or "a log without a name" for node in nodes if not asked.around.fleet.get(node, False)]
    if unsure:
        reason = f"no certain node behind {', '.join(unsure)}: observe only"
        return GateResult("node_known", passed=False, reason=reason)
    return GateResult("node_known", passed=True, reason=f"{', '.join(nodes)}: known")


def known_gpu(asked: Asked) -> GateResult:
    """It is certain which GPU would be reset."""
    plan = asked.plan
    if Action.RESET_GPU in plan.does(DISRUPTIVE) and not plan.gpu:
        reason = "nothing ties the address in the log to a GPU, so nobody knows which one to reset"
        return GateResult("gpu_known", passed=False, reason=reason)
    return GateResult("gpu_known", passed=True, reason=plan.gpu or "no single GPU is acted on")


def common_cause(asked: Asked) -> GateResult:
    """It isn't many machines at once: that is one cause elsewhere, and somebody has to look."""
    if asked.incident.held:
        reason = f"the same on {len(asked.incident.nodes)} nodes: hold, and page"
        return GateResult("common_cause", passed=False, reason=reason)
    return GateResult("common_cause", passed=True, reason="not part of a common cause")


def blast_radius(asked: Asked) -> GateResult:
    """Not too much of the fleet would be out at once.

    The share is one of the nodes with GPUs and rounds down, but one node may always go. Nodes that are out already
    count, whoever took them out; a plan for such a node takes nothing more away.
    """
    around, limits = asked.around, asked.policy.limits
    if not asked.plan.does(TAKES_OUT):
        return GateResult("blast_radius", passed=True, reason=f"{asked.plan.action} takes no capacity away")
    limit = at_most(limits.max_unavailable_share, limits.max_unavailable_nodes, len(around.gpu_nodes))
    before = around.wanted_out | around.already_out
    nodes = frozenset(asked.incident.nodes)
    if nodes <= around.wanted_out | around.settled_out:
        return GateResult("blast_radius", passed=True, reason=f"{', '.join(sorted(nodes))}: out already")
    out = len(before | nodes)
    said = f"{out} of {len(around.gpu_nodes)} nodes would be out, limit {limit}"
    return GateResult("blast_radius", out <= limit, said)


def coverage(asked: Asked) -> GateResult:
    """Enough of the fleet can be seen to tell one sick machine from a blind monitor."""
    known, limit = asked.around.known_share, asked.policy.limits.min_coverage
    said = f"{100 * known:.0f} % of GPUs can be judged, at least {100 * limit:.0f} % needed"
    return GateResult("coverage", known >= limit, said)


GATES: tuple[Callable[[Asked], GateResult], ...] = (
    fresh,
    ledger,
    evidence,
    still_there,
    known_node,
    known_gpu,
    common_cause,
    blast_radius,
    coverage,
)

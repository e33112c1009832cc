"""Short ways from what an engine concluded to what a test is about."""

from datetime import timedelta

from detectors.engine import Detection
from detectors.events import KernelEvent
from detectors.findings import GpuState, Incident
from remediation.decide import Decision, decide
from rules.schema import RuleBook
from rules.vocabulary import Action
from tests.detect.scene import Scene


def decided(detection: Detection, scene: Scene, rules: RuleBook) -> tuple[Decision, ...]:
    snapshot = scene.tick(after_s=0)
    return decide(
        detection.incidents,
        snapshot,
        detection.verdicts,
        rules.policy,
        now=snapshot.at,
        ledger_writable=True,
    )


def steps(detection: Detection, scene: Scene, rules: RuleBook) -> set[Action]:
    """Every step of every decision."""
    return {step.action for decision in decided(detection, scene, rules) for step in decision.plan.steps}


def one(detection: Detection) -> Incident:
    (incident,) = detection.incidents
    return incident


def state_of(detection: Detection, scene: Scene, node: int = 0, slot: int = 0) -> GpuState:
    return next(v.state for v in detection.verdicts if v.gpu == scene.uuid(node, slot))


def recovery(scene: Scene, value: int, words: str, after: timedelta = timedelta(0)) -> KernelEvent:
    detail = f"GPU recovery action changed from 0x0 (None) to {value:#x} ({words})"
    return scene.xid(154, detail=detail, recovery_value=value, at=scene.now + after)

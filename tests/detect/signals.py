"""Signals as values, for tests that need no detector to make them."""

from detectors.findings import Signal
from rules.vocabulary import CauseClass, FaultAction, Tier
from tests.detect.scene import Scene


def signal(scene: Scene, rule: str = "r", node: int = 0, slot: int | None = 0, **fields) -> Signal:
    """A memory trend on one GPU (`slot` None: on the node) that began now, unless told otherwise."""
    told = {
        "detector": "threshold",
        "tier": Tier.TREND,
        "cause_class": CauseClass.MEMORY,
        "action": FaultAction.NONE,
        "weight": 0.4,
        "value": None,
        "limit": None,
        "unit": "",
        "since": scene.now,
        "last": scene.now,
        "look": "",
        "text": f"{rule} is off",
    } | fields
    return Signal(rule=rule, node=scene.node(node), gpu="" if slot is None else scene.uuid(node, slot), **told)


def fact(scene: Scene, rule: str = "xid_48", node: int = 0, slot: int | None = 0, **fields) -> Signal:
    """A fact of the kernel log about one GPU, unless told otherwise."""
    told = {"detector": "kernel_log", "tier": Tier.FACT, "weight": 1.0, "code": 48} | fields
    return signal(scene, rule, node, slot, **told)

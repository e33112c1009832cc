"""What agents say of their nodes' own GPU stacks: a suspicion that stands while it is repeated, and never a fact."""

from datetime import timedelta

import pytest

from detectors.events import KernelEvent
from detectors.node_reports import HOLDS_FOR, NodeReports
from rules.vocabulary import CauseClass, EventKind, FaultAction, Severity, Tier
from tests.detect.scene import Scene


def state(scene: Scene, name: str = "gpu_stack", node: int = 0, severity: Severity = Severity.NONFATAL) -> KernelEvent:
    return scene.line(EventKind.NODE_STATE, f"{name} is bad", node, place=name, severity=severity, source="agent node")


@pytest.mark.parametrize(
    ("name", "cause_class"),
    [("gpu_stack", CauseClass.DRIVER), ("gpu_count", CauseClass.HARDWARE), ("fabric_manager", CauseClass.LINK)],
)
def test_a_bad_state_is_a_suspicion_that_asks_for_a_look(name: str, cause_class: CauseClass) -> None:
    scene, reports = Scene(), NodeReports()
    (signal,) = reports.look(scene.tick([state(scene, name)]))
    assert (signal.tier, signal.cause_class, signal.action) == (Tier.SUSPICION, cause_class, FaultAction.INSPECT)
    assert (signal.node, signal.gpu, signal.weight) == (scene.node(0), "", 0.0)


def test_it_stands_while_it_is_repeated_and_ends_when_it_is_well_again() -> None:
    scene, reports = Scene(), NodeReports()
    since = scene.now
    reports.look(scene.tick([state(scene)]))
    for _ in range(6):
        scene.wait(600)
        (signal,) = reports.look(scene.tick([state(scene)]))
    assert signal.since == since
    assert reports.look(scene.tick([state(scene, severity=Severity.INFO)])) == []


def test_an_agent_that_falls_silent_proves_nothing_for_long() -> None:
    scene, reports = Scene(), NodeReports()
    reports.look(scene.tick([state(scene)]))
    scene.wait(HOLDS_FOR.total_seconds() - 60)
    assert len(reports.look(scene.tick())) == 1
    scene.wait(120)
    assert reports.look(scene.tick()) == []


def test_each_node_and_each_name_stands_for_itself_and_unknown_names_say_nothing() -> None:
    scene, reports = Scene(nodes=2), NodeReports()
    events = [state(scene), state(scene, node=1), state(scene, "gpu_count"), state(scene, "of_a_newer_agent")]
    assert len(reports.look(scene.tick(events))) == 3
    over = state(scene, severity=Severity.INFO)
    assert {(one.node, one.rule) for one in reports.look(scene.tick([over]))} == {
        (scene.node(0), "gpu_count"), (scene.node(1), "gpu_stack"),
    }  # fmt: skip


def test_events_in_any_order_end_in_the_same_state() -> None:
    scene = Scene()
    bad = state(scene)
    scene.now += timedelta(seconds=5)
    well = state(scene, severity=Severity.INFO)
    snapshot = scene.tick([well, bad])
    assert NodeReports().look(snapshot) == []

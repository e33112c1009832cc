"""Driver roll-outs: what looks like many sick GPUs after one is a common cause, and nobody drains a pool for it."""

import pytest

from detectors.engine import Engine
from rules.vocabulary import EventKind
from tests.detect.scene import Scene, minutes


def roll_out(scene: Scene, *nodes: int, by_label: bool) -> list:
    if by_label:
        for place in [p for node in nodes for p in scene.all_gpus(node)]:
            row = scene.row(place)
            old = scene.refs[row]
            scene.refs[row] = old.__class__(old.uuid, old.node, None, old.index, old.pci, old.model, driver="580.9")
        return []
    return [scene.line(EventKind.DRIVER_LOAD, node=node, driver_version="580.9") for node in nodes]


@pytest.mark.parametrize("by_label", [True, False], ids=["by the driver's label", "by the driver's load line"])
@pytest.mark.parametrize(
    ("changed", "sick", "wait_s", "held"),
    [
        pytest.param((0, 1, 2, 3), (1,), 1500, True, id="a sick node after a roll-out"),
        pytest.param((0, 1, 2, 3), (1, 2), 1500, True, id="two of them"),
        pytest.param((0, 1), (1,), 1500, False, id="two changed nodes are no roll-out"),
        pytest.param((0, 1, 2, 3), (9,), 1500, False, id="a node whose driver is the old one"),
        pytest.param((0, 1, 2, 3), (1,), 5400, False, id="long after the roll-out"),
    ],
)
def test_driver_faults_after_a_roll_out_are_held(
    engine: Engine, by_label: bool, changed: tuple[int, ...], sick: tuple[int, ...], wait_s: float, held: bool
) -> None:
    scene = Scene(nodes=40, gpus=2)
    engine.step(scene.tick())
    engine.step(scene.tick(roll_out(scene, *changed, by_label=by_label)))
    detection = engine.step(scene.wait(wait_s).tick([scene.xid(119, node) for node in sick]))
    assert {incident.held for incident in detection.incidents} == {held}
    again = engine.step(scene.wait(86400).tick())
    assert {incident.held for incident in again.incidents} == {held}, "and stay so while they last"
    if held:
        assert again.incidents[0].why.startswith(f"driver faults on {len(sick)} nodes whose driver was just changed")


def test_memory_faults_after_a_roll_out_are_no_matter_of_the_driver(engine: Engine) -> None:
    scene = Scene(nodes=40)
    engine.step(scene.tick(roll_out(scene, 0, 1, 2, 3, by_label=False)))
    (incident,) = engine.step(scene.wait(900).tick([scene.xid(48, 1)])).incidents
    assert not incident.held


def test_a_dead_gpu_with_the_old_drivers_label_makes_no_roll_out_every_tick(engine: Engine) -> None:
    scene = Scene(nodes=4, gpus=2)
    engine.step(scene.tick())
    roll_out(scene, 0, 1, 2, 3, by_label=True)
    for node in range(4):  # the second GPU of each is gone and keeps what it last said
        old = scene.refs[scene.row((node, 1))]
        scene.refs[scene.row((node, 1))] = old.__class__(old.uuid, old.node, driver="570.1")
    scene.run(engine, 60)
    scene.refs = [ref.__class__(ref.uuid, ref.node, None, ref.index, driver=ref.driver) for ref in scene.refs]
    detection = engine.step(scene.wait(3 * 3600).tick([scene.xid(119, 1, gpu_uuid=scene.uuid(1, 0))]))
    assert [incident.held for incident in detection.incidents] == [False]


def test_a_log_that_is_read_from_its_beginning_makes_no_roll_out_of_old_boots(engine: Engine) -> None:
    scene = Scene(nodes=8)
    loads = [scene.line(EventKind.DRIVER_LOAD, node=n, at=scene.now - minutes(60 * 24 * 3)) for n in range(8)]
    (incident,) = engine.step(scene.tick([*loads, scene.xid(119, 2)])).incidents
    assert not incident.held

"""Between polls only kernel events are new: facts are told at once, and what the numbers say stands as it was."""

from datetime import datetime, timedelta

import numpy as np
import pytest

from detectors.engine import Engine
from detectors.findings import GpuState
from detectors.snapshot import Snapshot
from remediation.decide import decide
from rules.schema import RuleBook
from tests.detect.scene import Scene


def hot(scene: Scene) -> Scene:
    """Everything under load, and one GPU too hot for long."""
    return scene.set("gpu_util_percent", 99).set("gpu_temp", 60).set("gpu_temp", 96, (0, 1))


def xid_after(at: datetime, seconds: float) -> Snapshot:
    """A moment at which GPU 3 has fallen off the bus."""
    scene = Scene(now=at)
    scene.logs(scene.xid(79, 0, 3))
    return scene.tick(after_s=seconds)


def test_what_is_known_only_grows_older() -> None:
    scene = hot(Scene())
    before = scene.tick()
    later = before.later(before.at + timedelta(seconds=7), ())
    assert later.interval_s == 7
    assert later.telemetry_at == before.at
    assert later.later(later.at + timedelta(seconds=1), ()).telemetry_at == before.at
    np.testing.assert_allclose(later.gpu.age_s, before.gpu.age_s + 7)
    np.testing.assert_array_equal(later.gpu.value, before.gpu.value)
    for name in ("gpus", "nodes", "exprs", "source", "workloads"):
        assert getattr(later, name) == getattr(before, name)


def test_what_belonged_to_one_tick_is_not_told_again() -> None:
    scene = Scene()
    scene.logs(scene.xid(79, 0, 3))
    before = scene.tick()
    assert before.events
    later = before.later(before.at + timedelta(seconds=1), ())
    assert (later.events, later.resets) == ((), ())


def test_a_fault_joins_what_the_numbers_said_before(engine: Engine) -> None:
    scene = hot(Scene())
    scene.run(engine, 900)
    before = scene.tick()
    full = engine.step(before)
    told = {signal.rule for signal in full.signals}
    assert told, "the hot GPU is told of"
    lost = xid_after(before.at, 1)
    only = engine.step(before.later(lost.at, lost.events))
    assert {signal.rule for signal in only.signals} == told | {"xid_79"}
    by_gpu = {verdict.gpu: verdict for verdict in only.verdicts}
    assert by_gpu[scene.uuid(0, 3)].state is GpuState.FAILED
    assert by_gpu[scene.uuid(0, 1)] == next(v for v in full.verdicts if v.gpu == scene.uuid(0, 1))


@pytest.mark.parametrize(
    ("age_s", "passes"),
    [pytest.param(60, True, id="a minute"), pytest.param(600, False, id="ten minutes")],
)
def test_telemetry_is_as_old_as_its_poll_whatever_was_heard_since(
    engine: Engine, rules: RuleBook, age_s: int, passes: bool
) -> None:
    before = hot(Scene()).tick()
    engine.step(before)
    lost = xid_after(before.at, age_s)
    snapshot = before.later(lost.at, lost.events)
    detection = engine.step(snapshot)
    (decision,) = decide(
        detection.incidents, snapshot, detection.verdicts, rules.policy, now=snapshot.at, ledger_writable=True
    )
    fresh = next(gate for gate in decision.gates if gate.name == "snapshot_fresh")
    assert fresh.passed is passes
    assert f"{age_s} s old" in fresh.reason

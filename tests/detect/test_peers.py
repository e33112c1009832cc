"""Peer comparison: who is compared with whom, that the odd one does not move the yardstick, and when it is over."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.peers import PeerWatch, compare_to_peers, job_cohorts, node_cohorts, slot_cohorts
from rules.schema import PeerRule, RuleBook
from rules.vocabulary import CauseClass, FaultAction, Tier
from tests.detect.scene import Scene

VALUES = st.floats(-1e6, 1e6) | st.just(math.nan)


@given(st.lists(st.tuples(VALUES, st.integers(-1, 5)), max_size=40))
def test_medians_sizes_and_spreads_are_those_of_each_group(rows: list[tuple[float, int]]) -> None:
    value = np.array([v for v, _ in rows], np.float64)
    cohort = np.array([c for _, c in rows], np.intp)
    found = compare_to_peers(value, cohort)
    for row, group in enumerate(cohort):
        members = value[cohort == group] if group >= 0 else np.array([])
        known = members[~np.isnan(members)]
        assert found.size[row] == len(known)
        if not len(known):
            assert np.isnan(found.median[row])
            assert np.isnan(found.spread[row])
            continue
        median = np.nanmedian(members)
        assert found.median[row] == pytest.approx(median)
        assert found.spread[row] == pytest.approx(1.4826 * np.nanmedian(np.abs(members - median)))


@given(st.lists(st.floats(50, 70), min_size=5, max_size=20), st.floats(-1e6, 1e6))
def test_one_odd_value_moves_the_yardstick_no_further_than_between_the_others(others: list[float], odd: float) -> None:
    value = np.array([odd, *others])
    median = compare_to_peers(value, np.zeros(len(value), np.intp)).median[0]
    assert min(others) <= median <= max(others)


def test_cohorts_by_job_leave_out_who_has_none_or_several() -> None:
    scene = Scene(nodes=2, gpus=3).run_job("a", (0, 0), (0, 1), (1, 0)).run_job("b", (1, 1))
    scene.jobs[scene.row((1, 2))] = scene.jobs[scene.row((0, 0))] + scene.jobs[scene.row((1, 1))]
    assert job_cohorts(scene.tick()).tolist() == [0, 0, -1, 0, 1, -1]


def test_cohorts_by_slot_are_the_same_slot_of_the_same_model_in_the_same_work() -> None:
    scene = Scene(nodes=3, gpus=2).run_job("a", (0, 0), (0, 1), (1, 0), (1, 1))
    scene.refs[5] = scene.refs[5].__class__(scene.refs[5].uuid, scene.node(2), model=scene.model)
    assert slot_cohorts(scene.tick()).tolist() == [0, 1, 0, 1, 2, -1]


def test_a_fleet_without_pod_labels_is_told_apart_by_what_its_gpus_say() -> None:
    scene = Scene(nodes=2, gpus=2).set("gpu_util_percent", 0).set("gpu_util_percent", 80, (0, 0), (1, 1))
    assert slot_cohorts(scene.tick()).tolist() == [0, 1, 2, 3]
    assert node_cohorts(scene.tick()).tolist() == [0, 1, 2, 3]


RULE = {
    "summary": "hot", "signal": "gpu_temp", "cohort": "job", "cause_class": CauseClass.THERMAL, "direction": "above",
    "distance": 5, "floor": 2, "min_deviation": 8, "min_cohort": 4, "for": 60, "clear_for": 60, "source": "a test",
}  # fmt: skip


def watch(rules: RuleBook, **fields) -> PeerWatch:
    return PeerWatch(rules.model_copy(update={"peers": {"r": PeerRule(**(RULE | fields))}}))


def together(gpus: int = 8, **fields) -> Scene:
    scene = Scene(gpus=gpus, **fields).set("gpu_temp", 60)
    return scene.run_job("llama", *scene.all_gpus())


def show(watching: PeerWatch, scene: Scene, temperatures: list[float]) -> str:
    found = ""
    for value in temperatures:
        scene.set("gpu_temp", value, (0, 0))
        found += "#" if watching.look(scene.tick()) else "."
    return found


@pytest.mark.parametrize(
    ("fields", "temperatures", "expected"),
    [
        pytest.param({}, [80] * 4, "..##", id="odd for a time"),
        pytest.param({}, [69] * 4, "....", id="really off, and not odd enough"),
        pytest.param({"distance": 1}, [67] * 4, "....", id="odd, and not really off"),
        pytest.param({}, [40] * 4, "....", id="odd the other way"),
        pytest.param({"direction": "below"}, [40] * 4, "..##", id="odd the other way, which it looks for"),
        pytest.param({}, [80, 80, 80, 66, 66, 66], "..###.", id="like its peers again"),
        pytest.param({}, [80, 80, 80, 69, 69, 69, 69], "..#####", id="not quite like its peers again"),
        pytest.param({"floor": 1}, [80, 80, 80, 65, 65, 65], "..###.", id="no longer really off, odd as it may be"),
        pytest.param({}, [80, 80, 80, *[math.nan] * 5], "..######", id="absence is no improvement"),
        pytest.param({}, [*[math.nan] * 5], ".....", id="absence is nothing odd"),
    ],
)
def test_when_a_peer_rule_is_on(rules: RuleBook, fields: dict, temperatures: list[float], expected: str) -> None:
    assert show(watch(rules, **fields), together(), temperatures) == expected


def test_too_few_peers_are_no_peers(rules: RuleBook) -> None:
    assert show(watch(rules), together(gpus=3), [80] * 4) == "...."


def test_a_natural_spread_asks_for_a_larger_distance(rules: RuleBook) -> None:
    scene = together()
    for slot in range(8):
        scene.set("gpu_temp", 50 + 5 * slot, (0, slot))
    assert show(watch(rules), scene, [95] * 4) == "...."


def test_only_gpus_for_which_the_conditions_hold_are_compared(rules: RuleBook) -> None:
    scene = together().set("gpu_util_percent", 0)
    watching = watch(rules, only_if=({"signal": "gpu_util_percent", "above": 50},))
    assert show(watching, scene, [80] * 4) == "...."
    assert show(watching, scene.set("gpu_util_percent", 99), [80] * 4) == "..##"


@pytest.mark.parametrize(
    ("next_job", "left"),
    [
        pytest.param("", 0, id="no job any more"),
        pytest.param("other", 0, id="another job"),
        pytest.param("llama", 1, id="the same job"),
    ],
)
def test_what_was_seen_among_the_jobs_peers_is_over_with_the_job(rules: RuleBook, next_job: str, left: int) -> None:
    scene, watching = together(), watch(rules)
    show(watching, scene, [80] * 4)
    scene.run_job(next_job, (0, 0))
    assert len(watching.look(scene.tick())) == left


def test_a_gpu_that_cannot_be_seen_keeps_its_job(rules: RuleBook) -> None:
    scene, watching = together(), watch(rules)
    show(watching, scene, [80] * 4)
    scene.blind((0, 0)).run_job("", (0, 0))
    assert len(watching.look(scene.tick())) == 1
    scene.blind()
    assert watching.look(scene.tick()) == []


def test_a_replaced_board_is_forgotten(rules: RuleBook) -> None:
    scene, watching = together(), watch(rules, cohort="node")
    show(watching, scene, [80] * 4)
    assert watching.look(scene.swap((0, 0), "GPU-new").tick()) == []


def test_a_peer_signal_is_suspicion_and_says_what_it_saw(rules: RuleBook) -> None:
    scene, watching = together(), watch(rules)
    show(watching, scene, [80] * 4)
    (signal,) = watching.look(scene.tick())
    assert (signal.tier, signal.action, signal.jobs) == (Tier.SUSPICION, FaultAction.INSPECT, ("team/llama",))
    assert (signal.value, signal.limit) == (80.0, 60.0)
    assert signal.text == "hot: 80 against a median of 60 of 8 peers"
    scene.set("gpu_temp", math.nan, (0, 0))
    (signal,) = watching.look(scene.tick())
    assert (signal.value, signal.text) == (80.0, "hot: 80 against a median of 60 of 8 peers")


def test_a_snapshot_that_knows_of_no_work_compares_idle_with_busy_by_what_gpus_say() -> None:
    snapshot = replace(Scene(gpus=3).set("gpu_util_percent", 0).set("gpu_util_percent", 9, (0, 2)).tick(), workloads=())
    assert node_cohorts(snapshot).tolist() == [0, 0, 1]


def test_without_gpus_there_is_nothing_to_compare(rules: RuleBook) -> None:
    assert PeerWatch(rules).look(Scene(nodes=0, cpu_nodes=1).tick()) == []

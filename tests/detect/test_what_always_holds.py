"""What holds for any events, any absence and any order: from the events of a tick to the decisions about them."""

import random
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.engine import Detection, Engine
from detectors.findings import GpuState
from detectors.incidents import IncidentBook
from remediation.decide import Decision, decide
from rules.loader import load_rules
from rules.vocabulary import DISRUPTIVE, Action, CauseClass, EventKind, FaultAction, Tier
from tests.detect.scene import Scene
from tests.detect.signals import signal

RULES = load_rules()
CODES = [13, 31, 43, 45, 48, 62, 63, 64, 74, 79, 94, 95, 109, 119, 120, 154, 163, 999]
APPLICATION = [code for code, rule in RULES.xid.items() if rule.incident_class is CauseClass.APPLICATION and rule.open]

EVENT = st.fixed_dictionaries(
    {
        "code": st.sampled_from(CODES),
        "node": st.integers(0, 3),
        "slot": st.integers(0, 1),
        "second": st.integers(0, 150),
        "source": st.sampled_from(["log", "log", "exporter"]),
        "trusted": st.sampled_from([True, True, True, False]),
        "place": st.sampled_from([None, "link 1", "link 2"]),
        "pid": st.sampled_from([None, 1, 2]),
    }
)


def run(drawn: list[dict], dice: random.Random | None = None, *, pci_known: bool = True) -> list[tuple]:
    """A tick with these events and two after it: verdicts, incidents and decisions of each."""
    scene, engine = Scene(nodes=4, gpus=2, pci_known=pci_known), Engine(RULES)
    scene.run_job("llama", (0, 0), (1, 0)).run_job("other", (2, 1))
    engine.step(scene.tick())
    events = []
    for fields in drawn:
        told = {key: fields[key] for key in ("trusted", "place", "pid")}
        make = scene.exported if fields["source"] == "exporter" else scene.xid
        at = scene.now + timedelta(seconds=fields["second"])
        value = {"recovery_value": fields["second"] % 8} if fields["code"] == 154 else {}
        events.append(make(fields["code"], fields["node"], fields["slot"], at=at, **told, **value))
    scene.wait(180)
    if dice is not None:
        dice.shuffle(events)
    found = []
    for given_events in (events, [], []):
        snapshot = scene.tick(given_events)
        detection = engine.step(snapshot)
        found.append((detection.verdicts, detection.incidents, decisions(detection, snapshot)))
        scene.wait(300)
    return found


def decisions(detection: Detection, snapshot) -> tuple[Decision, ...]:
    return decide(
        detection.incidents,
        snapshot,
        detection.verdicts,
        RULES.policy,
        now=snapshot.at,
        ledger_writable=True,
    )


@given(st.lists(EVENT, max_size=10), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=60)
def test_the_order_in_which_events_arrive_within_a_tick_does_not_matter(
    drawn: list[dict], dice: random.Random, pci_known: bool
) -> None:
    assert run(drawn, dice, pci_known=pci_known) == run(drawn, pci_known=pci_known)


@given(st.lists(EVENT, max_size=10))
@settings(max_examples=60)
def test_no_incident_is_lost_or_told_twice(drawn: list[dict]) -> None:
    for _, incidents, decided in run(drawn):
        assert len({incident.id for incident in incidents}) == len(incidents)
        keys = [signal.key for incident in incidents for signal in incident.signals]
        assert len(set(keys)) == len(keys), "a signal belongs to one incident"
        assert sorted(d.plan.incident for d in decided) == sorted(by.id for by in incidents)


@given(st.lists(EVENT, max_size=10))
@settings(max_examples=60)
def test_only_strong_evidence_about_hardware_that_stands_now_disrupts(drawn: list[dict]) -> None:
    for _, incidents, decided in run(drawn):
        by_id = {incident.id: incident for incident in incidents}
        for decision in decided:
            if decision.plan.does(DISRUPTIVE):
                incident = by_id[decision.plan.incident]
                assert incident.standing
                assert incident.tier is not Tier.SUSPICION
                assert incident.cause_class not in (CauseClass.APPLICATION, CauseClass.TELEMETRY)
                assert any(s.trusted and s.action is not FaultAction.NONE for s in incident.signals)


@given(st.lists(st.tuples(st.sampled_from(APPLICATION), st.integers(0, 3), st.integers(0, 1)), max_size=12))
@settings(max_examples=60)
def test_programs_faults_never_take_hardware_out(drawn: list[tuple[int, int, int]]) -> None:
    scene, engine = Scene(nodes=4, gpus=2), Engine(RULES)
    engine.step(scene.tick())
    for code, node, slot in drawn:
        scene.wait(1200).run_job(f"job-{code}", (node, slot))
        snapshot = scene.tick([scene.xid(code, node, slot, pid=code)])
        detection = engine.step(snapshot)
        assert {verdict.state for verdict in detection.verdicts} <= {GpuState.HEALTHY, GpuState.DEGRADED}
        for decision in decisions(detection, snapshot):
            assert decision.plan.does(DISRUPTIVE - {Action.RESTART_JOB}) == ()


ABSENCE = st.fixed_dictionaries(
    {
        name: st.lists(st.integers(0, most), max_size=8).map(tuple)
        for name, most in (
            ("gpu_missing", 7),
            ("gpu_stale", 7),
            ("gpu_frozen", 7),
            ("exporter_down", 3),
            ("no_gpu_series", 3),
            ("node_stale", 3),
        )
    }
)


@given(st.lists(st.tuples(ABSENCE, st.integers(1, 40)), max_size=6))
@settings(max_examples=40)
def test_absence_makes_no_gpu_worse_none_healthy_and_takes_nothing_out(spans: list[tuple[dict, int]]) -> None:
    scene, engine = Scene(nodes=4, gpus=2).set("gpu_temp", 60).set("node_load1", 1.0, node=0), Engine(RULES)
    engine.step(scene.tick())
    for absent, ticks in spans:
        for name, rows in absent.items():
            scene.flag(name, *rows)
        for row in range(8):
            gone = row in absent["gpu_stale"]
            scene.set("gpu_temp", float("nan") if gone else 60, divmod(row, 2))
        for _ in range(ticks):
            snapshot = scene.tick()
            detection = engine.step(snapshot)
        states = {verdict.gpu: verdict.state for verdict in detection.verdicts}
        assert set(states.values()) <= {GpuState.HEALTHY, GpuState.UNKNOWN}
        unseen = set(absent["gpu_stale"]) | set(absent["gpu_frozen"])
        assert {states[scene.refs[row].uuid] for row in unseen} <= {GpuState.UNKNOWN}
        for decision in decisions(detection, snapshot):
            assert decision.plan.does(DISRUPTIVE) == ()


SIGNAL = st.builds(
    dict,
    rule=st.sampled_from(["a", "b", "xid_48"]),
    node=st.integers(0, 5),
    slot=st.none() | st.integers(0, 1),
    tier=st.sampled_from(Tier),
    cause_class=st.sampled_from(CauseClass),
    action=st.sampled_from(FaultAction),
    jobs=st.sampled_from([(), ("team/a",), ("team/b",)]),
    code=st.sampled_from([None, 48, 79]),
    secondary_to=st.sampled_from([None, None, 48, 79]),
    detector=st.sampled_from(["threshold", "peers", "kernel_log"]),
    weight=st.sampled_from([0.0, 0.4, 1.0]),
)


@given(st.lists(st.lists(SIGNAL, max_size=10, unique_by=lambda s: (s["rule"], s["node"], s["slot"], s["detector"])),
                min_size=1, max_size=4), st.randoms(use_true_random=False))  # fmt: skip
@settings(max_examples=80)
def test_the_order_of_signals_does_not_matter_to_incidents(ticks: list[list[dict]], dice: random.Random) -> None:
    books = [IncidentBook(RULES.policy.incidents) for _ in range(2)]
    scene = Scene(nodes=6, gpus=2)
    for drawn in ticks:
        signals = [signal(scene, **fields) for fields in drawn]
        snapshot = scene.tick()
        shuffled = list(signals)
        dice.shuffle(shuffled)
        assert books[0].step(snapshot, signals) == books[1].step(snapshot, shuffled)


def test_a_driver_load_is_no_fault_however_often_it_comes() -> None:
    scene, engine = Scene(nodes=4), Engine(RULES)
    for _ in range(5):
        detection = engine.step(scene.tick([scene.line(EventKind.DRIVER_LOAD, node=n) for n in range(4)]))
    assert (detection.signals, detection.incidents) == ((), ())

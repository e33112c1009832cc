"""Incidents: what joins, what stays apart, when one opens, grows, merges and closes, and what its record says."""

from datetime import timedelta

import pytest

from detectors.engine import Engine, distinct
from detectors.findings import Incident
from detectors.incidents import Changes, IncidentBook
from rules.schema import RuleBook
from rules.vocabulary import CauseClass, EventKind, FaultAction, IncidentScope, Tier
from tests.detect.scene import Scene, minutes
from tests.detect.signals import fact, signal


@pytest.fixture
def book(rules: RuleBook) -> IncidentBook:
    return IncidentBook(rules.policy.incidents)


def one(changes: Changes) -> Incident:
    (incident,) = changes.open
    return incident


# ------------------------------------------------------------------------------------------------ what joins, and not


def test_a_memory_fact_takes_in_the_memory_trends_of_its_gpu(book: IncidentBook) -> None:
    scene = Scene()
    trends = [signal(scene, "ecc_dbe"), signal(scene, "remap_growth", action=FaultAction.INSPECT)]
    incident = one(book.step(scene.tick(), [*trends, fact(scene, action=FaultAction.RESET_GPU)]))
    assert [s.rule for s in incident.signals] == ["xid_48", "ecc_dbe", "remap_growth"]
    assert (incident.tier, incident.action, incident.scope) == (Tier.FACT, FaultAction.RESET_GPU, IncidentScope.GPU)
    assert incident.why == "xid_48 is off, and 2 more signals"


def test_trends_of_two_classes_stay_two_incidents_until_a_fact_joins_them(book: IncidentBook) -> None:
    scene = Scene()
    replay = signal(scene, "pcie_replay", cause_class=CauseClass.LINK)
    heat = signal(scene, "gpu_temp_high", cause_class=CauseClass.THERMAL)
    apart = book.step(scene.tick(), [replay, heat])
    lost = fact(scene, "xid_79", cause_class=CauseClass.HARDWARE, code=79, since=scene.now, last=scene.now)
    joined = book.step(scene.tick(), [replay, heat, lost])
    incident = one(joined)
    assert len(apart.open) == 2
    assert {s.rule for s in incident.signals} == {"pcie_replay", "gpu_temp_high", "xid_79"}
    assert incident.cause_class is CauseClass.HARDWARE
    assert incident.first_signal_at == replay.since
    assert incident.opened > incident.first_signal_at, "the sides were seen before the fact"
    assert {c.closed_because for c in joined.closed} == {f"merged into {incident.id}"}


def test_a_side_that_was_taken_in_stays_when_the_fact_has_ended(book: IncidentBook) -> None:
    scene = Scene()
    lost = fact(scene, "xid_79", cause_class=CauseClass.HARDWARE, code=79)
    replay = signal(scene, "pcie_replay", cause_class=CauseClass.LINK, action=FaultAction.INSPECT)
    before = one(book.step(scene.tick(), [lost, replay]))
    after = book.step(scene.wait(3600).tick(), [replay])
    assert (one(after).id, after.opened, after.closed) == (before.id, (), ())
    assert (one(after).tier, one(after).action) == (Tier.TREND, FaultAction.INSPECT), "what stands now counts"
    assert one(after).cause_class is CauseClass.HARDWARE


def test_a_second_fact_of_another_class_does_not_turn_the_incident_into_another(book: IncidentBook) -> None:
    scene = Scene()
    memory = fact(scene)
    first = one(book.step(scene.tick(), [memory]))
    earlier = fact(
        scene, "xid_119", cause_class=CauseClass.DRIVER, code=119, since=scene.now - minutes(9), last=scene.now
    )
    changes = book.step(scene.tick(), [memory, earlier])
    assert (one(changes).id, one(changes).cause_class) == (first.id, CauseClass.MEMORY)


def test_a_side_that_was_over_long_before_the_fact_is_no_side_of_it(book: IncidentBook) -> None:
    scene = Scene()
    old = signal(scene, "gpu_temp_high", cause_class=CauseClass.THERMAL, last=scene.now - minutes(20))
    assert len(book.step(scene.tick(), [old, fact(scene)]).open) == 2


def test_another_gpus_fault_is_another_incident(book: IncidentBook) -> None:
    scene = Scene()
    assert len(book.step(scene.tick(), [fact(scene), fact(scene, slot=1)]).open) == 2


def test_a_consequence_belongs_to_the_fault_that_explains_it(book: IncidentBook) -> None:
    scene = Scene(nodes=2)
    cause = fact(scene, "xid_79", code=79, cause_class=CauseClass.HARDWARE)
    link = fact(scene, "sxid_20034", slot=None, code=20034, secondary_to=79, cause_class=CauseClass.LINK)
    stop = fact(scene, "xid_45", code=45, secondary_to=79, cause_class=CauseClass.APPLICATION, weight=0.0)
    incident = one(book.step(scene.tick(), [stop, link, cause]))
    assert (incident.scope, incident.cause_class) == (IncidentScope.NODE, CauseClass.HARDWARE)
    assert incident.gpu_uuids == (scene.uuid(0, 0),)
    assert incident.count == 1, "a consequence is not one more"


def test_a_consequence_of_two_lost_gpus_belongs_to_its_own_gpus_loss(book: IncidentBook) -> None:
    scene = Scene()
    causes = [fact(scene, "xid_79", slot=slot, code=79, cause_class=CauseClass.HARDWARE) for slot in (0, 1)]
    link = fact(scene, "xid_74", slot=1, code=74, secondary_to=79, cause_class=CauseClass.LINK)
    changes = book.step(scene.tick(), [*causes, link])
    assert {i.gpu_uuids[0]: len(i.signals) for i in changes.open} == {scene.uuid(0, 0): 1, scene.uuid(0, 1): 2}


def test_a_consequence_whose_cause_nobody_sees_is_an_incident_of_its_own(book: IncidentBook) -> None:
    scene = Scene()
    incident = one(
        book.step(scene.tick(), [fact(scene, "xid_74", code=74, secondary_to=79, cause_class=CauseClass.LINK)])
    )
    assert (incident.cause_class, incident.tier) == (CauseClass.LINK, Tier.FACT)


@pytest.mark.parametrize(
    "silent",
    [
        pytest.param({"trusted": False}, id="what the kernel did not say"),
        pytest.param({"weight": 0.0}, id="what weighs nothing"),
    ],
)
def test_these_open_no_incident(book: IncidentBook, silent: dict) -> None:
    scene = Scene()
    assert book.step(scene.tick(), [signal(scene, **silent)]).open == ()


# --------------------------------------------------------------------------------------------------- jobs and fleets


def test_a_jobs_crash_on_40_nodes_is_one_incident(engine: Engine) -> None:
    scene = Scene(nodes=63)
    places = [(node, slot) for node in range(40) for slot in range(8)]
    scene.run_job("llama", *places)
    crash = [
        scene.xid(code, *place, pid=9, at=scene.now + timedelta(seconds=n % 7))
        for place in places
        for n, code in enumerate((31, 43, 45))
    ]
    detection = engine.step(scene.tick(crash))
    (incident,) = detection.incidents
    assert (incident.cause_class, len(incident.nodes), incident.held) == (CauseClass.APPLICATION, 40, False)
    assert incident.why.startswith("job team/llama on 40 nodes")


def test_a_crash_whose_job_nobody_knows_is_one_incident_all_the_same(engine: Engine) -> None:
    scene = Scene(nodes=63)
    detection = engine.step(scene.tick([scene.xid(31, node) for node in range(40)]))
    (incident,) = detection.incidents
    assert (incident.scope, incident.held) == (IncidentScope.FLEET, True)


@pytest.mark.parametrize(
    ("nodes", "sick", "apart_s", "held"),
    [
        pytest.param(40, 16, 0, True, id="40 % of the nodes at once"),
        pytest.param(40, 4, 0, True, id="a tenth of the nodes at once"),
        pytest.param(40, 3, 0, False, id="less than a tenth"),
        pytest.param(10, 3, 0, True, id="three nodes of a small fleet"),
        pytest.param(10, 2, 0, False, id="two nodes of a small fleet"),
        pytest.param(10, 3, 600, False, id="one after the other, ten minutes apart"),
    ],
)
@pytest.mark.parametrize("tier", list(Tier))
def test_the_same_on_many_nodes_within_minutes_is_one_common_cause(
    book: IncidentBook, nodes: int, sick: int, apart_s: int, held: bool, tier: Tier
) -> None:
    scene = Scene(nodes=nodes, cpu_nodes=500)
    since = [scene.now + timedelta(seconds=n * apart_s * 2) for n in range(sick)]
    signals = [signal(scene, node=n, tier=tier, since=since[n], last=since[n]) for n in range(sick)]
    changes = book.step(scene.wait(7200).tick(), signals)
    assert [i.held for i in changes.open] == ([True] if held else [False] * sick)


def test_single_incidents_merge_into_the_fleets_and_stay_there(book: IncidentBook) -> None:
    scene = Scene(nodes=20)
    signals = [signal(scene, node=n) for n in range(2)]
    apart = book.step(scene.tick(), signals)
    signals += [signal(scene, node=n) for n in (2, 3)]
    merged = book.step(scene.tick(), signals)
    assert len(apart.open) == 2
    assert {c.closed_because for c in merged.closed} == {f"merged into {one(merged).id}"}
    left = book.step(scene.wait(7200).tick(), signals[:1])
    assert (one(left).id, left.opened, one(left).held) == (one(merged).id, (), True)


def test_a_node_that_falls_ill_hours_later_is_its_own_incident(book: IncidentBook) -> None:
    scene = Scene(nodes=20)
    signals = [signal(scene, node=n) for n in range(4)]
    book.step(scene.tick(), signals)
    late = signal(scene.wait(7200), node=9)
    assert sorted(i.held for i in book.step(scene.tick(), [*signals, late]).open) == [False, True]


def test_a_thousand_sick_nodes_are_grouped_in_no_time_worth_mentioning(book: IncidentBook) -> None:
    scene = Scene(nodes=1000)
    signals = [signal(scene, node=n, slot=s) for n in range(1000) for s in range(8)]
    assert one(book.step(scene.tick(), signals)).held


def test_four_gpus_of_a_node_that_lag_behind_one_job_are_the_jobs_matter_and_stay_it(book: IncidentBook) -> None:
    scene = Scene()
    lags = [
        signal(scene, "power_below_job", slot=s, detector="peers", tier=Tier.SUSPICION, jobs=("team/a",),
               cause_class=CauseClass.LINK)
        for s in range(4)
    ]  # fmt: skip
    assert len(book.step(scene.tick(), lags[:3]).open) == 3
    whole = book.step(scene.tick(), lags)
    assert (one(whole).cause_class, one(whole).why.split(":")[0]) == (CauseClass.JOB, "job team/a on 1 node")
    assert one(book.step(scene.tick(), lags[:2])).id == one(whole).id


def test_sick_nodes_of_one_rack_are_a_rack(book: IncidentBook) -> None:
    scene = Scene(nodes=6, racks=("a", "a", "a", "b", "b", "b"))
    inside = one(book.step(scene.tick(), [signal(scene, node=n) for n in range(3)]))
    assert inside.scope is IncidentScope.RACK
    across = book.step(scene.tick(), [signal(scene, node=n) for n in range(4)])
    assert one(across).scope is IncidentScope.FLEET


# ------------------------------------------------------------------------------------------------ opening and closing


def test_an_incident_asks_for_nothing_once_nothing_stands_and_closes_after_the_quiet(book: IncidentBook) -> None:
    scene = Scene()
    opened = one(book.step(scene.tick(), [fact(scene, action=FaultAction.RESET_GPU)]))
    quiet = book.step(scene.tick(), [])
    assert (one(quiet).standing, one(quiet).action) == (False, FaultAction.NONE)
    assert quiet.changed == quiet.open
    assert book.step(scene.tick(), []).changed == (), "told once"
    (closed,) = book.step(scene.wait(900).tick(), []).closed
    assert (closed.id, closed.closed_because) == (opened.id, "no signal stands any more")
    assert (closed.tier, closed.action) == (Tier.FACT, FaultAction.RESET_GPU), "the record has the strongest there was"


def test_an_incident_that_comes_back_before_it_closed_goes_on(book: IncidentBook) -> None:
    scene = Scene()
    before = one(book.step(scene.tick(), [signal(scene)]))
    book.step(scene.tick(), [])
    again = book.step(scene.tick(), [signal(scene)])
    assert (one(again).id, one(again).standing, again.opened) == (before.id, True, ())


def test_a_fact_that_ended_lends_its_strength_to_nothing(book: IncidentBook) -> None:
    scene = Scene()
    doubt = signal(scene, "forest", tier=Tier.SUSPICION, action=FaultAction.INSPECT)
    book.step(scene.tick(), [fact(scene, action=FaultAction.REPLACE), doubt])
    assert one(book.step(scene.tick(), [doubt])).tier is Tier.SUSPICION


def test_suspicion_beside_a_trend_asks_for_nothing_more(book: IncidentBook) -> None:
    scene = Scene()
    doubt = signal(scene, "forest", tier=Tier.SUSPICION, action=FaultAction.REPLACE)
    incident = one(book.step(scene.tick(), [doubt, signal(scene, action=FaultAction.INSPECT)]))
    assert (incident.tier, incident.action) == (Tier.TREND, FaultAction.INSPECT)


def test_ids_follow_from_what_an_incident_is_about_and_when_it_began(rules: RuleBook) -> None:
    def first_id(shift_s: float, slot: int = 0) -> str:
        scene = Scene().wait(shift_s)
        return one(IncidentBook(rules.policy.incidents).step(scene.tick(), [fact(scene, slot=slot)])).id

    assert first_id(0) == first_id(0)
    assert len({first_id(0), first_id(60), first_id(0, slot=1)}) == 3
    assert first_id(0).startswith("inc-")


def test_a_restart_goes_on_with_the_incidents_that_were_open(book: IncidentBook, rules: RuleBook) -> None:
    scene = Scene(nodes=20)
    signals = [fact(scene, slot=7), *(signal(scene, "heat", node=n) for n in range(4))]
    before = book.step(scene.tick(), signals)
    other = IncidentBook(rules.policy.incidents)
    other.restore(before.open)
    after = other.step(scene.tick(), signals)
    assert ([i.id for i in after.open], after.opened, after.closed) == ([i.id for i in before.open], (), ())
    assert other.step(scene.wait(3600).tick(), []).open == ()


def test_an_incident_gets_the_gpu_that_becomes_known_and_goes_on(engine: Engine) -> None:
    scene = Scene(pci_known=False)
    storm = scene.line(EventKind.SXID, "SXid: 20034, Fatal", code=20034, pci="0000:c0:00", at=scene.now + minutes(0.1))
    (before,) = engine.step(scene.tick([scene.xid(79, slot=3), storm])).incidents
    mapped = scene.line(EventKind.GPU_MAP, pci=scene.pci(3), gpu_uuid=scene.uuid(0, 3))
    detection = engine.step(scene.tick([mapped]))
    (after,) = detection.incidents
    assert (before.gpu_uuids, after.gpu_uuids) == ((), (scene.uuid(0, 3),))
    assert (after.id, detection.opened, detection.closed) == (before.id, (), ())
    assert len(after.signals) == 2


def test_of_two_unknown_gpus_one_becomes_known(engine: Engine) -> None:
    scene = Scene(pci_known=False)
    (before,) = engine.step(scene.tick([scene.xid(79, slot=3), scene.xid(79, slot=4)])).incidents
    mapped = scene.line(EventKind.GPU_MAP, pci=scene.pci(3), gpu_uuid=scene.uuid(0, 3))
    detection = engine.step(scene.tick([mapped]))
    assert {(i.id == before.id, i.gpu_uuids, len(i.signals)) for i in detection.incidents} == {
        (True, (), 1),
        (False, (scene.uuid(0, 3),), 1),
    }


def test_a_change_is_told_when_it_tells_something(book: IncidentBook) -> None:
    scene = Scene()
    book.step(scene.tick(), [fact(scene, count=3)])
    assert book.step(scene.tick(), [fact(scene, count=4, last=scene.now)]).changed == ()
    assert book.step(scene.tick(), [fact(scene, count=40, last=scene.now)]).changed != ()


def test_a_node_and_a_gpu_of_it_are_told_apart(book: IncidentBook) -> None:
    scene = Scene()
    edac = signal(scene, "edac", slot=None)
    assert {i.scope for i in book.step(scene.tick(), [edac, fact(scene)]).open} == {
        IncidentScope.NODE,
        IncidentScope.GPU,
    }


def test_instances_of_one_gpu_tell_the_same_thing_once(engine: Engine) -> None:
    scene = Scene(gpus=1).set("gpu_temp", 95)
    whole = scene.refs[0]
    scene.refs = [whole.__class__(whole.uuid, whole.node, instance, model=whole.model) for instance in range(7)]
    scene.node_of = [0] * 7
    scene.values = {"gpu_temp": scene.values["gpu_temp"].repeat(7)}
    detection = scene.run(engine, 300)
    assert len(detection.signals) == 1
    assert {v.score for v in detection.verdicts} == {0.4}


def test_of_two_signals_of_one_observation_the_stronger_counts() -> None:
    scene = Scene()
    weak, strong = signal(scene, weight=0.2), signal(scene, weight=0.7)
    assert distinct([weak, strong]) == distinct([strong, weak]) == [strong]

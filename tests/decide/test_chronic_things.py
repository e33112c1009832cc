"""What a decision makes of chronic things: a new outage of one ends in quarantine for service; nothing else does."""

from dataclasses import replace

import pytest

from detectors.findings import Incident
from remediation.decide import Decision
from remediation.objects import INCIDENT, SERVICE, STAGE, Stage
from remediation.plan import Plan
from remediation.scene import Scene
from rules.restore_schema import NO_OUTAGE
from rules.vocabulary import Action, CauseClass, FaultAction, Tier
from tests.acting.scenes import calm_scene, marked
from tests.acting.views import node
from tests.decide.incidents import incident
from tests.decide.ruled import POLICY, WHOLE, ruled

GPU, NODE = "gpu:GPU-0000-0", "node:n000"
BOTH = {GPU: "3 outages, out of service now", NODE: "4 outages, out of service now"}


def decided(one: Incident, scene: Scene) -> Decision:
    return ruled([one], scene)[0]


def planned(one: Incident, chronic: dict[str, str]) -> Plan:
    return decided(one, calm_scene(chronic=chronic)).plan


@pytest.mark.parametrize(
    ("chronic", "said"),
    [
        pytest.param(BOTH, "gpu GPU-0000-0 is chronic: 3 outages, out of service now; a reset is not enough",
                     id="the GPU comes first"),
        pytest.param({NODE: BOTH[NODE]}, "node n000 is chronic: 4 outages, out of service now; a reset is not enough",
                     id="its node"),
    ],
)  # fmt: skip
def test_a_new_outage_of_a_chronic_thing_ends_in_quarantine_for_service(chronic: dict[str, str], said: str) -> None:
    found = planned(incident(), chronic)
    assert tuple(step.action for step in found.steps) == WHOLE
    assert (found.action, found.for_service) == (Action.QUARANTINE, True)
    assert found.reason.endswith(said)


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(incident(gpu_uuids=("GPU-0000-1",), nodes=("n001",)), id="another GPU on another node"),
        pytest.param(incident(tier=Tier.SUSPICION), id="suspicion"),
        pytest.param(incident(held=True), id="a common cause on many nodes"),
        pytest.param(incident(tier=Tier.TREND, action=FaultAction.NONE), id="a trend that asks for nothing"),
        pytest.param(incident(standing=False), id="nothing of it stands any more"),
        *(pytest.param(incident(cause_class=cause), id=f"a matter of {cause}") for cause in sorted(NO_OUTAGE)),
    ],
)
def test_what_is_no_outage_of_it_or_disrupts_nothing_is_decided_as_ever(one: Incident) -> None:
    assert decided(one, calm_scene(chronic=BOTH)) == decided(one, calm_scene())


def test_a_chronic_thing_is_never_taken_out_by_its_score_alone() -> None:
    assert ruled([], calm_scene(chronic=BOTH)) == []


def test_policy_does_nothing_by_the_score_unless_a_site_says_so() -> None:
    assert POLICY.chronic.quarantine is False
    assert calm_scene().chronic == {}


def test_a_trend_whose_ladder_would_reset_the_gpu_goes_to_service_too() -> None:
    trend = incident(tier=Tier.TREND, cause_class=CauseClass.HARDWARE)
    assert Action.RESET_GPU in {step.action for step in planned(trend, {}).steps}
    assert planned(trend, BOTH).for_service


SERVICED = marked(annotations={INCIDENT: "inc-0", STAGE: Stage.QUARANTINED.value, SERVICE: "required"})


@pytest.mark.parametrize(
    ("seen", "chronic", "said"),
    [
        pytest.param(node("n000", annotations={STAGE: Stage.PROBATION.value}), {"node:n009": "2 outages"},
                     "n000 failed within its probation, so a reset is not enough", id="on probation"),
        pytest.param(node("n000", annotations={STAGE: Stage.PROBATION.value}), BOTH,
                     "a reset is not enough", id="on probation, and chronic: that says more"),
        pytest.param(SERVICED, {"gpu:GPU-0000-7": "2 outages"}, "n000 needs service, so a reset is not enough",
                     id="another GPU of the node was sent to service"),
        pytest.param(SERVICED, {}, "n000 failed within its probation, so a reset is not enough",
                     id="where nothing is chronic, only a failed probation leads there"),
    ],
)  # fmt: skip
def test_a_node_that_needs_service_keeps_needing_it(seen, chronic: dict[str, str], said: str) -> None:
    found = decided(incident(), calm_scene(seen, chronic=chronic)).plan
    assert found.for_service
    assert found.reason.endswith(said)


def test_chronic_things_change_no_gate() -> None:
    """What holds an ordinary drain back holds this one back as well."""
    scene = calm_scene(leads=False, stale_s=90)
    usual, chronic = (decided(incident(), one) for one in (scene, replace(scene, chronic=BOTH)))
    assert [gate.name for gate in usual.gates] == [gate.name for gate in chronic.gates]
    assert (chronic.ruling, chronic.allowed) == (usual.ruling, usual.allowed) == (usual.ruling, ())

"""Who may act at all: the leader, on a cluster as it is now, and not against a person's word."""

from datetime import timedelta

import pytest

from remediation.authority import AUTHORITY, breaker_closed, cluster_fresh, leadership, on_hold, rejected
from remediation.breaker import BreakerState
from remediation.people import Saying, Word
from remediation.scene import Scene
from rules.schema import LimitPolicy, Policy
from rules.vocabulary import Action
from tests.acting.scenes import calm_scene
from tests.decide.circumstances import around, asked, plan_of
from tests.decide.incidents import AT, incident

NOW = around().now
OPEN = BreakerState(AT, "3 of 40 nodes were taken out")


def says(word: Word, **fields) -> Saying:
    return Saying(AT, word, "ann", **({"node": "n000", "incidents": ("inc-1",)} | fields))


def said(*sayings: Saying) -> Scene:
    return calm_scene(said=sayings)


@pytest.mark.parametrize(
    ("gate", "given_scene", "passes", "reason"),
    [
        pytest.param(leadership, calm_scene(), True, "this process decides", id="the leader"),
        pytest.param(leadership, calm_scene(leads=False, leader="gpuwarden-1 leads"), False, "gpuwarden-1 leads",
                     id="somebody else leads, and is named"),
        pytest.param(cluster_fresh, calm_scene(stale_s=3), True, "seen within the last 75 s", id="seen just now"),
        pytest.param(cluster_fresh, calm_scene(stale_s=75), True, "seen within the last 75 s", id="just old enough"),
        pytest.param(cluster_fresh, calm_scene(stale_s=76), False, "no sign of life for 76 s; limit 75 s",
                     id="the API server does not answer"),
        pytest.param(cluster_fresh, calm_scene(stale_s=float("inf")), False,
                     "no sign of life for any time: it has not been listed yet; limit 75 s", id="it never has"),
        pytest.param(rejected, calm_scene(), True, "nobody has rejected it", id="nobody said anything"),
        pytest.param(rejected, said(says(Word.REJECT)), False, "rejected by ann at 2026-05-04 12:00 UTC",
                     id="a person wants nothing done"),
        pytest.param(rejected, said(says(Word.RELEASE)), False, "n000 was given back by ann at 2026-05-04 12:00 UTC",
                     id="or has given the node back"),
        pytest.param(rejected, said(says(Word.REJECT, incidents=("inc-0",))), True, "nobody has rejected it",
                     id="an earlier incident was another matter"),
        pytest.param(on_hold, calm_scene(), True, "no node of it is on hold", id="nothing is on hold"),
        pytest.param(on_hold, said(says(Word.HOLD)), False, "n000 is on hold until somebody ends it, by ann",
                     id="a node on hold"),
        pytest.param(on_hold, said(says(Word.HOLD, until=NOW)), True, "no node", id="a hold that has ended"),
        pytest.param(on_hold, said(says(Word.HOLD, node="n001")), True, "no node", id="another node on hold"),
        pytest.param(breaker_closed, calm_scene(), True, "closed: it has never tripped", id="a closed breaker"),
        pytest.param(breaker_closed, calm_scene(breaker=OPEN), False, "3 of 40 nodes were taken out",
                     id="an open breaker"),
    ],
)  # fmt: skip
def test_a_gate_of_authority_passes_or_says_why_not(gate, given_scene: Scene, passes: bool, reason: str) -> None:
    answer = gate(asked(), given_scene)
    assert answer.passed is passes
    assert answer.reason.startswith(reason) or reason in answer.reason


def test_one_node_on_hold_holds_an_incident_of_several() -> None:
    answer = on_hold(asked(about=incident(nodes=("n000", "n001"))), said(says(Word.HOLD, node="n001")))
    assert not answer.passed
    assert answer.reason.startswith("n001 is on hold")


def test_a_site_says_how_old_its_view_of_the_cluster_may_be() -> None:
    policy = Policy(limits=LimitPolicy(max_cluster_age=300))
    assert cluster_fresh(asked(policy=policy), calm_scene(stale_s=299)).passed


def test_a_reason_does_not_change_while_nothing_does() -> None:
    later = asked(now=NOW + timedelta(seconds=30))
    for gate in AUTHORITY:
        assert gate(asked(), calm_scene(stale_s=1)) == gate(later, calm_scene(stale_s=20))


def test_recovery_goes_on_while_the_breaker_is_open() -> None:
    assert breaker_closed(asked(plan_of(Action.RELEASE)), calm_scene(breaker=OPEN)).passed

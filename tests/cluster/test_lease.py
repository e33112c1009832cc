"""The election on a real API server: one leader at a time, whatever freezes, dies or lies about the time."""

from dataclasses import dataclass, field

import pytest

from remediation.cluster.client import Cluster
from remediation.cluster.lease import Candidate, Election
from remediation.leadership import Move
from rules.schema import LeasePolicy
from tests.testbed.control_plane import ControlPlane

POLICY = LeasePolicy(renew=2, deadline=10, duration=15)
ROLE = (
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "patch"]},
)  # fmt: skip


@dataclass
class Clock:
    """A steady clock that a test turns."""

    at_s: float = 1000.0

    def __call__(self) -> float:
        return self.at_s


@dataclass
class Arena:
    """Candidates for one lease, each with a clock of its own, for clocks needn't agree."""

    cluster: ControlPlane
    connections: dict[str, Cluster] = field(default_factory=dict)

    def candidate(self, name: str, clock: Clock) -> Election:
        self.cluster.namespace("gpuwarden")
        token = self.cluster.service_account("gpuwarden", name, cluster_role_rules=ROLE)
        connection = Cluster.from_kubeconfig(self.cluster.kubeconfig_for(token, name))
        return Election(connection, Candidate("gpuwarden", "gpuwarden", f"{name}-1"), POLICY, steady=clock)

    def lease(self) -> dict[str, object]:
        spec: dict[str, object] = self.cluster.admin.get("Lease", "gpuwarden", "gpuwarden")["spec"]
        return spec


@pytest.fixture
def arena(cluster: ControlPlane) -> Arena:
    return Arena(cluster)


def first(arena: Arena, clock: Clock) -> Election:
    """A candidate that has waited the lack of a lease out, and leads."""
    election = arena.candidate("first", clock)
    assert election.turn().move is Move.STAND_BY
    clock.at_s += POLICY.duration
    assert election.turn().move is Move.ACQUIRE
    assert election.may_act()
    return election


def test_the_second_stands_by_as_long_as_the_first_renews(arena: Arena) -> None:
    clock, other = Clock(), Clock(5.0)
    leader, second = first(arena, clock), arena.candidate("second", other)
    for _ in range(10):
        clock.at_s += 5
        other.at_s += 5
        assert leader.turn().move is Move.RENEW
        assert second.turn().move is Move.STAND_BY
        assert (leader.may_act(), second.may_act()) == (True, False)
    assert arena.lease()["holderIdentity"] == "first-1"


def test_a_dead_leader_is_followed_only_after_the_lease_has_run_out(arena: Arena) -> None:
    clock = Clock()
    leader, second = first(arena, clock), arena.candidate("second", clock)
    second.turn()
    led = []
    for _ in range(20):
        clock.at_s += 1
        second.turn()
        assert not (leader.may_act() and second.may_act())
        led.append(second.may_act())
    assert led.index(True) >= POLICY.duration - 1
    assert arena.lease()["leaseTransitions"] == 1


def test_a_frozen_leader_that_wakes_up_knows_at_once_that_its_time_is_over(arena: Arena) -> None:
    clock = Clock()
    leader, second = first(arena, clock), arena.candidate("second", clock)
    second.turn()
    clock.at_s += POLICY.duration
    second.turn()
    assert second.may_act()
    assert not leader.may_act(), "before it has asked anybody"
    assert leader.turn().move is Move.STEP_DOWN
    assert leader.turn().move is Move.STAND_BY
    assert arena.lease()["holderIdentity"] == "second-1"


def test_who_loses_the_race_for_the_lease_does_not_lead(arena: Arena) -> None:
    clock = Clock()
    one, two = arena.candidate("one", clock), arena.candidate("two", clock)
    one.turn()
    two.turn()
    clock.at_s += POLICY.duration
    one.turn()
    two.turn()
    assert [one.may_act(), two.may_act()] == [True, False]


def test_whoever_resigns_is_followed_at_once(arena: Arena) -> None:
    clock = Clock()
    leader, second = first(arena, clock), arena.candidate("second", clock)
    leader.resign()
    assert not leader.may_act()
    assert second.turn().move is Move.ACQUIRE
    assert second.may_act()


def test_a_leader_without_an_api_server_stops_by_itself_and_leads_again_when_it_is_back(arena: Arena) -> None:
    clock = Clock()
    leader = first(arena, clock)
    arena.cluster.api_server.pause()
    try:
        clock.at_s += 3
        assert leader.turn().move is Move.STAND_BY
        assert leader.may_act(), "its lease has not run out"
        clock.at_s += POLICY.deadline
        assert not leader.may_act()
    finally:
        arena.cluster.api_server.resume()
    assert leader.turn().move is Move.STEP_DOWN
    assert leader.turn().move is Move.ACQUIRE
    assert leader.may_act()

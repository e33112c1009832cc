"""A gpuwarden that ends in the middle of a step, at each of them: the next one finds what was begun, and ends it.

The process is killed from outside, at the request that the step is: before it reaches the API server, or when the
server has done it and the answer is on its way.
"""

from collections.abc import Callable, Mapping, Sequence

from daemon.ledger import EntryKind
from remediation.objects import STAGE, TAINT_KEY
from tests.endtoend.acts import ours_on, running, unbound
from tests.endtoend.link import Asked, Matches, Moment, Trip
from tests.endtoend.site import USER, Site
from tests.endtoend.stories import (
    CREW,
    FOREIGN,
    Replica,
    assert_given_back,
    assert_one_at_a_time,
    budgets_watched,
    crews,
    free_lease,
    make_room,
    replica,
    writes,
)
from tests.testbed.waiting import until

#: Orders never get too old to be dangerous.
_LIMITS = {"max_unavailable_share": 1.0, "max_unavailable_share_of_pool": 1.0, "max_snapshot_age": "1h"}
POLICY = unbound(limits=_LIMITS)
#: Events of a node that is taken out.
TOLD = {"GPUWardenCordoned", "GPUWardenDraining", "GPUWardenQuarantined"}

Step = Callable[[str], Matches]


def marks(stage: str | None) -> Step:
    """The patch that brings a node to this stage; None is the one that gives it back."""

    def step(node: str) -> Matches:
        def matches(asked: Asked, _before: Sequence[Asked]) -> bool:
            annotations = asked.body.get("metadata", {}).get("annotations") or {}
            is_patch = str(asked) == f"PATCH /api/v1/nodes/{node}"
            return is_patch and STAGE in annotations and annotations[STAGE] == stage

        return matches

    return step


def reads_back(stage: str | None) -> Step:
    """The first read of the node after that patch."""

    def step(node: str) -> Matches:
        is_patch = marks(stage)(node)
        return lambda asked, before: (
            str(asked) == f"GET /api/v1/nodes/{node}" and any(is_patch(one, ()) for one in before)
        )

    return step


def tells(reason: str) -> Step:
    """An Event about the node."""
    return lambda node: (
        lambda asked, _before: asked.body.get("reason") == reason and asked.body["involvedObject"]["name"] == node
    )


def shows(status: str) -> Step:
    """The patch of the condition GPUHealthy."""
    return lambda node: (
        lambda asked, _before: (
            str(asked) == f"PATCH /api/v1/nodes/{node}/status"
            and asked.body["status"]["conditions"][0]["status"] == status
        )
    )


def evicts(number: int, *, dry_run: bool = False) -> Step:
    """The n-th eviction of the node's crew in one process."""

    def step(node: str) -> Matches:
        def is_one(asked: Asked) -> bool:
            is_eviction = asked.path.startswith(f"/api/v1/namespaces/{node}/pods/") and asked.path.endswith("/eviction")
            return is_eviction and ("dryRun" in asked.query) is dry_run

        return lambda asked, before: is_one(asked) and sum(map(is_one, before)) >= number - 1

    return step


def renews(_node: str) -> Matches:
    """A renewal of the lease while the node is being taken out."""
    return lambda asked, _before: str(asked) == RENEWAL


RENEWAL = "PATCH /apis/coordination.k8s.io/v1/namespaces/gpuwarden/leases/gpuwarden"
BEFORE, AFTER = Moment.BEFORE, Moment.AFTER
#: One list a node: it is killed at each of these in turn.
GOING_OUT: list[list[tuple[Step, Moment]]] = [
    [
        (marks("draining"), BEFORE),
        (evicts(1, dry_run=True), BEFORE),
        (evicts(CREW), BEFORE),
        (marks("quarantined"), BEFORE),
    ],
    [(marks("draining"), AFTER), (evicts(1), BEFORE), (marks("quarantined"), AFTER)],
    [
        (reads_back("draining"), BEFORE),
        (evicts(1), AFTER),
        (reads_back("quarantined"), BEFORE),
        (tells("GPUWardenQuarantined"), BEFORE),
    ],
    [
        (tells("GPUWardenCordoned"), BEFORE),
        (shows("False"), BEFORE),
        (shows("False"), AFTER),
        (tells("GPUWardenDraining"), BEFORE),
    ],
    [(renews, BEFORE), (renews, AFTER)],
]
COMING_BACK: list[list[tuple[Step, Moment]]] = [
    [(marks(None), BEFORE), (reads_back(None), BEFORE)],
    [(marks(None), AFTER)],
    [(tells("GPUWardenReleased"), BEFORE)],
    [(shows("True"), BEFORE)],
]


def die_in_turn(
    replicas: Sequence[Replica], cause: Callable[[str], object], steps_of: Mapping[str, Sequence[tuple[Step, Moment]]]
) -> None:
    """Node by node, cause something there, and end whichever leads at each of the steps that follow from it.

    Its lease is freed, unless the step is about that, and it is started again, to stand by.
    """
    for node, steps in steps_of.items():
        for number, (step, moment) in enumerate(steps):
            trip = Trip(step(node), moment)
            for one in replicas:
                one.link.trip = trip
            if number == 0:
                cause(node)
            until(f"killed {moment} step {number + 1} on {node}", trip.happened.is_set, within_s=90)
            if step is not renews:
                free_lease(replicas[0].site)
            next(one for one in replicas if one.link is trip.link).start()


def test_killed_at_any_step_the_next_one_ends_what_was_begun(site: Site) -> None:
    homes, spares = site.nodes[: len(GOING_OUT)], site.nodes[-2:]
    crews(site, homes, spares)
    for name in homes:
        site.admin.patch("Node", name, {"spec": {"taints": [FOREIGN]}})
    with replica(site, "a", POLICY) as one, replica(site, "b", POLICY) as other, budgets_watched(site, homes):
        both = (one, other)
        for warden in both:
            warden.start()
        until("one watches and leads", lambda: any(warden.leads() for warden in both), within_s=90)
        die_in_turn(both, site.xid, dict(zip(homes, GOING_OUT, strict=True)))
        for name in homes:
            is_out(site, name)
        die_in_turn(both, site.boots, dict(zip(homes, COMING_BACK, strict=False)))
        for name in homes[len(COMING_BACK) :]:
            site.boots(name)
        for name in homes:
            is_back(site, name)
    for name in homes:
        assert_given_back(site, name)
        assert FOREIGN["key"] in site.taints(name)
        assert len(site.explain(name)["closed"]) == 1
    assert {(one.verb, one.resource) for one in writes(site)} == {
        ("patch", "nodes"), ("patch", "nodes/status"), ("create", "pods/eviction"),
    }  # fmt: skip
    assert_one_at_a_time(site)


def is_out(site: Site, name: str) -> None:
    """Wait until a node is out of service, and all of it is told."""
    until(f"{name} quarantined", lambda: site.stage(name) == "quarantined", within_s=90)
    until("it is told", lambda: site.events(name) >= TOLD, within_s=30)
    until("it is shown", lambda: site.condition(name) == "False", within_s=30)
    assert not site.pods_on(name)
    assert {TAINT_KEY, FOREIGN["key"]} <= site.taints(name)


def is_back(site: Site, name: str) -> None:
    """Wait until a node is back in service, and all of it is told."""
    until(f"{name} given back", lambda: not ours_on(site, name), within_s=90)
    until("it is told", lambda: "GPUWardenReleased" in site.events(name), within_s=30)
    until("it is shown", lambda: site.condition(name) == "True", within_s=30)
    until("it is written down", lambda: ("release", "done") in site.outcomes(name), within_s=30)


def test_a_frozen_leader_that_wakes_up_leaves_it_to_the_one_that_took_over(site: Site) -> None:
    home, other_home, spares = site.nodes[0], site.nodes[1], site.nodes[-2:]
    crews(site, [home, other_home], spares, min_available=2)
    make_room(site, other_home)
    with replica(site, "a", POLICY) as frozen, replica(site, "b", POLICY) as awake:
        frozen.start()
        until("it watches and leads", frozen.leads, within_s=90)
        until("all is well", lambda: all(site.condition(name) == "True" for name in site.nodes), within_s=60)
        awake.start()
        until("the other one stands by", awake.stands_by, within_s=90)
        frozen.link.act = frozen.freeze
        frozen.link.trip = Trip(evicts(1)(home), AFTER)
        site.xid(home)
        until("frozen at its first eviction", frozen.link.trip.happened.is_set, within_s=90)
        mark = site.plane.audit_mark()
        until("the other one leads", awake.leads, within_s=60)
        until("the drain waits for room", lambda: len(running(site, home, home)) == CREW - 1, within_s=60)
        make_room(site, home)
        until("quarantined", lambda: site.stage(home) == "quarantined", within_s=90)
        site.boots(home)
        until("given back", lambda: not ours_on(site, home), within_s=90)
        site.xid(other_home)
        until("quarantined", lambda: site.stage(other_home) == "quarantined", within_s=90)

        frozen.daemon.thaw()
        until("it stands by", frozen.stands_by, within_s=60)
        three_ticks(awake)
        assert {one.user_agent for one in site.plane.audit_events(mark, USER) if one.is_write} == {awake.name}
        assert len(site.entries(EntryKind.RUN_STARTED)) == 2
        assert "failed" not in frozen.daemon.said()

        # what it ordered and showed in its first term is from before all this
        awake.link.trip = Trip(shows("True")(other_home), BEFORE)
        site.boots(other_home)
        until("killed before it is shown", awake.link.trip.happened.is_set, within_s=90)
        with site.telemetry.silent():
            frozen.link.passed.clear()
            until("it leads again", lambda: [str(one) for one in frozen.link.passed].count(RENEWAL) > 4, within_s=60)
        until("it is shown", lambda: site.condition(other_home) == "True", within_s=60)
        until("given back", lambda: not ours_on(site, other_home), within_s=90)
        three_ticks(frozen)
    for name in (home, other_home):
        assert_given_back(site, name)
    assert_one_at_a_time(site)


def three_ticks(of: Replica) -> None:
    """Time enough for whatever it would do now."""
    begun = of.daemon.metric("gpuwarden_ticks_total")
    until("three more ticks", lambda: of.daemon.metric("gpuwarden_ticks_total") >= begun + 3, within_s=60)

"""Two gpuwardens on one cluster and one ledger: one acts, the other waits, and goes on where the first ends."""

from daemon.ledger import EntryKind
from tests.endtoend.acts import ours_on, running, unbound
from tests.endtoend.site import USER, Site
from tests.endtoend.stories import (
    Replica,
    assert_given_back,
    assert_one_at_a_time,
    crews,
    make_room,
    replica,
)
from tests.testbed.waiting import until

POLICY = unbound()


def test_one_of_two_acts_and_the_other_ends_what_it_began(site: Site) -> None:
    home, spares = site.nodes[0], site.nodes[-2:]
    crews(site, [home], spares, min_available=2)
    with replica(site, "a", POLICY) as a, replica(site, "b", POLICY) as b:
        for one in (a, b):
            one.start()
        first, second = until("one leads, one stands by", lambda: in_order(a, b), within_s=90)
        site.xid(home)
        until("the drain waits for room", lambda: len(running(site, home, home)) == 2 and site.is_cordoned(home), 90)
        assert second.stands_by()
        assert asked_to_change(site) == {first.name}
        assert len(site.entries(EntryKind.RUN_STARTED)) == 1

        first.daemon.end()
        assert first.daemon.process.returncode == 0
        until("the other leads", second.leads, within_s=60)
        make_room(site, home)
        until("quarantined", lambda: site.stage(home) == "quarantined", within_s=90)
        assert not running(site, home, home)

        first.start()
        until("the first stands by", first.stands_by, within_s=60)
        site.boots(home)
        until("given back", lambda: not ours_on(site, home), within_s=90)
        until("it is written down", lambda: ("release", "done") in site.outcomes(home), within_s=30)
        until("it is shown", lambda: site.condition(home) == "True", within_s=60)
        assert first.stands_by()
        assert second.leads()
        assert len(site.entries(EntryKind.RUN_STARTED)) == 2
    assert_given_back(site, home)
    assert_one_at_a_time(site)


def in_order(a: Replica, b: Replica) -> tuple[Replica, Replica] | None:
    """The one that leads and the one that stands by; None while it is not decided."""
    both = next(((one, two) for one, two in ((a, b), (b, a)) if one.leads()), None)
    return both if both is not None and both[1].stands_by() else None


def asked_to_change(site: Site) -> set[str]:
    """Who has asked to change anything but the lease."""
    asked = site.plane.audit_events(site.audit_from, USER)
    return {one.user_agent for one in asked if one.is_write and one.resource != "leases"}

"""gpuwarden's role is taken away for a while, or an API server that has just started does not know it yet."""

from tests.endtoend.acts import ours_on, unbound
from tests.endtoend.site import USER, Site
from tests.endtoend.stories import CREW, assert_given_back, crews
from tests.testbed.waiting import until

BINDING = "gpuwarden-act"


def test_what_is_forbidden_is_tried_again_and_counts_as_one_attempt(site: Site) -> None:
    home, spares = site.nodes[0], site.nodes[-2:]
    crews(site, [home], spares)
    site.start(policy=unbound())
    until("all is well", lambda: all(site.condition(name) == "True" for name in site.nodes), within_s=60)
    binding = site.admin.get("ClusterRoleBinding", BINDING)
    site.admin.delete("ClusterRoleBinding", BINDING)
    site.xid(home)
    until("refused several times", lambda: refusals(site) >= 5, within_s=90)
    assert not ours_on(site, home)
    assert len(site.pods_on(home)) == CREW
    told = site.explain(home)
    assert {(one["action"], one["ending"]) for one in told["attempts"]} == {
        ("no_new_work", "pending"), ("cordon", "pending"),
    }  # fmt: skip

    site.admin.create(binding | {"metadata": {"name": BINDING}})
    until("quarantined", lambda: site.stage(home) == "quarantined", within_s=120)
    until("it is shown", lambda: site.condition(home) == "False", within_s=120)
    site.boots(home)
    until("given back", lambda: not ours_on(site, home), within_s=90)
    until("it is shown", lambda: site.condition(home) == "True", within_s=60)
    until("it is written down", lambda: ("release", "done") in site.outcomes(home), within_s=30)
    assert_given_back(site, home)


def refusals(site: Site) -> int:
    """How often a look at a node, before a change of it, was refused."""
    asked = site.plane.audit_events(site.audit_from, USER)
    return sum((one.verb, one.resource, one.code) == ("get", "nodes", 403) for one in asked)

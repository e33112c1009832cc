"""A node comes back in stages: soak, probation, full service; a fault within its probation sends it to service."""

from remediation.objects import PROBATION, SERVICE, TAINT_KEY
from tests.endtoend.acts import (
    decision,
    explained,
    given_back,
    is_out,
    ours_on,
    quarantined,
    reason,
    soon,
    start,
    stopped_by,
    ticks,
)
from tests.endtoend.site import Site

STAGED = {"comeback": {"soak": "4s", "probation": "15s"}}
FOREIGN = {"key": "site.example/batch", "value": "x", "effect": "PreferNoSchedule"}


def on_probation(site: Site, name: str) -> bool:
    """Whether a node is open to work, with our taint that prefers others, and the label for those who seek it."""
    found = site.node(name)
    taints = {(taint["key"], taint["effect"]) for taint in found["spec"].get("taints", ())}
    return (
        (PROBATION, "PreferNoSchedule") in taints
        and found["metadata"]["labels"].get(PROBATION) == "true"
        and site.stage(name) == "probation"
        and TAINT_KEY not in site.taints(name)
        and not site.is_cordoned(name)
    )


def test_a_node_comes_back_by_way_of_probation(site: Site) -> None:
    sick = site.nodes[0]
    site.admin.patch("Node", sick, {"spec": {"taints": [FOREIGN]}})
    start(site, policy=STAGED)
    site.xid(sick)
    soon("quarantined", lambda: quarantined(site, sick))
    site.boots(sick)
    soon("it soaks", lambda: stopped_by(_of_release(site, sick)) == {"soak"})
    assert is_out(site, sick)
    soon("on probation", lambda: on_probation(site, sick))
    assert FOREIGN["key"] in site.taints(sick)
    assert site.condition(sick) == "True"
    soon("in full service", lambda: given_back(site, sick))
    assert not ours_on(site, sick)
    assert PROBATION not in site.node(sick)["metadata"]["labels"]
    assert FOREIGN["key"] in site.taints(sick)
    assert [(one["action"], one["ending"]) for one in explained(site, sick)["attempts"][-2:]] == [
        ("release", "done")
    ] * 2


def test_a_fault_within_its_probation_sends_a_node_to_service_until_a_person_gives_it_back(site: Site) -> None:
    sick = site.nodes[0]
    start(site, policy={"comeback": {"probation": "10m"}})
    site.xid(sick)
    soon("quarantined", lambda: quarantined(site, sick))
    site.boots(sick)
    soon("on probation", lambda: on_probation(site, sick))
    site.xid(sick, gpu=3)
    soon("quarantined again", lambda: quarantined(site, sick))
    told = decision(site, sick)
    assert "within its probation" in told["plan"]["reason"]
    assert told["plan"]["action"] == "quarantine"
    assert SERVICE in ours_on(site, sick)
    assert PROBATION not in site.taints(sick) | site.node(sick)["metadata"]["labels"].keys()
    site.boots(sick)  # a reboot mends nothing now
    soon("it waits for a person", lambda: "service_done" in stopped_by(_of_release(site, sick)))
    ticks(site, 3)
    assert is_out(site, sick)
    assert "gpuwarden release" in reason(_of_release(site, sick), "service_done")
    site.command("release", sick, "--by", "erin", "--why", "board replaced")
    soon("given back", lambda: given_back(site, sick))
    assert not ours_on(site, sick)


def _of_release(site: Site, name: str) -> dict | None:
    """The newest decision about giving a node back; None where there is none."""
    found = [one.body for one in site.decisions(name) if one.body["plan"]["action"] == "release"]
    return dict(found[-1]) if found else None

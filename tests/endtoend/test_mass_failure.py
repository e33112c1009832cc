"""Many nodes fail at once, and how far gpuwarden goes by itself then: limits, common causes, the breaker, the modes."""

from typing import Any

from daemon.ledger import EntryKind
from remediation.people import Word
from rules.vocabulary import Action
from tests.endtoend.acts import (
    book_of,
    decision,
    endings,
    explained,
    given_back,
    incident_of,
    is_out,
    newest,
    ours_on,
    out_of,
    quarantined,
    reason,
    requests,
    say,
    soon,
    start,
    stopped_by,
    ticks,
    unbound,
    waits_for,
)
from tests.endtoend.site import USER, Site

LIMITED = unbound(limits={"max_unavailable_share": 0.2, "max_unavailable_share_of_pool": 0.2})
MARKS = ["no_new_work", "cordon"]


def test_the_same_fault_on_four_of_ten_nodes_is_one_cause_and_a_persons_matter(site: Site) -> None:
    start(site)
    sick = site.nodes[:4]
    for name in sick:
        site.xid(name)

    def is_held() -> bool:
        entries = site.entries(EntryKind.DECISION)
        return any("common_cause" in stopped_by(one.body) for one in entries)

    soon("held as one cause", is_held)
    opened = site.entries(EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_CHANGED)
    fleet = next(one for one in reversed(opened) if set(one.body["nodes"]) == set(sick))
    ticks(site, 2)

    assert len(out_of(site, site.nodes)) <= 2  # those that were heard of before there were enough of them
    for name in sick:
        told = explained(site, name)
        about = next(one for one in told["decisions"] if one["plan"]["incident"] == fleet.incident)
        assert (about["ruling"], about["allowed"]) == ("ask", [])
        assert "4 nodes" in reason(about, "common_cause")


def test_no_more_nodes_go_than_the_limit_and_a_persons_word_decides_who_comes_next(site: Site) -> None:
    start(site, policy=LIMITED)
    sick = site.nodes[1:5]  # those whose exporters give PCI addresses
    for name in sick:
        site.xid(name)
    soon("two are quarantined", lambda: sum(site.stage(name) == "quarantined" for name in sick) == 2)
    first = {name for name in sick if site.stage(name)}
    later, last = sorted(set(sick) - first)
    soon("the others wait", lambda: all(waits_for(site, name, "blast_radius") for name in (later, last)))

    for name in (later, last):
        told = explained(site, name)
        assert not ours_on(site, name)
        assert told["attempts"] == []
        assert [gpu["state"] for gpu in told["gpus"]].count("failed") == 1
        (about,) = told["decisions"]
        assert (about["ruling"], about["allowed"]) == ("wait", [])
        assert stopped_by(about) == {"blast_radius", "pool_limit"}
        assert "limit 2" in reason(about, "blast_radius")

    rejected = incident_of(site, last)
    say(site, Word.HOLD, later)
    say(site, Word.REJECT, last, [rejected])
    soon("the words are heard", lambda: waits_for(site, later, "on_hold") and waits_for(site, last, "rejected"))
    back = min(first)
    site.boots(back)
    soon("one is given back", lambda: given_back(site, back))
    soon("there is room", lambda: "blast_radius" not in stopped_by(newest(site, later)))
    ticks(site, 2)
    assert out_of(site, site.nodes) == first - {back}
    told = explained(site, later)
    assert [(one["word"], one["by"]) for one in told["words"]] == [("hold", "erin")]
    assert stopped_by(decision(site, last)) == {"rejected"}
    assert newest(site, last)["ruling"] == "refuse"

    say(site, Word.RESUME, later)
    soon("the next one goes", lambda: quarantined(site, later))
    assert out_of(site, site.nodes) == first - {back} | {later}
    assert not requests(site, "patch", "nodes", last)


def test_an_open_breaker_holds_further_nodes_over_a_restart_until_a_person_closes_it(site: Site) -> None:
    policy = unbound(breaker={"min_nodes": 2, "share": 0.01, "window": "10m"})
    daemon = start(site, policy=policy)
    first, second, healed, third = site.nodes[:4]
    site.xid(first)
    soon("the first is quarantined", lambda: quarantined(site, first))
    site.xid(second)
    soon("the second is out", lambda: is_out(site, second))
    soon("open", lambda: daemon.metric("gpuwarden_breaker_open") == 1)
    site.xid(healed)
    site.xid(third)
    soon("held", lambda: all(waits_for(site, name, "breaker") for name in (healed, third)))

    site.boots(healed)  # while nobody may act, its fault ends by itself
    site.boots(first)
    soon("a release goes on", lambda: given_back(site, first))
    soon("nothing is wrong any more", lambda: decision(site, healed) is None)
    assert endings(explained(site, first))["release"] == "done"
    assert not site.is_cordoned(first)

    daemon.end()
    daemon = start(site, policy=policy)
    soon("still held", lambda: daemon.metric("gpuwarden_breaker_open") == 1)
    assert "the circuit breaker is open" in daemon.readiness()
    told = explained(site, third)
    assert told["attempts"] == []
    assert told["breaker"]["open_since"]
    (about,) = told["decisions"]
    assert (about["ruling"], about["allowed"], stopped_by(about)) == ("ask", [], {"breaker"})
    assert f"2 of 10 nodes were taken out within 600 s, limit 2: {first}, {second}" in reason(about, "breaker")
    assert out_of(site, site.nodes) == {second}

    say(site, Word.RESET_BREAKER)
    soon("what is wrong is acted on", lambda: quarantined(site, third))
    soon("what was begun is finished", lambda: quarantined(site, second))
    assert daemon.metric("gpuwarden_breaker_open") == 0
    assert out_of(site, site.nodes) == {second, third}
    assert not requests(site, "patch", "nodes", healed)
    breaker = explained(site, third)["breaker"]
    assert (breaker["open_since"], "closed by erin" in breaker["reason"]) == (None, True)


def test_observe_decides_what_auto_does_and_writes_nothing_and_approve_waits_for_a_person(site: Site) -> None:
    """The same fault three times on the same site: watched only, then with a person's leave, then on its own."""
    sick = site.nodes[6]
    watched = decided(site, "observe", sick)
    ticks(site, 2)
    site.daemons[-1].end()
    asked = site.plane.audit_events(site.audit_from, USER)
    assert asked
    assert [one for one in asked if one.is_write or one.dry_run] == []

    proposed = decided(site, "approve", sick)
    ticks(site, 2)
    assert not ours_on(site, sick)
    assert not requests(site, "patch", "nodes")
    assert site.entries(EntryKind.ATTEMPT) == []
    what_a_person_lets_be_done_is_done(site, sick)
    site.daemons[-1].end()

    acted = decided(site, "auto", sick)
    soon("it acts", lambda: quarantined(site, sick))
    assert watched == proposed == acted
    assert acted["ruling"] == "act"


def decided(site: Site, mode: str, sick: str) -> Any:
    """Start in this mode, with a record of its own but in approve; what is decided first about a lost GPU."""
    name = "ledger" if mode == "approve" else mode
    start(site, mode, mode=mode, ledger={"url": f"sqlite:///{site.folder / name}.db"})
    site.xid(sick)
    return soon(f"{mode} decides", lambda: first_decision(site, name))


def first_decision(site: Site, name: str) -> Any:
    """What it says, but for who would carry it out and what differs between any two times."""
    with book_of(site, name) as ledger:
        found = next(ledger.entries(kind=EntryKind.DECISION, limit=1), None)
    if found is None:
        return None
    body = found.body
    return {
        "ruling": body["ruling"],
        "allowed": body["allowed"],
        "gates": [(gate["name"], gate["passed"]) for gate in body["gates"]],
        "plan": {name: value for name, value in body["plan"].items() if name != "incident"},
    }


def what_a_person_lets_be_done_is_done(site: Site, sick: str) -> None:
    """A part of it, then the rest, and at last giving the node back: each when it is approved, and no more."""
    incident = incident_of(site, sick)
    some = (Action.NO_NEW_WORK, Action.CORDON)
    say(site, Word.APPROVE, sick, [incident], actions=some)
    soon("what was approved is done", lambda: is_out(site, sick))
    ticks(site, 2)
    assert site.stage(sick) == "cordoned"
    assert site.outcomes(sick) == [(action, "done") for action in MARKS]

    say(site, Word.APPROVE, sick, [incident], actions=(*some, Action.DRAIN, Action.QUARANTINE))
    soon("the rest is done", lambda: quarantined(site, sick))
    site.boots(sick)
    soon("its release is decided", lambda: newest(site, sick)["plan"]["action"] == "release")
    soon("and can be", lambda: newest(site, sick)["ruling"] == "act")
    assert site.stage(sick) == "quarantined"
    say(site, Word.APPROVE, sick, [incident], actions=(Action.RELEASE,))
    soon("given back", lambda: given_back(site, sick))
    assert [one[0] for one in site.outcomes(sick)] == [*MARKS, "drain", "quarantine", "release"]
    assert not site.is_cordoned(sick)

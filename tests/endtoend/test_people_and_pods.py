"""A person steps in while a node is drained, and pods that do not go: what gpuwarden does is what they say."""

from daemon.ledger import EntryKind
from remediation.drain import DRAIN_DEADLINE, DRAIN_MODE
from remediation.objects import INCIDENT, TAINT_KEY
from remediation.people import Word
from tests.endtoend.acts import (
    decision,
    endings,
    evicted,
    explained,
    incident_of,
    is_out,
    ours_on,
    put_on,
    quarantined,
    reason,
    requests,
    running,
    say,
    soon,
    start,
    stopped_by,
    ticks,
    unbound,
    waits_for,
    words,
)
from tests.endtoend.site import Site
from tests.testbed.api import Object
from tests.testbed.manifests import COMPLETES_AFTER, budget, deployment, job

SPACE = "train"
#: A pod that a drain waits for, until its deadline is moved.
WAITS = {DRAIN_MODE: "evict_after_deadline", DRAIN_DEADLINE: "1h"}


def at(node: str) -> Object:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def hurry(site: Site, node: str) -> None:
    """The deadline of all pods there has come."""
    for name in running(site, node, SPACE):
        site.admin.patch("Pod", name, {"metadata": {"annotations": {DRAIN_DEADLINE: "1s"}}}, SPACE)


def test_who_takes_our_marks_off_is_obeyed_and_a_persons_own_cordon_is_theirs(site: Site) -> None:
    opened, untainted, theirs = site.nodes[:3]
    site.plane.namespace(SPACE)
    for name in (opened, untainted, theirs):
        site.admin.create(deployment(f"on-{name}", SPACE, annotations=WAITS, **at(name)))
    soon("pods run", lambda: all(running(site, name, SPACE) for name in (opened, untainted, theirs)))
    site.admin.patch("Node", theirs, {"spec": {"unschedulable": True}})
    start(site, policy=unbound())
    for name in (opened, untainted, theirs):
        site.xid(name)
    soon("two drains wait for their pods", lambda: site.stage(opened) == site.stage(untainted) == "draining")
    soon("and are under way", lambda: all(_drains(site, name) for name in (opened, untainted)))
    soon("the third is not touched", lambda: waits_for(site, theirs, "ownership"))

    site.admin.patch("Node", opened, {"spec": {"unschedulable": False}})
    others = [taint for taint in site.node(untainted)["spec"]["taints"] if taint["key"] != TAINT_KEY]
    site.admin.patch("Node", untainted, {"spec": {"taints": others}})
    soon("our marks are gone", lambda: not ours_on(site, opened) and not ours_on(site, untainted))
    hurry(site, opened)
    hurry(site, untainted)
    ticks(site, 4)

    assert evicted(site) == []
    assert not site.is_cordoned(opened)
    assert site.is_cordoned(untainted)  # as the person left it
    for name, order in ((opened, "uncordoned"), (untainted, "untainted")):
        assert not ours_on(site, name)
        assert words(site, name) == ["release", "hold"]
        told = explained(site, name)
        assert {one["word"]: one["by"] for one in told["words"]} == dict.fromkeys(
            ("release", "hold"), "somebody in the cluster"
        )
        assert all(order in one["why"] for one in told["words"])
        assert endings(told) == {"no_new_work": "done", "cordon": "done", "drain": "failed"}
        assert order in told["attempts"][-1]["detail"]
        (about,) = told["decisions"]
        assert (about["ruling"], about["allowed"]) == ("refuse", [])
        assert {"rejected", "on_hold"} <= stopped_by(about)
        assert any(gpu["state"] == "failed" for gpu in told["gpus"])
        assert "GPUWardenOrderedOff" in site.events(name)

    a_new_fault_waits_for_the_end_of_the_hold(site, opened)

    told = explained(site, theirs)
    assert (told["attempts"], told["words"]) == ([], [])
    assert stopped_by(decision(site, theirs)) == {"ownership"}
    assert "cordoned by a person" in reason(decision(site, theirs), "ownership")
    site.boots(theirs)
    soon("its fault is over", lambda: decision(site, theirs) is None)
    ticks(site, 2)
    assert site.is_cordoned(theirs)
    assert running(site, theirs, SPACE)
    assert not ours_on(site, theirs)
    assert not requests(site, "patch", "nodes", theirs)


def _drains(site: Site, name: str) -> bool:
    return any(one.body["action"] == "drain" for one in site.entries(EntryKind.ATTEMPT, node=name))


def a_new_fault_waits_for_the_end_of_the_hold(site: Site, node: str) -> None:
    first = incident_of(site, node)
    site.xid(node, gpu=3)
    soon("another incident", lambda: incident_of(site, node) != first)
    second = incident_of(site, node)
    ticks(site, 2)
    about = {one["plan"]["incident"]: one for one in explained(site, node)["decisions"]}
    assert stopped_by(about[second]) == {"on_hold"}
    assert "until" in reason(about[second], "on_hold")
    assert not ours_on(site, node)

    say(site, Word.RESUME, node)
    soon("it is taken out for the new one", lambda: quarantined(site, node))
    assert site.node(node)["metadata"]["annotations"][INCIDENT] == second
    assert running(site, node, SPACE) == []
    assert len(evicted(site)) == 1


def test_a_budget_that_never_yields_and_a_job_that_ends_by_itself(site: Site) -> None:
    stuck, busy = site.nodes[4:6]
    never = budget("guarded", SPACE, minAvailable=2)
    free, *guarded = put_on(site, stuck, SPACE, deployment("guarded", SPACE, 2), deployment("free", SPACE), never)
    soon("the budget has counted", lambda: _budget(site)["currentHealthy"] == 2)
    site.plane.namespace("patient")
    site.admin.create(job("epoch", "patient", **at(busy)))
    soon("the job runs", lambda: running(site, busy, "patient"))
    (epoch,) = running(site, busy, "patient")
    start(
        site,
        policy=unbound(
            drain={"modes": {"patient": "wait_for_completion"}},
            limits={"attempt_timeout": "20s", "attempt_backoff": "2s", **unbound()["limits"]},
        ),
    )
    site.xid(stuck)
    site.xid(busy)

    soon("the free one is gone", lambda: running(site, stuck, SPACE) == guarded)
    soon("the budget is waited for", lambda: waits_for(site, stuck, "pdb_headroom"))
    mark = site.plane.audit_mark()
    soon("the drain is told as failed", lambda: ("drain", "failed") in site.outcomes(stuck))
    asked = [one for one in site.plane.audit_events(mark) if one.resource == "pods/eviction"]
    assert len(asked) <= 2
    assert is_out(site, stuck)
    assert running(site, stuck, SPACE) == guarded
    assert evicted(site) == [free]
    told = explained(site, stuck)
    assert endings(told) == {"no_new_work": "done", "cordon": "done", "drain": "failed"}
    assert "not empty after" in told["attempts"][-1]["detail"]
    assert "guarded" in told["attempts"][-1]["detail"]
    (about,) = told["decisions"]
    assert (about["ruling"], about["allowed"]) == ("wait", ["no_new_work", "checkpoint", "cordon"])
    assert f"{SPACE}/guarded needs 2 healthy pods and has 2" in reason(about, "pdb_headroom")
    soon("people are told", lambda: "GPUWardenDrainNeedsAPerson" in site.events(stuck))

    assert running(site, busy, "patient") == [epoch]
    assert endings(explained(site, busy))["drain"] == "pending"
    site.admin.patch("Pod", epoch, {"metadata": {"annotations": {COMPLETES_AFTER: "1"}}}, "patient")
    soon("the drain ends with the job", lambda: quarantined(site, busy))
    assert set(endings(explained(site, busy)).values()) == {"done"}
    assert site.admin.get("Job", "epoch", "patient")["status"]["succeeded"] == 1

    site.admin.patch("PodDisruptionBudget", "guarded", {"spec": {"minAvailable": 1}}, SPACE)
    soon("a budget that yields lets it go on", lambda: quarantined(site, stuck))
    assert set(evicted(site)) == {free, *guarded}
    assert [one for one in site.outcomes(stuck) if one[0] == "drain"] == [("drain", "failed"), ("drain", "done")]


def _budget(site: Site) -> Object:
    return {"currentHealthy": 0, **site.admin.get("PodDisruptionBudget", "guarded", SPACE).get("status", {})}

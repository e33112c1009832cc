"""The API server is away, busy, or breaks off: what was begun is finished later, and nothing wrong is done."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes.client import Configuration

from daemon.ledger import EntryKind
from remediation.drain import DRAIN_DEADLINE, DRAIN_MODE
from remediation.objects import MANAGED
from tests.cluster.proxy import Fault, FaultProxy
from tests.endtoend.acts import (
    decision,
    endings,
    evicted,
    explained,
    is_out,
    ours_on,
    put_on,
    quarantined,
    reason,
    requests,
    running,
    soon,
    start,
    stopped_by,
    ticks,
    unbound,
    waits_for,
)
from tests.endtoend.site import USER, Site
from tests.testbed.manifests import deployment

SPACE = "train"
THEIRS = {"key": "site.example/batch", "value": "x", "effect": "PreferNoSchedule"}
WHOLE = dict.fromkeys(("no_new_work", "cordon", "drain", "quarantine"), "done")


# ------------------------------------------------------------------------------------------------------------ an outage


def test_an_api_server_that_is_away_is_waited_for_and_the_story_goes_on(site: Site) -> None:
    """Away before the node is marked, and again while it is drained, until what was seen of the cluster is too old."""
    sick, other = site.nodes[1], site.nodes[8]
    later = {DRAIN_MODE: "evict_after_deadline", DRAIN_DEADLINE: "25s"}
    kept_off = {"affinity": _not_on(other)}  # else a replacement may land there, and be evicted a second time
    late, web = put_on(
        site,
        sick,
        SPACE,
        deployment("late", SPACE, annotations=later, **kept_off),
        deployment("web", SPACE, **kept_off),
    )
    daemon = start(site, policy=unbound(limits={**unbound()["limits"], "max_cluster_age": "41s"}))

    site.plane.api_server.stop()
    site.xid(sick)  # for some seconds, it counts as the leader still
    soon("it knows that it leads no more", lambda: daemon.metric("gpuwarden_leader") == 0)
    soon("the fault is decided about", lambda: waits_for(site, sick, "leadership"))
    told = explained(site, sick)
    assert [gpu["state"] for gpu in told["gpus"]].count("failed") == 1
    assert set(endings(told).values()) <= {"pending"}
    (about,) = told["decisions"]
    assert (about["ruling"], about["allowed"]) == ("wait", [])
    assert "does not hold the lease" in daemon.readiness()
    site.plane.start_api_server()
    soon(
        "the node is out, and who may go has gone", lambda: is_out(site, sick) and running(site, sick, SPACE) == [late]
    )
    soon("the other one is waited for", lambda: ("drain", "pending") in endings(explained(site, sick)).items())

    site.plane.api_server.pause()
    try:
        soon("it knows again", lambda: daemon.metric("gpuwarden_leader") == 0)
        site.xid(other)
        soon("that is decided about", lambda: waits_for(site, other, "leadership"))
        soon("what is known is too old", lambda: waits_for(site, other, "cluster_fresh", "leadership"))
        soon("and the pod's time has come", lambda: _drained_for(site, sick) > 27)
        told = explained(site, sick)
        assert endings(told)["drain"] == "pending"
        assert "no sign of life" in reason(decision(site, other), "cluster_fresh")
        assert explained(site, other)["attempts"] == []
        back = datetime.now(UTC)
    finally:
        site.plane.api_server.resume()
    soon("both are quarantined", lambda: quarantined(site, sick, other))
    for name in (sick, other):
        told = explained(site, name)
        assert endings(told) == WHOLE
        assert len(told["attempts"]) == len(WHOLE)
    assert evicted(site) == [web, late]
    asked = [one for one in site.plane.audit_events(site.audit_from, USER) if one.at > back and one.is_write]
    leads_at = min(one.at for one in asked if one.resource == "leases" and one.succeeded)
    assert [one for one in asked if one.resource in ("nodes", "pods/eviction") and one.at < leads_at] == []
    opened = site.entries(EntryKind.INCIDENT_OPENED)
    assert {one.node for one in opened} == {sick, other}


def _not_on(node: str) -> dict[str, Any]:
    """A pod's affinity that keeps it off a node."""
    elsewhere = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _drained_for(site: Site, node: str) -> float:
    """Seconds since the drain of a node began."""
    begun = next(one for one in site.entries(EntryKind.ATTEMPT, node=node) if one.body["action"] == "drain")
    return (datetime.now(UTC) - begun.at).total_seconds()


# ----------------------------------------------------------------------------------------------------- a busy server


class Busy(FaultProxy):
    """A proxy in front of the API server; `before` is called once, ahead of the first request that begins so."""

    def __init__(self, site: Site) -> None:
        config = yaml.safe_load(site.kubeconfig.read_text(encoding="utf-8"))
        cluster = config["clusters"][0]["cluster"]
        upstream = Configuration()
        upstream.host, upstream.ssl_ca_cert = cluster["server"], cluster["certificate-authority"]
        super().__init__(upstream)
        self.pool = urllib3.PoolManager(ca_certs=upstream.ssl_ca_cert, retries=False, maxsize=64)
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.server_address[1]}"}
        self.kubeconfig: Path = site.folder / "busy.kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(config), encoding="utf-8")
        self.kubeconfig.chmod(0o600)
        self.before: tuple[str, Any] = ("", None)

    def fault_for(self, request: str) -> Fault:
        start, call = self.before
        if call is not None and request.startswith(start):
            self.before = ("", None)
            call()
        return super().fault_for(request)


def status(code: int, why: str, **details: Any) -> Any:
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": why,
        "message": f"planned: {why}", "details": details,
    }  # fmt: skip


def throttled(*match: str, times: int = 1, after_s: int | None = None) -> Fault:
    headers = {} if after_s is None else {"Retry-After": str(after_s)}
    return Fault(match, times, 429, status(429, "TooManyRequests"), headers)


def broken(*match: str, times: int = 1) -> Fault:
    return Fault(match, times, 500, status(500, "InternalError"))


def conflict(*match: str, times: int = 1) -> Fault:
    return Fault(match, times, 409, status(409, "Conflict"))


def bad_watches(kind: str) -> list[Fault]:
    """A watch that breaks off in the middle of a line, one that says 410 in the stream, one that is refused so."""
    gone = status(410, "Expired")
    error = json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n"
    match = (f"GET {kind}?", "watch=true")
    return [
        Fault(match, 1, inject=b'{"type":"MODIFIED","object":{"kind":', cut=True),
        Fault(match, 1, inject=error, cut=True),
        Fault(match, 1, 410, gone),
        Fault(match, 1, inject=b'{"type":"ADDED"', cut=True),
    ]


@contextmanager
def somebody_writes(site: Site, node: str) -> Iterator[None]:
    """Somebody else keeps changing a node."""
    over = threading.Event()

    def write() -> None:
        count = 0
        while not over.wait(0.1):
            count += 1
            site.admin.patch("Node", node, {"metadata": {"annotations": {"site.example/beat": str(count)}}})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_server_that_throttles_breaks_off_and_refuses_delays_a_story_and_changes_nothing_in_it(site: Site) -> None:
    sick, opted_out = site.nodes[6], site.nodes[9]
    pods = put_on(site, sick, SPACE, deployment("web", SPACE, replicas=4))
    site.admin.patch("Node", sick, {"spec": {"taints": [THEIRS]}})
    with Busy(site) as busy:
        lists = [
            fault
            for kind in ("/api/v1/nodes", "/api/v1/pods", "/apis/policy/v1/poddisruptionbudgets")
            for fault in (
                throttled(f"GET {kind}?", "limit="), throttled(f"GET {kind}?", "limit=", after_s=1),
                broken(f"GET {kind}?", "limit="), *bad_watches(kind),
            )
        ]  # fmt: skip
        patch, get = f"PATCH /api/v1/nodes/{sick}?", f"GET /api/v1/nodes/{sick}"
        writes = [
            throttled(patch), broken(get), conflict(patch, times=2), throttled(patch, after_s=1),
            broken(patch, times=2), throttled(patch, after_s=12), throttled("POST", "/eviction", times=3),
            throttled("POST", "/eviction", after_s=2, times=3), broken("POST", "/eviction", times=3),
            broken("POST /api/v1/namespaces/default/events"), throttled(get, after_s=30),
        ]  # fmt: skip
        busy.plan(*lists, *writes)
        daemon = start(site, policy=unbound(), kubernetes={"kubeconfig": str(busy.kubeconfig)})
        with somebody_writes(site, sick):
            site.xid(sick)
            soon("quarantined all the same", lambda: quarantined(site, sick), within_s=240)
        soon("all of it has happened", lambda: not any(fault.times for fault in (*lists, *writes)))
        asked = [one for one in busy.asked if one.startswith("POST") and "/eviction" in one]

        def by_hand() -> None:
            site.admin.patch("Node", opted_out, {"metadata": {"labels": {MANAGED: "false"}}})

        busy.before = (f"GET /api/v1/nodes/{opted_out}", by_hand)
        site.xid(opted_out)
        soon("what the view knows not yet is seen", lambda: site.outcomes(opted_out))
        soon("and then known", lambda: waits_for(site, opted_out, "managed"))
        ticks(site, 2)
        assert daemon.metric("gpuwarden_leader") == 1
    assert {THEIRS["key"], "gpuwarden.io/quarantine"} <= site.taints(sick)
    assert site.is_cordoned(sick)
    assert running(site, sick, SPACE) == []
    assert sorted(evicted(site)) == pods
    assert len(asked) <= 60  # 4 pods, a rehearsal, 9 refusals, and some for pods of which the view does not know yet
    told = explained(site, sick)
    assert endings(told) == WHOLE
    assert len(told["attempts"]) == len(WHOLE)

    assert not ours_on(site, opted_out)
    assert not [one for one in requests(site, "patch", "nodes", opted_out) if one.succeeded]
    told = explained(site, opted_out)
    assert endings(told) == {"no_new_work": "failed", "cordon": "failed"}
    assert f"{MANAGED}=false" in told["attempts"][0]["detail"]
    (about,) = told["decisions"]
    assert about["ruling"] == "refuse"
    assert "managed" in stopped_by(about)

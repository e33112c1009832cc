"""Diagnosis, reset and reboot as Jobs on a real control plane: what they find decides, and nothing runs twice."""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from daemon.ledger import EntryKind
from remediation.objects import SERVICE
from tests.endtoend.acts import (
    decision,
    explained,
    given_back,
    is_out,
    ours_on,
    quarantined,
    reason,
    requests,
    soon,
    start,
    stopped_by,
    ticks,
    unbound,
)
from tests.endtoend.link import Moment, Trip
from tests.endtoend.site import NAMESPACE, USER, Site
from tests.endtoend.stories import free_lease, replica
from tests.endtoend.test_lost_gpu import verbs_shipped
from tests.endtoend.test_probation import on_probation
from tests.testbed.api import Object

#: A fault that a reset mends, and one that asks for a look.
NEEDS_RESET, FELL_OFF = 62, 79


_BOTH = ["Running", "Running"]


def operation(after_s: int = 1, code: int = 0, says: str = "", **more: Any) -> dict[str, Any]:
    """An operation whose program ends after so long, with this exit code and these last words."""
    played = {
        "testbed.gpuwarden.io/completes-after": str(after_s),
        "testbed.gpuwarden.io/exit-code": str(code),
        "testbed.gpuwarden.io/says": says,
    }
    spec = {"containers": [{"name": "work", "image": "example/work:1"}]}
    template = {"metadata": {"annotations": played}, "spec": spec}
    return {"enabled": True, "timeout": "60s", "failed": [205], "template": template, **more}


def operations(site: Site, node: str) -> list[Mapping[str, Any]]:
    """The newest state of each operation on a node, in the order in which they began."""
    newest: dict[str, Mapping[str, Any]] = {}
    for entry in site.entries(EntryKind.OPERATION, node=node):
        newest[str(entry.body["id"])] = entry.body
    return list(newest.values())


def jobs(site: Site) -> list[Object]:
    """The Jobs of operations that the API server has."""
    return site.admin.list("Job", NAMESPACE)


def of_release(site: Site, name: str) -> Any:
    """The newest decision about giving a node back; None where there is none."""
    found = [one.body for one in site.decisions(name) if one.body["plan"]["action"] == "release"]
    return dict(found[-1]) if found else None


def reboots(site: Site, name: str) -> None:
    """The machine comes up again: its kubelet tells another boot id, its log another one too."""
    site.admin.patch_status("Node", name, {"nodeInfo": {"bootID": str(uuid.uuid4())}})
    site.boots(name)


def test_a_node_comes_back_by_way_of_diagnosis_soak_and_probation(site: Site) -> None:
    sick = site.nodes[0]
    staged = {"soak": "4s", "probation": "8s"}
    start(site, policy={"comeback": staged, "operations": {"diagnose": operation(2, says="all tests passed")}})
    site.xid(sick)
    soon("quarantined", lambda: quarantined(site, sick))
    assert jobs(site) == []  # nothing is diagnosed while the fault is open: its ladder has no such step
    site.boots(sick)
    soon("diagnosed", lambda: [one["result"] for one in operations(site, sick)] == ["passed"])
    (made,) = operations(site, sick)
    assert (made["exit_code"], made["message"]) == (0, "all tests passed")
    soon("on probation", lambda: on_probation(site, sick))
    soon("in full service", lambda: given_back(site, sick))
    (job,) = jobs(site)
    assert job["metadata"]["name"] == made["id"]
    pods = [one for one in site.admin.list("Pod", NAMESPACE) if one["spec"].get("nodeName")]
    assert [one["spec"]["nodeName"] for one in pods] == [sick]
    told = [(one["action"], one["ending"]) for one in explained(site, sick)["attempts"]]
    assert told[-3:] == [("diagnose", "done"), ("release", "done"), ("release", "done")]
    diagnosed = datetime.fromisoformat(made["at"])
    back = next(one for one in site.entries(EntryKind.ATTEMPT, node=sick) if one.body["action"] == "release")
    assert (back.at - diagnosed.astimezone(UTC)).total_seconds() >= 4  # the soak counts from the diagnosis
    assert {"GPUWardenDiagnoseBegins", "GPUWardenDiagnosePassed"} <= site.events(sick)


def test_a_node_that_fails_its_diagnosis_stays_out_until_a_person_gives_it_back(site: Site) -> None:
    sick = site.nodes[0]
    start(site, policy={"operations": {"diagnose": operation(1, 205, "GPU 3: bad memory", max_attempts=3)}})
    site.xid(sick)
    soon("quarantined", lambda: quarantined(site, sick))
    site.boots(sick)
    soon("it waits for a person", lambda: "diagnosis_passed" in stopped_by(of_release(site, sick)))
    ticks(site, 3)
    assert len(operations(site, sick)) == 1  # what a diagnosis has found is not asked again
    assert is_out(site, sick)
    why = reason(of_release(site, sick), "diagnosis_passed")
    assert "exit code 205: GPU 3: bad memory" in why
    assert f"gpuwarden release {sick}" in why
    site.command("release", sick, "--by", "erin", "--why", "board replaced")
    soon("given back", lambda: given_back(site, sick))


def test_a_diagnosis_that_could_not_be_made_is_tried_again_and_then_up_to_people(site: Site) -> None:
    sick = site.nodes[0]
    policy = {
        "operations": {"diagnose": operation(1, 127, "no such program", max_attempts=2)},
        "limits": {"max_unavailable_share": 0.2, "attempt_backoff": "2s"},
    }
    start(site, policy=policy)
    site.xid(sick)
    soon("quarantined", lambda: quarantined(site, sick))
    site.boots(sick)
    soon("it waits for a person", lambda: "diagnosis_passed" in stopped_by(of_release(site, sick)))
    assert [one["result"] for one in operations(site, sick)] == ["unknown"] * 2
    assert is_out(site, sick)
    assert SERVICE not in ours_on(site, sick)  # nothing was found


def test_a_fault_that_a_reset_mends_is_over_once_the_gpu_was_reset(site: Site) -> None:
    sick = site.nodes[0]
    start(site, policy={"operations": {"reset_gpu": operation(2, says="reset")}})
    site.xid(sick, NEEDS_RESET)
    soon("it was reset", lambda: [one["result"] for one in operations(site, sick)] == ["passed"])
    soon("given back", lambda: given_back(site, sick))
    (job,) = jobs(site)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one["value"] for one in container["env"]}
    opened = next(iter(site.entries(EntryKind.INCIDENT_OPENED, node=sick)))
    assert env["GPUWARDEN_GPUS"].split(",") == opened.body["gpu_uuids"]
    drained = next(one for one in site.entries(EntryKind.OUTCOME, node=sick) if one.body["action"] == "drain")
    begun = next(one for one in site.entries(EntryKind.OPERATION, node=sick))
    assert begun.at >= drained.at


def test_a_node_is_rebooted_once_though_the_process_that_ordered_it_was_killed(site: Site) -> None:
    sick = site.nodes[0]
    rebooting = {"operations": {"reboot_node": operation(3600)}}
    daemon = start(site, policy=rebooting)
    site.xid(sick, FELL_OFF)
    soon("the reboot is ordered", lambda: jobs(site))
    daemon.kill()
    reboots(site, sick)  # while nobody looks
    start(site, policy=rebooting)
    soon("it knows", lambda: [one["result"] for one in operations(site, sick)] == ["passed"])
    soon("given back", lambda: given_back(site, sick))
    created = requests(site, "create", "jobs")
    assert len([one for one in created if one.succeeded]) == 1
    assert len(operations(site, sick)) == 1


def test_a_person_who_takes_the_node_back_ends_what_goes_on_there(site: Site) -> None:
    sick = site.nodes[0]
    start(site, policy={"operations": {"reboot_node": operation(3600)}})
    site.xid(sick, FELL_OFF)
    soon("the reboot is ordered", lambda: jobs(site))
    site.admin.patch("Node", sick, {"spec": {"unschedulable": None}})
    soon("its Job is deleted", lambda: not jobs(site))
    soon("and it is written down", lambda: [one["result"] for one in operations(site, sick)] == ["unknown"])
    assert "given back" in operations(site, sick)[0]["detail"]
    asked = site.plane.audit_events(site.audit_from, USER)
    used = {(one.resource, one.verb) for one in asked if one.resource == "jobs" and one.namespace == NAMESPACE}
    assert used == verbs_shipped("gpuwarden-operate")


def test_a_diagnosis_that_fails_while_the_fault_is_open_sends_the_node_to_service(site: Site) -> None:
    sick = site.nodes[0]
    look = {"ladder": ["no_new_work", "diagnose"], "reason": "tests: look first"}
    policy = {"by_fault_action": {"reset_gpu": look}, "operations": {"diagnose": operation(1, 205, "bad link")}}
    start(site, policy=policy)
    site.xid(sick, NEEDS_RESET)
    soon("quarantined", lambda: quarantined(site, sick))
    assert SERVICE in ours_on(site, sick)
    told = decision(site, sick)
    assert told["plan"]["action"] == "quarantine"
    assert "exit code 205: bad link" in told["plan"]["reason"]


def test_without_being_switched_on_nothing_runs_on_a_node(site: Site) -> None:
    sick = site.nodes[0]
    start(site)
    site.xid(sick, NEEDS_RESET)
    soon("drained", lambda: ("drain", "done") in site.outcomes(sick))
    ticks(site, 3)
    assert jobs(site) == []
    assert requests(site, "create", "jobs") == []


def test_what_ships_is_accepted_by_the_api_server(site: Site) -> None:
    """The images are not run here: simulated nodes play the pods."""
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    site.admin.create(runtime | {"handler": "nvidia"})
    switched_on = {name: {"enabled": True} for name in ("diagnose", "reset_gpu", "reboot_node")}
    start(site, policy={"operations": switched_on})
    one, other = site.nodes[0], site.nodes[1]
    site.xid(one, NEEDS_RESET)
    site.xid(other, FELL_OFF)
    soon("both run", lambda: sorted(one["status"].get("phase") for one in site.admin.list("Pod", NAMESPACE)) == _BOTH)
    reboots(site, other)
    soon("and a diagnosis", lambda: len(jobs(site)) == 3)
    assert {entry["metadata"]["labels"]["gpuwarden.io/operation"] for entry in jobs(site)} == {
        "diagnose", "reset-gpu", "reboot-node"
    }  # fmt: skip


@pytest.mark.parametrize("moment", Moment)
def test_a_process_that_is_killed_as_it_creates_a_job_leaves_one_that_runs_once(site: Site, moment: Moment) -> None:
    sick = site.nodes[0]
    policy = unbound(operations={"reset_gpu": operation(2)})
    with replica(site, "a", policy) as one:
        one.start()
        soon("it leads", lambda: one.daemon.ready() and one.daemon.metric("gpuwarden_leader") == 1)
        one.link.trip = Trip(lambda asked, _: asked.method == "POST" and asked.path.endswith("/jobs"), moment)
        site.xid(sick, NEEDS_RESET)
        soon("it is killed", one.link.trip.happened.is_set)
        (begun,) = operations(site, sick)
        assert not begun["created"]
        free_lease(site)
        one.start()
        soon("the GPU was reset", lambda: [each["result"] for each in operations(site, sick)] == ["passed"])
        soon("given back", lambda: given_back(site, sick))
    assert [job["metadata"]["name"] for job in jobs(site)] == [begun["id"]]

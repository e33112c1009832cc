"""Operations: which may begin, what hinders them, what their Jobs are, and what comes of what the API server shows."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from remediation.cluster.parse import BadObject
from remediation.cluster.parse_operation import parse_run
from remediation.objects import INCIDENT, TAINT_KEY
from remediation.operation_job import job_of
from remediation.operations import (
    Operation,
    Result,
    Run,
    Wanted,
    begin,
    failed_diagnosis,
    hindered,
    judge,
    operation_id,
    passed_resets,
    to_begin,
    tries,
)
from rules.loader import load_rules
from rules.operation_schema import OperationPolicy, OperationsPolicy
from rules.schema import DrainPolicy, LimitPolicy, Policy
from rules.vocabulary import OPERATIONS, Action
from tests.acting.scenes import marked
from tests.acting.views import AT, node, pod

NOW = AT + timedelta(hours=1)
TEMPLATE = {"spec": {"containers": [{"name": "work", "image": "example/work:1"}]}}
ON = OperationPolicy(enabled=True, timeout=600, max_attempts=2, failed=(205,), template=TEMPLATE)
POLICY = OperationsPolicy(diagnose=ON, reset_gpu=ON, reboot_node=ON)
LIMITS = LimitPolicy(attempt_backoff=60)
MARKED = replace(marked(), boot_id="boot-1")
DIAGNOSE, RESET, REBOOT = OPERATIONS


def want(action: Action = DIAGNOSE, name: str = "n000", incident: str = "inc-1", **more) -> Wanted:
    return Wanted(name, incident, action, ("GPU-1",), **more)


def made(action: Action = DIAGNOSE, number: int = 1, result: Result | None = None, **more) -> Operation:
    one = begin(want(action), number, MARKED, AT)
    return replace(one, **({"result": result, "created": True, "at": AT} | more))


# ---------------------------------------------------------------------------------------------------------- beginning


@pytest.mark.parametrize(
    ("wishes", "known", "expected"),
    [
        pytest.param([want()], [], [(DIAGNOSE, 1)], id="what has not been tried begins"),
        pytest.param([want()], [made()], [], id="what is under way is not begun twice"),
        pytest.param([want()], [made(result=Result.PASSED)], [], id="what has passed is done"),
        pytest.param(
            [want()], [made(result=Result.FAILED)], [], id="a diagnosis that found something is not asked again"
        ),
        pytest.param([want()], [made(result=Result.UNKNOWN)], [(DIAGNOSE, 2)], id="one that could not be made is"),
        pytest.param(
            [want()], [made(result=Result.UNKNOWN, at=NOW - timedelta(seconds=30))], [], id="though not at once"
        ),
        pytest.param([want()], [made(number=n, result=Result.UNKNOWN) for n in (1, 2)], [], id="and not for ever"),
        pytest.param(
            [want(RESET)], [made(RESET, result=Result.FAILED)], [(RESET, 2)], id="a reset that failed is tried again"
        ),
        pytest.param([want(RESET), want(REBOOT)], [], [(RESET, 1)], id="the ladder goes step by step"),
        pytest.param(
            [want(RESET), want(REBOOT)], [made(RESET, result=Result.PASSED)], [(REBOOT, 1)], id="a step was passed"
        ),
        pytest.param(
            [want(RESET), want(REBOOT)],
            [made(RESET, number=n, result=Result.UNKNOWN) for n in (1, 2)],
            [],
            id="a step that never passes is not gone past",
        ),
        pytest.param([want(incident="inc-2")], [made(RESET)], [], id="one at a time on a node, whatever it is for"),
        pytest.param(
            [want(incident="inc-1"), want(incident="inc-2")], [], [(DIAGNOSE, 1)], id="also among the new ones"
        ),
        pytest.param(
            [want(since=NOW - timedelta(minutes=5))],
            [made(result=Result.PASSED)],
            [(DIAGNOSE, 2)],
            id="what was found before the incident had ended says nothing about the way back",
        ),
    ],
)
def test_which_operations_begin(wishes, known, expected) -> None:
    assert [(one.action, number) for one, number in to_begin(wishes, known, POLICY, LIMITS, NOW)] == expected


@given(
    st.lists(
        st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(("n000", "n001")), st.sampled_from(("a", "b"))),
        max_size=6,
    ),
    st.lists(st.tuples(st.sampled_from(OPERATIONS), st.sampled_from([None, *Result])), max_size=6),
)
def test_no_node_ever_has_two_operations_and_no_number_comes_twice(asked, before) -> None:
    known: list[Operation] = []
    for action, result in before:
        number = len(tries(known, "inc-1", "n000", action)) + 1
        known.append(made(action, number, result))
    begun = to_begin([want(action, name, incident) for action, name, incident in asked], known, POLICY, LIMITS, NOW)
    open_on = [one.node for one in known if one.is_open] + [one.node for one, _ in begun]
    assert len(set(open_on) - {one.node for one in known if one.is_open}) == len(begun)
    ids = {operation_id(one.incident, one.node, one.action, number) for one, number in begun}
    assert not ids & {one.id for one in known}


BUSY = pod("train", gpus=8)
WEB = pod("web")
LEFT = pod("agent", namespace="kube-system")


@pytest.mark.parametrize(
    ("wish", "given_node", "pods", "why"),
    [
        pytest.param(want(), MARKED, [], "", id="an empty node"),
        pytest.param(want(), node("n000"), [], "does not carry our taint", id="a node that is not marked"),
        pytest.param(want(), replace(MARKED, annotations=()), [], "does not carry our taint", id="or not as ours"),
        pytest.param(want(), MARKED, [WEB, LEFT], "", id="pods without GPUs are in nobody's way"),
        pytest.param(want(RESET), MARKED, [BUSY], "1 pod still on n000", id="work on the GPUs is waited for"),
        pytest.param(want(REBOOT), MARKED, [WEB], "1 pod still on n000", id="a reboot waits for all work"),
        pytest.param(want(REBOOT), MARKED, [LEFT], "", id="but not for what every node has"),
        pytest.param(want(REBOOT), replace(MARKED, boot_id=""), [], "boot id", id="nobody would know of the reboot"),
        pytest.param(replace(want(RESET), gpus=("",)), MARKED, [], "which GPU", id="nobody knows which GPU"),
    ],
)
def test_what_hinders_an_operation(wish: Wanted, given_node, pods, why: str) -> None:
    told = hindered(wish, given_node, [replace(one, node="n000") for one in pods], DrainPolicy(), NOW)
    assert why in told
    assert bool(told) is bool(why)


# ----------------------------------------------------------------------------------------------------------- judging

GONE = None
BOOTED = replace(MARKED, boot_id="boot-2")


@pytest.mark.parametrize(
    ("operation", "run", "given_node", "after_s", "result", "said"),
    [
        pytest.param(made(), Run(), MARKED, 10, None, "", id="it runs"),
        pytest.param(made(), Run(True, 0), MARKED, 10, Result.PASSED, "exit code 0", id="it passed"),
        pytest.param(made(), Run(True, 205, "GPU 3"), MARKED, 10, Result.FAILED, "205: GPU 3", id="it found something"),
        pytest.param(
            made(), Run(True, 1), MARKED, 10, Result.UNKNOWN, "policy does not say", id="a code that says nothing"
        ),
        pytest.param(
            made(), Run(True, why="DeadlineExceeded"), MARKED, 10, Result.UNKNOWN, "DeadlineExceeded", id="no exit code"
        ),
        pytest.param(made(), GONE, MARKED, 10, Result.UNKNOWN, "isn't there any more", id="its Job was deleted"),
        pytest.param(made(created=False), GONE, MARKED, 10, None, "", id="its Job is not created yet"),
        pytest.param(
            made(), Run(why="no room"), MARKED, 700, Result.UNKNOWN, "within 600 s; no room", id="it takes too long"
        ),
        pytest.param(made(), Run(True, 0), None, 10, Result.UNKNOWN, "node isn't there", id="its node is gone"),
        pytest.param(made(REBOOT), Run(), BOOTED, 10, Result.PASSED, "new boot id", id="the node was rebooted"),
        pytest.param(made(REBOOT), Run(True, 0), MARKED, 10, None, "", id="that the command was given is not enough"),
        pytest.param(made(REBOOT), GONE, MARKED, 10, None, "", id="nor does it matter that the pod is gone"),
        pytest.param(
            made(REBOOT), GONE, replace(BOOTED, ready=False), 10, None, "", id="a node that boots is waited for"
        ),
        pytest.param(
            made(REBOOT), Run(True, 205, "refused"), MARKED, 10, Result.FAILED, "refused", id="the command failed"
        ),
        pytest.param(
            made(REBOOT), Run(True, 0), MARKED, 700, Result.UNKNOWN, "no new boot id", id="it never came back"
        ),
        pytest.param(
            made(result=Result.PASSED), Run(True, 205), MARKED, 10, Result.PASSED, "", id="what has ended stays so"
        ),
    ],
)
def test_what_comes_of_an_operation(operation, run, given_node, after_s: float, result, said: str) -> None:
    further = judge(operation, run, given_node, ON, AT + timedelta(seconds=after_s))
    assert further.result is result
    assert said in further.detail
    assert (further == operation) is (result is operation.result)


def test_a_failed_diagnosis_is_told_for_its_incident_and_node_only() -> None:
    bad = made(result=Result.FAILED, detail="exit code 205")
    assert "exit code 205" in failed_diagnosis("inc-1", ["n000"], [bad])
    assert not failed_diagnosis("inc-2", ["n000"], [bad])
    assert not failed_diagnosis("inc-1", ["n001"], [bad])
    assert not failed_diagnosis("inc-1", ["n000"], [made(), made(RESET, result=Result.FAILED)])


def test_only_resets_that_passed_for_open_incidents_end_faults() -> None:
    done = made(RESET, result=Result.PASSED)
    assert list(passed_resets([done, made(RESET, 2, Result.FAILED), made(result=Result.PASSED)], {"inc-1"})) == [
        done.id
    ]
    assert not passed_resets([done], {"inc-2"})


# -------------------------------------------------------------------------------------------------------------- Jobs


def test_a_job_runs_once_on_its_node_and_tolerates_what_keeps_others_off() -> None:
    own = {"key": "site.example/x", "operator": "Exists"}
    template = {
        "metadata": {"labels": {"team": "sre"}, "annotations": {"a": "b"}},
        "spec": {**TEMPLATE["spec"], "tolerations": [own], "initContainers": [{"name": "first", "image": "i"}]},
    }
    policy = POLICY.model_copy(update={"diagnose": ON.model_copy(update={"template": template})})
    job = job_of(made(number=2), policy)
    spec, pod_spec = job["spec"], job["spec"]["template"]["spec"]
    assert (job["metadata"]["name"], job["metadata"]["namespace"]) == (made(number=2).id, "gpuwarden")
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 600)
    assert pod_spec["restartPolicy"] == "Never"
    (term,) = pod_spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n000"]}]}
    assert own in pod_spec["tolerations"]
    assert TAINT_KEY in [one["key"] for one in pod_spec["tolerations"]]
    for one in (*pod_spec["initContainers"], *pod_spec["containers"]):
        assert {"name": "GPUWARDEN_GPUS", "value": "GPU-1"} in one["env"]
        assert one["terminationMessagePolicy"] == "FallbackToLogsOnError"
    metadata = job["spec"]["template"]["metadata"]
    assert (metadata["labels"]["team"], metadata["annotations"]["a"]) == ("sre", "b")
    assert metadata["annotations"][INCIDENT] == "inc-1"
    assert policy.diagnose.template == template  # the policy stays as it was


def test_the_shipped_templates_are_off_and_would_make_a_job() -> None:
    shipped = load_rules().policy.operations
    assert shipped.enabled == frozenset()
    for action in OPERATIONS:
        one = shipped.of(action)
        assert OperationPolicy.model_validate({**one.model_dump(), "enabled": True}).enabled
        assert job_of(made(action), shipped)["spec"]["template"]["spec"]["containers"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        pytest.param({"enabled": True}, "no container", id="switched on without a template"),
        pytest.param(
            {"enabled": True, "template": {"spec": {"containers": [{"name": "x"}]}}}, "image", id="without an image"
        ),
        pytest.param({"template": {"kind": "Pod"}}, "PodTemplateSpec", id="no pod template"),
        pytest.param({"passed": [0], "failed": [0]}, "both", id="a code that says two things"),
        pytest.param({"failed": [256]}, "between 0 and 255", id="no exit code"),
        pytest.param({"timeout": 0}, "greater than 0", id="no time"),
    ],
)
def test_an_operation_that_cannot_work_is_refused_when_it_is_read(wrong, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        OperationPolicy.model_validate(wrong)


def test_a_drain_must_leave_the_jobs_alone() -> None:
    elsewhere = POLICY.model_copy(update={"namespace": "elsewhere"})
    with pytest.raises(ValidationError, match="leave_namespaces"):
        Policy.model_validate({"operations": elsewhere.model_dump()})


def ended(code: int, message: str = "", **more) -> dict:
    return {"name": "work", "state": {"terminated": {"exitCode": code, "message": message, **more}}}


WAITS = {"name": "work", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
FAILED_JOB = {
    "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "late"}]}
}
REFUSED = {"type": "PodScheduled", "status": "False", "message": "0/10 nodes"}


@pytest.mark.parametrize(
    ("job", "statuses", "expected"),
    [
        pytest.param({}, [], Run(), id="no pod yet"),
        pytest.param(
            {},
            [{"phase": "Succeeded", "containerStatuses": [ended(0, "fine\n now")]}],
            Run(True, 0, "fine now"),
            id="passed",
        ),
        pytest.param(
            {}, [{"phase": "Failed", "containerStatuses": [ended(205, "bad")]}], Run(True, 205, "bad"), id="failed"
        ),
        pytest.param(
            {},
            [{"phase": "Failed", "initContainerStatuses": [ended(3, "")], "containerStatuses": [WAITS]}],
            Run(True, 3),
            id="an init container failed",
        ),
        pytest.param(
            {},
            [{"phase": "Failed", "containerStatuses": [ended(137, reason="OOMKilled")]}],
            Run(True, 137, "OOMKilled"),
            id="killed",
        ),
        pytest.param(
            {}, [{"phase": "Running", "containerStatuses": [ended(0), {"name": "b"}]}], Run(), id="one of two has ended"
        ),
        pytest.param(
            {},
            [{"phase": "Pending", "containerStatuses": [WAITS]}],
            Run(why="work waits: ImagePullBackOff no such image"),
            id="no image",
        ),
        pytest.param(
            {}, [{"phase": "Pending", "conditions": [REFUSED]}], Run(why="not scheduled: 0/10 nodes"), id="no room"
        ),
        pytest.param(FAILED_JOB, [], Run(True, why="DeadlineExceeded: late"), id="its deadline"),
    ],
)
def test_what_the_api_server_shows_of_a_run(job, statuses, expected: Run) -> None:
    assert parse_run(job, [{"status": one} for one in statuses]) == expected


def test_what_is_not_a_job_is_a_clear_error() -> None:
    with pytest.raises(BadObject, match="operation's Job"):
        parse_run({"status": {"conditions": 3}}, [])

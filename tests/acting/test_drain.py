"""What a drain does about each kind of pod, and about all of a node's pods together."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.drain import DRAIN_DEADLINE, DRAIN_MODE, Fate, PodFate, drain, fates
from remediation.objects import DO_NOT_EVICT, OwnerRef, PodView
from rules.schema import DrainMode, DrainPolicy
from tests.acting.views import AT, node, pod

SAFE = DrainPolicy()
STARTED = AT
EVICT, WAIT, LEAVE, REFUSE = Fate.EVICT, Fate.WAIT, Fate.LEAVE, Fate.REFUSE


def after(seconds: float):
    return STARTED + timedelta(seconds=seconds)


def fate_of(one: PodView, policy: DrainPolicy = SAFE, *, at_s: float = 0.0, ready: bool | None = True) -> PodFate:
    (told,) = fates([one], node(ready=ready), policy, started=STARTED, now=after(at_s))
    return told


def daemon(api_version: str = "apps/v1", kind: str = "DaemonSet") -> OwnerRef:
    return OwnerRef(api_version, kind, "exporter", "uid-ds")


@pytest.mark.parametrize(
    ("one", "policy", "fate", "reason"),
    [
        pytest.param(pod(), SAFE, EVICT, "may be moved now", id="a training pod is evicted"),
        pytest.param(pod(owner=daemon()), SAFE, LEAVE, "DaemonSet exporter", id="FC106 a DaemonSet's pod is left"),
        pytest.param(pod(owner=daemon("apps.kruise.io/v1alpha1")), SAFE, EVICT, "now",
                     id="a DaemonSet of another API group is a controller like any other"),
        pytest.param(pod(owner=daemon(kind="ReplicaSet")), SAFE, EVICT, "now", id="apps/v1 alone makes no DaemonSet"),
        pytest.param(pod(is_mirror=True, owner=None), SAFE, LEAVE, "mirror pod", id="FC106 a mirror pod is left"),
        pytest.param(pod(is_mirror=True, phase="Succeeded"), SAFE, LEAVE, "mirror pod", id="even a finished one"),
        pytest.param(pod(phase="Succeeded", owner=None, empty_dirs=("ckpt",)), SAFE, LEAVE, "has ended (Succeeded)",
                     id="a finished pod is harmless, whatever it holds"),
        pytest.param(pod(phase="Failed"), SAFE, LEAVE, "has ended (Failed)", id="so is a failed one"),
        pytest.param(pod(namespace="kube-system", owner=None), SAFE, LEAVE, "namespace kube-system",
                     id="pods of a spared namespace are left"),
        pytest.param(pod(namespace="nvidia-x"), DrainPolicy(leave_namespaces=("nvidia-*",)), LEAVE, "nvidia-*",
                     id="a spared namespace may be a glob"),
        pytest.param(pod(annotations={DO_NOT_EVICT: "true"}), SAFE, REFUSE, "do-not-evict is true",
                     id="a pod that opted out is refused"),
        pytest.param(pod(annotations={DO_NOT_EVICT: "True "}), SAFE, REFUSE, "do-not-evict", id="however it spells it"),
        pytest.param(pod(annotations={DO_NOT_EVICT: "false"}), SAFE, EVICT, "now", id="false opts nothing out"),
        pytest.param(pod(annotations={"karpenter.sh/do-not-disrupt": "true"}), SAFE, REFUSE, "karpenter.sh",
                     id="Karpenter's mark is honoured"),
        pytest.param(pod(annotations={"karpenter.sh/do-not-disrupt": "4h"}), SAFE, REFUSE, "is 4h",
                     id="also where it holds a duration"),
        pytest.param(pod(empty_dirs=("ckpt", "tmp")), SAFE, REFUSE, "emptyDir ckpt, tmp",
                     id="FC106 data in an emptyDir on disk is refused"),
        pytest.param(pod(empty_dirs=("ckpt",)), DrainPolicy(allow_empty_dir=True), EVICT, "now",
                     id="FC106 unless policy opted in"),
        pytest.param(pod(memory_dirs=("dshm",)), SAFE, EVICT, "now", id="an emptyDir in memory never stops a drain"),
        pytest.param(pod(owner=None), SAFE, REFUSE, "no controller", id="FC106 a bare pod is refused"),
        pytest.param(pod(owner=None), DrainPolicy(allow_unmanaged=True), EVICT, "now", id="FC106 unless policy allows"),
        pytest.param(pod(annotations={DO_NOT_EVICT: "true"}),
                     DrainPolicy(allow_unmanaged=True, allow_empty_dir=True, on_refusal="evict_others"),
                     REFUSE, "is true", id="no policy overrules an opt-out"),
    ],
)  # fmt: skip
def test_each_kind_of_pod_has_its_fate(one: PodView, policy: DrainPolicy, fate: Fate, reason: str) -> None:
    told = fate_of(one, policy)
    assert told.fate is fate
    assert reason in told.reason


# ----------------------------------------------------------------------------------------------------------- modes


def asking(mode: str = "", deadline: str = "", **fields) -> PodView:
    marks = {name: value for name, value in ((DRAIN_MODE, mode), (DRAIN_DEADLINE, deadline)) if value}
    return pod(annotations=marks, **fields)


WAITS = DrainPolicy(mode=DrainMode.WAIT_FOR_COMPLETION)
TIMED = DrainPolicy(mode=DrainMode.EVICT_AFTER_DEADLINE, deadline="30m", max_wait="2h")


@pytest.mark.parametrize(
    ("one", "policy", "at_s", "fate", "deadline_s"),
    [
        pytest.param(pod(), TIMED, 1799, WAIT, 1800, id="a deadline is waited for"),
        pytest.param(pod(), TIMED, 1800, EVICT, 1800, id="then the pod is evicted"),
        pytest.param(pod(), WAITS, 86399, WAIT, 86400, id="completion is waited for, up to the longest wait"),
        pytest.param(pod(), WAITS, 86400, REFUSE, 86400, id="FC105 then a person is asked; nothing forces it"),
        pytest.param(asking("wait_for_completion"), SAFE, 60, WAIT, 86400, id="a pod's mode wins over policy's"),
        pytest.param(asking("evict_now"), WAITS, 0, EVICT, None, id="also where it is less patient"),
        pytest.param(asking("evict_after_deadline"), SAFE, 3599, WAIT, 3600, id="its deadline is policy's"),
        pytest.param(asking("evict_after_deadline", "10m"), SAFE, 600, EVICT, 600, id="or its own"),
        pytest.param(asking("", "10m"), SAFE, 599, WAIT, 600, id="who names a deadline alone gets it"),
        pytest.param(asking("", "10m"), TIMED, 600, EVICT, 600, id="a pod's deadline may be shorter than policy's"),
        pytest.param(asking("", "90m"), TIMED, 1800, WAIT, 5400, id="or longer"),
        pytest.param(asking("", "3h"), TIMED, 7199, WAIT, 7200, id="but no wait is longer than the longest"),
        pytest.param(asking("", "10m"), WAITS, 600, REFUSE, 600,
                     id="FC105 a deadline forces no pod that is waited for"),
        pytest.param(asking("evict_now", "10m"), SAFE, 0, EVICT, None, id="evict_now needs no deadline"),
        pytest.param(asking("gently"), SAFE, 0, REFUSE, None, id="a mode that is none is refused"),
        pytest.param(asking("", "soon"), SAFE, 0, REFUSE, None, id="a deadline that is none is refused"),
        pytest.param(asking("evict_now", "-5m"), SAFE, 0, REFUSE, None, id="so is a negative one"),
    ],
)  # fmt: skip
def test_a_pod_is_evicted_now_later_or_never(
    one: PodView, policy: DrainPolicy, at_s: float, fate: Fate, deadline_s: float | None
) -> None:
    told = fate_of(one, policy, at_s=at_s)
    assert (told.fate, told.deadline) == (fate, None if deadline_s is None else after(deadline_s))


def test_a_wrong_annotation_is_named_with_what_it_says():
    assert f"{DRAIN_MODE} is gently" in fate_of(asking("gently")).reason
    assert f"{DRAIN_DEADLINE} is no time" in fate_of(asking("", "soon")).reason


@pytest.mark.parametrize(
    ("namespace", "fate"),
    [
        pytest.param("train", EVICT, id="no pattern: policy's mode"),
        pytest.param("batch-a", WAIT, id="a pattern of many namespaces"),
        pytest.param("batch-urgent", EVICT, id="the longest pattern that matches wins"),
    ],
)
def test_namespaces_choose_a_mode(namespace: str, fate: Fate) -> None:
    policy = DrainPolicy(modes={"batch-urgent": "evict_now", "batch-*": "wait_for_completion"})
    assert fate_of(pod(namespace=namespace), policy).fate is fate


@given(grace_s=st.floats(0, 1e5), least_s=st.floats(0, 1e5))
def test_an_eviction_never_shortens_a_pods_grace(grace_s: float, least_s: float) -> None:
    assert fate_of(pod(grace_s=grace_s), DrainPolicy(min_grace=least_s)).grace_s == max(grace_s, least_s)


# ------------------------------------------------------------------------------------------------------- terminating


@pytest.mark.parametrize(
    ("at_s", "ready", "stuck", "words"),
    [
        pytest.param(359, True, False, "terminating, grace 60 s",
                     id="within its grace and the allowance it is waited for"),
        pytest.param(360, True, True, "finalizer", id="beyond them it is told as stuck"),
        pytest.param(360, False, True, "no pod is deleted by force", id="on a dead node a person has to fence it"),
        pytest.param(360, None, True, "does not answer", id="a node of unknown readiness counts as dead"),
        pytest.param(359, False, False, "terminating", id="a dead node alone makes no pod stuck"),
    ],
)  # fmt: skip
def test_a_terminating_pod_is_waited_for_and_never_forced(at_s, ready, stuck, words) -> None:
    told = fate_of(pod(deleting_since=STARTED, grace_s=60, annotations={DO_NOT_EVICT: "true"}), at_s=at_s, ready=ready)
    assert (told.fate, told.stuck, told.deadline) == (WAIT, stuck, after(360))
    assert words in told.reason


# ---------------------------------------------------------------------------------------------------- a node's pods

BARE = pod("bare", owner=None)
SLOW = asking("wait_for_completion", name="slow")


@pytest.mark.parametrize(
    ("pods", "policy", "evict", "wait", "asks", "done"),
    [
        pytest.param([], SAFE, [], [], [], True, id="an empty node is done"),
        pytest.param([pod("ds", owner=daemon()), pod("old", phase="Failed")], SAFE, [], [], [], True,
                     id="a node with nothing but what is left is done"),
        pytest.param([pod("a"), pod("b")], SAFE, ["a", "b"], [], [], False, id="all may go"),
        pytest.param([pod("a"), SLOW], SAFE, ["a"], ["slow"], [], False, id="one that waits holds up no other"),
        pytest.param([pod("a"), BARE], SAFE, [], ["a"], ["bare"], False,
                     id="FC106 one refusal, and nothing is evicted: a person is asked"),
        pytest.param([pod("a"), BARE], DrainPolicy(on_refusal="evict_others"), ["a"], [], ["bare"], False,
                     id="policy may let the others go"),
    ],
)  # fmt: skip
def test_a_drain_is_all_or_nothing_by_default(pods, policy, evict, wait, asks, done) -> None:
    told = drain(fates(pods, node(), policy, started=STARTED, now=AT), policy)
    names = [[each.pod.name for each in part] for part in (told.evict, told.wait, told.asks)]
    assert (names, told.done) == ([evict, wait, asks], done)


def test_pods_of_low_priority_go_first_and_those_of_other_nodes_are_passed_over():
    pods = [pod("critical", priority=2_000_000_000), pod("b"), pod("a"), pod("elsewhere", node="n2")]
    told = fates(pods, node(), SAFE, started=STARTED, now=AT)
    assert [each.pod.name for each in told] == ["a", "b", "critical"]


SOME_PODS = st.lists(
    st.builds(
        pod,
        name=st.text("abc", min_size=1, max_size=3),
        phase=st.sampled_from(["Running", "Pending", "Succeeded"]),
        owner=st.sampled_from([None, daemon(), pod().owner]),
        annotations=st.dictionaries(
            st.sampled_from([DRAIN_MODE, DRAIN_DEADLINE, DO_NOT_EVICT]),
            st.sampled_from(["", "true", "10m", "evict_now", "wait_for_completion", "\x00"]),
        ),
        empty_dirs=st.sampled_from([(), ("ckpt",)]),
        deleting_since=st.sampled_from([None, AT]),
        is_mirror=st.booleans(),
        priority=st.integers(0, 2),
    ),
    max_size=6,
    unique_by=lambda one: one.name,
)
POLICIES = st.builds(
    DrainPolicy,
    mode=st.sampled_from(DrainMode),
    allow_empty_dir=st.booleans(),
    allow_unmanaged=st.booleans(),
    on_refusal=st.sampled_from(["ask", "evict_others"]),
)


@given(pods=SOME_PODS, policy=POLICIES, at_s=st.floats(0, 2e5), data=st.data())
def test_the_order_of_pods_changes_nothing_and_asking_again_neither(pods, policy, at_s, data) -> None:
    told = fates(pods, node(), policy, started=STARTED, now=after(at_s))
    shuffled = data.draw(st.permutations(pods))
    assert fates(shuffled, node(), policy, started=STARTED, now=after(at_s)) == told
    assert {each.pod.name for each in told} == {each.name for each in pods}


@given(pods=SOME_PODS, policy=POLICIES, at_s=st.floats(0, 2e5))
def test_what_is_protected_is_never_evicted(pods, policy, at_s) -> None:
    told = drain(fates(pods, node(), policy, started=STARTED, now=after(at_s)), policy)
    for each in told.evict:
        one = each.pod
        assert not one.is_mirror
        assert one.owner != daemon()
        assert one.deleting_since is None
        assert one.phase != "Succeeded"
        assert one.annotation(DO_NOT_EVICT) == ""
        assert policy.allow_empty_dir or not one.empty_dirs
        assert policy.allow_unmanaged or one.owner is not None
        assert each.grace_s >= one.grace_s
    assert not (told.evict and told.asks and policy.on_refusal == "ask")


@given(pods=SOME_PODS, policy=POLICIES, earlier_s=st.floats(0, 1e5), later_s=st.floats(0, 1e5))
def test_time_alone_takes_no_permission_to_evict_back(pods, policy, earlier_s, later_s) -> None:
    first, second = sorted((earlier_s, later_s))
    for one in pods:
        still = replace(one, deleting_since=None)
        if fate_of(still, policy, at_s=first).fate is EVICT:
            assert fate_of(still, policy, at_s=second).fate is EVICT

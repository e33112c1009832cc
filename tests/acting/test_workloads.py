"""Which eviction ends a job for good, as its controllers count, and what can't be told; training or a service."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.objects import FailureRule, OwnerRef, PodView, WorkloadView
from remediation.workloads import endings, ends_for_good, is_training, resource, root_of
from tests.acting.views import AT, JOB, pod, workload

SET = OwnerRef("jobset.x-k8s.io/v1alpha2", "JobSet", "llama-set", "uid-set")
TRAIN = OwnerRef("trainer.kubeflow.org/v1alpha1", "TrainJob", "llama-train", "uid-train")
PYTORCH = OwnerRef("kubeflow.org/v1", "PyTorchJob", "bert", "uid-pytorch")
MPI = OwnerRef("kubeflow.org/v2beta1", "MPIJob", "hpl", "uid-mpi")
VOLCANO = OwnerRef("batch.volcano.sh/v1alpha1", "Job", "gang", "uid-volcano")
CRON = OwnerRef("batch/v1", "CronJob", "nightly", "uid-cron")
WRAPPER = OwnerRef("workload.codeflare.dev/v1beta2", "AppWrapper", "wrap", "uid-wrap")
RAY = OwnerRef("ray.io/v1", "RayCluster", "ray-x", "uid-ray")
REPLICAS = OwnerRef("apps/v1", "ReplicaSet", "web-1", "uid-rs")
SETS = "jobsets.v1alpha2.jobset.x-k8s.io"
INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
TARGET = "jobset.sigs.k8s.io/replicatedjob-name"
FORGIVE, FAIL, RESTART = "RestartJobSetAndIgnoreMaxRestarts", "FailJobSet", "RestartJobSet"


def known(*workloads: WorkloadView) -> dict[str, WorkloadView]:
    return {each.uid: each for each in workloads}


def owned(owner: OwnerRef | None, **fields) -> PodView:
    return pod(owner=owner, **fields)


def last(**fields) -> WorkloadView:
    """The Job of `pod()`, which the next failure ends."""
    return workload(restarts_used=6) if not fields else workload(**({"restarts_used": 6} | fields))


def in_set(*rules: FailureRule, **fields) -> dict[str, WorkloadView]:
    """A Job that the next failure ends, in a JobSet."""
    told = {"restarts_used": 1, "restarts_allowed": 1, "rules": rules} | fields
    return known(workload(SET, **told), last(owner=SET))


# ---------------------------------------------------------------------------------------------------- whose is a pod?


@pytest.mark.parametrize(
    ("one", "workloads", "root"),
    [
        pytest.param(owned(None), known(), None, id="nobody's"),
        pytest.param(pod(), known(), JOB, id="its controller's, where no more is known"),
        pytest.param(pod(), known(workload()), workload(), id="its controller's"),
        pytest.param(pod(), known(workload(owner=SET)), SET, id="that one's controller's"),
        pytest.param(pod(), known(workload(owner=SET), workload(SET)), workload(SET), id="which is known too"),
        pytest.param(pod(), known(workload(owner=SET), workload(SET, owner=TRAIN)), TRAIN, id="all the way up"),
        pytest.param(pod(), known(workload(uid="other")), JOB, id="not another's of that name"),
    ],
)
def test_a_pod_belongs_to_the_topmost_controller(one, workloads, root) -> None:
    assert root_of(one, workloads) == root


@pytest.mark.parametrize(
    ("one", "training"),
    [
        pytest.param(owned(None), True, id="a pod that nothing controls"),
        pytest.param(owned(JOB), True, id="a Job's"),
        pytest.param(owned(SET), True, id="a JobSet's"),
        pytest.param(owned(PYTORCH), True, id="a PyTorchJob's"),
        pytest.param(owned(MPI), True, id="an MPIJob's"),
        pytest.param(owned(VOLCANO), True, id="a Volcano Job's"),
        pytest.param(owned(TRAIN), True, id="a TrainJob's"),
        pytest.param(owned(OwnerRef("ray.io/v1", "RayJob", "r", "u")), True, id="a RayJob's"),
        pytest.param(owned(RAY), True, id="a Ray cluster's that people send work to"),
        pytest.param(owned(RAY, labels={"ray.io/originated-from-crd": "RayJob"}), True, id="a RayJob's cluster's"),
        pytest.param(owned(RAY, labels={"ray.io/originated-from-crd": "RayService"}), False, id="a RayService's"),
        pytest.param(owned(WRAPPER), True, id="a kind's that is not known"),
        pytest.param(owned(OwnerRef("apps.example/v1", "ReplicaSet", "r", "u")), True, id="another ReplicaSet's"),
        pytest.param(owned(REPLICAS), False, id="a Deployment's"),
        pytest.param(owned(OwnerRef("apps/v1", "StatefulSet", "r", "u")), False, id="a StatefulSet's"),
        pytest.param(owned(OwnerRef("apps/v1", "DaemonSet", "r", "u")), False, id="a DaemonSet's"),
        pytest.param(owned(OwnerRef("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "r", "u")), False,
                     id="a LeaderWorkerSet's"),
        pytest.param(owned(None, is_mirror=True), False, id="a static pod's mirror"),
    ],
)  # fmt: skip
def test_what_runs_to_an_end_is_training_and_the_rest_a_service(one, training) -> None:
    assert is_training(one, {}) is training


def test_what_counts_is_the_root_of_a_pod() -> None:
    assert is_training(pod(), known(workload(owner=CRON)))


# ------------------------------------------------------------------------------------ does an eviction end it for good?


@pytest.mark.parametrize(
    ("one", "workloads", "says"),
    [
        pytest.param(pod(), known(workload(restarts_used=5)), "", id="one failure is left"),
        pytest.param(pod(), known(last()), "Job train/llama would end for good: it has used 6 of 6 restarts",
                     id="none is left"),
        pytest.param(pod(), known(workload(restarts_allowed=0)), "used 0 of 0", id="none is allowed"),
        pytest.param(pod(), known(last(restarts_allowed=None)), "", id="there is no limit"),
        pytest.param(pod(), known(last(ignores_disruption=True)), "", id="disruptions don't count"),
        pytest.param(pod(), known(workload(ends_at_once="its policy")), "would end for good: its policy",
                     id="the first ends it, whatever the numbers"),
        pytest.param(pod(), known(last(finished=True)), "", id="it has ended already"),
        pytest.param(pod(phase="Succeeded"), known(last()), "", id="the pod has ended"),
        pytest.param(pod(phase="Failed"), known(last()), "", id="the pod has failed"),
        pytest.param(pod(deleting_since=AT), known(last()), "", id="the pod ends already"),
        pytest.param(pod(phase="Pending"), known(last()), "used 6 of 6", id="the pod has not begun"),
        pytest.param(owned(None), known(), "no controller would start it again", id="nobody starts it again"),
        pytest.param(owned(None, is_mirror=True), known(), "", id="its kubelet starts it"),
        pytest.param(owned(REPLICAS), known(), "", id="a service starts it elsewhere"),
        pytest.param(owned(PYTORCH), known(workload(PYTORCH, restarts_allowed=0)), "PyTorchJob train/bert would end",
                     id="a PyTorchJob's limit"),
        pytest.param(owned(MPI), known(workload(MPI, restarts_used=6)), "MPIJob train/hpl would end", id="an MPIJob's"),
        pytest.param(owned(VOLCANO), known(workload(VOLCANO, restarts_used=6)), "Job train/gang would end",
                     id="a Volcano Job's"),
    ],
)  # fmt: skip
def test_an_eviction_that_no_restart_follows_ends_a_job(one, workloads, says) -> None:
    answer = ends_for_good(one, workloads)
    assert says in answer
    assert bool(says) == bool(answer)


@pytest.mark.parametrize(
    ("failures", "limit", "says"),
    [
        pytest.param("0", 1, "", id="one restart is left"),
        pytest.param("1", 1, "index 3 of Job train/llama would end for good: it has used 1 of 1", id="none is left"),
        pytest.param(None, 1, "it is not known how often index 3", id="the pod doesn't say how often"),
        pytest.param("many", 1, "it is not known how often index 3", id="it says what nobody understands"),
    ],
)
def test_each_index_may_have_a_limit_of_its_own(failures, limit, says) -> None:
    marks = {INDEX: "3"} | ({} if failures is None else {INDEX_FAILURES: failures})
    job = workload(restarts_allowed=None, index_restarts_allowed=limit)
    answer = ends_for_good(pod(annotations=marks), known(job))
    assert says in answer
    assert bool(says) == bool(answer)


def test_a_job_with_both_limits_ends_at_either() -> None:
    one = pod(annotations={INDEX: "3", INDEX_FAILURES: "0"})
    assert "used 6 of 6" in ends_for_good(one, known(last(index_restarts_allowed=4)))


# ---------------------------------------------------------------------------------------------------- what is above it


@pytest.mark.parametrize(
    ("workloads", "says"),
    [
        pytest.param(in_set(restarts_used=0), "", id="it has restarts left"),
        pytest.param(in_set(), "JobSet train/llama-set would end for good: it has used 1 of 1", id="it has none left"),
        pytest.param(in_set() | known(workload(restarts_used=5, owner=SET)), "", id="its Job starts the pod again"),
        pytest.param(in_set(ends_at_once="no policy"), "would end for good: no policy", id="it starts nothing again"),
        pytest.param(in_set(ignores_disruption=True), "", id="it forgives all"),
        pytest.param(in_set(finished=True), "", id="it has ended already"),
        pytest.param(in_set(owner=TRAIN), "JobSet train/llama-set would end", id="a TrainJob above it ends with it"),
        pytest.param(in_set(owner=WRAPPER), "not known whether AppWrapper train/wrap starts it again",
                     id="something above it may start it again"),
        pytest.param(known(last(owner=SET)), "not known whether JobSet train/llama-set starts it again",
                     id="it is not there"),
        pytest.param(known(last(owner=CRON)), "Job train/llama would end", id="a CronJob goes on to the next"),
        pytest.param(known(last(owner=MPI)), "Job train/llama would end", id="an MPIJob ends with its launcher"),
        pytest.param(known(last(owner=WRAPPER)), "not known whether AppWrapper", id="what is above is not known"),
    ],
)  # fmt: skip
def test_what_owns_a_job_may_start_it_again(workloads, says) -> None:
    answer = ends_for_good(pod(), workloads)
    assert says in answer
    assert bool(says) == bool(answer)


@pytest.mark.parametrize(
    ("rules", "ends"),
    [
        pytest.param([], True, id="none"),
        pytest.param([FailureRule(FORGIVE)], False, id="all failures are forgiven"),
        pytest.param([FailureRule(FORGIVE, ("BackoffLimitExceeded",))], False, id="this reason is forgiven"),
        pytest.param([FailureRule(FORGIVE, ("PodFailurePolicy",))], True, id="another reason is"),
        pytest.param([FailureRule(FORGIVE, targets=("worker",))], False, id="this replicated job is"),
        pytest.param([FailureRule(FORGIVE, targets=("leader",))], True, id="another replicated job is"),
        pytest.param([FailureRule(FORGIVE, by_message=True)], True, id="some messages are, perhaps this one"),
        pytest.param([FailureRule(RESTART), FailureRule(FORGIVE)], True, id="the first that matches holds"),
        pytest.param([FailureRule(RESTART, by_message=True), FailureRule(FORGIVE)], True,
                     id="so does the first that may match"),
        pytest.param([FailureRule(FORGIVE, by_message=True), FailureRule(FORGIVE)], False, id="both forgive"),
        pytest.param([FailureRule(FORGIVE), FailureRule(FAIL)], False, id="forgiven before it fails"),
    ],
)  # fmt: skip
def test_a_job_sets_rules_decide_whether_a_failure_counts(rules, ends) -> None:
    one = pod(labels={TARGET: "worker"})
    assert bool(ends_for_good(one, in_set(*rules))) is ends


@pytest.mark.parametrize(
    ("rule", "ends"),
    [
        pytest.param(FailureRule(FAIL), True, id="whatever fails"),
        pytest.param(FailureRule(FAIL, targets=("worker",)), True, id="of this replicated job"),
        pytest.param(FailureRule(FAIL, targets=("leader",)), False, id="of another one"),
        pytest.param(FailureRule(FAIL, ("PodFailurePolicy",)), False, id="for another reason"),
        pytest.param(FailureRule(FAIL, by_message=True), True, id="perhaps this one"),
    ],
)
def test_a_rule_may_fail_a_job_set_that_has_restarts_left(rule, ends) -> None:
    one = pod(labels={TARGET: "worker"})
    assert bool(ends_for_good(one, in_set(rule, restarts_used=0))) is ends


def test_a_pod_that_does_not_say_of_which_replicated_job_it_is_may_be_of_any() -> None:
    assert ends_for_good(pod(), in_set(FailureRule(FAIL, targets=("leader",)), restarts_used=0))
    assert ends_for_good(pod(), in_set(FailureRule(FORGIVE, targets=("worker",))))


def test_host_maintenance_as_jobset_documents_it_costs_no_restart() -> None:
    """The Job fails at once for a disruption, and its JobSet forgives just that reason."""
    job = workload(ends_at_once="its pod failure policy fails it (FailJob)", owner=SET)
    rules = (FailureRule(FORGIVE, ("PodFailurePolicy",)),)
    spent = workload(SET, restarts_used=3, restarts_allowed=3, rules=rules)
    assert not ends_for_good(pod(), known(job, spent))
    assert ends_for_good(pod(), known(last(owner=SET), spent)), "a Job that failed too often is another reason"


# --------------------------------------------------------------------------------------------- what nobody can tell


@pytest.mark.parametrize(
    ("one", "workloads", "unread", "says"),
    [
        pytest.param(pod(), known(), (), "not known how often Job train/llama starts again: it is not among",
                     id="its Job is not there"),
        pytest.param(owned(SET), known(), (SETS,), f"not known how often JobSet train/llama-set starts again: {SETS}",
                     id="its kind cannot be read"),
        pytest.param(pod(), known(workload()), ("jobs.v1.batch",), "jobs.v1.batch cannot be read",
                     id="what is known of it may be old"),
        pytest.param(pod(), known(workload()), (SETS,), "", id="another kind cannot be read"),
        pytest.param(pod(), known(last(owner=SET), workload(SET)), (SETS,), "not known whether JobSet",
                     id="what is above it cannot be read"),
        pytest.param(pod(), known(workload(owner=SET)), (SETS,), "", id="unless its Job starts it again"),
        pytest.param(owned(RAY), known(), (), "not known how often RayCluster train/ray-x", id="a kind not looked for"),
        pytest.param(owned(RAY, labels={"ray.io/originated-from-crd": "RayService"}), known(), (), "",
                     id="a service needs no count"),
        pytest.param(owned(WRAPPER), known(), (), "not known how often AppWrapper", id="a kind nobody knows"),
        pytest.param(owned(REPLICAS), known(), ("replicasets.v1.apps",), "", id="a service never ends"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_said_and_never_taken_for_safe(one, workloads, unread, says) -> None:
    answer = ends_for_good(one, workloads, unread)
    assert says in answer
    assert bool(says) == bool(answer)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (JOB, "jobs.v1.batch"),
        (SET, SETS),
        (MPI, "mpijobs.v2beta1.kubeflow.org"),
        (OwnerRef("v1", "Pod", "p", "u"), "pods.v1"),
    ],
)
def test_kinds_are_named_as_kubectl_names_their_resources(owner, name) -> None:
    assert resource(owner.api_version, owner.kind) == name


# ------------------------------------------------------------------------------------------------- several at a time


def test_pods_of_a_job_that_go_together_each_count() -> None:
    pods = [pod(f"llama-{i}") for i in range(4)]
    told = endings(pods, known(workload(restarts_used=1, restarts_allowed=3)))
    assert list(told) == ["uid-llama-2", "uid-llama-3"]
    assert told["uid-llama-2"].endswith("it has used 1 of 3 restarts, and 2 evictions before this one count too")


def test_pods_that_end_anyway_take_no_share() -> None:
    pods = [pod("a", phase="Failed"), pod("b", deleting_since=AT), pod("c")]
    assert endings(pods, known(workload(restarts_allowed=1))) == {}


def test_pods_of_a_gang_that_go_together_are_one_restart() -> None:
    gang = [owned(VOLCANO, name=f"g-{i}", uid=f"g-{i}") for i in range(8)]
    assert endings(gang, known(workload(VOLCANO, restarts_allowed=1))) == {}


def test_jobs_count_for_themselves() -> None:
    other = OwnerRef("batch/v1", "Job", "bert", "uid-bert")
    pods = [pod("a"), owned(other, name="b"), owned(None, name="c")]
    told = endings(pods, known(workload(restarts_allowed=1), workload(other, restarts_allowed=1)))
    assert list(told) == ["uid-c"]


# ------------------------------------------------------------------------------------------------- what always holds

REFS = st.sampled_from([JOB, SET, TRAIN, PYTORCH, MPI, VOLCANO, CRON, WRAPPER, RAY, REPLICAS])
RULES = st.builds(
    FailureRule,
    st.sampled_from([FORGIVE, FAIL, RESTART]),
    st.sampled_from([(), ("BackoffLimitExceeded",), ("PodFailurePolicy",)]),
    st.sampled_from([(), ("worker",)]),
    st.booleans(),
)


@st.composite
def views(draw) -> WorkloadView:
    return workload(
        draw(REFS),
        owner=draw(st.none() | REFS),
        restarts_used=draw(st.integers(0, 3)),
        restarts_allowed=draw(st.none() | st.integers(0, 3)),
        ignores_disruption=draw(st.booleans()),
        finished=draw(st.booleans()),
        index_restarts_allowed=draw(st.none() | st.integers(0, 2)),
        ends_at_once=draw(st.sampled_from(["", "its policy"])),
        rules=tuple(draw(st.lists(RULES, max_size=3))),
    )


@given(st.none() | REFS, st.lists(views(), max_size=8), st.integers(0, 5))
def test_owners_in_a_circle_come_to_an_end_and_more_evictions_never_help(owner, found, before) -> None:
    one, workloads = owned(owner), known(*found)
    is_training(one, workloads)
    root_of(one, workloads)
    if ends_for_good(one, workloads, before=before):
        assert ends_for_good(one, workloads, before=before + 1)


@given(st.none() | REFS, st.lists(views(), max_size=8), st.sets(st.sampled_from([SETS, "jobs.v1.batch"])))
def test_knowing_less_never_makes_an_eviction_safe(owner, found, unread) -> None:
    one, workloads = owned(owner), known(*found)
    if ends_for_good(one, workloads):
        assert ends_for_good(one, workloads, unread)

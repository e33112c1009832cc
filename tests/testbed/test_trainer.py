"""The stand-in for a training program does what a real one would: it steps, saves, answers, starts again, hangs."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.testbed.api import Object
from tests.testbed.control_plane import ControlPlane
from tests.testbed.manifests import STOPS_AFTER
from tests.testbed.trainer import Keys, Trainer
from tests.testbed.training import indexed_job
from tests.testbed.waiting import TestbedError, until

NAMESPACE = "train"
NAME = "llama"
JOB = ("Job", NAME, NAMESPACE)
TICK_S = 0.05


def trainer_of(cluster: ControlPlane, **settings: object) -> Trainer:
    return Trainer(cluster, NAMESPACE, "Job", NAME, tick_s=TICK_S, **settings)


@pytest.fixture
def job(cluster: ControlPlane) -> Callable[..., Object]:
    """Creates a Job of three ranks on three nodes."""

    def create(**settings: object) -> Object:
        cluster.add_nodes(3)
        cluster.namespace(NAMESPACE)
        return cluster.admin.create(indexed_job(NAME, NAMESPACE, **settings))

    return create


def annotations(cluster: ControlPlane) -> dict[str, str]:
    return cluster.admin.get(*JOB)["metadata"].get("annotations", {})


def ask(cluster: ControlPlane, request: str, key: str = Keys().request) -> None:
    cluster.admin.patch("Job", NAME, {"metadata": {"annotations": {key: request}}}, NAMESPACE)


def suspend(cluster: ControlPlane, suspended: bool) -> None:
    cluster.admin.patch("Job", NAME, {"spec": {"suspend": suspended}}, NAMESPACE)


def test_it_steps_while_all_pods_run_and_writes_checkpoints_on_the_root(cluster: ControlPlane, job):
    with trainer_of(cluster, checkpoint_every=3, location="pvc://runs") as trainer:
        assert trainer.metrics() == ""
        began = datetime.now(UTC)
        made = job()
        until("checkpoints", lambda: (trainer.checkpoint_step or 0) >= 6)
    written = annotations(cluster)
    step = int(written["gpuwarden.io/checkpoint-step"])
    assert step % 3 == 0
    assert written["gpuwarden.io/checkpoint-location"] == f"pvc://runs/{NAME}/{step}"
    at = datetime.fromisoformat(written["gpuwarden.io/checkpoint-at"])
    assert began - timedelta(seconds=1) <= at <= datetime.now(UTC)
    assert cluster.admin.get(*JOB)["metadata"]["uid"] == made["metadata"]["uid"]
    (only,) = trainer.incarnations
    assert only.nodes == {"gpu-0000", "gpu-0001", "gpu-0002"}
    assert trainer.writers[-1].running == only.pods


def test_it_waits_for_the_last_rank(cluster: ControlPlane, job):
    with trainer_of(cluster) as trainer:
        job(nodes=4)  # on three nodes
        until("three of four", lambda: trainer.writers and len(trainer.writers[-1].running) == 3)
        assert (trainer.step, trainer.is_running) == (0, False)
        cluster.add_nodes(1)
        until("a step", lambda: trainer.step)


@pytest.mark.parametrize(
    ("forgets", "expected"),
    [
        pytest.param(False, 40, id="from the checkpoint's step"),
        pytest.param(True, 0, id="from nothing, if it forgets"),
    ],
)
def test_in_other_pods_it_starts_again(cluster: ControlPlane, job, forgets: bool, expected: int):
    job(grace_s=0, annotations={"gpuwarden.io/checkpoint-step": "40"})
    with trainer_of(cluster, forgets=forgets, checkpoint_every=0) as trainer:
        until("steps", lambda: trainer.step > expected + 2)
        suspend(cluster, True)
        until("no pods", lambda: not trainer.writers[-1].running)
        at_rest = trainer.step
        suspend(cluster, False)
        until("another incarnation", lambda: len(trainer.incarnations) == 2)
    assert [each.started_at_step for each in trainer.incarnations] == [expected, expected]
    assert at_rest > expected


def test_it_answers_a_request_with_a_checkpoint_and_then_its_id(cluster: ControlPlane, job):
    job()
    with trainer_of(cluster, checkpoint_every=0, answers_after_s=0.5) as trainer:
        until("a step", lambda: trainer.step)
        asked = datetime.now(UTC)
        for request in ("one", "two"):
            ask(cluster, request)
            until("an answer", lambda wanted=request: annotations(cluster).get("gpuwarden.io/checkpoint-ack") == wanted)
            assert int(annotations(cluster)["gpuwarden.io/checkpoint-step"]) <= trainer.step
    assert trainer.acknowledged == ["one", "two"]
    assert datetime.now(UTC) - asked >= timedelta(seconds=1)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"deaf": True}, id="that is deaf"),
        pytest.param({"answers_after_s": 600}, id="that takes its time"),
        pytest.param({"keys": Keys(request="example.org/save")}, id="that listens elsewhere"),
    ],
)
def test_a_program_leaves_a_request_unanswered(cluster: ControlPlane, job, settings: dict[str, object]):
    job(annotations={"gpuwarden.io/checkpoint-request": "one"})
    with trainer_of(cluster, checkpoint_every=0, **settings) as trainer:
        until("many steps", lambda: trainer.step > 20)
    assert trainer.acknowledged == []
    assert set(annotations(cluster)) == {"gpuwarden.io/checkpoint-request"}


def test_a_program_that_hangs_makes_no_steps_though_its_pods_run(cluster: ControlPlane, job):
    job()
    with trainer_of(cluster) as trainer:
        until("a step", lambda: trainer.step)
        trainer.hangs = True
        at = until("no more steps", lambda: stands_still(trainer))
        assert trainer.is_running
        assert f'training_step{{namespace="train",job="llama"}} {at}' in trainer.metrics().splitlines()
        trainer.hangs = False
        until("steps", lambda: trainer.step > at)


def stands_still(trainer: Trainer) -> int | None:
    """Its step, if it has none for longer than a tick and what a tick asks may take."""
    step = trainer.step
    try:
        until("a step", lambda: trainer.step != step, within_s=1)
    except TestbedError:
        return step
    return None


def test_its_metrics_tell_step_and_last_checkpoint(cluster: ControlPlane, job):
    job()
    with trainer_of(cluster, checkpoint_every=2) as trainer:
        until("a checkpoint", lambda: "training_checkpoint_timestamp_seconds" in trainer.metrics())
        samples = dict(line.split(" ") for line in trainer.metrics().splitlines() if not line.startswith("#"))
    labels = '{namespace="train",job="llama"}'
    assert set(samples) == {f"training_step{labels}", f"training_checkpoint_timestamp_seconds{labels}"}
    assert abs(float(samples[f"training_checkpoint_timestamp_seconds{labels}"]) - datetime.now(UTC).timestamp()) < 60


def test_it_goes_on_while_the_api_server_is_away(cluster: ControlPlane, job):
    job()
    with trainer_of(cluster, checkpoint_every=3) as trainer:
        until("a checkpoint", lambda: trainer.checkpoint_step)
        cluster.api_server.stop()
        saved, step = trainer.checkpoint_step, trainer.step
        until("steps", lambda: trainer.step > step + 6)
        cluster.start_api_server()
        until("a later checkpoint", lambda: (trainer.checkpoint_step or 0) > (saved or 0))
    assert len(trainer.incarnations) == 1


def test_it_notes_when_a_new_pod_runs_beside_one_that_still_stops(cluster: ControlPlane, job):
    job(pod_annotations={STOPS_AFTER: "20"})
    with trainer_of(cluster) as trainer:
        until("a step", lambda: trainer.step)
        victim = cluster.admin.list("Pod", NAMESPACE)[0]
        cluster.admin.evict(victim["metadata"]["name"], NAMESPACE)
        until("a rank that waits for its end", lambda: trainer.writers[-1].stopping)
        assert trainer.overlaps == [], "its peers are older"
        assert not trainer.is_running
        suspend(cluster, True)
        until("all told to stop", lambda: len(trainer.writers[-1].stopping) == 3)
        cluster.add_nodes(3)
        suspend(cluster, False)
        overlap = until("two writers", lambda: trainer.overlaps)[-1]
    assert victim["metadata"]["uid"] in overlap.stopping
    assert overlap.running - overlap.stopping


def test_with_its_root_it_ends(cluster: ControlPlane, job):
    job()
    with trainer_of(cluster) as trainer:
        until("a step", lambda: trainer.step)
        cluster.admin.delete("Job", NAME, NAMESPACE)
        until("its end", lambda: not trainer.is_running)
        assert trainer.metrics() == ""

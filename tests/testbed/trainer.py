"""What runs in the pods of a training job, since simulated pods run nothing: steps, checkpoints, answers to requests.

A test starts a `Trainer` beside a job of training.py (or any root that owns pods by label), and asks it afterwards
which incarnations of the program there were, from which step each started, and whether two of them ever wrote at once.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

import requests

from tests.testbed.api import ApiError, Object
from tests.testbed.control_plane import ControlPlane

#: How the pods of a root are found, whatever lies between it and them. Its controller puts the label on.
LABELS = {
    "Job": "batch.kubernetes.io/job-name",
    "JobSet": "jobset.sigs.k8s.io/jobset-name",
    "PyTorchJob": "training.kubeflow.org/job-name",
    "MPIJob": "training.kubeflow.org/job-name",
}
_PATIENCE_S = 2
_NO_ANSWER = (ApiError, requests.ConnectionError, requests.Timeout)


@dataclass(frozen=True, slots=True)
class Keys:
    """The annotations of the root that program and cluster talk through."""

    at: str = "gpuwarden.io/checkpoint-at"
    step: str = "gpuwarden.io/checkpoint-step"
    location: str = "gpuwarden.io/checkpoint-location"
    request: str = "gpuwarden.io/checkpoint-request"
    ack: str = "gpuwarden.io/checkpoint-ack"


DEFAULT_KEYS = Keys()


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The program in one set of pods, by UID, from the moment when all of them ran."""

    pods: frozenset[str]
    nodes: frozenset[str]
    started_at: datetime
    started_at_step: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """The pods of the root whose containers ran at one moment, by UID: some of them may have been told to stop."""

    at: datetime
    running: frozenset[str]
    stopping: frozenset[str]

    def differs(self, other: "Sighting") -> bool:
        """Whether others run, or others are told to stop."""
        return (self.running, self.stopping) != (other.running, other.stopping)


class Trainer:
    """The program of one training job, in a thread, as a context manager.

    It makes a step each `tick_s` while all pods that the root wants are Running and none is told to stop, and writes a
    checkpoint every `checkpoint_every` steps (never by itself where that is 0). In other pods, be it but one of them,
    it starts again: from the step of the last checkpoint, or from 0 if it `forgets`. It answers a request
    `answers_after_s` after it has seen it, or never if it is `deaf`. While the API server is away it goes on in the
    pods that it last saw.
    """

    def __init__(
        self,
        plane: ControlPlane,
        namespace: str,
        kind: str,
        name: str,
        *,
        tick_s: float = 0.2,
        checkpoint_every: int = 10,
        location: str = "s3://checkpoints",
        forgets: bool = False,
        deaf: bool = False,
        answers_after_s: float = 0,
        keys: Keys = DEFAULT_KEYS,
    ) -> None:
        self.namespace, self.kind, self.name, self.keys = namespace, kind, name, keys
        #: The step that the program is at; 0 before its first.
        self.step = 0
        #: Set it, and the program makes no more steps, writes nothing and answers nothing, though its pods run.
        self.hangs = False
        self.incarnations: list[Incarnation] = []
        #: Every change of who runs, oldest first.
        self.writers: list[Sighting] = []
        #: Those of them in which a pod ran beside one that had been told to stop before it came: two writers at once.
        self.overlaps: list[Sighting] = []
        #: The requests that it has acknowledged, in this order.
        self.acknowledged: list[str] = []
        self._api = plane.client(plane.admin.token, timeout_s=_PATIENCE_S)
        #: Steps between two checkpoints that it writes by itself; 0 for none.
        self.checkpoint_every = checkpoint_every
        self._tick_s, self._location = tick_s, location
        self._forgets, self._deaf, self._answers_after_s = forgets, deaf, answers_after_s
        self._saved_step = 0
        self._saved_at: datetime | None = None
        self._seen: set[str] = set()
        self._older_than_order: dict[str, set[str]] = {}
        self._runs = False
        self._annotations: Mapping[str, str] = {}
        self._asked: tuple[str, datetime] | None = None
        self._failure: BaseException | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"trainer of {name}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    # ------------------------------------------------------------------------------------------------ what a test asks

    @property
    def is_running(self) -> bool:
        """Whether all its pods run, so that it makes steps."""
        return self._runs

    @property
    def checkpoint_step(self) -> int | None:
        """The step of the last checkpoint as the root says it, None where it names none."""
        said = self._annotations.get(self.keys.step, "")
        return int(said) if said.isdecimal() else None

    def metrics(self) -> str:
        """What a scrape of the program gives in Prometheus' text format; nothing while it doesn't run."""
        if not self._runs:
            return ""
        labels = f'{{namespace="{self.namespace}",job="{self.name}"}}'
        lines = ["# TYPE training_step gauge", f"training_step{labels} {self.step}"]
        if self._saved_at is not None:
            lines.append("# TYPE training_checkpoint_timestamp_seconds gauge")
            lines.append(f"training_checkpoint_timestamp_seconds{labels} {self._saved_at.timestamp():.3f}")
        return "\n".join([*lines, ""])

    # ------------------------------------------------------------------------------------------------------ the program

    def _work(self) -> None:
        try:
            while not self._ends.wait(self._tick_s):
                self._tick(datetime.now(UTC))
        except BaseException as failure:  # noqa: BLE001 - told to whoever leaves the context
            self._failure = failure
            self._runs = False

    def _tick(self, now: datetime) -> None:
        # The program itself needs no API server: it steps on without, and writes what it could not at a later tick.
        with suppress(*_NO_ANSWER):
            self._look(now)
        if self._runs and not self.hangs:
            self.step += 1
            with suppress(*_NO_ANSWER):
                self._write(now)

    def _look(self, now: datetime) -> None:
        """See the root and its pods, and start again where the pods are others."""
        root = self._api.find(self.kind, self.name, self.namespace)
        if root is None:
            self._runs = False
            return
        pods = self._api.list("Pod", self.namespace, labels=f"{LABELS[self.kind]}={self.name}")
        self._annotations = root["metadata"].get("annotations", {})
        alive = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]
        sighting = Sighting(
            at=now,
            running=frozenset(map(_uid, alive)),
            stopping=frozenset(_uid(pod) for pod in alive if _told_at(pod) is not None),
        )
        if not self.writers or self.writers[-1].differs(sighting):
            self.writers.append(sighting)
            self._note_overlap(pods, sighting)
        runs = bool(alive) and not sighting.stopping and len(alive) == _wanted(root)
        if runs and (not self.incarnations or self.incarnations[-1].pods != sighting.running):
            self.step = self._saved_step = 0 if self._forgets else self.checkpoint_step or 0
            nodes = frozenset(pod["spec"]["nodeName"] for pod in alive)
            self.incarnations.append(Incarnation(sighting.running, nodes, now, self.step))
        self._runs = runs

    def _note_overlap(self, pods: list[Object], sighting: Sighting) -> None:
        """Note whether a pod runs that is newer than the order to stop of another one that still runs."""
        for pod in pods:
            told_at = _told_at(pod)
            if told_at is not None:
                older = {_uid(each) for each in pods if _created_at(each) < told_at}
                self._older_than_order.setdefault(_uid(pod), older | self._seen | {_uid(pod)})
        self._seen |= {_uid(pod) for pod in pods}
        if any(sighting.running - self._older_than_order[uid] for uid in sighting.stopping):
            self.overlaps.append(sighting)

    def _write(self, now: datetime) -> None:
        """Write the checkpoint that is due, and the answer after it."""
        request = None if self._deaf else self._request(now)
        if request or 0 < self.checkpoint_every <= self.step - self._saved_step:
            self._annotate(
                {
                    self.keys.at: now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                    self.keys.step: str(self.step),
                    self.keys.location: f"{self._location}/{self.name}/{self.step}",
                }
            )
            self._saved_step, self._saved_at = self.step, now
        if request:
            self._annotate({self.keys.ack: request})
            self.acknowledged.append(request)

    def _request(self, now: datetime) -> str | None:
        """The request to answer now: one that is not acknowledged and was seen long enough ago."""
        request = self._annotations.get(self.keys.request)
        if not request or request == self._annotations.get(self.keys.ack):
            return None
        if self._asked is None or self._asked[0] != request:
            self._asked = (request, now)
        return request if (now - self._asked[1]).total_seconds() >= self._answers_after_s else None

    def _annotate(self, annotations: Mapping[str, str]) -> None:
        self._api.patch(self.kind, self.name, {"metadata": {"annotations": dict(annotations)}}, self.namespace)
        self._annotations = {**self._annotations, **annotations}


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def _created_at(pod: Object) -> datetime:
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"])


def _told_at(pod: Object) -> datetime | None:
    """When a pod was told to stop, to the second: its deletion timestamp is the end of its grace period."""
    meta = pod["metadata"]
    if "deletionTimestamp" not in meta:
        return None
    return datetime.fromisoformat(meta["deletionTimestamp"]) - timedelta(seconds=meta["deletionGracePeriodSeconds"])


def _wanted(root: Object) -> int:
    """How many pods a root runs when all is well."""
    spec = root["spec"]
    match root["kind"]:
        case "JobSet":
            return sum(
                each.get("replicas", 1) * each["template"]["spec"]["parallelism"] for each in spec["replicatedJobs"]
            )
        case "PyTorchJob":
            return sum(each["replicas"] for each in spec["pytorchReplicaSpecs"].values())
        case "MPIJob":
            return sum(each["replicas"] for each in spec["mpiReplicaSpecs"].values())
        case _:
            return int(spec["parallelism"])

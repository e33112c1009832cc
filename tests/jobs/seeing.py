"""What the hands may see of a job on its way back: the job as it is stopped and started, its pods, its checkpoints."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from remediation.contract import ASK_BY, CHECKPOINT_AT, CHECKPOINT_LOCATION, CHECKPOINT_STEP, asking_of, checkpoint_of
from remediation.jobs import RESTART, RESTARTED, batch_job
from remediation.objects import PodView, WorkloadView
from remediation.restoring import Restart, Seen, Stage, begin, restart_id
from rules.restore_schema import RestartPolicy
from tests.acting.views import AT, pod, workload

ON = RestartPolicy(enabled=True)
ASKS = RestartPolicy(enabled=True, without_answer="ask")
ID = restart_id("inc-1", "uid-job")
ASKING, STOPPING, STARTING = Stage.ASKING, Stage.STOPPING, Stage.STARTING
WATCHING, DONE, FAILED = Stage.WATCHING, Stage.DONE, Stage.FAILED
#: When the fault was first seen.
FAULT = AT - timedelta(seconds=20)
SICK = "n1"


def after(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


def stamp(seconds: float) -> str:
    return after(seconds).isoformat()


SAVED = {CHECKPOINT_AT: stamp(-600), CHECKPOINT_STEP: "100", CHECKPOINT_LOCATION: "s3://checkpoints/llama"}
LONG_AGO = SAVED | {CHECKPOINT_AT: stamp(-7 * 3600)}
ASKABLE = {ASK_BY: "annotation"}


def saved(seconds: float, step: int = 150) -> dict[str, str]:
    return SAVED | {CHECKPOINT_AT: stamp(seconds), CHECKPOINT_STEP: str(step)}


def job(told: dict[str, str] | None = None, **fields) -> WorkloadView:
    """The job as it runs, before anything is done to it."""
    state = {"active": 2, "running_since": after(-7200)} | fields
    return workload(annotations=tuple((told or {}).items()), **state)


def stopped(told: dict[str, str] | None = None, **fields) -> WorkloadView:
    """As it is once we have suspended it and its controller is done with that."""
    state = {"suspended": True, "active": 0, "running_since": None} | fields
    return job({RESTART: ID} | (told or {}), **state)


def started(told: dict[str, str] | None = None, since: float | None = None, **fields) -> WorkloadView:
    """As it is once we have let it run; `since` is when its controller says that it does."""
    state = {"running_since": None if since is None else after(since)} | fields
    return job({RESTARTED: ID} | (told or {}), **state)


def pods(run: str, *nodes: str, **fields) -> tuple[PodView, ...]:
    """The pods of one run of the job, one on each node. They are called alike in each, as many controllers do."""
    return tuple(
        pod(f"llama-{rank}", **({"uid": f"{run}-{rank}", "node": node, "gpus": 8} | fields))
        for rank, node in enumerate(nodes)
    )


OLD = pods("old", SICK, "n2")
ENDING = pods("old", SICK, "n2", deleting_since=AT)
PATIENT = pods("old", SICK, "n2", deleting_since=AT, grace_s=7200)
NEW = pods("new", "n3", "n4")
UNREADY = pods("new", "n3", "n4", ready=False)
ALL_COMPUTE = ("new-0", "new-1")


def seen(
    told: WorkloadView | None,
    there: Sequence[PodView] = (),
    now: datetime = AT,
    *,
    computing: Collection[str] | None = (),
    out: Collection[str] = (SICK,),
    adapter=batch_job.ADAPTER,
) -> Seen:
    """What the hands would make of a job and its pods."""
    about = told or job()
    return Seen(
        job=told,
        adapter=adapter,
        pods=there,
        checkpoint=checkpoint_of(about, there, now),
        asking=asking_of(about, ON.request_deadline),
        out=out,
        computing=computing,
    )


def first(
    told: WorkloadView | None, there: Sequence[PodView] = OLD, *, asks: bool = True, moves: bool = True
) -> Restart | None:
    """The restart that begins with this job."""
    return begin("inc-1", SICK, FAULT, seen(told, there), AT, asks=asks, moves=moves)

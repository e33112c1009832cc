"""What a restart loses: now against after the next checkpoint, and afterwards; what nobody knows is no number."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.contract import (
    ASK_BY,
    ASK_DEADLINE,
    CHECKPOINT_AT,
    CHECKPOINT_LOCATION,
    CHECKPOINT_METRIC,
    INTERVAL,
    Asking,
    Freshness,
    asking_of,
    interval_of,
)
from remediation.gangs import Gang, Standing, gangs_on, standing_of
from remediation.lost_work import (
    Cheaper,
    Choice,
    Resume,
    Source,
    by_incident,
    lost_in,
    resume_of,
    span,
    weigh,
)
from remediation.objects import OwnerRef, WorkloadView
from remediation.restoring import JobRef, Reached, Restart, Stage
from rules.restore_schema import RestartPolicy
from tests.acting.views import AT, JOB, pod, workload
from tests.jobs.seeing import ASKABLE, SAVED, after, job, pods, saved

RESUME = Resume(600.0, 3)
LONGEST_S = 600.0
NOW, WAIT, DUNNO = Cheaper.NOW, Cheaper.WAIT, Cheaper.UNKNOWN
HOURLY = SAVED | {INTERVAL: "1h"}
ANY_PODS = pods("old", "n1", "n2", started=after(-7200))


def gang(told: dict[str, str], there=ANY_PODS) -> Gang:
    return Gang("Job train/llama", job(told), there)


def choice(
    told: dict[str, str], standing: Standing = Standing.RUNS, *, asked: bool = True, there=ANY_PODS, **known: Any
) -> Choice:
    """The choice for a job of 16 GPUs on two nodes that says this."""
    about = gang(told, there)
    asking = asking_of(about.root, LONGEST_S) if asked and isinstance(about.root, WorkloadView) else None
    return weigh(about, standing, RESUME, AT, asking=asking, **known)


# ------------------------------------------------------------------------------------------------------- now or later


@pytest.mark.parametrize(
    ("told", "now", "at_most", "wait", "next_in_s", "source", "cheaper", "why"),
    [
        pytest.param(HOURLY, 16 / 3, 16 / 3, 8 / 3, 3000, Source.INTERVAL, WAIT,
                     "its own next checkpoint keeps 2.7 GPU-hours unless it fails before that with a chance above 17 %",
                     id="a checkpoint of ten minutes ago, and the next one in fifty"),
        pytest.param(SAVED, 16 / 3, 16 / 3, None, None, Source.NONE, DUNNO,
                     "does not say how often it saves (gpuwarden.io/checkpoint-interval), and nobody asks it",
                     id="no interval, and no way to ask"),
        pytest.param(SAVED | ASKABLE, 16 / 3, 16 / 3, 8 / 3, 600, Source.REQUEST, WAIT,
                     "a checkpoint that it is asked for keeps 2.7 GPU-hours unless it fails before that with a chance"
                     " above 50 %", id="it can be asked"),
        pytest.param(HOURLY | ASKABLE | {ASK_DEADLINE: "5m"}, 16 / 3, 16 / 3, 8 / 3, 300, Source.REQUEST, WAIT,
                     "asked for", id="asked, it is sooner than by itself"),
        pytest.param(SAVED | ASKABLE | {INTERVAL: "12m"}, 16 / 3, 16 / 3, 8 / 3, 120, Source.INTERVAL, WAIT,
                     "its own next", id="by itself, it is sooner than when it is asked"),
        pytest.param(saved(-3900) | {INTERVAL: "1h"}, 20.0, 20.0, 8 / 3, 0, Source.INTERVAL, WAIT,
                     "its own next checkpoint, 5 min late, keeps 17.3 GPU-hours", id="it is late, so any moment"),
        pytest.param(saved(-3900) | {INTERVAL: "30m"}, 20.0, 20.0, None, None, Source.NONE, DUNNO,
                     "it saves every 30 min, and has not for 65 min", id="it does not save as it says"),
        pytest.param(SAVED | {INTERVAL: "often"}, 16 / 3, 16 / 3, None, None, Source.NONE, DUNNO,
                     "checkpoint-interval is no time", id="an interval that is none"),
        pytest.param(SAVED | {INTERVAL: "0s"}, 16 / 3, 16 / 3, None, None, Source.NONE, DUNNO,
                     "checkpoint-interval is no interval: 0s", id="an interval of nothing"),
        pytest.param(saved(0) | {INTERVAL: "1h"}, 8 / 3, 8 / 3, 8 / 3, 3600, Source.INTERVAL, NOW,
                     "from this moment, so waiting keeps nothing", id="a checkpoint of just now"),
        pytest.param(saved(60) | {INTERVAL: "1h"}, 8 / 3, 8 / 3, 8 / 3, 3600, Source.INTERVAL, NOW,
                     "from this moment", id="by a clock that runs ahead"),
        pytest.param({}, None, 16 * 7800 / 3600, None, None, Source.NONE, DUNNO,
                     "says nothing of checkpoints (gpuwarden.io/checkpoint-at), so nobody could tell",
                     id="nothing is said: what its pods did bounds it"),
        pytest.param({INTERVAL: "1h"}, None, 16 * 7800 / 3600, None, None, Source.NONE, DUNNO,
                     "so nobody could tell when the next one is there", id="an interval without a last one"),
        pytest.param(ASKABLE, None, 16 * 7800 / 3600, 8 / 3, 600, Source.REQUEST, WAIT,
                     "keeps what it has done since the last one; how much is not known: it says nothing",
                     id="it can be asked, and says nothing else"),
        pytest.param(HOURLY | ASKABLE | {CHECKPOINT_LOCATION: "emptyDir:x"}, None, 16 * 7800 / 3600, None, None,
                     Source.NONE, DUNNO, "which ends with it, and so would the next one",
                     id="its checkpoints end with its pods"),
        pytest.param(HOURLY | {CHECKPOINT_METRIC: "max(saved)"}, None, 16 / 3, 8 / 3, 3600, Source.INTERVAL, WAIT,
                     "how much is not known: its gpuwarden.io/checkpoint-metric is not asked here",
                     id="a metric may know a newer one"),
    ],
)  # fmt: skip
def test_what_acting_now_costs_against_waiting(
    told: dict[str, str], now: float | None, at_most: float | None, wait: float | None, next_in_s: float | None,
    source: Source, cheaper: Cheaper, why: str,
) -> None:  # fmt: skip
    found = choice(told)
    assert (found.job, found.pods, found.gpus) == ("Job train/llama", 2, 16)
    assert found.now_gpu_hours == (None if now is None else pytest.approx(now))
    assert found.now_at_most_gpu_hours == (None if at_most is None else pytest.approx(at_most))
    assert found.wait_gpu_hours == (None if wait is None else pytest.approx(wait))
    assert (found.next_in_s, found.source, found.cheaper) == (next_in_s, source, cheaper)
    assert why in found.why


def test_a_metric_that_was_asked_is_known() -> None:
    found = choice(HOURLY | {CHECKPOINT_METRIC: "max(saved)"}, measured=after(-60))
    assert (found.lost_s, found.next_in_s) == (60, 3540)


def test_a_job_that_failed_before_the_checkpoint_has_lost_all_of_it() -> None:
    found = choice(HOURLY)
    assert found.wait_at_worst_gpu_hours == pytest.approx(16 * (600 + 3000 + 600) / 3600)
    assert found.wait_pays_below == pytest.approx(600 / 3600)


@pytest.mark.parametrize(
    ("standing", "cheaper", "why"),
    [
        pytest.param(Standing.STOPPED, NOW,
                     "a GPU of it has failed: no checkpoint will come, and each hour of waiting leaves 16 GPUs idle",
                     id="its own GPU has failed"),
        pytest.param(Standing.UNKNOWN, DUNNO, "whether it is one of its own is not known here: if so, no checkpoint",
                     id="a GPU of its node has"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("told", [HOURLY, HOURLY | ASKABLE, {}], ids=["interval", "asked", "silent"])
def test_where_a_gpu_has_failed_nothing_is_promised_of_waiting(
    standing: Standing, cheaper: Cheaper, why: str, told: dict[str, str]
) -> None:
    found = choice(told, standing)
    assert (found.cheaper, found.next_in_s, found.wait_gpu_hours, found.wait_at_worst_gpu_hours) == (
        cheaper, None, None, None,
    )  # fmt: skip
    assert why in found.why
    assert found.now_at_most_gpu_hours == choice(told).now_at_most_gpu_hours


def test_a_job_that_nobody_asks_is_not_waited_for() -> None:
    assert choice(SAVED | ASKABLE, asked=False).next_in_s is None


@pytest.mark.parametrize("asking", [None, Asking(None, 300.0), asking_of(job({ASK_BY: "sigterm"}), 300.0)])
def test_who_cannot_be_asked_beforehand_is_not_waited_for(asking: Asking | None) -> None:
    assert weigh(gang(SAVED), Standing.RUNS, RESUME, AT, asking=asking).next_in_s is None


@pytest.mark.parametrize(
    ("told", "standing", "now", "cheaper"),
    [
        pytest.param(HOURLY, Standing.RUNS, None, DUNNO, id="it runs: the stop may bring a checkpoint"),
        pytest.param(HOURLY, Standing.STOPPED, 16 / 3, NOW, id="it stands still, and saves nothing any more"),
        pytest.param({}, Standing.RUNS, None, DUNNO, id="nothing else is said"),
        pytest.param(SAVED | {CHECKPOINT_LOCATION: "tmpfs"}, Standing.RUNS, None, DUNNO, id="what it saves is lost"),
    ],
)
def test_of_a_job_that_saves_when_it_is_stopped_only_a_bound_is_known(
    told: dict[str, str], standing: Standing, now: float | None, cheaper: Cheaper
) -> None:
    found = choice(told | {ASK_BY: "sigterm"}, standing)
    assert found.now_gpu_hours == (None if now is None else pytest.approx(now))
    assert found.now_at_most_gpu_hours == choice(told, standing).now_at_most_gpu_hours
    assert found.cheaper is cheaper
    lasts = found.checkpoint is not Freshness.LOST
    assert ("saves when it is stopped" in found.why) == (lasts and standing is Standing.RUNS)


def test_a_start_after_the_last_checkpoint_counts_instead_of_it() -> None:
    """What lay between them was lost before."""
    found = choice(HOURLY, there=pods("new", "n1", "n2", started=after(-120)))
    assert (found.lost_s, found.next_in_s) == (120, 3480)


@pytest.mark.parametrize(
    ("root", "why"),
    [
        pytest.param(None, "nothing controls it, and nothing says when it saved", id="a pod alone"),
        pytest.param(OwnerRef("x/v1", "Flow", "f", "u"), "its Flow is not read, so more pods may belong to it",
                     id="a kind that is not known"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_bounded_by_its_pods(root: OwnerRef | None, why: str) -> None:
    found = weigh(Gang("x", root, ANY_PODS), Standing.RUNS, RESUME, AT)
    assert (found.now_gpu_hours, found.checkpoint) == (None, Freshness.UNKNOWN)
    assert found.now_at_most_gpu_hours == pytest.approx(16 * 7800 / 3600)
    assert why in found.why


def test_where_no_pod_says_when_it_started_there_is_no_bound_either() -> None:
    found = choice({}, there=pods("old", "n1", "n2"))
    assert (found.lost_s, found.lost_at_most_s, found.now_gpu_hours, found.now_at_most_gpu_hours) == (None,) * 4
    assert choice(ASKABLE, there=pods("old", "n1")).wait_at_worst_gpu_hours is None


AGES = st.integers(-60, 3 * 86_400)
WORDS = st.dictionaries(
    st.sampled_from([CHECKPOINT_AT, CHECKPOINT_LOCATION, CHECKPOINT_METRIC, INTERVAL, ASK_BY, ASK_DEADLINE]),
    st.text(max_size=12) | st.sampled_from(["1h", "9" * 400 + "w", "s3://x", "annotation", after(-60).isoformat()]),
)


@given(WORDS, st.sampled_from(Standing), st.none() | AGES, st.integers(0, 10_000), st.booleans())
def test_whatever_a_job_says_no_figure_is_below_zero_and_no_unknown_is_a_figure(
    told: dict[str, str], standing: Standing, started: int | None, resume_s: int, asked: bool
) -> None:
    there = pods("old", "n1", "n2", started=None if started is None else after(-started))
    about = gang(told, there)
    asking = asking_of(job(told), LONGEST_S) if asked else None
    found = weigh(about, standing, Resume(resume_s, 1), AT, asking=asking)
    figures = [
        found.lost_s, found.lost_at_most_s, found.now_gpu_hours, found.now_at_most_gpu_hours, found.next_in_s,
        found.wait_gpu_hours, found.wait_at_worst_gpu_hours, found.wait_pays_below,
    ]  # fmt: skip
    assert all(one is None or (one >= 0 and math.isfinite(one)) for one in figures)
    assert found.why
    if found.checkpoint is not Freshness.KNOWN:
        assert (found.lost_s, found.now_gpu_hours, found.wait_pays_below) == (None, None, None)
    if standing is not Standing.RUNS:
        assert (found.next_in_s, found.wait_gpu_hours, found.cheaper is WAIT) == (None, None, False)
    if found.next_in_s is None:
        assert (found.wait_gpu_hours, found.source, found.cheaper is WAIT) == (None, Source.NONE, False)
    if found.now_gpu_hours is not None and found.wait_gpu_hours is not None:
        assert found.wait_gpu_hours <= found.now_gpu_hours
    if found.wait_at_worst_gpu_hours is not None:
        assert found.now_at_most_gpu_hours is not None
        assert found.now_at_most_gpu_hours <= found.wait_at_worst_gpu_hours


@given(AGES, AGES, st.integers(1, 64), st.integers(1, 64), st.booleans())
def test_it_grows_with_the_age_of_the_checkpoint_and_with_the_gang(
    age: int, more_age: int, count: int, more: int, is_known: bool
) -> None:
    def cost(age_s: int, nodes: int) -> float:
        there = pods("old", *(f"n{number}" for number in range(nodes)), started=after(-4 * 86_400))
        if not is_known:
            there = tuple(replace(one, started=after(-age_s)) for one in there)
        found = choice(saved(-age_s) if is_known else {}, there=there)
        figure = found.now_gpu_hours if is_known else found.now_at_most_gpu_hours
        assert figure is not None
        return figure

    older, younger = max(age, more_age), min(age, more_age)
    assert cost(older, count) >= cost(younger, count)
    assert cost(age, count + more) > cost(age, count)


@pytest.mark.parametrize(
    ("told", "every_s"), [("30m", 1800), ("1h30m", 5400), ("", None), ("2", None), ("53w", None), ("-5m", None)]
)
def test_an_interval_is_written_as_durations_are(told: str, every_s: float | None) -> None:
    found, wrong = interval_of(job({INTERVAL: told}))
    assert (found, bool(wrong)) == (every_s, every_s is None and bool(told))


# -------------------------------------------------------------------------------------------------------------- gangs


def test_a_gang_is_all_of_a_job_wherever_it_runs_and_nothing_else() -> None:
    other = OwnerRef("batch/v1", "Job", "bert", "uid-bert")
    service = OwnerRef("apps/v1", "ReplicaSet", "web", "uid-web")
    llama, bert = workload(), workload(other)
    by_node = {
        "n1": (*pods("old", "n1"), pod("bert-0", owner=other, gpus=1), pod("web", owner=service, gpus=1),
               pod("cpu", gpus=0), pod("done", gpus=8, phase="Succeeded"), pod("alone", owner=None, gpus=1)),
        "n2": (pod("llama-1", node="n2", gpus=8), pod("llama-2", node="n2", gpus=8, deleting_since=AT)),
        "n3": (pod("bert-9", node="n3", owner=other, gpus=1), pod("stray", node="n3", owner=None, gpus=8)),
        "": (pod("llama-3", node="", phase="Pending", gpus=8),),
    }  # fmt: skip
    found = gangs_on("n1", by_node, {llama.uid: llama, bert.uid: bert})
    assert [(one.name, one.gpus, len(one.pods)) for one in found] == [
        ("Job train/bert", 2, 2), ("Job train/llama", 24, 4), ("Pod train/alone", 1, 1),
    ]  # fmt: skip
    assert found[1].on("n1") == 8
    assert gangs_on("n9", by_node, {}) == ()


def test_pods_that_all_go_are_the_gang_still() -> None:
    ending = pods("old", "n1", "n2", deleting_since=AT)
    (found,) = gangs_on("n1", {"n1": ending[:1], "n2": ending[1:]}, {JOB.uid: workload()})
    assert found.gpus == 16


@pytest.mark.parametrize(
    ("gpus", "failed", "standing"),
    [
        pytest.param(8, {}, Standing.RUNS, id="none has failed"),
        pytest.param(8, {"n9": 8}, Standing.RUNS, id="one of another node"),
        pytest.param(8, {"n1": 1}, Standing.STOPPED, id="it has the whole node"),
        pytest.param(8, {"n2": 1}, Standing.STOPPED, id="one of its other node"),
        pytest.param(4, {"n1": 1}, Standing.UNKNOWN, id="it has a part of the node"),
        pytest.param(4, {"n1": 5}, Standing.STOPPED, id="more have failed than others could have"),
        pytest.param(4, {"n1": 4}, Standing.UNKNOWN, id="as many as others could have"),
        pytest.param(8, {"small": 1}, Standing.UNKNOWN, id="a node whose size is not known"),
    ],
)
def test_a_job_stands_still_for_sure_only_where_no_other_gpu_could_have_failed(
    gpus: int, failed: dict[str, int], standing: Standing
) -> None:
    about = gang({}, pods("old", "n1", "n2", "small", gpus=gpus))
    assert standing_of(about, failed, {"n1": 8, "n2": 8, "small": 0}) is standing


# --------------------------------------------------------------------------------------------------------- afterwards

FAULT = AT - timedelta(hours=2)
OPENED = FAULT + timedelta(minutes=1)
STOPPED = FAULT + timedelta(minutes=4)
REF = JobRef("batch/v1", "Job", "train", "llama", "u")


def minutes(count: float) -> datetime:
    """So many minutes after the fault."""
    return FAULT + timedelta(minutes=count)


def restart(**fields: Any) -> Restart:
    """One that ended well: stopped 4 minutes after the fault, back at work after 16, past its checkpoint after 60."""
    back = tuple(Reached(level, minutes(at)) for level, at in enumerate((6, 9, 10, 16, 60)))
    made = Restart(
        "gw-1", "inc-1", "n1", REF, Stage.DONE, minutes(60), FAULT, moves=True, pods=2, gpus=60, old=(),
        stopped_at=STOPPED, checkpoint_at=minutes(-30), reached=back,
    )  # fmt: skip
    return replace(made, **fields)


Parts = Sequence[tuple[float | None, float | None]]


@pytest.mark.parametrize(
    ("fields", "opened", "parts", "total"),
    [
        pytest.param({}, OPENED, [(1800, 30), (60, 1), (180, 3), (720, 12)], 46, id="all is known"),
        pytest.param({}, None, [(1800, 30), (None, None), (None, None), (720, 12)], 46,
                     id="when the incident opened is not known, and the whole is"),
        pytest.param({"checkpoint_at": None}, OPENED, [(None, None), (60, None), (180, None), (720, 12)], None,
                     id="the checkpoint is not known: only the restart is lost for sure"),
        pytest.param({"checkpoint_at": minutes(2)}, OPENED, [(0, 0), (60, 0), (180, 2), (720, 12)], 14,
                     id="it saved when it was asked"),
        pytest.param({"checkpoint_at": minutes(5)}, OPENED, [(0, 0), (60, 0), (180, 0), (720, 11)], 11,
                     id="it saved when it was stopped"),
        pytest.param({"stage": Stage.WATCHING, "reached": ()}, OPENED,
                     [(1800, 30), (60, 1), (180, 3), (None, None)], None, id="it is not back yet"),
        pytest.param({"stage": Stage.FAILED}, OPENED, [(1800, 30), (60, 1), (180, 3), (None, None)], None,
                     id="it has failed after its pods were there"),
        pytest.param({"detected_at": minutes(9)}, minutes(20), [(2040, 34), (0, 0), (0, 0), (720, 12)], 46,
                     id="signals that came after the stop detected nothing"),
    ],
)  # fmt: skip
def test_each_part_of_what_was_lost(
    fields: dict[str, Any], opened: datetime | None, parts: Parts, total: float | None
) -> None:
    found = lost_in(restart(**fields), opened)
    assert found is not None
    assert [(part.seconds, part.gpu_hours) for _, part in found.parts] == [
        (seconds, None if hours is None else pytest.approx(hours)) for seconds, hours in parts
    ]
    assert found.gpu_hours == (None if total is None else pytest.approx(total))
    known = math.fsum(hours for _, hours in parts if hours is not None)
    assert found.at_least_gpu_hours == pytest.approx(known if total is None else total)


@pytest.mark.parametrize(
    "fields",
    [pytest.param({"moves": False}, id="a job that is only asked"), pytest.param({"stopped_at": None}, id="no stop")],
)
def test_where_no_job_was_stopped_nothing_was_lost_by_it(fields: dict[str, Any]) -> None:
    assert lost_in(restart(**fields), OPENED) is None


SPANS = st.none() | st.integers(-300, 300)


@given(SPANS, SPANS, st.integers(-60, 60), st.integers(-300, 300), st.integers(0, 512), st.sampled_from(Stage))
def test_parts_are_never_below_zero_and_add_up_to_the_whole(
    saved_at: int | None, opened: int | None, stopped: int, back: int, gpus: int, stage: Stage
) -> None:
    made = restart(
        checkpoint_at=None if saved_at is None else minutes(saved_at), stopped_at=minutes(stopped), gpus=gpus,
        reached=(Reached(0, minutes(stopped)), Reached(1, minutes(max(back, stopped)))), stage=stage,
    )  # fmt: skip
    found = lost_in(made, None if opened is None else minutes(opened))
    assert found is not None
    hours = [part.gpu_hours for _, part in found.parts]
    assert all(one is None or one >= 0 for one in hours)
    assert all(part.seconds is None or part.seconds >= 0 for _, part in found.parts)
    assert (found.gpu_hours is None) == (saved_at is None or stage is not Stage.DONE)
    if found.gpu_hours is not None:
        assert found.gpu_hours == pytest.approx(made.lost_gpu_hours)
        if opened is not None:
            assert found.gpu_hours == pytest.approx(math.fsum(one for one in hours if one is not None))
    assert found.at_least_gpu_hours >= 0


def test_an_incident_s_jobs_are_added_up_and_one_that_is_not_known_leaves_a_bound() -> None:
    known, unknown = lost_in(restart(), OPENED), lost_in(restart(checkpoint_at=None, incident="inc-2"), OPENED)
    other = lost_in(restart(incident="inc-2", gpus=6), OPENED)
    assert known
    assert unknown
    assert other
    first, second = by_incident([known, unknown, other])
    assert (first.incident, first.restarts, first.gpus, first.gpu_hours) == ("inc-1", 1, 60, pytest.approx(46))
    assert (second.incident, second.restarts, second.gpus, second.gpu_hours) == ("inc-2", 2, 66, None)
    assert second.at_least_gpu_hours == pytest.approx(12 + 4.6)


# ----------------------------------------------------------------------------------------------------- time to resume

POLICY = RestartPolicy()


def took(minutes_after: float, **fields: Any) -> Restart:
    """One that computed again so many minutes after its stop, and saved an hour later."""
    at = STOPPED + timedelta(minutes=minutes_after)
    back = (*(Reached(level, at) for level in range(4)), Reached(4, at + timedelta(hours=1)))
    return restart(**({"reached": back} | fields))


@pytest.mark.parametrize(
    ("restarts", "seconds", "count"),
    [
        pytest.param([], 600, 0, id="none: policy says it"),
        pytest.param([took(5), took(30), took(10)], 600, 3, id="the median"),
        pytest.param([took(5), took(10)], 450, 2, id="of two"),
        pytest.param([took(5), took(90, stage=Stage.FAILED)], 300, 1, id="without one that failed"),
        pytest.param([took(90, stage=Stage.WATCHING)], 600, 0, id="or is under way"),
        pytest.param([took(90, reached=(Reached(1, minutes(90)),))], 600, 0, id="or ended before it computed"),
        pytest.param([took(90, stopped_at=None)], 600, 0, id="or was not stopped by us"),
    ],
)
def test_the_time_to_resume_is_that_of_restarts_that_ended_well(
    restarts: list[Restart], seconds: float, count: int
) -> None:
    found = resume_of(restarts, POLICY)
    assert (found.seconds, found.restarts) == (seconds, count)


def test_an_assumption_is_called_one() -> None:
    assert "assumed (restart.typical_resume)" in str(resume_of([], RestartPolicy(typical_resume=90.0)))
    assert str(resume_of([took(5)], POLICY)) == "300 s, the median of one restart that ended well"
    assert "of 2 restarts" in str(resume_of([took(5), took(10)], POLICY))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (3600, "60 min"), (7200, "2.0 h"), (90_000, "25.0 h")],
)
def test_times_for_people(seconds: float, told: str) -> None:
    assert span(seconds) == told

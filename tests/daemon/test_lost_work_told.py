"""What `gpuwarden plan` and `gpuwarden explain` tell of lost work, for people and as data."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from daemon.commands.around import Look
from daemon.commands.explain import explain
from daemon.commands.marks import Marks
from daemon.commands.plan import _read
from daemon.commands.plan_table import print_report
from daemon.commands.planned import Report, as_data, shown
from daemon.commands.stakes import AtStake, lost_work
from daemon.journal import restart_entry
from daemon.ledger import Entry, EntryKind, Ledger, encode_body
from daemon.memory import VerdictMemory
from detectors.findings import GpuState, Incident, Verdict
from remediation.contract import CHECKPOINT_AT, CHECKPOINT_LOCATION, CHECKPOINT_METRIC, INTERVAL
from remediation.lost_work import Choice, Resume
from remediation.modes import Modes
from remediation.restoring import JobRef, Reached, Restart, Stage
from rules.schema import Policy, RuleBook
from rules.vocabulary import Tier
from tests.acting.scenes import calm_scene, serving, training
from tests.acting.views import workload
from tests.decide.incidents import AT, incident
from tests.jobs.seeing import ASKABLE

RESUME = Resume(600.0, 0)
SAVED = {
    CHECKPOINT_AT: (AT - timedelta(minutes=30)).isoformat(), CHECKPOINT_LOCATION: "s3://x", INTERVAL: "1h",
}  # fmt: skip
Out = pytest.CaptureFixture[str]

# ---------------------------------------------------------------------------------------------------------------- plan


def look(
    rules: RuleBook, told: Mapping[str, str], *incidents: Incident, restarts: bool = False, gpus: int = 8, **scene: Any
) -> Look:
    """A job of two nodes that says this of its checkpoints, beside a service."""
    policy = rules.policy.model_copy(
        update={"restart": rules.policy.restart.model_copy(update={"enabled": restarts})}
    )  # fmt: skip
    llama = workload(annotations=tuple(told.items()), active=2)
    started = AT - timedelta(hours=3)
    there = (
        training(gpus=gpus, started=started), training("llama-1", "n001", gpus=gpus, started=started), serving(),
    )  # fmt: skip
    about = calm_scene(pods=there, workloads={llama.uid: llama}, **scene)
    return Look(about.fleet.nodes["n000"], about, incidents, (), policy, Modes(), AT)


def verdict(node: str, gpu: str, state: GpuState = GpuState.FAILED) -> Verdict:
    return Verdict(node, gpu, state, 1.0, AT, 1.0)


def only(about: Look, *verdicts: Verdict) -> Choice:
    (one,) = lost_work(about, verdicts, RESUME).jobs
    return one


FACT = incident(gpu_uuids=("GPU-1",))
ELSEWHERE = incident("inc-2", "n001", gpu_uuids=("GPU-9",))
WHOLE = incident("inc-3", "n000", gpu_uuids=())


@pytest.mark.parametrize(
    ("incidents", "verdicts", "standing"),
    [
        pytest.param([], [], "runs", id="nothing is wrong"),
        pytest.param([FACT], [verdict("n000", "GPU-1")], "stopped", id="a fact, and its GPU has failed"),
        pytest.param([FACT], [verdict("n000", "GPU-1", GpuState.FAILING)], "runs", id="a fact, and it works still"),
        pytest.param([FACT], [verdict("n000", "GPU-2")], "runs", id="another GPU, of which no incident tells"),
        pytest.param([replace(FACT, tier=Tier.TREND)], [verdict("n000", "GPU-1")], "runs", id="a trend"),
        pytest.param([ELSEWHERE], [verdict("n001", "GPU-9")], "stopped", id="on another node of the job"),
        pytest.param([WHOLE], [verdict("n000", "GPU-7")], "stopped", id="a fact about the node, with a failed GPU"),
    ],
)
def test_a_job_stands_still_where_a_fact_has_failed_a_gpu_of_it(
    rules: RuleBook, incidents: list[Incident], verdicts: list[Verdict], standing: str
) -> None:
    assert only(look(rules, SAVED, *incidents), *verdicts).standing == standing


def test_of_a_job_with_a_part_of_the_node_it_is_not_known(rules: RuleBook) -> None:
    found = only(look(rules, SAVED, FACT, gpus=4), verdict("n000", "GPU-1"), verdict("n000", "GPU-1"))
    assert (found.standing, found.cheaper, found.gpus) == ("unknown", "unknown", 8)


@pytest.mark.parametrize(("restarts", "source"), [(True, "request"), (False, "interval")])
def test_only_jobs_that_are_restarted_as_a_whole_are_asked(rules: RuleBook, restarts: bool, source: str) -> None:
    assert only(look(rules, SAVED | ASKABLE, restarts=restarts)).source == source


def test_a_metric_that_the_scene_knows_counts(rules: RuleBook) -> None:
    told = SAVED | {CHECKPOINT_METRIC: "max(saved)"}
    assert only(look(rules, told)).now_gpu_hours is None
    known = look(rules, told, measured={"uid-job": AT - timedelta(minutes=6)})
    assert only(known).now_gpu_hours == pytest.approx(16 * (6 + 10) / 60)


def report(about: Look, *verdicts: Verdict, resume: Resume = RESUME) -> Report:
    """An answer in which only lost work is of interest."""
    return Report(
        AT, AT, "", "observe", "observe", shown(about), None, (), Marks(None, None, None, (), ()), (), "",
        AtStake(0, 0, 0.0, ()), lost_work(about, verdicts, resume), "", (),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("told", "failed", "line", "why"),
    [
        pytest.param(
            SAVED, False,
            "Job train/llama 16 10.7 (30 min of work) 2.7 in about 30 min; at most 18.7 if it fails before to wait",
            "its own next checkpoint keeps 8.0 GPU-hours unless it fails before that with a chance above 50 %",
            id="known",
        ),
        pytest.param(
            SAVED, True,
            "Job train/llama 16 10.7 (30 min of work) - now",
            "a GPU of it has failed: no checkpoint will come, and each hour of waiting leaves 16 GPUs idle",
            id="a GPU has failed",
        ),
        pytest.param(
            {}, False,
            "Job train/llama 16 at most 50.7 - not known",
            "it says nothing of checkpoints (gpuwarden.io/checkpoint-at), so nobody could tell when the next one is"
            " there",
            id="nothing is said",
        ),
        pytest.param(
            SAVED | {CHECKPOINT_METRIC: "x"}, False,
            "Job train/llama 16 at most 10.7 2.7 within 60 min; at most 26.7 if it fails before to wait",
            "its own next checkpoint keeps what it has done since the last one; how much is not known: its"
            " gpuwarden.io/checkpoint-metric is not asked here",
            id="a metric may know better",
        ),
    ],
)  # fmt: skip
def test_people_get_a_line_for_each_job(
    rules: RuleBook, capsys: Out, told: Mapping[str, str], failed: bool, line: str, why: str
) -> None:
    print_report(report(look(rules, told, FACT), *([verdict("n000", "GPU-1")] if failed else [])))
    lines = [" ".join(one.split()) for one in capsys.readouterr().out.splitlines()]
    assert line in lines
    assert f"Job train/llama: {why}" in lines
    assert "work that a restart loses, in GPU-hours of the whole job" in lines
    assert (
        "to resume: 600 s, assumed (restart.typical_resume): no restart has ended well yet" in lines
    )  # fmt: skip


def test_a_pod_that_has_not_started_has_no_figure_at_all(rules: RuleBook, capsys: Out) -> None:
    about = look(rules, {})
    waits = replace(about.scene, pods_by_node={"n000": (training(started=None),)})
    print_report(report(replace(about, scene=waits)))
    assert " 8     not known  -" in " ".join(capsys.readouterr().out.splitlines()).replace("  8", " 8")


def test_a_node_without_training_has_nothing_to_lose(rules: RuleBook, capsys: Out) -> None:
    about = look(rules, {})
    idle = replace(about, scene=replace(about.scene, pods_by_node={"n000": (serving(),)}))
    print_report(report(idle))
    assert "work that a restart loses" not in capsys.readouterr().out


def test_tools_get_every_figure_and_null_for_what_is_not_known(rules: RuleBook) -> None:
    told = as_data(report(look(rules, {})))["lost_work"]
    assert told["resume"] == {"seconds": 600.0, "restarts": 0}
    (one,) = told["jobs"]
    assert one["now_gpu_hours"] is None
    assert one["now_at_most_gpu_hours"] == pytest.approx(16 * (3 + 1 / 6))
    assert (one["job"], one["wait_gpu_hours"], one["cheaper"]) == ("Job train/llama", None, "unknown")


# ------------------------------------------------------------------------------------------------------------- explain

REF = JobRef("batch/v1", "Job", "train", "llama", "u")
FAULT = AT - timedelta(hours=2)


def minutes(count: float) -> datetime:
    """So many minutes after the fault."""
    return FAULT + timedelta(minutes=count)


def restart(name: str = "gw-1", **fields: Any) -> Restart:
    """One that ended well: saved half an hour before the fault, stopped 4 minutes after it, back after 16."""
    back = tuple(Reached(level, minutes(at)) for level, at in enumerate((6, 9, 10, 16, 60)))
    made = Restart(
        name, "inc-1", "n000", REF, Stage.DONE, minutes(60), FAULT, moves=True, pods=2, gpus=60, old=(),
        stopped_at=minutes(4), checkpoint_at=minutes(-30), reached=back,
    )  # fmt: skip
    return replace(made, **fields)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A ledger with one incident that opened a minute after its first signal."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    one = incident(first_signal_at=FAULT, opened=minutes(1))
    opened = Entry(EntryKind.INCIDENT_OPENED, minutes(1), encode_body(one), "inc-1", "n000")
    with Ledger.open(url, now=lambda: AT) as ledger:
        ledger.append([opened], state=VerdictMemory().pack(AT, "", [verdict("n000", "GPU-0000-0")], {}))
    path = tmp_path / "gpuwarden.yaml"
    path.write_text(yaml.safe_dump({"ledger": {"url": url}}), encoding="utf-8")
    return path


def write(config: Path, *restarts: Restart) -> None:
    with Ledger.open(f"sqlite:///{config.parent / 'ledger.db'}", now=lambda: AT) as ledger:
        ledger.append([restart_entry(one) for one in restarts])


@pytest.mark.usefixtures("loaded")
def test_explain_tells_each_part_of_what_a_restart_lost(config: Path, capsys: Out) -> None:
    other = replace(REF, name="bert", uid="v")
    asked = restart("gw-3", moves=False, stopped_at=None, job=replace(REF, uid="w"))
    write(config, restart(), restart("gw-2", job=other, checkpoint_at=None, gpus=6), asked)
    assert explain("n000", config, "table", now=AT) == 0
    lines = [" ".join(one.split()) for one in capsys.readouterr().out.splitlines()]
    assert "work lost, in GPU-hours of the whole job" in lines
    assert "Job train/llama inc-1 60 30.0 (30 min) 1.0 (60 s) 3.0 (3 min) 12.0 (12 min) 46.0" in lines
    assert (
        "Job train/bert inc-1 6 not known not known (60 s) not known (3 min) 1.2 (12 min) at least 1.2" in lines
    )  # fmt: skip
    assert "inc-1: at least 47.2 in 2 jobs with 66 GPUs" in lines


@pytest.mark.usefixtures("loaded")
def test_explain_gives_tools_the_same(config: Path, capsys: Out) -> None:
    write(config, restart(), restart("gw-3", moves=False, stopped_at=None, job=replace(REF, uid="w")))
    assert explain("n000", config, "json", now=AT) == 0
    told = json.loads(capsys.readouterr().out)
    lost, nothing = (one["lost_work"] for one in told["restarts"])
    assert lost["detection"] == {"seconds": 60.0, "gpu_hours": 1.0}
    assert lost["gpu_hours"] == pytest.approx(46)
    assert nothing is None
    assert told["lost_work"] == [
        {"incident": "inc-1", "restarts": 1, "gpus": 60, "gpu_hours": pytest.approx(46),
         "at_least_gpu_hours": pytest.approx(46)},
    ]  # fmt: skip


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("form", ["table", "json"])
def test_where_no_job_was_restarted_there_is_nothing_to_tell(config: Path, capsys: Out, form: str) -> None:
    assert explain("n000", config, form, now=AT) == 0
    out = capsys.readouterr().out
    assert "work lost" not in out
    if form == "json":
        assert json.loads(out)["lost_work"] == []


def test_the_time_to_resume_is_read_from_the_ledger(config: Path, rules: RuleBook) -> None:
    lately = restart()
    policy: Policy = rules.policy
    with Ledger.open(f"sqlite:///{config.parent / 'ledger.db'}", now=lambda: AT) as ledger:
        assert _read(ledger, policy).resume == Resume(policy.restart.typical_resume, 0)
    moved = timedelta(days=(datetime.now(AT.tzinfo) - AT).days)
    back = tuple(Reached(one.level, one.at + moved) for one in lately.reached)
    write(config, replace(lately, at=lately.at + moved, stopped_at=minutes(4) + moved, reached=back))
    with Ledger.open(f"sqlite:///{config.parent / 'ledger.db'}", now=lambda: AT) as ledger:
        assert _read(ledger, policy).resume == Resume(720.0, 1)

"""Lost work on the report's page: a tile for all of it, and of each incident whose it was."""

from typing import Any

import pytest

from daemon.report.page import render
from tests.report.conftest import ReportMaker, incident
from tests.report.test_report_page import words

LOST = {
    "stops_work": True, "jobs": ["ml/llama"], "gang_gpus": 64, "since_checkpoint_seconds": None,
    "detection_seconds": 90.0, "restart_seconds": None, "detection_gpu_hours": 1.6,
    "gpu_hours_per_hour_of_interval": 64, "gpu_hours": None,
}  # fmt: skip
SUM = {
    "incidents": 3, "unknown": 1, "gang_gpus": 128, "detection_gpu_hours": 1.6,
    "gpu_hours_per_hour_of_interval": 128, "gpu_hours": None,
}  # fmt: skip
NONE = {"gang_gpus": None, "gpu_hours_per_hour_of_interval": None, "detection_gpu_hours": None, "jobs": []}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param({}, "Lost work 1.6 GPU-hours of detection, in 3 incidents that would stop jobs", id="sure"),
        pytest.param({}, "and 128 for each hour since their last checkpoints, and until they are back", id="the rest"),
        pytest.param({}, "1 incident of jobs that no metric names", id="what nobody knows"),
        pytest.param({"incidents": 0, "unknown": 0, "gang_gpus": 0}, "Lost work none no incident called for a job's",
                     id="nothing"),
        pytest.param({"detection_gpu_hours": None, "gpu_hours_per_hour_of_interval": None}, "Lost work –",
                     id="all of it unknown"),
    ],
)  # fmt: skip
def test_the_tile(report: ReportMaker, changes: dict[str, Any], told: str) -> None:
    assert told in words(render(report(lost_work=SUM | changes)))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param({}, "64 GPUs of ml/llama 64 GPU-hours for each hour since the last checkpoint, and until the job"
                     " is back 1.6 GPU-hours for the detection, 1 min 30 s", id="a job"),
        pytest.param({"jobs": [f"ml/{name}" for name in "abcdef"]}, "64 GPUs of ml/a, ml/b, ml/c, ml/d and 2 more",
                     id="many jobs"),
        pytest.param({"stops_work": False}, "its plan stops no job, so that is lost only where the job ends by itself",
                     id="a plan that stops none"),
        pytest.param({"gang_gpus": 0, "jobs": []}, "none: no job ran here", id="an idle GPU"),
        pytest.param(NONE, "not known: no metric says whose job ran here", id="nobody knows"),
    ],
)  # fmt: skip
def test_each_incident_says_whose_work_it_was(report: ReportMaker, changes: dict[str, Any], told: str) -> None:
    assert told in words(render(report([incident(lost_work=LOST | changes)])))


def test_a_trend_has_no_detection_to_lose(report: ReportMaker) -> None:
    seen = words(render(report([incident(lost_work=LOST | {"detection_gpu_hours": None})])))
    assert "for the detection" not in seen


def test_a_report_of_an_older_version_has_neither(report: ReportMaker) -> None:
    assert "Lost work" not in words(render(report([incident()])))


def test_names_of_jobs_are_text(report: ReportMaker) -> None:
    page = render(report([incident(lost_work=LOST | {"jobs": ["<script>alert(1)</script>"]})]))
    assert "<script>alert" not in page

"""`gpuwarden chronic` and `gpuwarden mttr`: what the ledger says of things that fail again, and jobs that are back."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from daemon.commands.chronic import chronic, outages_of
from daemon.commands.mttr import mttr, recoveries
from daemon.commands.output import ExitCode
from daemon.journal import restart_entry
from daemon.ledger import Entry, EntryKind, Ledger, encode_body
from daemon.memory import VerdictMemory
from detectors.findings import GpuState, Incident, Verdict
from remediation.restoring import JobRef, Reached, Restart, Stage
from rules.vocabulary import CauseClass, Tier
from tests.decide.incidents import incident

START = datetime(2026, 3, 1, tzinfo=UTC)
NOW = START + timedelta(days=60)
GPUS = {f"GPU-{number}": (f"n{number // 2}", str(number % 2), "") for number in range(40)}
JOB = JobRef("batch/v1", "Job", "train", "llama", "u")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def outage(number: int, day: float, gpu: str = "GPU-0", hours: float = 6, **fields: Any) -> Incident:
    """An incident of one GPU that began so many days after the start."""
    began, node = START + timedelta(days=day), GPUS[gpu][0]
    ends = began + timedelta(hours=hours)
    told = {"opened": began, "first_signal_at": began, "closed": ends, "gpu_uuids": (gpu,), "nodes": (node,)}
    return incident(f"inc-{number}", node, **(told | fields))


def written(folder: Path, *entries: Entry) -> Path:
    """A configuration whose ledger holds these entries, and the verdicts of all GPUs."""
    path = folder / "ledger.db"
    verdicts = [Verdict(node, gpu, GpuState.HEALTHY, 0.0, START, 1.0) for gpu, (node, _, _) in GPUS.items()]
    with Ledger.open(f"sqlite:///{path}", now=lambda: NOW) as ledger:
        ledger.append([Entry(EntryKind.RUN_STARTED, START, {}, key="run"), *entries])
        ledger.append((), state=VerdictMemory().pack(NOW, "", verdicts, GPUS))
    config = folder / "gpuwarden.yaml"
    told = {"prometheus": {"url": "http://127.0.0.1:1"}, "ledger": {"url": f"sqlite:///{path}"}}
    config.write_text(yaml.safe_dump(told), encoding="utf-8")
    return config


def told_of(*incidents: Incident) -> list[Entry]:
    return [
        Entry(kind, at, encode_body(one), one.id, one.node, key=f"{one.id}/{kind}")
        for one in incidents
        for kind, at in ((EntryKind.INCIDENT_OPENED, one.opened), (EntryKind.INCIDENT_CLOSED, one.closed or one.opened))
    ]


# ------------------------------------------------------------------------------------------------------------- chronic

OFTEN = [outage(number, day) for number, day in enumerate((40, 45, 50, 54, 57, 58.5))]
ONCE = outage(9, 20, "GPU-7")


@pytest.mark.parametrize(
    ("kind", "worst"),
    [
        pytest.param("gpu", "gpu:GPU-0", id="the GPU"),
        pytest.param("node", "node:n0", id="its node"),
        pytest.param("slot", "slot:n0/0", id="its slot, whichever board is in it"),
    ],
)
def test_what_keeps_failing_is_ranked_first(tmp_path: Path, capsys, kind: str, worst: str) -> None:
    config = written(tmp_path, *told_of(*OFTEN, ONCE))
    assert chronic(config, kind, 5, "json", now=NOW) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    first = told["things"][0]
    assert (first["thing"], first["outages"], first["chronic"]) == (worst, 6, True)
    assert len(told["things"]) == 5
    assert sum(row["outages"] for row in told["returns"]["rows"]) == 5
    assert told["returns"]["fleet"]["outages"] == 7
    assert told["returns"]["rows"][-1]["to_day"] is None


def test_people_get_a_table_of_what_has_failed_and_one_of_returns(tmp_path: Path, capsys) -> None:
    config = written(tmp_path, *told_of(*OFTEN, ONCE))
    assert chronic(config, "gpu", 20, "table", now=NOW) == ExitCode.OK
    out = capsys.readouterr().out
    assert "GPU-0" in out
    assert "GPU-7" in out
    assert "GPU-8" not in out
    assert "40 gpus, 2 with an outage" in out
    assert "never failed before" in out


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"tier": Tier.SUSPICION}, id="suspicion"),
        pytest.param({"held": True}, id="what hit many nodes at once"),
    ],
)
def test_some_incidents_say_nothing_about_a_thing(changes: dict[str, Any]) -> None:
    assert list(outages_of([replace(ONCE, **changes)], GPUS)) == []


def test_an_incident_counts_once_for_each_thing_that_it_was_seen_on() -> None:
    assert [one.thing for one in outages_of([ONCE], GPUS)] == ["node:n3", "gpu:GPU-7", "slot:n3/1"]


def test_without_a_ledger_it_says_so(tmp_path: Path, capsys) -> None:
    config = tmp_path / "gpuwarden.yaml"
    config.write_text(f"ledger: {{url: 'sqlite:///{tmp_path / 'none.db'}'}}\n", encoding="utf-8")
    assert chronic(config, "node", 5, "table") == ExitCode.LEDGER
    assert mttr(config, 30, "table") == ExitCode.LEDGER
    assert "there is no ledger" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------- mttr


def restart(number: int, took_s: float, level: int = 4, stage: Stage = Stage.DONE, **fields: Any) -> Restart:
    """A restart that reached a level so many seconds after the fault was seen."""
    fault = NOW - timedelta(days=1)
    back = tuple(Reached(one, fault + timedelta(seconds=took_s)) for one in range(level + 1))
    told = Restart(
        f"gw-{number}", f"inc-{number}", "n0", JOB, stage, fault + timedelta(seconds=took_s), fault, moves=True, pods=3,
        gpus=24, old=(), checkpoint_at=fault - timedelta(minutes=30), reached=back,
    )  # fmt: skip
    return replace(told, **fields)


def test_times_are_those_of_restarts_that_ended_well_by_class_and_level() -> None:
    several = [restart(number, 100 + number) for number in range(10)]
    failed = restart(20, 900, level=1, stage=Stage.FAILED)
    under_way = restart(21, 5, level=0, stage=Stage.WATCHING)
    classes = {one.incident: "memory" for one in several} | {failed.incident: "hardware"}
    hardware, memory = recoveries([*several, failed, under_way], classes)
    assert (hardware.cause_class, hardware.level, hardware.failed, hardware.p50_s) == ("hardware", 1, 1, None)
    assert (memory.restarts, memory.failed, memory.p50_s) == (10, 0, 104.5)
    assert memory.p50_s < memory.p95_s < memory.p99_s <= 109
    assert memory.lost_gpu_hours == pytest.approx(sum(24 * (1800 + 100 + number) / 3600 for number in range(10)))


def test_the_table_comes_from_the_ledger_as_it_stands_last(tmp_path: Path, capsys) -> None:
    one = restart(1, 250)
    begun = replace(one, stage=Stage.STOPPING, at=one.at - timedelta(minutes=2), reached=())
    opened = told_of(replace(incident("inc-1", cause_class=CauseClass.LINK), opened=NOW, closed=NOW))
    config = written(tmp_path, restart_entry(begun), restart_entry(one), *opened)
    assert mttr(config, 30, "json", now=NOW) == ExitCode.OK
    (row,) = json.loads(capsys.readouterr().out)["recoveries"]
    assert (row["cause_class"], row["level"], row["restarts"], row["p50_s"]) == ("link", 4, 1, 250)
    assert mttr(config, 0.5, "json", now=NOW) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["recoveries"] == []
    assert mttr(config, 30, "table", now=NOW) == ExitCode.OK
    assert "250 s" in capsys.readouterr().out

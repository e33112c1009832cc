"""The journal of attempts: what is begun is in the ledger under a name of its own, and has one outcome."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daemon.journal import Journal
from daemon.ledger import EntryKind, Ledger
from remediation.limits import Attempt, Ending
from remediation.record import RecordUnavailable
from remediation.restoring import JobRef, Restart, Stage
from rules.vocabulary import Action

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
CORDON = Attempt(NOW, "inc-a", "gpu-1", Action.CORDON, Ending.PENDING)

RESTART = Restart(
    "gw-1", "inc-a", "gpu-1", JobRef("batch/v1", "Job", "train", "llama", "u"), Stage.STOPPING, NOW, NOW, moves=True,
    pods=3, gpus=24, old=("a", "b", "c"),
)  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=lambda: NOW, busy_timeout_s=0.1) as opened:
        yield opened


def numbers(ledger: Ledger, kind: EntryKind) -> list[int]:
    return [int(entry.body["number"]) for entry in ledger.entries(kind=kind)]


def test_an_attempt_after_those_that_are_no_longer_read_has_a_number_of_its_own(ledger: Ledger) -> None:
    before = Journal(ledger)
    before.begin([CORDON])
    before.end([(CORDON, Ending.FAILED, "no")], NOW)

    after = Journal(ledger)
    after.read(NOW + timedelta(days=1))
    later = Attempt(NOW + timedelta(days=8), "inc-a", "gpu-1", Action.CORDON, Ending.PENDING)
    after.begin([later])
    after.end([(later, Ending.DONE, "yes")], later.at)
    assert numbers(ledger, EntryKind.ATTEMPT) == numbers(ledger, EntryKind.OUTCOME) == [1, 2]


def test_what_another_process_had_begun_is_gone_on_with_and_ends_once(ledger: Ledger) -> None:
    one, other = Journal(ledger), Journal(ledger)
    one.begin([CORDON])
    other.read(NOW - timedelta(days=1))
    other.begin([CORDON])
    other.end([(CORDON, Ending.DONE, "done")], NOW)
    one.end([(CORDON, Ending.FAILED, "too late")], NOW)
    assert numbers(ledger, EntryKind.ATTEMPT) == [1]
    assert [entry.body["ending"] for entry in ledger.entries(kind=EntryKind.OUTCOME)] == ["done"]


def test_an_outcome_that_came_late_ends_the_attempt_that_it_is_about(ledger: Ledger) -> None:
    one, other = Journal(ledger), Journal(ledger)
    one.begin([CORDON])
    other.read(NOW - timedelta(days=1))
    other.end([(CORDON, Ending.FAILED, "no")], NOW)
    again = Attempt(NOW + timedelta(hours=1), "inc-a", "gpu-1", Action.CORDON, Ending.PENDING)
    other.begin([again])
    one.end([(CORDON, Ending.FAILED, "too late")], NOW)
    other.read(NOW - timedelta(days=1))
    assert [attempt.ending for attempt in other.history()] == [Ending.FAILED, Ending.PENDING]


def test_going_on_with_what_has_begun_needs_a_ledger_that_can_be_written(ledger: Ledger, tmp_path: Path) -> None:
    journal = Journal(ledger)
    journal.begin([CORDON])
    journal.begin([CORDON])
    (tmp_path / "ledger.db").rename(tmp_path / "away.db")
    with pytest.raises(RecordUnavailable, match="deleted or moved"):
        journal.begin([CORDON])
    with pytest.raises(RecordUnavailable, match="deleted or moved"):
        journal.begin([])


def test_a_restart_is_gone_on_with_by_whoever_reads_it_and_counted_once(ledger: Ledger) -> None:
    one, other = Journal(ledger), Journal(ledger)
    one.note([RESTART])
    other.read(NOW - timedelta(days=1))
    assert other.restarts() == {"gw-1": RESTART}
    over = replace(RESTART, stage=Stage.DONE, at=NOW + timedelta(minutes=5), detail="computing")
    other.note([over])
    assert other.restarts() == {"gw-1": over}
    assert (other.take_restarted(), other.take_restarted()) == ([over], [])
    assert one.take_restarted() == []
    assert len(list(ledger.entries(kind=EntryKind.RESTART, incident="inc-a"))) == 2


def test_a_restart_that_cannot_be_written_has_not_come_further(ledger: Ledger, tmp_path: Path) -> None:
    journal = Journal(ledger)
    journal.note([RESTART])
    (tmp_path / "ledger.db").unlink()
    with pytest.raises(RecordUnavailable):
        journal.note([replace(RESTART, stage=Stage.STARTING)])
    assert journal.restarts() == {"gw-1": RESTART}

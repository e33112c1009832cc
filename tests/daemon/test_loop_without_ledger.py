"""The ledger in trouble while the daemon runs: nobody acts, entries wait, and are written once and in order after."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from sqlalchemy import event
from structlog.testing import capture_logs

import daemon.recorder as recorder_module
from daemon.ledger import Entry, EntryKind
from daemon.metrics import Metrics
from daemon.recorder import Recorder
from detectors.findings import GpuState, Verdict
from remediation.decide import Ruling
from tests.daemon.conftest import Daemon, Metric

Spoil = Callable[[Daemon], AbstractContextManager[None]]


@contextmanager
def locked(daemon: Daemon) -> Iterator[None]:
    """Another process holds the write lock."""
    other = sqlite3.connect(daemon.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@contextmanager
def full(daemon: Daemon) -> Iterator[None]:
    """The database may not grow by a single page."""
    with pragma(daemon, lambda connection: f"PRAGMA max_page_count = {pages(connection)}"):
        yield


def pages(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA page_count").fetchone()[0])


@contextmanager
def read_only(daemon: Daemon) -> Iterator[None]:
    """Every write is refused."""
    with pragma(daemon, lambda _connection: "PRAGMA query_only = ON"):
        yield


@contextmanager
def pragma(daemon: Daemon, statement: Callable[[sqlite3.Connection], str]) -> Iterator[None]:
    engine = daemon.ledgers[-1]._engine

    def set_it(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute(statement(connection))

    event.listen(engine, "connect", set_it)
    engine.dispose()
    try:
        yield
    finally:
        event.remove(engine, "connect", set_it)
        engine.dispose()


@contextmanager
def removed(daemon: Daemon) -> Iterator[None]:
    """The file is moved away and comes back."""
    aside = daemon.path.with_suffix(".away")
    daemon.path.rename(aside)
    try:
        yield
    finally:
        aside.rename(daemon.path)


TROUBLES = pytest.mark.parametrize(
    ("spoil", "trouble"),
    [
        pytest.param(locked, "locked", id="another process holds it"),
        pytest.param(full, "full", id="its volume is full"),
        pytest.param(read_only, "read_only", id="it turned read-only"),
        pytest.param(removed, "gone", id="its file was moved away"),
    ],
)


@TROUBLES
def test_nobody_acts_and_it_says_so_while_the_ledger_is_away(
    started: Daemon, metric: Metric, spoil: Spoil, trouble: str
) -> None:
    with spoil(started):
        started.lose_gpu()
        started.tick()  # a full volume shows only when there is something to write
        tick = started.tick()
        assert {d.ruling for d in tick.decisions} == {Ruling.WAIT}
        failed = {gate.name for decision in tick.decisions for gate in decision.gates if not gate.passed}
        assert "ledger_writable" in failed
        health = started.loop.health()
        assert (health.alive, health.ready) == (True, False)
        assert f": {trouble}: " in health.why[0]
        assert "next: " in health.why[0]
        assert metric("gpuwarden_ledger_writable") == 0
        assert metric("gpuwarden_ledger_entries_waiting") > 0
        assert metric("gpuwarden_ledger_errors_total", trouble=trouble) >= 2  # a slow poll lets a fault tick in between


@TROUBLES
def test_what_waited_is_written_once_and_in_order_when_the_ledger_is_back(
    started: Daemon, metric: Metric, spoil: Spoil, trouble: str
) -> None:
    before = len(started.entries())
    with spoil(started):
        first = started.lose_gpu(node=0, slot=2)
        started.tick()
        second = started.lose_gpu(node=1, slot=4)
        started.tick()
        held = [(entry.kind, entry.at, entry.body) for entry in started.loop._recorder._waiting]
        assert held
        assert f": {trouble}: " in started.loop.health().why[0]
    started.tick()
    new = started.entries()[before:]
    assert [(entry.kind, entry.at, entry.body) for entry in new[: len(held)]] == held
    assert [entry.at for entry in new] == sorted(entry.at for entry in new)
    opened = [entry for entry in new if entry.kind is EntryKind.INCIDENT_OPENED]
    assert [entry.body["gpu_uuids"] for entry in opened] == [[first], [second]]
    assert len({entry.key for entry in new}) == len(new)
    assert started.loop.health().ready
    assert metric("gpuwarden_ledger_writable") == 1
    assert metric("gpuwarden_ledger_entries_waiting") == 0
    assert all("ledger_writable" not in names(d) for d in started.tick().decisions)


def names(decision: object) -> set[str]:
    return {gate.name for gate in decision.gates if not gate.passed}  # type: ignore[attr-defined]


def test_a_trouble_that_lasts_is_logged_once_and_its_end_once(started: Daemon) -> None:
    with capture_logs() as logged:
        with locked(started):
            started.tick(4)
        started.tick(2)
    said = [line["event"] for line in logged if "ledger" in line["event"]]
    assert said == ["ledger", "ledger is back"]


def test_a_write_that_took_place_and_was_not_acknowledged_doubles_nothing(started: Daemon) -> None:
    """As on PostgreSQL when the connection breaks during the commit: the same entries are given once more."""
    recorder = started.loop._recorder
    started.lose_gpu()
    started.tick()
    before = started.entries()
    for entry in before:
        recorder.take(Entry(entry.kind, entry.at, entry.body, entry.incident, entry.node, entry.gpu_uuid, entry.key))
    assert recorder.flush({})
    assert started.entries() == before


def test_when_too_much_waits_the_oldest_verdict_changes_go_and_nothing_else(
    started: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MOST_WAITING", 10)
    recorder = Recorder(started.ledgers[-1], Metrics())
    at = started.loop._recorder._ledger._now()
    kinds = [EntryKind.VERDICT_CHANGED, EntryKind.DECISION] * 8
    for number, kind in enumerate(kinds):
        recorder.take(Entry(kind, at, {"number": number}, key=f"n{number}"))
    with locked(started):
        assert not recorder.flush({})
    assert recorder.dropped == 6
    left = [entry.body["number"] for entry in recorder._waiting]
    assert left == [1, 3, 5, 7, 9, 11, 12, 13, 14, 15]
    assert recorder.flush({})


def test_a_name_that_the_ledger_cannot_hold_is_cleaned_and_breaks_nothing(started: Daemon) -> None:
    recorder = started.loop._recorder
    at = recorder._ledger._now()
    odd = Verdict("node\0one", "GPU-\ud800", GpuState.FAILED, 1.0, at, 1.0)
    recorder.tick(at, None, None, (), (odd,))
    assert recorder.flush({})
    written = started.entries(EntryKind.VERDICT_CHANGED)[-1]
    assert (written.node, written.gpu_uuid) == ("node\N{REPLACEMENT CHARACTER}one", "GPU-?")

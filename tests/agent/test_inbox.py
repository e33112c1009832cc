"""The loop's reading of what agents reported: in the ledger's order, each once, whoever dies in between."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from structlog.testing import capture_logs

from daemon.agent.wire import Report
from daemon.agent_events import entries_of
from daemon.event_inbox import INBOX, EventInbox
from daemon.hearing import Hearing
from daemon.ledger import Entry, EntryKind, Ledger
from daemon.logs import Folded, in_order
from daemon.memory import Heard
from rules.loader import load_rules
from tests.agent.served import NOW, xid

RULES = load_rules()


class Desk:
    """A ledger with one inbox over it, and the clocks of both."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.db"
        self.now, self.steady_s = NOW, 0.0
        self.bell, self.counts = threading.Event(), Counter[str]()
        self.ledger = Ledger.open(f"sqlite:///{self.path}", now=lambda: self.now, busy_timeout_s=0.1)
        self.inbox = self.restarted()

    def restarted(self, last_tick: datetime | None = None) -> EventInbox:
        """Another process over the same ledger."""
        self.lag_s = 0.0
        self.inbox = EventInbox(self.ledger, RULES, self.bell, lambda: self.steady_s, self.lags)
        self.inbox.resume(last_tick)
        return self.inbox

    def lags(self, lag_s: float) -> None:
        self.lag_s = lag_s

    def report(self, *reports: Report, node: str = "n1") -> list[int]:
        """Some replica's intake writes them."""
        return self.ledger.append(entries_of(reports, node, "1.0", "", self.now))

    def look(self) -> None:
        """Some time later, and so at once."""
        self.steady_s += 10.0
        self.inbox.look(self.now, self.counts)

    def take(self, until: datetime | None = None) -> list[tuple[str, int | None]]:
        """(node, code) of what a tick takes."""
        due: Folded = {}
        self.inbox.take(until or self.now, due)
        return [(event.node, event.code) for event in in_order(due)]

    def heard(self) -> list[tuple[str, int | None]]:
        self.look()
        return self.take()

    def record(self) -> None:
        """The tick that took it is in the ledger."""
        self.ledger.append([], state=self.inbox.memory())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    with closing(made.ledger):
        yield made


def test_what_was_reported_is_taken_once_in_its_order(desk: Desk) -> None:
    desk.report(xid(1, 79), xid(2, 48))
    desk.report(xid(3, 95), node="n2")
    assert desk.heard() == [("n1", 79), ("n1", 48), ("n2", 95)]
    assert desk.heard() == []


def test_how_long_a_report_waits_for_a_tick_is_told(desk: Desk) -> None:
    desk.report(xid(1, 79))
    desk.now += timedelta(seconds=90)
    desk.look()
    assert desk.lag_s == 90.0
    desk.take()
    desk.look()
    assert desk.lag_s == 0.0


def test_what_else_stands_in_the_ledger_is_none_of_it(desk: Desk) -> None:
    desk.ledger.append([Entry(EntryKind.HUMAN, NOW, {"word": "hold"})])
    desk.report(xid(1))
    desk.ledger.append([Entry(EntryKind.COVERAGE, NOW, {})])
    assert desk.heard() == [("n1", 79)]


def test_a_restart_goes_on_behind_what_was_recorded(desk: Desk) -> None:
    desk.report(xid(1, 79))
    desk.heard()
    desk.record()
    desk.report(xid(2, 48))
    desk.restarted()
    assert desk.heard() == [("n1", 48)]


def test_what_was_taken_and_not_recorded_comes_again(desk: Desk) -> None:
    desk.report(xid(1, 79))
    assert desk.heard() == [("n1", 79)]
    desk.restarted()
    assert desk.heard() == [("n1", 79)]


def test_what_was_written_while_no_process_ran_is_news_however_old(desk: Desk) -> None:
    desk.heard()
    desk.record()
    desk.report(xid(1, at=NOW - timedelta(days=9)))
    desk.now += timedelta(days=3)
    desk.restarted(last_tick=NOW)
    assert desk.heard() == [("n1", 79)]


def test_a_ledger_that_never_had_an_inbox_gives_what_came_since_the_last_tick(desk: Desk) -> None:
    desk.report(xid(1, 79))
    desk.now += timedelta(seconds=10)
    desk.report(xid(2, 48))
    desk.restarted(last_tick=NOW + timedelta(seconds=5))
    assert desk.heard() == [("n1", 48)]
    desk.restarted(last_tick=None)
    assert desk.heard() == [("n1", 79), ("n1", 48)]


def test_a_place_that_cannot_be_read_is_no_reason_to_count_everything_once_more(desk: Desk) -> None:
    desk.report(xid(1, 79))
    desk.ledger.append([], state={INBOX: b"written by another version"})
    with capture_logs() as logged:
        desk.restarted(last_tick=NOW)
    assert [line["what"] for line in logged] == [INBOX]
    desk.now += timedelta(seconds=1)
    desk.report(xid(2, 48))
    assert desk.heard() == [("n1", 48)]


# --------------------------------------------------------------------------------------------------------------- when


def test_a_bell_is_answered_at_once_and_others_writing_within_half_a_second(desk: Desk) -> None:
    desk.look()
    desk.report(xid(1))
    desk.inbox.look(desk.now, desk.counts)
    assert desk.take() == [], "it was looked at just now"
    desk.steady_s += 0.5
    desk.inbox.look(desk.now, desk.counts)
    assert desk.take() == [("n1", 79)]
    desk.report(xid(2))
    desk.bell.set()
    desk.inbox.look(desk.now, desk.counts)
    assert desk.take() == [("n1", 79)]
    assert not desk.bell.is_set()


@pytest.mark.parametrize(
    ("report", "urgent"),
    [
        pytest.param(xid(1), True, id="a fault that the kernel reported"),
        pytest.param(xid(1, trusted=False), False, id="what a program wrote"),
        pytest.param(xid(1, kind="driver_load", code=None), False, id="no fault"),
    ],
)
def test_what_cannot_wait_for_the_next_poll_is(desk: Desk, report: Report, urgent: bool) -> None:
    desk.report(report)
    desk.look()
    assert desk.inbox.is_urgent is urgent
    desk.take()
    assert not desk.inbox.is_urgent


def test_what_happened_after_a_ticks_time_is_the_next_ticks(desk: Desk) -> None:
    desk.report(xid(1, 79, at=NOW - timedelta(seconds=9)))
    desk.report(xid(2, 48, at=NOW), xid(3, 95, at=NOW - timedelta(seconds=9)))
    desk.look()
    assert desk.take(NOW - timedelta(seconds=1)) == [("n1", 79)]
    desk.record()
    desk.restarted()
    assert desk.heard() == [("n1", 95), ("n1", 48)]


def test_a_replica_whose_clock_is_ahead_holds_nothing_up(desk: Desk) -> None:
    desk.now += timedelta(seconds=30)
    desk.report(xid(1, at=NOW + timedelta(seconds=25)))
    desk.now = NOW
    assert desk.heard() == [("n1", 79)]


def test_more_than_one_look_takes_in_comes_with_the_next(desk: Desk) -> None:
    for begin in range(0, 2500, 500):
        desk.report(*(xid(n, code=n) for n in range(begin, begin + 500)))
    desk.bell.set()
    taken = []
    for _ in range(4):  # as the loop looks, without any time between
        desk.inbox.look(desk.now, desk.counts)
        taken += desk.take()
    assert sorted(code for _, code in taken) == list(range(2500))


def test_repeats_are_one_event_with_their_count(desk: Desk) -> None:
    desk.report(*(xid(n, at=NOW) for n in range(1, 8)))
    desk.look()
    due: Folded = {}
    desk.inbox.take(NOW, due)
    assert sum(event.count for event in due.values()) == 7
    assert len(due) == 2


# ------------------------------------------------------------------------------------------------------------- trouble


def test_a_ledger_that_cannot_be_read_is_asked_again_later(desk: Desk, tmp_path: Path) -> None:
    desk.report(xid(1))
    with Ledger.open(f"sqlite:///{tmp_path / 'other.db'}", now=lambda: NOW) as other:
        inbox = EventInbox(other, RULES, desk.bell, lambda: desk.steady_s)
        inbox.resume(None)
        with other._engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE entries RENAME TO gone")
        inbox.look(NOW, desk.counts)
        inbox.look(NOW, desk.counts)
    assert desk.counts == {"inbox_unreadable": 1}


def test_an_entry_that_another_version_wrote_is_counted_and_passed_over(desk: Desk) -> None:
    desk.report(xid(1, 79))
    desk.ledger.append([Entry(EntryKind.EVENT, NOW, {"event": {"kind": "from_the_future"}}, node="n1", key="x")])
    desk.report(xid(2, 48))
    assert desk.heard() == [("n1", 79), ("n1", 48)]
    assert desk.counts == {"inbox_malformed": 1}
    desk.record()
    desk.restarted()
    assert desk.heard() == []


def test_hearing_takes_it_along_with_the_logs_and_remembers_both(desk: Desk) -> None:
    hearing = Hearing([], load_rules(), NOW, desk.counts, [desk.inbox])
    hearing.resume(Heard({}), None)
    desk.report(xid(1))
    desk.bell.set()
    hearing.listen(NOW, lambda _node: None)
    assert hearing.is_urgent
    assert [event.code for event in hearing.take(NOW)] == [79]
    assert not hearing.is_urgent
    assert set(hearing.memory()) == {"heard", INBOX}
    without = Hearing([], load_rules(), NOW, desk.counts)
    assert set(without.memory()) == {"heard"}, "what another process has taken stays as it is in the ledger"


# -------------------------------------------------------------------------------------------------------- whatever ends


class Taking(RuleBasedStateMachine):
    """Any order of writing, looking, ticking, recording and dying."""

    @initialize()
    def begin(self) -> None:
        self.folder = TemporaryDirectory()
        self.desk = Desk(Path(self.folder.name))
        self.written = 0
        self.recorded: list[int | None] = []
        self.taken: list[int | None] = []

    @rule(count=st.integers(1, 4), node=st.sampled_from(["n1", "n2"]), late=st.integers(0, 3))
    def write(self, count: int, node: str, late: int) -> None:
        at = self.desk.now - timedelta(seconds=late)
        self.desk.report(*(xid(n, code=n, at=at) for n in range(self.written, self.written + count)), node=node)
        self.written += count

    @rule(seconds=st.sampled_from([0, 1, 5]))
    def time_goes_by(self, seconds: int) -> None:
        self.desk.now += timedelta(seconds=seconds)

    @rule()
    def look(self) -> None:
        self.desk.look()

    @rule(ago=st.integers(0, 4))
    def tick(self, ago: int) -> None:
        self.taken += [code for _, code in self.desk.take(self.desk.now - timedelta(seconds=ago))]

    @rule()
    def record(self) -> None:
        self.desk.record()
        self.recorded += self.taken
        self.taken = []

    @rule()
    def die(self) -> None:
        self.desk.restarted()
        self.taken = []

    @invariant()
    def nothing_is_recorded_twice(self) -> None:
        assert len(set(self.recorded)) == len(self.recorded)

    def teardown(self) -> None:
        if hasattr(self, "desk"):
            self.desk.now += timedelta(seconds=10)
            self.look()
            self.tick(0)
            self.record()
            self.desk.ledger.close()
            self.folder.cleanup()
            assert sorted(code or 0 for code in self.recorded) == list(range(self.written)), "and nothing is lost"


TestTaking: Callable[..., None] = Taking.TestCase  # type: ignore[assignment]
Taking.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)

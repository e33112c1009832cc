"""Threads that write to one ledger: each comes to its turn, and one that waits too long is told so."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from daemon.ledger import Entry, EntryKind, Ledger, LedgerUnavailable, Trouble
from daemon.ledger.turns import Turns

PATIENCE_S = 20.0


def waiting(turns: Turns, count: int) -> Callable[[], bool]:
    return lambda: len(turns._waiting) == count


def until(ready: Callable[[], bool]) -> None:
    over = threading.Event()
    for _ in range(2000):
        if ready():
            return
        over.wait(0.01)
    raise AssertionError("it did not come")


def test_who_came_first_goes_first() -> None:
    turns, order = Turns(), list[int]()

    def take(number: int) -> None:
        with turns.one(PATIENCE_S) as is_mine:
            assert is_mine
            order.append(number)

    with turns.one(0):
        threads = []
        for number in range(5):
            threads.append(threading.Thread(target=take, args=(number,)))
            threads[-1].start()
            until(waiting(turns, number + 2))
    for thread in threads:
        thread.join(PATIENCE_S)
    assert order == list(range(5))


def test_who_gives_up_is_in_nobodys_way() -> None:
    turns, came = Turns(), threading.Event()

    def take() -> None:
        with turns.one(PATIENCE_S) as is_mine:
            assert is_mine
            came.set()

    with turns.one(0) as first:
        assert first
        with turns.one(0.01) as second:
            assert not second
        third = threading.Thread(target=take)
        third.start()
        until(waiting(turns, 2))
        assert not came.is_set()
    assert came.wait(PATIENCE_S)
    third.join(PATIENCE_S)


def test_a_turn_ends_with_an_error_too() -> None:
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns.one(0):
        _ = 1 // 0
    with turns.one(0) as is_mine:
        assert is_mine


def test_a_thread_whose_turn_does_not_come_is_told_that_the_ledger_is_locked(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'x.db'}", now=lambda: datetime.now(UTC), busy_timeout_s=0.05) as ledger:
        entry = Entry(EntryKind.HUMAN, datetime.now(UTC), {})
        with ledger._turns.one(0), pytest.raises(LedgerUnavailable) as refused:
            ledger.append([entry])
        assert refused.value.trouble is Trouble.LOCKED
        assert ledger.append([entry]) == [1]

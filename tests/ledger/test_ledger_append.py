"""What is appended is read back as it was, in its order, once; a tick is written whole with its state."""

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from daemon.ledger import Entry, EntryError, EntryKind, Ledger, LedgerUnavailable

AT = datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=UTC)
EntryMaker = Callable[..., Entry]


def test_an_entry_comes_back_with_every_field_as_it_was(ledger: Ledger) -> None:
    given = Entry(
        EntryKind.INCIDENT_OPENED,
        AT,
        {"why": "lost GPU é", "parts": [1, 2.5, None, {"deep": True}]},
        incident="inc-1",
        node="node-7",
        gpu_uuid="GPU-1",
        key="tick-1/inc-1",
    )
    (entry_id,) = ledger.append([given])
    (read,) = ledger.entries()
    assert read.written is not None
    assert read == replace(given, id=entry_id, written=read.written)


def test_the_ledgers_clock_says_when_an_entry_was_written(url: str, entry: EntryMaker) -> None:
    written = datetime(2026, 3, 2, 0, 0, 0, 1, tzinfo=UTC)
    with Ledger.open(url, now=lambda: written) as ledger:
        ledger.append([entry(at=AT)])
        (read,) = ledger.entries()
    assert (read.at, read.written) == (AT, written)


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), id="one microsecond past the new year"),
        pytest.param(datetime(2200, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), id="the last microsecond of 2200"),
        pytest.param(datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), id="before the epoch"),
        pytest.param(
            datetime(2026, 1, 1, 2, 0, 0, 5, tzinfo=timezone(timedelta(hours=2))), id="another zone, the same moment"
        ),
    ],
)
def test_times_keep_their_microseconds(ledger: Ledger, entry: EntryMaker, at: datetime) -> None:
    ledger.append([entry(at=at)])
    (read,) = ledger.entries()
    assert read.at == at
    assert read.at.utcoffset() == timedelta(0)


def test_ids_follow_the_order_of_writing_without_gaps(ledger: Ledger, entry: EntryMaker) -> None:
    first = ledger.append([entry(node="b"), entry(node="a")])
    second = ledger.append([entry(node="c", at=AT - timedelta(days=1))])
    assert first + second == [1, 2, 3]
    assert [read.node for read in ledger.entries()] == ["b", "a", "c"]


def test_an_empty_tick_writes_nothing(ledger: Ledger) -> None:
    assert ledger.append([]) == []
    assert list(ledger.entries()) == []


def test_writers_that_run_at_once_take_turns_tick_by_tick(ledger: Ledger, entry: EntryMaker) -> None:
    def append_ticks(writer: int) -> list[list[int]]:
        return [ledger.append([entry(node=f"n{writer}") for _ in range(5)]) for _ in range(10)]

    with ThreadPoolExecutor(4) as pool:
        ticks = [ids for written in pool.map(append_ticks, range(4)) for ids in written]
    assert sorted(ticks) == [list(range(first, first + 5)) for first in range(1, 201, 5)]


# --------------------------------------------------------------------------------------------- keys


def test_the_second_entry_with_a_key_is_ignored_and_reported_with_id_0(ledger: Ledger, entry: EntryMaker) -> None:
    ledger.append([entry(key="k1", body={"try": 1})])
    assert ledger.append([entry(key="k1", body={"try": 2}), entry(key="k2"), entry(), entry()]) == [0, 2, 3, 4]
    assert [read.body for read in ledger.entries()] == [{"try": 1}, {}, {}, {}]


def test_a_key_given_twice_in_one_tick_is_written_once(ledger: Ledger, entry: EntryMaker) -> None:
    assert ledger.append([entry(key="k", node="first"), entry(key="k", node="second")]) == [1, 0]
    assert [read.node for read in ledger.entries()] == ["first"]


def test_a_tick_of_more_keys_than_one_look_up_holds_is_recognised_when_repeated(
    ledger: Ledger, entry: EntryMaker
) -> None:
    tick = [entry(key=f"k{number}") for number in range(2_100)]
    assert ledger.append(tick) == list(range(1, 2_101))
    assert set(ledger.append(tick)) == {0}


def test_a_repeated_tick_still_replaces_the_state(ledger: Ledger, entry: EntryMaker) -> None:
    ledger.append([entry(key="k")], state={"engine": b"old"})
    ledger.append([entry(key="k")], state={"engine": b"new"})
    assert ledger.state("engine") == b"new"


# -------------------------------------------------------------------------------------------- state


def test_a_state_is_unknown_until_written_then_replaced_name_by_name(ledger: Ledger, entry: EntryMaker) -> None:
    assert ledger.state("engine") is None
    ledger.append([entry()], state={"engine": b"\x00\xff1", "other": b""})
    ledger.append([], state={"engine": b"2"})
    assert (ledger.state("engine"), ledger.state("other")) == (b"2", b"")


def test_a_tick_whose_commit_fails_leaves_neither_entries_nor_state(ledger: Ledger, entry: EntryMaker) -> None:
    ledger.append([entry(node="before")], state={"engine": b"before"})

    def break_the_disk(_: Connection) -> None:
        raise OSError(errno.EIO, "the disk broke")

    event.listen(Engine, "commit", break_the_disk)
    try:
        with pytest.raises(LedgerUnavailable, match=r"append 1 entries.*the disk broke"):
            ledger.append([entry(node="after")], state={"engine": b"after"})
    finally:
        event.remove(Engine, "commit", break_the_disk)
    assert [read.node for read in ledger.entries()] == ["before"]
    assert ledger.state("engine") == b"before"
    assert ledger.append([entry()]) == [2]


# ---------------------------------------------------------------------------------------- selecting


@pytest.fixture
def week(ledger: Ledger, entry: EntryMaker) -> Ledger:
    """Seven entries, ids 1 to 7, a day apart, on alternating nodes, each with another GPU."""
    kinds = [EntryKind.DECISION, EntryKind.OUTCOME, EntryKind.HUMAN]
    ledger.append(
        [
            entry(
                kinds[day % 3],
                at=AT + timedelta(days=day),
                node=f"n{day % 2}",
                gpu_uuid=f"GPU-{day}",
                incident="i" if day < 2 else None,
            )
            for day in range(7)
        ]
    )
    return ledger


@pytest.mark.parametrize(
    ("chosen", "ids"),
    [
        pytest.param({}, [1, 2, 3, 4, 5, 6, 7], id="everything"),
        pytest.param({"kind": EntryKind.DECISION}, [1, 4, 7], id="one kind"),
        pytest.param({"kind": (EntryKind.OUTCOME, EntryKind.HUMAN)}, [2, 3, 5, 6], id="two kinds"),
        pytest.param({"kind": ()}, [], id="no kind at all"),
        pytest.param({"incident": "i"}, [1, 2], id="one incident"),
        pytest.param({"node": "n1"}, [2, 4, 6], id="one node"),
        pytest.param({"gpu": "GPU-3"}, [4], id="one GPU"),
        pytest.param({"node": "n1", "kind": EntryKind.DECISION}, [4], id="one kind on one node"),
        pytest.param({"since": AT + timedelta(days=5)}, [6, 7], id="since includes its own moment"),
        pytest.param({"until": AT + timedelta(days=2)}, [1, 2], id="until excludes its own moment"),
        pytest.param({"after_id": 5}, [6, 7], id="after an id"),
        pytest.param({"before_id": 3}, [1, 2], id="before an id"),
        pytest.param({"limit": 2}, [1, 2], id="the first two"),
        pytest.param({"limit": 0}, [], id="none"),
        pytest.param({"newest_first": True, "limit": 2}, [7, 6], id="the last two"),
        pytest.param({"newest_first": True, "before_id": 6, "limit": 2}, [5, 4], id="the two before those"),
        pytest.param({"node": "nowhere"}, [], id="an unknown node"),
    ],
)
def test_entries_are_chosen_by(week: Ledger, chosen: dict[str, Any], ids: list[int]) -> None:
    assert [read.id for read in week.entries(**chosen)] == ids


@pytest.mark.parametrize("newest_first", [False, True], ids=["oldest first", "newest first"])
def test_a_long_record_is_read_in_pages_and_complete(ledger: Ledger, entry: EntryMaker, newest_first: bool) -> None:
    ledger.append([entry() for _ in range(2_500)])
    ids = [read.id for read in ledger.entries(newest_first=newest_first, limit=2_400)]
    every = list(range(1, 2_501))
    assert ids == (every[::-1] if newest_first else every)[:2_400]


def test_a_reader_that_appends_as_it_reads_comes_to_an_end(ledger: Ledger, entry: EntryMaker) -> None:
    ledger.append([entry() for _ in range(1_001)])
    for read in ledger.entries():
        if read.id % 500 == 0:
            ledger.append([entry(node="new")])
    assert len(list(ledger.entries(node="new"))) == 2


# --------------------------------------------------------------------------------------- incidents


def test_open_incidents_are_those_whose_newest_entry_does_not_close_them(ledger: Ledger, entry: EntryMaker) -> None:
    opened, changed, closed = EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_CHANGED, EntryKind.INCIDENT_CLOSED
    ledger.append(
        [
            entry(opened, incident="grows", body={"id": "grows", "count": 1}),
            entry(opened, incident="stays", body={"id": "stays"}),
            entry(opened, incident="ends", body={"id": "ends"}),
            entry(opened, incident="returns", body={"id": "returns", "time": 1}),
            entry(closed, incident="ends", body={"id": "ends"}),
            entry(closed, incident="returns", body={}),
            entry(changed, incident="grows", body={"id": "grows", "count": 2}),
            entry(EntryKind.DECISION, incident="grows", body={"action": "watch"}),
            entry(opened, incident="returns", body={"id": "returns", "time": 2}),
        ]
    )
    assert ledger.open_incidents() == [
        {"id": "stays"},
        {"id": "grows", "count": 2},
        {"id": "returns", "time": 2},
    ]


# ------------------------------------------------------------------------------------------ refusals


def test_an_entry_that_is_in_the_ledger_is_not_taken_again(ledger: Ledger, entry: EntryMaker) -> None:
    ledger.append([entry()])
    (read,) = ledger.entries()
    with pytest.raises(EntryError, match=r"entry 1 .decision. is in the ledger already"):
        ledger.append([read])


def test_a_body_that_is_no_json_stops_its_whole_tick(ledger: Ledger, entry: EntryMaker) -> None:
    with pytest.raises(EntryError, match="encode_body"):
        ledger.append([entry(), entry(body={"at": AT})])
    assert list(ledger.entries()) == []


@pytest.mark.parametrize("field", ["incident", "node", "gpu_uuid", "key"])
@pytest.mark.parametrize("text", ["a\0b", "a\udc80"], ids=["a NUL", "half a surrogate pair"])
def test_an_identity_that_no_database_stores_is_refused_at_once(entry: EntryMaker, field: str, text: str) -> None:
    with pytest.raises(EntryError, match=field):
        entry(**{field: text})


def test_an_entry_without_a_time_zone_is_refused_at_once(entry: EntryMaker) -> None:
    with pytest.raises(EntryError, match="no time zone"):
        entry(at=datetime(2026, 1, 1))

"""When reports go out: a repeat waits ever longer, what is new goes at once, and nothing overtakes what may end it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.agent.pacing import FIRST_WAIT_S, LONGEST_WAIT_S, Pace
from daemon.agent.spool import Spool
from daemon.agent.spool_records import Entry, rough_key
from daemon.agent.spool_turn import in_turn
from daemon.agent.wire import Report, report_id
from detectors.events import KernelEvent
from rules.vocabulary import EventKind

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def report(sequence: int, code: int = 79, count: int = 1, **fields) -> Report:
    event = KernelEvent(
        EventKind.XID, code, f"Xid {code}", at=AT + timedelta(seconds=sequence), sequence=sequence, boot_id="b",
        source="kmsg", pci="0000:5c:00", count=count,
    )  # fmt: skip
    event = replace(event, **fields)
    return Report(report_id(event), event)


# ------------------------------------------------------------------------------------------------------------ the pace


def test_what_is_new_waits_for_nobody_and_a_repeat_waits_twice_as_long_each_time() -> None:
    pace, now_s, waits = Pace(), 100.0, []
    for _ in range(12):
        assert pace.is_due(b"flood", now_s)
        assert pace.is_due(b"new", now_s)
        pace.sent([b"flood"], now_s)
        rest_s = pace.rest_s([b"flood"], now_s)
        assert rest_s is not None
        assert not pace.is_due(b"flood", now_s + rest_s - 0.01)
        waits.append(rest_s)
        now_s += rest_s
    assert waits[:4] == [FIRST_WAIT_S, 2.0, 4.0, 8.0]
    assert waits[-1] == LONGEST_WAIT_S
    assert pace.rest_s([b"flood", b"new"], now_s) == 0.0
    assert pace.rest_s([], now_s) is None


def test_a_fault_that_was_quiet_begins_anew() -> None:
    pace = Pace()
    for now_s in (0.0, 1.0, 3.0, 7.0):
        pace.sent([b"a"], now_s)
    pace.sent([b"a"], 100.0)
    assert pace.rest_s([b"a"], 100.0) == FIRST_WAIT_S


def test_after_a_reset_the_same_fault_is_told_within_the_shortest_wait() -> None:
    pace = Pace()
    for now_s in (0.0, 1.0, 3.0, 7.0, 15.0):
        pace.sent([b"a"], now_s)
    pace.begin_anew()
    assert pace.is_due(b"a", 15.0 + FIRST_WAIT_S)


def test_how_many_faults_are_remembered_is_bounded() -> None:
    pace = Pace()
    for number in range(5000):
        pace.sent([str(number).encode()], 1.0)
    assert len(pace._sent) <= 1024


@pytest.mark.parametrize(
    ("other", "same"),
    [
        pytest.param(report(2, 31), False, id="another code"),
        pytest.param(report(2, pci="0000:5d:00"), False, id="another GPU"),
        pytest.param(report(2, boot_id="c"), False, id="another boot"),
        pytest.param(report(2, trusted=False), False, id="what the kernel did not write"),
        pytest.param(report(2, pid=7, text="Xid 79, pid=7"), True, id="another process"),
    ],
)
def test_what_is_one_fault(other: Report, same: bool) -> None:
    assert (rough_key(report(1).event) == rough_key(other.event)) is same


# ------------------------------------------------------------------------------------------------------------ the turn


def entry(number: int, fault: bytes, *, boundary: bool = False, handed: int = 0) -> Entry:
    return Entry(number=number, id=str(number), key=fault, rough_key=fault, is_boundary=boundary, handed=handed)


def turn(entries: list[Entry], *due: bytes) -> list[int]:
    return [one.number for one in in_turn(entries, lambda fault: fault in due)]


def test_the_first_of_each_fault_goes_before_the_repeats_of_others() -> None:
    storm = [entry(number, b"31") for number in range(100)]
    assert turn([*storm, entry(100, b"79")], b"31", b"79")[:2] == [0, 100]


def test_what_is_not_due_holds_up_nothing_new() -> None:
    assert turn([entry(0, b"31"), entry(1, b"79")], b"79") == [1]


def test_nothing_overtakes_a_boundary_and_no_boundary_what_it_may_end() -> None:
    waiting = [entry(0, b"31"), entry(1, b"48"), entry(2, b"reset", boundary=True), entry(3, b"48"), entry(4, b"79")]
    assert turn(waiting, b"79") == [0, 1, 2, 4]
    assert turn(waiting, b"reset") == [0, 1, 2]
    assert turn(waiting, b"31") == [0]


def test_a_repeat_whose_equal_is_on_its_way_waits_and_so_does_what_may_end_it() -> None:
    first = entry(0, b"48", handed=1)
    repeat, new, reset = entry(1, b"48"), entry(2, b"79"), entry(3, b"reset", boundary=True)
    repeat.before = first
    assert turn([first, repeat, new, reset], b"48", b"79", b"reset") == [0, 2]


def test_what_is_new_behind_a_reset_that_has_to_wait_makes_all_before_it_go() -> None:
    first = entry(0, b"48")
    repeat, reset, new = entry(1, b"48"), entry(2, b"reset", boundary=True), entry(3, b"79")
    repeat.before = first
    assert turn([first, repeat, reset, new], b"79") == [0]
    assert turn([first, repeat, reset, new], b"reset") == [0]
    first.is_here = False
    assert turn([repeat, reset, new], b"79") == [1, 2, 3]


def test_nothing_overtakes_a_reset_that_waits_for_the_answer_about_the_one_before_it() -> None:
    first, again = entry(0, b"reset", boundary=True, handed=1), entry(1, b"reset", boundary=True)
    again.before = first
    assert turn([first, again, entry(2, b"79")], b"79") == [0]


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.booleans())), st.sets(st.sampled_from([b"a", b"b"])))
def test_whatever_waits_each_goes_once_and_boundaries_keep_their_place(
    told: list[tuple[bytes, bool]], due: set[bytes]
) -> None:
    entries = [entry(number, fault, boundary=boundary) for number, (fault, boundary) in enumerate(told)]
    found = turn(entries, *due)
    assert len(set(found)) == len(found)
    assert {one.number for one in entries if one.rough_key in due} <= set(found)
    for one in (one for one in entries if one.is_boundary and one.number in found):
        place = found.index(one.number)
        assert set(found[:place]) == set(range(one.number)), "all that came before it, and nothing else"


def test_a_storm_of_one_programs_faults_is_a_few_reports_with_all_of_its_events(tmp_path: Path) -> None:
    with Spool(tmp_path / "spool") as spool:
        for number in range(500):
            spool.add([report(number, 31, text=f"Xid 31, pid={number}", pid=number)])
        spool.add([report(500, 79)])
        waiting = spool.pending(100)
    assert [one.event.code for one in waiting[:2]] == [31, 79]
    assert len(waiting) < 10
    assert sum(one.event.count for one in waiting) == 501

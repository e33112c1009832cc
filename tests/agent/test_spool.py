"""The spool of the agent: what waits in it, what is one, what goes first where there is no room, who may use it."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from daemon.agent.position import Position
from daemon.agent.spool import Counts, Spool, SpoolError, SpoolFull
from daemon.agent.spool_records import MAX_COUNT
from daemon.agent.wire import MAX_TEXT, Report, report_id
from detectors.events import KernelEvent
from rules.vocabulary import EventKind, Severity
from tests.agent.brittle import Brittle

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
#: The smallest spool there is: four slots of 32 KiB.
SMALL = 128 << 10


def report(sequence: int, text: str = "GPU has fallen off the bus", **about: object) -> Report:
    about = {"kind": EventKind.XID, "code": 79, "pci": "0000:5c:00", "boot_id": "boot", "source": "kmsg", **about}
    event = KernelEvent(text=text, at=AT + timedelta(seconds=sequence), sequence=sequence, **about)
    return Report(report_id(event), event)


def different(numbers: Iterable[int], **about: object) -> list[Report]:
    return [report(number, code=1000 + number, **about) for number in numbers]


def upto(sequence: int) -> Position:
    return Position("kmsg", "boot", sequence)


def spool_on(files: Brittle, limit: int = SMALL) -> Spool:
    return Spool(Path("spool"), limit, lambda: AT, files)


def add(spool: Spool, *reports: Report) -> None:
    spool.add(reports, upto(reports[-1].event.sequence))


def told(spool: Spool, most: int = 10_000) -> list[tuple[int | None, int]]:
    """Code and count of what is handed out."""
    return [(one.event.code, one.event.count) for one in spool.pending(most)]


def gaps(spool: Spool) -> list[str]:
    return [one.event.text for one in spool.pending(10_000) if one.event.kind is EventKind.COVERAGE_LOST]


@pytest.fixture
def files() -> Brittle:
    return Brittle()


@pytest.fixture
def spool(files: Brittle) -> Spool:
    return spool_on(files)


# ---------------------------------------------------------------------------------------------------- what waits in it


def test_an_empty_spool_has_nothing_and_no_position(spool: Spool):
    assert (spool.position, spool.pending(10), spool.oldest_at, spool.bytes, len(spool)) == (None, [], None, 0, 0)


def test_what_was_added_waits_oldest_first_also_for_the_next_process(files: Brittle, spool: Spool):
    reports = different(range(5))
    add(spool, *reports)
    for one in (spool, spool_on(files.after_kill()), spool_on(files.after_power_cut())):
        assert one.pending(3) == reports[:3]
        assert one.pending(10) == reports
        assert one.position == upto(4)
        assert one.oldest_at == AT
        assert (len(one), one.bytes > 0) == (5, True)


def test_a_report_comes_back_with_all_that_it_said(files: Brittle, spool: Spool):
    event = KernelEvent(
        EventKind.SXID, 12028, 'ünïcode "quoted" \x00 \x7f \uffff', 7, AT, 12.5, 2**62, "0000:5c:00", "GPU-1", 3, 1,
        4711, "python", Severity.FATAL, secondary_to=48, trusted=False, node="n1", boot_id="boot", source="journal",
        unit="kernel", place="link 14", registers=(0, 2**64 - 1), recovery_value=2, driver_version="570", count=3,
        notes=("one", "two"),
    )  # fmt: skip
    whole = Report(report_id(event), event, AT + timedelta(microseconds=1))
    spool.add([whole], Position("journal", "boot", 5, "s=1;i=2", 3, 4, "abc", AT))
    again = spool_on(files.after_power_cut())
    assert spool.pending(1) == again.pending(1) == [whole]
    assert again.position == Position("journal", "boot", 5, "s=1;i=2", 3, 4, "abc", AT)


def test_a_place_in_the_log_after_lines_that_say_nothing_is_kept_too(files: Brittle, spool: Spool):
    spool.add([], upto(7))
    assert spool_on(files.after_power_cut()).position == upto(7)


def test_reports_from_elsewhere_leave_the_place_in_the_log_as_it_is(spool: Spool):
    spool.add([], upto(7))
    spool.add([report(99, source="node")])
    assert spool.position == upto(7)


@pytest.mark.parametrize("many", [1, 256])
def test_an_add_is_one_write_that_is_synced_once(files: Brittle, many: int):
    spool = spool_on(files, 32 << 20)
    add(spool, report(0))
    before = len(files.calls)
    add(spool, *different(range(1, 1 + many)))
    assert [call for call in files.calls[before:] if call != "write"] == ["sync"]


def test_nothing_new_costs_nothing(files: Brittle, spool: Spool):
    add(spool, report(0))
    before = len(files.calls)
    spool.add([], upto(0))
    add(spool, report(0))
    spool.acknowledge([])
    spool.acknowledge(["kmsg:boot:9"])
    assert len(files.calls) == before


# ----------------------------------------------------------------------------------------------------- what is known


def test_what_is_read_again_is_known_while_it_waits_and_after_it_has_gone(files: Brittle, spool: Spool):
    reports = different(range(6))
    add(spool, *reports)
    spool.acknowledge([one.id for one in reports[:4]])
    for one in (spool, spool_on(files.after_power_cut())):
        add(one, *reports)
        assert [waiting.event.sequence for waiting in one.pending(10)] == [4, 5]
        assert one.counts.known == 6


def test_what_merged_into_another_is_known_too(spool: Spool):
    add(spool, report(0), report(1), report(2))
    add(spool, report(1), report(2), report(3))
    assert told(spool) == [(79, 4)]


def test_the_same_report_twice_in_one_call_is_one(spool: Spool):
    add(spool, report(0), report(0))
    assert told(spool) == [(79, 1)]
    assert spool.counts == Counts(added=1, known=1)


def test_another_boot_counts_from_zero_again(spool: Spool):
    add(spool, report(500))
    spool.add([report(3, boot_id="next")], Position("kmsg", "next", 3))
    assert len(spool) == 2


def test_what_the_node_says_of_itself_is_known_by_what_it_says_since_it_has_no_order(files: Brittle, spool: Spool):
    facts = [report(number, f"fact {number}", source="node", kind=EventKind.GPU_MAP) for number in (900, 5, 400)]
    spool.add([], upto(1000))
    for one in facts:
        spool.add([one])
    spool.acknowledge([one.id for one in facts])
    again = spool_on(files.after_power_cut())
    again.add(facts)
    again.add([report(1, "fact 1", source="node", kind=EventKind.GPU_MAP)])
    assert [one.event.text for one in again.pending(10)] == ["fact 1"]


# --------------------------------------------------------------------------------------------------------- what is one


def test_repeats_are_one_report_with_their_number_and_the_time_of_the_last(files: Brittle, spool: Spool):
    add(spool, report(0), report(1, code=48))
    add(spool, report(2), replace(report(3, count=10), last_at=AT + timedelta(seconds=9)))
    for one in (spool, spool_on(files.after_kill())):
        first, second = one.pending(10)
        assert (first.id, first.event.count, first.last_at) == ("kmsg:boot:0", 12, AT + timedelta(seconds=9))
        assert first.event.at == AT
        assert (second.event.code, second.event.count, second.last_at) == (48, 1, None)
    assert spool.counts == Counts(added=2, merged=2)


@pytest.mark.parametrize(
    "about",
    [
        pytest.param({"pci": "0000:5d:00"}, id="another GPU"),
        pytest.param({"gpu_uuid": "GPU-2"}, id="another UUID"),
        pytest.param({"code": 48}, id="another code"),
        pytest.param({"kind": EventKind.SXID}, id="another kind"),
        pytest.param({"text": "else"}, id="another text"),
        pytest.param({"trusted": False}, id="not from the kernel"),
        pytest.param({"boot_id": "next"}, id="another boot"),
        pytest.param({"source": "journal"}, id="another source"),
    ],
)
def test_what_differs_stands_by_itself(spool: Spool, about: dict[str, object]):
    spool.add([report(0), report(1, **about)], upto(1))
    assert len(spool) == 2


def test_a_report_that_was_handed_out_never_changes_again(spool: Spool):
    add(spool, report(0), report(1))
    (first,) = spool.pending(10)
    add(spool, report(2), report(3))
    assert spool.pending(10) == [first], "its repeats wait until it is acknowledged"
    spool.acknowledge([first.id])
    (second,) = spool.pending(10)
    assert (second.id, second.event.count, first.event.count) == ("kmsg:boot:2", 2, 2)


def test_after_a_restart_any_report_may_have_been_handed_out(files: Brittle, spool: Spool):
    add(spool, report(0))
    again = spool_on(files.after_kill())
    add(again, report(1))
    assert told(again) == [(79, 1)]
    again.acknowledge(["kmsg:boot:0"])
    assert [one.id for one in again.pending(10)] == ["kmsg:boot:1"]


def test_what_comes_after_a_repeat_that_waits_does_not_overtake_it(spool: Spool):
    add(spool, report(0))
    spool.pending(1)
    add(spool, report(1), report(2, kind=EventKind.GPU_RESET, code=None))
    assert [one.event.sequence for one in spool.pending(10)] == [0]
    spool.acknowledge(["kmsg:boot:0"])
    assert [one.event.sequence for one in spool.pending(10)] == [1, 2]


def test_a_report_that_is_never_answered_does_not_hold_up_its_repeats_for_ever(spool: Spool):
    add(spool, report(0))
    spool.pending(1)
    add(spool, report(1))
    for _ in range(1000):
        if len(spool.pending(10)) == 2:
            break
    assert [one.event.sequence for one in spool.pending(10)] == [0, 1]


@pytest.mark.parametrize("apart", [False, True], ids=["in one call", "in calls of their own"])
def test_a_fault_before_a_reset_and_one_after_it_are_two(spool: Spool, apart: bool):
    reset = {"kind": EventKind.GPU_RESET, "code": None, "text": "reset"}
    reports = [report(0), report(1), report(2, **reset), report(3, **reset), report(4), report(5), report(6, **reset)]
    for some in [[one] for one in reports] if apart else [reports]:
        add(spool, *some)
    assert [(one.event.kind, one.event.sequence, one.event.count) for one in spool.pending(10)] == [
        (EventKind.XID, 0, 2),
        (EventKind.GPU_RESET, 2, 2),
        (EventKind.XID, 4, 2),
        (EventKind.GPU_RESET, 6, 1),
    ]


def test_a_reset_that_may_be_forged_parts_nothing(spool: Spool):
    add(spool, report(0), report(1, kind=EventKind.GPU_RESET, trusted=False), report(2))
    assert len(spool) == 2


def test_a_report_stands_for_no_more_events_than_the_controller_takes(spool: Spool):
    add(spool, report(0, count=MAX_COUNT - 1), report(1), report(2))
    assert [one.event.count for one in spool.pending(10)] == [MAX_COUNT]
    spool.acknowledge(["kmsg:boot:0"])
    assert [one.event.count for one in spool.pending(10)] == [1]


def test_a_flood_of_equal_events_in_many_calls_costs_a_handful_of_reports(files: Brittle):
    spool = spool_on(files, 32 << 20)
    for begin in range(0, 800_000, 2000):
        add(spool, *(report(begin + number) for number in range(2000)))
        if begin % 200_000 == 0:
            spool.pending(500)  # and the controller does not answer
    assert len(spool) == 2
    assert spool.disk_bytes == 3 * (512 << 10)
    spool.acknowledge(one.id for one in spool.pending(500))
    assert sum(one.event.count for one in spool.pending(500)) == 800_000 - 2000


# ------------------------------------------------------------------------------------------------------- what is let go


def test_what_the_controller_has_is_gone_for_good_in_any_order_and_as_often_as_it_says_so(files: Brittle, spool: Spool):
    reports = different(range(6))
    add(spool, *reports)
    for ids in (["kmsg:boot:4", "kmsg:boot:1"], ["kmsg:boot:1", "kmsg:boot:1", "nonsense"], []):
        spool.acknowledge(ids)
    assert spool.counts.acknowledged == 2
    for one in (spool, spool_on(files.after_power_cut())):
        assert [waiting.event.sequence for waiting in one.pending(10)] == [0, 2, 3, 5]


def test_what_has_gone_costs_no_room(files: Brittle):
    spool = spool_on(files, 4 << 20)
    add(spool, *different(range(1500)))
    grown = spool.disk_bytes
    spool.acknowledge([one.id for one in spool.pending(10_000)])
    assert (spool.bytes, len(spool)) == (0, 0)
    assert spool.disk_bytes < grown
    assert spool.disk_bytes == 3 * (256 << 10), "one slot at work and two free"
    assert sum(len(node.seen) for node in files.nodes.values()) < spool.disk_bytes + 4096


def test_one_report_that_stays_keeps_no_other_on_the_disk(files: Brittle, spool: Spool):
    add(spool, report(0))
    for number in range(1, 3000):
        add(spool, report(number, code=number + 1000))
        spool.acknowledge([f"kmsg:boot:{number}"])
    assert [one.event.sequence for one in spool.pending(10)] == [0]
    assert spool.disk_bytes == 3 * (32 << 10)
    assert [one.event.sequence for one in spool_on(files.after_power_cut()).pending(10)] == [0]


# --------------------------------------------------------------------------------------------- where there is no room


def test_a_spool_takes_no_more_of_the_disk_than_it_may(spool: Spool):
    for begin in range(0, 4000, 7):
        add(spool, *different(range(begin, begin + 7)))
        assert spool.disk_bytes <= SMALL
    assert 10 < len(spool) < 100


def test_the_oldest_facts_go_last_and_what_has_gone_is_told_in_one_event(files: Brittle, spool: Spool):
    reports = different(range(300))
    for one in reports:
        add(spool, one)
    waiting = spool.pending(1000)
    facts = [one for one in waiting if one.event.source == "kmsg"]
    (gap,) = [one for one in waiting if one.event.source == "spool"]
    dropped = 300 - len(facts)
    assert facts == reports[dropped:]
    last = AT + timedelta(seconds=dropped - 1)
    assert gap.event.kind is EventKind.COVERAGE_LOST
    assert gap.event.text == (
        f"spool full: {dropped} events dropped from {AT:%Y-%m-%dT%H:%M:%SZ} "
        f"to {last:%Y-%m-%dT%H:%M:%SZ} (xid {dropped})"
    )
    assert gap.id == report_id(gap.event)
    assert (gap.event.trusted, gap.event.boot_id, gap.event.at <= AT) == (True, "boot", True)
    assert spool.counts.dropped == dropped
    assert spool_on(files.after_power_cut()).pending(1000) == waiting


def test_repeats_count_in_their_equal_before_any_fact_goes(spool: Spool):
    reset = {"kind": EventKind.GPU_RESET, "code": None, "text": "reset"}
    fact = report(0, code=48)
    add(spool, fact)
    for number in range(1, 601, 2):
        add(spool, report(number), report(number + 1, **reset))
    waiting = spool.pending(1000)
    assert waiting[0] == fact
    assert sum(one.event.count for one in waiting) == 601
    assert (spool.counts.dropped, len(waiting) < 100) == (0, True)


def test_of_equals_that_were_handed_out_the_first_and_the_last_stay(files: Brittle):
    reset = {"kind": EventKind.GPU_RESET, "code": None, "text": "reset"}
    spool = spool_on(files, 1 << 20)
    for number in range(0, 200, 2):
        add(spool, report(number), report(number + 1, **reset))
    spool.pending(1000)
    spool = spool_on(files.after_kill())
    add(spool, *different(range(1000, 1010)))
    faults = [one.event.sequence for one in _all(spool) if one.event.code == 79]
    assert (faults[0], faults[-1]) == (0, 198)
    assert len(faults) < 100
    assert spool.counts.dropped == 200 - sum(one.event.sequence < 200 for one in _all(spool))


def _all(spool: Spool) -> list[Report]:
    """All that wait, as they would be on the wire one by one."""
    return [
        kept.report for entry in spool._entries.values() if (kept := spool._read(entry)) is not None and not entry.lost
    ]


def test_repeats_that_differ_in_details_count_in_one_before_any_fact_goes(spool: Spool):
    fact = report(0, code=48)
    add(spool, fact)
    for number in range(1, 500):
        add(spool, report(number, f"ESR 0x{number:x}", code=13))
    waiting = spool.pending(1000)
    assert waiting[0] == fact
    assert sum(one.event.count for one in waiting) == 500
    assert waiting[1].event.text == "ESR 0x1"
    assert max(one.last_at or AT for one in waiting) > AT + timedelta(seconds=100)
    assert len(waiting) < 50
    assert spool.counts.dropped == 0


def test_what_may_be_forged_pushes_nothing_out(spool: Spool):
    facts = different(range(10))
    add(spool, *facts)
    kinds = [EventKind.XID, EventKind.SXID, EventKind.RAS]
    for number in range(10, 1500):
        boot = f"boot {number}"  # so that not even details make them one
        add(spool, report(number, f"forged {number}", trusted=False, kind=kinds[number % 3], boot_id=boot))
    waiting = spool.pending(1000)
    assert waiting[:10] == facts
    assert any("events dropped" in one.event.text for one in waiting)


def test_losses_are_told_in_one_event_until_somebody_has_heard_of_them(spool: Spool):
    for one in different(range(200)):
        add(spool, one)
    (first,) = gaps(spool)
    for one in different(range(200, 400)):
        add(spool, one)
    assert gaps(spool) == [first], "what was handed out does not change, and the next one waits"
    ids = [one.id for one in spool.pending(1000) if one.event.source == "spool"]
    spool.acknowledge(ids)
    (second,) = gaps(spool)
    told_of = [int(text.split()[2]) for text in (first, second)]
    assert sum(told_of) == spool.counts.dropped == 400 - (len(spool) - 1)


def test_the_event_that_tells_of_losses_finds_room_whatever_comes(spool: Spool):
    for begin in range(0, 3000, 50):
        add(spool, *different(range(begin, begin + 50)))
        if spool.counts.dropped:
            assert sum(entry.lost is not None for entry in spool._entries.values()) == 1


def test_a_full_disk_leaves_the_room_that_the_spool_has(files: Brittle):
    spool = spool_on(files, 4 << 20)
    add(spool, report(0))
    files.room = sum(len(node.seen) for node in files.nodes.values())
    for begin in range(1, 3000, 10):
        add(spool, *different(range(begin, begin + 10)))
    assert spool.position == upto(3000)
    assert spool.disk_bytes == 3 * (256 << 10)
    (gap,) = gaps(spool)
    assert gap.startswith(f"spool full: {spool.counts.dropped} events dropped")
    spool.acknowledge([one.id for one in spool.pending(10_000)])
    assert len(spool) == 0
    assert len(spool_on(files.after_power_cut(), 4 << 20)) == 0


def test_a_disk_that_is_full_from_the_start_says_so_and_loses_nothing(files: Brittle):
    files.room = 40_000
    spool = spool_on(files)
    with pytest.raises(SpoolFull, match=r"No space left on device.*free space"):
        add(spool, report(0))
    assert (spool.position, len(spool)) == (None, 0)
    files.room = 1 << 20
    add(spool, report(0))
    assert (spool.position, told(spool)) == (upto(0), [(79, 1)])


@pytest.mark.parametrize("call", ["write", "sync"])
@pytest.mark.parametrize(
    ("number", "raised"),
    [(errno.ENOSPC, SpoolFull), (errno.EDQUOT, SpoolFull), (errno.EFBIG, SpoolFull), (errno.EIO, SpoolError)],
)
def test_a_disk_that_fails_changes_nothing_and_the_same_call_works_later(
    files: Brittle, spool: Spool, call: str, number: int, raised: type[SpoolError]
):
    add(spool, report(0), report(1, code=48))
    files.fails[call] = number
    with pytest.raises(raised) as error:
        add(spool, report(2), report(3, code=63))
    assert isinstance(error.value, SpoolFull) == (raised is SpoolFull)
    with pytest.raises(raised):
        spool.acknowledge(["kmsg:boot:0"])
    assert (spool.position, told(spool)) == (upto(1), [(79, 1), (48, 1)])
    files.fails.clear()
    add(spool, report(2), report(3, code=63))
    spool.acknowledge(["kmsg:boot:0"])
    for one in (spool, spool_on(files.after_power_cut())):
        assert (one.position, told(one)) == (upto(3), [(48, 1), (79, 1), (63, 1)])


def test_a_segment_that_could_not_be_begun_is_no_loss(files: Brittle, spool: Spool):
    number = 0
    while spool._log.end[0] < 2:
        files.fails.clear()
        if spool._log._segments and spool._log._room() < 1500:
            files.fails["write"] = errno.EIO
            with pytest.raises(SpoolError):
                add(spool, *different(range(number, number + 2)))
            break
        add(spool, report(number, code=1000 + number))
        spool.acknowledge([f"kmsg:boot:{number}"])
        number += 1
    spool.close()
    again = spool_on(files.after_kill())
    assert (again.position, again.counts) == (upto(number - 1), Counts())


@pytest.mark.parametrize(
    "about",
    [
        pytest.param({"text": "x" * 100_000}, id="a text without an end"),
        pytest.param({"text": "half a pair \ud800"}, id="no Unicode"),
        pytest.param({"process": "\udfff" * 9, "notes": ("n" * 50_000,)}, id="no Unicode, and long notes"),
    ],
)
def test_a_report_that_no_controller_would_take_is_cut_until_it_would(spool: Spool, about: dict[str, object]):
    add(spool, report(0, **about))
    (one,) = spool.pending(1)
    assert (one.event.code, len(one.event.text) <= MAX_TEXT) == (79, True)
    assert len(json.dumps(one.event.text)) > 3


def test_a_report_that_cannot_be_cut_is_counted_and_told(spool: Spool):
    add(spool, report(0, registers=tuple(range(10_000)), count=7), report(1))
    assert told(spool) == [(79, 1), (None, 1)]
    assert spool.counts.dropped == 7
    assert gaps(spool)[0].startswith("spool full: 7 events dropped")


@pytest.mark.parametrize(("before", "after"), [(1 << 20, SMALL), (SMALL, 1 << 20), (32 << 20, 1 << 20)])
def test_a_limit_may_change_between_two_starts(files: Brittle, before: int, after: int):
    first = spool_on(files, before)
    reports = different(range(40))
    add(first, *reports)
    first.close()
    second = spool_on(files.after_power_cut(), after)
    assert second.pending(100) == reports
    for number in range(40, 600):
        add(second, report(number, code=1000 + number))
    assert second.disk_bytes <= after
    delivered = sum(one.event.count for one in second.pending(10_000) if one.event.source == "kmsg")
    assert delivered + second.counts.dropped == 600


def test_a_spool_that_holds_more_than_a_new_limit_allows_drops_the_rest(files: Brittle):
    first = spool_on(files, 4 << 20)
    add(first, *different(range(1500)))
    second = spool_on(files.after_power_cut(), SMALL)
    assert len(second) == 1500
    add(second, report(1500, code=2500))
    assert second.disk_bytes <= SMALL
    delivered = sum(one.event.count for one in second.pending(10_000) if one.event.source == "kmsg")
    assert delivered + second.counts.dropped == 1501
    assert gaps(second)[0].startswith(f"spool full: {second.counts.dropped} events dropped")


def test_a_spool_that_could_hold_next_to_nothing_is_refused():
    with pytest.raises(ValueError, match="131072 bytes"):
        spool_on(Brittle(), 100_000)


# ------------------------------------------------------------------------------------------------- who may use it


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before = os.umask(0o022)
    yield tmp_path / "var" / "spool"
    os.umask(before)


def test_the_folder_and_its_files_are_for_the_agent_alone(folder: Path):
    with Spool(folder, SMALL) as spool:
        add(spool, report(0))
    assert folder.stat().st_mode & 0o777 == 0o700
    names = {one.name: one.stat().st_mode & 0o777 for one in folder.iterdir()}
    assert names == dict.fromkeys(("position", "slot-000", "slot-001", "slot-002"), 384)


def test_a_folder_that_others_may_read_is_closed_to_them(folder: Path):
    folder.mkdir(parents=True, mode=0o755)
    Spool(folder, SMALL).close()
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_a_folder_that_others_may_write_to_is_refused_with_what_to_do(folder: Path, mode: int):
    folder.mkdir(parents=True)
    folder.chmod(mode)
    with pytest.raises(SpoolError, match=rf"others may write .*mode {mode:04o}.*chmod 0700 {folder}"):
        Spool(folder, SMALL)
    assert list(folder.iterdir()) == []


def test_a_folder_of_somebody_else_is_refused_with_what_to_do(folder: Path):
    if os.geteuid() != 0:
        pytest.skip("not root: no folder can be given to another user")
    folder.mkdir(parents=True)
    os.chown(folder, 12345, -1)
    with pytest.raises(SpoolError, match=r"belongs to user 12345.*chown 0"):
        Spool(folder, SMALL)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="cannot be opened: Not a directory"):
        Spool(tmp_path / "file" / "spool", SMALL)


def test_a_link_in_the_folder_is_not_followed(folder: Path, tmp_path: Path):
    folder.mkdir(parents=True)
    (tmp_path / "other").write_bytes(b"mine" * 100)
    (folder / "slot-000").symlink_to(tmp_path / "other")
    with pytest.raises(SpoolError, match="slot-000 cannot be read"):
        Spool(folder, SMALL)
    assert (tmp_path / "other").read_bytes() == b"mine" * 100


def test_only_one_process_has_a_spool(folder: Path):
    code = f"from pathlib import Path; from daemon.agent.spool import Spool; Spool(Path({str(folder)!r}))"
    with Spool(folder):
        with pytest.raises(SpoolError, match=f"another process has the spool {folder}"):
            Spool(folder)
        second = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert "another process has the spool" in second.stderr
    third = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (third.returncode, third.stderr) == (0, "")


def test_a_spool_full_of_different_facts_takes_little_memory(folder: Path):
    code = """if True:
        import resource, sys
        from pathlib import Path
        from tests.agent.test_spool import different, upto
        from daemon.agent.spool import Spool
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        spool = Spool(Path(sys.argv[1]))
        for begin in range(0, 40_000, 200):
            spool.add(different(range(begin, begin + 200), node="n" * 60), upto(begin + 199))
        assert spool.counts.dropped
        spool.pending(500)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, len(spool))
    """
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    more_kib, waiting = map(int, ran.stdout.split())
    assert waiting > 10_000
    assert more_kib < 24 << 10


def test_the_spool_needs_nothing_that_is_large():
    code = "import sys, daemon.agent.spool; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"numpy", "pandas", "sqlalchemy", "sqlite3", "requests", "pydantic"} & set(ran.stdout.split())


# ---------------------------------------------------------------------------------------------------- over a long time


def test_what_is_said_and_what_is_delivered_add_up_over_a_long_time(spool: Spool):
    delivered = told_of = number = 0
    arrived: list[int] = []
    for turn in range(400):
        some = different(range(number, number + 1 + turn % 40))
        number += len(some)
        add(spool, *some)
        if turn % 9 < 4:
            batch = spool.pending(10)
            for one in batch:
                if one.event.source == "spool":
                    told_of += int(one.event.text.split()[2])
                else:
                    delivered += one.event.count
                    arrived.append(one.event.sequence)
            spool.acknowledge([one.id for one in batch])
    while batch := spool.pending(500):
        told_of += sum(int(one.event.text.split()[2]) for one in batch if one.event.source == "spool")
        delivered += sum(one.event.count for one in batch if one.event.source == "kmsg")
        arrived += [one.event.sequence for one in batch if one.event.source == "kmsg"]
        spool.acknowledge([one.id for one in batch])
    assert delivered + told_of == number
    assert all(one < two for one, two in pairwise(arrived))
    assert spool.counts.dropped == told_of > 0

"""Kernel-log files as events: whole files over several boots, floods, several files at once, files being written."""

import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.logs import (
    EventQueue,
    FollowedLog,
    LogFile,
    LogSourceError,
    fold,
    in_order,
    parse_log_option,
    read_log,
)
from detectors.events import KernelEvent
from detectors.kernel_log import MAX_LINE_BYTES
from rules.schema import RuleBook
from rules.vocabulary import EventKind

DAY = datetime(2026, 3, 1, tzinfo=UTC)
Append = Callable[[str], None]


def at(seconds: float) -> datetime:
    return DAY + timedelta(seconds=seconds)


def xid(code: int, pid: int = 1) -> str:
    return f"NVRM: Xid (PCI:0000:10:00): {code}, pid={pid}, name=a, Ch 00000008"


def since_boot(seconds: float, code: int) -> str:
    return f"[{seconds:12.6f}] {xid(code)}\n"


def dated(seconds: float, code: int, pid: int = 1) -> str:
    return f"{at(seconds).isoformat()} n1 kernel: {xid(code, pid)}\n"


def whole(
    path: Path, rules: RuleBook, *boots: datetime, counts: Counter[str] | None = None, end: float = 86_400
) -> list[KernelEvent]:
    tally = Counter[str]() if counts is None else counts
    return list(read_log(LogFile("n1", path), rules, boots=boots, start=DAY, end=at(end), counts=tally))


def times(events: list[KernelEvent]) -> list[tuple[int | None, datetime | None]]:
    return [(event.code, event.at) for event in events]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "kern.log"


# ------------------------------------------------------------------------------------------------- whole files


def test_seconds_since_two_boots_are_matched_with_the_boots_from_the_end(log: Path, rules: RuleBook) -> None:
    log.write_text(
        since_boot(1000, 31) + since_boot(5000, 43) + "[    0.000000] Linux version 6.8\n" + since_boot(40, 48)
    )
    events = whole(log, rules, at(-9000), at(20_000))
    assert times(events) == [(31, at(-8000)), (43, at(-4000)), (48, at(20_040))]


def test_a_stretch_before_the_first_boot_that_is_known_lies_before_it(log: Path, rules: RuleBook) -> None:
    """It must not be taken for the present boot: its faults are over."""
    log.write_text(since_boot(50_000, 79) + "[    0.000000] Linux version 6.8\n" + since_boot(40, 48))
    events = whole(log, rules, at(20_000))
    assert times(events) == [(79, at(19_999)), (48, at(20_040))]


def test_stretches_are_told_apart_in_the_form_of_kmsg_too(log: Path, rules: RuleBook) -> None:
    log.write_text(f"4,88,5000000000,-;{xid(31)}\n4,1,40000000,-;{xid(48)}\n")
    assert times(whole(log, rules, at(0), at(20_000))) == [(31, at(5000)), (48, at(20_040))]


def test_more_boots_than_stretches_leave_the_first_ones_out(log: Path, rules: RuleBook) -> None:
    log.write_text(since_boot(40, 48))
    assert times(whole(log, rules, at(0), at(10_000), at(20_000))) == [(48, at(20_040))]


def test_a_record_without_a_time_takes_that_of_the_one_before_and_is_counted(log: Path, rules: RuleBook) -> None:
    log.write_text(f"{xid(31)}\n{dated(600, 43)}{xid(48)}\n")
    counts: Counter[str] = Counter()
    events = whole(log, rules, counts=counts)
    assert times(events) == [(31, DAY), (43, at(600)), (48, at(600))]
    assert counts["log_undated"] == 2
    assert [bool(event.notes) for event in events] == [True, False, True]


def test_seconds_since_a_boot_that_nobody_knows_are_no_time(log: Path, rules: RuleBook) -> None:
    log.write_text(since_boot(40, 48))
    counts: Counter[str] = Counter()
    assert times(whole(log, rules, counts=counts)) == [(48, DAY)]
    assert counts["log_undated"] == 1


def test_a_stamp_that_lasts_for_ever_is_no_crash(log: Path, rules: RuleBook) -> None:
    log.write_text(f"[{10**30}.0] {xid(48)}\n")
    (event,) = whole(log, rules, at(0))
    assert event.at is not None


def test_what_a_log_holds_is_counted(log: Path, rules: RuleBook) -> None:
    log.write_bytes(
        f"noise\n{dated(1, 48)}".encode() + b"NVRM" + b"x" * (3 * MAX_LINE_BYTES) + b"\n" + dated(2, 43).encode()
    )
    counts: Counter[str] = Counter()
    assert [event.line for event in whole(log, rules, counts=counts)] == [2, 4]
    assert (counts["log_lines"], counts["log_truncated"]) == (4, 1)


def test_a_log_that_is_not_there_is_an_error_with_its_path(log: Path, rules: RuleBook) -> None:
    with pytest.raises(LogSourceError, match=f"{log}.*check the path"):
        whole(log, rules)


@given(
    lines=st.lists(
        st.binary(max_size=60) | st.sampled_from([since_boot(9, 31).encode(), dated(5, 48).encode(), b"[ 1.0] NVRM: "]),
        max_size=8,
    )
)
def test_any_bytes_are_read_and_every_event_has_a_time(
    tmp_path_factory: pytest.TempPathFactory, rules: RuleBook, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("any") / "log"
    path.write_bytes(b"\n".join(lines))
    assert all(event.at is not None for event in whole(path, rules, at(0)))


@pytest.mark.parametrize("text", [pytest.param(text, id=repr(text)) for text in ("", "n1", "n1=", "=file")])
def test_a_log_option_needs_both_parts(text: str) -> None:
    with pytest.raises(ValueError, match="NODE=FILE"):
        parse_log_option(text)


def test_a_log_option_may_have_an_equals_sign_in_its_path() -> None:
    assert parse_log_option("n1=a=b") == LogFile("n1", Path("a=b"))


# ------------------------------------------------------------------------------------------------- floods


def flood(path: Path, lines: int) -> None:
    with path.open("w") as stream:
        stream.writelines(f"[{1000 + number / 1000:12.6f}] {xid(95)}\n" for number in range(lines))


def queue_of(path: Path, rules: RuleBook) -> EventQueue:
    events = read_log(LogFile("n1", path), rules, boots=[DAY], start=DAY, end=at(9000), counts=Counter())
    return EventQueue({"n1": events})


def test_a_hundred_thousand_equal_lines_are_few_events_with_their_count(log: Path, rules: RuleBook) -> None:
    flood(log, 100_000)
    events = queue_of(log, rules).until(at(9000))
    assert sum(event.count for event in events) == 100_000
    assert len(events) <= 2 * 3  # 100 s lie in three minutes, of each the first and the last stand


def test_a_flood_needs_no_more_memory_the_longer_it_lasts(log: Path, rules: RuleBook) -> None:
    """If each line were kept, 7,000 more would need some 4 MB more; what else runs in this process needs less."""
    peaks = []
    for lines in (1_000, 8_000):
        flood(log, lines)
        queue = queue_of(log, rules)
        tracemalloc.start()
        queue.until(at(9000))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 1_000_000


def test_a_flood_in_a_followed_file_is_folded_as_it_is_read(log: Path, rules: RuleBook) -> None:
    followed = FollowedLog(LogFile("n1", log), rules, Counter())
    log.write_text("")
    followed.read()
    flood(log, 8_000)
    tracemalloc.start()
    events = followed.read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    followed.close()
    assert (sum(event.count for event in events), len(events)) == (8_000, 2)
    assert peak < 1_000_000


def event(seconds: float | None, code: int = 95, node: str = "n1", line: int = 0, pid: int = 1) -> KernelEvent:
    moment = None if seconds is None else at(seconds)
    return KernelEvent(EventKind.XID, code, "text", line=line, at=moment, node=node, pid=pid)


_events = st.lists(
    st.builds(
        event, st.integers(0, 300), st.sampled_from([31, 95]), st.sampled_from(["n1", "n2"]), pid=st.integers(1, 2)
    ),
    max_size=40,
)


@given(_events)
def test_folding_loses_no_event_and_keeps_the_first_and_the_last_of_each_kind(events: list[KernelEvent]) -> None:
    events = sorted(events, key=lambda one: one.at or DAY)
    folded: dict[tuple[object, ...], KernelEvent] = {}
    for one in events:
        fold(folded, one)
    kept = in_order(folded)
    assert sum(one.count for one in kept) == len(events)
    assert [one.at for one in kept] == sorted(one.at for one in kept if one.at)
    kinds = {(one.node, one.code, one.pid) for one in events}
    for kind in kinds:
        before, after = ([one.at for one in some if (one.node, one.code, one.pid) == kind] for some in (events, kept))
        assert (after[0], after[-1]) == (before[0], before[-1])


# ------------------------------------------------------------------------------------------------- several files


def test_events_of_several_files_come_in_the_order_of_their_times() -> None:
    queue = EventQueue(
        {"n1": iter([event(1, 31), event(30, 43)]), "n2": iter([event(2, 48, "n2"), event(29, 62, "n2")])}
    )
    assert [one.code for one in queue.until(at(29))] == [31, 48, 62]
    assert [one.code for one in queue.until(at(30))] == [43]
    assert queue.until(at(99)) == []


def test_one_record_of_a_clock_that_was_wrong_holds_nothing_back() -> None:
    queue = EventQueue({"n1": iter([event(1, 31), event(9e8, 43), event(2, 48), event(3, 62)])})
    assert [one.code for one in queue.until(at(10))] == [31, 48, 62]
    assert [one.code for one in queue.until(at(9e8))] == [43]


def test_a_queue_reads_nothing_before_it_is_asked_and_never_far_ahead() -> None:
    taken = []

    def endless() -> Iterator[KernelEvent]:
        for second in range(1_000_000):
            taken.append(second)
            yield event(second, pid=second)

    queue = EventQueue({"n1": endless()})
    assert taken == []
    assert len(queue.until(at(4))) == 5
    assert len(taken) < 1000


@given(steps=st.lists(st.integers(0, 40), max_size=12), lists=st.lists(_events, min_size=1, max_size=3))
def test_a_queue_hands_out_every_event_once_and_none_too_early(
    steps: list[int], lists: list[list[KernelEvent]]
) -> None:
    queue = EventQueue({str(n): iter(sorted(events, key=lambda one: one.at or DAY)) for n, events in enumerate(lists)})
    total = 0
    seconds = 0
    for step in [*steps, 10**6]:
        seconds += step
        got = queue.until(at(seconds))
        assert all(one.at is not None and one.at <= at(seconds) for one in got)
        total += sum(one.count for one in got)
    assert total == sum(len(events) for events in lists)


# ------------------------------------------------------------------------------------------------- followed files


@pytest.fixture
def append(log: Path) -> Append:
    def write(text: str) -> None:
        with log.open("a") as stream:
            stream.write(text)

    return write


@pytest.fixture
def counts() -> Counter[str]:
    return Counter()


@pytest.fixture
def followed(log: Path, rules: RuleBook, counts: Counter[str]) -> Iterator[FollowedLog]:
    following = FollowedLog(LogFile("n1", log), rules, counts)
    yield following
    following.close()


def read(followed: FollowedLog) -> list[int | None]:
    return [one.code for one in followed.read()]


def test_what_was_appended_comes_once(followed: FollowedLog, append: Append) -> None:
    append(dated(1, 31))
    assert read(followed) == [31]
    append(dated(2, 43) + dated(3, 48))
    assert read(followed) == [43, 48]
    assert read(followed) == []


def test_a_line_that_is_not_whole_yet_waits(followed: FollowedLog, append: Append) -> None:
    line = dated(1, 31)
    seen = []
    for begin in range(0, len(line), 7):
        append(line[begin : begin + 7])
        seen.append(read(followed))
    assert seen[-1] == [31]
    assert not any(seen[:-1])


def test_a_line_without_an_end_costs_no_memory_and_the_next_one_is_read(followed: FollowedLog, append: Append) -> None:
    for _ in range(20):
        append("NVRM: " + "x" * MAX_LINE_BYTES)
        assert read(followed) == []
        assert len(followed._partial) <= MAX_LINE_BYTES
    append("\n" + dated(1, 31))
    assert read(followed) == [31]


def test_the_lines_before_a_rotation_and_after_it_all_come(
    followed: FollowedLog, log: Path, append: Append, counts: Counter[str]
) -> None:
    append(dated(1, 31))
    assert read(followed) == [31]
    append(dated(2, 43) + dated(3, 45).rstrip())  # the last line of the old file has no newline
    log.rename(log.with_suffix(".1"))
    append(dated(4, 48))
    assert read(followed) == [43, 45, 48]
    assert counts["log_rotations"] == 1
    append(dated(5, 62))
    assert read(followed) == [62]


def test_between_the_two_steps_of_a_rotation_nothing_is_lost(followed: FollowedLog, log: Path, append: Append) -> None:
    append(dated(1, 31))
    read(followed)
    append(dated(2, 43))
    log.rename(log.with_suffix(".1"))
    assert read(followed) == [43]
    append(dated(3, 48))
    assert read(followed) == [48]


def test_a_file_that_was_cut_is_read_from_its_beginning(
    followed: FollowedLog, log: Path, append: Append, counts: Counter[str]
) -> None:
    append(dated(1, 31) + dated(2, 43) + "half a li")
    assert read(followed) == [31, 43]
    log.write_text(dated(3, 48))
    assert read(followed) == [48]
    assert (counts["log_truncations"], counts["log_rotations"]) == (1, 0)


def test_a_file_that_is_not_there_yet_is_an_error_until_it_is(followed: FollowedLog, log: Path, append: Append) -> None:
    with pytest.raises(LogSourceError, match=str(log)):
        followed.read()
    append(dated(1, 31))
    assert read(followed) == [31]


def test_a_folder_in_its_place_is_an_error(followed: FollowedLog, log: Path) -> None:
    log.mkdir()
    with pytest.raises(LogSourceError, match="directory"):
        followed.read()


def test_a_new_file_that_cannot_be_opened_is_an_error_and_the_old_one_goes_on(
    followed: FollowedLog, log: Path, append: Append
) -> None:
    append(dated(1, 31))
    assert read(followed) == [31]
    log.rename(log.with_suffix(".1"))
    log.mkdir()
    for _ in range(2):
        with pytest.raises(LogSourceError):
            followed.read()
    log.rmdir()
    append(dated(3, 48))
    assert read(followed) == [48]


def test_seconds_since_an_earlier_boot_are_not_taken_for_those_of_this_one(
    followed: FollowedLog, append: Append
) -> None:
    append(since_boot(50_000, 79) + "[    0.000000] Linux version 6.8\n" + since_boot(40, 48))
    assert [(one.code, one.monotonic_s) for one in followed.read()] == [(79, None), (48, 40.0)]
    append(since_boot(50, 43))
    assert [(one.code, one.monotonic_s) for one in followed.read()] == [(43, 50.0)]


def test_what_a_followed_file_holds_is_counted_as_it_comes(
    followed: FollowedLog, append: Append, counts: Counter[str]
) -> None:
    append("noise\n" + dated(1, 31))
    followed.read()
    append("NVRM: " + "x" * 3 * MAX_LINE_BYTES + "\n")
    followed.read()
    assert (counts["log_lines"], counts["log_truncated"]) == (3, 1)


@given(cuts=st.lists(st.integers(1, 80), max_size=12))
def test_in_whatever_pieces_a_file_is_written_its_events_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, rules: RuleBook, cuts: list[int]
) -> None:
    text = "".join(dated(60 * n, code) for n, code in enumerate((31, 43, 48, 62, 79)))
    path = tmp_path_factory.mktemp("cut") / "log"
    followed = FollowedLog(LogFile("n1", path), rules, Counter())
    seen = []
    begin = 0
    for size in [*cuts, len(text)]:
        with path.open("a") as stream:
            stream.write(text[begin : begin + size])
        begin += size
        seen += followed.read()
    followed.close()
    assert [(one.code, one.at) for one in seen] == [(code, at(60 * n)) for n, code in enumerate((31, 43, 48, 62, 79))]

"""Followed logs: what is news, when it happened, and what a log without times, a rotation or a flood does."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from daemon.config import KernelLog
from daemon.hearing import Hearing
from daemon.logs import utc
from daemon.memory import Heard, Mark
from detectors.events import KernelEvent
from rules.schema import RuleBook
from rules.vocabulary import EventKind

NOW_S = 1_800_000_000.0
BOOT_S = NOW_S - 10_000.0
HORIZON_S = 3600.0
XID = "NVRM: Xid (PCI:0000:5c:00): {code}, pid=77, name=python3, {text}"

Boots = Callable[[str], float | None]


def nobody_knows(_node: str) -> float | None:
    return None


def everybody_knows(_node: str) -> float | None:
    return BOOT_S


class Log:
    """A log file with its listener."""

    def __init__(self, path: Path, rules: RuleBook) -> None:
        self.path = path
        self.rules = rules
        self.counts: Counter[str] = Counter()
        self.hearing = Hearing([], rules, utc(0), self.counts)
        self.restart()

    def restart(self, heard: Heard | None = None, last_tick: datetime | None = None) -> None:
        self.hearing.close()
        oldest = utc(NOW_S - HORIZON_S)
        self.hearing = Hearing([KernelLog(node="n1", path=self.path)], self.rules, oldest, self.counts)
        if heard is not None:
            self.hearing.resume(heard, last_tick)

    def write(self, *lines: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def hear(self, at_s: float = NOW_S, boots: Boots = nobody_knows) -> list[KernelEvent]:
        self.hearing.listen(utc(at_s), boots)
        return self.hearing.take(utc(at_s))


@pytest.fixture
def log(tmp_path: Path, rules: RuleBook) -> Iterator[Log]:
    made = Log(tmp_path / "kern.log", rules)
    yield made
    made.hearing.close()


def dated(at_s: float, code: int = 79, text: str = "GPU has fallen off the bus.") -> str:
    return f"{utc(at_s).isoformat()} n1 kernel: {XID.format(code=code, text=text)}"


def seconds_since_boot(at_s: float, code: int = 79, text: str = "GPU has fallen off the bus.") -> str:
    return f"[{at_s - BOOT_S:12.6f}] {XID.format(code=code, text=text)}"


def undated(code: int = 79, text: str = "GPU has fallen off the bus.") -> str:
    return XID.format(code=code, text=text)


@pytest.mark.parametrize(
    ("line", "boots", "heard_at"),
    [
        pytest.param(dated(NOW_S - 60), nobody_knows, NOW_S - 60, id="a record with its own time"),
        pytest.param(seconds_since_boot(NOW_S - 60), everybody_knows, NOW_S - 60, id="seconds since a known boot"),
        pytest.param(
            seconds_since_boot(NOW_S - 60), nobody_knows, None, id="seconds since a boot that nobody knows yet"
        ),
        pytest.param(undated(), everybody_knows, None, id="no time at all: it could be of any age"),
        pytest.param(dated(NOW_S - HORIZON_S - 1), nobody_knows, None, id="older than the horizon"),
    ],
)
def test_of_what_stood_there_at_the_start_only_what_has_a_time_is_heard(
    log: Log, line: str, boots: Boots, heard_at: float | None
) -> None:
    log.write(line)
    heard = log.hear(boots=boots)
    assert [event.at for event in heard] == ([] if heard_at is None else [utc(heard_at)])


@pytest.mark.parametrize(
    ("line", "boots", "heard_at"),
    [
        pytest.param(dated(NOW_S + 10), nobody_knows, NOW_S + 10, id="a record with its own time"),
        pytest.param(dated(NOW_S + 999), nobody_knows, NOW_S + 30, id="a stamp that lies ahead"),
        pytest.param(seconds_since_boot(NOW_S + 10), everybody_knows, NOW_S + 10, id="seconds since a known boot"),
        pytest.param(seconds_since_boot(NOW_S + 10), nobody_knows, NOW_S + 30, id="seconds since an unknown boot"),
        pytest.param(undated(), nobody_knows, NOW_S + 30, id="no time at all"),
    ],
)
def test_what_is_written_later_is_heard_whatever_it_says_about_its_time(
    log: Log, line: str, boots: Boots, heard_at: float
) -> None:
    """FC114: a line that is written after the start is heard."""
    log.write("an ordinary line")
    assert log.hear() == []
    log.write(line)
    (event,) = log.hear(NOW_S + 30, boots)
    assert event.at == utc(heard_at)


def test_records_that_waited_for_the_boot_time_are_heard_with_it(log: Log) -> None:
    log.write(seconds_since_boot(NOW_S - 120))
    assert log.hear() == []
    (event,) = log.hear(NOW_S + 30, everybody_knows)
    assert event.at == utc(NOW_S - 120)
    assert log.hear(NOW_S + 60, everybody_knows) == []


def test_what_happened_after_the_tick_began_belongs_to_the_next_one(log: Log) -> None:
    log.write("an ordinary line")
    log.hear()
    log.write(dated(NOW_S + 5))
    log.hearing.listen(utc(NOW_S + 10), nobody_knows)
    assert log.hearing.take(utc(NOW_S)) == []
    assert log.hearing.is_urgent
    assert len(log.hearing.take(utc(NOW_S + 10))) == 1
    assert not log.hearing.is_urgent


LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 06:46:07 UTC 2024"


@pytest.mark.parametrize(
    ("program", "text", "urgent"),
    [
        pytest.param("kernel", undated(), True, id="a fault that the kernel reports"),
        pytest.param("kernel", LOADED, False, id="a driver that loads"),
        pytest.param("trainer[77]", undated(), False, id="a program that claims a fault"),
    ],
)
def test_only_a_fault_of_the_kernels_own_words_is_urgent(log: Log, program: str, text: str, urgent: bool) -> None:
    log.write("an ordinary line")
    log.hear()
    log.write(f"{utc(NOW_S + 1).isoformat()} n1 {program}: {text}")
    log.hearing.listen(utc(NOW_S + 10), nobody_knows)
    assert log.hearing.is_urgent is urgent


# ------------------------------------------------------------------------------------------------------- restart


def test_after_a_restart_only_what_was_not_heard_before_is_news(log: Log) -> None:
    """FC114: how far a log was taken in is kept, and what was written while nobody looked is news."""
    log.write(dated(NOW_S - 60, 48), dated(NOW_S - 30, 79))
    assert len(log.hear()) == 2
    before = log.hearing.heard
    log.write(dated(NOW_S - 30, 95, "Uncontained: LTC TAG"), dated(NOW_S + 5, 48))
    log.restart(Heard(before.marks), utc(NOW_S))
    assert [event.code for event in log.hear(NOW_S + 10)] == [95, 48], "also the one with the stamp of the last heard"
    assert log.counts["log_heard_before"] == 2


def test_what_was_written_after_the_last_tick_is_news_also_in_a_log_that_never_spoke(log: Log) -> None:
    down_s = 10 * HORIZON_S
    log.write(dated(NOW_S - down_s + 60))
    log.restart(Heard({"another.log": Mark(utc(NOW_S - down_s), ())}), utc(NOW_S - down_s))
    assert len(log.hear()) == 1


def test_an_event_that_was_given_back_comes_once_more(log: Log) -> None:
    log.write(dated(NOW_S - 60))
    taken = log.hear()
    log.hearing.give_back(taken)
    assert log.hearing.take(utc(NOW_S)) == taken
    assert log.hearing.take(utc(NOW_S)) == []


# ---------------------------------------------------------------------------------------------------------- files


def test_a_log_that_is_not_there_is_told_once_and_so_is_its_coming(log: Log) -> None:
    with capture_logs() as logged:
        for _ in range(5):
            assert log.hear() == []
        log.write(dated(NOW_S - 1))
        assert len(log.hear()) == 1
    assert [line["event"] for line in logged] == ["kernel log", "kernel log is back"]
    assert log.counts["log_unreadable"] == 5


def test_a_folder_in_place_of_a_log_breaks_nothing(log: Log) -> None:
    log.path.mkdir()
    assert log.hear() == []
    assert log.counts["log_unreadable"] == 1


def test_lines_from_before_a_rotation_and_after_it_are_all_heard(log: Log) -> None:
    log.write(dated(NOW_S - 50, 48))
    assert [event.code for event in log.hear()] == [48]
    log.write(dated(NOW_S - 40, 79))
    log.path.rename(log.path.with_suffix(".1"))
    log.write(dated(NOW_S - 30, 95, "Uncontained"))
    assert sorted(event.code or 0 for event in log.hear(NOW_S + 1)) == [79, 95]
    assert log.counts["log_rotations"] == 1


def test_a_file_that_was_cut_is_read_from_its_beginning(log: Log) -> None:
    log.write(dated(NOW_S - 50, 48), dated(NOW_S - 49, 79))
    log.hear()
    os.truncate(log.path, 0)
    assert log.hear() == []
    log.write(dated(NOW_S + 1, 95, "Uncontained"))
    assert [event.code for event in log.hear(NOW_S + 2)] == [95]
    assert log.counts["log_truncations"] == 1


def test_a_line_that_is_still_being_written_is_heard_when_it_is_whole(log: Log) -> None:
    log.write("an ordinary line")
    log.hear()
    line = dated(NOW_S + 1)
    with log.path.open("a", encoding="utf-8") as file:
        file.write(line[:50])
        file.flush()
        assert log.hear(NOW_S + 2) == []
        file.write(line[50:] + "\n")
    (event,) = log.hear(NOW_S + 3)
    assert event.code == 79


def test_the_rest_of_a_line_that_is_too_long_is_no_line_of_its_own(log: Log) -> None:
    log.write("an ordinary line")
    log.hear()
    with log.path.open("a", encoding="utf-8") as file:
        file.write(f"{utc(NOW_S + 1).isoformat()} n1 trainer[77]: {'x' * 20_000}")
        file.flush()
        assert log.hear(NOW_S + 2) == []
        file.write(f"{undated()}\n")
    assert log.hear(NOW_S + 3) == []


def test_a_flood_costs_a_few_events_and_keeps_its_count(log: Log) -> None:
    log.write("an ordinary line")
    log.hear()
    for second in range(0, 50, 10):
        log.write(*[dated(NOW_S + 1, 31, "Ch 00000010")] * 400)
        log.hearing.listen(utc(NOW_S + second + 5), nobody_knows)
    heard = log.hearing.take(utc(NOW_S + 60))
    assert len(heard) <= 2
    assert sum(event.count for event in heard) == 2000


def test_a_fault_after_a_reset_stays_a_fault_after_the_reset_however_fast_it_goes(log: Log) -> None:
    """Folding must not move the second fault before the reset that ended the first."""
    log.write("an ordinary line")
    log.hear()
    loaded = f"{utc(NOW_S + 2).isoformat()} n1 kernel: {LOADED}"
    log.write(dated(NOW_S + 1), loaded, dated(NOW_S + 3), dated(NOW_S + 4))
    heard = log.hear(NOW_S + 10)
    assert [(event.kind, event.count) for event in heard] == [
        (EventKind.XID, 1), (EventKind.DRIVER_LOAD, 1), (EventKind.XID, 2),
    ]  # fmt: skip


def test_a_compressed_log_is_refused_and_not_taken_for_a_quiet_one(log: Log) -> None:
    log.path.write_bytes(b"\x1f\x8b\x08\x00" + b"\x00" * 40)
    with capture_logs() as said:
        assert log.hear() == []
        assert log.hear() == []
    assert log.counts["log_unreadable"] == 2
    assert ["zcat" in line["detail"] for line in said] == [True]

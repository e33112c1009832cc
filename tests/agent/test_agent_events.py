"""What an agent may say, and what it is on its way through the ledger: nothing that comes out of it breaks a tick."""

import json
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.agent.wire import MAX_BATCH_BYTES, MAX_TEXT, Report, WireError, report_id
from daemon.agent_events import AgentEvent, entries_of, events_in, opened, why_not
from daemon.ledger import Entry, EntryError, EntryKind, encode_body
from detectors.engine import Engine
from detectors.events import KernelEvent
from rules.loader import load_rules
from rules.vocabulary import EventKind, FaultAction, FaultClass, Severity
from tests.agent.served import NOW, batch_of, plain, xid
from tests.detect.scene import Scene

RULES = load_rules()


def named(report: Report) -> Report:
    """The report under the id that its event asks for."""
    return replace(report, id=report_id(report.event))


@pytest.mark.parametrize(
    ("report", "why"),
    [
        pytest.param(xid(1, text="x" * MAX_TEXT), "", id="a text that just fits"),
        pytest.param(xid(1, text="x" * (MAX_TEXT + 1)), "event.text", id="a text that is too long"),
        pytest.param(replace(xid(1), id="kmsg:b1:2"), "does not fit", id="the id of another record"),
        pytest.param(replace(xid(1), id="kmsg:b2:1"), "does not fit", id="the id of another boot"),
        pytest.param(replace(xid(1), id="journal:b1:1"), "does not fit", id="the id of another log"),
        pytest.param(xid(-1), "event.sequence", id="a place before the beginning"),
        pytest.param(named(Report("", replace(xid(1).event, sequence=None))), "event.sequence", id="no place"),
        pytest.param(xid(1 << 63), "event.sequence", id="a place without an end"),
        pytest.param(xid(1, source="exporter"), "event.source", id="an exporter's word"),
        pytest.param(xid(1, source="operation"), "event.source", id="our own word"),
        pytest.param(xid(1, source=""), "event.source", id="nobody's word"),
        pytest.param(xid(1, source="fabricmanager"), "", id="a log that another version may read"),
        pytest.param(xid(1, boot_id="a/b"), "event.boot_id", id="a boot id that is none"),
        pytest.param(xid(1, boot_id="0" * 65), "event.boot_id", id="a boot id without an end"),
        pytest.param(xid(1, pci="0000:5C:00"), "event.pci", id="an address in another spelling"),
        pytest.param(xid(1, pci="somewhere"), "event.pci", id="an address that is none"),
        pytest.param(xid(1, pci=None), "", id="no address"),
        pytest.param(xid(1, gpu_uuid="GPU-\0"), "event.gpu_uuid", id="a UUID that is none"),
        pytest.param(xid(1, count=0), "event.count", id="not once"),
        pytest.param(xid(1, count=10**10), "event.count", id="more often than anybody can count"),
        pytest.param(xid(1, monotonic_s=1e300), "event.monotonic_s", id="up for longer than there is time"),
        pytest.param(xid(1, monotonic_s=-1.0), "event.monotonic_s", id="up for less than nothing"),
        pytest.param(xid(1, code=1 << 70), "event.code", id="a number without an end"),
        pytest.param(xid(1, registers=(1 << 64,)), "event.registers", id="a register without an end"),
        pytest.param(xid(1, registers=((1 << 64) - 1,)), "", id="a register that is full"),
        pytest.param(xid(1, at=None), "", id="no time"),
        pytest.param(xid(1, at=NOW.replace(tzinfo=None)), "time zone", id="a time without a zone"),
        pytest.param(xid(1, at=NOW + timedelta(hours=23)), "", id="a clock that is ahead"),
        pytest.param(xid(1, at=NOW - timedelta(days=400)), "", id="a spool that waited for long"),
    ],
)  # fmt: skip
def test_a_report_is_refused_for(report: Report, why: str) -> None:
    said = why_not(report)
    assert why in said if why else said == ""


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(datetime(1970, 1, 1, tzinfo=UTC), id="a clock that was never set"),
        pytest.param(NOW + timedelta(days=2), id="a clock that is days ahead"),
        pytest.param(datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), id="the first of times"),
        pytest.param(datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))), id="the last of times"),
    ],
)
def test_a_node_whose_clock_is_wrong_loses_no_fault_by_it(at: datetime) -> None:
    parcel = opened(batch_of("n1", plain(xid(1, at=at))), NOW)
    ((report,), refused) = parcel.good, parcel.refused
    assert refused == ()
    (event,) = through_the_ledger(report)
    assert event.at == NOW
    assert "clock was wrong" in event.notes[-1]
    late = replace(xid(1, at=NOW), last_at=at)
    assert opened(batch_of("n1", plain(late)), NOW).good[0].last_at is None


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        pytest.param({"event": {"kind": "from_the_future"}}, "from_the_future", id="a kind that nobody knows"),
        pytest.param({"event": {"code": "79"}}, "event.code", id="a code that is text"),
        pytest.param({"event": {"monotonic_s": None, "at": "yesterday"}}, "event.at", id="a time that is none"),
        pytest.param({"event": {"notes": ["x" * 9000]}}, "longer", id="a report that is too long"),
        pytest.param({"event": {"from": "the future"}}, "", id="a field that nobody knows is nothing"),
    ],
)
def test_a_report_that_cannot_be_read_is_refused_by_its_name(spoilt: dict[str, dict[str, object]], why: str) -> None:
    sound = plain(xid(1))
    parcel = opened(batch_of("n1", sound | {"event": sound["event"] | spoilt["event"]}), NOW)
    if not why:
        assert parcel.good == (xid(1),)
        return
    ((refused,), good) = parcel.refused, parcel.good
    assert (refused.id, good) == (xid(1).id, ())
    assert why in refused.why


@pytest.mark.parametrize(
    "reports",
    [
        pytest.param("[" + "{}," * 340_000 + "{}]", id="a third of a million of reports"),
        pytest.param("[" + "[" * 900_000, id="brackets"),
        pytest.param('[{"id":"x","event":' + '{"a":' * 150_000, id="maps in maps"),
        pytest.param('[{"id":"x","event":{"notes":[' + '"",' * 300_000 + '""]}}]', id="notes"),
        pytest.param('[{"id":"' + "x" * 1_000_000 + '"}]', id="a name"),
        pytest.param('[{"id":1' + "0" * 1_000_000 + "}]", id="a number"),
    ],
)
def test_no_batch_takes_much_memory(reports: str) -> None:
    body = f'{{"node":"n1","boot_id":"b","version":"1","reports":{reports}}}'.encode()[:MAX_BATCH_BYTES]
    tracemalloc.start()
    try:
        opened(body, NOW)
    except WireError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 64 << 20


# ------------------------------------------------------------------------------------------------- through the ledger


def through_the_ledger(report: Report, now: datetime = NOW) -> tuple[KernelEvent, ...]:
    (entry,) = entries_of([report], "n1", "1.0", "agent-x", now)
    stored = json.loads(json.dumps(entry.body))
    return events_in(Entry(entry.kind, entry.at, stored, node=entry.node, key=entry.key, id=7, written=now), now)


def test_an_event_comes_out_as_it_went_in_but_for_its_node_and_its_road() -> None:
    report = xid(1, monotonic_s=12.5, registers=(1, 2), notes=("a",), process="python", place="GPC 1", trusted=False)
    assert through_the_ledger(report) == (replace(report.event, node="n1", source="agent kmsg"),)


def test_several_equal_ones_come_out_as_the_first_and_the_last_with_the_others_count() -> None:
    report = replace(xid(1, count=5, monotonic_s=10.0, at=NOW - timedelta(seconds=40)), last_at=NOW)
    first, last = through_the_ledger(report)
    assert (first.at, first.count, first.monotonic_s) == (NOW - timedelta(seconds=40), 1, 10.0)
    assert (last.at, last.count, last.monotonic_s) == (NOW, 4, 50.0)
    assert replace(last, at=first.at, count=1, monotonic_s=10.0) == first


def test_what_has_no_time_or_comes_from_a_clock_that_is_ahead_happened_when_it_was_written() -> None:
    assert through_the_ledger(xid(1, at=None))[0].at == NOW
    (entry,) = entries_of([xid(1, at=NOW + timedelta(hours=3))], "n1", "1.0", "", NOW)
    assert entry.at == NOW
    assert through_the_ledger(xid(1, at=NOW + timedelta(hours=3)))[0].at == NOW


def test_a_time_of_another_zone_is_the_same_moment() -> None:
    at = NOW.astimezone(timezone(timedelta(hours=-7)))
    assert through_the_ledger(xid(1, at=at))[0].at == NOW


def test_what_every_event_has_is_not_stored() -> None:
    (entry,) = entries_of([xid(1)], "n1", "1.0", "", NOW)
    assert set(entry.body["event"]) == {
        "kind", "code", "text", "trusted", "at", "sequence", "boot_id", "source", "pci", "node",
    }  # fmt: skip


def test_what_another_version_wrote_in_another_form_is_an_error_that_says_where() -> None:
    entry = Entry(EntryKind.EVENT, NOW, {"event": {"kind": "from_the_future"}}, node="n1")
    with pytest.raises(EntryError, match="from_the_future"):
        events_in(entry, NOW)


def test_the_body_of_an_entry_is_what_it_says() -> None:
    body = encode_body(AgentEvent(xid(1).event, None, "1.0", "agent-x"))
    assert set(body) == {"event", "last_at", "agent", "pod"}


TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2030, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))
CODES = [13, 31, 45, 48, 74, 79, 94, 95, 119, 154]
NUMBERS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from(CODES)
REGISTERS = st.lists(st.integers(0, (1 << 64) - 1), max_size=8).map(tuple)
TEXTS = st.text(max_size=30) | st.sampled_from(
    [
        "NVRM: Xid (PCI:0000:5c:00): 79, pid=1, name=x, GPU has fallen off the bus.", "GPU reset(1) succeeded",
        "amdgpu: uncorrectable hardware errors detected in umc block", "recovery action changed to 0x2 (GPU Reset)",
        "SXid (PCI:0000:01:00): 12028, Fatal, Link 3", "NVRM: GPU 0000:5c:00.0: RmInitAdapter failed!",
    ]
)  # fmt: skip
EVENTS = st.builds(
    KernelEvent, kind=st.sampled_from(EventKind), code=NUMBERS, text=TEXTS, line=st.integers(0, 9),
    at=st.none() | TIMES, monotonic_s=st.none() | st.floats(0, 3.2e9), sequence=st.integers(0, 99),
    pci=st.sampled_from([None, "0000:10:00", "0000:ff:00"]),
    gpu_uuid=st.sampled_from([None, "GPU-0000-0", "GPU-0001-1", "x"]), gpu_instance=NUMBERS, compute_instance=NUMBERS,
    pid=NUMBERS, process=st.none() | TEXTS, severity=st.sampled_from(Severity), cause_class=st.sampled_from(FaultClass),
    action=st.sampled_from(FaultAction), secondary_to=NUMBERS, trusted=st.booleans(), node=TEXTS,
    boot_id=st.sampled_from(["", "b1", "b2"]), source=st.sampled_from(["kmsg", "journal", "node"]),
    unit=st.none() | TEXTS, place=st.none() | TEXTS, registers=REGISTERS,
    recovery_value=NUMBERS, driver_version=st.none() | TEXTS | st.just("580.105.08"), count=st.integers(1, 10**9),
    notes=st.lists(TEXTS, max_size=2).map(tuple),
)  # fmt: skip


@given(st.lists(st.tuples(EVENTS, st.none() | TIMES), min_size=1, max_size=6))
def test_what_is_taken_breaks_no_detector(told: list[tuple[KernelEvent, datetime | None]]) -> None:
    scene, engine = Scene(nodes=2), Engine(RULES)
    engine.step(scene.tick())
    reports = [named(Report("", event, last_at)) for event, last_at in told]
    good = [one for one in reports if not why_not(one)]
    for report in good:
        for event in through_the_ledger(report):
            scene.logs(replace(event, node=scene.node(0)))
    engine.step(scene.tick())
    faults = engine.faults.open_faults()
    assert {fault.node for fault in faults} <= {scene.node(0)}
    engine.step(scene.tick(after_s=3600))

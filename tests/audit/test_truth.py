"""What an audit is worth, on cases small enough to count by hand: matching, recall, lead, false alarms, precision."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.audit.truth import Label, LabelsError, fits, match, parse_time, poisson_interval, read_labels, score
from detectors.findings import Incident, Signal
from rules.vocabulary import CauseClass, FaultAction, IncidentScope, Tier

START = datetime(2026, 3, 1, tzinfo=UTC)
END = START + timedelta(days=10)
DAYS = (END - START).total_seconds() / 86400.0
NOON = START + timedelta(hours=12)

H, M = CauseClass.HARDWARE, CauseClass.MEMORY


def at(hours: float) -> datetime:
    return START + timedelta(hours=hours)


def label(
    onset: float, failed: float | None = None, *, node: str = "n1", gpu: str = "GPU-a", cause: CauseClass = H
) -> Label:
    return Label(node, gpu, cause, at(onset), None if failed is None else at(failed))


def incident(
    opened: float, closed: float | None = None, *, first: float | None = None, nodes: tuple[str, ...] = ("n1",),
    gpus: tuple[str, ...] = ("GPU-a",), cause: CauseClass = H, signals: tuple[Signal, ...] = (), name: str = "",
) -> Incident:  # fmt: skip
    began = at(opened if first is None else first)
    return Incident(
        name or f"inc-{opened}-{nodes[0]}-{cause}", at(opened), None if closed is None else at(closed),
        IncidentScope.GPU, nodes[0], nodes, gpus, cause, Tier.FACT, began, began, FaultAction.NONE, signals, "why",
    )  # fmt: skip


def signal(since: float, *, node: str = "n1", gpu: str = "GPU-a") -> Signal:
    return Signal(
        "thresholds", "rule", node, gpu, Tier.TREND, H, FaultAction.NONE, 0.4, None, None, "", at(since), at(since),
        "", "",
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- matching


@pytest.mark.parametrize(
    ("incident_", "fits_it"),
    [
        pytest.param(incident(10), True, id="it opens at the onset"),
        pytest.param(incident(9.8), True, id="it opens twelve minutes before the onset: clocks differ"),
        pytest.param(incident(9.5, 9.7), False, id="it is over before the onset"),
        pytest.param(incident(5), True, id="of the same class, it was open already"),
        pytest.param(incident(5, cause=M), False, id="of another class, it was open already"),
        pytest.param(incident(11, cause=M), True, id="of another class, it opens in time"),
        pytest.param(incident(13.9), True, id="it opens less than two hours after the failure"),
        pytest.param(incident(14.1), False, id="it opens more than two hours after the failure"),
        pytest.param(incident(10, nodes=("n2",)), False, id="on another node"),
        pytest.param(incident(10, nodes=("n1.cluster.local",)), True, id="on the node by its long name"),
        pytest.param(incident(10, nodes=("n0", "n1")), True, id="on several nodes, this one among them"),
        pytest.param(incident(10, gpus=("GPU-b",)), False, id="about another GPU of the node"),
        pytest.param(incident(10, gpus=()), True, id="about the node as such"),
        pytest.param(incident(10, gpus=("GPU-a", "GPU-b")), True, id="about two GPUs, this one among them"),
        pytest.param(incident(10, cause=CauseClass.APPLICATION), False, id="it blames a program"),
        pytest.param(incident(10, cause=CauseClass.TELEMETRY), False, id="it says that nothing is seen"),
        pytest.param(
            incident(3, cause=M, signals=(signal(3), signal(10.5))), True,
            id="it was open and a signal joined it in time",
        ),
        pytest.param(
            incident(3, cause=M, signals=(signal(3), signal(10.5, gpu="GPU-b"))), False,
            id="it was open and another GPU's signal joined it",
        ),
    ],
)  # fmt: skip
def test_an_incident_fits_a_hardware_fault_of_one_gpu(incident_: Incident, fits_it: bool) -> None:
    assert fits(label(10, 12), incident_, END) is fits_it


@pytest.mark.parametrize("cause", [CauseClass.APPLICATION, CauseClass.TELEMETRY, CauseClass.MAINTENANCE])
def test_what_no_machine_did_is_found_only_by_its_own_class(cause: CauseClass) -> None:
    known = label(10, gpu="", cause=cause)
    assert fits(known, incident(10, cause=cause), END)
    assert not fits(known, incident(10, cause=H), END)


def test_the_right_class_is_preferred_to_the_earlier_incident() -> None:
    (found,) = match([label(10, 12)], [incident(10, cause=M), incident(11, cause=H)], END)
    assert found.incident is not None
    assert (found.incident.cause_class, found.right_class) == (H, True)


@pytest.mark.parametrize(
    ("opened", "lead_h"),
    [
        pytest.param(10.5, 1.5, id="after the onset: until the failure"),
        pytest.param(12.5, -0.5, id="after the failure: too late by as much"),
        pytest.param(2, 2.0, id="before the onset: no credit for what was not wrong yet"),
    ],
)
def test_the_lead_is_what_was_left_when_it_was_told(opened: float, lead_h: float) -> None:
    (found,) = match([label(10, 12)], [incident(opened)], END)
    assert found.lead_s == lead_h * 3600


def test_a_fault_that_never_failed_has_no_lead() -> None:
    (found,) = match([label(10)], [incident(10)], END)
    assert (found.incident is not None, found.lead_s) == (True, None)


# --------------------------------------------------------------------------------------------------------- numbers


def test_a_case_counted_by_hand() -> None:
    labels = [
        label(10, 12),  # found with 1.5 h to go
        label(30, 31, gpu="GPU-b"),  # found with another class, half an hour late
        label(50, 52, node="n2", gpu="GPU-c", cause=M),  # missed
        label(60, gpu="", cause=CauseClass.APPLICATION),  # found, and no alarm about a machine
        label(-40, -39, node="n9"),  # before the span: nobody could find it
    ]
    incidents = [
        incident(10.5),
        incident(11.0, cause=CauseClass.THERMAL),  # the same fault once more: a true alarm
        incident(31.5, gpus=("GPU-b",), cause=M),
        incident(60, gpus=(), cause=CauseClass.APPLICATION),
        incident(61, nodes=("n4",), cause=CauseClass.TELEMETRY),  # accuses nobody
        incident(100, nodes=("n5",), gpus=("GPU-d",)),  # false
        incident(120, nodes=("n6",), gpus=("GPU-e",), cause=M),  # false
    ]
    told = score(labels, incidents, START, END, DAYS)
    assert {name: (one["found"], one["right_class"], one["total"]) for name, one in told["recall"].items()} == {
        "application": (1, 1, 1), "hardware": (2, 1, 2), "memory": (0, 0, 1),
    }  # fmt: skip
    assert told["recall"]["hardware"]["recall"] == 1.0
    assert told["lead_seconds"] == {
        "median": pytest.approx(0.5 * 3600), "p10": pytest.approx(-0.3 * 3600), "p90": pytest.approx(1.3 * 3600),
        "missed": 1,
    }  # fmt: skip
    false = told["false_alarms_per_day"]
    assert (false["count"], false["rate"], false["confidence"]) == (2, pytest.approx(0.2), 0.95)
    assert (false["low"], false["high"]) == (pytest.approx(0.0242, abs=1e-4), pytest.approx(0.7225, abs=1e-4))
    assert told["precision"] == pytest.approx(3 / 5)
    assert told["labels_outside_span"] == 1
    assert [one["incident"] for one in told["labels"]] == [
        incidents[0].id, incidents[2].id, None, incidents[3].id,
    ]  # fmt: skip


def test_a_fault_from_before_the_span_explains_its_alarm_and_is_not_counted_as_found() -> None:
    told = score([label(-2, -1)], [incident(0.1)], START, END, DAYS)
    assert (told["recall"], told["false_alarms_per_day"]["count"], told["precision"]) == ({}, 0, 1.0)


def test_no_alarm_at_all_has_no_precision() -> None:
    told = score([label(10, 12)], [], START, END, DAYS)
    assert (told["precision"], told["lead_seconds"]["median"], told["lead_seconds"]["missed"]) == (None, None, 1)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [
        # Garwood 1936 as tabulated in Johnson, Kotz & Kemp and in every epidemiology handbook.
        pytest.param(0, 0.0, 3.69, id="no event"),
        pytest.param(1, 0.0253, 5.57, id="one event"),
        pytest.param(5, 1.62, 11.67, id="five events"),
        pytest.param(10, 4.80, 18.39, id="ten events"),
        pytest.param(100, 81.36, 121.63, id="a hundred events"),
    ],
)
def test_the_interval_of_a_count_is_the_published_one(count: int, low: float, high: float) -> None:
    assert poisson_interval(count) == (pytest.approx(low, abs=0.005), pytest.approx(high, abs=0.005))


hours = st.floats(-100, 400, allow_nan=False)
causes = st.sampled_from(list(CauseClass))
labels_ = st.lists(
    st.builds(
        lambda onset, lasts, node, gpu, cause: label(onset, onset + lasts, node=node, gpu=gpu, cause=cause),
        hours, st.floats(0, 50), st.sampled_from(["n1", "n2"]), st.sampled_from(["", "GPU-a", "GPU-b"]), causes,
    ),
    max_size=6,
)  # fmt: skip
incidents_ = st.lists(
    st.builds(
        lambda opened, node, gpus, cause, name: incident(opened, nodes=(node,), gpus=gpus, cause=cause, name=name),
        hours, st.sampled_from(["n1", "n2"]), st.sampled_from([(), ("GPU-a",), ("GPU-b",)]), causes,
        st.uuids().map(str),
    ),
    max_size=6,
)  # fmt: skip


@given(labels_, incidents_)
def test_the_numbers_always_add_up(labels: list[Label], incidents: list[Incident]) -> None:
    told = score(labels, incidents, START, END, DAYS)
    totals = sum(one["total"] for one in told["recall"].values())
    found = sum(one["found"] for one in told["recall"].values())
    assert totals + told["labels_outside_span"] == len(labels)
    assert found + told["lead_seconds"]["missed"] == totals == len(told["labels"])
    false = told["false_alarms_per_day"]
    assert false["low"] <= false["rate"] <= false["high"]
    assert told["precision"] is None or 0 <= told["precision"] <= 1
    assert false["count"] <= len(incidents)


@given(labels_, incidents_, st.randoms())
def test_the_order_of_labels_and_incidents_does_not_matter(
    labels: list[Label], incidents: list[Incident], random: object
) -> None:
    before = score(labels, incidents, START, END, DAYS)
    random.shuffle(incidents)  # type: ignore[attr-defined]
    after = score(labels, incidents, START, END, DAYS)
    assert after == before


# ----------------------------------------------------------------------------------------------------- labels file

HEADER = "node,gpu_uuid,class,onset,failed_at\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_labels_file_as_people_write_it(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "\ufeffnode,gpu_uuid,class,onset,failed_at,comment\n"
        "n1, GPU-a ,Hardware,2026-03-01T10:00:00Z,2026-03-01T13:00:00+01:00,swapped\n"
        "\n"
        'n2,,application,1772359200,,"two\nlines"\n',
    )
    assert read_labels(path) == [label(10, 12), Label("n2", "", CauseClass.APPLICATION, at(10), None)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", ":1: no column node, gpu_uuid, class, onset, failed_at", id="an empty file"),
        pytest.param("node,class,onset\n", ":1: no column gpu_uuid, failed_at", id="columns that are missing"),
        pytest.param(HEADER + "n1,,hardware,2026-03-01T10:00:00Z\nn1,,heat,2026-03-01T10:00:00Z,\n",
                     ":3: class: 'heat' is none of hardware, memory", id="a class that is none"),
        pytest.param(HEADER + "\n\nn1,,hardware,noon,\n", ":4: onset: 'noon' is neither", id="an onset of no sense"),
        pytest.param(HEADER + 'n0,"two\nlines",hardware,0,\nn1,,hardware,0,1e300\n', ":4: failed_at: '1e300'",
                     id="a failure beyond all times, after a field of two lines"),
        pytest.param(HEADER + "n1,,hardware,2026-03-01T10:00:00Z,2026-03-01T09:00:00Z\n",
                     ":2: failed_at: 2026-03-01T09", id="a failure before its onset"),
        pytest.param(HEADER + ",GPU-a,hardware,0,\n", ":2: node: empty", id="a fault on no node"),
        pytest.param(HEADER + "n1\n", ":2: class: ''", id="a row that ends too soon"),
    ],
)  # fmt: skip
def test_a_wrong_labels_file_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(LabelsError) as refused:
        read_labels(path)
    assert f"{path}{says}" in str(refused.value)


def test_a_labels_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(HEADER.encode() + b"n1,,\xff\xfe,0,\n")
    with pytest.raises(LabelsError, match="cannot be read"):
        read_labels(path)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("2026-03-01T12:00:00Z", 0, id="RFC 3339 with Z"),
        pytest.param("2026-03-01t12:00:00z", 0, id="RFC 3339 in lower case"),
        pytest.param("2026-03-01T17:30:00.5+05:30", 0.5, id="RFC 3339 with an offset and a fraction"),
        pytest.param("2026-03-01 12:00:00", 0, id="without a zone it is UTC"),
        pytest.param(" 1772366400.25 ", 0.25, id="unix seconds"),
    ],
)
def test_a_time_is_read_as_utc(text: str, seconds: float) -> None:
    found = parse_time(text)
    assert (found, found.tzinfo) == (NOON + timedelta(seconds=seconds), UTC)

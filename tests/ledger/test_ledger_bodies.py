"""The house's values become JSON without loss, say where they can't, and come back as what they were."""

import json
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.ledger import EntryError, decode_body, encode_body, to_jsonable
from daemon.ledger.entries import dump, from_micros, load, to_micros
from detectors.findings import GpuState, Incident, Signal, Verdict
from rules.vocabulary import Action, Tier

FIRST, LAST = datetime(1970, 1, 1), datetime(2200, 1, 1)
MOMENTS = st.datetimes(FIRST, LAST, timezones=st.just(UTC))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
AT = datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)


@given(st.dictionaries(st.text(st.characters()), JSON))
def test_any_json_map_survives_the_text_form(body: dict[str, Any]) -> None:
    text = dump(encode_body(body))
    assert load(text) == body
    assert text.isascii()


@given(st.dictionaries(st.text(), JSON, min_size=2))
def test_the_text_does_not_depend_on_the_order_of_keys(body: dict[str, Any]) -> None:
    turned = dict(reversed(body.items()))
    assert dump(encode_body(turned)) == dump(encode_body(body))
    assert list(encode_body(body)) == sorted(body)


@pytest.mark.parametrize("kind", [Signal, Verdict, Incident], ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_findings_come_back_as_they_were(kind: type[Any], data: st.DataObject) -> None:
    finding = data.draw(st.builds(kind) if kind is Signal else st.builds(kind, signals=st.tuples(st.builds(Signal))))
    text = dump(encode_body(finding))
    assert decode_body(load(text), kind) == finding


st.register_type_strategy(datetime, MOMENTS)
st.register_type_strategy(float, st.floats(allow_nan=False))


@given(MOMENTS)
def test_microseconds_since_the_epoch_are_exact(moment: datetime) -> None:
    assert from_micros(to_micros(moment)) == moment


@dataclass(frozen=True, slots=True)
class Reading:
    """A value of each awkward sort."""

    value: float
    tier: Tier = Tier.TREND


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        pytest.param(AT, "2026-03-01T12:00:00.000005Z", id="a time with microseconds"),
        pytest.param(AT.replace(microsecond=0), "2026-03-01T12:00:00Z", id="a whole second"),
        pytest.param(
            AT.astimezone(timezone(timedelta(hours=-8))), "2026-03-01T12:00:00.000005Z", id="a time of another zone"
        ),
        pytest.param(Action.DRAIN, "drain", id="a text choice"),
        pytest.param(Tier.SUSPICION, 2, id="a numbered choice"),
        pytest.param((1, (2, "x")), [1, [2, "x"]], id="tuples in tuples"),
        pytest.param(frozenset({"b", "a"}), ["a", "b"], id="a set, sorted"),
        pytest.param({GpuState.FAILED: 1}, {"failed": 1}, id="a choice as a key"),
        pytest.param(np.float32(0.5), 0.5, id="a numpy float"),
        pytest.param(np.int64(7), 7, id="a numpy integer"),
        pytest.param(Reading(1.5), {"tier": 1, "value": 1.5}, id="a dataclass, fields sorted"),
        pytest.param(
            [math.nan, math.inf, -math.inf], ["NaN", "Infinity", "-Infinity"], id="what JSON has no number for"
        ),
    ],
)
def test_values_become_plain(value: object, plain: object) -> None:
    became = to_jsonable(value)
    assert became == plain
    assert json.loads(json.dumps(became)) == became


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_a_number_that_json_lacks_comes_back_as_that_number(value: float) -> None:
    read = decode_body(load(dump(encode_body(Reading(value)))), Reading)
    assert repr(read) == repr(Reading(value))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        pytest.param({"a": [{"b": object()}]}, r"^a\.0\.b: object has no JSON form", id="the path to a strange type"),
        pytest.param(
            {"a": {"at": FIRST}},
            r"^a\.at: 1970-01-01T00:00:00 has no time zone",
            id="a naive time",
        ),
        pytest.param({1: "x"}, "the key 1 is int", id="a key that is a number"),
        pytest.param({"raw": b"x"}, "^raw: bytes", id="bytes"),
        pytest.param({"for": timedelta(1)}, "^for: timedelta", id="a duration without its unit"),
        pytest.param([1], "a body is a dataclass or a map, not list", id="a list as a body"),
        pytest.param(Reading, "type has no JSON form|not type", id="a class instead of a value"),
    ],
)
def test_what_cannot_be_written_is_refused_with_its_place(value: object, says: str) -> None:
    with pytest.raises(EntryError, match=says):
        encode_body(value)


def test_a_body_of_an_older_version_is_read_with_todays_defaults() -> None:
    assert decode_body({"value": 1.5, "left_over": True}, Reading) == Reading(1.5)


def test_a_body_that_lacks_a_needed_field_is_refused() -> None:
    with pytest.raises(EntryError, match=r"no Reading.*value"):
        decode_body({}, Reading)


def test_a_changed_field_changes_the_body() -> None:
    reading = Reading(1.0)
    assert encode_body(reading) != encode_body(replace(reading, value=2.0))

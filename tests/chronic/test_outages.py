"""Whose outage an incident is: identity across swapped boards, moved boards and nodes that are set up anew."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from daemon.outages import exposures_of, outages_of, too_many
from detectors.chronic import ChronicScore, scores
from detectors.findings import Incident
from detectors.hazard import kind_of
from rules.restore_schema import NO_OUTAGE, ChronicPolicy
from rules.vocabulary import Tier
from tests.decide.incidents import incident

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
BEGUN = NOW - 200 * DAY
#: 30 nodes with two GPUs each.
PLACES = {f"GPU-{number}": (f"n{number // 2}", str(number % 2), "") for number in range(60)}


def outage(days_ago: float, gpu: str = "GPU-0", node: str = "n0", **fields: Any) -> Incident:
    """An incident of one GPU that lasted two hours."""
    at = NOW - days_ago * DAY
    told = {"opened": at, "first_signal_at": at, "closed": at + DAY / 12, "gpu_uuids": (gpu,), "nodes": (node,)}
    return incident(f"inc-{gpu}-{node}-{days_ago}", node, **(told | fields))


def things(*incidents: Incident, places=PLACES, created=None) -> list[str]:
    return [one.thing for one in outages_of(incidents, places, created or {})]


def test_an_incident_counts_once_for_each_gpu_slot_and_node_that_it_was_seen_on() -> None:
    two = outage(1, gpu_uuids=("GPU-0", "GPU-1"))
    assert things(two) == ["node:n0", "gpu:GPU-0", "gpu:GPU-1", "slot:n0/0", "slot:n0/1"]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"tier": Tier.SUSPICION}, id="suspicion"),
        pytest.param({"held": True}, id="a common cause"),
        *(pytest.param({"cause_class": cause}, id=cause.value) for cause in sorted(NO_OUTAGE)),
    ],
)
def test_what_says_nothing_about_a_thing_is_no_outage_of_it(fields: dict[str, Any]) -> None:
    assert things(outage(1, **fields)) == []


# ------------------------------------------------------------------------------------------------------ swapped boards


def test_a_swapped_gpu_starts_fresh_and_its_slot_and_node_keep_the_history() -> None:
    swapped = PLACES | {"GPU-new": ("n0", "0", "")}
    assert things(outage(3), outage(1, "GPU-new"), places=swapped) == [
        "node:n0", "gpu:GPU-0", "slot:n0/0", "node:n0", "gpu:GPU-new", "slot:n0/0",
    ]  # fmt: skip


def test_a_gpu_that_was_moved_takes_its_own_history_along_and_no_slots() -> None:
    moved = PLACES | {"GPU-0": ("n9", "1", "")}
    assert things(outage(3), places=moved) == ["node:n0", "gpu:GPU-0"]
    assert things(outage(1, node="n9"), places=moved) == ["node:n9", "gpu:GPU-0", "slot:n9/1"]


# ------------------------------------------------------------------------------------------ nodes that are set up anew


@pytest.mark.parametrize(
    ("days_ago", "is_new"),
    [
        pytest.param(2, True, id="of the new node"),
        pytest.param(3, True, id="at the very moment of its creation"),
        pytest.param(3.01, False, id="of the one before it, though it ended later"),
        pytest.param(50, False, id="of the one long before"),
    ],
)
def test_outages_from_before_a_nodes_creation_are_those_of_another_node(days_ago: float, is_new: bool) -> None:
    former = "" if is_new else f" before {NOW - 3 * DAY:%Y-%m-%dT%H:%M:%SZ}"
    assert things(outage(days_ago), created={"n0": NOW - 3 * DAY, "n1": NOW}) == [
        f"node:n0{former}", "gpu:GPU-0", f"slot:n0/0{former}",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["node", "slot"])
def test_a_node_that_is_set_up_anew_under_its_old_name_starts_fresh_and_so_do_its_slots(kind: str) -> None:
    often = [outage(days) for days in (4, 6, 8, 9)]
    assert "n0" in chronic(kind, often)
    anew = {"n0": NOW - 3 * DAY}
    assert chronic(kind, often, anew) == set()
    told = {one.thing: one for one in ranked(kind, often, anew)}
    assert all(" before " not in thing for thing in told), "what is gone is not ranked"
    assert {one.outages for one in told.values()} == {0}


def test_a_gpu_takes_its_history_into_a_node_that_is_set_up_anew() -> None:
    often = [outage(days) for days in (4, 6, 8, 9)]
    assert {one.thing for one in ranked("gpu", often, {"n0": NOW - 3 * DAY}) if one.chronic} == {"gpu:GPU-0"}


def test_the_fleet_does_not_look_better_for_it() -> None:
    often = [outage(days) for days in (4, 6, 8, 9)]
    (before,) = {one.fleet_rate_per_day for one in ranked("node", often)}
    (after,) = {one.fleet_rate_per_day for one in ranked("node", often, {"n0": NOW - 3 * DAY})}
    assert after == pytest.approx(before, rel=0.01)


def test_a_new_node_is_known_since_its_creation_and_the_one_before_until_then() -> None:
    created = {"n0": NOW - 3 * DAY, "n1": BEGUN - DAY}
    known = {one.thing: (one.since, one.until) for one in exposures_of(PLACES, "node", BEGUN, created)}
    assert len(known) == 31
    assert known["node:n0"] == (NOW - 3 * DAY, None)
    assert known[f"node:n0 before {NOW - 3 * DAY:%Y-%m-%dT%H:%M:%SZ}"] == (BEGUN, NOW - 3 * DAY)
    assert known["node:n1"] == (BEGUN, None), "older than the record"


def ranked(kind: str, incidents: list[Incident], created=None) -> tuple[ChronicScore, ...]:
    outages = [one for one in outages_of(incidents, PLACES, created or {}) if kind_of(one.thing) == kind]
    return scores(outages, exposures_of(PLACES, kind, BEGUN, created or {}), NOW)


def chronic(kind: str, incidents: list[Incident], created=None) -> set[str]:
    """Names of the nodes of what is chronic."""
    told = ranked(kind, incidents, created)
    return {one.thing.partition(":")[2].partition("/")[0] for one in told if one.chronic}


# ---------------------------------------------------------------------------------------------------- too many at once


@pytest.mark.parametrize(
    ("share", "sick", "held"),
    [
        pytest.param(0.05, 0, False, id="none"),
        pytest.param(0.05, 3, False, id="as many as may be: 5 % of 60"),
        pytest.param(0.05, 4, True, id="one more"),
        pytest.param(0.06, 4, True, id="6 % of 60 is 3 too: it rounds down"),
        pytest.param(0.001, 1, False, id="one may always be"),
        pytest.param(0.001, 2, True, id="two are more than any small share"),
        pytest.param(1.0, 60, False, id="a site that wants no limit"),
    ],
)
def test_where_too_many_are_chronic_at_once_nothing_is_done_by_the_score(share: float, sick: int, held: bool) -> None:
    healthy, *_ = ranked("gpu", [])
    told = [ChronicScore(**(fields(healthy) | {"chronic": number < sick})) for number in range(60)]
    why = too_many(told, ChronicPolicy(max_share=share))
    assert bool(why) is held
    assert not held or why.startswith(f"{sick} of 60 gpus are chronic at once, limit ")


def fields(one: ChronicScore) -> dict[str, Any]:
    return {name: getattr(one, name) for name in ChronicScore.__dataclass_fields__}


def test_of_nothing_not_too_much_is_chronic() -> None:
    assert too_many([], ChronicPolicy()) == ""

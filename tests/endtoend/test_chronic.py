"""A GPU or a node that fails again and again goes to service, and stays back once a person has mended it.

What happened before the test is written into the ledger, which began 60 days ago.
"""

import json
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daemon.ledger import Entry, EntryKind, encode_body
from daemon.memory import Place, read_verdicts
from detectors.findings import Incident
from fixtures.fleet import serve
from fixtures.fleet.exporters import Epoch, Labels
from fixtures.fleet.shape import Gpu, Node
from remediation.objects import SERVICE
from tests.decide.incidents import incident
from tests.endtoend.acts import (
    book_of,
    decision,
    given_back,
    is_out,
    ours_on,
    quarantined,
    reason,
    soon,
    start,
    stopped_by,
    ticks,
)
from tests.endtoend.site import Site, telemetry
from tests.testbed.control_plane import ControlPlane
from tests.testbed.nodes import DEFAULT_SHAPE, node

ON = {"chronic": {"quarantine": True}}
#: Two outages within minutes, in a ledger that knows nothing else, are this likely to be more than an accident.
TWICE = {"chronic": {"quarantine": True, "min_outages": 2, "chance": 0.6}}
DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
#: How long ago a GPU failed. Its node is younger, since each test makes its own: it has none of that to answer for.
OFTEN = tuple(days * DAY for days in (2, 4, 6, 8, 10))
#: How long ago a node failed, once it is old enough.
OF_LATE = tuple(seconds * SECOND for seconds in (3, 4, 5, 6, 7))


def gpu_of(site: Site, name: str, slot: int = 0) -> str:
    """The UUID of a GPU, as the exporter of its node was made to tell it."""
    shape = site.telemetry.fleet.shape
    return shape.gpu(site.nodes.index(name), slot).uuid


def outage(site: Site, name: str, slot: int, ago: timedelta) -> Incident:
    """One that is over long since, by its own measure."""
    at = datetime.now(UTC) - ago
    told = {"opened": at, "first_signal_at": at, "last_signal_at": at, "gpu_uuids": (gpu_of(site, name, slot),)}
    return incident(f"inc-{name}-{slot}-{ago}", name, closed=at + ago / 100, **told)


def remembered(site: Site, past: Iterable[Incident]) -> None:
    """A ledger that was begun 60 days ago."""
    began = datetime.now(UTC) - 60 * DAY
    closed = [Entry(EntryKind.INCIDENT_CLOSED, one.opened, encode_body(one), one.id, one.node) for one in past]
    with book_of(site) as ledger:
        ledger.append([Entry(EntryKind.RUN_STARTED, began, {"mode": "auto"}, key="run/long-ago"), *closed])


def all_over_of_late(site: Site, *names: str) -> list[Incident]:
    """Outages of nodes, each of another GPU."""
    born = max(datetime.fromisoformat(site.node(name)["metadata"]["creationTimestamp"]) for name in names)
    soon("nodes that are old enough", lambda: datetime.now(UTC) - born > max(OF_LATE) + 2 * SECOND)
    return [outage(site, name, slot, ago) for name in names for slot, ago in enumerate(OF_LATE)]


@pytest.fixture
def alone(cluster: ControlPlane, prometheus_binary: Path, tmp_path: Path) -> Iterator[Site]:
    """A site with a Prometheus of its own, so that no other test sees what is swapped."""
    folder = tmp_path / "telemetry"
    folder.mkdir()
    with telemetry(prometheus_binary, folder) as seen:
        made = Site(cluster, seen, tmp_path)
        yield made
        made.close()


def swap(site: Site, monkeypatch: pytest.MonkeyPatch, name: str, new: str) -> None:
    """Another board in slot 0 of a node, from now on; returns once the old one has not been seen for a while."""
    mine, old, labels = site.telemetry.fleet.shape.nodes, gpu_of(site, name), serve.exporter_labels

    def told(here: Node, gpu: Gpu, epoch: Epoch) -> Labels:
        said = labels(here, gpu, epoch)
        is_it = any(here is one for one in mine)
        return tuple((key, new if is_it and value == old else value) for key, value in said)

    monkeypatch.setattr(serve, "exporter_labels", told)
    until_s = time.monotonic() + 5 * site.telemetry.fleet.step_s
    soon("the new board is seen", lambda: new in places(site) and time.monotonic() > until_s)


def places(site: Site) -> dict[str, Place]:
    """Where the daemon last knew each GPU."""
    with book_of(site) as ledger:
        known = read_verdicts(ledger)
    return known.places if known is not None else {}


def ranked(site: Site) -> Any:
    """What `gpuwarden chronic node -o json` prints."""
    return json.loads(site.command("chronic", "node", "-o", "json").stdout)


def fails_and_is_quarantined(site: Site, name: str, slot: int = 0) -> Any:
    """One more fault; gives the decision about it."""
    before = len(site.entries(EntryKind.INCIDENT_OPENED, node=name))
    site.xid(name, gpu=slot)
    soon("a new incident", lambda: len(site.entries(EntryKind.INCIDENT_OPENED, node=name)) > before)
    soon("quarantined", lambda: quarantined(site, name))
    return decision(site, name)


def comes_back_by_itself(site: Site, name: str) -> None:
    """A reboot ends the fault, and that is all it takes."""
    site.boots(name)
    soon("given back", lambda: given_back(site, name))


def needs_a_person(site: Site, name: str) -> None:
    """A reboot ends the fault, and the node stays out."""
    site.boots(name)
    soon("it waits for a person", lambda: "service_done" in stopped_by(of_release(site, name)))
    ticks(site, 3)
    assert is_out(site, name)
    assert SERVICE in ours_on(site, name)
    assert f"gpuwarden release {name}" in reason(of_release(site, name), "service_done")


def of_release(site: Site, name: str) -> Any:
    """The newest decision about giving a node back; None where there is none."""
    found = [one.body for one in site.decisions(name) if one.body["plan"]["action"] == "release"]
    return dict(found[-1]) if found else None


def is_for_service(told: Any, thing: str) -> bool:
    """Whether a plan ends in quarantine that only a person lifts, because this thing is chronic."""
    plan = told["plan"]
    return bool(plan["for_service"]) and f"{thing} is chronic: " in plan["reason"]


# -------------------------------------------------------------------------------------------------------------- stories


def test_the_second_fault_of_one_gpu_ends_in_service_though_a_reboot_clears_it(site: Site) -> None:
    sick = site.nodes[0]
    gpu = gpu_of(site, sick)
    start(site, policy=TWICE)
    first = fails_and_is_quarantined(site, sick)
    assert not first["plan"]["for_service"], "one outage is an accident"
    assert SERVICE not in ours_on(site, sick)
    comes_back_by_itself(site, sick)

    second = fails_and_is_quarantined(site, sick)
    assert is_for_service(second, f"gpu {gpu}")
    assert "2 outages" in second["plan"]["reason"]
    needs_a_person(site, sick)

    site.command("release", sick, "--by", "erin", "--why", "board reseated")
    soon("given back", lambda: given_back(site, sick))
    ticks(site, 3)
    assert not ours_on(site, sick), "its score is as high as ever, and takes nothing out by itself"
    third = fails_and_is_quarantined(site, sick)
    assert is_for_service(third, f"gpu {gpu}")
    assert "3 outages" in third["plan"]["reason"]


def test_a_daemon_that_is_started_anew_goes_on_with_it(site: Site) -> None:
    sick = site.nodes[0]
    remembered(site, [outage(site, sick, 0, ago) for ago in OFTEN])
    start(site, policy=ON)
    told = fails_and_is_quarantined(site, sick)
    assert is_for_service(told, f"gpu {gpu_of(site, sick)}")
    shown = json.loads(site.command("plan", sick, "--no-dry-run", "-o", "json").stdout)["planned"]
    assert [one["reason"] for one in shown] == [told["plan"]["reason"]], "what people are shown is what is done"
    site.daemons[-1].kill()
    start(site, policy=ON)
    ticks(site, 2)
    assert decision(site, sick)["plan"] == told["plan"]
    needs_a_person(site, sick)


def test_a_swapped_gpu_in_the_same_slot_starts_fresh(alone: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    mended, sick = alone.nodes[:2]
    remembered(alone, [outage(alone, name, 0, ago) for name in (mended, sick) for ago in OFTEN])
    new = "GPU-5e1f0000-0000-0000-0000-00000000babe"
    start(alone, policy=ON)
    swap(alone, monkeypatch, mended, new)
    fresh = fails_and_is_quarantined(alone, mended)
    assert fresh["plan"]["gpu"] == new
    assert not fresh["plan"]["for_service"]
    comes_back_by_itself(alone, mended)

    assert is_for_service(fails_and_is_quarantined(alone, sick), f"gpu {gpu_of(alone, sick)}")
    needs_a_person(alone, sick)


def test_a_node_that_is_created_anew_under_its_old_name_starts_fresh(site: Site) -> None:
    anew, sick = site.nodes[:2]
    remembered(site, all_over_of_late(site, anew, sick))
    start(site, policy={"chronic": {"quarantine": True, "max_share": 0.3}})
    before = site.node(anew)["metadata"]["uid"]
    site.admin.delete("Node", anew)
    site.admin.create(node(anew, 0, DEFAULT_SHAPE, datetime.now(UTC)))
    soon("a node that takes pods", lambda: anew in site.plane._open_nodes())
    assert site.node(anew)["metadata"]["uid"] != before
    ticks(site, 2)

    assert not fails_and_is_quarantined(site, anew, slot=6)["plan"]["for_service"]
    comes_back_by_itself(site, anew)
    assert is_for_service(fails_and_is_quarantined(site, sick, slot=6), f"node {sick}")
    needs_a_person(site, sick)
    told = ranked(site)["things"]
    counts = {one["thing"]: one["outages"] for one in told}
    assert (counts[f"node:{anew}"], counts[f"node:{sick}"]) == (1, len(OF_LATE) + 1)


def test_what_too_many_have_in_common_sends_nobody_to_service(site: Site) -> None:
    """Three of ten nodes, where one may be; and no GPU more than once."""
    bad = site.nodes[:3]
    remembered(site, all_over_of_late(site, *bad))
    daemon = start(site, policy=ON)
    assert not fails_and_is_quarantined(site, bad[0], slot=6)["plan"]["for_service"]
    assert daemon.said().count("3 of 10 nodes are chronic at once, limit 1") == 1
    comes_back_by_itself(site, bad[0])
    assert ranked(site)["acts"].startswith("3 of 10 nodes are chronic at once, limit 1")

"""Who is chronic as the daemon finds it, from its ledger and what it sees: when it is asked, and what it remembers."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from structlog.testing import capture_logs

from daemon.chronicle import Chronicle
from daemon.commands.chronic import chronic as command
from daemon.commands.output import ExitCode
from daemon.ledger import Entry, EntryKind, Ledger, LedgerUnavailable, Trouble, encode_body
from daemon.memory import CREATED, Place, VerdictMemory, pack_created, read_created
from detectors.findings import GpuState, Incident, Verdict
from remediation.decide import service_of
from remediation.limits import Fleet
from rules.restore_schema import ChronicPolicy
from rules.schema import LimitPolicy
from rules.vocabulary import CauseClass, Tier
from tests.acting.scenes import calm_scene
from tests.acting.views import node
from tests.decide.incidents import incident

START = datetime(2026, 3, 1, tzinfo=UTC)
NOW = START + timedelta(days=60)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
#: 40 nodes with two GPUs each.
PLACES: dict[str, Place] = {f"GPU-{number}": (f"n{number // 2}", str(number % 2), "") for number in range(80)}
ON = ChronicPolicy(quarantine=True)
FLEET = Fleet.of((node(f"n{number}", created=START - DAY) for number in range(40)), LimitPolicy())


def outage(days_ago: float, gpu: str = "GPU-0", hours: float | None = 2, **fields: Any) -> Incident:
    """An incident of one GPU that opened so long ago; it is open still where `hours` is None."""
    at, where = NOW - days_ago * DAY, PLACES.get(gpu, ("n0", "0", ""))[0]
    ends = None if hours is None else at + hours * HOUR
    told = {"opened": at, "first_signal_at": at, "closed": ends, "gpu_uuids": (gpu,), "nodes": (where,)}
    return incident(f"inc-{gpu}-{days_ago}", where, **(told | fields))


#: Five times within ten days, and now again. In a small fleet it takes that much to stand out.
DAYS = (2, 4, 6, 8, 10)
OFTEN = [outage(days) for days in DAYS]
#: What others do now and then.
ORDINARY = [outage(2.0 * number, f"GPU-{number}") for number in range(10, 28)]
AGAIN = outage(0, hours=None)
#: One that gpu and node have nothing to do with.
ELSEWHERE = outage(0, "GPU-50", hours=None)


class CountingLedger(Ledger):
    """Counts the incidents that it hands out; it can be out of reach."""

    read = 0
    away = False

    def entries(self, **how: Any) -> Iterator[Entry]:  # type: ignore[override]
        if self.away:
            raise LedgerUnavailable("read entries", self.where, Trouble.GONE, "gone")
        for entry in super().entries(**how):
            self.read += entry.kind is not EntryKind.RUN_STARTED
            yield entry


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[CountingLedger]:
    with CountingLedger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=lambda: NOW) as opened:
        opened.append([Entry(EntryKind.RUN_STARTED, START, {}, key="run")])
        yield opened


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def record(ledger: Ledger, *incidents: Incident) -> None:
    """As the recorder writes them: at their opening, and at their end."""
    for one in sorted(incidents, key=lambda one: one.opened):
        told = [(EntryKind.INCIDENT_OPENED, one.opened, replace(one, closed=None))]
        if one.closed is not None:
            told.append((EntryKind.INCIDENT_CLOSED, one.closed, one))
        ledger.append([
            Entry(kind, at, encode_body(body), one.id, one.node, key=f"{one.id}/{kind}") for kind, at, body in told
        ])  # fmt: skip


def look(
    chronicle: Chronicle, *incidents: Incident, fleet: Fleet = FLEET, closed: tuple[Incident, ...] = (), places=PLACES
) -> dict[str, str]:
    return chronicle.look(fleet, incidents, closed, places)


def of(ledger: Ledger, policy: ChronicPolicy = ON) -> Chronicle:
    return Chronicle(ledger, policy)


# ----------------------------------------------------------------------------------------------------- when it is asked


def test_a_gpu_that_fails_again_and_again_is_chronic_at_its_next_outage_and_so_is_its_node(ledger: Ledger) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    found = look(of(ledger), AGAIN, ELSEWHERE)
    assert found.keys() == {"gpu:GPU-0", "node:n0"}
    assert found["gpu:GPU-0"].startswith("6 outages, out of service now: it fails at ")
    assert "a reset is not enough" in service_of(AGAIN, calm_scene(chronic=found))
    assert service_of(ELSEWHERE, calm_scene(chronic=found)) == ""


def test_nobody_is_called_chronic_while_nothing_of_it_is_open(ledger: Ledger) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    assert look(of(ledger)) == {}
    assert look(of(ledger), ELSEWHERE) == {}


@pytest.mark.parametrize(
    "opened",
    [
        pytest.param(outage(0, hours=None, tier=Tier.SUSPICION), id="suspicion"),
        pytest.param(outage(0, hours=None, held=True), id="a common cause"),
        pytest.param(outage(0, hours=None, cause_class=CauseClass.JOB), id="a matter of its job"),
    ],
)
def test_only_what_counts_as_an_outage_asks_for_the_score(ledger: CountingLedger, opened: Incident) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    assert look(of(ledger), opened) == {}
    assert ledger.read == 0


def test_suspicion_that_becomes_a_fact_is_an_outage_from_then_on(ledger: Ledger) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    chronicle = of(ledger)
    assert look(chronicle, replace(AGAIN, tier=Tier.SUSPICION)) == {}
    assert look(chronicle, AGAIN).keys() == {"gpu:GPU-0", "node:n0"}


def test_a_gpu_that_a_log_line_named_only_later_is_looked_at_then(ledger: Ledger) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    chronicle = of(ledger)
    assert look(chronicle, replace(AGAIN, gpu_uuids=())).keys() == {"node:n0"}
    assert look(chronicle, AGAIN).keys() == {"gpu:GPU-0", "node:n0"}


def test_what_was_said_at_the_opening_holds_until_the_incident_closes(ledger: Ledger) -> None:
    """Others fail meanwhile, and the fleet's mean moves: that is no new outage of this one."""
    record(ledger, *OFTEN, *ORDINARY)
    chronicle = of(ledger)
    before = look(chronicle, AGAIN)
    record(ledger, *(outage(0.01 * number, f"GPU-{30 + number}") for number in range(40)))
    assert look(chronicle, AGAIN, ELSEWHERE) == before
    assert look(chronicle, ELSEWHERE, closed=(replace(AGAIN, closed=NOW + HOUR),)) == {}


def test_what_a_person_gave_back_stays_so_until_its_next_outage(ledger: Ledger) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    chronicle = of(ledger)
    assert look(chronicle, AGAIN)
    mended = replace(AGAIN, closed=NOW + HOUR)
    assert look(chronicle, closed=(mended,)) == {}
    record(ledger, mended)
    later = outage(-0.5, "GPU-50", hours=None)
    assert look(chronicle, later) == {}, "its score is as high as before, and nothing of it is open"
    found = look(chronicle, later, outage(-1, hours=None))
    assert found["gpu:GPU-0"].startswith("7 outages"), "the history is all there"


@pytest.mark.parametrize("count", range(4))
def test_only_things_of_incidents_that_are_open_are_named(ledger: Ledger, count: int) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    open_now = [AGAIN, ELSEWHERE, outage(0.5, "GPU-12", hours=None)][3 - count :]
    mine = {f"gpu:{gpu}" for one in open_now for gpu in one.gpu_uuids} | {f"node:{one.node}" for one in open_now}
    assert look(of(ledger), *open_now).keys() <= mine


# ---------------------------------------------------------------------------------------------------- how it is asked


def test_the_ledger_is_read_only_for_new_incidents_and_never_twice(ledger: CountingLedger) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    chronicle = of(ledger)
    look(chronicle)
    assert ledger.read == 0
    look(chronicle, AGAIN)
    everything = ledger.read
    assert everything == 2 * len([*OFTEN, *ORDINARY])
    for _ in range(3):
        look(chronicle, AGAIN)
    assert ledger.read == everything
    record(ledger, AGAIN, ELSEWHERE)
    look(chronicle, AGAIN, ELSEWHERE)
    assert ledger.read == everything + 2


def test_a_restart_comes_to_the_same_answer_however_long_the_incident_is_open(ledger: Ledger) -> None:
    earlier = outage(20, hours=None)
    record(ledger, *(outage(20 + days) for days in DAYS), *ORDINARY)
    before = look(of(ledger), earlier)
    assert before
    record(ledger, earlier)
    record(ledger, *(outage(days, f"GPU-{40 + number}") for number, days in enumerate((3, 7, 9, 15))))
    assert look(of(ledger), earlier) == before


def test_an_incident_that_ended_in_this_very_tick_has_ended(ledger: Ledger) -> None:
    """Else two outages would look like one."""
    last = outage(0.1, hours=None)
    record(ledger, outage(4), *ORDINARY, last)
    policy = ChronicPolicy(quarantine=True, min_outages=3, chance=0.3)
    found = look(of(ledger, policy), AGAIN, closed=(replace(last, closed=AGAIN.opened - HOUR),))
    assert found["gpu:GPU-0"].startswith("3 outages, out of service now")


def test_without_the_ledger_nothing_is_said_of_new_incidents_and_it_is_asked_again(ledger: CountingLedger) -> None:
    record(ledger, *OFTEN, *ORDINARY, *(outage(days, "GPU-50") for days in DAYS))
    chronicle = of(ledger)
    known = look(chronicle, AGAIN)
    ledger.away = True
    with capture_logs() as logs:
        assert look(chronicle, AGAIN, ELSEWHERE) == known
        assert look(chronicle, AGAIN, ELSEWHERE) == known
    assert [line["event"] for line in logs] == ["outages cannot be read"]
    ledger.away = False
    assert look(chronicle, AGAIN, ELSEWHERE).keys() > known.keys()


def test_an_entry_of_another_version_costs_only_itself(ledger: Ledger) -> None:
    record(ledger, *OFTEN[:2])
    ledger.append([Entry(EntryKind.INCIDENT_OPENED, NOW, {"strange": 1}, "inc-x", "n0")])
    record(ledger, *OFTEN[2:], *ORDINARY)
    with capture_logs() as logs:
        assert look(of(ledger), AGAIN)["gpu:GPU-0"].startswith("6 outages")
    assert [line["event"] for line in logs] == ["not taken up from before"]


def test_where_policy_is_off_nobody_is_chronic_and_nothing_is_read(ledger: CountingLedger) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    assert look(of(ledger, ChronicPolicy()), AGAIN) == {}
    assert ledger.read == 0


def test_where_too_many_are_chronic_at_once_nothing_is_done_by_it_and_that_is_said_once(ledger: Ledger) -> None:
    """8 of 80 GPUs, 8 of 40 nodes; the limits are 4 and 2."""
    bad = [f"GPU-{2 * number}" for number in range(8)]
    record(ledger, *(outage(days, gpu) for gpu in bad for days in (2, 4, 6)))
    chronicle = of(ledger, ChronicPolicy(quarantine=True, chance=0.4))
    with capture_logs() as logs:
        assert look(chronicle, *(outage(0, gpu, hours=None) for gpu in bad)) == {}
        assert look(chronicle, *(outage(-0.1, gpu, hours=None) for gpu in bad[:3])) == {}
    said = [line["held"] for line in logs if line["event"] == "chronic things"]
    assert len(said) == 2
    assert said[0].startswith("8 of 80 gpus are chronic at once, limit 4: ")
    assert said[1].startswith("8 of 40 nodes are chronic at once, limit 2: ")


# ------------------------------------------------------------------------------------------------------------ identity


def test_a_swapped_gpu_starts_fresh(ledger: Ledger) -> None:
    """Its node had its outages, so it is the node that is named, and only it."""
    record(ledger, *OFTEN, *ORDINARY)
    new = outage(0, "GPU-new", hours=None)
    assert look(of(ledger), new, places=PLACES | {"GPU-new": ("n0", "0", "")}).keys() == {"node:n0"}


def created_at(**created: datetime) -> Fleet:
    """The fleet with these nodes set up anew."""
    nodes = [node(name, created=created.get(name, START - DAY)) for name in FLEET.nodes]
    return Fleet.of(nodes, LimitPolicy())


def test_a_node_that_is_set_up_anew_under_its_old_name_starts_fresh_and_its_gpus_do_not(ledger: Ledger) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    assert look(of(ledger), AGAIN, fleet=created_at(n0=NOW - DAY)).keys() == {"gpu:GPU-0"}


def test_outages_since_its_creation_count_against_a_new_node(ledger: Ledger) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    found = look(of(ledger), AGAIN, fleet=created_at(n0=NOW - 11 * DAY))
    assert found["node:n0"].startswith("6 outages")


def test_an_incident_of_the_node_before_says_nothing_of_the_new_one(ledger: Ledger) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    chronicle = of(ledger)
    assert look(chronicle, AGAIN).keys() == {"gpu:GPU-0", "node:n0"}
    assert "node:n0" not in look(chronicle, AGAIN, fleet=created_at(n0=NOW + HOUR))


# ------------------------------------------------------------------ since when the cluster has a node, in the ledger


def test_since_when_the_cluster_has_each_node_is_kept_in_the_ledger_whatever_policy_says(ledger: Ledger) -> None:
    look(of(ledger, ChronicPolicy()))
    assert read_created(ledger) == dict.fromkeys(FLEET.nodes, START - DAY)
    look(of(ledger, ChronicPolicy()), fleet=created_at(n3=NOW))
    assert read_created(ledger)["n3"] == NOW


def test_it_is_written_only_when_it_is_news(ledger: CountingLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    chronicle, written = of(ledger, ChronicPolicy()), []
    append = Ledger.append
    monkeypatch.setattr(Ledger, "append", lambda self, *of, **how: written.append(how) or append(self, *of, **how))
    for fleet in (FLEET, FLEET, Fleet.of((), LimitPolicy()), created_at(n3=NOW), created_at(n3=NOW)):
        look(chronicle, fleet=fleet)
    assert len(written) == 2


def test_names_that_a_cloud_has_made_and_taken_away_are_forgotten(ledger: Ledger) -> None:
    chronicle = of(ledger, ChronicPolicy())
    for batch in range(5):
        look(chronicle, fleet=Fleet.of((node(f"b{batch}-{n}", created=START) for n in range(10)), LimitPolicy()))
    assert len(read_created(ledger)) <= 20
    assert {f"b4-{n}" for n in range(10)} <= read_created(ledger).keys()


def test_what_another_version_wrote_is_written_anew(ledger: Ledger) -> None:
    ledger.append((), state={CREATED: b"[1]"})
    look(of(ledger, ChronicPolicy()))
    assert read_created(ledger)["n0"] == START - DAY


# ------------------------------------------------------------------------------------------------------ what people see


def site(folder: Path, policy: dict[str, Any] | None = None) -> Path:
    """A configuration over this ledger."""
    rules = folder / "rules.yaml"
    pack = {"version": 1, "name": "site", "owner": "t", "source": "t", "policy": {"chronic": policy or {}}}
    rules.write_text(yaml.safe_dump(pack), encoding="utf-8")
    config = folder / "gpuwarden.yaml"
    told = {"ledger": {"url": f"sqlite:///{folder / 'ledger.db'}"}, "rules": [str(rules)]}
    config.write_text(yaml.safe_dump(told), encoding="utf-8")
    return config


def remember(ledger: Ledger, places: dict[str, Place], there: set[str]) -> None:
    verdicts = [Verdict(places[gpu][0], gpu, GpuState.HEALTHY, 0.0, START, 1.0) for gpu in sorted(there)]
    ledger.append((), state=VerdictMemory().pack(NOW, "", verdicts, places))


def asked(config: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert command(config, kind, 100, "json", now=NOW) == ExitCode.OK
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_people_see_a_node_that_is_set_up_anew_as_a_new_one_and_its_slots_too(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    remember(ledger, PLACES, set(PLACES))
    config = site(tmp_path)
    assert asked(config, "node", capsys)["things"][0]["thing"] == "node:n0"
    ledger.append((), state={CREATED: pack_created({"n0": NOW - DAY})})
    for kind, name in (("node", "node:n0"), ("slot", "slot:n0/0")):
        told = {one["thing"]: one["outages"] for one in asked(config, kind, capsys)["things"]}
        assert told[name] == 0
        assert not any(" before " in thing for thing in told)
    assert asked(config, "gpu", capsys)["things"][0]["thing"] == "gpu:GPU-0"


def test_a_slot_keeps_its_history_when_its_board_is_gone_and_the_daemon_has_been_restarted(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(ledger, *OFTEN, *ORDINARY)
    swapped = PLACES | {"GPU-new": ("n0", "0", "")}
    remember(ledger, swapped, swapped.keys() - {"GPU-0"})
    config = site(tmp_path)
    worst = asked(config, "slot", capsys)["things"][0]
    assert (worst["thing"], worst["outages"]) == ("slot:n0/0", len(OFTEN))
    told = {one["thing"]: one["outages"] for one in asked(config, "gpu", capsys)["things"]}
    assert told["gpu:GPU-new"] == 0


@pytest.mark.parametrize(
    ("kind", "policy", "bad", "said"),
    [
        pytest.param("gpu", {}, 1, "nothing is done by the scores: policy chronic.quarantine is off", id="off"),
        pytest.param("gpu", {"quarantine": True}, 1, "the next outage of a chronic gpu ends in quarantine", id="on"),
        pytest.param(
            "gpu", {"quarantine": True, "chance": 0.4}, 8, "8 of 80 gpus are chronic at once, limit 4", id="too many"
        ),
        pytest.param("slot", {"quarantine": True}, 1, "nothing is done by the scores of slots", id="slots"),
    ],
)
def test_people_are_told_what_is_done_by_it(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, policy: dict, bad: int, said: str
) -> None:
    record(ledger, *(outage(days, f"GPU-{2 * n}") for n in range(bad) for days in (1, 2, 4, 6)))
    remember(ledger, PLACES, set(PLACES))
    config = site(tmp_path, policy)
    told = asked(config, kind, capsys)
    assert told["acts"].startswith(said)
    assert told["quarantine"] is policy.get("quarantine", False)
    assert command(config, kind, 5, "table", now=NOW) == ExitCode.OK
    assert said in " ".join(capsys.readouterr().out.split())

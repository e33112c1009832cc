"""What a person says at a terminal: checked, written into the ledger, and told; and then the daemon hears it."""

import getpass
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import yaml

from daemon.commands.people import Speaker, approve, breaker, fenced, hold, reject, release
from daemon.journal import BREAKER, BreakerMemory, Ended, Journal, Written, entry_of
from daemon.ledger import Entry, EntryKind, Ledger, decode_body, encode_body
from daemon.memory import VerdictMemory
from detectors.findings import GpuState, Incident, Verdict
from remediation.breaker import BreakerState, TakenOut
from remediation.decide import Decision, Ruling, decide_on
from remediation.gates import GateResult
from remediation.limits import Ending
from remediation.objects import WorkloadView
from remediation.people import Said, Saying, Word
from remediation.plan import Plan, Step, Works
from rules.schema import RuleBook
from rules.vocabulary import Action, CauseClass, FaultAction, IncidentScope, Tier
from tests.acting.scenes import calm_scene, training
from tests.decide.circumstances import around
from tests.decide.incidents import incident as memory_fault

pytestmark = pytest.mark.usefixtures("loaded")

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NOW = AT + timedelta(minutes=5)
LLAMA = WorkloadView("Job", "batch/v1", "train", "llama", "uid-job", None, restarts_allowed=6)
LADDER = (Action.NO_NEW_WORK, Action.CORDON, Action.DRAIN, Action.RESET_GPU)
FRESH = GateResult("snapshot_fresh", True, "evidence is 0 s old")
CROWDED = GateResult("blast_radius", False, "2 of 2 nodes would be out, limit 1")
UNSAVED = GateResult("checkpoint", False, "8 training pods; no checkpoint of it is known")
OPTED_OUT = GateResult("managed", False, "gpu002 has gpuwarden.io/managed=false")


def incident(name: str, *nodes: str) -> Incident:
    return Incident(
        name, AT, None, IncidentScope.GPU, nodes[0], nodes, ("GPU-1",), CauseClass.MEMORY, Tier.FACT, AT, AT,
        FaultAction.RESET_GPU, (), f"why of {name}",
    )  # fmt: skip


def decision(
    name: str,
    node: str,
    *gates: GateResult,
    ruling: Ruling = Ruling.WAIT,
    ladder: tuple[Action, ...] = LADDER,
    at: datetime = AT,
) -> Entry:
    steps = tuple(Step(action, "undo it") for action in ladder)
    plan = Plan(name, node, "", ladder[-1], steps, ("pod train/llama-0",), ("train/llama",), "stop it and reset")
    return Entry(EntryKind.DECISION, at, encode_body(Decision(at, plan, "approve", ruling, gates)), name, node)


def opened(name: str, *nodes: str) -> Entry:
    return Entry(EntryKind.INCIDENT_OPENED, AT, encode_body(incident(name, *nodes)), name, nodes[0])


def closed(name: str, *nodes: str) -> Entry:
    body = encode_body(replace(incident(name, *nodes), closed=AT, closed_because="quiet"))
    return Entry(EntryKind.INCIDENT_CLOSED, AT, body, name, nodes[0])


def attempt(name: str, node: str, action: Action, ending: Ending = Ending.DONE, at: datetime = AT) -> list[Entry]:
    begun = Entry(EntryKind.ATTEMPT, at, encode_body(Written(name, node, action, 1)), name, node)
    came = Ended(name, node, action, 1, ending, "done, and read back")
    return [begun, Entry(EntryKind.OUTCOME, at, encode_body(came), name, node)]


def said_before(word: Word, **about) -> Entry:
    return entry_of(Saying(AT, word, "bob", **about))


class Site:
    """A ledger as the daemon left it five minutes ago, and a person at a terminal."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'ledger.db'}"
        self.config = folder / "gpuwarden.yaml"
        self.config.write_text(yaml.safe_dump({"ledger": {"url": self.url}}), encoding="utf-8")

    def begin(self) -> None:
        """What the daemon has found so far."""
        names = ("gpu001", "gpu002.cluster.local", "gpu003", "gpu004")
        verdicts = [Verdict(name, f"GPU-{name}", GpuState.HEALTHY, 0.0, AT, 1.0) for name in names]
        self.write(
            opened("inc-1", "gpu001"),
            decision("inc-1", "gpu001", FRESH, CROWDED, UNSAVED),
            opened("inc-2", "gpu002.cluster.local"),
            decision("inc-2", "gpu002.cluster.local", FRESH, OPTED_OUT, UNSAVED, ruling=Ruling.REFUSE),
            opened("inc-3", "gpu003", "gpu004"),
            decision("inc-3", "gpu003", FRESH, UNSAVED, ruling=Ruling.ASK),
            opened("inc-4", "gpu003"),
            state=VerdictMemory().pack(AT, "", verdicts, {}),
        )

    def write(self, *entries: Entry, state: Mapping[str, bytes] | None = None) -> None:
        with Ledger.open(self.url, now=lambda: NOW) as ledger:
            ledger.append(entries, state=state)

    def trip(self, at: datetime = AT) -> None:
        memory = BreakerMemory(BreakerState(at, "3 of 8 nodes"), (TakenOut("gpu003", at, "inc-3"),))
        self.write(state={BREAKER: msgspec.json.encode(memory)})

    def speaker(self, form: str = "table", by: str | None = "alice", why: str = "") -> Speaker:
        return Speaker(self.config, form, by, why, NOW)

    def said(self) -> Said:
        """What the daemon hears."""
        with Ledger.open(self.url, now=lambda: NOW) as ledger:
            journal = Journal(ledger)
            journal.read(AT)
            return journal.said

    @property
    def last(self) -> Saying:
        with Ledger.open(self.url, now=lambda: NOW) as ledger:
            (entry,) = ledger.entries(kind=EntryKind.HUMAN, newest_first=True, limit=1)
        return decode_body(entry.body, Saying)

    def words(self) -> int:
        with Ledger.open(self.url, now=lambda: NOW) as ledger:
            return sum(1 for _ in ledger.entries(kind=EntryKind.HUMAN))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begun")
    Site(folder).begin()
    return folder


@pytest.fixture
def site(begun: Path, tmp_path: Path) -> Site:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    return Site(tmp_path)


Told = pytest.CaptureFixture[str]
Command = Callable[[Site], int]


def complaint(capsys: Told) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


# ------------------------------------------------------------------------------------------------------------ approve


@pytest.mark.parametrize("thing", ["inc-1", "gpu001", "gpu001.cluster.local"])
def test_an_approval_covers_the_steps_and_names_the_gates_that_it_saw(site: Site, capsys: Told, thing: str) -> None:
    assert approve(thing, site.speaker(why="the owner agrees")) == 0
    out = capsys.readouterr().out
    assert site.last == Saying(
        NOW, Word.APPROVE, "alice", "gpu001", ("inc-1",), LADDER, ("blast_radius", "checkpoint"), why="the owner agrees"
    )
    assert site.said().approved("inc-1") == LADDER
    assert "overrules checkpoint: 8 training pods; no checkpoint of it is known" in out
    assert "still stops it, blast_radius (wait): 2 of 2 nodes would be out, limit 1" in out
    assert "nobody carries out reset_gpu here: it is up to you" in out
    assert "snapshot_fresh" not in out


def test_an_approval_as_data(site: Site, capsys: Told) -> None:
    assert approve("inc-1", site.speaker("json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["said"]["gates"] == ["blast_radius", "checkpoint"]
    assert [gate["name"] for gate in told["overrules"]] == ["checkpoint"]
    assert [gate["name"] for gate in told["still_stops"]] == ["blast_radius"]
    assert [step["action"] for step in told["plan"]["steps"]] == [action.value for action in LADDER]


def test_the_newest_decision_is_the_one_that_is_approved(site: Site) -> None:
    site.write(decision("inc-1", "gpu001", FRESH, ruling=Ruling.ACT, ladder=(Action.NO_NEW_WORK,)))
    assert approve("inc-1", site.speaker()) == 0
    assert (site.last.actions, site.last.gates) == ((Action.NO_NEW_WORK,), ())


def test_an_approval_is_of_the_plan_and_not_of_a_release_that_somebody_ordered_meanwhile(site: Site) -> None:
    site.write(decision("inc-1", "gpu001", FRESH, ruling=Ruling.ACT, ladder=(Action.RELEASE,), at=NOW))
    assert approve("inc-1", site.speaker()) == 0
    assert site.last.actions == LADDER


def test_what_an_earlier_approval_has_overruled_stays_so(site: Site) -> None:
    assert approve("inc-1", site.speaker()) == 0
    overruled = GateResult("checkpoint", True, f"{UNSAVED.reason}; overruled by {site.last.source}")
    site.write(decision("inc-1", "gpu001", FRESH, CROWDED, overruled, at=NOW))
    assert approve("inc-1", site.speaker()) == 0
    assert site.last.gates == ("blast_radius", "checkpoint")


def test_what_is_refused_cannot_be_approved(site: Site, capsys: Told) -> None:
    assert approve("inc-2", site.speaker()) == 1
    assert "inc-2 is refused, and no approval changes that: managed: gpu002 has" in complaint(capsys)
    assert site.words() == 0


def test_who_has_rejected_may_still_approve(site: Site, capsys: Told) -> None:
    site.write(
        said_before(Word.REJECT, incidents=("inc-1",)),
        decision("inc-1", "gpu001", UNSAVED, GateResult("rejected", False, "by bob"), ruling=Ruling.REFUSE, at=NOW),
    )
    assert approve("inc-1", site.speaker()) == 0
    assert "takes back: inc-1 rejected by bob" in capsys.readouterr().out
    assert site.said().rejected("inc-1") == ""
    assert site.said().approved("inc-1") == LADDER


def test_a_node_with_several_incidents_is_no_answer(site: Site, capsys: Told) -> None:
    assert approve("gpu003", site.speaker()) == 1
    said = complaint(capsys)
    assert "gpuwarden approve inc-3   reset_gpu (ask): why of inc-3" in said
    assert "gpuwarden approve inc-4   nothing decided yet: why of inc-4" in said
    assert site.words() == 0


def test_a_node_that_is_to_be_given_back_can_be_approved_after_its_incident_is_over(site: Site) -> None:
    back = decision("inc-1", "gpu001", FRESH, ruling=Ruling.ACT, ladder=(Action.RELEASE,), at=NOW)
    site.write(closed("inc-1", "gpu001"), back)
    for thing in ("gpu001", "inc-1"):
        assert approve(thing, site.speaker()) == 0
        assert (site.last.incidents, site.last.actions) == (("inc-1",), (Action.RELEASE,))
    site.write(*attempt("inc-1", "gpu001", Action.RELEASE, at=NOW))
    assert approve("gpu001", site.speaker()) == 1


NODES = "nodes known: gpu001, gpu002.cluster.local, gpu003, gpu004"


@pytest.mark.parametrize(
    ("thing", "code", "says"),
    [
        pytest.param("gpu009", 1, f"no node is called 'gpu009'; {NODES}", id="a node that nobody knows"),
        pytest.param("inc-9", 1, f"no node is called 'inc-9'; {NODES}", id="an incident that nobody knows"),
        pytest.param("inc-8", 1, "inc-8 is not open any more: there is nothing to approve", id="one that is over"),
        pytest.param("gpu004", 1, "nothing has been decided about inc-5 yet", id="one that is new"),
        pytest.param("", 1, NODES, id="nothing"),
    ],
)
def test_what_cannot_be_approved_says_why(site: Site, capsys: Told, thing: str, code: int, says: str) -> None:
    site.write(opened("inc-8", "gpu001"), closed("inc-8", "gpu001"), closed("inc-3", "gpu003", "gpu004"))
    site.write(opened("inc-5", "gpu004"))
    assert approve(thing, site.speaker()) == code
    assert says in complaint(capsys)
    assert site.words() == 0


def test_what_was_approved_is_decided_with(site: Site, rules: RuleBook) -> None:
    """The whole way: a decision in the ledger, a word at a terminal, and the next decision."""
    drain = rules.policy.drain.model_copy(update={"ask_without_checkpoint": ("fact",)})
    policy = rules.policy.model_copy(update={"drain": drain})
    scene = calm_scene(pods=[training()], workloads={LLAMA.uid: LLAMA})
    one = memory_fault("inc-9")

    def decide(said: Said) -> Decision:
        seen = replace(scene, said=said)
        (told,) = decide_on([one], Works(), (), policy, around=around(standing={"inc-9"}), scene=seen)
        return told

    before = decide(site.said())
    assert (before.ruling, before.allowed) == (Ruling.ASK, LADDER[:2])
    site.write(
        Entry(EntryKind.INCIDENT_OPENED, AT, encode_body(one), "inc-9", "n000"),
        Entry(EntryKind.DECISION, AT, encode_body(before), "inc-9", "n000"),
    )
    assert approve("n000", site.speaker()) == 0
    after = decide(site.said())
    assert (after.ruling, after.allowed) == (Ruling.ACT, LADDER)


# ------------------------------------------------------------------------------------------------------------- reject


def test_a_rejection_says_what_stays(site: Site, capsys: Told) -> None:
    site.write(*attempt("inc-1", "gpu001", Action.CORDON), said_before(Word.APPROVE, incidents=("inc-1",)))
    assert reject("gpu001", site.speaker(why="known")) == 0
    assert site.said().rejected("inc-1") == f"rejected by {site.last.source}"
    out = capsys.readouterr().out
    assert "inc-1 rejected by alice at 2026-03-01 12:05 UTC (known): nothing is done about it" in out
    assert "gpu001 stays as it is, out of service: `gpuwarden release gpu001` gives it back" in out


@pytest.mark.parametrize(
    "since",
    [
        pytest.param([], id="nothing was done"),
        pytest.param(attempt("inc-1", "gpu001", Action.CORDON, Ending.FAILED), id="nothing came about"),
        pytest.param(
            [*attempt("inc-1", "gpu001", Action.CORDON), *attempt("inc-1", "gpu001", Action.RELEASE, at=NOW)],
            id="it was given back",
        ),
    ],
)
def test_a_rejection_of_what_took_nothing_out_leaves_nothing(site: Site, capsys: Told, since: Sequence[Entry]) -> None:
    site.write(*since)
    assert reject("inc-1", site.speaker()) == 0
    assert "stays" not in capsys.readouterr().out


def test_a_rejection_needs_an_open_incident_and_only_one(site: Site, capsys: Told) -> None:
    assert reject("gpu003", site.speaker()) == 1
    assert "gpuwarden reject inc-3" in complaint(capsys)
    site.write(closed("inc-1", "gpu001"))
    for thing, says in (("gpu001", "no incident is open on gpu001"), ("inc-1", "inc-1 is not open any more")):
        assert reject(thing, site.speaker()) == 1
        assert says in complaint(capsys)


# --------------------------------------------------------------------------------------------------------------- hold


@pytest.mark.parametrize(
    ("lasts", "until"),
    [
        pytest.param("8h", NOW + timedelta(hours=8), id="for some time"),
        pytest.param("1h30m", NOW + timedelta(minutes=90), id="for parts of hours"),
        pytest.param(None, None, id="until somebody ends it"),
    ],
)
def test_a_hold_lasts_as_long_as_it_says(site: Site, lasts: str | None, until: datetime | None) -> None:
    assert hold("gpu001", site.speaker(), lasts=lasts) == 0
    held = site.said().hold_on("gpu001", NOW)
    assert held == site.last
    assert held.until == until


def test_a_node_is_off_for_certain_because_somebody_says_so(site: Site) -> None:
    assert fenced("gpu001", site.speaker(why="power cut at the rack")) == 0
    assert site.said().fenced("gpu001", NOW)
    assert not site.said().fenced("gpu001", NOW + timedelta(hours=1)), "an incident that began later needs a new word"


def test_a_hold_is_on_the_name_that_the_incidents_have(site: Site) -> None:
    assert hold("gpu002", site.speaker()) == 0
    assert site.said().on_hold(["gpu002.cluster.local"], NOW)


def test_a_hold_ends_when_somebody_says_so(site: Site, capsys: Told) -> None:
    assert hold("gpu001", site.speaker(), end=True) == 1
    assert "gpu001 is not on hold" in complaint(capsys)
    assert hold("gpu001", site.speaker(why="memory test")) == 0
    assert hold("gpu001", replace(site.speaker(), now=NOW + timedelta(hours=1)), end=True) == 0
    assert site.said().hold_on("gpu001", NOW + timedelta(hours=2)) is None
    assert "(memory test)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lasts", "end", "says"),
    [
        pytest.param("8h", True, "contradict", id="both"),
        pytest.param("8", False, "30s, 2m, 1h30m", id="no unit"),
        pytest.param("soon", False, "30s, 2m, 1h30m", id="no time at all"),
        pytest.param("0s", False, "lasts some time", id="no time"),
        pytest.param("99999999999d", False, "--for 99999999999d", id="beyond all time"),
    ],
)
def test_a_hold_for_no_time_is_wrong_usage(site: Site, capsys: Told, lasts: str, end: bool, says: str) -> None:
    assert hold("gpu001", site.speaker(), lasts=lasts, end=end) == 2
    assert says in complaint(capsys)
    assert site.words() == 0


def test_a_hold_on_a_node_that_nobody_knows_would_hold_nothing(site: Site, capsys: Told) -> None:
    assert hold("gpu01", site.speaker()) == 1
    assert NODES in complaint(capsys)


# ------------------------------------------------------------------------------------------------------------ release


def test_a_release_is_about_all_that_the_marks_may_name(site: Site, capsys: Told) -> None:
    site.write(*attempt("inc-0", "gpu003", Action.CORDON))
    site.write(decision("inc-7", "gpu003", ladder=(Action.RELEASE,)))
    assert release("gpu003", site.speaker()) == 0
    assert site.last.word is Word.RELEASE
    assert set(site.last.incidents) == {"inc-3", "inc-4", "inc-0", "inc-7"}
    for name in site.last.incidents:
        assert site.said().given_back("gpu003", name) == site.last
    out = capsys.readouterr().out
    assert "gpu003 given back by alice" in out
    assert "left alone as far as these incidents go" in out
    assert "nothing is done about inc-3 on gpu004 any more, either" in out


def test_a_release_of_a_node_that_telemetry_has_lost(site: Site) -> None:
    site.write(decision("inc-7", "gpu077", ladder=(Action.RELEASE,)))
    assert release("gpu077", site.speaker()) == 0
    assert site.last.incidents == ("inc-7",)


def test_a_release_under_a_hold_says_what_it_waits_for(site: Site, capsys: Told) -> None:
    assert hold("gpu001", site.speaker()) == 0
    assert release("gpu001", site.speaker()) == 0
    assert "it is not given back yet: gpu001 on hold until somebody ends it" in capsys.readouterr().out


def test_there_has_to_be_something_to_give_back(site: Site, capsys: Told) -> None:
    site.write(closed("inc-3", "gpu003", "gpu004"))
    assert release("gpu004", site.speaker()) == 1
    assert "gpuwarden has no incident of gpu004 and has not taken it out" in complaint(capsys)
    assert release("gpu009", site.speaker()) == 1
    assert NODES in complaint(capsys)


# -------------------------------------------------------------------------------------------------- the circuit breaker


def test_a_breaker_that_never_tripped_is_closed(site: Site, capsys: Told) -> None:
    assert breaker("status", site.speaker()) == 0
    assert capsys.readouterr().out.splitlines() == [
        "closed: it has never tripped", "  taken out within the last 1800 s: none",
    ]  # fmt: skip
    assert breaker("reset", site.speaker()) == 1
    assert "nothing to reset" in complaint(capsys)


def test_an_open_breaker_is_closed_by_a_word(site: Site, capsys: Told) -> None:
    site.trip()
    assert breaker("status", site.speaker("json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert {name: told[name] for name in ("open", "open_since", "reason", "reset")} == {
        "open": True, "open_since": "2026-03-01T12:00:00Z", "reason": "3 of 8 nodes", "reset": None,
    }  # fmt: skip
    assert [one["node"] for one in told["counted"]] == ["gpu003"]
    assert breaker("reset", site.speaker(why="a roll-out")) == 0
    assert site.said().breaker_reset() == site.last
    assert "it was open since 2026-03-01 12:00:00 UTC: 3 of 8 nodes" in capsys.readouterr().out
    assert breaker("status", site.speaker()) == 0
    out = capsys.readouterr().out
    assert "open since 2026-03-01 12:00:00 UTC" in out
    assert "to be closed at the next tick: the circuit breaker closed by alice" in out


def test_a_word_from_before_the_breaker_tripped_closes_nothing(site: Site, capsys: Told) -> None:
    site.write(said_before(Word.RESET_BREAKER))
    site.trip(AT + timedelta(minutes=1))
    assert breaker("status", site.speaker()) == 0
    assert "to be closed" not in capsys.readouterr().out


def test_asking_for_the_breaker_needs_no_name(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", nobody)
    assert breaker("status", site.speaker(by=None)) == 0


# ------------------------------------------------------------------------------------------------- what they have alike


def nobody() -> str:
    raise KeyError("getpwuid(): uid not found: 65532")


EACH: Iterable[Command] = [
    pytest.param(lambda site, **who: approve("inc-1", site.speaker(**who)), id="approve"),
    pytest.param(lambda site, **who: reject("inc-1", site.speaker(**who)), id="reject"),
    pytest.param(lambda site, **who: hold("gpu001", site.speaker(**who)), id="hold"),
    pytest.param(lambda site, **who: release("gpu001", site.speaker(**who)), id="release"),
    pytest.param(lambda site, **who: breaker("reset", site.speaker(**who)), id="breaker reset"),
]


@pytest.mark.parametrize("command", EACH)
def test_who_says_it_is_the_user_unless_it_is_said(
    site: Site, capsys: Told, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    site.trip()
    monkeypatch.setattr(getpass, "getuser", lambda: "carol")
    assert command(site, by=None) == 0
    assert site.last.by == "carol"
    monkeypatch.setattr(getpass, "getuser", nobody)
    assert command(site, by=None) == 2
    assert "say who you are with --by NAME" in capsys.readouterr().err
    assert command(site, by="dave") == 0
    assert site.last.by == "dave"
    assert command(site, by=" ") == 2


@pytest.mark.parametrize("command", EACH)
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_what_was_said_as_data(site: Site, capsys: Told, form: str, command: Command) -> None:
    site.trip()
    site.write(Entry(EntryKind.RUN_STARTED, AT, {"mode": "approve (drain observe)"}))
    assert command(site, form=form) == 0
    told = yaml.safe_load(capsys.readouterr().out)
    assert msgspec.convert(told["said"], Saying) == site.last
    assert told["mode"] == "approve (drain observe)"


@pytest.mark.parametrize("command", EACH)
def test_in_observe_mode_it_says_that_nothing_comes_of_it(site: Site, capsys: Told, command: Command) -> None:
    site.trip()
    site.write(Entry(EntryKind.RUN_STARTED, AT, {"mode": "observe"}))
    assert command(site) == 0
    assert "gpuwarden runs in mode observe: it decides with this, and changes nothing" in capsys.readouterr().out


@pytest.mark.parametrize("command", EACH)
def test_no_text_breaks_the_record(site: Site, capsys: Told, command: Command) -> None:
    site.trip()
    assert command(site, why="line\none\0 \udcff  two", by="a\nb") == 0
    assert (site.last.why, site.last.by) == ("line one ? two", "a b")
    capsys.readouterr().out.encode()


@pytest.mark.parametrize("command", EACH)
def test_a_word_makes_no_ledger(site: Site, tmp_path: Path, capsys: Told, command: Command) -> None:
    (tmp_path / "ledger.db").unlink()
    assert command(site) == 4
    assert "start `gpuwarden run`" in complaint(capsys)
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize("command", EACH)
def test_a_ledger_that_cannot_be_used_is_told_with_its_code(site: Site, capsys: Told, command: Command) -> None:
    site.trip()
    path = Path(site.url.removeprefix("sqlite:///"))
    path.write_bytes(b"this is no database" * 100)
    for log in path.parent.glob("ledger.db-*"):
        log.unlink()
    assert command(site) == 4
    assert str(path) in complaint(capsys)

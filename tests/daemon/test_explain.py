"""`gpuwarden explain`: whatever way a person names a thing, what the ledger knows about it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import structlog
import yaml

from daemon.commands.explain import explain
from daemon.journal import BREAKER, BreakerMemory, Ended, Written, entry_of
from daemon.ledger import Entry, EntryKind, Ledger, encode_body
from daemon.memory import VerdictMemory
from daemon.tickets import ticket_entry
from detectors.findings import GpuState, Incident, Signal, Verdict
from remediation.breaker import BreakerState
from remediation.decide import Decision, Ruling
from remediation.gates import GateResult
from remediation.limits import Ending
from remediation.people import Saying, Word
from remediation.plan import Plan, Step
from remediation.tickets import Filed, Ticket, TicketState
from rules.vocabulary import Action, CauseClass, FaultAction, IncidentScope, Tier

pytestmark = pytest.mark.usefixtures("loaded")

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SICK = "GPU-aaaa1111-0000-0000-0000-000000000001"
WELL = "GPU-bbbb2222-0000-0000-0000-000000000002"
BLIND = "GPU-bbbb3333-0000-0000-0000-000000000003"

Explain = Callable[..., int]


def signals() -> tuple[Signal, ...]:
    lost = Signal(
        "kernel_log", "xid_79", "gpu001", SICK, Tier.FACT, CauseClass.HARDWARE, FaultAction.REBOOT_NODE, 1.0, 1.0, None,
        "times", AT - timedelta(minutes=10), AT - timedelta(minutes=10),
        "NVRM: Xid (PCI:0000:5c:00): 79, [drm] :warning: GPU has fallen off the bus.", "The GPU vanished from PCIe",
    )  # fmt: skip
    hot = Signal(
        "thresholds", "hot", "gpu001", SICK, Tier.TREND, CauseClass.THERMAL, FaultAction.INSPECT, 0.4, 91.5, 85.0, "°C",
        AT - timedelta(minutes=30), AT, 'gpu_temp{UUID="x"}[5m]', "Hot",
    )  # fmt: skip
    claimed = Signal(
        "kernel_log", "xid_95", "gpu001", SICK, Tier.FACT, CauseClass.MEMORY, FaultAction.NONE, 0.0, 3.0, None, "times",
        AT - timedelta(minutes=5), AT, "trainer says Xid 95", "A claim", trusted=False,
    )  # fmt: skip
    return lost, hot, claimed


def incident(name: str, node: str, *gpus: str) -> Incident:
    return Incident(
        name, AT - timedelta(minutes=10), None, IncidentScope.GPU, node, (node,), gpus, CauseClass.HARDWARE, Tier.FACT,
        AT - timedelta(minutes=10), AT, FaultAction.REBOOT_NODE, (), "The GPU vanished from PCIe",
    )  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger as the daemon leaves it: a sick GPU, a healthy one, one that is not seen, and a node only logs know."""
    path = tmp_path / "ledger.db"
    verdicts = (
        Verdict("gpu001", SICK, GpuState.FAILED, 1.0, AT - timedelta(minutes=10), 0.5, signals(), "The GPU vanished"),
        Verdict("gpu002.cluster.local", WELL, GpuState.HEALTHY, 0.0, AT - timedelta(days=2), 0.98, (), "nothing"),
        Verdict("gpu002.cluster.local", BLIND, GpuState.UNKNOWN, 0.0, AT - timedelta(hours=1), 0.0, (), "no sample"),
    )
    places = {SICK: ("gpu001", "3", "0000:5c:00"), WELL: ("gpu002.cluster.local", "0", "0000:1a:00")}
    gates = (GateResult("snapshot_fresh", True, "evidence is 0 s old"), GateResult("blast_radius", False, "2 of 2 out"))
    steps = (Step(Action.CORDON, "uncordon the node"), Step(Action.DRAIN, "uncordon the node"))
    plan = Plan("inc-1", "gpu001", SICK, Action.DRAIN, steps, ("pod a/b",), ("a/job",), "only a reboot helps")
    old, new = (Decision(AT - timedelta(minutes=age), plan, "observe", ruling, gates)
                for age, ruling in ((9, Ruling.ACT), (5, Ruling.WAIT)))  # fmt: skip
    entries = [
        Entry(EntryKind.INCIDENT_OPENED, AT, encode_body(incident("inc-1", "gpu001", SICK)), "inc-1"),
        Entry(EntryKind.INCIDENT_OPENED, AT, encode_body(incident("inc-2", "stranger")), "inc-2"),
        Entry(EntryKind.DECISION, AT, encode_body(old), "inc-1"),
        Entry(EntryKind.DECISION, AT, encode_body(new), "inc-1"),
    ]
    with Ledger.open(f"sqlite:///{path}", now=lambda: AT) as opened:
        opened.append(entries, state=VerdictMemory().pack(AT, "", verdicts, places))
    return path


@pytest.fixture
def ask(ledger: Path) -> Explain:
    """Explains a thing, 30 seconds after the last tick."""
    config = ledger.parent / "gpuwarden.yaml"
    config.write_text(yaml.safe_dump({"ledger": {"url": f"sqlite:///{ledger}"}}), encoding="utf-8")
    return lambda thing, form="table": explain(thing, config, form, now=AT + timedelta(seconds=30))


GOLDEN = """\
as of 2026-03-01 12:00:00 UTC (30 s ago)

gpu001 GPU 3 GPU-aaaa1111-0000-0000-0000-000000000001 0000:5c:00
  failed since 2026-03-01 11:50 UTC, score 1.00 (evidence 1.00, suspicion 0.00), 50 % of its signals known
  The GPU vanished
  SIGNAL TIER WEIGHT VALUE LIMIT SINCE (UTC) WHERE TO LOOK
  xid_79 0 1.00 1 times - 03-01 11:50:00 NVRM: Xid (PCI:0000:5c:00): 79, [drm] :warning: GPU has fallen off the bus.
  hot 1 0.40 91.5 °C 85 03-01 11:30:00 gpu_temp{UUID="x"}[5m]
  xid_95 0 0 (not from the kernel) 3 times - 03-01 11:55:00 trainer says Xid 95

inc-1 hardware, tier 0, opened 2026-03-01T11:50:00Z: The GPU vanished from PCIe
  would drain (wait, mode observe): only a reboot helps
    pass snapshot_fresh: evidence is 0 s old
    STOP blast_radius: 2 of 2 out
"""


def squeezed(text: str) -> str:
    """Columns without their padding, which is the table's business; the indent is the text's."""
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines.append(f"{indent}{' '.join(line.split())}\n")
    return "".join(lines)


def test_what_a_person_reads(ask: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(SICK) == 0
    captured = capsys.readouterr()
    assert squeezed(captured.out) == GOLDEN
    assert captured.err == ""
    assert "\x1b" not in captured.out, "no colour where nobody looks"


@pytest.mark.parametrize(
    ("thing", "gpus"),
    [
        pytest.param(SICK, [SICK], id="a whole UUID"),
        pytest.param("GPU-aaaa", [SICK], id="its beginning"),
        pytest.param("aaaa1", [SICK], id="its beginning without the prefix"),
        pytest.param("GPU-bbbb", [WELL, BLIND], id="a beginning of two"),
        pytest.param("gpu001", [SICK], id="a node"),
        pytest.param("gpu001.cluster.local", [SICK], id="a node's long name where the short one is known"),
        pytest.param("gpu002", [WELL, BLIND], id="a node's short name where the long one is known"),
        pytest.param("gpu001/3", [SICK], id="a node and an index"),
        pytest.param("gpu002.cluster.local/0", [WELL], id="a node's long name and an index"),
    ],
)
def test_each_way_to_name_a_thing(
    ask: Explain, capsys: pytest.CaptureFixture[str], thing: str, gpus: list[str]
) -> None:
    assert ask(thing, "json") == 0
    found = [gpu["gpu"] for gpu in json.loads(capsys.readouterr().out)["gpus"]]
    assert sorted(found) == sorted(gpus)


NODES = "names no GPU and no node; nodes known: gpu001, gpu002.cluster.local"


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        pytest.param("gpu009", NODES, id="a node that nobody knows"),
        pytest.param("gpu009/3", NODES, id="a GPU of a node that nobody knows"),
        pytest.param("GPU-", NODES, id="a prefix of all UUIDs"),
        pytest.param("0000-0000", NODES, id="the middle of all UUIDs"),
        pytest.param("", NODES, id="nothing"),
        pytest.param("gpu001/7", "gpu001 has no GPU '7'; it has 3", id="an index that the node has not"),
    ],
)
def test_a_name_that_is_none_says_which_there_are(
    ask: Explain, capsys: pytest.CaptureFixture[str], thing: str, says: str
) -> None:
    assert ask(thing) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err


def test_a_node_that_only_its_log_knows_shows_its_incidents(ask: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("stranger", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["gpus"], [one["id"] for one in told["incidents"]]) == ([], ["inc-2"])


def test_the_data_hold_the_terms_of_the_score_and_the_newest_decision(
    ask: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(SICK, "yaml") == 0
    told = yaml.safe_load(capsys.readouterr().out)
    assert told["at"] == "2026-03-01T12:00:00Z"
    (gpu,) = told["gpus"]
    assert {name: gpu[name] for name in ("state", "evidence", "suspicion", "index", "pci")} == {
        "state": "failed", "evidence": 1.0, "suspicion": 0.0, "index": "3", "pci": "0000:5c:00",
    }  # fmt: skip
    assert [signal["rule"] for signal in gpu["signals"]] == ["xid_79", "hot", "xid_95"]
    assert [decision["ruling"] for decision in told["decisions"]] == ["wait"]


def test_a_question_makes_no_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "gpuwarden.yaml"
    config.write_text(yaml.safe_dump({"ledger": {"url": f"sqlite:///{tmp_path / 'none.db'}"}}), encoding="utf-8")
    assert explain("gpu001", config, "table") == 4
    assert "start `gpuwarden run`" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()


def test_a_ledger_without_a_tick_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    Ledger.open(url, now=lambda: AT).close()
    config = tmp_path / "gpuwarden.yaml"
    config.write_text(yaml.safe_dump({"ledger": {"url": url}}), encoding="utf-8")
    assert explain("gpu001", config, "table") == 1
    assert "holds no verdicts yet" in capsys.readouterr().err


def test_verdicts_of_another_version_are_named_as_such(
    ask: Explain, ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger.open(f"sqlite:///{ledger}", now=lambda: AT) as opened:
        opened.append((), state={"verdicts": b'{"verdicts": "all well"}'})
    assert ask("gpu001") == 4
    assert "another version" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------- what was done about it

Add = Callable[..., None]


@pytest.fixture
def add(ledger: Path) -> Add:
    """Writes more into the ledger."""

    def write(*entries: Entry, state: Mapping[str, bytes] | None = None) -> None:
        with Ledger.open(f"sqlite:///{ledger}", now=lambda: AT) as opened:
            opened.append(entries, state=state)

    return write


def minutes_ago(minutes: float) -> datetime:
    return AT - timedelta(minutes=minutes)


def began(minutes: float, action: Action, node: str = "gpu001", number: int = 1) -> Entry:
    at = minutes_ago(minutes)
    return Entry(EntryKind.ATTEMPT, at, encode_body(Written("inc-1", node, action, number)), "inc-1", node)


def came(minutes: float, action: Action, ending: Ending, detail: str, number: int = 1) -> Entry:
    body = Ended("inc-1", "gpu001", action, number, ending, detail)
    return Entry(EntryKind.OUTCOME, minutes_ago(minutes), encode_body(body), "inc-1", "gpu001")


def word(minutes: float, what: Word, **about) -> Entry:
    return entry_of(Saying(minutes_ago(minutes), what, "alice", **about))


def over(name: str, minutes: float, *gpus: str, node: str = "gpu001") -> Entry:
    at = minutes_ago(minutes)
    was = replace(incident(name, node, *gpus), opened=minutes_ago(minutes + 30), closed=at)
    body = encode_body(replace(was, closed_because="quiet for 15 min"))
    return Entry(EntryKind.INCIDENT_CLOSED, at, body, name, node)


def tripped(minutes: float | None) -> dict[str, bytes]:
    state = BreakerState() if minutes is None else BreakerState(minutes_ago(minutes), "3 of 8 nodes were taken out")
    return {BREAKER: msgspec.json.encode(BreakerMemory(state, ()))}


STORY = """\

inc-0 hardware, tier 0, 2026-03-01T10:30:00Z to 2026-03-01T11:00:00Z: The GPU vanished from PCIe
  closed: quiet for 15 min

said by people
  inc-1 approved by alice at 2026-03-01 11:52 UTC (agreed): cordon, drain; overrules blast_radius
  gpu001 on hold until 2026-03-01 20:00:00 UTC, by alice at 2026-03-01 11:59 UTC

tried
  BEGUN (UTC) NODE ACTION FOR ENDED (UTC) HOW DETAIL
  03-01 11:40:00 gpu001 cordon inc-1 03-01 11:40:00 failed not done after 6 tries
  03-01 11:50:00 gpu001 cordon inc-1 03-01 11:51:00 done done, and read back
  03-01 11:51:00 gpu001 drain inc-1 - pending

the circuit breaker is open since 2026-03-01 11:57:00 UTC: 3 of 8 nodes were taken out
"""


@pytest.fixture
def story(add: Add) -> None:
    """What happened to gpu001 before, and what did not happen to it."""
    add(
        over("inc-0", 60, SICK),
        over("inc-00", 25 * 60, SICK),
        over("inc-000", 60, node="gpu002.cluster.local"),
        began(20, Action.CORDON), came(20, Action.CORDON, Ending.FAILED, "not done after 6 tries"),
        began(10, Action.CORDON, number=2), came(9, Action.CORDON, Ending.DONE, "done, and read back", number=2),
        began(9, Action.DRAIN), began(5, Action.CORDON, "gpu002.cluster.local"),
        word(9, Word.REJECT, incidents=("inc-1",)),
        word(8, Word.APPROVE, incidents=("inc-1",), actions=(Action.CORDON, Action.DRAIN), gates=("blast_radius",),
             why="agreed"),
        word(7, Word.HOLD, node="gpu002.cluster.local"), word(6, Word.RESUME, node="gpu002.cluster.local"),
        word(1, Word.HOLD, node="gpu001", until=AT + timedelta(hours=8)),
        state=tripped(3),
    )  # fmt: skip


@pytest.mark.usefixtures("story")
def test_the_story_for_people(ask: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(SICK) == 0
    captured = capsys.readouterr()
    assert squeezed(captured.out) == GOLDEN + STORY
    assert captured.err == ""


@pytest.mark.usefixtures("story")
def test_the_story_as_data(ask: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("gpu001", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in told["closed"]] == ["inc-0"]
    assert [(one["action"], one["ending"]) for one in told["attempts"]] == [
        ("cordon", "failed"), ("cordon", "done"), ("drain", "pending"),
    ]  # fmt: skip
    assert told["attempts"][1] == {
        "at": "2026-03-01T11:50:00Z", "incident": "inc-1", "node": "gpu001", "action": "cordon", "ending": "done",
        "ended": "2026-03-01T11:51:00Z", "detail": "done, and read back",
    }  # fmt: skip
    assert [(one["word"], one["by"]) for one in told["words"]] == [("approve", "alice"), ("hold", "alice")]
    assert told["breaker"]["open_since"] == "2026-03-01T11:57:00Z"


@pytest.mark.usefixtures("story")
def test_a_calm_node_has_its_own_story(ask: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("gpu002", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in told["closed"]] == ["inc-000"]
    assert [one["node"] for one in told["attempts"]] == ["gpu002.cluster.local"]
    assert told["words"] == []


def test_where_nothing_was_done_there_is_nothing_to_tell(ask: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("gpu001", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {name: told[name] for name in ("closed", "attempts", "words", "breaker")} == {
        "closed": [], "attempts": [], "words": [], "breaker": None,
    }  # fmt: skip


def filed(minutes: float, name: str, state: TicketState, detail: str = "") -> Entry:
    ticket = Ticket(name, minutes_ago(9), "gpu001", (SICK,), "hardware", "service", (), (), "go there")
    return ticket_entry(Filed(state, minutes_ago(minutes), ticket, 1, detail))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        pytest.param((), "  ticket: wanted since 2026-03-01 11:52:00 UTC, not answered yet\n", id="nobody answered"),
        pytest.param(
            (filed(7, "inc-1", TicketState.SENT, "answered 201"),),
            "  ticket: sent 2026-03-01 11:53:00 UTC: answered 201\n",
            id="it was taken",
        ),
        pytest.param(
            (filed(7, "inc-1", TicketState.REFUSED, "http://desk/*** answered 404"),),
            "  ticket: refused 2026-03-01 11:53:00 UTC: http://desk/*** answered 404\n",
            id="it was refused",
        ),
    ],
)
def test_how_far_the_ticket_of_an_incident_has_come(
    ask: Explain, add: Add, capsys: pytest.CaptureFixture[str], more: tuple[Entry, ...], says: str
) -> None:
    add(filed(8, "inc-1", TicketState.WANTED), filed(8, "inc-5", TicketState.WANTED), *more)
    assert ask("gpu001") == 0
    out = capsys.readouterr().out
    assert (out.count("ticket:"), says in out) == (1, True)
    assert ask("gpu001", "json") == 0
    (told,) = json.loads(capsys.readouterr().out)["tickets"]
    assert (told["ticket"]["id"], told["ticket"]["next_step"]) == ("inc-1", "go there")


def test_a_ticket_of_an_incident_that_is_over_is_told_with_it(
    ask: Explain, add: Add, capsys: pytest.CaptureFixture[str]
) -> None:
    add(over("inc-0", 60, SICK), filed(61, "inc-0", TicketState.SENT, "answered 200"))
    assert ask("gpu001") == 0
    assert "  closed: quiet for 15 min\n  ticket: sent 2026-03-01 10:59:00 UTC" in capsys.readouterr().out


def test_a_closed_breaker_is_no_news(ask: Explain, add: Add, capsys: pytest.CaptureFixture[str]) -> None:
    add(state=tripped(None))
    assert ask("gpu001") == 0
    assert "breaker" not in capsys.readouterr().out


def test_a_node_of_which_only_an_incident_that_is_over_tells(
    ask: Explain, add: Add, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(
        "inc-9", "gone", "", Action.RELEASE, (Step(Action.RELEASE, "nothing"),), (), (), "its incident has ended"
    )
    told = Decision(minutes_ago(1), plan, "auto", Ruling.ACT, (), (Action.RELEASE,))
    add(
        Entry(EntryKind.INCIDENT_OPENED, minutes_ago(30), encode_body(incident("inc-9", "gone")), "inc-9"),
        over("inc-9", 1, node="gone"),
        Entry(EntryKind.DECISION, minutes_ago(1), encode_body(told), "inc-9", "gone"),
    )
    assert ask("gone") == 0
    out = capsys.readouterr().out
    assert "closed: quiet for 15 min" in out
    assert "decided last: release (act, mode auto): its incident has ended" in out


def test_what_no_gate_holds_back_is_told_where_the_whole_plan_waits(
    ask: Explain, add: Add, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = tuple(Step(action, "nothing") for action in (Action.NO_NEW_WORK, Action.CORDON, Action.DRAIN))
    plan = Plan("inc-1", "gpu001", SICK, Action.DRAIN, steps, (), (), "only a reboot helps")
    gates = (GateResult("pdb_headroom", False, "train/llama needs 3 healthy pods and has 3"),)
    told = Decision(AT, plan, "auto", Ruling.WAIT, gates, (Action.NO_NEW_WORK, Action.CORDON))
    add(Entry(EntryKind.DECISION, AT, encode_body(told), "inc-1", "gpu001"))
    assert ask("gpu001") == 0
    assert "  no gate holds back: no_new_work, cordon\n" in capsys.readouterr().out


def test_only_the_newest_of_many_attempts_are_shown_to_people(
    ask: Explain, add: Add, capsys: pytest.CaptureFixture[str]
) -> None:
    add(*(began(60 - number, Action.CORDON, number=number) for number in range(1, 31)))
    assert ask("gpu001") == 0
    out = capsys.readouterr().out
    assert "tried (and 10 times before; -o json has them)" in out
    assert "11:30:00" in out
    assert out.count(" pending") == 20


def test_what_is_not_understood_is_told_on_stderr_and_never_on_stdout(
    ask: Explain, add: Add, capsys: pytest.CaptureFixture[str]
) -> None:
    structlog.reset_defaults()
    add(Entry(EntryKind.HUMAN, AT, {"word": "sing"}), word(1, Word.HOLD, node="gpu001"))
    assert ask("gpu001", "json") == 0
    captured = capsys.readouterr()
    assert [one["word"] for one in json.loads(captured.out)["words"]] == ["hold"]
    assert "a person's word is not understood" in captured.err

"""What a fault means: number, phrase, registers, the driver's own word, and which of them wins."""

from dataclasses import replace

import pytest

from detectors.classify import classify, phrase_in, xid_rule
from detectors.events import KernelEvent
from detectors.kernel_text import Lexicon, Statement, read_text
from rules.schema import Phrase, RuleBook, XidRule
from rules.vocabulary import CauseClass, EventKind, FaultAction, FaultClass, Severity, Tier


def rule(action: FaultAction, severity: Severity = Severity.UNKNOWN, **more: object) -> XidRule:
    fields: dict[str, object] = {
        "mnemonic": "SOME_FAULT",
        "meaning": "a fault",
        "cause_class": FaultClass.LINK,
        "incident_class": CauseClass.LINK,
        "tier": Tier.TREND,
        "action": action,
        "severity": severity,
        "source": "this test",
    }
    return XidRule.model_validate({**fields, **more})


def book(**sections: object) -> RuleBook:
    return RuleBook.model_validate({"version": 1, "name": "test", "owner": "test", **sections})


PHRASES = (
    Phrase(contains="RST: Yes", action=FaultAction.RESET_GPU, severity=Severity.FATAL),
    Phrase(contains="rst:", cause_class=FaultClass.HARDWARE),
)
BOOK = book(
    xid={
        500: rule(FaultAction.REBOOT_NODE, Severity.FATAL),
        501: rule(FaultAction.RESTART_APP, Severity.NONFATAL, phrases=PHRASES),
        502: rule(FaultAction.INSPECT),
        503: rule(FaultAction.FOLLOW_154, Severity.INFO, mnemonic="GPU_RECOVERY_ACTION_CHANGED"),
        504: rule(FaultAction.RESET_GPU, Severity.NONFATAL),
        505: rule(FaultAction.REBOOT_NODE, mnemonic="ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS"),
    },
    nvlink5={
        name: {
            "xid": 502,
            "unit": "UNIT_A",
            "before_r575": "-" * 32,
            "from_r575": "-" * 32,
            "error_status": status,
            "action": action,
            "severity": severity,
        }
        for name, status, action, severity in (
            ("quiet", 1, FaultAction.NONE, Severity.NONFATAL),
            ("loud", 2, FaultAction.RESET_GPU, Severity.FATAL),
            ("told", 4, FaultAction.FOLLOW_154, Severity.NONFATAL),
            ("grave", 8, FaultAction.NONE, Severity.FATAL),
        )
    },
    sxid={
        600: rule(FaultAction.NONE, Severity.NONFATAL),
        601: rule(FaultAction.REPLACE, Severity.FATAL, cause_class=FaultClass.HARDWARE),
    },
    sxid_default={
        "fatal": rule(FaultAction.REBOOT_NODE, Severity.FATAL),
        "nonfatal": rule(FaultAction.NONE, Severity.NONFATAL),
    },
    ras={
        "broken": {
            "pattern": r"(?P<count>\d+) broken",
            "meaning": "broken",
            "cause_class": FaultClass.HARDWARE,
            "incident_class": CauseClass.MEMORY,
            "tier": Tier.FACT,
            "action": FaultAction.REPLACE,
            "severity": Severity.FATAL,
            "source": "this test",
        }
    },
    recovery={
        "none": {"value": 0, "words": "None", "action": FaultAction.NONE},
        "reset": {"value": 1, "words": "GPU Reset Required", "action": FaultAction.RESET_GPU},
        "reboot": {"value": 2, "words": "Node Reboot Required", "action": FaultAction.REBOOT_NODE},
        "os_reboot": {"value": 2, "words": "OS Reboot", "action": FaultAction.REBOOT_NODE},
    },
)


def event_of(text: str, rules: RuleBook = BOOK) -> KernelEvent:
    statement = read_text(text, Lexicon.of(rules))
    assert isinstance(statement, Statement)
    return statement.event


def judged(text: str, rules: RuleBook = BOOK) -> tuple[Severity, FaultClass, FaultAction]:
    event = classify(event_of(text, rules), rules)
    return event.severity, event.cause_class, event.action


XID = "NVRM: Xid (PCI:0000:01:00): "
MOVED = XID + "503, recovery action changed from 0x1 (GPU Reset Required) to "
SXID = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): "


@pytest.mark.parametrize(
    ("text", "severity", "cause_class", "action"),
    [
        pytest.param(XID + "500, pid=1, name=a", "fatal", "link", "reboot_node", id="the rule of the number"),
        pytest.param(XID + "999, pid=1, name=a", "unknown", "unknown", "inspect", id="a number nobody knows"),
        pytest.param(XID + "501, RST: Yes, D-RST: No", "fatal", "link", "reset_gpu", id="the first phrase that fits"),
        pytest.param(XID + "501, rst: no", "nonfatal", "hardware", "restart_app", id="a phrase that changes one thing"),
        pytest.param(XID + "501, no words", "nonfatal", "link", "restart_app", id="no phrase"),
        pytest.param(XID + "501, pid=1, name=RST: Yes, Ch", "nonfatal", "link", "restart_app", id="a phrase as name"),
        pytest.param(XID + "504, pid=1", "nonfatal", "link", "reset_gpu", id="a table's nonfatal caps nothing"),
        pytest.param(XID + "504, UNIT_A Nonfatal XC0", "nonfatal", "link", "inspect", id="the driver's Nonfatal caps"),
        pytest.param(XID + "504, UNIT_A Fatal XC0", "fatal", "link", "reset_gpu", id="the driver's Fatal"),
        pytest.param(XID + "999, UNIT_A Fatal XC0", "fatal", "unknown", "inspect", id="Fatal, a number nobody knows"),
        pytest.param(XID + "502, UNIT_A XC0 (0x1 0x1)", "nonfatal", "link", "none", id="registers: nothing to do"),
        pytest.param(XID + "502, UNIT_A XC0 (0x1 0x2)", "fatal", "link", "reset_gpu", id="registers: reset"),
        pytest.param(XID + "502, UNIT_A XC0 (0x1 0x4)", "nonfatal", "link", "follow_154", id="registers: wait"),
        pytest.param(XID + "502, UNIT_A Nonfatal XC0 (0x1 0x2)", "nonfatal", "link", "inspect", id="Nonfatal, reset"),
        pytest.param(XID + "502, UNIT_A Nonfatal XC0 (0x1 0x4", "nonfatal", "link", "follow_154", id="Nonfatal, wait"),
        pytest.param(XID + "502, UNIT_A Fatal XC0 (0x1 0x1)", "fatal", "link", "inspect", id="Fatal, nothing to do"),
        pytest.param(XID + "502, UNIT_A Fatal XC0 (0x1 0x8)", "fatal", "link", "none", id="both fatal: the registers"),
        pytest.param(XID + "502, UNIT_A XC0 (0x1 0x80)", "unknown", "link", "inspect", id="registers nobody knows"),
        pytest.param(MOVED + "0x2 (?)", "info", "link", "reboot_node", id="by value"),
        pytest.param(MOVED + "0x0 (None)", "info", "link", "none", id="back to none"),
        pytest.param(MOVED + "GPU Reset Required", "info", "link", "reset_gpu", id="by words"),
        pytest.param(MOVED + "0x63 (Node Reboot Required)", "info", "link", "reboot_node", id="words, unknown value"),
        pytest.param(MOVED + "0x63 (Something)", "info", "link", "inspect", id="neither known"),
        pytest.param(XID + "503 (", "info", "link", "inspect", id="a recommendation cut off"),
        pytest.param(SXID + "600, Non-fatal, Link 01 x", "nonfatal", "link", "none", id="the rule of a switch number"),
        pytest.param(SXID + "600, Fatal, Link 01 x", "fatal", "link", "reboot_node", id="Fatal beats a harmless rule"),
        pytest.param(SXID + "601, Non-fatal, Link 01 x", "nonfatal", "hardware", "inspect", id="Non-fatal caps a rule"),
        pytest.param(SXID + "601, Severity 1 Engine instance 01", "fatal", "hardware", "replace", id="severity 1"),
        pytest.param(SXID + "699, Severity 1 Engine instance 01", "fatal", "link", "reboot_node", id="new, severity 1"),
        pytest.param(SXID + "699, Severity 0 Engine instance 01", "nonfatal", "link", "none", id="new, severity 0"),
        pytest.param(SXID + "699, Fatal, x", "fatal", "link", "reboot_node", id="unknown, Fatal"),
        pytest.param(SXID + "699, Data {0x1, 0x2}", "unknown", "link", "inspect", id="unknown, no word"),
        pytest.param(SXID + "601, Data {0x1, 0x2}", "fatal", "hardware", "replace", id="known, no word"),
        pytest.param("amdgpu 0000:c3:00.0: 3 broken", "fatal", "hardware", "replace", id="an AMD pattern"),
        pytest.param("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus", "unknown", "link", "reboot_node", id="lost"),
    ],
)  # fmt: skip
def test_the_fault_is_judged(text: str, severity: str, cause_class: str, action: str) -> None:
    assert judged(text) == (severity, cause_class, action)


def test_without_any_rule_a_fault_is_unknown_and_worth_a_look() -> None:
    empty = book()
    assert judged(XID + "79, GPU has fallen off the bus.", empty) == ("unknown", "unknown", "inspect")
    assert judged(SXID + "20034, Fatal, Link 01 x", empty) == ("fatal", "unknown", "inspect")
    lost = event_of("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", empty)
    assert (lost.code, classify(lost, empty).action) == (None, FaultAction.INSPECT)
    assert classify(KernelEvent(EventKind.RAS, None, "amdgpu: x"), empty).action is FaultAction.INSPECT


def test_an_event_that_is_no_fault_stays_as_it_is() -> None:
    event = KernelEvent(EventKind.DRIVER_LOAD, None, "NVRM: loading NVIDIA UNIX", driver_version="580.105.08")
    assert classify(event, BOOK) is event
    assert xid_rule(event, BOOK) is None


@pytest.mark.parametrize(
    "text",
    [XID + "504, pid=1", XID + "504, UNIT_A Nonfatal XC0", XID + "502, UNIT_A XC0 (0x1 0x2)", SXID + "699, Fatal, x"],
)
def test_judging_twice_changes_nothing(text: str) -> None:
    once = classify(event_of(text), BOOK)
    assert classify(once, BOOK) == once


def test_an_event_from_another_source_is_judged_by_its_number() -> None:
    """An exporter gives a number and no text."""
    event = KernelEvent(EventKind.XID, 500, "", source="exporter")
    assert classify(event, BOOK).action is FaultAction.REBOOT_NODE
    assert classify(replace(event, kind=EventKind.SXID, code=601), BOOK).action is FaultAction.REPLACE


def test_the_matching_phrase_is_given_to_who_asks() -> None:
    event = event_of(XID + "501, RST: Yes, D-RST: No")
    known = xid_rule(event, BOOK)
    assert known is not None
    assert phrase_in(event, known) == PHRASES[0]

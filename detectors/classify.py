"""What a fault means and asks for: one event and the rule book give the same event with its class, severity and action.

Pure, one event at a time; what an event has to do with earlier ones is `detectors.secondary`. Called by
`gpuwarden xid decode` and by everything that acts on kernel events. No fault number is known here: the packs know.
"""

import re
from dataclasses import dataclass, replace

from detectors.events import KernelEvent
from detectors.kernel_text import said_severity, spoken
from detectors.nvlink5 import decode
from rules.schema import Phrase, RasRule, RuleBook, XidRule
from rules.vocabulary import EventKind, FaultAction, FaultClass, Severity

#: The driver's name for the record that says what it recommends to do about another fault.
RECOVERY_MNEMONIC = "GPU_RECOVERY_ACTION_CHANGED"

_RECOVERY_WORDS = re.compile(r"\bto\s+(?:0x[0-9a-fA-F]+\s*)?\(?\s*([A-Za-z][^()]*?)\s*(?:\)|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Severity, class and action of one event, on the way through the steps that may change them."""

    severity: Severity
    cause_class: FaultClass
    action: FaultAction


_UNKNOWN = Judgement(Severity.UNKNOWN, FaultClass.UNKNOWN, FaultAction.INSPECT)


def classify(event: KernelEvent, rules: RuleBook, driver_version: str | None = None) -> KernelEvent:
    """The event with severity, cause_class and action filled in; an event that is no fault comes back as it is.

    `driver_version` (`580.105.08`) chooses the bit layout of NVLink 5 registers; None tries both.
    """
    judged = judge(event, rules, driver_version)
    if judged is None:
        return event
    return replace(event, severity=judged.severity, cause_class=judged.cause_class, action=judged.action)


def judge(event: KernelEvent, rules: RuleBook, driver_version: str | None = None) -> Judgement | None:
    """What `classify` writes into the event, or None for an event that is no fault."""
    match event.kind:
        case EventKind.XID | EventKind.OFF_BUS:
            return _xid(event, rules, driver_version)
        case EventKind.SXID:
            return _sxid(event, rules)
        case EventKind.RAS:
            rule = ras_rule(event.text, rules)
            return _UNKNOWN if rule is None else Judgement(rule.severity, rule.cause_class, rule.action)
        case _:
            return None


def xid_rule(event: KernelEvent, rules: RuleBook) -> XidRule | None:
    """The pack's row for an XID, an off-bus statement or an SXid; None where no pack knows the number.

    An SXid without a row of its own gets the one for its word, Fatal or Non-fatal; without a word, none.
    """
    if event.kind in (EventKind.XID, EventKind.OFF_BUS):
        return rules.xid.get(event.code) if event.code is not None else None
    if event.kind is not EventKind.SXID or event.code is None:
        return None
    known = rules.sxid.get(event.code)
    if known is not None:
        return known
    match said_severity(event):
        case Severity.FATAL:
            return rules.sxid_default.get("fatal")
        case Severity.NONFATAL:
            return rules.sxid_default.get("nonfatal")
        case _:
            return None


def ras_rule(text: str, rules: RuleBook) -> RasRule | None:
    """The first RAS rule whose pattern is found in an amdgpu record."""
    return next((rule for rule in rules.ras.values() if re.search(rule.pattern, text)), None)


def phrase_in(event: KernelEvent, rule: XidRule) -> Phrase | None:
    """The first of the rule's phrases that the record holds; a process name is not the driver's word."""
    words = spoken(event).lower()
    return next((phrase for phrase in rule.phrases if phrase.contains.lower() in words), None)


def _xid(event: KernelEvent, rules: RuleBook, driver_version: str | None) -> Judgement:
    rule = xid_rule(event, rules)
    word = said_severity(event)
    if rule is None:
        return replace(_UNKNOWN, severity=word)
    judged = _with_phrase(event, rule)
    if is_recovery(event, rule):
        return replace(judged, action=_recommended(event, rules))
    decoded = decode(event, rules.nvlink5.values(), driver_version)
    if decoded is not None:
        # The registers are more exact than the number; a record that calls itself fatal is believed above them.
        doubted = word is Severity.FATAL and decoded.severity is not Severity.FATAL
        action = _strongest(decoded.action, judged.action) if doubted else decoded.action
        judged = replace(judged, severity=decoded.severity, action=action)
    return _with_word(judged, word)


def _sxid(event: KernelEvent, rules: RuleBook) -> Judgement:
    rule = xid_rule(event, rules)
    word = said_severity(event)
    if rule is None:
        classes = {row.cause_class for row in rules.sxid_default.values()}
        shared = classes.pop() if len(classes) == 1 else FaultClass.UNKNOWN
        return Judgement(word, shared, FaultAction.INSPECT)
    judged = _with_phrase(event, rule)
    default = rules.sxid_default.get("fatal")
    if word is Severity.FATAL and judged.severity is not Severity.FATAL and default is not None:
        judged = replace(judged, action=_strongest(judged.action, default.action))
    return _with_word(judged, word)


def _with_phrase(event: KernelEvent, rule: XidRule) -> Judgement:
    phrase = phrase_in(event, rule)
    if phrase is None:
        return Judgement(rule.severity, rule.cause_class, rule.action)
    return Judgement(
        severity=phrase.severity or rule.severity,
        cause_class=phrase.cause_class or rule.cause_class,
        action=phrase.action or rule.action,
    )


def _with_word(judged: Judgement, word: Severity) -> Judgement:
    """The record's own Fatal or Nonfatal wins over any table; Nonfatal asks for a look at most (NVSentinel#1357)."""
    if word is Severity.UNKNOWN:
        return judged
    capped = word is Severity.NONFATAL and judged.action.rank > FaultAction.INSPECT.rank
    return replace(judged, severity=word, action=FaultAction.INSPECT if capped else judged.action)


def is_recovery(event: KernelEvent, rule: XidRule) -> bool:
    """Whether the record tells the driver's recommendation about another fault."""
    return event.recovery_value is not None or RECOVERY_MNEMONIC in rule.mnemonic


def _recommended(event: KernelEvent, rules: RuleBook) -> FaultAction:
    """What a recovery record asks for: by its number, else by its words, else a look."""
    rows = rules.recovery.values()
    by_value = [row.action for row in rows if row.value == event.recovery_value]
    if by_value:
        return _strongest(*by_value)
    words = _RECOVERY_WORDS.search(event.text)
    said = words[1].lower() if words is not None else ""
    return next((row.action for row in rows if row.words.lower() == said), FaultAction.INSPECT)


def _strongest(*actions: FaultAction) -> FaultAction:
    return max(actions, key=lambda action: action.rank)

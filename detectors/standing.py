"""How a fault stands once it is open: what the rule packs say about an event, with the record's own words applied.

`detectors.faults` asks here once an event; no fault number and no limit is known in code.
"""

from dataclasses import dataclass, replace

from detectors.classify import is_recovery, phrase_in, ras_rule, xid_rule
from detectors.events import KernelEvent
from rules.schema import Escalation, RuleBook
from rules.vocabulary import FAULT_KINDS, Boundary, CauseClass, EventKind, FaultAction, Tier

#: A line that does not come from the kernel is shown for this long and never acted on.
_UNTRUSTED_FOR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What a fault is, how strong the evidence is, and what ends it.

    `name` is the rule's (`xid_79`, `ras_reset_begun`). `holds_for_s` None: never ended by time. `explained_by` are the
    codes that make it a consequence when they come within `explained_within_s`. Once open for `overdue_s` it asks for
    `overdue_action`. Plain values only: it is stored with its fault.
    """

    name: str
    meaning: str
    tier: Tier
    cause_class: CauseClass
    cleared_by: frozenset[Boundary]
    holds_for_s: float | None
    open: bool = True
    cancels: tuple[int, ...] = ()
    recovery: bool = False
    explained_by: tuple[int, ...] = ()
    explained_within_s: float = 0.0
    overdue_s: float | None = None
    overdue_action: FaultAction = FaultAction.NONE


def standing_of(event: KernelEvent, rules: RuleBook) -> Standing:
    """What the rule packs say about an event as the parser left it."""
    standing = _ras(event, rules) if event.kind is EventKind.RAS else _numbered(event, rules)
    if event.trusted:
        return standing
    return replace(standing, holds_for_s=min(_UNTRUSTED_FOR_S, standing.holds_for_s or _UNTRUSTED_FOR_S))


def cannot_wait(event: KernelEvent, rules: RuleBook) -> bool:
    """Whether an event is a fact about hardware that the kernel itself told: it needs no second opinion and no poll.

    A program's faults come in storms, and what they ask for has time until the next poll.
    """
    if event.kind not in FAULT_KINDS or not event.trusted:
        return False
    standing = standing_of(event, rules)
    return standing.tier is Tier.FACT and standing.cause_class is not CauseClass.APPLICATION


def escalations(event: KernelEvent, rules: RuleBook) -> tuple[Escalation, ...]:
    """What repeats of an event can turn it into; nothing for what the kernel did not say."""
    rule = xid_rule(event, rules) if event.trusted else None
    return rule.escalate if rule is not None else ()


def _ras(event: KernelEvent, rules: RuleBook) -> Standing:
    rule = ras_rule(event.text, rules)
    name = next((name for name, known in rules.ras.items() if known is rule), None)
    if rule is None or name is None:
        return _stranger(event)
    return Standing(
        f"{event.kind}_{name}",
        rule.meaning,
        rule.tier,
        rule.incident_class,
        rule.cleared_by,
        rule.holds_for,
        rule.open,
        overdue_s=None if rule.overdue is None else rule.overdue.after,
        overdue_action=FaultAction.NONE if rule.overdue is None else rule.overdue.action,
    )


def _numbered(event: KernelEvent, rules: RuleBook) -> Standing:
    rule = xid_rule(event, rules)
    if rule is None:
        return _stranger(event)
    phrase = phrase_in(event, rule)
    tier = rule.tier if phrase is None or phrase.tier is None else phrase.tier
    return Standing(
        f"{event.kind}_{event.code}",
        rule.meaning,
        tier,
        rule.incident_class if phrase is None or phrase.incident_class is None else phrase.incident_class,
        rule.cleared_by,
        rule.holds_for if tier == rule.tier else None,  # words that make it a fact also make it stay
        rule.open if phrase is None or phrase.open is None else phrase.open,
        rule.cancels,
        is_recovery(event, rule),
        rule.secondary_to,
        rule.secondary_window,
    )


def _stranger(event: KernelEvent) -> Standing:
    """A code that no pack knows is looked at and forgotten after an hour; it never takes anything out of service."""
    name = event.kind.value if event.code is None else f"{event.kind}_{event.code}"
    return Standing(name, "A code that no rule pack knows", Tier.TREND, CauseClass.UNKNOWN, frozenset(Boundary), 3600.0)

"""What holds for every rule of the shipped fault packs: at one with itself, and never eager to take a GPU out."""

import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import chain, combinations

from rules.schema import RasRule, RuleBook, XidRule
from rules.vocabulary import Boundary, CauseClass, FaultAction, FaultClass, Severity, Tier

OUT_OF_SERVICE = {FaultAction.RESET_GPU, FaultAction.REBOOT_NODE, FaultAction.REPLACE}


def numbered(book: RuleBook) -> Iterator[tuple[str, XidRule]]:
    """Every rule for a number, with a name to report it by."""
    yield from ((f"xid {code}", rule) for code, rule in book.xid.items())
    yield from ((f"sxid {code}", rule) for code, rule in book.sxid.items())
    yield from ((f"sxid {word}", rule) for word, rule in book.sxid_default.items())


def every_rule(book: RuleBook) -> Iterator[tuple[str, XidRule | RasRule]]:
    yield from numbered(book)
    yield from ((f"ras {name}", rule) for name, rule in book.ras.items())


def in_all_forms(rule: XidRule) -> Iterator[tuple[FaultClass, CauseClass, Tier, FaultAction]]:
    """What a rule can come to: as it is, by each of its phrases, and by each repetition."""
    yield rule.cause_class, rule.incident_class, rule.tier, rule.action
    for phrase in rule.phrases:
        yield (
            phrase.cause_class or rule.cause_class,
            phrase.incident_class or rule.incident_class,
            rule.tier if phrase.tier is None else phrase.tier,
            phrase.action or rule.action,
        )
    for step in rule.escalate:
        yield step.cause_class, step.incident_class, step.tier, step.action


# ------------------------------------------------------------------------------------- what holds for every rule


def test_every_rule_says_in_a_sentence_of_its_own_what_it_means(book: RuleBook) -> None:
    meanings = [(rule.meaning, name) for name, rule in every_rule(book)]
    assert len({meaning.lower() for meaning, _ in meanings}) == len(meanings)
    assert [name for meaning, name in meanings if "\n" in meaning or not 20 <= len(meaning) <= 160] == []


def test_a_meaning_is_more_than_the_name_spelled_out(book: RuleBook) -> None:
    for code, rule in book.xid.items():
        if rule.applies_to:
            name = set(rule.mnemonic.lower().replace("/", " ").replace("_", " ").split())
            words = set(re.findall(r"[a-z0-9]+", rule.meaning.lower()))
            assert len(words - name) >= 5, f"xid {code}: {rule.meaning}"


def test_every_rule_names_its_source(book: RuleBook) -> None:
    assert [name for name, rule in every_rule(book) if len(rule.source) < 10] == []


def test_what_only_informs_opens_no_fault_and_asks_for_nothing(book: RuleBook) -> None:
    notes = {name: rule for name, rule in every_rule(book) if rule.cause_class is FaultClass.INFO}
    assert {"xid 14", "xid 106", "xid 107", "xid 154", "xid 162", "xid 163", "sxid 22013"} <= set(notes)
    assert [name for name, rule in notes.items() if rule.open] == []
    assert {rule.action for rule in notes.values()} <= {FaultAction.NONE, FaultAction.FOLLOW_154}


def test_an_applications_fault_never_takes_hardware_out(book: RuleBook) -> None:
    mine = {
        name: rule
        for name, rule in numbered(book)
        if rule.incident_class is CauseClass.APPLICATION or rule.cause_class is FaultClass.APPLICATION
    }
    assert {"xid 13", "xid 31", "xid 43", "xid 45"} <= set(mine)
    for name, rule in mine.items():
        for _, _, tier, action in in_all_forms(rule):
            assert tier is not Tier.FACT, name
            assert action not in OUT_OF_SERVICE, name


def test_no_trend_asks_for_a_reboot_or_a_new_board(book: RuleBook) -> None:
    strong = {FaultAction.REBOOT_NODE, FaultAction.REPLACE}
    for name, rule in numbered(book):
        for _, _, tier, action in in_all_forms(rule):
            assert tier is Tier.FACT or action not in strong, name
    assert [name for name, rule in book.ras.items() if rule.tier is not Tier.FACT and rule.action in strong] == []


def test_every_fact_asks_for_something(book: RuleBook) -> None:
    asks = OUT_OF_SERVICE | {FaultAction.FOLLOW_154}
    assert [name for name, rule in every_rule(book) if rule.tier is Tier.FACT and rule.action not in asks] == []


def test_no_fact_of_a_log_line_ends_by_time_alone(book: RuleBook) -> None:
    assert [name for name, rule in every_rule(book) if rule.tier is Tier.FACT and rule.holds_for is not None] == []


def test_whatever_opens_can_end(book: RuleBook) -> None:
    assert [n for n, rule in every_rule(book) if rule.open and not rule.cleared_by and rule.holds_for is None] == []


def test_a_board_to_replace_is_released_by_service_only(book: RuleBook) -> None:
    replace = {name: rule.cleared_by for name, rule in every_rule(book) if rule.action is FaultAction.REPLACE}
    assert "xid 64" in replace
    assert set(replace.values()) == {frozenset({Boundary.SERVICE})}


def test_a_fault_that_needs_a_reboot_is_not_ended_by_less(book: RuleBook) -> None:
    for name, rule in every_rule(book):
        if rule.action is FaultAction.REBOOT_NODE:
            assert rule.cleared_by <= {Boundary.REBOOT, Boundary.SERVICE}, name


def test_consequences_and_their_causes_form_no_circle(book: RuleBook) -> None:
    order = list(TopologicalSorter({code: rule.secondary_to for code, rule in book.xid.items()}).static_order())
    assert len(order) == len(book.xid)


def test_every_code_that_a_rule_refers_to_exists(book: RuleBook) -> None:
    causes = set(chain.from_iterable(rule.secondary_to for _, rule in numbered(book)))
    assert causes <= set(book.xid)
    assert set(chain.from_iterable(rule.cancels for rule in book.xid.values())) <= set(book.xid)
    assert set(chain.from_iterable(rule.cancels for rule in book.sxid.values())) <= set(book.sxid)


def test_a_phrase_is_not_hidden_by_an_earlier_one(book: RuleBook) -> None:
    for name, rule in numbered(book):
        for earlier, later in combinations(rule.phrases, 2):
            assert earlier.contains.lower() not in later.contains.lower(), name


def test_codes_of_no_current_part_are_looked_at_and_no_more(book: RuleBook) -> None:
    old = {code: rule for code, rule in book.xid.items() if not rule.applies_to}
    assert len(old) > 50
    for code, rule in old.items():
        assert rule.cause_class is FaultClass.UNKNOWN, code
        assert rule.tier is Tier.TREND, code
        assert rule.action in (FaultAction.INSPECT, FaultAction.NONE), code


def test_severity_and_tier_say_the_same(book: RuleBook) -> None:
    for name, rule in every_rule(book):
        if rule.tier is Tier.FACT and rule.open:
            assert rule.severity is Severity.FATAL, name
        else:
            assert rule.severity is not Severity.FATAL, name

"""Reading rule packs: what a site may override, and how a wrong pack is refused.

The packs here are small ones of the tests' own, so that a change of the shipped knowledge changes nothing here. Matrix:
a site's file that can't be read, isn't YAML, isn't a pack, or has a wrong key or value; and an override of one value,
of a list, by two sites, by a pack that changes nothing.
"""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rules import loader
from rules.loader import Problem, RuleError, load_rules, pack_files
from rules.schema import RuleBook, parse_duration
from rules.vocabulary import Action, Boundary, FaultAction, Tier

HEADER = "version: 1\nname: ours\nowner: gpuwarden\n"
BASE = HEADER + dedent("""\
    xid:
      7: {mnemonic: SEVEN, meaning: It broke, cause_class: hardware, incident_class: memory, tier: 0, action: reset_gpu,
        severity: fatal, cleared_by: [reboot, service], secondary_to: [8], holds_for: 1h30m, source: a test}
      8: {mnemonic: EIGHT, meaning: A bug, cause_class: application, incident_class: application, tier: 1,
        action: restart_app, severity: nonfatal, source: a test}
    """)
SITE = "version: 1\nname: site\nowner: sre\n"

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a site's pack; the shipped packs are just BASE."""
    shipped = tmp_path / "packs"
    shipped.mkdir()
    (shipped / "base.yaml").write_text(BASE, encoding="utf-8")
    monkeypatch.setattr(loader, "PACKS", shipped)

    def to_file(text: str, name: str = "site.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return to_file


def problems(*files: Path) -> list[Problem]:
    with pytest.raises(RuleError) as caught:
        load_rules(files)
    return caught.value.problems


# ------------------------------------------------------------------------------------------------------- wrong packs


@pytest.mark.parametrize(
    ("body", "line", "key", "reason"),
    [
        pytest.param(
            "xid:\n  7:\n    acton: none\n", 6, "xid.7.acton", "no such key", id="a misspelt key of a rule is refused"
        ),
        pytest.param("xids: {}\n", 4, "xids", "no such key", id="a section that doesn't exist is refused"),
        pytest.param(
            "xid:\n  7:\n    holds_for: soon\n", 6, "xid.7.holds_for", "30s, 2m, 1h30m", id="a word is no duration"
        ),
        pytest.param("xid:\n  7:\n    holds_for: -5\n", 6, "xid.7.holds_for", "greater than", id="a negative duration"),
        pytest.param(
            "xid:\n  7:\n    holds_for: true\n", 6, "xid.7.holds_for", "a duration is", id="a boolean is no duration"
        ),
        pytest.param(
            "xid:\n  7:\n    action: explode\n", 6, "xid.7.action", "'none', 'restart_app'", id="an unknown action"
        ),
        pytest.param(
            "thresholds:\n  hot: {summary: s, cause_class: thermal, tier: 1, signal: t, above: .nan, source: s}\n",
            5,
            "thresholds.hot.above",
            "finite number",
            id="a limit that no value passes",
        ),
        pytest.param("xid:\n  7:\n    tier: 3\n", 6, "xid.7.tier", "0, 1 or 2", id="a tier that doesn't exist"),
        pytest.param(
            "xid:\n  7:\n    cleared_by:\n      - hope\n", 7, "xid.7.cleared_by.0", "'reboot'", id="an item of a list"
        ),
        pytest.param("xid:\n  7: 12\n", 5, "xid.7", "dictionary", id="a rule that is no map is refused"),
        pytest.param("xid:\n  9: {tier: 1}\n", 5, "xid.9.mnemonic", "required", id="a new rule has to be complete"),
        pytest.param("xid:\n  seven: {tier: 1}\n", 5, "xid.seven", "integer", id="a code has to be a number"),
        pytest.param(
            "ras:\n  odd:\n    {pattern: '(', meaning: m, cause_class: hardware, incident_class: memory, tier: 1,\n"
            "    action: none, severity: nonfatal, source: s}\n",
            5,
            "ras.odd",
            "not a regular expression",
            id="a pattern that doesn't compile is refused",
        ),
        pytest.param(
            "nvlink5:\n  row:\n    {xid: 7, unit: U, before_r575: '01', from_r575: '01', error_status: 0,\n"
            "    action: none, severity: fatal}\n",
            6,
            "nvlink5.row.before_r575",
            "pattern",
            id="a bit pattern has 32 places",
        ),
        pytest.param(
            "xid:\n  7:\n    escalate:\n      - {count: 1, within: 1h, tier: 1, action: none, incident_class: memory,\n"
            "         cause_class: hardware}\n",
            7,
            "xid.7.escalate.0.count",
            "greater than",
            id="once is no repetition",
        ),
    ],
)
def test_a_wrong_value_is_reported_with_file_line_key_and_reason(
    write: Write, body: str, line: int, key: str, reason: str
) -> None:
    path = write(SITE + body)
    found = problems(path)
    assert [problem.file for problem in found] == [str(path)] * len(found)
    assert any(p.line == line and p.key.startswith(key) and reason in p.reason for p in found), found
    assert f"{path}:{line}: {key}" in str(RuleError(found))


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_brackets_without_end_are_refused_and_crash_nothing(write: Write, depth: int) -> None:
    (found,) = problems(write(SITE + "source: " + "[" * depth + "\n"))
    assert "nesting" in found.reason or "recursion" in found.reason


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        pytest.param(SITE + "xid:\n  7: {tier: 1}\n  7: {tier: 0}\n", 6, "7 is given twice", id="a code given twice"),
        pytest.param(
            SITE + "xid:\n  7:\n    tier: 1\n    action: none\n    tier: 0\n",
            8,
            "'tier' is given",
            id="a key given twice",
        ),
        pytest.param(SITE + "owner: me\n", 4, "'owner' is given twice", id="a header given twice"),
        pytest.param(SITE + "xid:\n  7: {tier: 1\n", 6, "expected ',' or '}'", id="a bracket that isn't closed"),
        pytest.param(SITE + "xid:\n\t7: {}\n", 5, "cannot start any token", id="a tab for indentation"),
        pytest.param(SITE + "xid: !!python/object:os.system {}\n", 4, "constructor", id="a tag that builds objects"),
        pytest.param(SITE + "xid: {[1, 2]: {}}\n", 4, "unhashable", id="a list as a key"),
        pytest.param(SITE + "source: 2025-13-45\n", 0, "month", id="a date that is none"),
        pytest.param("- xid\n- sxid\n", 1, "must be a map", id="a list instead of sections"),
        pytest.param("just words\n", 1, "must be a map", id="text instead of sections"),
        pytest.param(SITE + "---\n" + SITE, 4, "another document", id="two documents in one file"),
    ],
)
def test_what_is_not_a_pack_is_refused_at_its_line(write: Write, text: str, line: int, reason: str) -> None:
    path = write(text)
    (found,) = problems(path)
    assert (found.file, found.line) == (str(path), line)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param("name: site\nowner: sre\n", "version", id="no version"),
        pytest.param("version: 2\nname: site\nowner: sre\n", "version", id="a version from the future"),
        pytest.param("version: 1\nname: site\n", "owner", id="no owner"),
        pytest.param("", "version", id="an empty file"),
        pytest.param("# only a comment\n", "version", id="nothing but a comment"),
    ],
)
def test_a_pack_needs_its_header(write: Write, text: str, key: str) -> None:
    assert key in [problem.key for problem in problems(write(text))]


def test_a_file_that_is_not_there_is_named(write: Write, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.yaml"
    (found,) = problems(write(SITE), missing)
    assert (found.file, found.line, found.key) == (str(missing), 0, "")
    assert str(found).startswith(f"{missing}: cannot be read")


@pytest.mark.usefixtures("write")
def test_a_folder_is_no_pack(tmp_path: Path) -> None:
    (found,) = problems(tmp_path)
    assert "cannot be read" in found.reason


@pytest.mark.usefixtures("write")
def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"version: 1\nname: \xff\xfe\n")
    (found,) = problems(path)
    assert "cannot be read" in found.reason


def test_every_problem_of_every_pack_is_reported_at_once(write: Write) -> None:
    one = write(SITE + "xid:\n  7:\n    tier: 9\n    action: explode\n", "one.yaml")
    two = write(SITE + "sxid:\n  1:\n    tier: 9\n", "two.yaml")
    found = problems(one, two)
    assert [(p.file, p.line) for p in found if p.file == str(one)] == [(str(one), 6), (str(one), 7)]
    assert {p.file for p in found} == {str(one), str(two)}


def test_a_rule_about_a_signal_that_no_pack_has_is_refused(write: Write) -> None:
    path = write(
        SITE + "thresholds:\n  hot: {summary: s, cause_class: thermal, tier: 1, signal: heat, above: 90, source: s}\n"
    )
    (found,) = problems(path)
    assert "thresholds.hot: signal 'heat' is not in any metrics pack" in found.reason


def test_a_shipped_pack_is_checked_like_a_sites(write: Write) -> None:
    write(BASE.replace("tier: 0", "tier: 7"), "packs/base.yaml")
    (found,) = problems()
    assert (found.line, found.key) == (5, "xid.7.tier")


# --------------------------------------------------------------------------------------------------------- overrides


def test_a_site_overrides_one_value_and_leaves_the_rest_alone(write: Write) -> None:
    ours = load_rules()
    book = load_rules([write(SITE + "xid:\n  7: {action: replace}\n")])
    assert book.xid[7].action is FaultAction.REPLACE
    assert book.xid[7].model_copy(update={"action": ours.xid[7].action}) == ours.xid[7]
    assert book.xid[8] == ours.xid[8]


def test_a_list_is_replaced_and_not_extended(write: Write) -> None:
    book = load_rules([write(SITE + "xid:\n  7: {cleared_by: [service], secondary_to: []}\n")])
    assert book.xid[7].cleared_by == {Boundary.SERVICE}
    assert book.xid[7].secondary_to == ()


def test_the_last_pack_wins(write: Write) -> None:
    first = write(SITE + "xid:\n  7: {tier: 1, action: inspect}\n", "first.yaml")
    second = write(SITE + "xid:\n  7: {tier: 2}\n", "second.yaml")
    book = load_rules([first, second])
    assert (book.xid[7].tier, book.xid[7].action) == (Tier.SUSPICION, FaultAction.INSPECT)
    assert load_rules([second, first]).xid[7].tier is Tier.TREND


def test_a_null_ends_a_limit_in_time(write: Write) -> None:
    assert load_rules().xid[7].holds_for == pytest.approx(5400)
    assert load_rules([write(SITE + "xid:\n  7: {holds_for: null}\n")]).xid[7].holds_for is None


def test_a_site_adds_a_rule_of_its_own(write: Write) -> None:
    classes = "cause_class: link, incident_class: link, tier: 1, action: none, severity: unknown"
    book = load_rules([write(SITE + f"xid:\n  900: {{mnemonic: M, meaning: m, source: s, {classes}}}\n")])
    assert sorted(book.xid) == [7, 8, 900]


def test_a_site_changes_one_number_of_the_policy(write: Write) -> None:
    book = load_rules([write(SITE + "policy:\n  limits: {max_unavailable_share: 0.02}\n")])
    assert book.policy.limits.max_unavailable_share == pytest.approx(0.02)
    assert book.policy.limits.min_coverage == RuleBook(version=1, name="n", owner="o").policy.limits.min_coverage


def test_a_sites_ladder_replaces_a_whole_ladder(write: Write) -> None:
    entry = "policy:\n  actions:\n    memory:\n      fact: {ladder: [watch], reason: we wait}\n"
    book = load_rules([write(SITE + entry)])
    (policy,) = [fact["fact"] for fact in book.policy.actions.values()]
    assert policy.ladder == (Action.WATCH,)


def test_a_pack_that_changes_nothing_changes_no_rule(write: Write) -> None:
    ours, book = load_rules(), load_rules([write(SITE)])
    assert book.xid == ours.xid
    assert book.digest == ours.digest


def test_the_digest_tells_rule_books_apart(write: Write) -> None:
    ours = load_rules()
    book = load_rules([write(SITE + "xid:\n  8: {tier: 2}\n")])
    assert len(ours.digest) == 16
    assert book.digest != ours.digest
    assert load_rules().digest == ours.digest


def test_the_book_names_its_files_ours_first(write: Write) -> None:
    path = write(SITE)
    book = load_rules([path])
    assert book.files == tuple(map(str, pack_files([path])))
    assert book.files[-1] == str(path)


@pytest.mark.usefixtures("write")
def test_loaded_rules_never_change() -> None:
    book = load_rules()
    with pytest.raises(ValidationError, match="frozen"):
        book.xid[7].tier = Tier.SUSPICION


def test_packs_in_folders_are_found_in_a_fixed_order(write: Write, tmp_path: Path) -> None:
    (tmp_path / "packs" / "a").mkdir()
    late = write(SITE + "xid: {}\n", "packs/z.yaml")
    early = write(SITE + "xid: {}\n", "packs/a/a.yaml")
    write("not a pack", "packs/readme.txt")
    assert pack_files() == [early, tmp_path / "packs" / "base.yaml", late]


# --------------------------------------------------------------------------------------------------------- durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("30s", 30, id="seconds"),
        pytest.param("1h30m", 5400, id="hours and minutes"),
        pytest.param("250ms", 0.25, id="milliseconds are no minutes"),
        pytest.param("1.5d", 129_600, id="a fraction of a day"),
        pytest.param("2w", 1_209_600, id="weeks"),
        pytest.param(90, 90, id="a bare number is seconds"),
        pytest.param(0, 0, id="nothing is a duration too"),
    ],
)
def test_a_duration_is_read_as_prometheus_reads_it(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "5 minutes", "h", "1h 30m", "-5m", "1y", None, True, [], "5m!"])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="a duration is"):
        parse_duration(text)


UNITS = st.sampled_from(["w", "d", "h", "m", "s", "ms"])


@given(st.lists(st.tuples(st.integers(0, 9999), UNITS), min_size=1, max_size=5))
def test_the_parts_of_a_duration_add_up(parts: list[tuple[int, str]]) -> None:
    whole = "".join(f"{number}{unit}" for number, unit in parts)
    assert parse_duration(whole) == pytest.approx(sum(parse_duration(f"{number}{unit}") for number, unit in parts))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-99, 99) | st.text("ab0 _", max_size=4),
        lambda inner: (
            st.dictionaries(st.text("ab", min_size=1, max_size=2), inner, max_size=3) | st.lists(inner, max_size=2)
        ),
        max_leaves=8,
    )
)
def test_whatever_a_file_holds_it_is_a_book_or_a_rule_error(
    tmp_path_factory: pytest.TempPathFactory, content: object
) -> None:
    path = tmp_path_factory.mktemp("any") / "any.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(RuleError) as caught:
        load_site_alone(path)
    assert all(problem.file == str(path) and problem.reason for problem in caught.value.problems)


def load_site_alone(path: Path) -> RuleBook:
    """A file as the only pack there is; no such file of the property has a header, so none is a pack."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "PACKS", path.parent / "none")
        return load_rules([path])

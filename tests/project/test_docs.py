"""The documents against the code: what a person can type, set, read or be told is written down, and correctly.

Rows of tables that repeat the code (defaults, limits, shipped values) are made here and looked for in the page, so a
change of the code fails with the line that the page should have.
"""

import pkgutil
import re
import types
import typing
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
import typer
from pydantic import BaseModel

from daemon.agent.metrics import AgentMetrics
from daemon.audit.report import build
from daemon.audit.tally import Tally
from daemon.audit.truth import _COLUMNS, Label
from daemon.cli import app
from daemon.commands.output import ExitCode
from daemon.config import Config, load_config
from daemon.ledger import EntryKind, Trouble
from daemon.metrics import Metrics
from daemon.replay import Span
from detectors.findings import GpuState, Incident, Signal
from detectors.verdict import score_of
from remediation.decide import STOPS, Decision, Ruling
from remediation.gates import GateResult
from remediation.plan import Plan, Step
from rules import schema
from rules.loader import load_rules
from rules.schema import Pack, PeerRule, Policy, RuleBook, ThresholdRule, parse_duration
from rules.vocabulary import Action, Boundary, CauseClass, FaultAction, IncidentScope, SignalKind, Tier

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
AT = datetime(2026, 1, 1, tzinfo=UTC)
TEXTS = {path: path.read_text(encoding="utf-8") for path in (*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")))}
EACH_PAGE = pytest.mark.parametrize("document", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())


@pytest.fixture(scope="module")
def book() -> RuleBook:
    return load_rules()


def page(name: str) -> str:
    return TEXTS[DOCS / name]


def part(text: str, heading: str) -> str:
    """What stands under one `## heading`, up to the next."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no part `## {heading}`"
    return found[1]


def quoted(text: str) -> set[str]:
    """Everything that stands between backticks on one line."""
    return set(re.findall(r"`([^`\n]+)`", text))


# --------------------------------------------------------------------------------------- how the tables say values


def span(seconds: float) -> str:
    """Seconds as people write them in YAML: 90s, 2m, 1h, 7d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def is_duration(metadata: list[object]) -> bool:
    return any(getattr(item, "func", None) is parse_duration for item in metadata)


def value(given: object, *, duration: bool = False) -> str:
    """A default or a shipped value as a table says it."""
    if given is None:
        return "none"
    if isinstance(given, bool):
        return f"`{str(given).lower()}`"
    if isinstance(given, int | float):
        return f"`{span(given) if duration else format(given, 'g') if isinstance(given, float) else given}`"
    if isinstance(given, tuple | dict) and not given:
        return "empty"
    if isinstance(given, tuple):
        return " ".join(f"`{item}`" for item in given)
    return f"`{given}`".replace("|", r"\|")


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, default as the table says it) of each leaf; a list of objects gives its own key and theirs."""
    for name, info in model.model_fields.items():
        key, kind = prefix + name, info.annotation
        inner = next((one for one in (kind, *typing.get_args(kind)) if is_model(one)), None)
        if inner is not None and is_model(kind):
            yield from settings(inner, f"{key}.")
            continue
        default = "required" if info.is_required() else value(info.default, duration=is_duration(info.metadata))
        yield key, default
        if inner is not None:
            yield from settings(inner, f"{key}." if isinstance(kind, types.UnionType) else f"{key}[].")


def is_model(kind: object) -> bool:
    return isinstance(kind, type) and not isinstance(kind, types.GenericAlias) and issubclass(kind, BaseModel)


def fires(rule: ThresholdRule) -> str:
    """When a threshold rule begins to fire, in a few words."""
    side, limit = ("<", rule.below) if rule.below is not None else (">", rule.above)
    match rule.measure:
        case "increase" | "growth":
            said = f"grows {side} {limit:g} in {span(rule.window)}"
        case "rate":
            said = f"grows {side} {limit:g} a second over {span(rule.window)}"
        case "bits_share":
            said = f"bit {rule.bits:#x} set {side} {100 * limit:g} % of {span(rule.window)}"
        case "below_model":
            said = f"< the model's {rule.model_fact}"
        case _:
            said = f"{side} {limit:g}"
    if rule.device_limit is not None:
        offset = f" {rule.device_limit.offset:+g}" if rule.device_limit.offset else ""
        said += f", or the device's own {rule.device_limit.signal}{offset}"
    return said + (f", for {span(rule.hold)}" if rule.hold else "")


def threshold_row(name: str, rule: ThresholdRule) -> str:
    off = "" if rule.enabled else " (off)"
    what = f"`{name}`{off} | `{rule.signal}` | {fires(rule)}"
    return f"| {what} | {int(rule.tier)} | {rule.cause_class} | {rule.weight:g} | {rule.action} |"


def peer_row(name: str, rule: PeerRule) -> str:
    off = f"{rule.distance:g} spreads and {rule.min_deviation:g} {rule.direction} the median, for {span(rule.hold)}"
    return f"| `{name}` | `{rule.signal}` | {rule.cohort} | {off} | {rule.cause_class} | {rule.weight:g} |"


# ------------------------------------------------------------------------------------------------ the README's promises


def test_the_readme_gives_the_two_commands_that_need_nothing_prepared():
    first_screen = TEXTS[README].split("\n## ", 1)[0]
    assert {"make demo", "make test"} <= {line.split("#")[0].strip() for line in first_screen.splitlines()}


def test_the_readme_shows_a_picture_and_says_that_it_is_synthetic():
    first_screen = TEXTS[README].split("\n## ", 1)[0]
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", first_screen)
    assert (ROOT / picture).stat().st_size < 250_000
    assert "synthetic" in first_screen.lower()


@EACH_PAGE
def test_each_make_target_that_a_page_names_exists(document: Path):
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = re.findall(r"(?:^\s*|`)make ([a-z]+)", TEXTS[document], re.MULTILINE)
    assert set(named) <= targets


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@EACH_PAGE
def test_each_link_inside_the_repository_leads_somewhere(document: Path):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[document]):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (anchor and anchor not in anchors(TEXTS[path])):
            broken.append(target)
    assert broken == []


def test_each_page_can_be_reached_from_the_readme():
    reached, todo = set(), [README]
    while todo:
        at = todo.pop()
        if at in reached or at.suffix != ".md":
            continue
        reached.add(at)
        links = re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", TEXTS[at])
        todo.extend((at.parent / link).resolve() for link in links)
    assert set(TEXTS) <= reached


def test_each_exporter_field_that_a_page_names_is_in_the_catalog(book: RuleBook):
    known = {alias.metric for spec in book.metrics.values() for alias in spec.aliases}
    known |= {label for labels in Config().labels.model_dump().values() for label in labels}
    named = {word for text in TEXTS.values() for word in re.findall(r"\bDCGM_\w+[A-Z]\b", text)}
    assert named <= known


# --------------------------------------------------------------------------------------------------- commands, settings


def commands(group: click.Group, path: str = "gpuwarden") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands(typing.cast("click.Group", typer.main.get_command(app))))


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_documented_with_all_its_options(name: str):
    section = re.search(
        rf"^### `{name}\b[^\n]*\n(.*?)(?=^##|\Z)", page("configuration.md"), re.MULTILINE | re.DOTALL
    )  # fmt: skip
    assert section, f"docs/configuration.md has no part ### `{name} ...`"
    options = {option for one in COMMANDS[name].params for option in one.opts if option.startswith("-")}
    said = {word for text in quoted(section[1]) for word in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text)}
    assert options - {"--help"} <= said


@pytest.mark.parametrize(("key", "default"), [*settings(Config)])
def test_each_setting_is_documented_with_its_default(key: str, default: str):
    page_text = page("configuration.md")
    row = re.search(rf"^\| `{re.escape(key)}` \| ([^|]+) \| ((?:[^|]|\\\|)+) \| (.+) \|$", page_text, re.MULTILINE)
    assert row, f"docs/configuration.md has no row | `{key}` | TYPE | {default} | MEANING |"
    assert row[2] == default


def test_each_exit_code_is_documented():
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", part(page("audit.md"), "Exit codes"), re.MULTILINE))
    assert set(rows) >= {str(int(code)) for code in ExitCode}


@pytest.mark.parametrize("path", [EXAMPLES / "gpuwarden.yaml"], ids=lambda path: path.name)
def test_the_example_configuration_loads_with_the_rules_that_it_names(path: Path):
    config = load_config(path)
    assert config.rules == (EXAMPLES / "site-rules.yaml",)
    assert load_rules(config.rules).digest != load_rules().digest


def test_the_example_pack_changes_what_its_comments_say():
    changed = load_rules([EXAMPLES / "site-rules.yaml"])
    assert changed.thresholds["gpu_temp_high"].above == 90
    assert not changed.thresholds["nvlink_silent"].enabled
    assert changed.policy.limits.max_unavailable_nodes == 2
    assert "DCGM_FI_DEV_GPU_TEMP" in {alias.metric for alias in changed.metrics["gpu_temp"].aliases}
    assert changed.thresholds["site_fan_stopped"].signal == "fan_speed_percent"


def test_yaml_in_the_pages_loads(tmp_path: Path):
    shown = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
    blocks = [block for text in TEXTS.values() for block in shown.findall(text)]
    packs = [text for text in blocks if text.startswith("version: 1")]
    assert packs, "no page shows a rule pack: has the notation changed?"
    for number, text in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text, encoding="utf-8")
        if text in packs:
            load_rules([path])
        else:
            load_config(path)


# -------------------------------------------------------------------------------------------------------------- metrics


def test_the_metrics_page_and_the_code_name_the_same_metrics_with_the_same_labels():
    metrics = Metrics()
    # prometheus_client tells no labels of an empty family, so they are read where they are declared.
    plain = [
        collector
        for registry in (metrics.registry, AgentMetrics().registry)
        for collector in registry._collector_to_names
        if hasattr(collector, "_labelnames")
    ]
    declared = {
        one._name + ("_total" if one._type == "counter" else ""): (one._type, set(one._labelnames)) for one in plain
    } | {
        "gpuwarden_gpu_score": ("gauge", {"node", "gpu_uuid", "state"}),
        "gpuwarden_gpus": ("gauge", {"state"}),
        "gpuwarden_incidents_open": ("gauge", {"cause_class", "tier"}),
    }
    rows = re.findall(r"^\| `(gpuwarden_\w+)` \| (\w+) \| ([^|]*) \| \S.* \|$", page("metrics.md"), re.MULTILINE)
    documented = {name: (kind, quoted(labels)) for name, kind, labels in rows}
    assert documented == declared
    assert {family.name for family in metrics.fleet.collect()} <= set(documented)


def test_the_metrics_page_names_each_trouble_of_the_ledger():
    assert {trouble.value for trouble in Trouble} <= quoted(page("metrics.md"))


# ---------------------------------------------------------------------------------------------------------------- rules

SECTIONS: dict[str, tuple[type[BaseModel], ...]] = {
    "metrics": (schema.MetricSpec, schema.Alias),
    "models": (schema.ModelSpec,),
    "xid": (schema.XidRule, schema.Phrase, schema.Escalation),
    "sxid": (schema.XidRule,),
    "sxid_default": (schema.XidRule,),
    "nvlink5": (schema.SubCode,),
    "ras": (schema.RasRule, schema.Overdue),
    "recovery": (schema.RecoveryText,),
    "thresholds": (ThresholdRule, schema.Condition, schema.DeviceLimit),
    "peers": (PeerRule,),
    "policy": (Policy, schema.ActionPolicy),
}
#: Sections that share the keys of another one.
SAME_KEYS = {"sxid": "xid", "sxid_default": "xid"}


def test_each_section_of_a_pack_has_its_part():
    headers = {"version", "name", "owner", "source"}
    assert set(Pack.model_fields) - headers == set(SECTIONS)
    assert headers <= quoted(part(page("rules.md"), "A pack"))


@pytest.mark.parametrize("section", SECTIONS)
def test_each_key_of_a_section_is_documented(section: str):
    said = {word.split(".")[0] for word in quoted(part(page("rules.md"), SAME_KEYS.get(section, section)))}
    keys = {info.alias or name for model in SECTIONS[section] for name, info in model.model_fields.items()}
    assert keys <= said
    assert section in quoted(page("rules.md")) | set(re.findall(r"^## (\w+)$", page("rules.md"), re.MULTILINE))


def test_each_threshold_rule_stands_in_the_table_as_it_is_shipped(book: RuleBook):
    text = part(page("rules.md"), "thresholds")
    rows = [threshold_row(name, rule) for name, rule in book.thresholds.items()]
    assert [row for row in rows if row not in text] == []


def test_each_peer_rule_stands_in_the_table_as_it_is_shipped(book: RuleBook):
    text = part(page("rules.md"), "peers")
    assert [row for row in (peer_row(name, rule) for name, rule in book.peers.items()) if row not in text] == []


def policy_rows(book: RuleBook) -> Iterator[str]:
    for key, _ in settings(Policy):
        shipped: object = book.policy
        names = key.split(".")
        if names[0] not in ("verdict", "telemetry", "incidents", "limits"):
            continue
        for name in names[:-1]:
            shipped = getattr(shipped, name)
        info = type(typing.cast("BaseModel", shipped)).model_fields[names[-1]]
        said = value(getattr(shipped, names[-1]), duration=is_duration(info.metadata))
        yield f"| `{key}` | {said} | "


def test_each_figure_of_the_policy_stands_in_the_table_as_it_is_shipped(book: RuleBook):
    text = part(page("rules.md"), "policy")
    assert [row for row in policy_rows(book) if row not in text] == []


@pytest.mark.parametrize("words", [SignalKind, Boundary, FaultAction, CauseClass, Action])
def test_the_rules_page_names_each_word_that_a_pack_may_use(words: type):
    assert {word.value for word in words} <= quoted(page("rules.md"))


# ------------------------------------------------------------------------------------------------- verdicts and reports


def test_each_gate_is_documented_with_what_it_leads_to():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", part(page("verdicts.md"), "Gates and rulings"), re.MULTILINE)
    assert {name: ruling for name, ruling in rows if name in STOPS} == {k: v.ruling.value for k, v in STOPS.items()}


def test_each_gate_is_documented_with_what_it_holds_back_and_who_may_overrule_it():
    row = r"^\| `(\w+)` \| \w+ \| (all|the drain|the release|what policy says) \| (yes|no) \|"
    rows = re.findall(row, part(page("verdicts.md"), "Gates and rulings"), re.MULTILINE)
    words = {None: "all", frozenset(): "what policy says", frozenset({Action.RELEASE}): "the release"}
    expected = [(k, words.get(v.holds, "the drain"), "yes" if v.approvable else "no") for k, v in STOPS.items()]
    assert rows == expected


@pytest.mark.parametrize("words", [GpuState, Ruling], ids=["states", "rulings"])
def test_each_state_and_ruling_is_documented(words: type):
    assert {word.value for word in words} <= quoted(page("verdicts.md"))


def test_the_worked_example_of_a_score_is_right(book: RuleBook):
    text = page("verdicts.md")
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| (\d) \|$", text, re.MULTILINE)
    assert len(rows) >= 3
    shipped = {**book.thresholds, **book.peers}
    assert [(name, shipped[name].weight) for name, _, _ in rows] == [(name, float(weight)) for name, weight, _ in rows]
    score = score_of([signal(name, float(weight), Tier(int(tier))) for name, weight, tier in rows], book.policy.verdict)
    numbers = [float(one) for one in re.findall(r"^(?:evidence|suspicion|score) .*= ([\d.]+)$", text, re.MULTILINE)]
    assert numbers == pytest.approx([score.evidence, score.suspicion, score.total], abs=0.0006)


def signal(rule: str, weight: float, tier: Tier) -> Signal:
    action = FaultAction.INSPECT
    return Signal("threshold", rule, "n", "g", tier, CauseClass.MEMORY, action, weight, None, None, "", AT, AT, "", "")


def test_each_field_of_the_report_is_documented():
    evidence = signal("ecc_dbe", 0.45, Tier.TREND)
    incident = Incident(
        "inc-1", AT, None, IncidentScope.GPU, "n", ("n",), ("g",), CauseClass.MEMORY, Tier.TREND, AT, AT,
        FaultAction.INSPECT, (evidence,), "why",
    )  # fmt: skip
    plan = Plan("inc-1", "n", "g", Action.WATCH, (Step(Action.WATCH, "nothing"),), (), (), "why")
    decision = Decision(AT, plan, "observe", Ruling.ACT, (GateResult("coverage", True, "why"),))
    tally = Tally(incidents={"inc-1": incident}, decisions=[decision])
    labels = [Label("n", "g", CauseClass.MEMORY, AT, AT)]

    report = build(tally, Span(AT, AT + timedelta(days=1), 60.0), labels, {}, "observe")

    fields = {key for row in rows_of(report["summary"], report["incidents"], report["decisions"]) for key in row}
    assert {"recall", "lead_seconds", "cause_class", "verdict", "look", "passed"} <= fields
    assert (fields | set(_COLUMNS)) - {"undo", "memory", "0", "1", "2"} <= quoted(page("audit.md"))


def rows_of(*values: object) -> Iterator[dict[str, object]]:
    """Every map in nested lists and maps."""
    for given in values:
        if isinstance(given, dict):
            yield given
            yield from rows_of(*given.values())
        elif isinstance(given, list):
            yield from rows_of(*given)


ARCHITECTURE = page("architecture.md")


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`((?:daemon|detectors|remediation|rules)\.[\w.]+)`", ARCHITECTURE)))
)
def test_each_name_of_the_code_in_the_architecture_exists(name: str):
    assert pkgutil.resolve_name(name) is not None


def test_each_path_in_the_architecture_exists():
    named = re.findall(r"`((?:daemon|detectors|remediation|rules|tests|docs)/[\w./-]*)`", ARCHITECTURE)
    planned = {"remediation/cluster"}
    assert [name for name in named if not (ROOT / name).exists() and name not in planned] == []


def test_each_kind_of_ledger_entry_is_documented():
    assert {kind.value for kind in EntryKind} <= quoted(ARCHITECTURE)

"""gpuwarden's own metrics: documented, well named, parseable, and gone with the GPU that they were about."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition, parser
from prometheus_client.parser import text_string_to_metric_families

from daemon.agent.metrics import AgentMetrics
from daemon.metrics import OUTCOMES, Metrics
from detectors.findings import GpuState
from tests.daemon.conftest import Daemon
from tests.daemon.conftest import Metric as Read

#: Prometheus' naming: what a quantity is measured in comes last, before _total.
BASE_UNITS = ("_seconds", "_ratio", "_score", "_info", "_bytes")
#: Gauges that count things, or say yes or no.
COUNTS = (
    "gpuwarden_gpus", "gpuwarden_incidents_open", "gpuwarden_ledger_writable", "gpuwarden_ledger_entries_waiting",
    "gpuwarden_leader", "gpuwarden_breaker_open", "gpuwarden_nodes_out",
)  # fmt: skip


def families(metrics: Metrics) -> list[Metric]:
    return list(metrics.registry.collect())


def exported(metrics: Iterable[Metric]) -> set[str]:
    """Names as a person types them: a counter with its _total, a histogram by its family."""
    return {f"{one.name}_total" if one.type == "counter" else one.name for one in metrics}


def test_each_metric_is_documented_and_each_documented_metric_exists(root: Path) -> None:
    page = root / "docs" / "metrics.md"
    if not page.is_file():
        pytest.skip("docs/metrics.md is not written yet")
    documented = set(re.findall(r"^\|\s*`(gpuwarden_\w+)`", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert documented == exported(families(Metrics())) | exported(AgentMetrics().registry.collect())


def test_counters_end_in_total_and_nothing_else_does() -> None:
    names = exported(families(Metrics()))
    assert names
    for family in families(Metrics()):
        assert not family.name.endswith("_total"), f"{family.name} would be exported as _total_total"


def test_levels_are_in_base_units() -> None:
    odd = [
        family.name
        for family in families(Metrics())
        if family.type in ("gauge", "histogram") and not family.name.endswith(BASE_UNITS) and family.name not in COUNTS
    ]
    assert odd == []


def test_every_metric_is_ours_and_says_what_it_is() -> None:
    for family in families(Metrics()):
        assert family.name.startswith("gpuwarden_")
        assert family.documentation.endswith(".")


def test_a_scrape_is_understood_by_prometheus_own_parsers(started: Daemon) -> None:
    started.lose_gpu()
    started.tick()
    registry = started.loop.metrics.registry
    plain = list(text_string_to_metric_families(generate_latest(registry).decode()))
    openmetrics = list(parser.text_string_to_metric_families(exposition.generate_latest(registry).decode()))
    assert exported(plain) - {name for name in exported(plain) if name.endswith("_created")} == exported(openmetrics)
    for found in (plain, openmetrics):
        series = [(sample.name, tuple(sorted(sample.labels.items()))) for family in found for sample in family.samples]
        assert len(series) == len(set(series)), "no series twice"


def test_a_rate_over_the_ticks_never_lacks_its_first_step() -> None:
    metrics = Metrics()
    for outcome in OUTCOMES:
        assert metrics.registry.get_sample_value("gpuwarden_ticks_total", {"outcome": outcome}) == 0


def test_a_gpu_that_leaves_takes_its_series_along(started: Daemon) -> None:
    metrics = started.loop.metrics
    gone = started.gpu(0, 0).uuid
    assert f'gpu_uuid="{gone}"' in generate_latest(metrics.registry).decode()
    metrics.fleet.verdicts = tuple(v for v in metrics.fleet.verdicts if v.gpu != gone)
    text = generate_latest(metrics.registry).decode()
    assert gone not in text
    assert text.count("gpuwarden_gpu_score{") == 23


def test_a_gpu_that_changes_its_state_has_one_series(started: Daemon) -> None:
    lost = started.lose_gpu()
    started.tick()
    text = generate_latest(started.loop.metrics.registry).decode()
    series = [line for line in text.splitlines() if line.startswith("gpuwarden_gpu_score{") and lost in line]
    assert len(series) == 1
    assert 'state="failed"' in series[0]


def test_the_daemon_tells_what_it_took_in_and_found(started: Daemon, metric: Read) -> None:
    started.lose_gpu()
    started.tick(2)
    assert metric("gpuwarden_samples_total") > 1000
    assert metric("gpuwarden_ticks_total", outcome="ok") == 5
    assert metric("gpuwarden_gpus", state="healthy") == 23
    assert metric("gpuwarden_gpus", state="failed") == 1
    assert metric("gpuwarden_coverage_ratio") > 0.9
    assert metric("gpuwarden_incidents_open", cause_class="hardware", tier="0") == 1
    assert metric("gpuwarden_incidents_opened_total", cause_class="hardware", tier="0") == 1
    assert metric("gpuwarden_kernel_events_total", kind="xid") == 1
    assert metric("gpuwarden_ledger_writable") == 1
    assert metric("gpuwarden_snapshot_timestamp_seconds") == started.clock()
    assert metric("gpuwarden_tick_seconds_count", part="poll") == 5


def test_a_total_that_is_kept_elsewhere_never_goes_down() -> None:
    metrics = Metrics()
    for total in (5, 3, 7):
        metrics.advance(metrics.poll_errors, "kind", [("timeout", total)])
        metrics.advance(metrics.samples, "", [("samples", total)])
    read = metrics.registry.get_sample_value
    assert (read("gpuwarden_poll_errors_total", {"kind": "timeout"}), read("gpuwarden_samples_total")) == (7, 7)


def test_all_states_are_counted_also_those_that_no_gpu_has() -> None:
    metrics = Metrics()
    for state in GpuState:
        assert metrics.registry.get_sample_value("gpuwarden_gpus", {"state": state.value}) == 0

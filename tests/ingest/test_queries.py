"""Which selectors are asked for, in which words, and under which keys."""

import pytest

from daemon.config import PrometheusConfig, Selector
from daemon.ingest.queries import build, with_matchers
from rules.schema import RuleBook


@pytest.mark.parametrize(
    ("selector", "matchers", "expected"),
    [
        pytest.param("up", (), "up", id="nothing to add"),
        pytest.param("up", ('a="b"',), 'up{a="b"}', id="a bare name"),
        pytest.param('{x="y"}', ('a="b"', 'c=~"d"'), '{x="y",a="b",c=~"d"}', id="two"),
        pytest.param("up{}", ('a="b"',), 'up{a="b"}', id="empty braces"),
        pytest.param('up{x="}"}', ('a="b"',), 'up{x="}",a="b"}', id="a brace in a value"),
        pytest.param('up{x="y", }', ('a="b"',), 'up{x="y",a="b"}', id="a comma at the end"),
    ],
)
def test_matchers_are_added_to_any_selector(selector: str, matchers: tuple[str, ...], expected: str) -> None:
    assert with_matchers(selector, matchers) == expected


def test_every_signal_is_in_one_query_of_its_cadence_and_queries_keep_their_keys(rules: RuleBook) -> None:
    config = PrometheusConfig(selectors=(Selector(match="a"), Selector(match="b", cadence="fast")))
    everything = build(rules.metrics, config, None)
    names = [name for query in everything if '"' in query.selector for name in query.selector.split('"')[1].split("|")]
    assert len(names) == len(set(names))
    assert {alias.metric for spec in rules.metrics.values() for alias in spec.aliases} <= set(names)
    some = build(rules.metrics, config, frozenset(names[::3]))
    assert {query.key for query in some} <= {query.key for query in everything}
    assert len({query.key for query in everything}) == len(everything)


def test_every_spelling_of_a_name_that_is_there_is_asked_for(rules: RuleBook) -> None:
    present = frozenset({"DCGM_FI_DEV_GPU_TEMP", "dcgm_fi_dev_gpu_temp"})
    (query,) = build(rules.metrics, PrometheusConfig(), present)
    assert query.selector == '{__name__=~"DCGM_FI_DEV_GPU_TEMP|dcgm_fi_dev_gpu_temp"}'


def test_a_name_with_a_dot_is_written_as_promql_wants_it(rules: RuleBook) -> None:
    spec = rules.metrics["gpu_temp"]
    dotted = spec.model_copy(update={"aliases": (spec.aliases[0].model_copy(update={"metric": "gpu.temp"}),)})
    (query,) = build({"gpu_temp": dotted}, PrometheusConfig(), None)
    assert query.selector == '{__name__=~"gpu\\\\.temp"}'

"""Which selectors are asked for, how often, and how they are cut into queries of a sane size."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from daemon.config import PrometheusConfig
from rules.schema import MetricSpec, ThresholdRule

Cadence = Literal["fast", "slow"]

#: Signals a query, each mostly under one name: at 16,384 GPUs some 130,000 series, about 50 MB of JSON.
_SIGNALS_PER_QUERY = 8

#: Series that only say who is who.
IDENTITY = '{__name__=~"node_uname_info|kube_pod_info"}'
TARGETS = "up"


@dataclass(frozen=True, slots=True)
class Query:
    """One selector and how often it is asked for.

    `label` is short, for logs and metrics. `key` stays the same when metrics appear or vanish and the selector
    changes with them, so what is known about the query's series outlives that.
    """

    label: str
    selector: str
    cadence: Cadence
    key: str

    def over(self, window_s: float) -> str:
        """The PromQL that returns the raw samples of the last `window_s` seconds, with their own times."""
        return f"{self.selector}[{max(1, round(window_s))}s]"


def build(
    metrics: Mapping[str, MetricSpec], config: PrometheusConfig, present: frozenset[str] | None
) -> tuple[Query, ...]:
    """Queries for the catalog's signals that Prometheus has, then the raw ones.

    `present` are the metric names that exist, None where nobody knows: then all are asked for.
    """
    spellings: defaultdict[str, set[str]] = defaultdict(set)
    for name in present or ():
        spellings[name].add(name)
        spellings[name.upper()].add(name)
    queries = []
    taken: set[str] = set()
    for cadence, fast in (("fast", True), ("slow", False)):
        signals = [(signal, spec) for signal, spec in metrics.items() if spec.fast is fast]
        for begin in range(0, len(signals), _SIGNALS_PER_QUERY):
            part = signals[begin : begin + _SIGNALS_PER_QUERY]
            aliases = [alias.metric for _, spec in part for alias in spec.aliases]
            names = set(aliases) if present is None else {name for alias in aliases for name in spellings[alias]}
            names -= taken
            taken |= names
            if names:
                selector = with_matchers(f'{{__name__=~"{_pattern(names)}"}}', config.matchers)
                label = f"{cadence} {part[0][0]}…"
                queries.append(Query(label, selector, "fast" if fast else "slow", label))
    raw = [(with_matchers(one.match, config.matchers), one.cadence) for one in config.selectors]
    return (*queries, *(Query(f"raw {selector[:40]}", selector, cadence, selector) for selector, cadence in raw))


def _pattern(names: Iterable[str]) -> str:
    """A regular expression for these names, as PromQL writes it between double quotes."""
    return "|".join(re.escape(name) for name in sorted(names)).replace("\\", "\\\\")


def with_matchers(selector: str, matchers: Iterable[str]) -> str:
    """A selector with the site's label matchers added."""
    extra = ",".join(matchers)
    if not extra:
        return selector
    if "{" not in selector:
        return f"{selector}{{{extra}}}"
    head, _, tail = selector.rpartition("}")
    head = head.rstrip().rstrip(",")
    return f"{head}{',' if not head.endswith('{') else ''}{extra}}}{tail}"


def expressions(rules: Mapping[str, ThresholdRule]) -> dict[str, str]:
    """The raw PromQL rules by name."""
    return {name: rule.expr for name, rule in sorted(rules.items()) if rule.expr is not None and rule.enabled}

"""The pictures that go with an incident: the signal before and while it happened, with its limit and its peers."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np
import pandas as pd

from daemon.history import History, escape
from daemon.ingest.decode import PrometheusError
from daemon.report.model import Evidence, LogLine, Plot, Series, SeriesKind
from detectors.findings import Incident, Signal
from detectors.identity import GpuRef
from rules.schema import MetricSpec, RuleBook, ThresholdRule
from rules.vocabulary import SignalKind, SignalScope

_BEFORE = timedelta(hours=1)
_AFTER = timedelta(minutes=30)
_LONGEST = timedelta(hours=12)
_MOST_POINTS = 360
_MOST_PLOTS = 4
#: What to look at beside a fault that only the log tells about.
_CONTEXT = ("power_watts", "gpu_temp", "gpu_util_percent")
_LEAST_PEERS = 2
_OVER_A_WINDOW = frozenset({"increase", "growth", "rate"})
_OF_BITS = frozenset({"bits", "bits_share"})

#: A series' labels with its values on a grid of times.
Found = tuple[Mapping[str, str], "pd.Series[float]"]


class EvidenceFinder:
    """Asks history for the signals of an incident."""

    def __init__(
        self, history: History, rules: RuleBook, gpus: Sequence[GpuRef], uuid_labels: tuple[str, ...], end: datetime
    ) -> None:
        self._history = history
        self._rules = rules
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._uuid_labels = uuid_labels
        self._end = end
        self.failures: list[str] = []

    def of(self, incident: Incident) -> Evidence:
        """Plots and log lines of an incident. Plots that cannot be had are left out and counted in `failures`."""
        begin = incident.first_signal_at - _BEFORE
        until = min(self._end, (incident.closed or self._end) + _AFTER, incident.opened + _LONGEST)
        step = max(15.0, round((until - begin).total_seconds() / _MOST_POINTS))
        plots: list[Plot] = []
        for signal, name in self._wanted(incident):
            try:
                plot = self._plot(incident, signal, name, begin, until, step)
            except PrometheusError as error:
                if error.detail not in self.failures:
                    self.failures.append(error.detail)
                continue
            if plot is not None:
                plots.append(plot)
        return Evidence(incident.id, tuple(plots), _log_lines(incident))

    def _wanted(self, incident: Incident) -> list[tuple[Signal, str]]:
        """(signal that asks for it, canonical signal to plot), the most telling first, each only once."""
        wanted: dict[tuple[str, str], tuple[Signal, str]] = {}
        for signal in incident.signals:
            rule = self._rules.thresholds.get(signal.rule) or self._rules.peers.get(signal.rule)
            names = [rule.signal] if rule is not None and rule.signal is not None else []
            if not names and signal.gpu and signal.secondary_to is None:
                names = list(_CONTEXT)
            for name in names:
                wanted.setdefault((signal.gpu or signal.node, name), (signal, name))
        return list(wanted.values())[:_MOST_PLOTS]

    def _plot(
        self, incident: Incident, signal: Signal, name: str, begin: datetime, until: datetime, step: float
    ) -> Plot | None:
        spec = self._rules.metrics.get(name)
        if spec is None:
            return None
        found = self._fetch(spec, signal, begin, until, step)
        if not found:
            return None
        rule = self._rules.thresholds.get(signal.rule)
        rule = rule if rule is not None and rule.signal == name else None
        mine: list[pd.Series[float]] = []
        peers: list[pd.Series[float]] = []
        for labels, values in found:
            is_mine = not signal.gpu or any(labels.get(label) == signal.gpu for label in self._uuid_labels)
            (mine if is_mine else peers).append(_shown(values * _scale(spec, labels), spec, rule, step))
        if not mine:
            return None
        own = mine[0] if spec.scope is SignalScope.GPU else pd.concat(mine, axis=1).sum(axis=1, min_count=1)
        times = np.arange(len(own), dtype=np.float64) * step + begin.timestamp()
        series = [Series(self._title(signal), times, np.asarray(own, np.float64), SeriesKind.GPU)]
        if len(peers) >= _LEAST_PEERS:
            median = np.asarray(pd.concat(peers, axis=1).median(axis=1), np.float64)
            series.insert(0, Series("median of its neighbours", times, median, SeriesKind.PEERS))
        title, limit = spec.summary, signal.limit if rule is not None else None
        if rule is not None and rule.measure in _OVER_A_WINDOW:
            title = f"{title}: {rule.measure} over {rule.window / 60:.0f} min"
        elif rule is not None and rule.measure in _OF_BITS:
            limit = None  # it is a share of time, and the plot shows the bits themselves
        return Plot(
            title, spec.unit, tuple(series), limit, f"limit of {signal.rule}", incident.first_signal_at, incident.opened
        )

    def _fetch(self, spec: MetricSpec, signal: Signal, begin: datetime, until: datetime, step: float) -> list[Found]:
        """The GPU's series with its neighbours' (same scrape target), or the node's."""
        names = "|".join(re.escape(alias.metric) for alias in spec.aliases)
        if spec.scope is SignalScope.NODE:
            for label in ("node", "nodename", "instance"):
                pattern = f'{label}=~"{escape(re.escape(signal.node))}(:[0-9]+)?"'
                found = self._history.series(f'{{__name__=~"{names}",{pattern}}}', begin, until, step)
                if found:
                    return found
            return []
        for label in self._uuid_labels:
            own = self._history.series(f'{{__name__=~"{names}",{label}="{escape(signal.gpu)}"}}', begin, until, step)
            if own:
                instance = own[0][0].get("instance")
                metric = own[0][0].get("__name__", names)
                if instance is None:
                    return _one_each(own)
                return _one_each(
                    self._history.series(f'{metric}{{instance="{escape(instance)}"}}', begin, until, step), label
                )
        return []

    def _title(self, signal: Signal) -> str:
        gpu = self._gpus.get(signal.gpu)
        return signal.node if gpu is None else f"{signal.node} GPU {gpu.index}"


def _one_each(found: list[Found], label: str = "UUID") -> list[Found]:
    """One series a GPU: workload labels and replicas split a GPU's history, which is one."""
    joined: dict[str, tuple[Mapping[str, str], pd.Series[float]]] = {}
    for labels, values in found:
        key = labels.get(label, "")
        known = joined.get(key)
        joined[key] = (labels, values) if known is None else (known[0], known[1].combine_first(values))
    return list(joined.values())


def _scale(spec: MetricSpec, labels: Mapping[str, str]) -> float:
    metric = labels.get("__name__", "")
    return next((alias.scale for alias in spec.aliases if alias.metric == metric), 1.0)


def _shown(values: "pd.Series[float]", spec: MetricSpec, rule: ThresholdRule | None, step: float) -> "pd.Series[float]":
    """What a person compares with the limit: growth over the rule's window, whether the bits are set, or the value."""
    if rule is not None and rule.measure in _OVER_A_WINDOW:
        return _grown(values, rule.window, step) / (rule.window if rule.measure == "rate" else 1.0)
    if rule is not None and rule.bits and spec.kind is SignalKind.STATE:
        bits = rule.bits
        return values.map(lambda value: np.nan if np.isnan(value) else float(bool(int(value) & bits)))
    return values


def _grown(values: "pd.Series[float]", window_s: float, step: float) -> "pd.Series[float]":
    """What a counter grew over the window before each point, with resets seen through."""
    change = values.ffill().diff()
    change = change.where(change >= 0, values)
    summed = change.rolling(max(1, round(window_s / step)), min_periods=1).sum()
    return summed.where(values.notna())


def _log_lines(incident: Incident) -> tuple[LogLine, ...]:
    return tuple(
        LogLine(signal.since, signal.look, signal.code, signal.trusted, signal.count)
        for signal in sorted(incident.signals, key=lambda s: s.since)
        if signal.detector == "kernel_log"
    )

"""gpuwarden's own metrics: what it saw, how it fared, and every GPU's score. Documented in docs/metrics.md.

One registry of our own. Series about GPUs come from a collector, so that a GPU that leaves takes its series along.
Written by the loop's thread and read by the web's: values are replaced as a whole, never changed in place.
"""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from detectors.findings import GpuState, Incident, Verdict

#: How a tick can end. All are exported from the start, so that a rate over them never lacks its first step.
OUTCOMES = ("ok", "partial", "blind", "crashed")
#: How a try to post a ticket can end.
TRIES = ("sent", "refused", "retried")


class FleetCollector(Collector):
    """The newest verdicts and incidents as gauges; replaced as a whole at each tick."""

    def __init__(self) -> None:
        self.verdicts: tuple[Verdict, ...] = ()
        self.incidents: tuple[Incident, ...] = ()

    def collect(self) -> Iterator[Metric]:
        """What Prometheus scrapes."""
        verdicts, incidents = self.verdicts, self.incidents
        score = GaugeMetricFamily(
            "gpuwarden_gpu_score", "Health score of a GPU: 0 healthy to 1 failed.", labels=("node", "gpu_uuid", "state")
        )
        for verdict in verdicts:
            score.add_metric((verdict.node, verdict.gpu, verdict.state.value), verdict.score)
        yield score
        counted = GaugeMetricFamily("gpuwarden_gpus", "GPUs by state.", labels=("state",))
        states = Tally(verdict.state for verdict in verdicts)
        for state in GpuState:
            counted.add_metric((state.value,), states[state])
        yield counted
        open_now = GaugeMetricFamily(
            "gpuwarden_incidents_open", "Open incidents by cause class and tier.", labels=("cause_class", "tier")
        )
        amount = Tally((incident.cause_class.value, str(int(incident.tier))) for incident in incidents)
        for labels, count in sorted(amount.items()):
            open_now.add_metric(labels, count)
        yield open_now


class Metrics:
    """All metrics of one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.fleet = FleetCollector()
        registry.register(self.fleet)
        self.ticks = Counter(
            "gpuwarden_ticks_total", f"Ticks of the loop by outcome: {', '.join(OUTCOMES)}.", ("outcome",),
            registry=registry,
        )  # fmt: skip
        for outcome in OUTCOMES:
            self.ticks.labels(outcome)
        self.tick_seconds = Histogram(
            "gpuwarden_tick_seconds", "Time a tick took, by part: poll, detect, record.", ("part",), registry=registry,
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )  # fmt: skip
        self.poll_errors = Counter(
            "gpuwarden_poll_errors_total", "Queries to Prometheus that failed, by kind.", ("kind",), registry=registry
        )
        self.samples_dropped = Counter(
            "gpuwarden_samples_dropped_total", "Samples and series that were not used, by reason.", ("reason",),
            registry=registry,
        )  # fmt: skip
        self.samples = Counter("gpuwarden_samples_total", "Samples taken in.", registry=registry)
        self.kernel_events = Counter(
            "gpuwarden_kernel_events_total", "Kernel-log events by kind, and records that were dropped.", ("kind",),
            registry=registry,
        )  # fmt: skip
        self.coverage = Gauge(
            "gpuwarden_coverage_ratio", "Share of expected fast signals that are fresh.", registry=registry
        )
        self.snapshot_at = Gauge(
            "gpuwarden_snapshot_timestamp_seconds", "Unix time of the newest complete snapshot.", registry=registry
        )
        self.incidents_opened = Counter(
            "gpuwarden_incidents_opened_total", "Incidents opened, by cause class and tier.", ("cause_class", "tier"),
            registry=registry,
        )  # fmt: skip
        self.decisions = Counter(
            "gpuwarden_decisions_total", "Decisions recorded, by action, verdict and mode.",
            ("action", "verdict", "mode"), registry=registry,
        )  # fmt: skip
        self.gates_failed = Counter(
            "gpuwarden_gates_failed_total", "Gates that did not pass in a recorded decision.", ("gate",),
            registry=registry,
        )  # fmt: skip
        self.ledger_writable = Gauge(
            "gpuwarden_ledger_writable", "1 while the ledger takes entries.", registry=registry
        )
        self.ledger_errors = Counter(
            "gpuwarden_ledger_errors_total", "Failed writes to the ledger, by trouble.", ("trouble",), registry=registry
        )
        self.ledger_waiting = Gauge(
            "gpuwarden_ledger_entries_waiting", "Entries held until the ledger takes them.", registry=registry
        )
        self.evictions = Counter(
            "gpuwarden_evictions_total", "Evictions by what came of them.", ("result",), registry=registry
        )
        self.outcomes = Counter(
            "gpuwarden_outcomes_total", "Changes of nodes, by action and how they ended.", ("action", "ending"),
            registry=registry,
        )  # fmt: skip
        self.leader = Gauge("gpuwarden_leader", "1 while this process holds the lease and may act.", registry=registry)
        self.restarts = Counter(
            "gpuwarden_job_restarts_total", "Restarts of whole jobs, by how they ended.", ("ending",), registry=registry
        )
        self.recovery = Histogram(
            "gpuwarden_job_recovery_seconds",
            "From the first signal of a fault to the resume level that its job reached, for restarts that ended well.",
            ("cause_class", "level"), registry=registry,
            buckets=(60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, float("inf")),
        )  # fmt: skip
        self.tickets = Counter(
            "gpuwarden_tickets_total", f"Tries to post a ticket, by result: {', '.join(TRIES)}.", ("result",),
            registry=registry,
        )  # fmt: skip
        for result in TRIES:
            self.tickets.labels(result)
        self.intake_requests = Counter(
            "gpuwarden_intake_requests_total", "Requests of agents, by how they ended.", ("result",), registry=registry
        )
        self.intake_reports = Counter(
            "gpuwarden_intake_reports_total", "Reports of agents, by what came of them.", ("result",), registry=registry
        )
        self.intake_seconds = Histogram(
            "gpuwarden_intake_seconds", "Time from a request's headers to its reports in the ledger.",
            registry=registry, buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )  # fmt: skip
        self.inbox_lag = Gauge(
            "gpuwarden_inbox_lag_seconds",
            "How long the oldest report of an agent that no tick has taken has been in the ledger; 0 for none.",
            registry=registry,
        )
        self.loki_requests = Counter(
            "gpuwarden_loki_requests_total", "Requests to Loki, by what came of them.", ("result",), registry=registry
        )
        self.loki_lag = Gauge(
            "gpuwarden_loki_lag_seconds", "How long ago the newest lines were written up to which Loki was read.",
            registry=registry,
        )  # fmt: skip
        self.breaker_open = Gauge(
            "gpuwarden_breaker_open", "1 while the circuit breaker holds everything back.", registry=registry
        )
        self.cluster_age = Gauge(
            "gpuwarden_cluster_age_seconds", "Seconds since the API server's last sign of life.", registry=registry
        )
        self.nodes_out = Gauge(
            "gpuwarden_nodes_out", "Nodes with GPUs that take no new work, whoever took them out.", registry=registry
        )
        self.info = Gauge(
            "gpuwarden_build_info", "Always 1; version and rule digest as labels.", ("version", "rules"),
            registry=registry,
        )  # fmt: skip
        self._told: Tally[tuple[int, str]] = Tally()

    def advance(self, counter: Counter, label: str, totals: Iterable[tuple[str, int]]) -> None:
        """Raise a counter to totals that are kept elsewhere, by the values of its label ("" for one without any)."""
        for name, total in totals:
            more = total - self._told[id(counter), name]
            if more > 0:
                (counter.labels(**{label: name}) if label else counter).inc(more)
                self._told[id(counter), name] = total

"""The agent's own metrics, on /metrics of its node; docs/metrics.md says what each is."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class AgentMetrics:
    """All of them, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.events = Counter(
            "gpuwarden_agent_events", "Events that the kernel's log gave.", ["kind", "trusted"], registry=registry
        )
        self.reports = Counter(
            "gpuwarden_agent_reports", "Reports by what became of them.", ["result"], registry=registry
        )
        self.requests = Counter(
            "gpuwarden_agent_requests", "Requests to the controller by their result.", ["result"], registry=registry
        )
        self.spool_bytes = Gauge(
            "gpuwarden_agent_spool_bytes", "Bytes of the disk that the spool takes.", registry=registry
        )
        self.spool_reports = Gauge(
            "gpuwarden_agent_spool_reports", "Reports that wait in the spool.", registry=registry
        )
        self.oldest = Gauge(
            "gpuwarden_agent_spool_oldest_timestamp_seconds",
            "When the oldest report that waits was written by the kernel; 0 for none.",
            registry=registry,
        )
        self.log_readable = Gauge(
            "gpuwarden_agent_log_readable", "1 while the kernel's log can be read.", registry=registry
        )
        self.info = Gauge(
            "gpuwarden_agent_info", "1, with what the node says of itself.", ["version", "boot_id", "driver"],
            registry=registry,
        )  # fmt: skip
        self.log = Counter(
            "gpuwarden_agent_log", "Lines of the log, and what could not be used of it, by what happened.", ["what"],
            registry=registry,
        )  # fmt: skip
        self.fabric_ok = Gauge(
            "gpuwarden_agent_fabric_manager_ok",
            "1 where Fabric Manager's last word is no error, 0 where it is one, NaN where it has no log.",
            registry=registry,
        )
        self.gpus = Gauge(
            "gpuwarden_agent_gpus", "GPUs of the node: on the PCI bus, and known to the driver.", ["seen_by"],
            registry=registry,
        )  # fmt: skip
        self.stack_answers = Gauge(
            "gpuwarden_agent_gpu_stack_answers",
            "1 where the driver's own tool answered within its deadline, 0 where it did not, NaN where there is none.",
            registry=registry,
        )

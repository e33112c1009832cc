"""`gpuwarden.yaml`: one file, checked at start; every value has a safe default.

`gpuwarden run --check` prints the effective configuration. A wrong file is refused with file, line, key and reason.
"""

import ipaddress
import re
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator

from daemon.agent.config import AgentConfig
from daemon.loki.config import LokiConfig
from daemon.web_address import http_address
from remediation.modes import HANDS, Mode, Modes
from rules.loader import Problem, RuleError, problems_of, read_yaml
from rules.schema import Seconds, Strict
from rules.vocabulary import OPERATIONS, Action

_SERVICE_ACCOUNT = re.compile(r"(?:[a-z0-9][-a-z0-9]*/)?[a-z0-9][-.a-z0-9]*")
_MATCHER = re.compile(r'[a-zA-Z_][a-zA-Z0-9_]*\s*(=|!=|=~|!~)\s*"([^"\\]|\\.)*"')


class LabelMap(Strict):
    """Which labels say who a series is about, in order of preference. Exporters and relabelling differ by site."""

    gpu_uuid: tuple[str, ...] = ("UUID", "uuid", "gpu_uuid", "GPU_UUID", "serial_number")
    gpu_index: tuple[str, ...] = ("gpu", "gpu_id", "minor_number")
    pci: tuple[str, ...] = ("pci_bus_id", "pci_bus", "pci")
    model: tuple[str, ...] = ("modelName", "model_name", "model", "card_model", "card_series")
    serial: tuple[str, ...] = ("DCGM_FI_DEV_SERIAL", "serial", "serial_number")
    driver: tuple[str, ...] = ("DCGM_FI_DRIVER_VERSION", "driver_version")
    gpu_instance: tuple[str, ...] = ("GPU_I_ID",)
    node: tuple[str, ...] = ("node", "kubernetes_node", "nodename", "node_name")
    hostname: tuple[str, ...] = ("Hostname", "hostname", "host")
    namespace: tuple[str, ...] = ("exported_namespace", "namespace", "pod_namespace")
    pod: tuple[str, ...] = ("exported_pod", "pod", "pod_name")
    container: tuple[str, ...] = ("exported_container", "container", "container_name")
    job: tuple[str, ...] = ("hpc_job", "job_name", "exported_job_name", "training_job")
    rack: tuple[str, ...] = ("rack", "topology_rack", "nvlink_domain")
    #: labels that tell two scrapes of the same thing apart; everything else does not split a stream
    source: tuple[str, ...] = ("instance", "job", "prometheus", "prometheus_replica", "replica", "cluster")
    #: pods and containers that match are exporters, never the work that runs on a GPU
    exporter_pods: str = r"(dcgm|amd|gpu|metrics|node)[-_a-z0-9]*exporter|gpu-operator"

    @field_validator("exporter_pods")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return value


class Selector(Strict):
    """Series beyond the catalog that are pulled as raw signals: a PromQL series selector, with its cadence."""

    match: str
    cadence: Literal["fast", "slow"] = "slow"

    @field_validator("match")
    @classmethod
    def _looks_like_one(cls, value: str) -> str:
        if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^{}]*\})?|\{[^{}]+\}", value.strip()):
            raise ValueError(
                f'a series selector looks like metric{{label="x"}} or {{__name__=~"node_.*"}}; got {value!r}'
            )
        return value.strip()


class PrometheusConfig(Strict):
    """Where the metrics are and how hard to ask for them. Any PromQL-compatible back end will do."""

    url: str = "http://127.0.0.1:9090"
    timeout: Seconds = Field(default=20.0, gt=0, le=3600)
    concurrency: int = Field(default=4, ge=1, le=64)
    poll_interval: Seconds = Field(default=30.0, ge=1, le=3600)
    slow_interval: Seconds = Field(default=300.0, ge=1, le=86_400)
    #: only series that match these label matchers are asked for, e.g. cluster="a"
    matchers: tuple[str, ...] = ()
    selectors: tuple[Selector, ...] = ()
    max_response_bytes: int = Field(default=1 << 30, ge=1024)
    max_raw_signals: int = Field(default=1500, ge=0)
    bearer_token_file: Path | None = None
    headers: dict[str, str] = {}
    ca_file: Path | None = None
    insecure_skip_verify: bool = False
    #: how far back the windows are filled from history when the daemon starts
    warm_up: Seconds = Field(default=3600.0, le=604_800)
    backoff_max: Seconds = Field(default=300.0, le=86_400)

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        http_address(value, "http://HOST:PORT or https://…")
        return value.rstrip("/")

    @field_validator("matchers")
    @classmethod
    def _are_matchers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for matcher in value:
            if _MATCHER.fullmatch(matcher.strip()) is None:
                raise ValueError(f'a label matcher looks like cluster="a" or env!~"test|dev"; got {matcher!r}')
        return tuple(matcher.strip() for matcher in value)

    @model_validator(mode="after")
    def _slow_is_slower(self) -> Self:
        if self.slow_interval < self.poll_interval:
            raise ValueError("slow_interval must not be shorter than poll_interval")
        return self


class KernelLog(Strict):
    """One node's kernel log as a file that this process can read (live: followed; rotation and truncation are seen)."""

    node: str = Field(min_length=1)
    path: Path


class LedgerConfig(Strict):
    """Where the record of what was seen and decided is kept: an SQLAlchemy URL."""

    url: str = "sqlite:///gpuwarden.db"


class ListenConfig(Strict):
    """Where /metrics, /healthz and /readyz are served, and events of agents taken. Loopback unless told otherwise."""

    host: str = "127.0.0.1"
    port: int = Field(default=9844, ge=0, le=65535)
    #: PEM files; with them all of it is served over TLS. Read again when they change
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together: give both or none")
        return self


class KubernetesConfig(Strict):
    """Which cluster, as whom, and where the lease of the one that acts is kept.

    Without a kubeconfig it is the cluster that the process runs in, as its pod's service account.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str = Field(default="gpuwarden", pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)
    lease: str = Field(default="gpuwarden", pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)
    #: nodes that are changed, and pods that are evicted, at the same time
    parallel: int = Field(default=16, ge=1, le=32)


class TicketsConfig(Strict):
    """Where a ticket is posted about a node that was taken out and that only people can mend."""

    url: str
    token_file: Path | None = None
    timeout: Seconds = Field(default=10.0, gt=0, le=60)

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        http_address(value, "http://HOST:PORT/PATH or https://…")
        return value

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        if self.token_file is not None and "@" in urlsplit(self.url).netloc:
            raise ValueError("give either token_file or a user in the url: a request has one Authorization header")
        return self


class IntakeConfig(Strict):
    """The intake of what agents on the nodes report (`daemon.intake`), and how much one node may ask of it."""

    enabled: bool = False
    #: service accounts that agents run as: NAMESPACE/NAME, or NAME in `kubernetes.namespace`
    service_accounts: tuple[str, ...] = Field(default=("gpuwarden-agent",), min_length=1)
    #: take tokens in the clear on an address that others can reach
    allow_plaintext: bool = False
    #: connections at once, in all and from one address
    connections: int = Field(default=512, ge=1, le=65536)
    connections_per_address: int = Field(default=64, ge=1, le=65536)
    #: requests that are worked on at once, in all and of one node
    requests: int = Field(default=64, ge=1, le=1024)
    requests_per_node: int = Field(default=2, ge=1, le=1024)
    #: what one node may send over time; a new node may send as much at once
    bytes_per_minute: int = Field(default=8 << 20, ge=1 << 20)
    reports_per_minute: int = Field(default=1000, ge=500)
    reports_per_day: int = Field(default=50_000, ge=500)

    @field_validator("service_accounts")
    @classmethod
    def _are_accounts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for account in value:
            if _SERVICE_ACCOUNT.fullmatch(account) is None:
                raise ValueError(f"a service account is NAME or NAMESPACE/NAME, got {account!r}")
        return value


class Config(Strict):
    """The whole of `gpuwarden.yaml`."""

    prometheus: PrometheusConfig = PrometheusConfig()
    labels: LabelMap = LabelMap()
    kernel_logs: tuple[KernelLog, ...] = ()
    #: the Loki that has the kernel logs of nodes without an agent; without it, none is asked
    loki: LokiConfig | None = None
    rules: tuple[Path, ...] = ()
    ledger: LedgerConfig = LedgerConfig()
    listen: ListenConfig = ListenConfig()
    #: the cluster that is acted on; without it only Prometheus and logs are read
    kubernetes: KubernetesConfig | None = None
    #: where people are told about nodes that only they can mend; without it, they are not
    tickets: TicketsConfig | None = None
    mode: Mode = Mode.OBSERVE
    #: by action, where it is another one than `mode`
    modes: dict[Action, Mode] = {}
    #: what is taken from agents on the nodes
    intake: IntakeConfig = IntakeConfig()
    #: what `gpuwarden agent` does on its node; nothing else reads it
    agent: AgentConfig = AgentConfig()
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("modes")
    @classmethod
    def _have_hands(cls, value: dict[Action, Mode]) -> dict[Action, Mode]:
        known = HANDS.union(OPERATIONS, (Action.CHECKPOINT,))
        strange = sorted(action for action, mode in value.items() if action not in known and mode is not Mode.OBSERVE)
        if strange:
            raise ValueError(
                f"nothing carries out {', '.join(strange)} yet; only {', '.join(sorted(known))} have a mode"
            )
        return value

    @model_validator(mode="after")
    def _acts_on_something(self) -> Self:
        if self.how_far.acts and self.kubernetes is None:
            raise ValueError(
                f"mode {self.how_far} acts on a cluster, and there is no section `kubernetes`; add `kubernetes: {{}}` "
                "for the cluster that this runs in, or a kubeconfig"
            )
        return self

    @model_validator(mode="after")
    def _knows_its_agents(self) -> Self:
        if not self.intake.enabled:
            return self
        if self.kubernetes is None:
            raise ValueError(
                "intake.enabled needs the section `kubernetes`: the API server says whose an agent's token is"
            )
        clear = self.listen.tls_cert is None and not self.intake.allow_plaintext
        if clear and not _is_loopback(self.listen.host):
            raise ValueError(
                f"intake.enabled on {self.listen.host} without TLS takes tokens in the clear; give listen.tls_cert and "
                "listen.tls_key, or set intake.allow_plaintext where something in between does TLS"
            )
        return self

    @property
    def how_far(self) -> Modes:
        """The mode of each action."""
        return Modes(self.mode, self.modes)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ConfigError(Exception):
    """The configuration cannot be used; one line a problem."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


def load_config(path: Path | None) -> Config:
    """The configuration of a file, or the defaults. Relative paths in the file are relative to it.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or says something that is refused.
    """
    if path is None:
        return Config()
    try:
        data = read_yaml(path)
    except RuleError as error:
        raise ConfigError(error.problems) from error
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(problems_of(error, path)) from error
    base = path.parent
    asked = config.prometheus
    files = {"bearer_token_file": asked.bearer_token_file, "ca_file": asked.ca_file}
    cluster = config.kubernetes
    if cluster is not None and cluster.kubeconfig is not None:
        cluster = cluster.model_copy(update={"kubeconfig": base / cluster.kubeconfig})
    loki = config.loki
    if loki is not None:
        of_loki = {"bearer_token_file": loki.bearer_token_file, "ca_file": loki.ca_file}
        loki = loki.model_copy(update={name: base / file for name, file in of_loki.items() if file is not None})
    tickets = config.tickets
    if tickets is not None and tickets.token_file is not None:
        tickets = tickets.model_copy(update={"token_file": base / tickets.token_file})
    listen = config.listen
    if listen.tls_cert is not None and listen.tls_key is not None:
        listen = listen.model_copy(update={"tls_cert": base / listen.tls_cert, "tls_key": base / listen.tls_key})
    return config.model_copy(
        update={
            "listen": listen,
            "kubernetes": cluster,
            "loki": loki,
            "tickets": tickets,
            "rules": tuple(base / extra for extra in config.rules),
            "kernel_logs": tuple(log.model_copy(update={"path": base / log.path}) for log in config.kernel_logs),
            "prometheus": asked.model_copy(
                update={name: base / file for name, file in files.items() if file is not None}
            ),
        }
    )

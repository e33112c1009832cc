"""`gpuwarden run`: the daemon. Wires configuration, rules, ledger, loop and HTTP, and ends on SIGTERM or SIGINT."""

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import yaml
from pydantic import ValidationError

from daemon.agent.wire import AUDIENCE
from daemon.commands.output import CommandError, ExitCode, complain, say, settings
from daemon.commands.process import log_to_stderr, stopped_by_signals
from daemon.config import Config
from daemon.event_inbox import EventInbox
from daemon.heaps import keep_heaps_few
from daemon.inlets import Inlet
from daemon.ledger import Ledger, LedgerError
from daemon.loki.inlet import LokiInlet
from daemon.loop import Loop
from daemon.metrics import Metrics
from daemon.secrets import SECRET, only_host, without_password
from daemon.tls import CertificateError
from daemon.version import own_version
from daemon.web import Crowd, Health, Web
from remediation.agents import users_of
from remediation.modes import Mode
from rules.schema import RuleBook

if TYPE_CHECKING:
    from daemon.acting import Acting
    from daemon.intake import Intake

log = structlog.get_logger()

#: How often a process that stands by looks whether it leads.
_LOOK_S = 0.25
#: How long a single tick waits for the cluster to be listed.
_FIRST_LIST_S = 60.0


def run(path: Path | None, *, check: bool, once: bool, mode: Mode | None = None) -> int:
    """Run until stopped. With `check`, print the effective configuration; with `once`, do a single tick.

    `mode` is the mode of everything, but where the configuration is stricter about an action.
    """
    try:
        config, rules = settings(path)
        config = config if mode is None else _with_mode(config, mode)
    except CommandError as error:
        complain(str(error))
        return error.code
    if check:
        say(yaml.safe_dump(_shown(config), sort_keys=False).rstrip())
        say(f"# rules: {len(rules.xid)} codes, {len(rules.thresholds)} thresholds, digest {rules.digest}")
        return ExitCode.OK
    log_to_stderr(config.log_level)
    keep_heaps_few()
    stop = stopped_by_signals()
    try:
        with Ledger.open(config.ledger.url, now=lambda: datetime.now(UTC)) as ledger:
            metrics = Metrics()
            metrics.info.labels(own_version(), rules.digest).set(1)
            acting = _acting(config, rules, ledger, metrics)
            daemon = Daemon(config, rules, ledger, metrics, acting)
            return daemon.one_tick(stop) if once else daemon.watch(stop)
    except LedgerError as error:
        complain(str(error))
        return ExitCode.LEDGER
    except CommandError as error:
        complain(str(error))
        return error.code


def _with_mode(config: Config, mode: Mode) -> Config:
    """The configuration with another mode, checked again. Raises CommandError."""
    modes = config.how_far.at_most(mode)
    changed = config.model_dump() | {"mode": modes.default, "modes": dict(modes.of_action)}
    try:
        return Config.model_validate(changed)
    except ValidationError as error:
        said = "; ".join(str(one["msg"]).removeprefix("Value error, ") for one in error.errors())
        raise CommandError(f"--mode {mode}: {said}", ExitCode.USAGE) from error


def _acting(config: Config, rules: RuleBook, ledger: Ledger, metrics: Metrics) -> "Acting | None":
    """The way to the cluster, where one is configured. Raises CommandError."""
    if config.kubernetes is None:
        return None
    from daemon.acting import Acting, NoClusterError, connect  # Kubernetes' client takes its time to import

    try:
        return Acting(config, rules.policy, ledger, metrics, connect(config.kubernetes))
    except NoClusterError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error


class Daemon:
    """The process: stands by while another one leads, and watches while none does."""

    def __init__(
        self, config: Config, rules: RuleBook, ledger: Ledger, metrics: Metrics, acting: "Acting | None"
    ) -> None:
        self._config = config
        self._rules = rules
        self._ledger = ledger
        self._metrics = metrics
        self._acting = acting
        self._loop: Loop | None = None
        #: rung by the intake for the loop
        self._bell = threading.Event()

    def one_tick(self, stop: threading.Event) -> int:
        """A single tick; the exit code says whether Prometheus answered and the ledger took it.

        Nothing is changed in the cluster, whatever the mode: a process that ends at once sees nothing to its end.
        """
        acting = self._acting
        if acting is not None:
            acting.start(reads_only=True)
            acting.wait(_FIRST_LIST_S)
        loop = self._new_loop()
        try:
            loop.start()
            tick = loop.tick(stop)
        finally:
            loop.close()
            if acting is not None:
                acting.stop()
        for why in loop.health().why:
            complain(why)
        if tick.blind:
            return ExitCode.SOURCE
        gpus = len(tick.snapshot.gpus) if tick.snapshot is not None else 0
        say(f"one tick: {gpus:,} GPUs, {len(tick.decisions):,} open incidents with a decision each")
        if not gpus:
            complain(
                "Prometheus answers and has no GPU metrics; check prometheus.matchers and that an exporter is scraped"
            )
        return ExitCode.OK if loop.is_recorded else ExitCode.LEDGER

    def watch(self, stop: threading.Event) -> int:
        """Until told to stop: one loop for each term in which no other process leads."""
        listen, limits = self._config.listen, self._config.intake
        crowd = Crowd(limits.connections, limits.connections_per_address)
        try:
            web = Web(listen, self._metrics.registry, self.health, self._intake(), crowd)
        except CertificateError as error:
            complain(str(error))
            return ExitCode.USAGE
        except OSError as error:
            where = f"{listen.host}:{listen.port}"
            complain(f"cannot listen on {where}: {error.strerror}; set listen.host and listen.port to what is free")
            return ExitCode.USAGE
        try:
            web.start()  # before anything slow: a probe wants an answer while windows are filled from history
            if self._acting is not None:
                self._acting.start()
            log.info(
                "watching", prometheus=without_password(self._config.prometheus.url), mode=str(self._config.how_far),
                listen=f"{listen.host}:{web.port}", rules=self._rules.digest,
            )  # fmt: skip
            while not stop.is_set():
                self._stand_by(stop)
                if not stop.is_set():
                    self._loop = self._new_loop()
                    self._loop.start()
                    self._loop.run(stop)
            log.info("stopped")
        finally:
            if self._acting is not None:
                self._acting.stop()
            web.stop()
        return ExitCode.OK

    def health(self) -> Health:
        """The loop's own, or why there is none. For any thread."""
        loop = self._loop
        if loop is not None:
            return loop.health()
        said = self._acting.stands_by() if self._acting is not None else ""
        return Health(alive=True, ready=bool(said), why=(said or "starting",))

    def _new_loop(self) -> Loop:
        config, metrics = self._config, self._metrics
        inlets: list[Inlet] = []
        if config.intake.enabled:
            inlets.append(EventInbox(self._ledger, self._rules, self._bell, lag=metrics.inbox_lag.set))
        if config.loki is not None:
            inlets.append(LokiInlet(config.loki, self._rules, self._ledger, metrics))
        return Loop(config, self._rules, self._ledger, metrics=metrics, acting=self._acting, inlets=inlets)

    def _intake(self) -> "Intake | None":
        """Where agents report, with its own connection to the API server. Raises CommandError."""
        config = self._config
        if not config.intake.enabled or config.kubernetes is None:
            return None
        from daemon.acting import NoClusterError, connect
        from daemon.intake import Intake
        from remediation.cluster.identity import TokenIdentities

        try:
            cluster = connect(config.kubernetes)
        except NoClusterError as error:
            raise CommandError(str(error), ExitCode.USAGE) from error
        users = users_of(config.intake.service_accounts, config.kubernetes.namespace)
        identities = TokenIdentities(cluster, AUDIENCE, users)
        return Intake(config.intake, identities, self._ledger, self._metrics, self._bell, lambda: datetime.now(UTC))

    def _stand_by(self, stop: threading.Event) -> None:
        """Wait until this process leads, or the lease cannot be asked for: then somebody has to watch all the same."""
        acting = self._acting
        if acting is None or not acting.modes.acts:
            return
        self._loop = None
        self._metrics.leader.set(0.0)
        self._metrics.fleet.verdicts, self._metrics.fleet.incidents = (), ()  # whoever leads tells of them
        asked_at = time.monotonic()
        patience_s = 2 * self._rules.policy.lease.duration  # where all is well, a new lease is had after one
        while not stop.is_set() and not acting.leads:
            if acting.stands_by():
                asked_at = time.monotonic()
            elif time.monotonic() - asked_at >= patience_s:
                log.warning("no leader", next="watching without acting until the lease can be had")
                return
            stop.wait(_LOOK_S)


def _shown(config: Config) -> dict[str, Any]:
    """The configuration as it may be shown: a ticket is no place for a token."""
    shown: dict[str, Any] = config.model_dump(mode="json")
    shown["prometheus"]["headers"] = dict.fromkeys(config.prometheus.headers, SECRET)
    shown["prometheus"]["url"] = without_password(config.prometheus.url)
    shown["ledger"]["url"] = without_password(config.ledger.url)
    if config.loki is not None:
        shown["loki"]["url"] = without_password(config.loki.url)
    if config.tickets is not None:
        shown["tickets"]["url"] = only_host(config.tickets.url)
    return shown

"""`gpuwarden agent`: the node's half. With --check it says what it can reach and read, and what to fix."""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from daemon.agent.config import AgentConfig
from daemon.agent.fabric_manager import FabricLog
from daemon.agent.metrics import AgentMetrics
from daemon.agent.node_facts import Probe, look
from daemon.agent.node_watch import NodeWatch
from daemon.agent.position import Position, Source, SourceError
from daemon.agent.run import Agent, Parts
from daemon.agent.sender import Sender, Unsent, Who
from daemon.agent.spool import Spool, SpoolError
from daemon.commands.output import ExitCode, complain, say
from daemon.commands.process import log_to_stderr, stopped_by_signals
from daemon.config import ConfigError, ListenConfig, load_config
from daemon.heaps import keep_heaps_few
from daemon.version import own_version
from daemon.web import Health, Web
from detectors.events import KernelEvent
from rules.loader import RuleError, load_rules
from rules.schema import RuleBook

log = structlog.get_logger()

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: The driver's own tool, in its shortest question.
_TOOL = ("nvidia-smi", "-L")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def agent(path: Path | None, *, check: bool) -> int:
    """Read the node's log until told to stop, or only say whether that would work."""
    try:
        config = load_config(path)
        rules = load_rules(config.rules)
    except (ConfigError, RuleError) as error:
        complain(str(error))
        return ExitCode.USAGE
    settings = config.agent
    who = Who(node_of(settings), _boot_id(), own_version())
    if check:
        return _check(settings, rules, who)
    if not settings.controller:
        complain("agent.controller is not set; give the controller's address, such as https://gpuwarden:9844")
        return ExitCode.USAGE
    return _run(settings, rules, who, config.log_level)


def node_of(config: AgentConfig) -> str:
    """The node's name: as configured, as the pod's environment says, else the host's."""
    return config.node or os.environ.get("NODE_NAME", "") or socket.gethostname()


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def source_of(config: AgentConfig, rules: RuleBook, node: str, since: Position | None) -> Source:
    """The log, from the place where it was left. Raises SourceError."""
    match config.source:
        case "kmsg":
            from daemon.agent.kmsg import KmsgSource

            return KmsgSource(rules, node, since, path=config.path or Path("/dev/kmsg"), lookback_s=config.lookback)
        case "journal":
            from daemon.agent.journal import JournalSource

            return JournalSource(rules, node, since, path=config.path, lookback_s=config.lookback)
        case "file":
            from daemon.agent.plain_file import FileSource

            return FileSource(rules, node, since, path=config.path or Path(), lookback_s=config.lookback)


# ------------------------------------------------------------------------------------------------------------- running


def _run(config: AgentConfig, rules: RuleBook, who: Who, level: str) -> int:
    log_to_stderr(level)
    keep_heaps_few()
    stop = stopped_by_signals()
    metrics = AgentMetrics()
    try:
        with closing(Spool(config.spool, config.spool_bytes)) as spool:
            source = source_of(config, rules, who.node, spool.position)
            sender = Sender(config, who)
            parts = Parts(
                source, spool, sender, metrics, _facts(config, who, metrics), config.look_every, config.backoff_max,
                who.boot_id,
            )  # fmt: skip
            agent = Agent(parts)
            with closing(source), closing(sender), _served(config, metrics, agent):
                if unsafe := _unsafe(config):
                    log.warning("controller", address=config.controller, detail=unsafe.lstrip("; "))
                log.info("listening to the kernel", node=who.node, boot=who.boot_id, source=config.source)
                agent.run(stop)
    except (SpoolError, SourceError) as error:
        complain(str(error))
        return ExitCode.FILE
    return ExitCode.OK


def _facts(config: AgentConfig, who: Who, metrics: AgentMetrics) -> Callable[[], Sequence[KernelEvent]]:
    watch, probe, fabric = NodeWatch(who.boot_id, config.expected_gpus), Probe(_TOOL), FabricLog(config.fabric_log)

    def told() -> Sequence[KernelEvent]:
        facts = look(probe=probe, fabric=fabric)
        metrics.info.clear()
        metrics.info.labels(who.version, who.boot_id, facts.driver).set(1)
        metrics.gpus.labels("bus").set(len(facts.on_bus))
        metrics.gpus.labels("driver").set(len(facts.driven))
        metrics.stack_answers.set(float("nan") if facts.answers is None else float(facts.answers))
        metrics.fabric_ok.set(float("nan") if facts.fabric is None else float(not facts.fabric))
        return watch.events(facts, datetime.now(UTC))

    return told


@contextmanager
def _served(config: AgentConfig, metrics: AgentMetrics, agent: Agent) -> Iterator[None]:
    """/metrics and /healthz of the agent; a port that is taken is told and lived without."""

    def health() -> Health:
        return Health(alive=True, ready=not agent.sending, why=(agent.sending,) if agent.sending else ())

    try:
        web = Web(ListenConfig(host=config.listen.host, port=config.listen.port), metrics.registry, health)
    except OSError as error:
        log.warning("no metrics", port=config.listen.port, detail=str(error), next="set agent.listen.port")
        yield
        return
    web.start()
    try:
        yield
    finally:
        web.stop()


# ------------------------------------------------------------------------------------------------------------ checking


def _check(config: AgentConfig, rules: RuleBook, who: Who) -> int:
    """One line for each thing it needs; exit code 1 where one is missing."""
    checks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("node", lambda: f"{who.node}, boot {who.boot_id or 'unknown'}"),
        ("log", lambda: _check_log(config, rules, who)),
        ("spool", lambda: _check_spool(config)),
        ("controller", lambda: _check_controller(config, who)),
    )
    bad = 0
    for name, work in checks:
        try:
            say(f"ok    {name}: {work()}")
        except (SourceError, SpoolError, Unsent, OSError) as error:
            bad += 1
            say(f"FAIL  {name}: {error}")
    return ExitCode.PROBLEMS if bad else ExitCode.OK


def _check_log(config: AgentConfig, rules: RuleBook, who: Who) -> str:
    with closing(source_of(config, rules, who.node, None)) as source:
        source.read(0.1)
    return f"{config.source} can be read"


def _check_spool(config: AgentConfig) -> str:
    """A spool that an agent holds is one that can be written."""
    config.spool.mkdir(parents=True, mode=0o700, exist_ok=True)
    probe = config.spool / ".check"
    probe.write_bytes(b"")
    probe.unlink()
    return f"{config.spool} can be written"


def _check_controller(config: AgentConfig, who: Who) -> str:
    if not config.controller:
        raise Unsent("agent.controller is not set; give the controller's address, such as https://gpuwarden:9844")
    with closing(Sender(config, who)) as sender:
        sender.send(())
    return f"{config.controller} takes events of {who.node}{_unsafe(config)}"


def _unsafe(config: AgentConfig) -> str:
    """What to know of an address to which the token goes in the clear."""
    parsed = urlsplit(config.controller)
    if parsed.scheme == "https" or parsed.hostname in _LOOPBACK:
        return ""
    return "; its token goes there in the clear: give the controller listen.tls_cert, and use its https address"

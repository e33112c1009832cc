"""A whole site for a test: control plane, Prometheus, kernel logs, and gpuwarden as processes.

All of them are real; Prometheus scrapes the simulated fleet, and gpuwarden has the role that it ships with.
The fleet's telemetry is healthy all the time; faults are what a test writes into the kernel logs.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests
import yaml

from daemon.ledger import Entry, EntryKind, Ledger
from fixtures.fleet import scenarios
from fixtures.fleet.serve import Clock, serving
from fixtures.fleet.telemetry import Fleet
from tests.prometheus_server import PrometheusServer, free_port
from tests.testbed.api import Object
from tests.testbed.control_plane import ControlPlane
from tests.testbed.nodes import DEFAULT_SHAPE, node
from tests.testbed.waiting import until

NODES = 10
NAMESPACE = "gpuwarden"
USER = f"system:serviceaccount:{NAMESPACE}:gpuwarden"
COMMAND = (sys.executable, "-c", "from daemon.cli import main; main()")
ROOT = Path(__file__).parent.parent.parent
#: Times that a test can wait for; everything else is as it ships.
POLICY: dict[str, Any] = {
    "limits": {"max_unavailable_share": 0.2, "max_unavailable_share_of_pool": 0.2},
    "incidents": {"close_after": "3s"},
    "lease": {"renew": "1s", "deadline": "4s", "duration": "6s"},
    "drain": {"allow_unmanaged": True},
    "verdict": {"dwell": "2s"},
    "comeback": {"soak": "0s", "probation": "0s"},
}


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The simulated fleet and the Prometheus that scrapes it."""

    fleet: Fleet
    url: str
    server: PrometheusServer

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(one.name for one in self.fleet.shape.nodes)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Prometheus answers nobody, and scrapes nothing."""
        self.server.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.server.process.send_signal(signal.SIGCONT)


@contextmanager
def telemetry(prometheus: Path, folder: Path) -> Iterator[Telemetry]:
    """Served for as long as the context lasts."""
    began = time.time() - 120
    fleet = scenarios.healthy(nodes=NODES, hours=24, start_s=began, step_s=5.0)
    with serving(fleet, Clock(began)) as targets:
        config = folder / "prometheus.yml"
        config.write_text(requests.get(f"{targets}/prometheus.yml", timeout=10).text, encoding="utf-8")
        with PrometheusServer(prometheus, config, folder / "tsdb") as server:
            yield Telemetry(fleet, server.url, server)


class Daemon:
    """One process of `gpuwarden run`."""

    def __init__(self, config: Path, port: int, log: Path) -> None:
        self.port = port
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*COMMAND, "run", "--config", str(config)], cwd=ROOT, stdout=file, stderr=file,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def ready(self) -> bool:
        """Whether /readyz says so."""
        if self.process.poll() is not None:
            raise AssertionError(f"gpuwarden ended with {self.process.returncode}: {self.said()[-3000:]}")
        try:
            return requests.get(f"http://127.0.0.1:{self.port}/readyz", timeout=5).ok
        except requests.RequestException:
            return False

    def readiness(self) -> str:
        """What /readyz says."""
        return requests.get(f"http://127.0.0.1:{self.port}/readyz", timeout=5).text

    def metric(self, start: str) -> float:
        """The sum of the samples whose line begins like this."""
        text = requests.get(f"http://127.0.0.1:{self.port}/metrics", timeout=5).text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(start))

    def said(self) -> str:
        """Its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """As the kernel's OOM killer does."""
        self.process.kill()
        self.process.wait(20)

    def freeze(self) -> None:
        """Stop it where it is, as a machine that is paused."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Ask it to stop, whatever state it is in, and wait."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.kill()


class Site:
    """One test's cluster, logs, ledger and processes."""

    def __init__(self, plane: ControlPlane, seen: Telemetry, folder: Path) -> None:
        self.plane = plane
        self.admin = plane.admin
        self.telemetry = seen
        self.folder = folder
        self.nodes = seen.nodes
        self.daemons: list[Daemon] = []
        self._shape = seen.fleet.shape
        self._boots = dict.fromkeys(self.nodes, 1)
        self._logs = {name: folder / f"{name}.log" for name in self.nodes}
        for log in self._logs.values():
            log.write_bytes(b"")
        self._add_nodes()
        self.audit_from = plane.audit_mark()
        token = self._install()
        self.kubeconfig = plane.kubeconfig_for(token, "gpuwarden")

    def _add_nodes(self) -> None:
        now = datetime.now(UTC)
        for number, name in enumerate(self.nodes):
            self.admin.create(node(name, number, DEFAULT_SHAPE, now))
        until("nodes that take pods", lambda: set(self.nodes) <= self.plane._open_nodes(), within_s=60)

    def _install(self) -> str:
        """Apply what ships; returns a token of the service account."""
        self.plane.namespace(NAMESPACE)
        for document in yaml.safe_load_all((ROOT / "deploy" / "rbac.yaml").read_text(encoding="utf-8")):
            self.admin.apply(document)
        return self.plane.token(NAMESPACE, "gpuwarden")

    # -------------------------------------------------------------------------------------------------- gpuwarden

    def start(
        self, name: str = "a", *, mode: str = "auto", policy: Mapping[str, Any] = {}, ready: bool = True, **extra: Any
    ) -> Daemon:
        """Start a process; with `ready`, return once it watches and leads (or watches, in observe)."""
        port = free_port()
        config = self.configure(name, mode=mode, policy=policy, port=port, **extra)
        daemon = Daemon(config, port, self.folder / f"gpuwarden-{name}.log")
        self.daemons.append(daemon)
        if ready:
            until(f"gpuwarden {name} ready", daemon.ready, within_s=90)
            if mode != "observe":
                until(f"gpuwarden {name} leads", lambda: daemon.metric("gpuwarden_leader") == 1, within_s=60)
        return daemon

    def configure(
        self, name: str = "a", *, mode: str = "auto", policy: Mapping[str, Any] = {}, port: int = 0, **extra: Any
    ) -> Path:
        """Write a configuration with this policy over that of the tests."""
        merged = {**POLICY}
        for key, value in policy.items():
            merged[key] = {**merged.get(key, {}), **value}
        rules = self.folder / f"rules-{name}.yaml"
        pack = {"version": 1, "name": "site", "owner": "tests", "source": "tests", "policy": merged}
        rules.write_text(yaml.safe_dump(pack), encoding="utf-8")
        config = self.folder / f"gpuwarden-{name}.yaml"
        told = {
            "prometheus": {
                "url": self.telemetry.url, "poll_interval": "2s", "slow_interval": "10s", "warm_up": "0s",
                "backoff_max": "4s",
            },
            "ledger": {"url": f"sqlite:///{self.folder / 'ledger.db'}"},
            "listen": {"port": port},
            "rules": [str(rules)],
            "kernel_logs": [{"node": node, "path": str(path)} for node, path in self._logs.items()],
            "kubernetes": {"kubeconfig": str(self.kubeconfig)},
            "mode": mode,
        }  # fmt: skip
        config.write_text(yaml.safe_dump(told | extra), encoding="utf-8")
        return config

    def command(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `gpuwarden WORDS --config ...` to its end."""
        config = self.folder / "gpuwarden-a.yaml"
        return subprocess.run(
            [*COMMAND, *words, "--config", str(config)], cwd=ROOT, capture_output=True, text=True, timeout=90,
            check=check, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def explain(self, node: str) -> Any:
        """What `gpuwarden explain` tells about a node."""
        return json.loads(self.command("explain", node, "-o", "json").stdout)

    def close(self) -> None:
        """End all processes."""
        for daemon in self.daemons:
            daemon.end()

    # ----------------------------------------------------------------------------------------------------- faults

    def xid(self, node: str, code: int = 79, gpu: int = 0) -> None:
        """The driver reports a fault of one GPU, in the journal's own form."""
        pci = [one.pci for one in self._shape.gpus if self._shape.nodes[one.node].name == node][gpu]
        text = f"NVRM: Xid (PCI:{pci}): {code}, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        self._kernel(node, text)

    def boots(self, node: str) -> None:
        """The node comes up again: another boot id, and the driver loads."""
        self._boots[node] += 1
        self._kernel(node, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.105.08  Wed Oct 29 23:15:11 UTC 2025")

    def _kernel(self, node: str, text: str) -> None:
        record = {
            "_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel", "PRIORITY": "3", "_HOSTNAME": node,
            "_BOOT_ID": f"{self._boots[node]:032x}", "__REALTIME_TIMESTAMP": str(int(time.time() * 1e6)),
            "MESSAGE": text,
        }  # fmt: skip
        with self._logs[node].open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")

    # ------------------------------------------------------------------------------------------------ what happened

    def node(self, name: str) -> Object:
        """A node as the API server has it."""
        return self.admin.get("Node", name)

    def taints(self, name: str) -> set[str]:
        """Keys of a node's taints."""
        return {taint["key"] for taint in self.node(name)["spec"].get("taints", ())}

    def is_cordoned(self, name: str) -> bool:
        """Whether a node takes no pods."""
        return bool(self.node(name)["spec"].get("unschedulable"))

    def stage(self, name: str) -> str:
        """How far gpuwarden says that it has come."""
        return str(self.node(name)["metadata"].get("annotations", {}).get("gpuwarden.io/stage", ""))

    def condition(self, name: str) -> str:
        """The status of GPUHealthy, "" where the node has none."""
        found = [one for one in self.node(name)["status"]["conditions"] if one["type"] == "GPUHealthy"]
        return str(found[0]["status"]) if found else ""

    def events(self, name: str) -> set[str]:
        """Reasons of our Events about a node."""
        found = self.admin.list("Event", "default")
        return {
            one["reason"]
            for one in found
            if one["involvedObject"]["name"] == name and one.get("source", {}).get("component") == "gpuwarden"
        }

    def pods_on(self, name: str) -> list[Object]:
        """Pods that are bound to a node and have not ended."""
        return [
            one
            for one in self.admin.list("Pod")
            if one["spec"].get("nodeName") == name and one["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def entries(self, *kinds: EntryKind, node: str | None = None) -> list[Entry]:
        """Entries of the ledger, oldest first."""
        url = f"sqlite:///{self.folder / 'ledger.db'}"
        with Ledger.open(url, now=lambda: datetime.now(UTC), busy_timeout_s=30) as ledger:
            return list(ledger.entries(kind=kinds or None, node=node))

    def outcomes(self, node: str) -> list[tuple[str, str]]:
        """(action, ending) of all outcomes on a node, oldest first."""
        return [(one.body["action"], one.body["ending"]) for one in self.entries(EntryKind.OUTCOME, node=node)]

    def decisions(self, node: str) -> list[Entry]:
        """Decisions about a node, oldest first."""
        return self.entries(EntryKind.DECISION, node=node)

    def writes(self) -> list[tuple[str, str]]:
        """(verb, resource) of each write of gpuwarden's that the API server saw, but those to the lease."""
        return [
            (one.verb, one.resource)
            for one in self.plane.audit_events(self.audit_from, USER)
            if one.is_write and one.resource != "leases"
        ]

"""A thousand nodes, eight thousand pods, and gpuwarden on them with the role that ships."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import requests
import yaml

from tests.prometheus_server import free_port
from tests.testbed.api import ApiError, Object
from tests.testbed.control_plane import ControlPlane
from tests.testbed.manifests import budget, deployment
from tests.testbed.nodes import NodeShape
from tests.testbed.waiting import until

ROOT = Path(__file__).parent.parent.parent
NAMESPACE = "gpuwarden"
USER = f"system:serviceaccount:{NAMESPACE}:gpuwarden"
SPACE = "train"
APPS = 8
_BUSY = (429, 503, 504)
#: Everything a gate could hold back is let through: what is measured is how fast it goes then.
POLICY: dict[str, Any] = {
    "limits": {
        "max_unavailable_share": 1.0, "max_unavailable_share_of_pool": 1.0, "max_unavailable_share_of_domain": 1.0,
        "max_actions_per_hour": 1_000_000, "max_attempts_per_node": 1000,
    },
    "breaker": {"share": 1.0, "min_nodes": 1_000_000},
    "incidents": {"common_cause": {"min_nodes": 1_000_000, "share": 1.0}, "close_after": "5s"},
    "lease": {"renew": "5s", "deadline": "20s", "duration": "30s"},
}  # fmt: skip


def fill(plane: ControlPlane, nodes: int, pods: int, say: Any) -> list[str]:
    """Nodes with room for twice their pods, and Deployments under budgets that let half of them go."""
    shape = NodeShape(gpus=16)
    began = time.monotonic()
    names = plane.add_nodes(nodes, shape)
    say(f"{nodes} nodes in {time.monotonic() - began:.0f} s")
    plane.namespace(SPACE)
    began = time.monotonic()
    for number in range(APPS):
        plane.admin.create(deployment(f"app-{number}", SPACE, replicas=pods // APPS))
        plane.admin.create(budget(f"app-{number}", SPACE, maxUnavailable="50%"))

    def running() -> bool:
        try:
            found = plane.admin.list("Pod", SPACE)
        except ApiError as busy:  # thousands of pods at once are much for it; the next look tells
            if busy.code in _BUSY:
                return False
            raise
        return sum(one["status"].get("phase") == "Running" for one in found) >= pods

    until(f"{pods} pods", running, within_s=900, every_s=5)
    say(f"{pods} pods run after {time.monotonic() - began:.0f} s")
    return names


def installed(plane: ControlPlane) -> Path:
    """The kubeconfig of gpuwarden's service account, once what ships is applied."""
    plane.namespace(NAMESPACE)
    for document in yaml.safe_load_all((ROOT / "deploy" / "rbac.yaml").read_text(encoding="utf-8")):
        plane.admin.apply(document)
    return plane.kubeconfig_for(plane.token(NAMESPACE, "gpuwarden"), "gpuwarden")


class Warden:
    """One `gpuwarden run` in auto mode, and the kernel logs that it follows."""

    def __init__(self, folder: Path, kubeconfig: Path, prometheus: str, nodes: Sequence[str]) -> None:
        self.port = free_port()
        self.logs = {name: folder / f"{name}.log" for name in nodes}
        for path in self.logs.values():
            path.write_bytes(b"")
        rules = folder / "rules.yaml"
        pack = {"version": 1, "name": "bench", "owner": "bench", "source": "bench", "policy": POLICY}
        rules.write_text(yaml.safe_dump(pack), encoding="utf-8")
        config = folder / "gpuwarden.yaml"
        told = {
            "prometheus": {"url": prometheus, "warm_up": "0s"},
            "ledger": {"url": f"sqlite:///{folder / 'ledger.db'}"},
            "listen": {"port": self.port},
            "rules": [str(rules)],
            "kernel_logs": [{"node": node, "path": str(path)} for node, path in self.logs.items()],
            "kubernetes": {"kubeconfig": str(kubeconfig)},
            "mode": "auto",
        }
        config.write_text(yaml.safe_dump(told), encoding="utf-8")
        self.log = folder / "gpuwarden.log"
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from daemon.cli import main; main()", "run", "--config", str(config)],
                cwd=ROOT, stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def metric(self, start: str) -> float:
        """The sum of the samples whose line begins like this; 0 while nothing answers."""
        try:
            text = requests.get(f"http://127.0.0.1:{self.port}/metrics", timeout=20).text
        except requests.RequestException:
            return 0.0
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(start))

    def memory_mb(self, field: str) -> float:
        """VmRSS or VmHWM, in megabytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def cpu_s(self) -> float:
        """CPU seconds that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def loses(self, node: str, pci: str) -> None:
        """A GPU of this node falls off the bus now."""
        text = f"NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        record = {
            "_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel", "PRIORITY": "3", "_HOSTNAME": node,
            "_BOOT_ID": "1" * 32, "__REALTIME_TIMESTAMP": str(int(time.time() * 1e6)), "MESSAGE": text,
        }  # fmt: skip
        with self.logs[node].open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")

    def end(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait(60)


class NodeWatch:
    """When each node was first seen cordoned, and quarantined, by a watch of its own beside gpuwarden's."""

    def __init__(self, plane: ControlPlane) -> None:
        self.cordoned: dict[str, float] = {}
        self.quarantined: dict[str, float] = {}
        self._plane = plane
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)

    def _run(self) -> None:
        path = f"{self._plane.url}/api/v1/nodes"
        while not self._stop.is_set():
            with requests.get(
                path, params={"watch": "true", "timeoutSeconds": "10"}, stream=True, timeout=30,
                headers={"Authorization": f"Bearer {self._plane.admin.token}"}, verify=str(self._plane.admin.authority),
            ) as answer:  # fmt: skip
                for line in answer.iter_lines(chunk_size=None):
                    self._take(json.loads(line)["object"])
                    if self._stop.is_set():
                        return

    def _take(self, node: Object) -> None:
        name, now = node["metadata"]["name"], time.time()
        if node["spec"].get("unschedulable"):
            self.cordoned.setdefault(name, now)
        if node["metadata"].get("annotations", {}).get("gpuwarden.io/stage") == "quarantined":
            self.quarantined.setdefault(name, now)


def label(plane: ControlPlane, names: Sequence[str], value: str) -> None:
    """Mark nodes for `kubectl drain --selector`."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: plane.admin.patch("Node", name, {"metadata": {"labels": {"bench": value}}}), names))


def stamp() -> str:
    """Now, for the report."""
    return datetime.now(UTC).isoformat(timespec="seconds")

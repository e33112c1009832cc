"""The cluster of `make bench-agent`: pods of agents with tokens of their own, and a controller that hears only them."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import requests
import yaml

from tests.bench_agent.measuring import scraped_sum
from tests.bench_cluster.site import POLICY, ROOT
from tests.cluster.agent_tokens import AGENT, NAMESPACE, token
from tests.prometheus_server import free_port
from tests.testbed.api import Object
from tests.testbed.control_plane import ControlPlane
from tests.testbed.manifests import daemon_set
from tests.testbed.waiting import until

COMMAND = (sys.executable, "-c", "from daemon.cli import main; main()")
TAINT = "gpuwarden.io/quarantine"
#: All agents come from one address here, as they never do elsewhere.
INTAKE = {"enabled": True, "connections": 1024, "connections_per_address": 1024}


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for loopback, and its key."""
    cert, key = folder / "tls.crt", folder / "tls.key"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", "/CN=gpuwarden", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key),
            "-out", str(cert),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def tokens(plane: ControlPlane, names: Sequence[str], folder: Path) -> dict[str, Path]:
    """A DaemonSet of agents on all nodes, and for each node the file with the token of its pod."""
    tolerant = [{"operator": "Exists"}]
    plane.admin.create(daemon_set(AGENT, NAMESPACE, serviceAccountName=AGENT, tolerations=tolerant))
    wanted = set(names)

    def pods() -> dict[str, Object] | None:
        found = {
            one["spec"]["nodeName"]: one for one in plane.admin.list("Pod", NAMESPACE) if one["spec"].get("nodeName")
        }
        return found if wanted <= found.keys() else None

    there = until("a pod of the agent's on each node", pods, within_s=300, every_s=1)
    paths = {name: folder / f"{name}.token" for name in names}

    def keep(name: str) -> None:
        paths[name].write_text(token(plane, there[name]), encoding="ascii")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(keep, names))
    return paths


class Controller:
    """One `gpuwarden run` in auto mode that takes what agents report over TLS."""

    def __init__(self, folder: Path, kubeconfig: Path, prometheus: str) -> None:
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.certificate, key = certificate(folder)
        self.ledger = f"sqlite:///{folder / 'ledger.db'}"
        rules = folder / "rules.yaml"
        pack = {"version": 1, "name": "bench", "owner": "bench", "source": "bench", "policy": POLICY}
        rules.write_text(yaml.safe_dump(pack), encoding="utf-8")
        config = folder / "gpuwarden.yaml"
        told = {
            "prometheus": {"url": prometheus, "warm_up": "0s"},
            "ledger": {"url": self.ledger},
            "listen": {"port": self.port, "tls_cert": str(self.certificate), "tls_key": str(key)},
            "rules": [str(rules)],
            "kubernetes": {"kubeconfig": str(kubeconfig)},
            "intake": INTAKE,
            "mode": "auto",
        }
        config.write_text(yaml.safe_dump(told), encoding="utf-8")
        self.log = folder / "gpuwarden.log"
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                [*COMMAND, "run", "--config", str(config)], cwd=ROOT, stdout=file, stderr=file,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def metric(self, start: str) -> float:
        """The sum of the samples whose line begins like this; 0 while nothing answers."""
        return scraped_sum(f"{self.url}/metrics", start, str(self.certificate))

    def end(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait(60)


class Watch:
    """What happens to nodes and Events, and when, as a client beside gpuwarden sees it. Times are unix seconds."""

    def __init__(self, plane: ControlPlane, condition: str = "") -> None:
        self._plane = plane
        self._condition = condition
        self._stop = threading.Event()
        #: node -> when its taint was first seen
        self.tainted: dict[str, float] = {}
        #: node -> when the condition of the reference was first seen to be True
        self.condemned: dict[str, float] = {}
        #: message of an Event about a node -> when it was first seen
        self.events: dict[str, float] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(path, take), daemon=True)
            for path, take in (("nodes", self._node), ("events", self._event))
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def event_seen(self, text: str) -> float | None:
        """When an Event with this text was first seen; words stand before it where similar ones were combined."""
        return next((at for message, at in list(self.events.items()) if message.endswith(text)), None)

    def _run(self, path: str, take: Any) -> None:
        """Watch on from a list; where the connection ends, the next one begins with all that is there."""
        while not self._stop.is_set():
            with contextlib.suppress(requests.RequestException), self._asked(path) as answer:
                for line in answer.iter_lines(chunk_size=None):
                    take(json.loads(line)["object"], time.time())
                    if self._stop.is_set():
                        return

    def _asked(self, path: str) -> requests.Response:
        return requests.get(
            f"{self._plane.url}/api/v1/{path}", params={"watch": "true", "timeoutSeconds": "3000"}, stream=True,
            timeout=3100, headers={"Authorization": f"Bearer {self._plane.admin.token}"},
            verify=str(self._plane.admin.authority),
        )  # fmt: skip

    def _node(self, node: Object, now: float) -> None:
        name = node["metadata"]["name"]
        if any(one["key"] == TAINT for one in node["spec"].get("taints", ())):
            self.tainted.setdefault(name, now)
        if self._condition and any(
            one["type"] == self._condition and one["status"] == "True" for one in node["status"].get("conditions", ())
        ):
            self.condemned.setdefault(name, now)

    def _event(self, event: Object, now: float) -> None:
        self.events.setdefault(str(event.get("message", "")), now)

"""The daemon as it is run: a real Prometheus scrapes the live fleet, and `gpuwarden run` sees a fault in two polls."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import requests
import yaml

from daemon.ledger import EntryKind, Ledger
from daemon.logs import utc
from fixtures.fleet import scenarios
from fixtures.fleet.serve import Clock, serving
from fixtures.fleet.telemetry import Fleet
from tests.prometheus_server import PrometheusServer, free_port, wait_until

POLL_S = 2
COMMAND = (sys.executable, "-c", "from daemon.cli import main; main()")


def test_a_fault_is_seen_within_two_polls_of_its_log_line(prometheus_binary: Path, tmp_path: Path, root: Path) -> None:
    began = time.time() - 20
    fleet = scenarios.live(began, nodes=2, step_s=1, fault_after_s=40)
    victim = next(row for row in fleet.labels if row.gpu_uuid)
    logs = tmp_path / "logs"
    logs.mkdir()
    log = logs / f"{victim.node}.log"
    log.write_bytes(b"")
    port = free_port()
    config = tmp_path / "gpuwarden.yaml"
    with serving(fleet, Clock(began)) as targets:
        (tmp_path / "prometheus.yml").write_text(
            requests.get(f"{targets}/prometheus.yml", timeout=10).text, encoding="utf-8"
        )
        with PrometheusServer(prometheus_binary, tmp_path / "prometheus.yml", tmp_path / "tsdb") as real:
            config.write_text(
                yaml.safe_dump(
                    {
                        "prometheus": {"url": real.url, "poll_interval": f"{POLL_S}s", "slow_interval": "10s"},
                        "ledger": {"url": f"sqlite:///{tmp_path / 'ledger.db'}"},
                        "listen": {"port": port},
                        "kernel_logs": [{"node": victim.node, "path": str(log)}],
                    }
                ),
                encoding="utf-8",
            )
            daemon = subprocess.Popen(
                [*COMMAND, "run", "--config", str(config)],
                cwd=root, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)},
            )  # fmt: skip
            try:
                wait_until("ready", lambda: requests.get(f"http://127.0.0.1:{port}/readyz", timeout=5).ok, 60)
                wait_until("sixteen GPUs judged", lambda: judged(port) == 16, 60)
                before = ticks(port)
                with log.open("ab") as file:
                    file.write(lost_gpu_line(fleet, victim.node, victim.gpu_uuid))
                wait_until("the incident", lambda: "hardware" in incidents(port), 30)
                assert ticks(port) - before <= 2
            finally:
                daemon.send_signal(signal.SIGTERM)
                _, said = daemon.communicate(timeout=30)
            assert daemon.returncode == 0, said.decode()
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=lambda: utc(time.time())) as ledger:
        opened = [e for e in ledger.entries(kind=EntryKind.INCIDENT_OPENED) if e.body["cause_class"] == "hardware"]
        decided = [e for e in ledger.entries(kind=EntryKind.DECISION) if e.incident == opened[0].incident]
    assert [e.body["gpu_uuids"] for e in opened] == [[victim.gpu_uuid]]
    assert decided[0].body["mode"] == "observe"
    assert decided[0].body["plan"]["action"] in ("drain", "reboot_node", "quarantine")
    explained = subprocess.run(
        [*COMMAND, "explain", victim.gpu_uuid, "--config", str(config), "-o", "json"],
        cwd=root, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert json.loads(explained.stdout)["gpus"][0]["state"] == "failed"


def lost_gpu_line(fleet: Fleet, node: str, gpu_uuid: str) -> bytes:
    """The driver's record of a GPU that left the bus, as rsyslog writes it, stamped now."""
    pci = next(gpu.pci for gpu in fleet.shape.gpus if gpu.uuid == gpu_uuid)
    text = f"NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    return f"{utc(time.time()).isoformat()} {node} kernel: {text}\n".encode()


def scrape(port: int) -> str:
    return requests.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text


def judged(port: int) -> int:
    return sum(
        line.startswith("gpuwarden_gpu_score{") and 'state="healthy"' in line for line in scrape(port).splitlines()
    )


def ticks(port: int) -> float:
    rows = [line for line in scrape(port).splitlines() if line.startswith("gpuwarden_ticks_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in rows)


def incidents(port: int) -> str:
    return "".join(line for line in scrape(port).splitlines() if line.startswith("gpuwarden_incidents_open{"))

"""Healthy exporters of a thousand nodes for a real Prometheus: one simulated node's pages, copied under other names.

Simulating every node would take more of the machine than all that is measured; what the pages say is the same.
"""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from fixtures.fleet import scenarios
from fixtures.fleet.serve import Pages
from fixtures.fleet.telemetry import Fleet
from tests.prometheus_server import PrometheusServer

SCRAPE_S = 30
_BEFORE_S = 600


class Templates:
    """The pages of a fleet of one healthy node, by time."""

    def __init__(self) -> None:
        self.began_s = time.time() - _BEFORE_S
        self.fleet: Fleet = scenarios.healthy(nodes=2, hours=4, start_s=self.began_s, step_s=5.0)
        self._node = self.fleet.shape.nodes[0]
        self._pages = Pages(self.fleet)
        self._lock = threading.Lock()
        self._made: dict[str, tuple[int, str]] = {}

    def pci(self, gpu: int) -> str:
        """The address of a GPU, the same on each node."""
        return self._node.gpus[gpu].pci

    def page(self, name: str, number: int, kind: str) -> str:
        """One node's page now; a page is made anew every five seconds and shared by all nodes until then."""
        step = int((time.time() - self.began_s) // 5)
        with self._lock:
            made = self._made.get(kind)
            if made is None or made[0] != step:
                _, text = self._pages.page(self._node.name, kind, step * 5.0)
                made = self._made[kind] = (step, text)
        text = made[1].replace(self._node.name, name)
        for gpu in self._node.gpus:
            text = text.replace(gpu.uuid, f"GPU-{number:08x}-0000-4000-8000-{gpu.slot:012x}")
        return text


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    templates: ClassVar[Templates]
    numbers: ClassVar[dict[str, int]]

    def do_GET(self) -> None:
        _, name, kind = self.path.strip("/").split("/")
        body = self.templates.page(name, self.numbers[name], kind).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Say nothing: scrapes come all the time."""


@contextmanager
def scraped(binary: Path, folder: Path, nodes: Sequence[str]) -> Iterator[tuple[str, Templates]]:
    """A Prometheus that scrapes these nodes; its URL, and what the exporters say."""
    templates = Templates()
    handler = type("Handler", (_Handler,), {"templates": templates, "numbers": {n: i for i, n in enumerate(nodes)}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"127.0.0.1:{server.server_address[1]}"
    found = {
        kind: [
            {
                "targets": [address],
                "labels": {"__metrics_path__": f"/node/{name}/{kind}", "instance": name, "node": name},
            }
            for name in nodes
        ]
        for kind in ("dcgm", "node")
    }
    config = f"global: {{scrape_interval: {SCRAPE_S}s, scrape_timeout: {SCRAPE_S}s}}\nscrape_configs:\n"
    for kind, targets in found.items():
        path = folder / f"{kind}.json"
        path.write_text(json.dumps(targets), encoding="utf-8")
        config += f"  - {{job_name: {kind}, file_sd_configs: [{{files: ['{path}']}}]}}\n"
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    try:
        with PrometheusServer(binary, folder / "prometheus.yml", folder / "tsdb") as prometheus:
            yield prometheus.url, templates
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

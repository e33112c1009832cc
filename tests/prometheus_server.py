"""A real Prometheus on loopback, for the time of a test."""

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
import requests


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(what: str, ready: Callable[[], bool], seconds: float = 30) -> None:
    """Return once `ready` says so; the test fails where it never does. A refused connection is not ready yet."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if ready():
                return
        except requests.ConnectionError:
            pass
        time.sleep(0.1)
    pytest.fail(f"{what}: not after {seconds} s")


class PrometheusServer:
    """Started with a configuration and a storage folder; ended whatever happens."""

    def __init__(self, binary: Path, config: Path, storage: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        command = [
            str(binary), f"--config.file={config}", f"--storage.tsdb.path={storage}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
            "--storage.tsdb.retention.time=100y", "--log.level=error",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        wait_until(f"Prometheus at {self.url}", lambda: requests.get(f"{self.url}/-/ready", timeout=5).ok)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait(20)

"""One fleet with its Prometheus for all tests of this folder, and a site for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.endtoend.site import Site, Telemetry, telemetry
from tests.testbed.control_plane import ControlPlane


@pytest.fixture(scope="session")
def seen(prometheus_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Telemetry]:
    with telemetry(prometheus_binary, tmp_path_factory.mktemp("telemetry")) as served:
        yield served


@pytest.fixture
def site(cluster: ControlPlane, seen: Telemetry, tmp_path: Path) -> Iterator[Site]:
    made = Site(cluster, seen, tmp_path)
    yield made
    made.close()

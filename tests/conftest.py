"""What every test may ask for, and one loud line at the end for each thing that could not be tested here.

A test that needs something from outside the repository asks for it with a fixture of this file (`shared`,
`prometheus_binary`, `promtool_binary`, `control_plane`, `cluster`, `workload_controllers`) or calls `pytest.skip` with
one line that says what is missing. Either way the reason appears after the results, so a green run never hides what it
left out.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.testbed.build import Unavailable, binaries, controllers, say_on_stderr
from tests.testbed.control_plane import ControlPlane
from tests.testbed.workload_controllers import WorkloadControllers

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
#: Fixtures that stand for something a machine may lack, and the marker that `-m` selects their tests by.
MARKER_OF = {
    "shared": "shared",
    "prometheus_binary": "prometheus",
    "promtool_binary": "prometheus",
    "control_plane": "kubernetes",
}

# A pause of a busy machine is no failure of the code, so only results count, not how long an example took. CI asks the
# same questions of each commit, so that what it says is about the commit; whoever develops asks new ones at each run.
hypothesis.settings.register_profile(
    "house",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
    database=None if os.environ.get("CI") else hypothesis.settings.default.database,
)
hypothesis.settings.load_profile("house")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's top folder."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the repository (field cases, the XID catalogue, recorded scrapes)."""
    if not SHARED.is_dir():
        pytest.skip("the reference data is not there (a folder `shared` beside the repository)")
    return SHARED


def _binary(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (`make debian` as root, or apt install prometheus)")
    return Path(found)


@pytest.fixture(scope="session")
def prometheus_binary() -> Path:
    """A Prometheus server to start on loopback."""
    return _binary("prometheus")


@pytest.fixture(scope="session")
def promtool_binary() -> Path:
    """Prometheus' own checker of rules and configuration."""
    return _binary("promtool")


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A real Kubernetes control plane on loopback, built at its first use (`make testbed` builds it beforehand)."""
    visibly = request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled
    try:
        with visibly():
            plane = ControlPlane(binaries())
            plane.start()
            say_on_stderr(f"control plane ready in {plane.started_in_s:.1f} s")
    except Unavailable as missing:
        pytest.skip(str(missing))
    failed_before = request.session.testsfailed
    yield plane
    with visibly():
        plane.close(keep_logs=request.session.testsfailed > failed_before)


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane of the session, emptied after the test, its servers working again."""
    yield control_plane
    control_plane.clean()


@pytest.fixture(scope="module")
def workload_controllers(request: pytest.FixtureRequest, control_plane: ControlPlane) -> Iterator[WorkloadControllers]:
    """JobSet's controller and the Kubeflow training operator on the session's control plane, with their kinds.

    They are built at their first use (`make testbed` builds them beforehand), start within seconds where a module first
    asks, and leave with it: other modules' tests run on a cluster that has never heard of these kinds.
    """
    visibly = request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled
    try:
        with visibly():
            programs = controllers()
    except Unavailable as missing:
        pytest.skip(str(missing))
    with WorkloadControllers(control_plane, programs) as running:
        yield running


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kubernetes: runs on a real control plane (added by itself, by the fixture)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in MARKER_OF:
                item.add_marker(MARKER_OF[fixture])


def not_tested(reasons: Iterable[str]) -> list[str]:
    """One line for each distinct reason of a skip, with how many tests it cost."""
    counts = Counter(reason.removeprefix("Skipped: ").strip() for reason in reasons)
    return [f"NOT TESTED: {reason} ({count} test{'s'[: count > 1]})" for reason, count in sorted(counts.items())]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    for line in not_tested(reasons):
        terminalreporter.write_line(line, red=True, bold=True)

"""`gpuwarden run`: what it prints, how it ends and with which code, and who answers on its port meanwhile."""

import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
import yaml

from daemon.commands import process
from daemon.commands.explain import explain
from daemon.commands.run import run
from daemon.config import Config, ListenConfig
from daemon.ledger import EntryKind, Ledger
from daemon.logs import utc
from daemon.loop import Loop
from daemon.metrics import Metrics
from daemon.web import Health, Web
from tests.daemon.conftest import Daemon
from tests.scripted_prometheus import DOWN, ScriptedPrometheus, always

pytestmark = pytest.mark.usefixtures("loaded")

Write = Callable[..., Path]


@pytest.fixture
def config(tmp_path: Path, prometheus: ScriptedPrometheus) -> Write:
    """Writes a configuration; keyword arguments are its sections."""

    def write(**sections: object) -> Path:
        path = tmp_path / "gpuwarden.yaml"
        known = {
            "prometheus": {"url": prometheus.url, "warm_up": 0, "timeout": 2},
            "ledger": {"url": f"sqlite:///{tmp_path / 'ledger.db'}"},
            "listen": {"port": 0},
        }
        path.write_text(yaml.safe_dump(known | sections), encoding="utf-8")
        return path

    return write


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[int, None], None]]:
    """The signal handlers that the command installs, without installing them in the test's own process."""
    found: dict[int, Callable[[int, None], None]] = {}
    monkeypatch.setattr(process.signal, "signal", found.__setitem__)
    return found


def test_check_prints_what_is_in_effect_and_starts_nothing(
    config: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = config()
    assert run(path, check=True, once=False) == 0
    out = capsys.readouterr().out
    assert "digest" in out.splitlines()[-1]
    shown = yaml.safe_load(out)
    assert Config.model_validate(shown) == Config.model_validate(yaml.safe_load(path.read_text()))
    assert shown["prometheus"]["poll_interval"] == 30.0
    assert not (tmp_path / "ledger.db").exists()


def test_check_shows_no_secret(config: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(
        prometheus={"url": "https://scrape:hunter2@prom.example", "headers": {"X-Scope-OrgID": "hunter3"}},
        ledger={"url": "postgresql://warden:hunter4@db/ledger"},
        tickets={"url": "https://warden:hunter5@desk.example/hunter6?key=hunter7"},
    )
    assert run(path, check=True, once=False) == 0
    out = capsys.readouterr().out
    assert "hunter" not in out
    assert "https://scrape:***@prom.example" in out
    assert "postgresql://warden:***@db/ledger" in out
    assert "https://desk.example/***" in out
    assert "X-Scope-OrgID" in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("prometheus: {uri: http://x}\n", "prometheus.uri", id="an unknown key"),
        pytest.param("prometheus: {poll_interval: soon}\n", "prometheus.poll_interval", id="a value of no sense"),
        pytest.param("prometheus: [\n", "gpuwarden.yaml", id="no YAML"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_path_of_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = tmp_path / "gpuwarden.yaml"
    path.write_text(text, encoding="utf-8")
    assert run(path, check=True, once=False) == 2
    captured = capsys.readouterr()
    assert (captured.out, says in captured.err) == ("", True)


def test_once_is_one_tick_in_the_ledger(config: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(config(), check=False, once=True) == 0
    assert capsys.readouterr().out == "one tick: 0 GPUs, 0 open incidents with a decision each\n"
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=lambda: utc(0)) as ledger:
        assert [entry.kind for entry in ledger.entries(kind=EntryKind.RUN_STARTED)] == [EntryKind.RUN_STARTED]
        assert ledger.state("moment") is not None


def test_a_fleet_without_gpus_is_no_quiet_fleet(config: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = config()
    assert run(path, check=False, once=True) == 0
    assert "has no GPU metrics; check prometheus.matchers" in capsys.readouterr().err
    assert explain("gpu001", path, "table") == 1
    assert "has seen no GPU yet; check prometheus.matchers" in capsys.readouterr().err


def test_once_without_an_answer_says_so_in_its_exit_code(
    config: Write, capsys: pytest.CaptureFixture[str], prometheus: ScriptedPrometheus
) -> None:
    prometheus.script = always(DOWN)
    assert run(config(), check=False, once=True) == 3
    assert "Prometheus cannot be asked" in capsys.readouterr().err


def test_a_ledger_that_cannot_be_opened_ends_it(
    config: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    assert run(config(ledger={"url": f"sqlite:///{tmp_path / 'folder'}"}), check=False, once=False) == 4
    assert "next: " in capsys.readouterr().err


def test_a_port_that_somebody_else_has_is_named(
    config: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(config(listen={"port": port}), check=False, once=False) == 2
    assert f"127.0.0.1:{port}" in capsys.readouterr().err
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=lambda: utc(0)) as ledger:
        assert list(ledger.entries()) == [], "nothing says that a run began"


def test_the_first_signal_ends_the_run_well_and_a_second_one_ends_it_at_once(
    config: Write, handlers: dict[int, Callable[[int, None], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_until_told(_loop: Loop, stop: threading.Event) -> None:
        handlers[signal.SIGTERM](signal.SIGTERM, None)
        assert stop.is_set()

    monkeypatch.setattr(Loop, "run", run_until_told)
    assert run(config(), check=False, once=False) == 0
    assert handlers[signal.SIGTERM] is signal.SIG_DFL


def test_it_answers_probes_while_it_runs_and_frees_the_port_after(
    config: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, requests.Response] = {}
    ports: list[int] = []
    start = Web.start

    def started(web: Web) -> None:
        ports.append(web.port)
        start(web)

    def run_a_tick(loop: Loop, stop: threading.Event) -> None:
        base = f"http://127.0.0.1:{ports[0]}"
        seen["before"] = requests.get(f"{base}/readyz", timeout=5)
        loop.tick()
        for path in ("metrics", "healthz", "readyz", "else"):
            seen[path] = requests.get(f"{base}/{path}", timeout=5)
        loop.close()
        stop.set()

    monkeypatch.setattr(Web, "start", started)
    monkeypatch.setattr(Loop, "run", run_a_tick)
    assert run(config(), check=False, once=False) == 0
    assert {name: answer.status_code for name, answer in seen.items()} == {
        "before": 503, "metrics": 200, "healthz": 200, "readyz": 200, "else": 404,
    }  # fmt: skip
    assert seen["before"].json() == {"ok": False, "why": ["the first tick is not done yet"]}
    assert "gpuwarden_build_info" in seen["metrics"].text
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", ports[0]))


# ------------------------------------------------------------------------------------------------------- the web


def test_health_may_change_while_it_is_asked_for(started: Daemon) -> None:
    """The web's threads ask while the loop's thread goes blind and sees again."""
    loop, stop = started.loop, threading.Event()
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            while not stop.is_set():
                loop.health()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    at = utc(started.clock())
    for _ in range(2000):
        loop._go_blind(at, "on purpose")
        loop._blind = None
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_it_listens_on_an_ipv6_address() -> None:
    if not socket.has_ipv6:
        pytest.skip("IPV6 NOT TESTED: this Python has none")
    try:
        web = Web(ListenConfig(host="::1", port=0), Metrics().registry, lambda: Health(True, True, ()))
    except OSError as error:
        pytest.skip(f"IPV6 NOT TESTED: no ::1 here: {error}")
    web.start()
    try:
        assert requests.get(f"http://[::1]:{web.port}/healthz", timeout=5).json() == {"ok": True, "why": []}
    finally:
        web.stop()


def test_a_prober_that_hangs_up_is_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    asked = threading.Event()

    def health() -> Health:
        asked.set()
        raise ConnectionResetError("the client is gone")

    web = Web(ListenConfig(port=0), Metrics().registry, health)
    web.start()
    try:
        with socket.create_connection(("127.0.0.1", web.port)) as client:
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert asked.wait(10)
            assert client.recv(1) == b""
    finally:
        web.stop()
    assert capsys.readouterr().err == ""

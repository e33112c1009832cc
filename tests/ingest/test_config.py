"""`gpuwarden.yaml`: safe defaults, and for whatever is wrong the file, the line, the key and the reason."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config import Config, ConfigError, load_config

WRONG = [
    pytest.param(
        "prometheus:\n  uri: http://p:9090\n", 2, "prometheus.uri", "no such key", id="a key that nobody knows"
    ),
    pytest.param("prometheus:\n  url: p:9090\n", 2, "prometheus.url", "http://HOST:PORT", id="an address without http"),
    pytest.param(
        "prometheus:\n  url: http://p:99999\n", 2, "prometheus.url", "http://HOST:PORT", id="a port that is none"
    ),
    pytest.param(
        "prometheus:\n  url: http://:9090\n", 2, "prometheus.url", "http://HOST:PORT", id="an address without host"
    ),
    pytest.param(
        "prometheus:\n  url: 'http://[::1'\n", 2, "prometheus.url", "http://HOST:PORT", id="half an IPv6 address"
    ),
    pytest.param(
        "prometheus:\n  timeout: 0\n", 2, "prometheus.timeout", "greater than 0", id="no time at all to answer"
    ),
    pytest.param("prometheus:\n  timeout: .inf\n", 2, "prometheus.timeout", "finite", id="all the time in the world"),
    pytest.param("prometheus:\n  timeout: .nan\n", 2, "prometheus.timeout", "finite", id="a time that is no number"),
    pytest.param(
        "prometheus:\n  poll_interval: 0.1s\n", 2, "prometheus.poll_interval", "greater than", id="polls too fast"
    ),
    pytest.param(
        "prometheus:\n  poll_interval: soon\n", 2, "prometheus.poll_interval", "30s, 2m, 1h30m", id="no duration"
    ),
    pytest.param(
        "log_level: info\nprometheus:\n  slow_interval: 10s\n",
        2,
        "prometheus",
        "must not be shorter",
        id="the slow interval is faster",
    ),
    pytest.param("prometheus:\n  concurrency: 0\n", 2, "prometheus.concurrency", "greater than", id="nobody asks"),
    pytest.param(
        "prometheus:\n  max_response_bytes: 10\n", 2, "prometheus.max_response_bytes", "greater than", id="no room"
    ),
    pytest.param(
        "prometheus:\n  matchers: [cluster=a]\n", 2, "prometheus.matchers", 'cluster="a"', id="a matcher without quotes"
    ),
    pytest.param(
        'prometheus:\n  matchers: [\'a="b"} or {c="d"\']\n',
        2,
        "prometheus.matchers",
        "looks like",
        id="a matcher that is more than one",
    ),
    pytest.param(
        "prometheus:\n  selectors:\n    - match: sum(up)\n",
        3,
        "prometheus.selectors.0.match",
        "series selector",
        id="an expression where a selector belongs",
    ),
    pytest.param(
        "prometheus:\n  selectors:\n    - {match: up, cadence: often}\n",
        3,
        "prometheus.selectors.0.cadence",
        "'fast'",
        id="a cadence that is none",
    ),
    pytest.param(
        "labels:\n  exporter_pods: '('\n", 2, "labels.exporter_pods", "not a regular expression", id="no expression"
    ),
    pytest.param(
        "kernel_logs:\n  - {node: '', path: a}\n", 2, "kernel_logs.0.node", "at least 1", id="a log of no node"
    ),
    pytest.param("kernel_logs:\n  - {node: n1}\n", 2, "kernel_logs.0.path", "required", id="a log without a path"),
    pytest.param("tickets: {}\n", 1, "tickets.url", "required", id="tickets that go nowhere"),
    pytest.param("tickets:\n  url: desk:80\n", 2, "tickets.url", "http://HOST:PORT/PATH", id="tickets without http"),
    pytest.param("tickets:\n  url: 'http://[::1'\n", 2, "tickets.url", "http://HOST", id="half an address of tickets"),
    pytest.param(
        "tickets:\n  url: http://desk\n  timeout: 2m\n", 3, "tickets.timeout", "less than", id="an answer in no hurry"
    ),
    pytest.param(
        "tickets:\n  url: http://me:word@desk\n  token_file: token\n", 1, "tickets", "either", id="two identities"
    ),
    pytest.param("listen:\n  port: 70000\n", 2, "listen.port", "less than", id="a port out of range"),
    pytest.param("mode: destroy\n", 1, "mode", "'observe'", id="a mode that is none"),
    pytest.param("log_level: info\nlog_level: debug\n", 2, "", "given twice", id="a key given twice"),
    pytest.param("log_level: [\n", 2, "", "", id="no YAML"),
    pytest.param("- a\n", 1, "", "map of sections", id="a list"),
    pytest.param("1: 2\n", 1, "1", "", id="a number for a key"),
]


@pytest.mark.parametrize(("text", "line", "key", "reason"), WRONG)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, line: int, key: str, reason: str) -> None:
    path = tmp_path / "gpuwarden.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.key) == (str(path), line, key)
    assert reason in problem.reason
    assert f"{path}:{line}" in str(caught.value)


def test_everything_that_is_wrong_is_said_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gpuwarden.yaml"
    path.write_text("prometheus:\n  url: x\n  timeout: never\nlisten:\n  port: x\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert [problem.line for problem in caught.value.problems] == [2, 3, 5]
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(lambda path: path.unlink(missing_ok=True), "No such file", id="there is none"),
        pytest.param(lambda path: path.mkdir(), "directory", id="a folder"),
        pytest.param(lambda path: path.write_bytes(b"\xff\xfe"), "utf-8", id="no text"),
    ],
)
def test_a_file_that_cannot_be_read_is_said(tmp_path: Path, make, reason: str) -> None:
    path = tmp_path / "gpuwarden.yaml"
    make(path)
    with pytest.raises(ConfigError, match=reason):
        load_config(path)


def test_without_a_file_everything_has_a_default_that_changes_nothing_and_listens_to_nobody() -> None:
    config = load_config(None)
    assert config == Config()
    assert (config.mode, config.listen.host, config.prometheus.url) == ("observe", "127.0.0.1", "http://127.0.0.1:9090")
    assert not config.prometheus.insecure_skip_verify


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    path = tmp_path / "gpuwarden.yaml"
    path.write_text("# nothing yet\n")
    assert load_config(path) == Config()


def test_paths_are_relative_to_the_file_they_stand_in(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    path = folder / "gpuwarden.yaml"
    path.write_text(
        "rules: [site.yaml, /abs/other.yaml]\n"
        "kernel_logs: [{node: n1, path: logs/n1.log}]\n"
        "prometheus: {bearer_token_file: token, ca_file: /abs/ca.pem}\n"
        "tickets: {url: 'http://desk/', token_file: desk-token}\n"
    )
    config = load_config(path)
    assert config.rules == (folder / "site.yaml", Path("/abs/other.yaml"))
    assert config.kernel_logs[0].path == folder / "logs/n1.log"
    assert config.prometheus.bearer_token_file == folder / "token"
    assert config.prometheus.ca_file == Path("/abs/ca.pem")
    assert config.tickets is not None
    assert config.tickets.token_file == folder / "desk-token"


def test_a_wrong_address_of_tickets_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "gpuwarden.yaml"
    path.write_text("tickets: {url: 'htps://desk.example/hook-secret'}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert "hook-secret" not in str(caught.value)


def test_durations_are_written_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "gpuwarden.yaml"
    path.write_text("prometheus: {url: 'http://p:9090/', poll_interval: 15, slow_interval: 2m30s, backoff_max: 1h}\n")
    asked = load_config(path).prometheus
    assert (asked.poll_interval, asked.slow_interval, asked.backoff_max) == (15, 150, 3600)
    assert asked.url == "http://p:9090"


@given(text=st.text(alphabet=st.sampled_from(list("prometheus:\n url-[]{}&*!#,'\"\\0123\t")), max_size=60))
def test_any_text_is_a_config_or_the_one_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "gpuwarden.yaml"
    path.write_text(text)
    try:
        config = load_config(path)
    except ConfigError as error:
        assert str(error)  # noqa: PT017 - raising is allowed, not wanted
    else:
        assert isinstance(config, Config)

"""The intake's configuration: what is refused before anything starts, since it would take tokens in the clear."""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from daemon.commands.output import ExitCode
from daemon.commands.run import Daemon
from daemon.config import Config, load_config
from daemon.ledger import Ledger
from daemon.metrics import Metrics
from rules.loader import load_rules

ON: dict[str, Any] = {"kubernetes": {}, "intake": {"enabled": True}}
TLS = {"tls_cert": "tls.crt", "tls_key": "tls.key"}


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        pytest.param({"intake": {"enabled": True}}, "kubernetes", id="nobody to ask whose a token is"),
        pytest.param(ON | {"listen": {"host": "0.0.0.0"}}, "in the clear", id="every address without TLS"),  # noqa: S104
        pytest.param(ON | {"listen": {"host": "::"}}, "in the clear", id="every IPv6 address without TLS"),
        pytest.param(ON | {"listen": {"host": "controller"}}, "in the clear", id="a name that could be any address"),
        pytest.param({"listen": {"tls_cert": "x"}}, "both or none", id="a certificate without its key"),
        pytest.param({"listen": {"tls_key": "x"}}, "both or none", id="a key without its certificate"),
        pytest.param({"intake": {"service_accounts": []}}, "service_accounts", id="no account"),
        pytest.param({"intake": {"service_accounts": ["a/b/c"]}}, "NAMESPACE/NAME", id="an account that is none"),
        pytest.param({"intake": {"reports_per_minute": 10}}, "500", id="less than one batch"),
    ],
)
def test_a_configuration_is_refused(sections: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Config.model_validate(sections)


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({}, id="nothing is said, and nothing is taken"),
        pytest.param(ON, id="loopback"),
        pytest.param(ON | {"listen": {"host": "::1"}}, id="the other loopback"),
        pytest.param(ON | {"listen": {"host": "localhost"}}, id="loopback by its name"),
        pytest.param(ON | {"listen": {"host": "0.0.0.0"} | TLS}, id="TLS"),  # noqa: S104
        pytest.param(
            {"kubernetes": {}, "intake": {"enabled": True, "allow_plaintext": True}, "listen": {"host": "10.0.0.1"}},
            id="somebody says that he knows what he does",
        ),
    ],
)
def test_a_configuration_is_taken(sections: dict[str, Any]) -> None:
    assert Config.model_validate(sections).intake.enabled is bool(sections)


def test_paths_of_a_certificate_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gpuwarden.yaml"
    path.write_text(yaml.safe_dump({"listen": TLS}), encoding="utf-8")
    listen = load_config(path).listen
    assert (listen.tls_cert, listen.tls_key) == (tmp_path / "tls.crt", tmp_path / "tls.key")


def test_a_certificate_that_is_not_there_ends_the_start_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.model_validate(
        {"listen": {"port": 0, "tls_cert": tmp_path / "a.crt", "tls_key": tmp_path / "a.key"}}
    )
    with Ledger.open(f"sqlite:///{tmp_path / 'x.db'}", now=lambda: datetime.now(UTC)) as ledger:
        daemon = Daemon(config, load_rules(), ledger, Metrics(), None)
        assert daemon.watch(threading.Event()) == ExitCode.USAGE
    assert "a.crt" in capsys.readouterr().err

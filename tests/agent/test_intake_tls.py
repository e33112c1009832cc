"""The server's certificate: agents verify it, it is renewed under the running process, and a bad one is told."""

import socket
import subprocess
from pathlib import Path

import pytest
import requests

from daemon.agent.wire import PATH
from daemon.config import ListenConfig
from daemon.tls import Certificate, CertificateError
from tests.agent.served import Served, batch_of, plain, serving, token_of, xid


def certificate(folder: Path, name: str = "first") -> tuple[Path, Path]:
    """A self-signed certificate for loopback with its key, as a person makes one."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out",
            str(cert),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def listen(folder: Path) -> ListenConfig:
    cert, key = certificate(folder)
    return ListenConfig(port=0, tls_cert=cert, tls_key=key)


def post(served: Served, authority: Path, sequence: int = 1) -> int:
    """The status for a batch; raises SSLError where the certificate is not this authority's."""
    with requests.Session() as session:
        session.trust_env = False
        return session.post(
            served.url + PATH, data=batch_of("n1", plain(xid(sequence))), verify=str(authority), timeout=20,
            headers={"Authorization": f"Bearer {token_of('n1')}"},
        ).status_code  # fmt: skip


def test_an_agent_that_trusts_the_certificate_reports_over_tls(tmp_path: Path) -> None:
    settings = listen(tmp_path)
    other, _ = certificate(tmp_path, "other")
    with serving(tmp_path, settings) as served:
        assert post(served, tmp_path / "first.crt") == 200
        with pytest.raises(requests.exceptions.SSLError):
            post(served, other)
        assert len(served.entries()) == 1


def test_what_speaks_no_tls_gets_no_answer_and_is_in_nobodys_way(tmp_path: Path) -> None:
    with (
        serving(tmp_path, listen(tmp_path)) as served,
        socket.create_connection(("127.0.0.1", served.web.port), timeout=20),
    ):
        try:
            answer = served.bytes(b"GET /healthz HTTP/1.0\r\n\r\n")
        except ConnectionResetError:
            answer = b""
        assert b"HTTP" not in answer
        assert post(served, tmp_path / "first.crt") == 200


def test_an_answer_comes_also_where_the_body_was_not_read(tmp_path: Path) -> None:
    with serving(tmp_path, listen(tmp_path)) as served:
        answer = requests.post(
            served.url + PATH, data=b"x" * (1 << 20), verify=str(tmp_path / "first.crt"), timeout=20,
            headers={"Authorization": "Bearer expired"},
        )  # fmt: skip
        assert answer.status_code == 401


def test_a_renewed_certificate_is_used_for_the_next_connection(tmp_path: Path) -> None:
    settings = listen(tmp_path)
    new_cert, new_key = certificate(tmp_path, "second")
    trusted = tmp_path / "trusted.crt"
    trusted.write_bytes((tmp_path / "first.crt").read_bytes())
    with serving(tmp_path, settings) as served:
        assert post(served, trusted) == 200
        assert settings.tls_cert is not None
        assert settings.tls_key is not None
        new_key.replace(settings.tls_key)
        assert post(served, trusted, 2) == 200, "half of a renewal: the last good one goes on"
        settings.tls_cert.write_bytes(new_cert.read_bytes())
        with pytest.raises(requests.exceptions.SSLError):
            post(served, trusted, 3)
        assert post(served, new_cert, 3) == 200
        settings.tls_cert.unlink()
        assert post(served, new_cert, 4) == 200, "a certificate that is gone: the last good one goes on"


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda cert, _key: cert.unlink(), id="that is not there"),
        pytest.param(lambda cert, _key: cert.write_text("no certificate"), id="that is none"),
        pytest.param(lambda _cert, key: key.write_text(""), id="without a key"),
    ],
)
def test_a_certificate_is_refused_at_the_start(tmp_path: Path, spoil) -> None:
    cert, key = certificate(tmp_path)
    spoil(cert, key)
    with pytest.raises(CertificateError, match=r"listen\.tls_cert"):
        Certificate(cert, key)


def test_a_key_of_another_certificate_is_refused_at_the_start(tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path)
    _, other = certificate(tmp_path, "other")
    with pytest.raises(CertificateError):
        Certificate(cert, other)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-in", str(key), "-out", str(locked), "-aes256", "-passout", "pass:secret"],
        check=True, capture_output=True,
    )  # fmt: skip
    with pytest.raises(CertificateError):
        Certificate(cert, locked)

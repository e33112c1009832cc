"""The server's certificate, read again when its files change: a mounted secret is renewed under a running process."""

import ssl
import threading
from pathlib import Path

import structlog

log = structlog.get_logger()

_Stamp = tuple[tuple[int, int, int], ...]


class CertificateError(Exception):
    """The certificate cannot be used. The text says which files, why, and what to do."""


class Certificate:
    """A certificate with its key, as files. Raises CertificateError where they are of no use at the start."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._files = cert, key
        self._lock = threading.Lock()
        try:
            self._stamp = self._look()
            self._context = self._load()
        except OSError as error:  # ssl.SSLError is one
            raise CertificateError(
                f"listen.tls_cert {cert} and listen.tls_key {key} cannot be used: {error}; give a certificate and its "
                "key, without a passphrase, as PEM files"
            ) from error

    def context(self) -> ssl.SSLContext:
        """For the next connection. Where the files hold nothing of use (half written), the last good one goes on."""
        with self._lock:
            try:
                stamp = self._look()
                if stamp != self._stamp:
                    self._stamp = stamp
                    self._context = self._load()
                    log.info("certificate", state="read again", path=str(self._files[0]))
            except OSError as error:
                log.warning("certificate", state="the last good one goes on", detail=str(error))
            return self._context

    def _look(self) -> _Stamp:
        found = [path.stat() for path in self._files]
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        cert, key = self._files
        context.load_cert_chain(cert, key, password=_no_passphrase)
        return context


def _no_passphrase() -> str:
    """Without it, OpenSSL asks on the terminal."""
    return ""

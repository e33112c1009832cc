"""One request to the controller, over real HTTP: what goes out, and what each answer means for the spool."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from daemon.agent.config import AgentConfig
from daemon.agent.sender import Sender, Unsent, Who
from daemon.agent.wire import MAX_BATCH_BYTES, MAX_REPORTS, PATH, RESULT_HEADER, Receipt, Refused, decode_batch, encode
from tests.agent.test_pacing import report

WHO = Who("n1", "boot", "1.2.3")
Answer = tuple[int, bytes, dict[str, str]]


@contextmanager
def controller(answer: Callable[[bytes], Answer]) -> Iterator[tuple[str, list[tuple[str, dict[str, str], bytes]]]]:
    """Its address, and what was asked of it: path, headers, body."""
    asked: list[tuple[str, dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, dict(self.headers), body))
            status, told, headers = answer(body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


def takes_all(body: bytes) -> Answer:
    return 200, encode(Receipt(tuple(one.id for one in decode_batch(body).reports))), {}


def sender(url: str, token: Path | None = None) -> Sender:
    return Sender(AgentConfig(controller=url, token_file=token, timeout=5), WHO)


def test_a_batch_says_who_sends_it_and_its_receipt_names_what_was_taken(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    with controller(takes_all) as (url, asked):
        receipt = sender(url, token).send([report(1), report(2)])
    assert receipt.taken == (report(1).id, report(2).id)
    ((path, headers, body),) = asked
    assert path == PATH
    assert headers["Authorization"] == "Bearer secret"
    assert headers["User-Agent"] == "gpuwarden-agent/1.2.3"
    batch = decode_batch(body)
    assert (batch.node, batch.boot_id, batch.version) == ("n1", "boot", "1.2.3")
    assert batch.reports == (report(1), report(2))


def test_no_batch_is_larger_than_the_controller_takes() -> None:
    with controller(takes_all) as (url, asked):
        long = [report(number, text="x" * 1000) for number in range(3 * MAX_REPORTS)]
        receipt = sender(url).send(long)
    assert 0 < len(receipt.taken) <= MAX_REPORTS
    assert all(len(body) <= MAX_BATCH_BYTES for _, _, body in asked)


@pytest.mark.parametrize(
    ("answer", "said", "after_s"),
    [
        pytest.param((503, b"starting", {}), "503: starting", 0.0, id="not yet"),
        pytest.param((429, b"", {"Retry-After": "7"}), "429", 7.0, id="too much, and when to come back"),
        pytest.param((429, b"", {"Retry-After": "soon"}), "429", 0.0, id="a time that is none"),
        pytest.param((401, b"token expired", {}), "401: token expired", 0.0, id="not known"),
        pytest.param((403, b"n1 is not n2", {}), "403", 0.0, id="not this node's"),
        pytest.param((400, b"plain HTTP to an HTTPS port", {}), "400", 0.0, id="a proxy says that it is malformed"),
        pytest.param((413, b"", {}), "413", 0.0, id="a proxy finds it too large"),
        pytest.param((307, b"", {"Location": "http://127.0.0.1:1/"}), "307", 0.0, id="a redirect is not followed"),
        pytest.param((200, b"<html>", {}), "no receipt", 0.0, id="somebody else answers"),
        pytest.param((200, b"x" * ((1 << 20) + 1), {}), "longer", 0.0, id="without an end"),
    ],
)
def test_what_was_not_taken_is_not_forgotten(answer: Answer, said: str, after_s: float) -> None:
    with controller(lambda _: answer) as (url, _asked), pytest.raises(Unsent, match=said) as raised:
        sender(url).send([report(1)])
    assert raised.value.after_s == after_s


def test_a_controller_that_is_not_there_is_not_an_end() -> None:
    with pytest.raises(Unsent, match="cannot be reached"):
        sender("http://127.0.0.1:1").send([report(1)])


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", id="it ends in the middle"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nxx", id="it is garbled"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="its pieces are none"),
        pytest.param(b"\x15\x03\x01\x00\x02\x02\x46", id="it is another protocol"),
        pytest.param(b"", id="there is none"),
    ],
)
def test_an_answer_that_breaks_off_is_no_receipt(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=once, daemon=True)
        thread.start()
        with pytest.raises(Unsent, match=r"cannot be reached|no receipt"):
            sender(f"http://127.0.0.1:{server.getsockname()[1]}").send([report(1)])
        thread.join(20)


def test_certificates_that_are_not_there_say_what_to_mend(tmp_path: Path) -> None:
    config = AgentConfig(controller="https://127.0.0.1:1", ca_file=tmp_path / "none.pem", token_file=None)
    with pytest.raises(Unsent, match=r"agent\.ca_file"):
        Sender(config, WHO).send([report(1)])


def test_a_token_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    with controller(takes_all) as (url, asked), pytest.raises(Unsent, match="projected token"):
        sender(url, tmp_path / "none").send([report(1)])
    assert asked == []


def test_one_report_that_no_controller_takes_does_not_hold_up_the_others() -> None:
    bad = report(3, text="poison")

    def answer(body: bytes) -> Answer:
        refused = 400, b"reports[0]: poison", {RESULT_HEADER: "malformed"}
        return refused if b"poison" in body else takes_all(body)

    waiting, refused = [report(1), report(2), bad, report(4)], list[Refused]()
    with controller(answer) as (url, _asked):
        one = sender(url)
        for _ in range(20):
            if not waiting:
                break
            receipt = one.send(waiting)
            refused += receipt.refused
            gone = {*receipt.taken, *(each.id for each in receipt.refused)}
            waiting = [each for each in waiting if each.id not in gone]
    assert waiting == []
    assert [each.id for each in refused] == [bad.id]


def test_an_empty_batch_asks_whether_one_would_be_taken() -> None:
    with controller(takes_all) as (url, asked):
        assert sender(url).send([]) == Receipt()
    assert json.loads(asked[0][2])["reports"] == []

"""The intake over real HTTP: what it takes is in the ledger once, and what it refuses is refused, told and counted."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import daemon.web as web_module
from daemon.agent.config import AgentConfig
from daemon.agent.sender import Sender, Who
from daemon.agent.wire import MAX_BATCH_BYTES, MAX_REPORTS, PATH, Receipt
from daemon.intake import Fate, Result
from daemon.ledger import LedgerUnavailable, Trouble
from remediation.agents import Denied
from rules.vocabulary import EventKind
from tests.agent.served import Served, batch_of, plain, serving, token_of, xid

PATIENCE_S = 20.0
OURS = {"Authorization": f"Bearer {token_of('n1')}"}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as made:
        yield made


# ------------------------------------------------------------------------------------------------------ what it takes


def test_a_report_is_in_the_ledger_before_it_is_acknowledged(served: Served) -> None:
    assert served.receipt("n1", xid(1), xid(2)) == Receipt(taken=("kmsg:b1:1", "kmsg:b1:2"))
    first, second = served.entries()
    assert (first.key, first.node, first.at) == ("event/n1/kmsg:b1:1", "n1", xid(1).event.at)
    assert (first.body["event"]["code"], first.body["event"]["trusted"]) == (79, True)
    assert (first.body["agent"], first.body["pod"]) == ("1.0", "agent-x")
    assert second.id == first.id + 1
    assert (served.requests("taken"), served.reports("taken")) == (1, 2)


def test_what_comes_again_is_known_and_acknowledged_and_written_once(served: Served) -> None:
    served.receipt("n1", xid(1), xid(2))
    again = served.receipt("n1", xid(2), xid(3), xid(3), xid(1))
    assert sorted(again.taken) == ["kmsg:b1:1", "kmsg:b1:2", "kmsg:b1:3", "kmsg:b1:3"]
    assert served.keys() == [f"event/n1/kmsg:b1:{n}" for n in (1, 2, 3)]
    assert (served.reports("taken"), served.reports("known")) == (3, 3)


def test_the_same_place_in_the_logs_of_two_nodes_is_two_reports(served: Served) -> None:
    served.receipt("n1", xid(1))
    served.receipt("n2", xid(1))
    assert served.keys() == ["event/n1/kmsg:b1:1", "event/n2/kmsg:b1:1"]


def test_an_empty_batch_says_whether_one_would_be_taken(served: Served) -> None:
    assert served.receipt("n1") == Receipt()
    assert served.entries() == []


def test_the_node_is_the_tokens_whatever_the_event_says(served: Served) -> None:
    served.receipt("n1", xid(1, node="n2"))
    (entry,) = served.entries()
    assert (entry.node, entry.body["event"]["node"]) == ("n1", "n1")


def test_only_a_fault_that_the_kernel_reported_rings_the_bell(served: Served) -> None:
    served.receipt("n1", xid(1, trusted=False), xid(2, code=None, kind=EventKind.DRIVER_LOAD))
    assert not served.bell.is_set()
    assert served.entries()[0].body["event"]["trusted"] is False
    served.receipt("n1", xid(3))
    assert served.bell.is_set()
    served.bell.clear()
    served.receipt("n1", xid(3))
    assert not served.bell.is_set(), "a fault that is known is no news"


def test_one_bad_report_keeps_none_of_the_others_back(served: Served) -> None:
    bad = plain(xid(2)) | {"id": "kmsg:b1:7"}
    answer = served.raw(batch_of("n1", plain(xid(1)), bad, plain(xid(3))), OURS)
    receipt = json.loads(answer.content)
    assert receipt["taken"] == ["kmsg:b1:1", "kmsg:b1:3"]
    assert [one["id"] for one in receipt["refused"]] == ["kmsg:b1:7"]
    assert len(served.entries()) == 2
    assert served.reports("refused") == 1


# --------------------------------------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("token", "status"),
    [
        pytest.param("invalid", 401, id="a token that nobody knows"),
        pytest.param("expired", 401, id="one that has expired"),
        pytest.param("audience", 401, id="one for somebody else"),
        pytest.param("account", 401, id="one of another account"),
        pytest.param("unbound", 401, id="one that is bound to no node"),
        pytest.param("forbidden", 403, id="one of an account without the right"),
    ],
)
def test_a_token_that_speaks_for_nobody_is_refused_and_counted_by_its_reason(
    served: Served, token: str, status: int
) -> None:
    answer = served.post("n1", xid(1), token=token)
    assert (answer.status_code, served.requests(token), served.entries()) == (status, 1, [])
    assert "told to nobody" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="none at all"),
        pytest.param({"Authorization": "Bearer"}, id="the word alone"),
        pytest.param({"Authorization": f"Basic {token_of('n1')}"}, id="another scheme"),
    ],
)
def test_without_a_token_nothing_is_taken(served: Served, headers: dict[str, str]) -> None:
    answer = served.raw(batch_of("n1", plain(xid(1))), headers)
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert (served.requests("no_token"), served.entries()) == (1, [])


def test_a_token_of_one_node_does_not_speak_for_another(served: Served) -> None:
    answer = served.post("n1", xid(1), says="n2")
    assert (answer.status_code, served.requests("other_node"), served.entries()) == (403, 1, [])


def test_where_nobody_can_say_whose_token_it_is_it_is_not_taken_on_trust(served: Served) -> None:
    served.identities.away = True
    answer = served.post("n1", xid(1))
    assert (answer.status_code, served.requests("no_identity"), served.entries()) == (503, 1, [])
    assert int(answer.headers["Retry-After"]) > 0
    served.identities.away = False
    served.receipt("n1", xid(1))


def test_a_known_token_is_not_asked_for_again(served: Served) -> None:
    for number in range(3):
        served.receipt("n1", xid(number))
    assert served.identities.asked == [token_of("n1")]
    served.identities.away = True
    served.receipt("n1", xid(9))


@pytest.mark.parametrize(
    ("body", "where"),
    [
        pytest.param(b"", "truncated", id="nothing"),
        pytest.param(b"\xff\xfe", "malformed", id="no text"),
        pytest.param(b"[]", "array", id="another value"),
        pytest.param(b'{"node":"n1"}', "boot_id", id="a field that is missing"),
        pytest.param(batch_of("n1", 7), "reports[0]", id="a report that is none"),
        pytest.param(batch_of("n1", plain(xid(1)), {"event": {}}), "reports[1]", id="a report without a name"),
        pytest.param(batch_of("n1", {"id": "x" * 300}), "reports[0].id", id="a name without an end"),
        pytest.param(batch_of("n" * 300), "node", id="a node without an end"),
        pytest.param(batch_of("n1", *[{}] * (MAX_REPORTS + 1)), "reports", id="too many reports"),
        pytest.param(batch_of("n1")[:-2] + b"[" * 100_000, "", id="brackets without an end"),
    ],
)
def test_what_is_no_batch_is_refused_with_the_place(served: Served, body: bytes, where: str) -> None:
    answer = served.raw(body, OURS)
    assert (answer.status_code, served.requests("malformed"), served.entries()) == (400, 1, [])
    assert where in answer.text


# ------------------------------------------------------------------------------------------------- how long it listens


def head(*lines: str) -> bytes:
    return "\r\n".join((f"POST {PATH} HTTP/1.1", "Host: x", *lines, "", "")).encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    ("lines", "status", "result"),
    [
        pytest.param([f"Content-Length: {MAX_BATCH_BYTES + 1}"], 413, "too_large", id="a byte too much"),
        pytest.param(["Content-Length: " + "9" * 5000], 413, "too_large", id="a number without an end"),
        pytest.param([], 411, "no_length", id="no length"),
        pytest.param(["Content-Length: -1"], 411, "no_length", id="less than nothing"),
        pytest.param(["Content-Length: 1e3"], 411, "no_length", id="no number"),
        pytest.param(["Content-Length: 2", "Content-Length: 3"], 411, "no_length", id="two lengths"),
        pytest.param(["Transfer-Encoding: chunked"], 411, "no_length", id="chunked"),
        pytest.param(["Content-Length: 2", "Transfer-Encoding: chunked"], 411, "no_length", id="chunked, and a length"),
    ],
)
def test_a_length_is_asked_for_before_anything_is_read(
    served: Served, lines: list[str], status: int, result: str
) -> None:
    answer = served.bytes(head(*lines))
    assert (status_of(answer), served.requests(result), served.identities.asked) == (status, 1, [])


def test_who_sends_on_although_he_was_refused_still_gets_the_answer(served: Served) -> None:
    answer = served.raw(b"x" * MAX_BATCH_BYTES, {"Authorization": "Bearer expired"})
    assert (answer.status_code, served.requests("expired")) == (401, 1)


def test_a_body_that_trickles_in_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_module, "PATIENCE_S", 1.0)
    with serving(tmp_path) as served:
        authorization = f"Authorization: Bearer {token_of('n1')}"
        with socket.create_connection(("127.0.0.1", served.web.port), timeout=PATIENCE_S) as slow:
            slow.sendall(head(authorization, "Content-Length: 1000"))
            for _ in range(40):  # each byte comes well before a wait for one would end
                time.sleep(0.1)
                try:
                    slow.sendall(b" ")
                except OSError:
                    break
                slow.setblocking(False)
                try:
                    answer = slow.recv(4096)
                    break
                except BlockingIOError:
                    slow.setblocking(True)
            else:
                pytest.fail("it listened for ever")
        assert status_of(answer) == 408
        assert served.requests("slow") == 1


def test_a_body_that_ends_early_is_sent_again(served: Served) -> None:
    answer = served.bytes(head(f"Authorization: Bearer {token_of('n1')}", "Content-Length: 50") + b'{"node"')
    assert (status_of(answer), served.requests("broken")) == (408, 1)
    assert b"Gpuwarden-Result: broken" in answer


# ------------------------------------------------------------------------------------------------------------- limits


def test_more_reports_than_a_node_may_send_wait_and_nothing_is_lost(tmp_path: Path) -> None:
    with serving(tmp_path, reports_per_minute=500) as served:
        for begin in (0, 400):
            served.receipt("n1", *(xid(begin + n) for n in range(400)))
        more = [xid(1000 + n) for n in range(200)]
        answer = served.post("n1", *more)
        assert (answer.status_code, served.requests("rate"), len(served.entries())) == (429, 1, 800)
        served.receipt("n2", xid(1))
        served.clock.at_s += int(answer.headers["Retry-After"])
        served.receipt("n1", *more)
        assert len(served.entries()) == 1001


def test_what_is_known_costs_a_node_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, reports_per_minute=500) as served:
        for _ in range(5):
            served.receipt("n1", *(xid(n) for n in range(400)))
        assert len(served.entries()) == 400


def test_what_a_node_may_put_into_the_ledger_in_a_day_has_an_end(tmp_path: Path) -> None:
    with serving(tmp_path, reports_per_minute=500, reports_per_day=1000) as served:
        taken = 0
        for turn in range(24 * 60):
            served.clock.at_s += 60
            if turn % 30 == 0:
                at = served.clock.now()
                reports = [xid(1000 * turn + n, at=at) for n in range(100)]
                taken += served.post("n1", *reports).status_code == 200
        assert len(served.entries()) == 100 * taken
        assert len(served.entries()) <= 2 * 1000 + 100, "a day's amount, what it began with, and a batch"


def test_more_bytes_than_a_node_may_send_are_not_even_read(tmp_path: Path) -> None:
    with serving(tmp_path, bytes_per_minute=1 << 20) as served:
        text = "x" * 1000
        big = [xid(n, text=text) for n in range(450)]
        served.receipt("n1", *big)
        for _ in range(3):
            answer = served.post("n1", *big)
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) <= 60
        served.receipt("n2", *big)


def test_unknown_tokens_from_one_address_are_asked_for_only_so_often(served: Served) -> None:
    statuses = [served.post("n1", token=f"made-up-{n}").status_code for n in range(230)]
    assert set(statuses) == {401, 429}
    assert len(served.identities.asked) == statuses.count(401)
    served.clock.at_s += 10
    served.receipt("n1", xid(1))
    for n in range(600):
        if served.post("n1", token=f"more-{n}").status_code == 429:
            break
    served.receipt("n1", xid(2))  # known, and so in nobody's way


def test_a_node_with_too_many_requests_at_once_is_told_so_and_delays_nobody(tmp_path: Path) -> None:
    with serving(tmp_path, requests_per_node=1) as served, slow_request(served, "n1"):
        answer = served.post("n1", xid(1))
        assert (answer.status_code, served.requests("busy")) == (429, 1)
        served.receipt("n2", xid(1))


class slow_request:  # noqa: N801 - used like a function
    """A request of a node whose body does not come, for as long as the context lasts."""

    def __init__(self, served: Served, node: str) -> None:
        self._connection = socket.create_connection(("127.0.0.1", served.web.port), timeout=PATIENCE_S)
        self._connection.sendall(head(f"Authorization: Bearer {token_of(node)}", "Content-Length: 100"))
        deadline = time.monotonic() + PATIENCE_S
        while token_of(node) not in served.identities.found:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.2)  # from the token to the place that it takes

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def test_one_connection_too_many_is_closed_and_counted_and_the_next_is_heard(tmp_path: Path) -> None:
    with serving(tmp_path, connections_per_address=2) as served:
        with slow_request(served, "n1"), slow_request(served, "n2"):
            assert served.bytes(head("Content-Length: 2"), ends=False) == b""
            assert served.requests("crowded") == 1
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                served.receipt("n3", xid(1))
                break
            except OSError:
                time.sleep(0.05)
        assert served.keys() == ["event/n3/kmsg:b1:1"]


# ---------------------------------------------------------------------------------------------------------- trouble


def test_while_the_ledger_takes_nothing_nothing_is_acknowledged_and_nothing_lost(
    served: Served, tmp_path: Path
) -> None:
    served.receipt("n1", xid(1))
    path = tmp_path / "ledger.db"
    path.rename(tmp_path / "away.db")
    answer = served.post("n1", xid(2), xid(3))
    (tmp_path / "away.db").rename(path)
    assert (answer.status_code, served.requests("no_ledger")) == (503, 1)
    assert int(answer.headers["Retry-After"]) > 0
    assert served.metrics.registry.get_sample_value("gpuwarden_ledger_errors_total", {"trouble": "gone"}) == 1
    assert served.receipt("n1", xid(2), xid(3)).taken == ("kmsg:b1:2", "kmsg:b1:3")
    assert served.keys() == [f"event/n1/kmsg:b1:{n}" for n in (1, 2, 3)]


def test_many_nodes_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, requests_per_node=8) as served:
        answers: list[int] = []

        def agent(node: str) -> None:
            for turn in range(12):  # each is sent twice
                reports = [xid(10 * (turn // 2) + n) for n in range(10)]
                answers.append(served.post(node, *reports).status_code)

        threads = [threading.Thread(target=agent, args=(f"n{n % 8}",)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(answers) == {200}
        assert sorted(served.keys()) == sorted(f"event/n{n}/kmsg:b1:{k}" for n in range(8) for k in range(60))
        assert [entry.id for entry in served.entries()] == list(range(1, 481))


def test_a_write_that_fails_fails_for_all_that_wait_for_it_and_for_none_after(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, begun, go_on = served.ledger.append, threading.Event(), threading.Event()

    def append(*arguments: Any, **options: Any) -> list[int]:
        if not begun.is_set():
            begun.set()
            assert go_on.wait(PATIENCE_S)
            raise LedgerUnavailable("append", "here", Trouble.LOCKED, "on purpose")
        return original(*arguments, **options)

    monkeypatch.setattr(served.ledger, "append", append)
    found: dict[str, int] = {}

    def post(node: str) -> None:
        found[node] = served.post(node, xid(1)).status_code

    first = threading.Thread(target=post, args=("n1",))
    first.start()
    assert begun.wait(PATIENCE_S)
    others = [threading.Thread(target=post, args=(f"n{n}",)) for n in range(2, 6)]
    for thread in others:
        thread.start()
    go_on.set()
    for thread in (first, *others):
        thread.join(PATIENCE_S)
    assert found == {"n1": 503} | {f"n{n}": 200 for n in range(2, 6)}


def test_probes_and_scrapes_are_answered_beside_it(served: Served) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert requests.get(served.url + path, timeout=10).status_code == 200
    assert requests.get(served.url + PATH, timeout=10).status_code == 404
    assert requests.post(served.url + "/metrics", data=b"x" * 100_000, timeout=10).status_code == 404


def test_each_way_a_request_can_end_is_counted_from_the_start_and_documented(served: Served, root: Path) -> None:
    page = (root / "docs" / "metrics.md").read_text(encoding="utf-8")
    shown = requests.get(served.url + "/metrics", timeout=10).text
    for result in (*Result, *Denied):
        assert f"`{result}`" in page
        assert f'gpuwarden_intake_requests_total{{result="{result}"}} 0.0' in shown
    for fate in Fate:
        assert f"`{fate}`" in page
        assert f'gpuwarden_intake_reports_total{{result="{fate}"}} 0.0' in shown


# ----------------------------------------------------------------------------------------------- whatever is sent

LINES = st.lists(
    st.sampled_from(
        [
            "Content-Length: 2", "Content-Length: 99999999999", "Transfer-Encoding: chunked", "Expect: 100-continue",
            f"Authorization: Bearer {token_of('n1')}", "Authorization: Bearer expired", "Connection: keep-alive",
            "Content-Type: application/json", "\x00: \x00", ": empty", "no colon", "X: " + "y" * 70_000,
        ]
    )
    | st.text(st.characters(codec="latin-1"), max_size=40),
    max_size=8,
)  # fmt: skip


@pytest.fixture(scope="module")
def shared_intake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("intake")) as made:
        yield made


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.sampled_from(["POST", "GET", "PUT", "\x00", "post"]), st.sampled_from([PATH, PATH + "?x=1", "/", "*", " "]),
    st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "", "\r\r"]), LINES, st.binary(max_size=200),
)  # fmt: skip
def test_no_request_breaks_it(
    shared_intake: Served, method: str, path: str, version: str, lines: list[str], body: bytes
) -> None:
    sent = "\r\n".join((f"{method} {path} {version}", *lines, "", "")).encode("latin-1") + body
    try:
        answer = shared_intake.bytes(sent)
    except OSError:
        answer = b""  # it closed while we sent on
    assert b" 500 " not in answer.split(b"\r\n", 1)[0]
    assert shared_intake.receipt("n1") == Receipt(), "it goes on"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
SPOILT = st.dictionaries(
    st.sampled_from(
        [
            "kind", "code", "text", "at", "monotonic_s", "sequence", "pci", "gpu_uuid", "pid", "severity", "trusted",
            "node", "boot_id", "source", "place", "registers", "recovery_value", "driver_version", "count", "notes",
        ]
    ),
    VALUES,
    max_size=3,
)  # fmt: skip


@given(st.lists(SPOILT, max_size=5), VALUES)
def test_no_report_breaks_it_and_each_is_answered_for(
    shared_intake: Served, spoilt: list[dict[str, Any]], whole: Any
) -> None:
    sound = plain(xid(1))
    reports = [sound | {"event": sound["event"] | fields} for fields in spoilt]
    answer = shared_intake.raw(batch_of("n1", *reports), OURS)
    assert answer.status_code in (200, 429)
    if answer.status_code == 200:
        receipt = json.loads(answer.content)
        assert len(receipt["taken"]) + len(receipt["refused"]) == len(reports)
    shared_intake.clock.at_s += 60
    answer = shared_intake.raw(json.dumps(whole).encode(), OURS)
    assert answer.status_code == 400


def test_an_agent_may_be_a_sender(served: Served, tmp_path: Path) -> None:
    """The agent's own half and the intake understand each other."""
    token = tmp_path / "token"
    token.write_text(token_of("n1"))
    sender = Sender(AgentConfig(controller=served.url, token_file=token), Who("n1", "b1", "1.0"))
    assert sender.send([]) == Receipt()
    many = [xid(n, text="x" * 900) for n in range(2 * MAX_REPORTS)]
    waiting = list(many)
    while waiting:
        gone = set(sender.send(waiting).taken)
        waiting = [one for one in waiting if one.id not in gone]
    assert len(served.entries()) == len(many)
    sender.close()

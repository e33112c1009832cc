"""The desk that posts tickets: once an incident, whatever becomes of the receiver, the ledger, or the process."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from daemon import tickets
from daemon.config import TicketsConfig
from daemon.ledger import Entry, EntryKind, Ledger, encode_body
from daemon.metrics import Metrics
from daemon.tickets import TicketDesk, Waits, ticket_entry
from daemon.version import own_version
from daemon.webhook import Answer, Result, post
from remediation.decide import Decision, Ruling
from remediation.plan import Plan, Step
from remediation.tickets import Filed, Ticket, TicketState
from rules.vocabulary import Action, FaultAction
from tests.acting.scenes import attempt
from tests.decide.incidents import AT, incident
from tests.prometheus_server import free_port
from tests.testbed.waiting import until
from tests.ticket_receiver import Receiver, Reply

#: So short that a test need not wait, so long that it is a wait.
SOON = Waits(first_s=0.01, longest_s=0.05, longest_asked_s=0.05, look_s=0.01)
TOKEN = "open-sesame"  # noqa: S105 - nobody's


def decided(name: str, *, jobs: tuple[str, ...] = ()) -> Decision:
    node = f"n-{name}"
    plan = Plan(name, node, "", Action.QUARANTINE, (Step(Action.QUARANTINE, ""),), (), jobs, "the board needs service")
    return Decision(AT, plan, "auto", Ruling.ACT, (), (Action.QUARANTINE,))


class Desk:
    """A desk over a ledger that outlives it. `may_send` and `config` are what a test turns."""

    def __init__(self, folder: Path, receiver: Receiver) -> None:
        self.path = folder / "ledger.db"
        self.receiver = receiver
        self.metrics = Metrics()
        self.may_send = True
        self.waits = SOON
        self.config = TicketsConfig(url=receiver.url, timeout=30)
        self._ledgers: list[Ledger] = []
        self._desks: list[TicketDesk] = []

    def begin(self) -> TicketDesk:
        """A process begins: it takes up what it finds."""
        url = f"sqlite:///{self.path}"
        ledger = Ledger.open(url, now=lambda: datetime.now(UTC), busy_timeout_s=0.1)
        desk = TicketDesk(self.config, ledger, self.metrics, lambda: self.may_send, waits=self.waits)
        self._ledgers.append(ledger)
        self._desks.append(desk)
        desk.take_up()
        desk.start()
        return desk

    def want(self, *names: str) -> None:
        """A tick in which these incidents have their nodes in quarantine, and want another board."""
        incidents = [incident(name, f"n-{name}", action=FaultAction.REPLACE) for name in names]
        history = [attempt(AT, Action.QUARANTINE, incident=name, name=f"n-{name}") for name in names]
        self._desks[-1].give([decided(name) for name in names], incidents, history)

    def end(self) -> None:
        """All processes end."""
        for desk in self._desks:
            desk.stop()
        for ledger in self._ledgers:
            ledger.close()
        self._desks.clear()
        self._ledgers.clear()

    def entries(self) -> list[Entry]:
        with Ledger.open(f"sqlite:///{self.path}", now=lambda: AT, busy_timeout_s=5) as ledger:
            return list(ledger.entries(kind=EntryKind.TICKET))

    def states(self, name: str = "inc-1") -> list[str]:
        """What the ledger says of a ticket, oldest first."""
        return [str(entry.body["state"]) for entry in self.entries() if entry.incident == name]

    def counted(self) -> dict[str, float]:
        """The metric, by result, without what has not happened."""
        samples = {result: self.metrics.tickets.labels(result)._value.get() for result in Result}
        return {result.value: count for result, count in samples.items() if count}

    def away(self) -> Path:
        """The ledger's file is not where it was."""
        return self.path.rename(self.path.with_suffix(".away"))

    def back(self) -> None:
        self.path.with_suffix(".away").rename(self.path)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().serving() as serving:
        yield serving


@pytest.fixture
def desk(tmp_path: Path, receiver: Receiver) -> Iterator[Desk]:
    made = Desk(tmp_path, receiver)
    try:
        yield made
    finally:
        made.end()


def settles(desk: Desk, *states: str, name: str = "inc-1") -> None:
    until(f"the ledger says {states} of {name}", lambda: desk.states(name) == list(states))


# ------------------------------------------------------------------------------------------------------------ a post


def test_a_ticket_is_posted_once_with_its_key(desk: Desk, receiver: Receiver) -> None:
    desk.begin()
    desk.want("inc-1")
    desk.want("inc-1")
    settles(desk, "wanted", "sent")
    desk.want("inc-1")
    desk.end()
    (got,) = receiver.posts
    assert (got.method, got.path, got.key) == ("POST", "/tickets", "inc-1")
    assert got.headers["User-Agent"] == f"gpuwarden/{own_version()}"
    assert got.headers["Content-Type"] == "application/json"
    assert "Authorization" not in got.headers
    assert set(got.ticket) == set(Ticket.__slots__)
    assert (got.ticket["node"], got.ticket["at"]) == ("n-inc-1", "2026-05-04T12:00:00Z")
    assert desk.counted() == {"sent": 1}
    told = desk.entries()
    assert [(one.node, one.body["detail"], one.body["tries"]) for one in told] == [
        ("n-inc-1", "", 0), ("n-inc-1", "answered 201", 1),
    ]  # fmt: skip
    assert told[0].body["ticket"] == got.ticket


@pytest.mark.parametrize(
    ("statuses", "states", "counted"),
    [
        pytest.param((200,), ["wanted", "sent"], {"sent": 1}, id="200"),
        pytest.param((204,), ["wanted", "sent"], {"sent": 1}, id="204"),
        pytest.param((408, 425, 429), ["wanted", "sent"], {"retried": 3, "sent": 1}, id="clients that come too soon"),
        pytest.param((500, 502, 503), ["wanted", "sent"], {"retried": 3, "sent": 1}, id="a receiver in trouble"),
        pytest.param((301, 302, 303), ["wanted", "sent"], {"retried": 3, "sent": 1}, id="redirects that lose the body"),
        pytest.param((503, 400), ["wanted", "refused"], {"retried": 1, "refused": 1}, id="400 after a while"),
        pytest.param((401,), ["wanted", "refused"], {"refused": 1}, id="401"),
        pytest.param((404,), ["wanted", "refused"], {"refused": 1}, id="404"),
        pytest.param((410,), ["wanted", "refused"], {"refused": 1}, id="410"),
    ],
)
def test_what_each_status_leads_to(
    desk: Desk, receiver: Receiver, statuses: tuple[int, ...], states: list[str], counted: dict[str, int]
) -> None:
    receiver.replies.extend(Reply(status, {"Location": "/elsewhere"}) for status in statuses)
    desk.begin()
    desk.want("inc-1")
    settles(desk, *states)
    desk.end()
    assert desk.counted() == counted
    assert receiver.keys == ["inc-1"] * sum(counted.values())
    assert {post.path for post in receiver.posts} == {"/tickets"}
    assert len({post.body for post in receiver.posts}) == 1


def test_what_is_refused_says_why_and_what_to_do(desk: Desk, receiver: Receiver) -> None:
    receiver.replies.append(Reply(422, body=b'{"error":\n "no such\tproject"}' + b"x" * 2000))
    with capture_logs() as logs:
        desk.begin()
        desk.want("inc-1")
        settles(desk, "wanted", "refused")
        desk.end()
    (told,) = [line for line in logs if line["log_level"] == "error"]
    assert 'answered 422: {"error": "no such project"}' in told["detail"]
    assert len(told["detail"]) < 400
    assert "tickets.url" in told["next"]
    desk.begin()
    desk.want("inc-1")
    desk.want("inc-2")
    settles(desk, "wanted", "sent", name="inc-2")
    assert receiver.keys == ["inc-1", "inc-2"]


def test_a_hanging_receiver_is_asked_again(desk: Desk, receiver: Receiver) -> None:
    never = threading.Event()
    desk.config = TicketsConfig(url=receiver.url, timeout=0.2)
    receiver.replies.append(Reply(wait=never))
    desk.begin()
    desk.want("inc-1")
    try:
        until("it was given up", lambda: desk.counted().get("retried"))
    finally:
        never.set()
    desk.config = TicketsConfig(url=receiver.url, timeout=30)
    settles(desk, "wanted", "sent")
    assert set(receiver.keys) == {"inc-1"}


def test_a_receiver_that_comes_later_is_found(desk: Desk) -> None:
    port = free_port()
    desk.config = TicketsConfig(url=f"http://127.0.0.1:{port}/tickets", timeout=30)
    desk.begin()
    desk.want("inc-1")
    until("it was refused a connection", lambda: desk.counted().get("retried", 0) >= 2)
    assert desk.states() == ["wanted"]
    with Receiver().serving(port) as late:
        settles(desk, "wanted", "sent")
        assert late.keys == ["inc-1"]


def test_one_that_is_never_taken_keeps_no_other_waiting(desk: Desk, receiver: Receiver) -> None:
    receiver.usual = lambda got: Reply(500 if got.key == "inc-1" else 200)
    desk.begin()
    desk.want("inc-1")
    until("it was tried", lambda: receiver.posts)
    desk.want("inc-1", "inc-2", "inc-3")
    settles(desk, "wanted", "sent", name="inc-2")
    settles(desk, "wanted", "sent", name="inc-3")
    assert desk.states() == ["wanted"]


def test_a_receiver_is_left_alone_for_as_long_as_it_asks(desk: Desk, receiver: Receiver) -> None:
    desk.waits = replace(SOON, longest_asked_s=60)
    receiver.replies.append(Reply(429, {"Retry-After": "1"}))
    desk.begin()
    desk.want("inc-1")
    settles(desk, "wanted", "sent")
    first, second = receiver.posts
    assert second.at_s - first.at_s >= 0.95


def test_what_comes_while_a_receiver_is_left_alone_is_filed_at_once(desk: Desk, receiver: Receiver) -> None:
    desk.waits = replace(SOON, longest_asked_s=600)
    receiver.replies.append(Reply(503, {"Retry-After": "600"}))
    desk.begin()
    desk.want("inc-1")
    until("it was put off", lambda: desk.counted().get("retried"))
    desk.want("inc-2")
    settles(desk, "wanted", name="inc-2")
    desk.end()
    assert receiver.keys == ["inc-1"]
    desk.begin()
    settles(desk, "wanted", "sent")
    settles(desk, "wanted", "sent", name="inc-2")


def test_a_receiver_may_not_ask_for_ever(desk: Desk, receiver: Receiver) -> None:
    receiver.replies.append(Reply(503, {"Retry-After": "999999999999"}))
    desk.begin()
    desk.want("inc-1")
    settles(desk, "wanted", "sent")


TICKET = Ticket("inc-1", AT, "n-1", ("GPU-1",), "memory", "service", ("xid_64",), ("train/llama",), "go there")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("120", 120, id="seconds"),
        pytest.param(format_datetime(AT + timedelta(seconds=90), usegmt=True), 90, id="a date"),
        pytest.param(format_datetime(AT - timedelta(days=1), usegmt=True), 0, id="a date that is past"),
        pytest.param("soon", 0, id="words"),
        pytest.param("-5", 0, id="less than nothing"),
        pytest.param("", 0, id="nothing"),
    ],
)
def test_how_long_a_receiver_asks_to_be_left_alone(receiver: Receiver, text: str, seconds: float) -> None:
    receiver.replies.append(Reply(503, {"Retry-After": text}))
    answer = post(TicketsConfig(url=receiver.url), TICKET, AT)
    assert answer == Answer(Result.RETRIED, f"http://127.0.0.1:{receiver.port}/*** answered 503", seconds)


# --------------------------------------------------------------------------------------------------------- redirects


@pytest.mark.parametrize("status", [307, 308])
def test_the_same_host_may_want_it_elsewhere(receiver: Receiver, tmp_path: Path, status: int) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    receiver.replies.append(Reply(status, {"Location": "/v2/tickets"}))
    answer = post(TicketsConfig(url=receiver.url, token_file=token), TICKET, AT)
    assert answer.result is Result.SENT
    assert [got.path for got in receiver.posts] == ["/tickets", "/v2/tickets"]
    assert [got.headers["Authorization"] for got in receiver.posts] == [f"Bearer {TOKEN}"] * 2
    assert [(got.method, got.key) for got in receiver.posts] == [("POST", "inc-1")] * 2
    assert receiver.posts[0].body == receiver.posts[1].body


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_another_host_gets_nothing(receiver: Receiver, status: int) -> None:
    with Receiver().serving() as other:
        receiver.replies.append(Reply(status, {"Location": f"{other.url}?key=of-theirs"}))
        answer = post(TicketsConfig(url=receiver.url), TICKET, AT)
        assert other.posts == []
    assert answer.result is Result.RETRIED
    assert f"redirects to http://127.0.0.1:{other.port}/*** ({status})" in answer.detail
    assert "of-theirs" not in answer.detail


@pytest.mark.parametrize("where", ["http://[::1", "http://x:99999/", "https://127.0.0.1/tickets"])
def test_a_redirect_that_cannot_be_followed_is_no_crash(receiver: Receiver, where: str) -> None:
    receiver.usual = lambda _post: Reply(307, {"Location": where})
    answer = post(TicketsConfig(url=receiver.url), TICKET, AT)
    assert (answer.result, receiver.keys) == (Result.RETRIED, ["inc-1"])


def test_redirects_in_a_circle_end(receiver: Receiver) -> None:
    receiver.usual = lambda _post: Reply(307, {"Location": "/tickets"})
    answer = post(TicketsConfig(url=receiver.url), TICKET, AT)
    assert (answer.result, "again and again" in answer.detail) == (Result.RETRIED, True)
    assert len(receiver.posts) < 10


# ------------------------------------------------------------------------------------------------------------ secrets


def test_the_token_is_read_at_each_try_and_told_to_nobody_else(desk: Desk, receiver: Receiver, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}-1\n")
    desk.config = TicketsConfig(url=f"{receiver.url}/hook-secret?key=query-secret", token_file=token, timeout=30)
    receiver.replies.append(
        Reply(503, body=f"who is {TOKEN}-1?".encode(), before=lambda: token.write_text(f"{TOKEN}-2"))
    )
    receiver.replies.append(Reply(403, body=f"{TOKEN}-2 may not".encode()))
    with capture_logs() as logs:
        desk.begin()
        desk.want("inc-1")
        settles(desk, "wanted", "refused")
        desk.end()
    assert [got.headers["Authorization"] for got in receiver.posts] == [f"Bearer {TOKEN}-1", f"Bearer {TOKEN}-2"]
    told = json.dumps(logs) + json.dumps([dict(entry.body) for entry in desk.entries()])
    assert "answered 403: *** may not" in told
    for secret in (TOKEN, "hook-secret", "query-secret"):
        assert secret not in told


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda _path: None, id="is not there"),
        pytest.param(lambda path: path.write_text("  \n"), id="is empty"),
        pytest.param(lambda path: path.write_text(f"{TOKEN}\nX-Other: 1"), id="holds two lines"),
        pytest.param(lambda path: path.write_bytes(b"\xff\x00"), id="is no text"),
        pytest.param(lambda path: path.mkdir(), id="is a folder"),
    ],
)
def test_without_a_token_nothing_is_posted(receiver: Receiver, tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "token")
    answer = post(TicketsConfig(url=receiver.url, token_file=tmp_path / "token"), TICKET, AT)
    assert (answer.result, receiver.posts) == (Result.RETRIED, [])
    assert "tickets.token_file" in answer.detail
    assert TOKEN not in answer.detail


def test_a_user_of_the_url_is_told_to_the_receiver_alone(receiver: Receiver) -> None:
    receiver.replies.append(Reply(400, body=b"p4ss is wrong"))
    answer = post(TicketsConfig(url=receiver.url.replace("//", "//warden:p4ss@")), TICKET, AT)
    assert receiver.posts[0].headers["Authorization"] == "Basic d2FyZGVuOnA0c3M="
    assert answer.detail == f"http://127.0.0.1:{receiver.port}/*** answered 400: *** is wrong"


def test_no_password_of_a_netrc_goes_out(receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login other password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert post(TicketsConfig(url=receiver.url), TICKET, AT).result is Result.SENT
    assert "Authorization" not in receiver.posts[0].headers


@pytest.mark.parametrize(
    ("url", "says"),
    [
        pytest.param("http://warden:p4ss@127.0.0.1:{port}/s3cret?k=s3cret", "Connection refused", id="nobody listens"),
        pytest.param("https://127.0.0.1:{plain}/s3cret?k=s3cret", "SSL", id="no TLS where TLS is expected"),
        pytest.param("http://nowhere.invalid/s3cret?k=s3cret", "resolve", id="a host that has no address"),
        pytest.param("http://{long}/s3cret?k=s3cret", "", id="a host that is none"),
    ],
)
def test_what_is_told_of_a_failure_names_the_cause_and_only_the_host(receiver: Receiver, url: str, says: str) -> None:
    filled = url.format(port=free_port(), plain=receiver.port, long="x" * 300)
    answer = post(TicketsConfig(url=filled, timeout=10), TICKET, AT)
    assert answer.result is Result.RETRIED
    assert says in answer.detail
    assert "s3cret" not in answer.detail
    assert "p4ss" not in answer.detail


# ------------------------------------------------------------------------------------- the ledger, and who takes over


def test_killed_between_the_answer_and_its_entry_it_is_sent_again_under_the_same_key(
    desk: Desk, receiver: Receiver
) -> None:
    receiver.replies.append(Reply(200, before=desk.away))
    desk.begin()
    desk.want("inc-1")
    until("it was posted", lambda: desk.counted().get("sent"))
    desk.end()
    desk.back()
    assert desk.states() == ["wanted"]
    desk.begin()
    settles(desk, "wanted", "sent")
    assert receiver.keys == ["inc-1", "inc-1"]
    assert receiver.posts[0].body == receiver.posts[1].body


def test_an_answer_that_the_ledger_does_not_take_is_written_later_and_posted_never_again(
    desk: Desk, receiver: Receiver
) -> None:
    receiver.replies.append(Reply(200, before=desk.away))
    process = desk.begin()
    desk.want("inc-1")
    until("it was posted", lambda: desk.counted().get("sent"))
    desk.want("inc-1", "inc-2")
    desk.back()
    settles(desk, "wanted", "sent", name="inc-2")
    settles(desk, "wanted", "sent")
    process.take_up()
    desk.end()
    assert receiver.keys == ["inc-1", "inc-2"]


def test_nothing_is_sent_while_the_ledger_cannot_be_written(desk: Desk, receiver: Receiver) -> None:
    with capture_logs() as logs:
        desk.begin()
        desk.away()
        desk.want("inc-1")
        until("it was tried", lambda: sum("waits for the ledger" in line["event"] for line in logs) >= 3)
        assert receiver.posts == []
        desk.back()
        settles(desk, "wanted", "sent")
    assert receiver.keys == ["inc-1"]


def test_nothing_is_sent_again_while_the_ledger_cannot_be_written(desk: Desk, receiver: Receiver) -> None:
    receiver.replies.append(Reply(503, before=desk.away))
    with capture_logs() as logs:
        desk.begin()
        desk.want("inc-1")
        until("it was tried", lambda: sum("waits for the ledger" in line["event"] for line in logs) >= 3)
        assert receiver.keys == ["inc-1"]
        desk.back()
        settles(desk, "wanted", "sent")
    assert receiver.keys == ["inc-1", "inc-1"]


def test_who_may_not_act_sends_and_writes_nothing(desk: Desk, receiver: Receiver) -> None:
    desk.may_send = False
    asked = threading.Event()
    desk.begin()._may_send = lambda: bool(asked.set())
    desk.want("inc-1")
    assert asked.wait(30)
    desk.end()
    assert (receiver.posts, desk.entries(), desk.counted()) == ([], [], {})


def test_who_leads_no_more_sends_nothing_more(desk: Desk, receiver: Receiver) -> None:
    def lose() -> None:
        desk.may_send = False

    receiver.replies.append(Reply(503, before=lose))
    desk.begin()
    desk.want("inc-1")
    until("it was tried", lambda: desk.counted().get("retried"))
    desk.end()
    assert receiver.keys == ["inc-1"]
    desk.may_send = True
    desk.begin()
    settles(desk, "wanted", "sent")


def test_the_next_process_sends_what_nobody_answered_even_if_the_incident_is_over(
    desk: Desk, receiver: Receiver
) -> None:
    receiver.usual = lambda _post: Reply(500)
    desk.begin()
    desk.want("inc-1")
    until("it was tried", lambda: receiver.posts)
    desk.end()
    receiver.usual = lambda _post: Reply(200)
    desk.begin()
    desk.want()
    settles(desk, "wanted", "sent")


def test_the_next_process_sends_nothing_that_was_sent(desk: Desk, receiver: Receiver) -> None:
    desk.begin()
    desk.want("inc-1")
    settles(desk, "wanted", "sent")
    desk.end()
    desk.begin()
    desk.want("inc-1", "inc-2")
    settles(desk, "wanted", "sent", name="inc-2")
    assert receiver.keys == ["inc-1", "inc-2"]


def test_two_that_hold_a_ticket_for_due_send_it_once_where_the_first_was_faster(desk: Desk, receiver: Receiver) -> None:
    process = desk.begin()
    late = desk.begin()  # it has read the ledger before the first one wrote
    incidents = [incident(action=FaultAction.REPLACE, node="n-inc-1")]
    history = [attempt(AT, Action.QUARANTINE, name="n-inc-1")]
    process.give([decided("inc-1")], incidents, history)
    settles(desk, "wanted", "sent")
    late.give([decided("inc-1")], incidents, history)
    until("it has seen that there is nothing to do", lambda: not late._open)
    desk.end()
    assert receiver.keys == ["inc-1"]
    assert desk.states() == ["wanted", "sent"]


def test_a_new_term_takes_up_what_the_other_one_has_done(desk: Desk, receiver: Receiver) -> None:
    desk.may_send = False
    process = desk.begin()
    desk.want("inc-1", "inc-2")
    with Ledger.open(f"sqlite:///{desk.path}", now=lambda: AT) as ledger:
        for state in (TicketState.WANTED, TicketState.SENT):
            ledger.append([ticket_entry(Filed(state, AT, TICKET))])
    process.take_up()
    desk.may_send = True
    settles(desk, "wanted", "sent", name="inc-2")
    desk.end()
    assert receiver.keys == ["inc-2"]


def test_what_another_version_filed_is_told_and_not_sent_again(desk: Desk, receiver: Receiver) -> None:
    with Ledger.open(f"sqlite:///{desk.path}", now=lambda: AT) as ledger:
        ledger.append([Entry(EntryKind.TICKET, AT, {"state": "elsewhere"}, "inc-1")])
    with capture_logs() as logs:
        desk.begin()
    assert [line["event"] for line in logs] == ["not taken up from before"]
    desk.want("inc-1", "inc-2")
    settles(desk, "wanted", "sent", name="inc-2")
    assert receiver.keys == ["inc-2"]


def test_the_jobs_that_a_drain_has_moved_are_told_too(desk: Desk, receiver: Receiver) -> None:
    with Ledger.open(f"sqlite:///{desk.path}", now=lambda: AT) as ledger:
        for jobs in (("train/llama", "web/search"), ()):
            ledger.append([Entry(EntryKind.DECISION, AT, encode_body(decided("inc-1", jobs=jobs)), "inc-1")])
    desk.begin()
    desk.want("inc-1")
    settles(desk, "wanted", "sent")
    assert receiver.posts[0].ticket["jobs"] == ["train/llama", "web/search"]


def test_a_bug_with_one_ticket_is_told_and_the_others_go_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(config: TicketsConfig, ticket: Ticket, now: datetime) -> Answer:
        if ticket.id == "inc-1":
            raise RuntimeError("a bug")
        return post(config, ticket, now)

    monkeypatch.setattr(tickets, "post", broken)
    monkeypatch.setattr(tickets, "_AFTER_A_BUG_S", 0.01)
    desk.waits = replace(SOON, longest_s=600)
    with capture_logs() as logs:
        desk.begin()
        desk.want("inc-1", "inc-2")
        settles(desk, "wanted", "sent", name="inc-2")
        desk.end()
    assert "tickets failed" in {line["event"] for line in logs}
    assert desk.states() == ["wanted"]


def test_without_a_webhook_there_are_no_tickets(desk: Desk) -> None:
    with Ledger.open(f"sqlite:///{desk.path}", now=lambda: AT) as ledger:
        none = TicketDesk(None, ledger, Metrics(), lambda: True)
        none.take_up()
        none.start()
        none.give(
            [decided("inc-1")],
            [incident(action=FaultAction.REPLACE, node="n-inc-1")],
            [attempt(AT, Action.QUARANTINE, name="n-inc-1")],
        )
        none.stop()
        assert list(ledger.entries()) == []
    assert not any(thread.name == "tickets" for thread in threading.enumerate())


def test_to_end_waits_no_longer_than_a_receiver_may_take(desk: Desk, receiver: Receiver) -> None:
    never = threading.Event()
    desk.config = TicketsConfig(url=receiver.url, timeout=0.1)
    receiver.replies.append(Reply(wait=never))
    desk.begin()
    desk.want("inc-1")
    until("it is being posted", lambda: receiver.posts)
    desk.end()
    never.set()
    assert desk.states() == ["wanted"]

"""A node that only service can mend ends in quarantine and one ticket, whoever is killed; in observe, in none."""

from collections.abc import Iterator

import pytest

from daemon.ledger import EntryKind
from tests.endtoend.acts import decision, explained, incident_of, newest, quarantined, soon, start, ticks
from tests.endtoend.site import Site
from tests.ticket_receiver import Receiver, Reply

#: A bad memory row that no spare replaces: the board has to go.
ASKS_FOR_A_BOARD = 64


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().serving() as serving:
        yield serving


def states(site: Site) -> list[tuple[str | None, str]]:
    """Incident and state of each entry about a ticket, oldest first."""
    return [(entry.incident, str(entry.body["state"])) for entry in site.entries(EntryKind.TICKET)]


def test_a_node_that_only_service_mends_ends_in_quarantine_and_one_ticket(site: Site, receiver: Receiver) -> None:
    sick = site.nodes[0]
    daemon = start(site, tickets={"url": receiver.url})
    site.xid(sick, ASKS_FOR_A_BOARD)
    soon("quarantined", lambda: quarantined(site, sick))
    name = incident_of(site, sick)
    soon("one ticket", lambda: states(site) == [(name, "wanted"), (name, "sent")])
    (post,) = receiver.posts
    assert (post.key, post.ticket["id"], post.ticket["node"]) == (name, name, sick)
    assert post.ticket["cause_class"] == "memory"
    assert post.ticket["evidence"][0].startswith("xid_64: ")
    assert post.ticket["gpus"] == [decision(site, sick)["plan"]["gpu"]]
    assert f"gpuwarden release {sick}" in post.ticket["next_step"]
    assert daemon.metric('gpuwarden_tickets_total{result="sent"}') == 1

    daemon.kill()
    again = start(site, tickets={"url": receiver.url})
    ticks(site, 3)
    assert quarantined(site, sick)
    assert receiver.keys == [name]
    assert again.metric("gpuwarden_tickets_total") == 0
    (told,) = explained(site, sick)["tickets"]
    assert (told["state"], told["ticket"]["id"]) == ("sent", name)


def test_a_ticket_that_nobody_took_is_sent_by_the_next_process(site: Site, receiver: Receiver) -> None:
    sick = site.nodes[0]
    receiver.usual = lambda _post: Reply(503)
    daemon = start(site, tickets={"url": receiver.url})
    site.xid(sick, ASKS_FOR_A_BOARD)
    soon("it was tried", lambda: receiver.posts)
    daemon.kill()
    name = incident_of(site, sick)
    assert states(site) == [(name, "wanted")]
    receiver.usual = lambda _post: Reply(201)
    tried = len(receiver.posts)
    start(site, tickets={"url": receiver.url})
    soon("it was taken", lambda: states(site) == [(name, "wanted"), (name, "sent")])
    ticks(site, 3)
    assert len(receiver.posts) == tried + 1
    assert {post.body for post in receiver.posts} == {receiver.posts[0].body}
    assert set(receiver.keys) == {name}


def test_what_is_only_observed_gives_no_ticket(site: Site, receiver: Receiver) -> None:
    sick = site.nodes[0]
    start(site, mode="observe", tickets={"url": receiver.url})
    site.xid(sick, ASKS_FOR_A_BOARD)
    soon("decided", lambda: (newest(site, sick) or {}).get("plan", {}).get("action") == "quarantine")
    ticks(site, 5)
    assert (receiver.posts, states(site)) == ([], [])

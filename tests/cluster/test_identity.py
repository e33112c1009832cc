"""For which node a token speaks: what the API server's answers mean, and what the real one says of each kind."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.agent.wire import AUDIENCE
from remediation.agents import (
    BoundPod,
    Claims,
    Denial,
    Denied,
    IdentityUnavailable,
    Pod,
    Review,
    Speaker,
    User,
    claims_of,
    judged,
    placed,
    refused_unasked,
    users_of,
)
from remediation.cluster.client import Cluster, Patience
from remediation.cluster.identity import TokenIdentities
from remediation.cluster.wire import Object
from tests.agent.served import serving, xid
from tests.cluster.agent_tokens import AGENT, NAMESPACE, install, pod_on, signed, token
from tests.cluster.proxy import Fault, FaultProxy
from tests.testbed.control_plane import ControlPlane

USERS = users_of([AGENT], NAMESPACE)
(USER,) = USERS
NOW_S = 1000.0
GOOD = Claims(sub=USER, aud=[AUDIENCE], exp=NOW_S + 600)
QUICK = Patience(connect_s=2, read_s=2, attempts=2, first_wait_s=0.01)


def extra(**claims: str) -> dict[str, list[str]]:
    return {f"authentication.kubernetes.io/{name.replace('_', '-')}": [value] for name, value in claims.items()}


def review(
    authenticated: bool = True, audiences: tuple[str, ...] = (AUDIENCE,), error: str = "", **user: Any
) -> Review:
    about = {"username": USER, "extra": extra(node_name="n1", pod_name="a", pod_uid="u")} | user
    return Review(authenticated, User(**about), list(audiences), error)


@pytest.mark.parametrize(
    ("answer", "claims", "expected"),
    [
        pytest.param(review(), GOOD, Speaker("n1", USER, "a"), id="a pod on a node"),
        pytest.param(
            review(extra=extra(node_name="n1", node_uid="x")), GOOD, Speaker("n1", USER), id="the node itself"
        ),
        pytest.param(
            review(extra=extra(pod_name="a", pod_uid="u")), GOOD, BoundPod(NAMESPACE, "a", "u"),
            id="a pod, and the node is not named",
        ),
        pytest.param(review(extra={}), GOOD, Denied.UNBOUND, id="bound to nothing"),
        pytest.param(review(extra=extra(pod_name="a")), GOOD, Denied.UNBOUND, id="a pod of any UID"),
        pytest.param(review(False, error="no"), GOOD, Denied.INVALID, id="not known"),
        pytest.param(review(False), Claims(USER, AUDIENCE, NOW_S - 1), Denied.EXPIRED, id="not known any more"),
        pytest.param(review(False), Claims(USER, AUDIENCE), Denied.INVALID, id="not known, without an end"),
        pytest.param(review(audiences=()), GOOD, Denied.AUDIENCE, id="a server that does not look at audiences"),
        pytest.param(review(audiences=("api",)), GOOD, Denied.AUDIENCE, id="for another audience"),
        pytest.param(review(username="system:node:n1"), GOOD, Denied.ACCOUNT, id="somebody else"),
    ],
)  # fmt: skip
def test_an_answer_about_a_token_means(answer: Review, claims: Claims, expected: Speaker | BoundPod | Denied) -> None:
    found = judged(answer, claims, AUDIENCE, USERS, NOW_S)
    assert (found.why if isinstance(found, Denial) else found) == expected


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param({"metadata": {"uid": "u"}, "spec": {"nodeName": "n1"}}, Speaker("n1", USER, "a"), id="it runs"),
        pytest.param({"metadata": {"uid": "v"}, "spec": {"nodeName": "n1"}}, Denied.UNBOUND, id="another of its name"),
        pytest.param({"metadata": {"uid": "u"}, "spec": {}}, Denied.UNBOUND, id="it waits for a node"),
        pytest.param(None, Denied.UNBOUND, id="it is gone"),
    ],
)
def test_a_pod_says_where_it_runs(pod: Object | None, expected: Speaker | Denied) -> None:
    found = placed(BoundPod(NAMESPACE, "a", "u"), None if pod is None else msgspec.convert(pod, Pod), USER)
    assert (found.why if isinstance(found, Denial) else found) == expected


def jwt(claims: object) -> str:
    return f"h.{base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b'=').decode()}.s"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(jwt({"sub": USER, "aud": [AUDIENCE]}), None, id="nothing speaks against it"),
        pytest.param(jwt({"sub": USER, "aud": AUDIENCE}), None, id="one audience, as text"),
        pytest.param(jwt({"sub": USER, "aud": ["api", AUDIENCE]}), None, id="several audiences"),
        pytest.param(jwt({"sub": USER, "aud": ["api"]}), Denied.AUDIENCE, id="another audience"),
        pytest.param(jwt({"sub": USER}), Denied.AUDIENCE, id="no audience"),
        pytest.param(jwt({"sub": "else", "aud": [AUDIENCE]}), Denied.ACCOUNT, id="another account"),
        pytest.param(jwt([1]), Denied.INVALID, id="claims that are none"),
        pytest.param(jwt({"sub": 1}), Denied.INVALID, id="a name that is none"),
        pytest.param("a.b", Denied.INVALID, id="two parts"),
        pytest.param("a.\xff.c", Denied.INVALID, id="no ASCII"),
        pytest.param("", Denied.INVALID, id="nothing"),
    ],
)
def test_a_token_is_refused_by_its_own_word_and_never_taken_by_it(text: str, expected: Denied | None) -> None:
    denial = refused_unasked(claims_of(text), AUDIENCE, USERS)
    assert (denial.why if denial else None) == expected


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: f"x.{base64.b64encode(raw).decode()}.y"))
def test_no_text_is_too_odd_to_be_a_token(text: str) -> None:
    refused_unasked(claims_of(text), AUDIENCE, USERS)


def test_accounts_are_named_with_their_namespace_or_without() -> None:
    assert users_of(["a", "b/c"], "ns") == {"system:serviceaccount:ns:a", "system:serviceaccount:b:c"}


# ---------------------------------------------------------------------------------------------------- the real server


@dataclass
class Clock:
    """Seconds that a test moves."""

    at_s: float = 0.0

    def __call__(self) -> float:
        return self.at_s


class WithoutNodes(Cluster):
    """An API server of before tokens named nodes: 1.28 and older."""

    def review(self, path: str, body: Object, timeout_s: float) -> Object:
        answer = super().review(path, body, timeout_s)
        claims = answer.get("status", {}).get("user", {}).get("extra", {})
        for name in [name for name in claims if "/node-" in name]:
            del claims[name]
        return answer


@dataclass
class Place:
    """A cluster with two nodes, the shipped roles, and a controller's identities."""

    plane: ControlPlane
    nodes: list[str]
    kubeconfig: Path
    clock: Clock = field(default_factory=Clock)
    open: list[Cluster] = field(default_factory=list)

    def identities(self, kind: type[Cluster] = Cluster) -> TokenIdentities:
        self.open.append(kind.from_kubeconfig(self.kubeconfig, patience=QUICK))
        return TokenIdentities(self.open[-1], AUDIENCE, USERS, monotonic=self.clock)

    def on(self, number: int, **how: Any) -> str:
        """A token of an agent on one of the nodes."""
        return token(self.plane, pod_on(self.plane, self.nodes[number]), **how)


@pytest.fixture
def place(cluster: ControlPlane) -> Iterator[Place]:
    nodes = cluster.add_nodes(2)
    kubeconfig = cluster.kubeconfig_for(install(cluster), "controller")
    made = Place(cluster, nodes, kubeconfig)
    yield made
    for connection in made.open:
        connection.close()


def test_a_token_of_an_agents_pod_speaks_for_its_node(place: Place) -> None:
    found = place.identities().ask(place.on(0))
    assert found == Speaker(place.nodes[0], USER, f"{AGENT}-{place.nodes[0]}")


def test_where_tokens_name_no_node_the_pod_does(place: Place) -> None:
    found = place.identities(WithoutNodes).ask(place.on(1))
    assert found == Speaker(place.nodes[1], USER, f"{AGENT}-{place.nodes[1]}")


def expired(place: Place) -> str:
    good = place.on(0)
    assert isinstance(place.identities().ask(signed(place.plane, good, 600)), Speaker), "but for its time it is good"
    return signed(place.plane, good, -60)


def of_a_pod_that_is_gone(place: Place) -> str:
    text = place.on(0)
    place.plane.admin.delete("Pod", f"{AGENT}-{place.nodes[0]}", NAMESPACE, grace_s=0)
    return text


def of_an_account_that_is_gone(place: Place) -> str:
    text = place.on(0)
    place.plane.admin.delete("ServiceAccount", AGENT, NAMESPACE)
    return text


def of_another_account(place: Place) -> str:
    place.plane.service_account(NAMESPACE, "other")
    return token(place.plane, pod_on(place.plane, place.nodes[0], account="other"), account="other")


def without_the_right(place: Place) -> str:
    place.plane.admin.delete("ClusterRoleBinding", AGENT)
    return place.on(0)


def with_another_signature(place: Place) -> str:
    header, claims, signature = place.on(0).split(".")
    return ".".join((header, claims, signature[::-1]))


REFUSED = [
    pytest.param(lambda place: place.on(0, audience="vault"), Denied.AUDIENCE, 401, id="of another audience"),
    pytest.param(
        lambda place: token(place.plane, pod_on(place.plane, place.nodes[0]), audience="https://kubernetes.default.svc"),
        Denied.AUDIENCE, 401, id="for the API server",
    ),
    pytest.param(expired, Denied.EXPIRED, 401, id="that has expired"),
    pytest.param(of_a_pod_that_is_gone, Denied.INVALID, 401, id="of a pod that is gone"),
    pytest.param(of_an_account_that_is_gone, Denied.INVALID, 401, id="of an account that is gone"),
    pytest.param(of_another_account, Denied.ACCOUNT, 401, id="of another account"),
    pytest.param(lambda place: token(place.plane, None), Denied.UNBOUND, 401, id="that is bound to no pod"),
    pytest.param(without_the_right, Denied.FORBIDDEN, 403, id="of an account without the right"),
    pytest.param(with_another_signature, Denied.INVALID, 401, id="with another signature"),
    pytest.param(lambda _place: "", Denied.NO_TOKEN, 401, id="that is not there"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "why", "status"), REFUSED)
def test_the_intake_refuses_and_counts_a_token(
    place: Place, tmp_path: Path, make: Callable[[Place], str], why: Denied, status: int
) -> None:
    text = make(place)
    with serving(tmp_path, identities=place.identities()) as served:
        answer = served.post(place.nodes[0], xid(1), token=text or " ")
        assert (answer.status_code, served.requests(why.value), served.entries()) == (status, 1, [])


def test_a_token_that_is_bound_to_one_node_cannot_report_for_another(place: Place, tmp_path: Path) -> None:
    with serving(tmp_path, identities=place.identities()) as served:
        text = place.on(0)
        answer = served.post(place.nodes[1], xid(1), token=text)
        assert (answer.status_code, served.requests("other_node"), served.entries()) == (403, 1, [])
        assert served.post(place.nodes[0], xid(1), token=text).status_code == 200
        assert [entry.node for entry in served.entries()] == [place.nodes[0]]


def test_a_controller_without_its_role_takes_nobody_on_trust(place: Place, tmp_path: Path) -> None:
    place.plane.admin.delete("ClusterRoleBinding", "gpuwarden-intake")
    with serving(tmp_path, identities=place.identities()) as served:
        answer = served.post(place.nodes[0], xid(1), token=place.on(0))
        assert (answer.status_code, served.requests("no_identity"), served.entries()) == (503, 1, [])


def test_an_api_server_that_is_away_is_no_reason_to_take_a_token_and_none_to_forget_one(place: Place) -> None:
    identities, known, new = place.identities(), place.on(0), place.on(1)
    speaker = identities.ask(known)
    place.plane.api_server.stop()
    assert identities.known(known) == speaker
    assert identities.known(new) is None
    with pytest.raises(IdentityUnavailable):
        identities.ask(new)
    assert identities.known(new) is None
    place.clock.at_s += 61
    assert identities.known(known) is None


def test_a_token_that_was_taken_back_is_known_for_a_minute_at_most_and_a_bad_one_for_seconds(place: Place) -> None:
    identities = place.identities()
    text = of_a_pod_that_is_gone(place)
    assert identities.known(text) is None
    denial = identities.ask(text)
    assert identities.known(text) == denial
    place.clock.at_s += 6
    assert identities.known(text) is None


def test_what_is_asked_is_what_the_role_allows(place: Place) -> None:
    mark = place.plane.audit_mark()
    user = f"system:serviceaccount:{NAMESPACE}:gpuwarden"
    place.identities(WithoutNodes).ask(place.on(0))
    asked = place.plane.audit_events(mark, user)
    assert {(one.group, one.resource, one.verb, one.code) for one in asked} == {
        ("authentication.k8s.io", "tokenreviews", "create", 201),
        ("authorization.k8s.io", "subjectaccessreviews", "create", 201),
        ("", "pods", "get", 200),
    }
    role = place.plane.admin.get("ClusterRole", "gpuwarden-intake")
    granted = {
        (g, r, v) for one in role["rules"] for g in one["apiGroups"] for r in one["resources"] for v in one["verbs"]
    }
    assert {(one.group, one.resource, one.verb) for one in asked} == granted
    assert not any("token" in json.dumps(one.body or {}) for one in asked if one.resource == "tokenreviews")


# ------------------------------------------------------------------------------------------------ answers that are odd


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"status": None}, id="no status"),
        pytest.param({"status": {"authenticated": "yes"}}, id="a word for a truth"),
        pytest.param({"status": {"authenticated": True, "user": {"extra": {"a": "b"}}}}, id="claims that are none"),
        pytest.param({"kind": "Status", "status": "Failure", "code": 500}, id="a failure in a 201"),
    ],
)
def test_an_answer_that_is_none_takes_nobody(body: Object) -> None:
    with FaultProxy() as proxy:
        proxy.plan(Fault(match=("tokenreviews",), times=9, code=201, body=body))
        with closing(Cluster(proxy.configuration, QUICK)) as connection:
            identities = TokenIdentities(connection, AUDIENCE, USERS, clock=lambda: NOW_S)
            text = jwt({"sub": USER, "aud": [AUDIENCE], "exp": NOW_S + 60})
            try:
                found = identities.ask(text)
            except IdentityUnavailable:
                return
            assert isinstance(found, Denial)

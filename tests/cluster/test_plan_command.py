"""`gpuwarden plan` on a real API server: what it tells is what would happen, and nothing happens by it."""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from daemon.commands import output
from daemon.commands import plan as plan_module
from daemon.commands.around import Look, circumstances
from daemon.commands.plan import plan
from daemon.commands.planned import planned
from daemon.journal import entry_of
from daemon.ledger import Entry, EntryKind, Ledger, encode_body
from daemon.memory import Remembered, VerdictMemory
from detectors.findings import GpuState, Incident, Verdict
from remediation.decide import decide_on
from remediation.gates import GateResult
from remediation.modes import Mode, Modes
from remediation.objects import CORDONED_BY, INCIDENT, TAINT_KEY, WorkloadView
from remediation.people import Saying, Word
from remediation.plan import Works
from rules.loader import load_rules
from rules.schema import RuleBook
from rules.vocabulary import Action
from tests.acting.scenes import calm_scene, training
from tests.decide.circumstances import NODES
from tests.decide.incidents import AT, incident
from tests.testbed.audit import READS
from tests.testbed.control_plane import ControlPlane
from tests.testbed.manifests import budget, daemon_set, deployment, job, pod, stateful_set
from tests.testbed.waiting import until

SPACE = "train"
#: All that looking takes; what a person needs who asks for a plan.
LOOKS = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["list", "watch"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list", "watch"]},
)
EVICTS = {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}
USER = "system:serviceaccount:gpuwarden:asks"
Told = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def rules() -> RuleBook:
    return load_rules()


@pytest.fixture(autouse=True)
def _quick(rules: RuleBook, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rules are loaded once, and what a command sets about logging is taken back."""
    monkeypatch.setattr(output, "load_rules", lambda _extra: rules)
    yield
    structlog.reset_defaults()


# --------------------------------------------------------------------------------------------------- on a real cluster


class Site:
    """Two nodes, a ledger as a daemon leaves it, and somebody who asks."""

    def __init__(self, plane: ControlPlane, folder: Path, capsys: Told) -> None:
        self.plane = plane
        self.folder = folder
        self.capsys = capsys
        self.url = f"sqlite:///{folder / 'ledger.db'}"
        self.nodes = plane.add_nodes(2)
        plane.namespace(SPACE)
        self.write(Entry(EntryKind.RUN_STARTED, now(), {"mode": "observe"}))

    def write(self, *entries: Entry) -> None:
        verdicts = [
            Verdict(node, f"GPU-{node}-{slot}", GpuState.HEALTHY, 0.0, now(), 1.0)
            for node in self.nodes
            for slot in range(8)
        ]
        with Ledger.open(self.url, now=now) as ledger:
            ledger.append(entries, state=VerdictMemory().pack(now(), "", verdicts, {}))

    def fault(self, name: str, node: str, **fields: Any) -> Incident:
        """An incident of a memory fault that asks for a reset, which a drain comes before."""
        one = incident(name, node, opened=now(), first_signal_at=now(), last_signal_at=now(), **fields)
        self.write(Entry(EntryKind.INCIDENT_OPENED, now(), encode_body(one), name, node))
        return one

    def runs(self, count: int) -> None:
        """Wait for the pods, and for the budgets to have seen them."""

        def settled() -> bool:
            pods = self.plane.admin.list("Pod", SPACE)
            budgets = self.plane.admin.list("PodDisruptionBudget", SPACE)
            healthy = [(one["status"].get("currentHealthy"), one["status"].get("expectedPods")) for one in budgets]
            return (
                len(pods) == count
                and all(one["status"].get("phase") == "Running" for one in pods)
                and all(have and have == expected for have, expected in healthy)
            )

        until(f"{count} pods that run", settled, within_s=60)

    def identity(self, rules: Sequence[dict[str, Any]]) -> str:
        """A token of one that these rules hold for, as soon as the API server knows of them."""
        token = self.plane.service_account("gpuwarden", "asks", cluster_role_rules=rules)
        last = rules[-1]
        resource, _, subresource = last["resources"][0].partition("/")
        about = {
            "resource": resource,
            "subresource": subresource,
            "group": last["apiGroups"][0],
            "verb": last["verbs"][0],
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": {"user": USER, "resourceAttributes": about},
        }
        until("the rights of somebody", lambda: self.plane.admin.create(review)["status"]["allowed"], within_s=20)
        return token

    def ask(self, thing: str, *more_rules: dict[str, Any], code: int = 0, form: str = "json", **options: Any) -> Any:
        """The answer to somebody with no more rights than looking takes, and these."""
        mode, may = options.pop("mode", "observe"), options.pop("may", LOOKS)
        token = self.identity([*may, *more_rules])
        config = self.folder / "gpuwarden.yaml"
        told = {
            "ledger": {"url": self.url},
            "kubernetes": {"kubeconfig": str(self.plane.kubeconfig_for(token, "asks"))},
            "mode": mode,
        }
        config.write_text(yaml.safe_dump(told), encoding="utf-8")
        self.capsys.readouterr()
        assert plan(thing, config, form, **options) == code
        captured = self.capsys.readouterr()
        if code:
            assert captured.out == ""
            return captured.err
        return json.loads(captured.out) if form == "json" else captured.out


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def site(cluster: ControlPlane, tmp_path: Path, capsys: Told) -> Site:
    return Site(cluster, tmp_path, capsys)


def failed(told: dict[str, Any]) -> set[str]:
    return {gate["name"] for gate in told["gates"] if not gate["passed"]}


def by_name(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The pods without the random tails of their names; the last of a set stands for it."""
    return {one["name"].split("-")[0]: one for one in told["pods"]}


def test_a_node_with_every_kind_of_pod_and_nothing_is_changed(site: Site) -> None:
    sick, other = site.nodes
    site.plane.admin.patch("Node", other, {"spec": {"unschedulable": True}})
    for made in (
        deployment("web", SPACE, replicas=2), budget("web", SPACE, minAvailable=1), stateful_set("db", SPACE),
        job("llama", SPACE, gpus=2), pod("bare", SPACE), daemon_set("agent", SPACE),
    ):  # fmt: skip
        site.plane.admin.create(made)
    site.runs(7)  # the DaemonSet's is on the cordoned node, too
    site.fault("inc-1", sick)
    mark = site.plane.audit_mark()

    told = site.ask(sick, EVICTS)

    asked = [event for event in site.plane.audit_events(since=mark, user=USER) if event.verb not in READS]
    assert [event for event in asked if event.is_write] == []
    assert {event.resource for event in asked} == {"pods/eviction"}
    assert all(event.dry_run for event in asked)
    assert told["mode"] == told["mode_of_daemon"] == "observe"
    (one,) = told["planned"]
    assert (one["incident"], one["action"], one["ruling"]) == ("inc-1", "reset_gpu", "ask")
    assert [step["action"] for step in one["steps"]] == ["no_new_work", "cordon", "drain", "reset_gpu"]
    # The other node is out, and one of two is the limit; the pods have no other place.
    assert failed(one) >= {"pods_may_move", "blast_radius"}
    pods = by_name(told)
    assert {name: found["fate"] for name, found in pods.items()} == {
        "web": "evict", "db": "evict", "llama": "evict", "bare": "refuse", "agent": "leave",
    }  # fmt: skip
    web = [found for found in told["pods"] if found["name"].startswith("web-")]
    assert [found["passage"] for found in web] == ["counted", "blocked"]
    assert [found["dry_run"].partition(":")[0] for found in web] == ["would be evicted", "not asked for"]
    assert pods["db"]["dry_run"] == pods["llama"]["dry_run"] == "would be evicted"
    assert pods["bare"]["dry_run"] == ""
    assert told["dry_run"] == "3 of 4 evictions judged by the API server"
    assert "no pod is moved until a person has decided" in told["held_up"]
    assert told["at_stake"]["jobs"] == ["Job train/llama"]
    assert (told["at_stake"]["pods"], told["at_stake"]["gpus"]) == (1, 2)
    lost = {one["job"]: one for one in told["lost_work"]["jobs"]}
    llama = lost["Job train/llama"]
    assert (llama["gpus"], llama["now_gpu_hours"], llama["cheaper"]) == (2, None, "unknown")
    assert llama["now_at_most_gpu_hours"] >= 2 * told["lost_work"]["resume"]["seconds"] / 3600


def test_the_patch_is_the_one_that_makes_the_node_so(site: Site) -> None:
    sick = site.nodes[0]
    site.fault("inc-1", sick)
    told = site.ask(sick, mode="auto", form="json")
    patch = told["marks"]["patch"]
    assert told["marks"]["patch_now"] == patch
    assert [step["comes_of_it"] for step in told["planned"][0]["steps"]] == [
        *["the daemon does it"] * 3, "nobody carries it out yet: it is up to people",
    ]  # fmt: skip
    del patch["metadata"]["resourceVersion"]  # the node's status may have been written since
    site.plane.admin.patch("Node", sick, patch)
    found = site.plane.admin.get("Node", sick)
    assert found["metadata"]["annotations"][INCIDENT] == "inc-1"

    after = site.ask(sick, mode="auto")
    assert after["marks"]["wanted"]["incidents"] == ["inc-1"]
    assert (after["marks"]["patch"], after["marks"]["patch_now"]) == (None, None)
    assert (after["node"]["cordoned_by"], after["node"]["stage"]) == ("gpuwarden", "draining")
    assert TAINT_KEY in " ".join(after["node"]["taints"])
    assert "once inc-1 has ended" in after["way_back"][0]


def test_kubectl_s_lines_do_the_same_as_the_patch(site: Site) -> None:
    """Read as a shell reads them; no kubectl runs here."""
    sick = site.nodes[0]
    site.fault("inc-1", sick)
    marks = site.ask(sick)["marks"]
    patch_line, _, *by_hand = marks["kubectl"]
    words = subprocess.run(
        ["sh", "-c", f"set -- {patch_line}; for word; do printf '%s\\n' \"$word\"; done"],
        check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    assert words[:5] == ["kubectl", "patch", "node", sick, "--type=merge"]
    assert json.loads(words[6]) == marks["patch"]
    assert [line.split()[1] for line in by_hand] == ["taint", "cordon", "annotate"]
    assert f"{CORDONED_BY}=gpuwarden" in by_hand[2]
    assert [line.split()[1] for line in marks["undo"]] == ["annotate", "taint", "uncordon"]
    assert f"{CORDONED_BY}-" in marks["undo"][0]


def test_incidents_of_other_nodes_take_their_share_of_the_limits(site: Site) -> None:
    first, second = site.nodes
    site.fault("inc-1", first)
    site.fault("inc-2", second)
    (one,) = site.ask(second)["planned"]
    assert one["incident"] == "inc-2"
    assert "blast_radius" in failed(one)
    assert all("blast_radius" in step["held_by"] for step in one["steps"])


def test_what_people_have_said_counts(site: Site) -> None:
    sick = site.nodes[0]
    site.fault("inc-1", sick)
    site.write(entry_of(Saying(now(), Word.HOLD, "alice", sick, why="memory test")))
    told = site.ask(sick)
    assert "memory test" in told["node"]["hold"]
    assert "on_hold" in failed(told["planned"][0])
    site.write(entry_of(Saying(now(), Word.RELEASE, "bob", sick, ("inc-1",))))
    assert "rejected" in failed(site.ask(sick)["planned"][0])


def test_a_node_without_incidents_shows_what_a_drain_would_move(site: Site) -> None:
    site.plane.admin.create(deployment("web", SPACE))
    site.runs(1)
    (where,) = {one["spec"]["nodeName"] for one in site.plane.admin.list("Pod", SPACE)}
    told = site.ask(where, EVICTS)
    assert told["planned"] == []
    assert told["marks"]["wanted"] is None
    assert (by_name(told)["web"]["fate"], by_name(told)["web"]["dry_run"]) == ("evict", "would be evicted")
    out = site.ask(where, EVICTS, form="table")
    assert "no incident is open here: nothing is planned" in out
    assert "pods, and what a drain would do to each, were one asked for" in out
    assert "nothing of gpuwarden's is on it" in out


def test_a_node_that_still_carries_our_marks_is_to_be_given_back(site: Site) -> None:
    sick = site.nodes[0]
    one = site.fault("inc-1", sick)
    patch = site.ask(sick)["marks"]["patch"]
    del patch["metadata"]["resourceVersion"]
    site.plane.admin.patch("Node", sick, patch)
    over = replace(one, closed=now(), closed_because="quiet")
    site.write(Entry(EntryKind.INCIDENT_CLOSED, now(), encode_body(over), "inc-1", sick))
    (back,) = site.ask(sick, mode="approve")["planned"]
    assert (back["about"], back["action"], back["ruling"]) == (None, "release", "act")
    assert back["steps"][0]["comes_of_it"] == "waits for `gpuwarden approve inc-1`"
    assert "it is to be given back" in site.ask(sick, form="table")


def test_whoever_may_not_evict_is_told_so(site: Site) -> None:
    site.plane.admin.create(deployment("web", SPACE))
    site.runs(1)
    (where,) = {one["spec"]["nodeName"] for one in site.plane.admin.list("Pod", SPACE)}
    told = site.ask(where)
    assert told["dry_run"] == "1 of 1 evictions not judged: this identity may not create pods/eviction"
    assert by_name(told)["web"]["dry_run"] == "not judged: this identity may not (403)"


def test_without_a_dry_run_nothing_but_looking_is_asked_for(site: Site) -> None:
    site.plane.admin.create(deployment("web", SPACE))
    site.runs(1)
    (where,) = {one["spec"]["nodeName"] for one in site.plane.admin.list("Pod", SPACE)}
    mark = site.plane.audit_mark()
    told = site.ask(where, EVICTS, dry_run=False)
    assert {event.verb for event in site.plane.audit_events(since=mark, user=USER)} <= READS
    assert (told["dry_run"], by_name(told)["web"]["dry_run"]) == ("not asked for", "")


def test_the_table_tells_all_of_it(site: Site) -> None:
    sick = site.nodes[0]
    site.plane.admin.create(job("llama", SPACE, gpus=8))
    site.runs(1)
    (where,) = {one["spec"]["nodeName"] for one in site.plane.admin.list("Pod", SPACE)}
    site.fault("inc-1", where)
    out = site.ask(where, EVICTS, mode="approve", form="table")
    assert site.ask(sick, EVICTS, mode="approve", form="yaml")
    for line in (
        f"{where} at ", "mode approve", "the daemon's last run began in mode observe; this answer is for approve",
        "in service; Ready, 8 GPUs", "marks: none", "GPUHealthy should say False (GPUMemoryFault): inc-1: because",
        "inc-1 memory, tier 0, opened ", "plan: no_new_work > cordon > drain > reset_gpu (act)",
        "pass leadership: asked as the process that may act", "waits for `gpuwarden approve inc-1`",
        "marks, once all steps may be done (the daemon writes nothing at its next tick)",
        "dry run: 1 of 1 evictions judged by the API server", "at stake: 1 training pods, 8 GPUs, ",
        "work that a restart loses, in GPU-hours of the whole job", "to resume: 600 s, assumed",
        f"`gpuwarden release {where}` at once",
    ):  # fmt: skip
        assert line in out, line
    assert "\x1b" not in out


def test_a_node_that_nobody_knows_says_which_there_are(site: Site) -> None:
    site.fault("inc-1", "gpu-9999")
    told = site.ask("gpu-9999", code=1)
    assert f"the cluster has no node 'gpu-9999'; nodes known: {', '.join(site.nodes)}" in told
    assert "an incident names it all the same, see `gpuwarden explain gpu-9999`" in told
    assert "see `gpuwarden explain" not in site.ask("../pods", code=1)


def test_an_identity_that_may_not_look_ends_with_its_code(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "_FIRST_LIST_S", 5.0)
    assert "pods is forbidden" in site.ask(site.nodes[0], code=3, may=LOOKS[:1])


# --------------------------------------------------------------------------------------------------- without a cluster


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """A configuration with these sections, beside a ledger in which a tick has been recorded."""

    def write(**sections: Any) -> Path:
        url = f"sqlite:///{tmp_path / 'ledger.db'}"
        with Ledger.open(url, now=now) as ledger:
            ledger.append([], state=VerdictMemory().pack(now(), "", [], {}))
        path = tmp_path / "gpuwarden.yaml"
        path.write_text(yaml.safe_dump({"ledger": {"url": url}} | sections), encoding="utf-8")
        return path

    return write


def kubeconfig(folder: Path, port: int) -> str:
    """A kubeconfig that leads to a port of this machine."""
    named = [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}]
    context = [{"name": "x", "context": {"cluster": "x", "user": "x"}}]
    whole = {"clusters": named, "contexts": context, "users": [{"name": "x", "user": {}}], "current-context": "x"}
    (folder / "kubeconfig").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config"} | whole), encoding="utf-8")
    return "kubeconfig"


def test_without_a_cluster_it_says_what_to_add(config: Callable[..., Path], capsys: Told) -> None:
    assert plan("gpu001", config(), "table") == 2
    assert "add `kubernetes: {}`" in capsys.readouterr().err


def test_a_kubeconfig_that_leads_nowhere_is_wrong_configuration(config: Callable[..., Path], capsys: Told) -> None:
    assert plan("gpu001", config(kubernetes={"kubeconfig": "none"}), "table") == 2
    assert "give the path of a kubeconfig that works with kubectl" in capsys.readouterr().err


def test_an_api_server_out_of_reach_is_told_with_its_code(
    config: Callable[..., Path], tmp_path: Path, capsys: Told
) -> None:
    with socket.socket() as listening:  # bound and not listening: it refuses
        listening.bind(("127.0.0.1", 0))
        path = config(kubernetes={"kubeconfig": kubeconfig(tmp_path, listening.getsockname()[1])})
        assert plan("gpu001", path, "json") == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the API server cannot be asked: GET /api/v1/nodes: unreachable" in captured.err


def test_a_question_makes_no_ledger(tmp_path: Path, capsys: Told) -> None:
    path = tmp_path / "gpuwarden.yaml"
    told = {
        "ledger": {"url": f"sqlite:///{tmp_path / 'none.db'}"},
        "kubernetes": {"kubeconfig": kubeconfig(tmp_path, 1)},
    }
    path.write_text(yaml.safe_dump(told), encoding="utf-8")
    assert plan("gpu001", path, "table") == 4
    assert "start `gpuwarden run`" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()


# ------------------------------------------------------------------------------------------------- what comes of a step

DOES = "the daemon does it"
RECORDED = "mode observe: recorded only"
AFTER = "comes after cordon, which nobody does now"
OVERRULED = "held back by checkpoint, which an approval overrules"
WAITS = "waits for `gpuwarden approve inc-1`"
PEOPLE = "nobody carries it out yet: it is up to people"


def look(rules: RuleBook, modes: Modes, *said: Saying, gates: Sequence[str] = ()) -> Look:
    """A node with a memory fault that nothing stops but `gates`."""
    llama = WorkloadView("Job", "batch/v1", "train", "llama", "uid-job", None, restarts_allowed=6)
    scene = calm_scene(pods=[training()], said=said, workloads={llama.uid: llama})
    one = incident("inc-1", "n000", opened=AT)
    verdicts = tuple(Verdict(name, f"GPU-{name}", GpuState.HEALTHY, 0.0, AT, 1.0) for name in scene.fleet.nodes)
    known = Remembered(AT, "", verdicts, {})
    policy = rules.policy
    if "checkpoint" in gates:
        policy = policy.model_copy(
            update={"drain": policy.drain.model_copy(update={"ask_without_checkpoint": ("fact",)})}
        )
    scene = replace(scene, leads="leadership" not in gates)
    around = circumstances(known, {}, [one], scene, AT)
    decisions = decide_on([one], Works(), verdicts, policy, around=around, modes=modes, scene=scene)
    return Look(scene.fleet.nodes["n000"], scene, (one,), decisions, policy, modes, AT)


APPROVED = Saying(AT, Word.APPROVE, "alice", "n000", ("inc-1",), (Action.NO_NEW_WORK, Action.CORDON, Action.DRAIN))


@pytest.mark.parametrize(
    ("modes", "said", "gates", "comes"),
    [
        pytest.param(Modes(), [], [], [RECORDED, RECORDED, RECORDED, PEOPLE], id="observe"),
        pytest.param(Modes(Mode.APPROVE), [], [], [WAITS, WAITS, WAITS, PEOPLE], id="approve"),
        pytest.param(Modes(Mode.APPROVE), [APPROVED], [], [DOES, DOES, DOES, PEOPLE], id="approved"),
        pytest.param(Modes(Mode.AUTO), [], [], [DOES, DOES, DOES, PEOPLE], id="auto"),
        pytest.param(
            Modes(Mode.AUTO, {Action.CORDON: Mode.OBSERVE}), [], [],
            [DOES, RECORDED, AFTER, PEOPLE], id="what comes after what nobody does",
        ),
        pytest.param(
            Modes(Mode.AUTO), [], ["checkpoint"],
            [DOES, DOES, OVERRULED, OVERRULED], id="a gate that may be overruled",
        ),
        pytest.param(
            Modes(Mode.AUTO), [], ["checkpoint", "leadership"],
            [*["held back by leadership"] * 2, *["held back by leadership, checkpoint"] * 2],
            id="a gate that may not",
        ),
    ],
)  # fmt: skip
def test_what_comes_of_each_step(
    rules: RuleBook, modes: Modes, said: list[Saying], gates: list[str], comes: list[str]
) -> None:
    (one,) = planned(look(rules, modes, *said, gates=gates))
    assert [step.comes_of_it for step in one.steps] == comes
    assert [step.carried_out for step in one.steps] == [word == DOES for word in comes]


# ------------------------------------------------------------------------------------------------------ circumstances

PASSED = (GateResult("snapshot_fresh", True, ""), GateResult("node_known", True, ""))


@pytest.mark.parametrize(
    ("source", "before", "ok"),
    [
        pytest.param("", {"inc-1": PASSED}, True, id="all was asked for"),
        pytest.param("", {}, True, id="nothing has been decided yet"),
        pytest.param("Prometheus cannot be asked", {"inc-1": PASSED}, False, id="nothing could be asked for"),
        pytest.param("", {"inc-1": (GateResult("snapshot_fresh", False, "part of it"),)}, False, id="a part could not"),
    ],
)
def test_the_record_tells_whether_all_could_be_asked_for(
    source: str, before: dict[str, tuple[GateResult, ...]], ok: bool
) -> None:
    known = Remembered(AT, source, (), {})
    assert circumstances(known, before, [incident("inc-1", "n000")], calm_scene(), AT).source_ok is ok


@pytest.mark.parametrize(
    ("node", "before", "certain"),
    [
        pytest.param("n000", {}, True, id="a node of the cluster"),
        pytest.param("10.0.0.7", {"inc-1": (GateResult("node_known", False, ""),)}, False, id="an address"),
        pytest.param("far", {"inc-1": PASSED}, True, id="one that the last tick was certain of"),
        pytest.param("far", {}, False, id="one that nobody is certain of"),
    ],
)
def test_the_record_and_the_cluster_tell_whether_a_node_is_certain(
    node: str, before: dict[str, tuple[GateResult, ...]], certain: bool
) -> None:
    around = circumstances(Remembered(AT, "", (), {}), before, [incident("inc-1", node)], calm_scene(), AT)
    assert around.fleet == {node: certain}


def test_limits_are_those_of_the_cluster_s_own_nodes_and_of_gpus_that_can_be_judged() -> None:
    verdicts = tuple(
        Verdict(name, f"GPU-{name}", state, 0.0, AT, 1.0)
        for name, state in (("n000", GpuState.HEALTHY), ("n001", GpuState.UNKNOWN), ("elsewhere", GpuState.HEALTHY))
    )
    around = circumstances(Remembered(AT - timedelta(seconds=9), "", verdicts, {}), {}, [], calm_scene(), AT)
    assert around.gpu_nodes == {"n000", "n001"}
    assert around.known_share == pytest.approx(2 / 3)
    assert around.snapshot_at == AT - timedelta(seconds=9)
    assert len(calm_scene().fleet.nodes) == NODES

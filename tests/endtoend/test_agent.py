"""`gpuwarden agent` as a process beside a real controller: from a line in the node's log to the node's taint."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from daemon.ledger import EntryKind
from tests.endtoend.acts import is_out, ours_on, soon, start, ticks, unbound
from tests.endtoend.site import COMMAND, NAMESPACE, ROOT, Daemon, Site

AGENT = "gpuwarden-agent"


class NodeAgent:
    """One node's agent: its log, its spool, its token, and the process."""

    def __init__(self, site: Site, node: str, controller: Daemon) -> None:
        self.site, self.node = site, node
        self.folder = site.folder / f"agent-{node}"
        self.folder.mkdir()
        self.log = self.folder / "kern.log"
        self.log.write_bytes(b"")
        self.token = self.folder / "token"
        self.token.write_text(token_on(site, node))
        self.config = self.folder / "gpuwarden.yaml"
        self.point_to(f"http://127.0.0.1:{controller.port}")
        self.process: subprocess.Popen[bytes] | None = None

    def point_to(self, url: str) -> None:
        told: dict[str, Any] = {
            "node": self.node, "source": "file", "path": str(self.log), "spool": str(self.folder / "spool"),
            "controller": url, "token_file": str(self.token), "backoff_max": "2s", "listen": {"port": 0},
        }  # fmt: skip
        self.config.write_text(yaml.safe_dump({"agent": told}), encoding="utf-8")

    def start(self) -> None:
        with (self.folder / "agent.log").open("ab") as file:
            self.process = subprocess.Popen(
                [*COMMAND, "agent", "--config", str(self.config)], cwd=ROOT, stdout=file, stderr=file,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def listens(self) -> bool:
        """Whether it has the log open."""
        assert self.process is not None
        with suppress(OSError):
            return any(one.readlink() == self.log for one in Path(f"/proc/{self.process.pid}/fd").iterdir())
        return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(20)

    def says(self, text: str) -> None:
        """The kernel writes a line."""
        with self.log.open("ab") as file:
            file.write(f"[{time.clock_gettime(time.CLOCK_BOOTTIME):12.6f}] {text}\n".encode())

    def check(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, "agent", "--check", "--config", str(self.config)], cwd=ROOT, capture_output=True, text=True,
            timeout=60, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip


def token_on(site: Site, node: str) -> str:
    """A token that is bound to a pod of the agent's on that node, as a DaemonSet's projected token is."""
    name = f"{AGENT}-{node}"
    site.admin.create(
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "serviceAccountName": AGENT, "nodeName": node, "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "agent", "image": "example/agent:1"}],
            },
        }
    )  # fmt: skip
    pod = site.admin.get("Pod", name, NAMESPACE)
    bound = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}
    path = site.admin.kind("ServiceAccount").path(NAMESPACE, AGENT, "token")
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    spec = {"audiences": ["gpuwarden"], "expirationSeconds": 3600, "boundObjectRef": bound}
    return str(site.admin.request("POST", path, asked | {"spec": spec})["status"]["token"])


@contextmanager
def agent_on(site: Site, node: str, controller: Daemon) -> Iterator[NodeAgent]:
    made = NodeAgent(site, node, controller)
    made.start()
    try:
        soon("it listens", made.listens)  # what was written before its very first look is the past
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.process.terminate()
            made.process.wait(20)
        print((made.folder / "agent.log").read_text(encoding="utf-8", errors="replace")[-3000:])


def controller(site: Site) -> Daemon:
    """A controller that hears nothing but agents."""
    return start(site, policy=unbound(), kernel_logs=[], intake={"enabled": True})


def xid(site: Site, node: str, code: int = 79, gpu: int = 0) -> str:
    pci = [one.pci for one in site._shape.gpus if site._shape.nodes[one.node].name == node][gpu]
    return f"NVRM: Xid (PCI:{pci}): {code}, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def events(site: Site, node: str) -> list[Any]:
    """The events of a node that the ledger has."""
    return [one.body for one in site.entries(EntryKind.EVENT, node=node)]


def test_a_line_in_a_nodes_log_takes_the_node_out(site: Site) -> None:
    sick = site.nodes[2]
    with agent_on(site, sick, controller(site)) as agent:
        told = agent.check()
        assert told.returncode == 0, told.stdout + told.stderr
        agent.says(xid(site, sick))
        soon("it is out", lambda: is_out(site, sick))
    assert len(events(site, sick)) == 1


def test_an_agent_that_is_killed_and_a_controller_that_was_away_lose_nothing(site: Site) -> None:
    sick = site.nodes[3]
    first = controller(site)
    with agent_on(site, sick, first) as agent:
        first.kill()
        agent.says(xid(site, sick, 13, gpu=1))  # an application's, which takes nothing out
        time.sleep(1)
        agent.kill()
        agent.says(xid(site, sick, gpu=2))  # while nobody reads
        agent.point_to(f"http://127.0.0.1:{controller(site).port}")
        agent.start()
        soon("it is out", lambda: is_out(site, sick))
        ticks(site, 2)
    assert [one["event"]["code"] for one in events(site, sick)] == [13, 79]


def test_a_flood_is_a_handful_of_messages(site: Site) -> None:
    noisy = site.nodes[4]
    with agent_on(site, noisy, controller(site)) as agent:
        line = f"[{time.clock_gettime(time.CLOCK_BOOTTIME):12.6f}] {xid(site, noisy, 31)}\n".encode()
        with agent.log.open("ab") as file:
            for _ in range(50):
                file.write(line * 1000)

        def count() -> int:
            return sum(int(one["event"].get("count", 1)) for one in events(site, noisy))

        soon("all are counted", lambda: count() == 50_000)
    assert len(events(site, noisy)) < 100
    assert not ours_on(site, noisy)


@pytest.mark.parametrize("missing", ["log", "controller", "token"])
def test_the_check_says_what_is_missing(site: Site, missing: str, tmp_path: Path) -> None:
    daemon = controller(site)
    agent = NodeAgent(site, site.nodes[5], daemon)
    if missing == "log":
        agent.log.unlink()
    elif missing == "token":
        agent.token.unlink()
    else:
        agent.point_to("http://127.0.0.1:1")
    told = agent.check()
    assert told.returncode == 1
    (failed,) = [line for line in told.stdout.splitlines() if line.startswith("FAIL")]
    assert failed.startswith("FAIL  log" if missing == "log" else "FAIL  controller")
    assert tmp_path.exists()

"""`make bench-agent`: from a line in a kernel log to the node's taint with 200 agents, and what a flood does to that.

One JSON object on stdout, progress on stderr. Beside ours, node-problem-detector on the same log in the same run. The
machine has to be quiet: agents, controller, Prometheus and the whole control plane share it.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench_agent import npd
from tests.bench_agent.agents import KMSG, NodeAgent
from tests.bench_agent.measuring import spread
from tests.bench_agent.phases import flood, kernel_buffer, load, murmur, one_by_one, quiet, stages
from tests.bench_agent.site import Controller, Watch, tokens
from tests.bench_cluster.site import ROOT, installed, stamp
from tests.bench_cluster.telemetry import scraped
from tests.testbed.build import binaries
from tests.testbed.control_plane import ControlPlane
from tests.testbed.waiting import until

TARGETS = {
    "p99_s": 1.0, "flood_extra_s": 1.0, "flood_lines_per_s": 50_000.0, "idle_memory_mb": 60.0, "idle_cpu_share": 0.01,
}  # fmt: skip
#: So many processes start at once.
BATCH = 4


def say(line: str) -> None:
    print(f"bench-agent: {line}", file=sys.stderr, flush=True)


class Cast:
    """Who plays which part: real agents by their part, and simulated ones for the rest of the nodes."""

    def __init__(self, stack: ExitStack, folder: Path, paths: dict[str, Path], controller: Controller) -> None:
        self._stack = stack
        self._folder = folder
        self._paths = dict(paths)
        self._controller = controller
        self.real: list[NodeAgent] = []

    def agents(self, count: int, *, kmsg: bool = False) -> list[NodeAgent]:
        """So many more real agents, each once it reads."""
        made: list[NodeAgent] = []
        while len(made) < count:
            some = [
                NodeAgent(self._folder, node, self._paths.pop(node), self._controller, kmsg=kmsg)
                for node in list(self._paths)[: min(BATCH, count - len(made))]
            ]
            for one in some:
                self._stack.callback(one.end)
            for one in some:
                until(f"the agent of {one.node} reads", lambda one=one: one.is_reading, within_s=120, every_s=0.2)
            made += some
        self.real += made
        return made

    def voices(self, pci: str, every_s: float) -> "tuple[subprocess.Popen[bytes], Path, int]":
        """Simulated agents on all nodes that are left, in one process, with the file that has its plan."""
        plan = self._folder / "voices.json"
        told = {
            "controller": self._controller.url, "ca_file": str(self._controller.certificate), "every_s": every_s,
            "pci": pci, "tokens": {node: str(path) for node, path in self._paths.items()},
        }  # fmt: skip
        plan.write_text(json.dumps(told), encoding="utf-8")
        process = subprocess.Popen([sys.executable, "-m", "tests.bench_agent.voices", str(plan)], cwd=ROOT)
        self._stack.callback(process.kill)
        return process, plan, len(self._paths)


def measure(plane: ControlPlane, folder: Path, sizes: argparse.Namespace) -> dict[str, Any]:
    """All of it, on a plane that is empty."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        raise SystemExit("bench-agent needs Prometheus: make debian")
    program, why_not = npd.found(say)
    load_before = load()
    names = plane.add_nodes(sizes.agents)
    say(f"{len(names)} nodes")
    kubeconfig = installed(plane)
    paths = tokens(plane, names, folder)
    say(f"{len(paths)} pods of agents, each with its token")
    with ExitStack() as stack:
        url, templates = stack.enter_context(scraped(Path(prometheus), folder, names))
        controller = Controller(folder, kubeconfig, url)
        stack.callback(controller.end)
        until("gpuwarden leads", lambda: controller.metric("gpuwarden_leader") == 1, within_s=300, every_s=0.5)
        healthy = 'gpuwarden_gpus{state="healthy"}'
        until("each GPU judged", lambda: controller.metric(healthy) >= 8 * len(names), within_s=300, every_s=2)
        cast = Cast(stack, folder, paths, controller)
        said = _run(stack, plane, controller, cast, (templates.pci(0), templates.pci(1)), program, sizes)
    if program is None:
        said["node_problem_detector"] = {"skipped": why_not}
    extra = [one["others"]["max_s"] - said["latency"]["p50_s"] for one in said["floods"] if one["others"]["events"]]
    reached = {
        "p99_s": said["latency"]["p99_s"],
        "flood_extra_s": max(extra, default=None),
        "flood_lines_per_s": min(one["written"]["lines_per_s"] for one in said["floods"]),
        "idle_memory_mb": said["quiet"]["agent"]["memory_mb"],
        "idle_cpu_share": said["quiet"]["agent"]["cpu_share"],
    }
    return {
        "bench": "agent", "at": stamp(), "small": sizes.small,
        "machine": {"cores": os.cpu_count(), "load_before": load_before, "load_after": load()},
        **said, "targets": TARGETS, "reached": reached, "met": _met(reached),
    }  # fmt: skip


def _met(reached: dict[str, float | None]) -> dict[str, bool | None]:
    """Whether each target was met; None where nothing was measured. A flood has at least its rate, the rest at most."""
    return {
        name: None if value is None
        else value >= 0.98 * TARGETS[name] if name == "flood_lines_per_s"
        else value <= TARGETS[name]
        for name, value in reached.items()
    }  # fmt: skip


def _run(
    stack: ExitStack, plane: ControlPlane, controller: Controller, cast: Cast, pcis: tuple[str, str],
    program: Path | None, sizes: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    watch = stack.enter_context(Watch(plane, npd.CONDITION))
    kmsg, no_kmsg = _kernel_buffer_agent(cast)
    (idle,) = cast.agents(1)
    floods, shared = cast.agents(2), cast.agents(2)
    sick = cast.agents(sizes.events)
    others = [cast.agents(sizes.flood_events), cast.agents(sizes.flood_events)]
    voices, plan, simulated = cast.voices(pcis[0], sizes.every)
    say(f"{len(cast.real)} real agents, {simulated} simulated ones")
    said: dict[str, Any] = {
        "agents": {
            "real": len(cast.real), "simulated": simulated,
            "simulated_is": "the agent's own sender in threads of one process: no log, no spool",
            "reports_a_minute_each": 60.0 / sizes.every,
        }
    }  # fmt: skip
    with murmur([*sick, *others[0], *others[1]], pcis[1], sizes.every):
        time.sleep(sizes.settle)
        said["quiet"] = quiet(controller, idle, sizes.quiet)
        say(f"quiet: {said['quiet']}")
        found = one_by_one(sick, watch, pcis[0])
        said["latency"] = spread([one.took_s for one in found]) | {"stages": stages(controller, found)}
        say(f"one by one: {said['latency']}")
        said["kernel_buffer"] = (
            kernel_buffer(kmsg, controller, sizes.kmsg_lines) if kmsg is not None else {"skipped": no_kmsg}
        )
        said["floods"] = []
        for noisy, well, kind in zip(floods, others, ("repeats", "mixed"), strict=True):
            what = (kind, sizes.rate, sizes.seconds)
            said["floods"].append(flood(noisy, well, controller, watch, pcis, what))
            say(f"flood: {said['floods'][-1]}")
        if program is not None:
            said["node_problem_detector"] = _beside(plane, controller, watch, shared, pcis, program, sizes)
    voices.terminate()
    voices.wait(60)
    said["simulated"] = json.loads(plan.with_suffix(".told").read_text(encoding="utf-8"))
    return said


def _kernel_buffer_agent(cast: Cast) -> tuple[NodeAgent | None, str]:
    """An agent on /dev/kmsg where that can be read and written."""
    if os.access(KMSG, os.R_OK | os.W_OK):
        return cast.agents(1, kmsg=True)[0], ""
    why = f"{KMSG} cannot be read and written here"
    say(f"left out: {why}")
    return None, why


def _beside(
    plane: ControlPlane, controller: Controller, watch: Watch, agents: list[NodeAgent], pcis: tuple[str, str],
    program: Path, sizes: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    """node-problem-detector and our agent on one log: line by line, then flooded, with a log for each flood."""
    dice = random.Random(17)
    told: dict[str, Any] = {"floods": []}
    for agent, kind in zip(agents, ("repeats", "mixed"), strict=True):
        detector = npd.Detector(program, plane, agent)
        try:
            until("it reads", lambda log=detector.log: "Start watching filelog" in log.read_text(), within_s=60)
            time.sleep(3)
            if not told["floods"]:
                pauses_s = [dice.uniform(0.5, 3.0) for _ in range(sizes.npd_events)]
                told = {"version": detector.version, **npd.one_by_one(detector, watch, pcis[0], pauses_s), **told}
            beside = flood(agent, [], controller, watch, pcis, (kind, sizes.rate, sizes.seconds), detector)
        finally:
            detector.end()
        told["floods"].append({"kind": kind, **beside.pop("node_problem_detector"), "gpuwarden_agent": beside})
        say(f"node-problem-detector: {told}")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-agent", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a quick trial: 20 agents, few faults, short floods")
    parser.add_argument("--agents", type=int, help="nodes with an agent each")
    parser.add_argument("--events", type=int, help="faults one after the other, each on a node with a real agent")
    parser.add_argument("--flood-events", type=int, help="at most so many faults on other nodes during a flood")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two reports of each agent")
    parser.add_argument("--rate", type=float, help="lines a second of a flood")
    parser.add_argument("--seconds", type=float, help="how long a flood lasts")
    parser.add_argument("--quiet", type=float, help="seconds of normal rates without a fault")
    parser.add_argument("--settle", type=float, help="seconds to wait before anything is measured")
    parser.add_argument("--kmsg-lines", type=int, help="lines written to /dev/kmsg")
    parser.add_argument("--npd-events", type=int, help="lines one by one for node-problem-detector")
    sizes = parser.parse_args()
    full = {
        "agents": (200, 20), "events": (60, 5), "flood_events": (16, 3), "rate": (50_000.0, 50_000.0),
        "seconds": (20.0, 6.0), "quiet": (60.0, 10.0), "settle": (30.0, 5.0), "kmsg_lines": (10, 3),
        "npd_events": (15, 4),
    }  # fmt: skip
    for name, (usual, small) in full.items():
        if getattr(sizes, name) is None:
            setattr(sizes, name, small if sizes.small else usual)
    with tempfile.TemporaryDirectory(prefix="bench-agent-") as folder:
        plane = ControlPlane(binaries(say), node_lease_s=40)
        with plane:
            try:
                print(json.dumps(measure(plane, Path(folder), sizes), indent=2))
            except BaseException:
                for log in [Path(folder) / "gpuwarden.log", *sorted(Path(folder).glob("agent-*/agent.log"))[:2]]:
                    if log.exists():
                        say(log.read_text(encoding="utf-8", errors="replace")[-3000:])
                raise
    return 0


if __name__ == "__main__":
    sys.exit(main())

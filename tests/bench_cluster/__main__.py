"""`make bench-cluster`: how fast gpuwarden acts, on a real control plane with 1,000 nodes and 8,000 pods.

One JSON object on stdout, progress on stderr. Beside ours, `kubectl drain` on the same control plane in the same run,
and the published figures of NVSentinel. The machine has to be quiet: everything runs on it, the API server too.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench_cluster.site import SPACE, USER, NodeWatch, Warden, fill, installed, label, stamp
from tests.bench_cluster.telemetry import Templates, scraped
from tests.testbed.api import Conflict, NotFound, TooManyRequests
from tests.testbed.build import binaries, kubectl
from tests.testbed.control_plane import ControlPlane
from tests.testbed.waiting import until

#: Threads of the bare evictions: as many as the executor has by default.
PARALLEL = 16
#: tests/bench_cluster compares with these; their own load tests, on their own hardware (NVIDIA/NVSentinel, 2025).
NVSENTINEL = {"cordon_p50_s": 0.37, "cordon_p99_s": 0.50, "nodes_per_s": 2.5, "evictions_per_s": 5.0}
TARGETS = {
    "cordon_p50_s": 0.25, "cordon_p99_s": 0.5, "nodes_per_s": 25.0, "evictions_per_s": 50.0,
    "memory_mb": 500.0, "idle_requests_per_s": 2.0,
}  # fmt: skip


def say(line: str) -> None:
    print(f"bench-cluster: {line}", file=sys.stderr, flush=True)


def idle(plane: ControlPlane, warden: Warden, seconds: int) -> dict[str, float]:
    """What it costs while nothing happens."""
    say(f"idle for {seconds} s")
    mark, cpu_s = plane.audit_mark(), warden.cpu_s()
    time.sleep(seconds)
    asked = [event for event in plane.audit_events(mark, USER) if event.stage != "ResponseStarted"]
    return {
        "requests_per_s": len(asked) / seconds,
        "cpu_share": (warden.cpu_s() - cpu_s) / seconds,
        "memory_mb": warden.memory_mb("VmRSS"),
    }


def latency(warden: Warden, watch: NodeWatch, templates: Templates, nodes: Sequence[str]) -> dict[str, Any]:
    """From the line in the kernel log to the cordon as another watcher sees it, one node after the other."""
    say(f"{len(nodes)} faults, one after the other")
    dice, took = random.Random(7), []
    for node in nodes:
        time.sleep(dice.uniform(0.5, 3.0))
        began = time.time()
        warden.loses(node, templates.pci(0))
        until(f"{node} cordoned", lambda node=node: watch.cordoned.get(node), within_s=60, every_s=0.01)
        took.append(watch.cordoned[node] - began)
    p50, p90, p99 = (float(np.percentile(took, share)) for share in (50, 90, 99))
    return {"events": len(took), "p50_s": p50, "p90_s": p90, "p99_s": p99, "max_s": max(took)}


def throughput(
    plane: ControlPlane, warden: Warden, watch: NodeWatch, templates: Templates, nodes: Sequence[str]
) -> dict[str, Any]:
    """Many nodes at once, from the first line to the last node cordoned, and to the last one drained."""
    say(f"{len(nodes)} faults at once")
    mark, began = plane.audit_mark(), time.time()
    for node in nodes:
        warden.loses(node, templates.pci(0))
    until("all cordoned", lambda: all(name in watch.cordoned for name in nodes), within_s=300, every_s=0.02)
    until("all drained", lambda: all(name in watch.quarantined for name in nodes), within_s=600, every_s=0.05)
    cordoned = max(watch.cordoned[name] for name in nodes) - began
    drained = max(watch.quarantined[name] for name in nodes) - began
    done = [
        event
        for event in plane.audit_events(mark, USER)
        if event.resource == "pods/eviction"
        and event.succeeded
        and not event.dry_run
        and event.stage != "ResponseStarted"
    ]
    span = max(event.at for event in done) - min(event.at for event in done)
    return {
        "nodes": len(nodes),
        "all_cordoned_s": cordoned,
        "cordons_per_s": len(nodes) / cordoned,
        "all_drained_s": drained,
        "nodes_per_s": len(nodes) / drained,
        "evictions": len(done),
        "evictions_per_s": len(done) / max(span.total_seconds(), 1e-9),
    }


def reference(plane: ControlPlane, program: Path, nodes: Sequence[str]) -> dict[str, Any]:
    """`kubectl drain` of as many nodes as it is given, by selector, as an operator would."""
    say(f"kubectl drain of {len(nodes)} nodes")
    label(plane, nodes, "kubectl")
    pods = sum(1 for one in plane.admin.list("Pod", SPACE) if one["spec"].get("nodeName") in set(nodes))
    began = time.monotonic()
    subprocess.run(
        [str(program), "--kubeconfig", str(plane.kubeconfig), "drain", "--selector", "bench=kubectl",
         "--ignore-daemonsets", "--delete-emptydir-data", "--timeout", "600s"],
        check=True, capture_output=True,
    )  # fmt: skip
    took = time.monotonic() - began
    return {"nodes": len(nodes), "seconds": took, "nodes_per_s": len(nodes) / took, "evictions_per_s": pods / took}


def ceiling(plane: ControlPlane, nodes: Sequence[str]) -> dict[str, Any]:
    """What this control plane can take: evictions by a loop of as many threads as ours that judges and writes nothing.

    Like ours it begins with cordons; the pods that replace the evicted ones are scheduled and started meanwhile.
    """
    say(f"bare evictions on {len(nodes)} nodes")
    for name in nodes:
        plane.admin.patch("Node", name, {"spec": {"unschedulable": True}})
    here = set(nodes)
    pods = [one["metadata"]["name"] for one in plane.admin.list("Pod", SPACE) if one["spec"].get("nodeName") in here]
    granted: list[float] = []

    def evict(pod: str) -> None:
        while True:
            try:
                plane.admin.evict(pod, SPACE)
            except NotFound:
                return
            except (TooManyRequests, Conflict):  # its budget has no room, or is being counted anew
                time.sleep(0.5)
                continue
            granted.append(time.monotonic())
            return

    with ThreadPoolExecutor(PARALLEL) as pool:
        began = time.monotonic()
        list(pool.map(evict, pods))
    span = max(granted) - began
    return {"nodes": len(nodes), "evictions": len(pods), "seconds": span, "evictions_per_s": len(pods) / span}


def measure(plane: ControlPlane, folder: Path, sizes: argparse.Namespace) -> dict[str, Any]:
    """All of it, on a plane that is empty."""
    names = fill(plane, sizes.nodes, sizes.pods, say)
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        raise SystemExit("bench-cluster needs Prometheus: make debian")
    drained = reference(plane, kubectl(), names[: sizes.kubectl])
    rest = names[sizes.kubectl :]
    with scraped(Path(prometheus), folder, names) as (url, templates):
        warden = Warden(folder, installed(plane), url, names)
        try:
            until("gpuwarden leads", lambda: warden.metric("gpuwarden_leader") == 1, within_s=300, every_s=0.5)
            until("each GPU judged", lambda: _judged(warden) >= 8 * len(rest), within_s=300, every_s=2)
            until("conditions written", lambda: _told(plane) >= len(rest), within_s=300, every_s=5)
            with NodeWatch(plane) as watch:
                calm = idle(plane, warden, sizes.idle)
                say(f"{calm}")
                one_by_one = latency(warden, watch, templates, rest[: sizes.events])
                say(f"{one_by_one}")
                at_once = rest[sizes.events : sizes.events + sizes.at_once]
                many = throughput(plane, warden, watch, templates, at_once)
            say(f"{many}")
            memory = {"memory_mb": warden.memory_mb("VmRSS"), "peak_memory_mb": warden.memory_mb("VmHWM")}
        finally:
            warden.end()
        bare = ceiling(plane, rest[sizes.events + sizes.at_once :][: sizes.bare])
    return {
        "bench": "cluster", "at": stamp(), "nodes": sizes.nodes, "pods": sizes.pods, "idle": calm,
        "event_to_cordon": one_by_one, "at_once": many, "memory": memory,
        "bare_evictions": bare, "kubectl_drain": drained, "nvsentinel_published": NVSENTINEL, "targets": TARGETS,
        "ratio": {
            "nodes_per_s": many["nodes_per_s"] / drained["nodes_per_s"],
            "evictions_per_s": many["evictions_per_s"] / drained["evictions_per_s"],
            "evictions_per_s_to_bare": many["evictions_per_s"] / bare["evictions_per_s"],
        },
    }  # fmt: skip


def _judged(warden: Warden) -> float:
    return warden.metric('gpuwarden_gpus{state="healthy"}')


def _told(plane: ControlPlane) -> int:
    return sum(
        any(one["type"] == "GPUHealthy" and one["status"] == "True" for one in node["status"]["conditions"])
        for node in plane.admin.list("Node")
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=8000)
    parser.add_argument("--events", type=int, default=100, help="faults one after the other")
    parser.add_argument("--at-once", type=int, default=200, help="faults at the same moment")
    parser.add_argument("--kubectl", type=int, default=20, help="nodes that kubectl drains")
    parser.add_argument("--bare", type=int, default=100, help="nodes emptied by bare evictions, as the plane's limit")
    parser.add_argument("--idle", type=int, default=60, help="seconds of doing nothing")
    sizes = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder:
        plane = ControlPlane(binaries(say), node_lease_s=40)
        with plane:
            try:
                print(json.dumps(measure(plane, Path(folder), sizes), indent=2))
            except BaseException:
                log = Path(folder) / "gpuwarden.log"
                if log.exists():
                    say(log.read_text(encoding="utf-8")[-4000:])
                raise
    return 0


if __name__ == "__main__":
    sys.exit(main())

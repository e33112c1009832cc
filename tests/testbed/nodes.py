"""GPU nodes without machines: Node objects that kwok plays the kubelet of. Made by `ControlPlane.add_nodes`."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.testbed.api import Object

#: kwok plays the kubelet of nodes with this annotation, and of no others.
MANAGED = "kwok.x-k8s.io/node"
#: A pod with it is on a node whose kubelet fell silent: nothing happens to it.
NODE_LOST = "testbed.gpuwarden.io/node-lost"
POOL_LABEL = "testbed.gpuwarden.io/pool"
RACK_LABEL = "testbed.gpuwarden.io/rack"
H100 = "NVIDIA-H100-80GB-HBM3"


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What the nodes of one `add_nodes` have in common. `nodes_per_rack` 0 puts no rack label on them."""

    gpus: int = 8
    model: str = H100
    pool: str = "train"
    nodes_per_rack: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()


DEFAULT_SHAPE = NodeShape()


def node(name: str, number: int, shape: NodeShape, now: datetime) -> Object:
    """A Node as its kubelet and NVIDIA's feature discovery would register it, Ready from the start.

    `number` gives it its addresses: up to 48,000 nodes have distinct ones.
    """
    resources = {"cpu": "192", "memory": "2Ti", "ephemeral-storage": "10Ti", "pods": "250"}
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        POOL_LABEL: shape.pool,
    }
    if shape.gpus:
        resources["nvidia.com/gpu"] = str(shape.gpus)
        labels |= {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.count": str(shape.gpus),
            "nvidia.com/gpu.product": shape.model,
        }
    if shape.nodes_per_rack:
        labels[RACK_LABEL] = f"rack-{number // shape.nodes_per_rack}"
    high, low = divmod(number, 256)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels | dict(shape.labels), "annotations": {MANAGED: "fake"}},
        # Its own pod network, so that 250 pods have addresses.
        "spec": {"podCIDR": f"10.{64 + high}.{low}.0/24", "taints": [dict(taint) for taint in shape.taints]},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": conditions(now),
            "addresses": [
                {"type": "InternalIP", "address": f"172.{16 + high // 256}.{high % 256}.{low}"},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": {
                "bootID": str(uuid.uuid4()),
                "machineID": uuid.uuid4().hex,
                "systemUUID": str(uuid.uuid4()),
                "kernelVersion": "6.8.0",
                "osImage": "testbed",
                "containerRuntimeVersion": "containerd://2.1.0",
                "kubeletVersion": "v1.34.3",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


def conditions(now: datetime, ready: str = "True") -> list[Object]:
    """A node's own conditions: Ready as given ("True", "False", "Unknown"), no pressure."""
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    reasons = {"True": "KubeletReady", "False": "KubeletNotReady", "Unknown": "NodeStatusUnknown"}
    told = [("Ready", ready, reasons[ready])]
    told += [(f"{kind}Pressure", "False", f"KubeletHasNo{kind}Pressure") for kind in ("Memory", "Disk", "PID")]
    return [
        {"type": kind, "status": status, "reason": reason, "message": "", "lastHeartbeatTime": stamp,
         "lastTransitionTime": stamp}
        for kind, status, reason in told
    ]  # fmt: skip

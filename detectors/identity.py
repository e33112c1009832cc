"""Who a measurement is about: GPUs, nodes and the work that runs on them.

Identity is the GPU's UUID (with its MIG instance) and the node's name, UID and boot id. Index, PCI address, model,
serial and slot are attributes: they may change, or be wrong, without the thing becoming another one.
"""

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass

#: `dddd:bb:dd` out of any spelling: 8-digit domains (dcgm-exporter), function suffixes, upper case, no domain.
_PCI = re.compile(r"^(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-9a-f])?$", re.IGNORECASE)


def normal_pci(text: str) -> str | None:
    """A PCI address as lower-case `dddd:bb:dd`, or None where the text is no address.

    >>> normal_pci("00000000:5C:00.0")
    '0000:5c:00'
    """
    found = _PCI.match(text.strip())
    if found is None:
        return None
    domain = int(found[1] or "0", 16)
    return f"{domain:04x}:{found[2]}:{found[3]}".lower()


@dataclass(frozen=True, slots=True, order=True)
class NodeRef:
    """A machine.

    `resolved` is False where only an exporter's own name or address is known: such a node is observed and never acted
    on (dcgm-exporter reports the pod's name as Hostname in some set-ups).
    """

    name: str
    uid: str = ""
    boot_id: str = ""
    resolved: bool = True


@dataclass(frozen=True, slots=True, order=True)
class GpuRef:
    """A GPU, or one MIG instance of it. Two refs are the same thing when `key` is the same."""

    uuid: str
    node: str
    gpu_instance: int | None = None
    index: str = ""
    pci: str = ""
    model: str = ""
    serial: str = ""
    driver: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """Identity: UUID and MIG instance (-1 for the whole device)."""
        return self.uuid, -1 if self.gpu_instance is None else self.gpu_instance

    @property
    def slot(self) -> str:
        """The place in the chassis: PCI address where known, else the index."""
        return self.pci or self.index


def same_refs(now: Sequence[GpuRef], before: Sequence[GpuRef]) -> bool:
    """Whether two inventories hold the very same values, row by row.

    Cheap at 16,384 rows, so that what is worked out from an inventory is worked out again only when it changes.
    """
    return len(now) == len(before) and all(map(operator.is_, now, before))


@dataclass(frozen=True, slots=True, order=True)
class Workload:
    """A pod that uses a GPU. `job` groups the pods of one training job; it is a label or derived from the name."""

    namespace: str
    pod: str
    job: str


_POD_TAIL = re.compile(
    r"(?:-[a-f0-9]{8,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$|(?:-(?:worker|master|launcher|head|ps|node|rank|replica))?(?:-\d+)+$"
)


def job_of_pod(pod: str) -> str:
    """The job's name out of a pod's: the name without its ordinal, role or random tail.

    >>> job_of_pod("llama-worker-12"), job_of_pod("train-6d4cf56db6-x7k2p")
    ('llama', 'train')
    """
    return _POD_TAIL.sub("", pod) or pod

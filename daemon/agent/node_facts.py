"""What a node knows of its own GPUs without any library of the driver: /proc, the PCI bus, and the driver's tool.

Each look is a reading of small files. The one program that is run has a deadline and a process of its own: where it
hangs, the GPU stack does, and that is what is to be known.
"""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.agent.fabric_manager import FabricLog

#: PCI vendor, and the classes of a display or 3D controller.
_VENDOR = "0x10de"
_CLASSES = ("0x0300", "0x0302")
_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """`on_bus` and `driven` are PCI addresses; `uuids` by PCI address, of GPUs that the driver has initialised.

    `answers` says whether the driver's tool ended well within its deadline, None where there is none. `fabric` is what
    `daemon.agent.fabric_manager.FabricLog.look` gives.
    """

    driver: str
    on_bus: tuple[str, ...]
    driven: tuple[str, ...]
    uuids: tuple[tuple[str, str], ...]
    answers: bool | None = None
    fabric: str | None = None


class Probe:
    """Runs the driver's tool, one at a time. One that hangs in the kernel cannot be killed: it is left alone."""

    def __init__(self, tool: Sequence[str], within_s: float = 10.0) -> None:
        self._tool = list(tool)
        self._within_s = within_s
        self._hanging: subprocess.Popen[bytes] | None = None

    def answers(self) -> bool | None:
        """Whether it ended well within its deadline; None where there is no such program."""
        if self._hanging is not None and self._hanging.poll() is None:
            return False
        quiet = subprocess.DEVNULL
        try:
            self._hanging = subprocess.Popen(self._tool, stdin=quiet, stdout=quiet, stderr=quiet)  # noqa: S603
            return self._hanging.wait(self._within_s) == 0
        except subprocess.TimeoutExpired:
            if self._hanging is not None:
                self._hanging.kill()
            return False
        except OSError:
            return None


def look(
    proc: Path = Path("/proc"), sys: Path = Path("/sys"), probe: Probe | None = None, fabric: FabricLog | None = None
) -> NodeFacts:
    """The facts at this moment. What cannot be read is as if it were not there; nothing is raised."""
    gpus = proc / "driver" / "nvidia" / "gpus"
    told = {_pci(one.name): _information(one / "information") for one in _folders(gpus)}
    on_bus = [
        _pci(one.name)
        for one in _folders(sys / "bus" / "pci" / "devices")
        if _text(one / "vendor") == _VENDOR and _text(one / "class")[:6] in _CLASSES
    ]
    found = _VERSION.search(_text(proc / "driver" / "nvidia" / "version"))
    uuids = tuple(sorted((pci, uuid) for pci, uuid in told.items() if uuid.startswith("GPU-")))
    return NodeFacts(
        driver=found[1] if found else "", on_bus=tuple(sorted(on_bus)), driven=tuple(sorted(told)), uuids=uuids,
        answers=probe.answers() if probe is not None else None, fabric=fabric.look() if fabric is not None else None,
    )  # fmt: skip


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(65_536).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _information(path: Path) -> str:
    """The UUID of a GPU's `information`, "" where it has none that is known yet (`GPU-????...`)."""
    for line in _text(path).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "GPU UUID" and "?" not in value:
            return value.strip()
    return ""


def _pci(name: str) -> str:
    """`0000:5c:00.0` and `00000000:5C:00.0` as `0000:5c:00`."""
    return name.lower().rpartition(".")[0][-10:] or name.lower()

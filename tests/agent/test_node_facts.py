"""What a node says of its own GPUs: read from /proc, /sys and a tool that may hang, as a node really has them."""

import subprocess
from pathlib import Path

import pytest

from daemon.agent.node_facts import NodeFacts, Probe, look

VERSION = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08  Wed Oct 29 23:15:11 UTC 2025
GCC version:  gcc version 12.3.0
"""
INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 234
GPU UUID: \t {uuid}
Video BIOS: \t 96.00.74.00.01
Bus Type: \t PCIe
Bus Location: \t {pci}
"""


def node(tmp_path: Path, *, driven: dict[str, str], on_bus: tuple[str, ...], version: str = VERSION) -> dict[str, Path]:
    nvidia, devices = tmp_path / "proc/driver/nvidia", tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    nvidia.mkdir(parents=True)
    if version:
        (nvidia / "version").write_text(version)
    for pci, uuid in driven.items():
        (nvidia / "gpus" / pci).mkdir(parents=True)
        (nvidia / "gpus" / pci / "information").write_text(INFORMATION.format(uuid=uuid, pci=pci))
    for pci in on_bus:
        (devices / pci).mkdir()
        (devices / pci / "vendor").write_text("0x10de\n")
        (devices / pci / "class").write_text("0x030200\n")
    (devices / "0000:00:01.0").mkdir()
    (devices / "0000:00:01.0" / "vendor").write_text("0x8086\n")
    (devices / "0000:00:01.0" / "class").write_text("0x060400\n")
    (devices / "0000:c0:00.0").mkdir()  # an NVSwitch is no GPU
    (devices / "0000:c0:00.0" / "vendor").write_text("0x10de\n")
    (devices / "0000:c0:00.0" / "class").write_text("0x068000\n")
    return {"proc": tmp_path / "proc", "sys": tmp_path / "sys"}


def test_a_node_with_a_gpu_that_its_driver_does_not_know(tmp_path: Path) -> None:
    where = node(
        tmp_path, driven={"0000:5c:00.0": "GPU-aaaa", "0000:AB:00.0": "GPU-????????-????"},
        on_bus=("0000:5c:00.0", "0000:ab:00.0", "0000:ac:00.0"),
    )  # fmt: skip
    facts = look(**where)
    assert facts.driver == "580.105.08"
    assert facts.on_bus == ("0000:5c:00", "0000:ab:00", "0000:ac:00")
    assert facts.driven == ("0000:5c:00", "0000:ab:00")
    assert facts.uuids == (("0000:5c:00", "GPU-aaaa"),)  # the other one is not initialised yet
    assert facts.answers is None


def test_a_node_without_any_of_it_is_no_error(tmp_path: Path) -> None:
    assert look(proc=tmp_path / "none", sys=tmp_path / "none") == NodeFacts("", (), (), ())


@pytest.mark.parametrize(
    ("tool", "answers"),
    [
        pytest.param(["true"], True, id="it answers"),
        pytest.param(["false"], False, id="it says that something is wrong"),
        pytest.param(["/nowhere/nvidia-smi"], None, id="there is no such tool"),
        pytest.param(["sleep", "60"], False, id="it hangs"),
    ],
)
def test_the_drivers_tool_has_a_deadline(tool: list[str], answers: bool | None) -> None:
    probe = Probe(tool, within_s=5.0 if tool[0] != "sleep" else 0.2)
    assert probe.answers() is answers
    if probe._hanging is not None:
        probe._hanging.wait(20)


def test_one_that_hangs_is_not_started_a_second_time(tmp_path: Path) -> None:
    probe = Probe(["touch", str(tmp_path / "ran")])
    probe._hanging = hanging = subprocess.Popen(["sleep", "60"])
    assert probe.answers() is False
    assert not (tmp_path / "ran").exists()
    hanging.kill()
    hanging.wait(20)
    assert probe.answers() is True
    assert (tmp_path / "ran").exists()

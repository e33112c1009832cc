"""Kernel logs: framings, order, and that every XID of the truth is in its node's file."""

import json
import re
from datetime import datetime

import pytest

from fixtures.fleet import klog
from fixtures.fleet.shape import Framing

XID = re.compile(r"NVRM: Xid \(PCI:(\S+)\): (\d+), ")


def stamp_s(line: str, framing: Framing, booted_s: float) -> float:
    if framing is Framing.JOURNAL:
        return int(json.loads(line)["__REALTIME_TIMESTAMP"]) / 1e6
    if framing is Framing.MONOTONIC:
        return booted_s + float(line[1 : line.index("]")])
    return datetime.fromisoformat(line.split(" ", 1)[0]).timestamp()


@pytest.mark.parametrize("framing", list(Framing))
def test_stamps_are_in_order_and_within_the_span(framing, day):
    nodes = [node for node in day.shape.nodes if node.framing is framing]
    assert nodes
    for node in nodes:
        lines = [line for line in klog.framed(day, node) if not line.startswith(" ")]
        stamps = [stamp_s(line, framing, node.booted_s) for line in lines]
        assert stamps == sorted(stamps)
        assert day.start_s <= stamps[0]
        assert stamps[-1] <= day.end.timestamp()


def test_every_xid_is_in_the_log_of_its_node_once(day):
    for node in day.shape.nodes:
        text = "\n".join(line for line in klog.framed(day, node) if " root: " not in line)
        mine = [
            (day.shape.gpus[e.gpu].pci, str(e.code)) for e in day.events if day.shape.gpus[e.gpu].node == node.index
        ]
        assert sorted(XID.findall(text)) == sorted(mine)


def test_the_record_without_the_word_xid_takes_three_lines(day):
    node = day.shape.nodes[1]
    lines = list(klog.framed(day, node))
    at = next(index for index, line in enumerate(lines) if "The NVIDIA GPU" in line)
    assert lines[at].startswith("[")
    assert lines[at + 1].lstrip().startswith("NVRM: (PCI ID: 10de:2330)")
    assert lines[at + 2].lstrip().startswith("NVRM: fallen off the bus")


def test_a_boot_starts_the_clock_of_a_log_again_and_leaves_silence_before_it(day):
    node = day.shape.nodes[15]
    off = next(outage for outage in day.outages if outage.host)
    on = next(reload for reload in day.reloads if reload.booted)
    lines = klog.log_lines(day, node)
    assert not [line for line in lines if off.from_s <= line.at_s < on.at_s]
    assert any("Linux version" in line.text and line.at_s == on.at_s for line in lines)


def test_a_forged_line_names_its_writer(day):
    lines = list(klog.framed(day, day.shape.nodes[11]))
    forged = [line for line in lines if ": 79, " in line]
    assert len(forged) == 1
    assert " gpu012 root: NVRM: Xid" in forged[0]

"""Same seed, same bytes; and nothing that is added changes what was there."""

import hashlib
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from fixtures.fleet import klog, labels, scenarios
from fixtures.fleet.exporters import targets
from fixtures.fleet.openmetrics import write_block
from fixtures.fleet.signals import Field
from fixtures.fleet.telemetry import Block, Fleet, join


def digest(fleet: Fleet, folder: Path) -> str:
    """One number for everything a fleet writes (of its telemetry, the last block, which depends on all others)."""
    labels.write_labels(fleet, folder / "labels.csv")
    labels.write_notes(fleet, folder / "planted.json")
    klog.write_logs(fleet, folder / "logs")
    text = StringIO()
    write_block(fleet, list(fleet.blocks())[-1], targets(fleet), text)
    found = hashlib.sha256(text.getvalue().encode())
    for path in sorted(folder.rglob("*.*")):
        found.update(path.read_bytes())
    return found.hexdigest()


def same(one: Block, other: Block) -> bool:
    return all(np.array_equal(one.gpu[name], other.gpu[name], equal_nan=True) for name in one.gpu) and all(
        np.array_equal(one.node[name], other.node[name], equal_nan=True) for name in one.node
    )


def test_two_fleets_of_one_seed_write_the_same_bytes(tmp_path):
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    first, again = (digest(scenarios.demo(3), folder) for folder in folders[:2])
    assert first == again
    assert digest(scenarios.demo(4), folders[2]) != first


def test_blocks_joined_are_the_whole(day, day_block):
    assert same(join(list(day.blocks())), day_block)


def test_more_nodes_change_nothing_about_the_first_ones(day_block):
    more = scenarios.day(7, nodes=18).whole()
    for signal in (Field.POWER, Field.GPU_TEMP, Field.SBE, Field.ENERGY):
        np.testing.assert_array_equal(more.gpu[signal][:, :128], day_block.gpu[signal])
    for series, values in day_block.node.items():
        np.testing.assert_array_equal(more.node[series][:, :16], values)


def test_a_longer_span_begins_like_a_shorter_one():
    short, long = (scenarios.healthy(5, nodes=2, hours=hours) for hours in (2, 4))
    long = replace(long, planned=short.planned)
    head = long.whole()
    for signal, values in short.whole().gpu.items():
        np.testing.assert_array_equal(head.gpu[signal][: len(values)], values)


@pytest.mark.parametrize("step_s", [15.0, 30.0, 60.0])
def test_events_fall_into_the_step_that_follows_them_at_any_step_length(step_s):
    fleet = scenarios.demo(7, step_s=step_s)
    block = fleet.whole()
    contained = next(event for event in fleet.events if event.code == 94)
    step = int(np.ceil(contained.at_s / step_s))
    assert block.gpu[Field.XID][step - 1, contained.gpu] != 94
    assert block.gpu[Field.XID][step, contained.gpu] == 94

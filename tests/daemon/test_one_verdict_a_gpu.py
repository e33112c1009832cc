"""What is told about GPUs is one verdict for each: also with MIG instances, and after a board was swapped."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

import pytest

from detectors.findings import GpuState, Verdict
from detectors.snapshot import Snapshot
from detectors.verdict import one_a_gpu, still_there

AT = datetime(2026, 3, 1, tzinfo=UTC)
H, D, F, U = GpuState.HEALTHY, GpuState.DEGRADED, GpuState.FAILED, GpuState.UNKNOWN


@dataclass
class Swapped:
    """The part of a snapshot that says which GPU took which one's place."""

    replaced: tuple[tuple[str, str], ...] = ()


def verdict(gpu: str, state: GpuState, node: str = "n1") -> Verdict:
    return Verdict(node, gpu, state, 0.0, AT, 1.0)


@pytest.mark.parametrize(
    ("states", "told"),
    [
        pytest.param([H], H, id="a whole GPU"),
        pytest.param([H, H, H], H, id="instances that are all well"),
        pytest.param([U, H, U], H, id="one instance is seen"),
        pytest.param([H, F, D], F, id="the worst of them speaks for the GPU"),
        pytest.param([U, D, H], D, id="what is not seen hides nothing"),
        pytest.param([U, U], U, id="none is seen"),
    ],
)
def test_instances_share_their_devices_verdict(states: Sequence[GpuState], told: GpuState) -> None:
    rows = [verdict("GPU-a", state) for state in states]
    assert [v.state for v in one_a_gpu(rows, cast("Snapshot", Swapped()))] == [told]


def test_a_gpu_that_another_replaced_has_no_verdict_any_more() -> None:
    rows = [verdict("GPU-old", U), verdict("GPU-new", H), verdict("GPU-else", H)]
    told = one_a_gpu(rows, cast("Snapshot", Swapped((("GPU-old", "GPU-new"),))))
    assert [v.gpu for v in told] == ["GPU-new", "GPU-else"]


def test_nothing_is_decided_by_a_gpu_that_another_replaced() -> None:
    rows = [verdict("GPU-old", U), verdict("GPU-new", H), verdict("GPU-new", U), verdict("GPU-else", H)]
    assert still_there(rows, cast("Snapshot", Swapped((("GPU-old", "GPU-new"),)))) == rows[1:]
    assert still_there(rows, cast("Snapshot", Swapped())) == rows

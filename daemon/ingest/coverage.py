"""What is missing, stale or frozen at one moment, and in which way: `Coverage`, from the stores and target health.

Compares against what has been seen before (an inventory), never with absent(): a query can't name what it lost.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from daemon.ingest.store import Store
from daemon.ingest.targets import Targets
from detectors.snapshot import Coverage, Frame
from rules.schema import TelemetryPolicy
from rules.vocabulary import SignalKind

Bools = NDArray[np.bool_]
Index = NDArray[np.intp]

#: Gauges that always move a little on a GPU that is really being read, even when idle.
_RESTLESS = (
    "power_watts", "power_instant_watts", "gpu_temp", "memory_temp", "sm_clock_mhz", "fb_used_mib", "gpu_util_percent",
)  # fmt: skip


class CoverageWatch:
    """Keeps what a single moment can't know: how often each GPU's samples arrive."""

    def __init__(self, policy: TelemetryPolicy) -> None:
        self._policy = policy
        self._share = np.empty(0, np.float32)

    def look(
        self, *, now: float, interval_s: float, frame: Frame, nodes_frame: Frame, store: Store, node_of: Index,
        device_of: Index, node_count: int, targets: Targets, retired: Bools, counts: Mapping[str, int],
    ) -> Coverage:  # fmt: skip
        """Coverage of the moment `now` (unix seconds), for GPUs of `frame` on nodes `node_of`.

        `device_of` gives for each row the first row of its device; `retired` rows were replaced by another GPU.
        """
        by_node = _ByNode(node_of, node_count)
        fast = np.array([c.fast and c.kind is not SignalKind.WINDOW_COUNT for c in store.columns], np.bool_)
        fresh = ~np.isnan(frame.value)
        fresh_any: Bools = np.asarray(fresh.any(axis=1), np.bool_)
        reporting = by_node.count(fresh_any)
        node_fresh = reporting > 0
        fresh_of_node = by_node.count(fresh)
        seen = store.seen()
        common = fresh_of_node >= np.maximum(2.0, 0.5 * reporting[:, None])
        expected = (seen | common[node_of]) & fast[None, :] & ~retired[:, None]
        wanted = expected.sum(axis=1)
        share = np.divide((fresh & expected).sum(axis=1), wanted, out=np.zeros(len(wanted)), where=wanted > 0)
        # A MIG instance that was taken apart is no lost GPU while its device reports.
        device_fresh = np.bincount(device_of, weights=fresh_any, minlength=len(device_of))[device_of] > 0
        down, up = _rows(targets.down, node_count), _rows(targets.up, node_count)
        lost = (by_node.count(seen & ~retired[:, None]) > 0) & (fresh_of_node == 0)
        lost &= node_fresh[:, None] & fast[None, :]
        return Coverage(
            gpu_missing=seen.any(axis=1) & ~device_fresh & node_fresh[node_of] & ~retired,
            gpu_stale=~fresh_any,
            gpu_frozen=self._frozen(frame, store, now) & fresh_any,
            signal_share=share.astype(np.float32),
            sample_share=self._sample_share(store, node_of, node_count, interval_s),
            exporter_down=down & ~up,
            no_gpu_series=up & ~node_fresh,
            node_stale=~node_fresh & np.isnan(nodes_frame.value).all(axis=1),
            lost_signals=tuple((str(row), frame.signals[col]) for row, col in zip(*np.nonzero(lost), strict=True)),
            counts=tuple(sorted(counts.items())),
        )

    def _frozen(self, frame: Frame, store: Store, now: float) -> Bools:
        """Where samples arrive and nothing moves.

        The energy counter stands while power is drawn, and no restless gauge moves; without that counter, three
        restless gauges at least are bit-identical.
        """
        limit = self._policy.frozen_after
        power = frame.of("power_watts")
        has_energy = ~np.isnan(frame.of("energy_joules"))
        with np.errstate(invalid="ignore"):
            energy_stands = store.unchanged_s("energy_joules", now) > limit
            moves = np.zeros(len(power), np.bool_)
            known = np.zeros(len(power), np.int64)
            for signal in _RESTLESS:
                here = ~np.isnan(frame.of(signal))
                known += here
                moves |= here & (store.unchanged_s(signal, now) <= limit)
            return (power > 1.0) & ~moves & np.where(has_energy, energy_stands, known >= 3)

    def _sample_share(self, store: Store, node_of: Index, node_count: int, interval_s: float) -> NDArray[np.float32]:
        """Share of its siblings' samples that each GPU delivered, over about `gap_window`; 1 where nothing is lost."""
        arrived = store.samples().astype(np.float32)
        if len(self._share) < len(arrived):
            self._share = np.concatenate([self._share, np.ones(len(arrived) - len(self._share), np.float32)])
        best = np.zeros(node_count, np.float32)
        np.maximum.at(best, node_of, arrived)
        expected = best[node_of]
        weight = min(1.0, interval_s / (self._policy.gap_window / 3.0))
        ratio = np.divide(arrived, expected, out=np.ones_like(arrived), where=expected > 0)
        moved = (1 - weight) * self._share + weight * ratio
        self._share = np.where(expected > 0, moved, self._share).astype(np.float32)
        return self._share.copy()


class _ByNode:
    """Counts of GPUs by node. Rows of one node lie together nearly always, so they are added up in runs."""

    def __init__(self, node_of: Index, node_count: int) -> None:
        self._node_count = node_count
        self._order = np.argsort(node_of, kind="stable")
        ordered = node_of[self._order]
        self._starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else self._order
        self._nodes = ordered[self._starts]

    def count(self, flags: Bools) -> NDArray[np.int32]:
        """How many GPUs of each node have a flag set, shape (nodes, ...) for flags of shape (gpus, ...)."""
        result = np.zeros((self._node_count, *flags.shape[1:]), np.int32)
        if len(self._starts) and flags.size:
            result[self._nodes] = np.add.reduceat(flags[self._order], self._starts, axis=0, dtype=np.int32)
        return result


def _rows(chosen: frozenset[int], count: int) -> Bools:
    flags = np.zeros(count, np.bool_)
    flags[list(chosen)] = True
    return flags

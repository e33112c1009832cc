"""What metrics say of jobs: when they last committed a checkpoint, where they name a metric for it, and who computes.

The expression is the job's own (`gpuwarden.io/checkpoint-metric`): it is asked as it stands, once a poll, with the
poll's own time-out, and of no more than a few jobs. What cannot be asked, or is no time, is not known.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice

import numpy as np
import structlog

from daemon.ingest.decode import PrometheusError, decode
from daemon.prometheus import Prometheus
from detectors.snapshot import Snapshot

log = structlog.get_logger()

#: Jobs that are asked about in one poll at most.
MOST_JOBS = 32
#: Unix seconds of the years 2001 to 2286: other numbers are no times, or milliseconds.
_TIMES = (1e9, 1e10)


def measured(client: Prometheus, wanted: Mapping[str, str], now: float, errors: Counter[str]) -> dict[str, datetime]:
    """The newest time that each expression gives, by the job's UID. Raises nothing: `errors` counts what failed."""
    found = {}
    for uid, promql in islice(sorted(wanted.items()), MOST_JOBS):
        try:
            values = decode(client.query(promql, now)).value
        except PrometheusError as error:
            errors[error.kind] += 1
            log.warning("checkpoint metric", job=uid, query=promql, kind=error.kind, detail=error.detail)
            continue
        times = values[np.isfinite(values) & (values >= _TIMES[0]) & (values < _TIMES[1])]
        if len(times):
            found[uid] = datetime.fromtimestamp(float(times.max()), UTC)
        else:
            errors["checkpoint_metric"] += 1
    return found


def computing(snapshot: Snapshot, busy_share: float) -> frozenset[tuple[str, str]] | None:
    """Namespace and name of the pods all of whose GPUs are busier than this share; None where nobody knows."""
    busy = snapshot.gpu.of("gpu_util_percent")
    if np.isnan(busy).all():
        return None
    with np.errstate(invalid="ignore"):
        works = (busy > 100.0 * busy_share).tolist()
    all_of: dict[tuple[str, str], bool] = {}
    for users, is_busy in zip(snapshot.workloads, works, strict=False):
        for work in users:
            pod = work.namespace, work.pod
            all_of[pod] = all_of.get(pod, True) and is_busy
    return frozenset(pod for pod, is_busy in all_of.items() if is_busy)

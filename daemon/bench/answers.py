"""Synthetic Prometheus answers of any size, as files: what a poll of N GPUs x M metrics brings, byte for byte in form.

Names are the catalog's own as far as they go (first those that are pulled at every poll), then names outside it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rules.schema import MetricSpec, RuleBook
from rules.vocabulary import SignalKind, SignalScope

NAMES_PER_ANSWER = 8
FIRST_AT = 1_790_000_000
_GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer on disk. `query` names the question; the samples of poll `n` lie 30 s after those of poll n - 1."""

    query: str
    path: Path
    series: int

    def bytes_at(self, poll: int) -> bytes:
        """The answer as poll `poll` would get it."""
        return self.path.read_bytes().replace(b"%d" % FIRST_AT, b"%d" % (FIRST_AT + 30 * poll))


def metric_names(rules: RuleBook, count: int) -> list[str]:
    """`count` metric names, the catalog's fast signals first."""
    specs = [s for s in rules.metrics.values() if s.scope is SignalScope.GPU and s.kind is not SignalKind.WINDOW_COUNT]
    known = [spec.aliases[0].metric for spec in sorted(specs, key=lambda s: not s.fast) if not spec.aliases[0].labels]
    known = list(dict.fromkeys(known))
    return (known + [f"DCGM_FI_DEV_BENCH_{number}" for number in range(max(0, count - len(known)))])[:count]


def write_answers(rules: RuleBook, gpus: int, metrics: int, folder: Path) -> list[Answer]:
    """The answers of one poll, each with `NAMES_PER_ANSWER` metrics of all GPUs and one sample a series."""
    names = metric_names(rules, metrics)
    by_metric = {alias.metric: spec for spec in rules.metrics.values() for alias in spec.aliases}
    labels = list(_labels(gpus))
    answers = []
    for begin in range(0, len(names), NAMES_PER_ANSWER):
        part = names[begin : begin + NAMES_PER_ANSWER]
        path = folder / f"answer-{begin}.json"
        random = np.random.default_rng(begin)
        with path.open("w", encoding="ascii") as file:
            file.write('{"status":"success","data":{"resultType":"matrix","result":[')
            for number, name in enumerate(part):
                values = _values(by_metric.get(name), gpus, random)
                file.write("," if number else "")
                file.write(
                    ",".join(
                        f'{{"metric":{{{head}"__name__":"{name}",{tail}}},"values":[[{FIRST_AT},"{value:g}"]]}}'
                        for (head, tail), value in zip(labels, values, strict=True)
                    )
                )
            file.write("]}}")
        answers.append(Answer(f"bench {begin}", path, len(part) * gpus))
    return answers


def _labels(gpus: int) -> Iterator[tuple[str, str]]:
    """The label set of each GPU, in the order in which Prometheus writes it, cut where __name__ goes."""
    for gpu in range(gpus):
        node, slot = divmod(gpu, _GPUS_PER_NODE)
        head = (
            f'"DCGM_FI_DRIVER_VERSION":"580.105.08","Hostname":"gpu-{node:05d}",'
            f'"UUID":"GPU-{gpu:08x}-0000-4000-8000-{gpu:012x}",'
        )
        tail = (
            f'"container":"main","device":"nvidia{slot}","exported_namespace":"training",'
            f'"exported_pod":"job{node // 16}-worker-{node % 16}","gpu":"{slot}",'
            f'"instance":"10.{node // 65536}.{node // 256 % 256}.{node % 256}:9400","job":"nvidia-dcgm-exporter",'
            f'"modelName":"NVIDIA H100 80GB HBM3","namespace":"gpu-operator",'
            f'"pci_bus_id":"00000000:{0x10 + slot:02X}:00.0","pod":"nvidia-dcgm-exporter-{node:05d}"'
        )
        yield head, tail


def _values(spec: MetricSpec | None, gpus: int, random: np.random.Generator) -> np.ndarray:
    """Healthy numbers: the benchmark measures the usual tick, in which nearly nothing is wrong."""
    if spec is None:
        return np.round(random.normal(50, 5, gpus), 3)
    if spec.kind in (
        SignalKind.COUNTER,
        SignalKind.LIFETIME,
        SignalKind.CODE,
        SignalKind.STATE,
        SignalKind.WINDOW_COUNT,
    ):
        return np.zeros(gpus)
    usual = {
        "celsius": 62.0, "watts": 640.0, "percent": 97.0, "megahertz": 1755.0, "mebibytes": 60000.0, "ratio": 0.6,
        "lanes": 16.0, "generation": 5.0, "megabytes_per_second": 150000.0,
    }  # fmt: skip
    middle = usual.get(spec.unit, 10.0)
    if spec.unit in ("lanes", "generation"):
        return np.full(gpus, middle)
    return np.round(random.normal(middle, middle * 0.01, gpus), 3)

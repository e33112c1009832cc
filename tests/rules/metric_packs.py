"""The shipped metric packs, and ways to look at recorded series, that several tests share."""

import re
from collections.abc import Iterator
from pathlib import Path

from rules.loader import PACKS, read_yaml
from rules.schema import Alias, MetricSpec, Pack

FILES = ("gpu.yaml", "node.yaml", "models.yaml")
SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)\{(?P<labels>.*)\}\s+(?P<value>\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')


def packs() -> dict[str, Pack]:
    """Our three packs alone: another pack's mistake is not this file's failure."""
    return {file: Pack.model_validate(read_yaml(PACKS / "metrics" / file)) for file in FILES}


ALL = packs()
METRICS: dict[str, MetricSpec] = {**ALL["gpu.yaml"].metrics, **ALL["node.yaml"].metrics}


def aliases() -> Iterator[tuple[str, MetricSpec, Alias]]:
    for signal, spec in METRICS.items():
        for alias in spec.aliases:
            yield signal, spec, alias


def find(name: str, labels: dict[str, str]) -> tuple[str, MetricSpec, Alias] | None:
    """The signal of one series, as ingest matches it: the exact name, else its upper-case spelling; then the labels."""
    for spelling in (name, name.upper()):
        for signal, spec, alias in aliases():
            if alias.metric == spelling and alias.labels.items() <= labels.items():
                return signal, spec, alias
    return None


def series(path: Path) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := SAMPLE.match(line):
            yield match["name"], dict(LABEL.findall(match["labels"])), float(match["value"])

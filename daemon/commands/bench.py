"""`gpuwarden bench ingest|score|tick`: one part alone, against what one would use instead, in one run."""

import json
import re
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from prometheus_api_client import MetricRangeDataFrame

from daemon.bench.answers import FIRST_AT, Answer, write_answers
from daemon.bench.measure import Measured, Stopwatch, alone
from daemon.commands.output import ExitCode, flat, show
from daemon.config import Config
from daemon.ingest.assemble import Assembler
from daemon.ingest.decode import decode
from daemon.logs import fold
from detectors.classify import classify
from detectors.engine import Engine
from detectors.events import KernelEvent
from detectors.faults import FaultBook
from detectors.kernel_log import KernelLogParser
from detectors.peers import compare_to_peers
from detectors.secondary import SecondaryTracker
from detectors.snapshot import Coverage, Frame, Snapshot
from remediation.decide import decide
from rules.loader import load_rules
from rules.schema import RuleBook

_STAMP = b"2026-11-01T00:00:00.000000+00:00 n1 kernel: "


def ingest(gpus: int, metrics: int, form: str) -> int:
    """HTTP answer to aligned matrix; `ours` is a poll whose series are known, as nearly every poll is."""
    rules = load_rules()
    with tempfile.TemporaryDirectory() as folder:
        answers = write_answers(rules, gpus, metrics, Path(folder))

        def first(watch: Stopwatch) -> None:
            assembler = _assembler(rules)
            with watch:
                _poll(assembler, answers, 0, Stopwatch())

        def ours(watch: Stopwatch) -> None:
            assembler = _assembler(rules)
            _poll(assembler, answers, 0, Stopwatch())
            _poll(assembler, answers, 1, watch)

        def reference(watch: Stopwatch) -> None:
            frames = []
            for answer in answers:
                body = answer.bytes_at(1)
                with watch:
                    frame = MetricRangeDataFrame(json.loads(body)["data"]["result"])
                    frames.append(frame.pivot_table(index="UUID", columns="__name__", values="value", aggfunc="last"))
            with watch:
                pd.concat(frames, axis=1).to_numpy(np.float32)

        def loads(watch: Stopwatch) -> None:
            for answer in answers:
                body = answer.bytes_at(1)
                with watch:
                    json.loads(body)

        return _report(
            {"bench": "ingest", "gpus": gpus, "metrics": metrics, "reference_is": "prometheus-api-client and pandas"},
            alone(ours), alone(reference), form,
            {"first_poll": alone(first), "json_loads": alone(loads)},
        )  # fmt: skip


def tick(gpus: int, metrics: int, form: str) -> int:
    """Ingest, detect and decide once; the reference is json.loads of the same bytes, which decides nothing."""
    rules = load_rules()
    with tempfile.TemporaryDirectory() as folder:
        answers = write_answers(rules, gpus, metrics, Path(folder))

        def ours(watch: Stopwatch) -> None:
            assembler, engine = _assembler(rules), Engine(rules)
            first = Stopwatch()
            _tick(assembler, engine, rules, answers, 0, first)
            _tick(assembler, engine, rules, answers, 1, watch)
            watch.extra = {"first_tick_cpu_seconds": first.cpu_seconds, **watch.extra}

        def reference(watch: Stopwatch) -> None:
            for answer in answers:
                body = answer.bytes_at(1)
                with watch:
                    json.loads(body)

        return _report(
            {"bench": "tick", "gpus": gpus, "metrics": metrics, "reference_is": "json.loads of the same bytes"},
            alone(ours), alone(reference), form, {},
        )  # fmt: skip


def score(gpus: int, metrics: int, form: str) -> int:
    """Every GPU against its job, for `metrics` signals; the reference takes one cohort after the other."""
    random = np.random.default_rng(7)
    values = [random.normal(60, 3, gpus) for _ in range(metrics)]
    cohort = np.arange(gpus, dtype=np.intp) // 128

    def ours(watch: Stopwatch) -> None:
        with watch:
            for value in values:
                compare_to_peers(value, cohort)

    def reference(watch: Stopwatch) -> None:
        with watch:
            for value in values:
                for number in range(int(cohort.max()) + 1):
                    part = value[cohort == number]
                    np.median(np.abs(part - np.median(part)))

    return _report(
        {"bench": "score", "gpus": gpus, "metrics": metrics, "reference_is": "numpy, one cohort after the other"},
        alone(ours), alone(reference), form, {},
    )  # fmt: skip


def xid(lines: int, form: str) -> int:
    """Kernel-log lines to classified faults, 1 line in 100 an XID; the reference only searches each line for one."""
    rules = load_rules()
    log = _log(lines)

    def ours(watch: Stopwatch) -> None:
        with watch:
            parser, tracker = KernelLogParser(rules, year=2026), SecondaryTracker(rules)
            faults = sum(1 for line in log for event in parser.feed(line) if classify(tracker.mark(event), rules).code)
        watch.extra = {"faults": float(faults), "lines_per_second": lines / watch.cpu_seconds}

    def flood(watch: Stopwatch) -> None:
        book = FaultBook(rules)
        line = _STAMP + b"NVRM: Xid (PCI:0000:5c:00): 95, pid=77, Uncontained: LTC TAG (0x2, 0x1). RST: Yes"
        with watch:
            parser = KernelLogParser(rules, node="n1")
            folded: dict[tuple[object, ...], KernelEvent] = {}
            for _ in range(lines):
                for event in parser.feed(line):
                    fold(folded, event)
            book.take(_empty_snapshot(tuple(folded.values())))
        watch.extra = {"lines_per_second": lines / watch.cpu_seconds, "faults_open": float(len(book.open_faults()))}

    def reference(watch: Stopwatch) -> None:
        pattern = re.compile(rb"NVRM: Xid \(PCI:([0-9a-f:.]+)[^)]*\): (\d+)")
        with watch:
            sum(1 for line in log if pattern.search(line))

    return _report(
        {"bench": "xid", "lines": lines, "reference_is": "one regular expression searched in every line"},
        alone(ours), alone(reference), form, {"flood_of_one_xid": alone(flood)},
    )  # fmt: skip


def _log(lines: int) -> list[bytes]:
    """A log in rsyslog's form in which every hundredth line is an XID of one of eight GPUs."""
    plain = _STAMP + b"cni0: port 7(veth1a2b) entered forwarding state\n"
    fault = _STAMP + b"NVRM: Xid (PCI:0000:%02x:00): 31, pid=%d, name=python3, Ch 00000010\n"
    return [fault % (0x10 + i // 100 % 8, i) if i % 100 == 0 else plain for i in range(lines)]


def _empty_snapshot(events: tuple[KernelEvent, ...]) -> Snapshot:
    none = np.empty(0)
    return Snapshot(
        datetime(2026, 11, 1, tzinfo=UTC), 30.0, (), (), np.empty(0, np.intp), none, Frame.empty(), Frame.empty(),
        Coverage.unknown(0, 0), events=events,
    )  # fmt: skip


def _assembler(rules: RuleBook) -> Assembler:
    config = Config()
    return Assembler(rules, config.labels, max_raw_signals=config.prometheus.max_raw_signals)


def _poll(assembler: Assembler, answers: Sequence[Answer], poll: int, watch: Stopwatch) -> None:
    for answer in answers:
        body = answer.bytes_at(poll)
        with watch:
            assembler.absorb(answer.query, decode(body))
    with watch:
        assembler.tick(FIRST_AT + 30.0 * poll + 1.0)


def _tick(
    assembler: Assembler, engine: Engine, rules: RuleBook, answers: Sequence[Answer], poll: int, watch: Stopwatch
) -> None:
    for answer in answers:
        body = answer.bytes_at(poll)
        with watch:
            assembler.absorb(answer.query, decode(body))
    at = FIRST_AT + 30.0 * poll + 1.0
    ingested = watch.cpu_seconds
    with watch:
        snapshot = assembler.tick(at)
        detection = engine.step(snapshot)
        decide(
            detection.incidents, snapshot, detection.verdicts, rules.policy,
            now=datetime.fromtimestamp(at, UTC), ledger_writable=True,
        )  # fmt: skip
    watch.extra = {"ingest_cpu_seconds": ingested, "detect_cpu_seconds": watch.cpu_seconds - ingested}


def _report(head: dict[str, Any], ours: Measured, reference: Measured, form: str, others: dict[str, Measured]) -> int:
    data = {
        **head,
        "ours": ours.as_data(),
        "reference": reference.as_data(),
        "ratio": round(reference.seconds / ours.seconds, 2) if ours.seconds else None,
        **{name: measured.as_data() for name, measured in others.items()},
    }
    show(data, form, flat(data), ("WHAT", "VALUE"))
    return ExitCode.OK

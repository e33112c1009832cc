"""Poll after poll: known series cost no Python, new ones are named once, windows overlap, and label sets change."""

import cProfile
import pstats
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.config import LabelMap
from daemon.ingest.assemble import Assembler
from daemon.ingest.codes import CodeEdges
from daemon.ingest.naming import Namer
from daemon.ingest.places import split_metric
from detectors.events import KernelEvent
from rules.schema import RuleBook
from rules.vocabulary import EventKind
from tests.ingest.builders import ENERGY, SBE, STEP_S, T0, TEMP, XID, Rig, batch, compact, gpu, healthy, host, up


def _never(*_: object, **__: object) -> None:
    raise AssertionError("this runs for every series")


def test_series_that_are_known_are_not_named_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(2):
        rig.scrape(healthy(8, step=step))
    monkeypatch.setattr(Namer, "name", _never)
    monkeypatch.setattr(Namer, "plain", _never)
    monkeypatch.setattr(CodeEdges, "gauge", _never)
    for step in range(2, 5):
        snapshot = rig.scrape(healthy(8, step=step))
    assert snapshot.gpu.of("gpu_temp").tolist() == [60 + 4 % 3] * 8


def test_after_a_change_only_what_is_new_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    series = [(host("node_load1", f"n{n}"), n) for n in range(20)]
    rig.scrape(series)
    named = []
    real: Callable[..., object] = Namer.name
    monkeypatch.setattr(Namer, "name", lambda self, labels: named.append(labels["instance"]) or real(self, labels))
    snapshot = rig.scrape([*series[5:], (host("node_load1", "n99"), 99)])
    assert named == ["n99:9100"]
    assert snapshot.node.of("node_load1").tolist() == [*range(20), 99]


def _calls(rules: RuleBook, gpus: int) -> int:
    """Python calls of one poll and its tick once everything is known."""
    rig = Rig(rules)
    nodes = [f"n{n}" for n in range(gpus // 8)]
    profile = cProfile.Profile()
    for step in range(4):
        answer = batch(*((labels, [(rig.now, v)]) for node in nodes for labels, v in healthy(8, node, step)))
        targets = batch(*((up(node), [(rig.now, 1)]) for node in nodes))
        if step == 3:
            profile.enable()
        rig.assembler.absorb("q", answer)
        rig.assembler.targets(targets)
        rig.tick()
        profile.disable()
        rig.now += STEP_S
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_the_work_of_a_poll_does_not_grow_with_the_number_of_series(rules: RuleBook) -> None:
    """448 more GPUs are 3,584 more series and 56 more nodes; what grows is a little work for each node."""
    assert _calls(rules, 512) - _calls(rules, 64) < 448


def test_windows_that_overlap_count_nothing_twice(rig: Rig) -> None:
    total = 0.0
    for poll in range(10):
        points = [(T0 + 30.0 * n, 1e9 + 500.0 * n) for n in range(max(0, poll - 3), poll + 1)]
        rig.feed((gpu(ENERGY), points), (gpu(TEMP), points[-1:]))
        snapshot = rig.tick(T0 + 30 * poll + 1)
        total += float(np.nan_to_num(snapshot.gpu.of("energy_joules", "increase")[0]))
    assert total == pytest.approx(9 * 0.5)


def test_the_scrape_interval_is_that_of_one_replica_however_many_there_are(rig: Rig) -> None:
    for poll in range(6):
        at = T0 + 60.0 * poll
        rig.feed(*((gpu(TEMP, prometheus_replica=f"r{n}"), [(at + 20 * n, 60 + poll)]) for n in range(3)))
        rig.tick(at + 41)
    assert rig.assembler.gpu.interval_s == 60


def test_answers_in_any_order_give_the_same_snapshot(rules: RuleBook) -> None:
    one, two = (gpu(SBE, prometheus_replica=name) for name in "ab")
    answers = {
        "a": batch((one, [(T0, 5), (T0 + 30, 9), (T0 + 60, 2)])),
        "b": batch((two, [(T0 + 10, 7), (T0 + 40, 1), (T0 + 70, 3)])),
        "c": batch((gpu("DCGM_FI_DEV_GPU_TEMP_CELSIUS"), [(T0, 90), (T0 + 60, 91)])),
        "d": batch((gpu(TEMP), [(T0, 60), (T0 + 60, 61)])),
    }
    seen = []
    for order in ("abcd", "dcba", "badc"):
        assembler = Assembler(rules, LabelMap())
        for name in order:
            assembler.absorb(name, answers[name])
        snapshot = assembler.tick(T0 + 71)
        matrices = ("value", "low", "high", "increase", "age_s")
        signals = ("ecc_sbe_volatile", "gpu_temp")
        seen.append([snapshot.gpu.of(signal, matrix).tolist() for signal in signals for matrix in matrices])
        assert snapshot.gpu.of("gpu_temp").tolist() == [61]
    assert np.array_equal(seen[0], seen[1], equal_nan=True)
    assert np.array_equal(seen[0], seen[2], equal_nan=True)


def test_a_gpu_that_comes_back_to_its_old_node_is_there_again(rig: Rig) -> None:
    """Its old label sets are known; what they say is taken all the same."""
    metrics = (TEMP, "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_SM_CLOCK")
    for node in ("n1", "n2", "n1"):
        snapshot = rig.scrape([(gpu(metric, 0, node, UUID="GPU-a"), 60) for metric in metrics])
        assert [
            (one.node, snapshot.nodes[row].name) for one, row in zip(snapshot.gpus, snapshot.node_of, strict=True)
        ] == [(node, node)]


def test_a_driver_that_is_rolled_back_is_the_old_one_again(rig: Rig) -> None:
    for driver in ("550", "580", "550"):
        snapshot = rig.scrape([(gpu(metric, 0, DCGM_FI_DRIVER_VERSION=driver), 60) for metric in (TEMP, SBE)])
        assert [one.driver for one in snapshot.gpus] == [driver]


@pytest.mark.parametrize("count", [pytest.param(2, id="two signals"), pytest.param(5, id="five signals")])
def test_raw_signals_have_a_limit_and_what_is_over_it_is_counted(rules: RuleBook, count: int) -> None:
    assembler = Assembler(rules, LabelMap(), max_raw_signals=3)
    names = [f"site_metric_{n}" for n in range(count)]
    assembler.absorb("raw", batch(*((host(name, node), [(T0, 1)]) for name in names for node in ("n1", "n2"))))
    assert len(assembler.tick(T0).node.signals) == min(count, 3)
    assert assembler.counts["raw_signals_over_limit"] == 2 * max(0, count - 3)


def test_a_raw_signal_of_a_gpu_keeps_the_labels_that_tell_it_apart(rig: Rig) -> None:
    link = [(gpu("DCGM_FI_DEV_NVLINK_ERROR_L", link=str(n)), n) for n in range(2)]
    snapshot = rig.scrape([(gpu(TEMP), 60), *link])
    signals = [f"DCGM_FI_DEV_NVLINK_ERROR_L{{link={n}}}" for n in range(2)]
    assert [snapshot.gpu.of(signal)[0] for signal in signals] == [0, 1]


def test_an_answer_that_is_empty_for_once_loses_nothing(rig: Rig) -> None:
    rig.feed((gpu(SBE), [(T0, 5)]))
    rig.tick(T0 + 1)
    rig.feed()
    rig.tick(T0 + 31)
    rig.feed((gpu(SBE), [(T0 + 60, 9)]))
    assert rig.tick(T0 + 61).gpu.of("ecc_sbe_volatile", "increase").tolist() == [4]


def test_what_two_roads_show_of_one_code_is_one_event(rig: Rig) -> None:
    """The gauge by two replicas, and the count, all within a minute."""
    gauges = [gpu(XID, prometheus_replica=name) for name in "ab"]
    events = []
    for code in (0, 48, 48):
        count = [(gpu("DCGM_EXP_XID_ERRORS_COUNT", xid="48"), 1)] if code else []
        events += rig.scrape([*((labels, code) for labels in gauges), *count]).events
    assert [(event.code, event.count, event.source) for event in events] == [(48, 1, "exporter")]


def test_an_exporter_that_restarts_under_another_address_makes_no_event_of_a_code_that_stood(rig: Rig) -> None:
    events = []
    for step in range(6):
        moved = {} if step < 3 else {"instance": "10.0.0.9:9400", "pod": "dcgm-exporter-new"}
        events += rig.scrape([(gpu(XID, **moved), 31 if step else 0)]).events
    assert [event.code for event in events] == [31]


_LABELS = {
    "__name__": [TEMP, SBE, XID, "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "my_metric", "my_total", "gpu_clock", "node_load1"],
    "UUID": ["GPU-a", "GPU-b"],
    "Hostname": ["n1", "n2", "dcgm-exporter-x"],
    "instance": ["n1:9400", "10.0.0.9:9400"],
    "exported_pod": ["train-0", "train-1"],
    "prometheus_replica": ["a", "b"],
    "GPU_I_ID": ["1"],
    "link": ["1", "2"],
    "clock_type": ["system"],
    "DCGM_FI_DRIVER_VERSION": ["550", "580"],
}
_label_sets = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in _LABELS.items()})


@settings(max_examples=150)
@given(ticks=st.lists(st.lists(_label_sets, max_size=8, unique_by=lambda one: tuple(sorted(one.items()))), max_size=4))
def test_a_series_goes_where_its_name_says_whatever_its_kin_have_shown(
    rules: RuleBook, ticks: list[list[dict[str, str]]]
) -> None:
    """Series whose other labels are known go the short way; it must lead to the same place as the long one."""
    seen = []
    for short_way in (True, False):
        assembler = Assembler(rules, LabelMap())
        snapshots = []
        for step, label_sets in enumerate(ticks):
            if not short_way:
                assembler._places._kin.clear()
                assembler._places._namer.plain = lambda _metric: None  # type: ignore[method-assign]
            at = T0 + STEP_S * step
            assembler.absorb("q", batch(*((labels, [(at, 31 + n)]) for n, labels in enumerate(label_sets))))
            snapshots.append(assembler.tick(at + 1))
        seen.append(snapshots)
    for one, two in zip(*seen, strict=True):
        assert (one.gpus, one.nodes, one.workloads, one.events) == (two.gpus, two.nodes, two.workloads, two.events)
        for mine, other in ((one.gpu, two.gpu), (one.node, two.node)):
            assert mine.signals == other.signals
            assert np.array_equal(mine.value, other.value, equal_nan=True)
            assert np.array_equal(mine.increase, other.increase, equal_nan=True)


@given(
    labels=st.dictionaries(st.text(max_size=6), st.text(max_size=12), max_size=4),
    metric=st.from_regex(r"[a-z_:]+", fullmatch=True),
)
def test_a_metric_is_cut_out_of_its_labels_whatever_they_hold(labels: dict[str, str], metric: str) -> None:
    cut, rest = split_metric(compact(labels | {"__name__": metric}))
    other, same = split_metric(compact(labels | {"__name__": "another"}))
    assert (cut, other) == (metric, "another")
    assert rest == same
    assert split_metric(compact({name: value for name, value in labels.items() if name != "__name__"})) == ("", 0)


def test_many_things_at_once_have_their_places(rig: Rig) -> None:
    """More slots and uses than the arrays begin with."""
    series = [
        (gpu(metric, n % 8, f"n{n // 8}", exported_pod=f"p{n}"), n)
        for n in range(400)
        for metric in (TEMP, SBE, "x", "y")
    ]
    snapshot = rig.scrape(series)
    assert snapshot.gpu.of("ecc_sbe_volatile").tolist() == list(range(400))
    assert [work[0].pod for work in snapshot.workloads] == [f"p{n}" for n in range(400)]


def test_events_are_told_under_the_name_that_the_metrics_use(rig: Rig) -> None:
    rig.scrape([(gpu(TEMP, Hostname="n1.cluster.local"), 60), (host("node_boot_time_seconds", "n1.cluster.local"), T0)])
    event = KernelEvent(EventKind.XID, 79, "text", node="n1")
    assert rig.assembler.renamed(event).node == "n1.cluster.local"
    assert rig.assembler.renamed(replace(event, node="n2")).node == "n2"
    assert (rig.assembler.boot_at("n1"), rig.assembler.boot_at("n2")) == (T0, None)


def test_the_series_of_a_node_are_found_under_any_of_its_names(rig: Rig) -> None:
    answer = batch(
        *((host("node_boot_time_seconds", name), [(T0, 1)]) for name in ("n1.a", "n1.b", "10.0.0.7", "10.0.0.9"))
    )
    found = [sorted(rig.assembler.series_of_node(answer, name)) for name in ("n1.a", "n1", "10.0.0.7", "10")]
    assert found == [[0], [0, 1], [2], []]

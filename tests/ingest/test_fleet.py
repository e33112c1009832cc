"""Rows: who is one thing and who is another, over names that change, GPUs that move and boards that are swapped."""

import numpy as np
import pytest

from daemon.ingest.fleet import Fleet
from daemon.ingest.work import WorkWatch
from detectors.identity import GpuRef, Workload
from tests.ingest.builders import STEP_S, T0, TEMP, Rig, batch, gpu, healthy, host

# ------------------------------------------------------------------------------------------------- nodes


@pytest.mark.parametrize(
    ("known", "asked", "row"),
    [
        pytest.param(["n1"], "n1.cluster.local", 0, id="the full name of a short one"),
        pytest.param(["n1.cluster.local"], "n1", 0, id="the short name of a full one"),
        pytest.param(["n1.a"], "n1.b", None, id="another full name"),
        pytest.param(["n1", "n1.a"], "n1.b", None, id="a second full name for a short one"),
        pytest.param(["n1.a", "n1.b"], "n1", None, id="a short name that could be two"),
        pytest.param(["10.0.0.7"], "10.0.0.9", None, id="another address"),
        pytest.param(["10.0.0.7"], "10", None, id="the beginning of an address"),
        pytest.param(["n1"], "n2", None, id="a stranger"),
    ],
)
def test_a_node_is_found_under_its_other_name_and_never_under_another_ones(
    known: list[str], asked: str, row: int | None
) -> None:
    fleet = Fleet()
    for name in known:
        fleet.node_row(name)
    assert fleet.find_node(asked) == row


def test_a_node_that_is_found_gets_no_second_row() -> None:
    fleet = Fleet()
    assert [fleet.node_row(name)[0] for name in ("n1", "n1.a", "n1", "n1.b", "n1.b", "n1.a")] == [0, 0, 0, 1, 1, 0]


def test_a_node_becomes_certain_and_stays_so() -> None:
    fleet = Fleet()
    for resolved in (False, True, False):
        fleet.node_row("n1", resolved=resolved)
    assert fleet.nodes[0].resolved


def test_a_finding_about_an_address_reaches_no_other_address(rig: Rig) -> None:
    rig.scrape([(gpu(TEMP, 0, Hostname="", instance="10.0.0.7:9400"), 60)])
    assert rig.assembler.find({"instance": "10.0.0.9:9400"}) == (-1, -1)
    assert rig.assembler.find({"instance": "10.0.0.7:9100"}) == (-1, 0)


# ------------------------------------------------------------------------------------------------- GPUs


def test_a_gpu_moves_with_its_newest_series_and_keeps_its_row(rig: Rig) -> None:
    rig.scrape([(gpu(TEMP, 0, "n1", UUID="GPU-a"), 60)])
    snapshot = rig.scrape([(gpu(TEMP, 2, "n2", UUID="GPU-a"), 50)])
    (only,) = snapshot.gpus
    assert (only.node, only.index, only.pci) == ("n2", "2", "0000:12:00")
    assert snapshot.nodes[snapshot.node_of[0]].name == "n2"
    assert snapshot.gpu.of("gpu_temp")[0] == 50


def test_a_gpu_does_not_move_to_an_address_that_nobody_knows(rig: Rig) -> None:
    rig.scrape([(gpu(TEMP, 0), 60)])
    snapshot = rig.scrape([(gpu(TEMP, 0, Hostname="dcgm-exporter-zz", instance="10.9.9.9:9400"), 61)])
    assert [one.node for one in snapshot.gpus] == ["n1"]
    assert snapshot.gpu.of("gpu_temp")[0] == 61


def test_an_attribute_that_vanishes_is_kept_and_one_that_changes_is_taken_over() -> None:
    fleet = Fleet()
    node, _ = fleet.node_row("n1")
    fleet.gpu_row(GpuRef("GPU-a", "n1", model="H100", driver="550"), node)
    version = fleet.version
    fleet.gpu_row(GpuRef("GPU-a", "n1", driver="550"), node)
    assert (fleet.version, fleet.gpus[0].model) == (version, "H100")
    fleet.gpu_row(GpuRef("GPU-a", "n1", driver="580"), node)
    assert (fleet.gpus[0].driver, fleet.version) == ("580", version + 1)


def test_other_peoples_labels_say_nothing_about_the_gpu(rig: Rig) -> None:
    snapshot = rig.scrape(
        [
            (gpu(TEMP), 60),
            ({"__name__": "llm_tokens_total", "UUID": "GPU-n1-0", "model_name": "llama", "node": "n9"}, 5),
        ]
    )
    assert [(one.model, one.node) for one in snapshot.gpus] == [("NVIDIA H100 80GB HBM3", "n1")]
    assert snapshot.gpu.of("llm_tokens_total{}".removesuffix("{}"))[0] == 5


def _board(uuid: str) -> list[tuple[dict[str, str], object]]:
    return [(gpu(TEMP, 0, UUID=uuid), 60), (gpu(TEMP, 1), 61)]


def test_a_board_that_was_swapped_is_another_gpu_and_the_old_one_is_not_missing(rig: Rig) -> None:
    rig.scrape(_board("GPU-old"))
    for _ in range(4):
        snapshot = rig.scrape(_board("GPU-new"))
    assert snapshot.replaced == (("GPU-old", "GPU-new"),)
    assert not snapshot.coverage.gpu_missing.any()


def test_a_board_that_comes_back_replaces_the_one_that_replaced_it(rig: Rig) -> None:
    for uuid in ("GPU-old", "GPU-new", "GPU-old"):
        for _ in range(5):
            snapshot = rig.scrape(_board(uuid))
    assert snapshot.replaced == (("GPU-new", "GPU-old"),)
    assert not snapshot.coverage.gpu_missing.any()


def test_mig_instances_that_were_taken_apart_are_no_lost_gpu(rig: Rig) -> None:
    instance = [(gpu("DCGM_FI_PROF_GR_ENGINE_ACTIVE", GPU_I_ID=str(number)), 0.5) for number in (1, 2)]
    rig.scrape([(gpu(TEMP), 60), *instance])
    for _ in range(5):
        snapshot = rig.scrape([(gpu(TEMP), 60), instance[0]])
    assert [one.gpu_instance for one in snapshot.gpus] == [None, 1, 2]
    assert snapshot.coverage.gpu_stale.tolist() == [False, False, True]
    assert not snapshot.coverage.gpu_missing.any()


# ------------------------------------------------------------------------------------------------- learned names


def test_a_node_gets_its_name_once_it_is_known_and_its_gpus_move_with_it(rig: Rig) -> None:
    nameless = {"Hostname": "", "instance": "10.0.0.7:9400"}
    series = [(gpu(TEMP, 0) | nameless, 60), (gpu(TEMP, 1) | nameless, 61)]
    series = [({k: v for k, v in labels.items() if v}, value) for labels, value in series]
    before = rig.scrape(series)
    assert (before.nodes[0].name, before.nodes[0].resolved) == ("10.0.0.7", False)
    assert rig.assembler.wants_names
    rig.assembler.learn(
        batch(({"__name__": "node_uname_info", "instance": "10.0.0.7:9100", "nodename": "node-7"}, [(T0, 1)]))
    )
    assert not rig.assembler.wants_names
    after = rig.scrape(series)
    assert [one.node for one in after.gpus] == ["node-7", "node-7"]
    assert after.nodes[after.node_of[0]].resolved
    assert after.gpu.of("gpu_temp").tolist() == [60, 61]


def test_nothing_is_named_anew_for_what_was_learned_about_others(rig: Rig) -> None:
    rig.scrape([(gpu(TEMP, Hostname="", instance="10.0.0.7:9400"), 60), (gpu(TEMP, 1), 61)])
    known = rig.assembler._places.known["q"]
    pods = [
        (
            {"__name__": "kube_pod_info", "namespace": "ml", "pod": f"p{n}", "node": "n5", "pod_ip": f"10.2.0.{n}"},
            [(T0, 1)],
        )
        for n in range(50)
    ]
    rig.assembler.learn(batch(*pods))
    assert rig.assembler._places.known["q"] is known


# ------------------------------------------------------------------------------------------------- whose work


def _uses(pod: str, value: float = 70) -> tuple[dict[str, str], float]:
    return gpu(TEMP, exported_pod=pod, exported_namespace="ml"), value


def test_a_workload_ends_when_its_series_does(rig: Rig) -> None:
    rig.scrape([_uses("p1")])
    for _ in range(2):
        snapshot = rig.scrape([_uses("p2")])
    assert [work.pod for work in snapshot.workloads[0]] == ["p1", "p2"]  # within three scrapes nobody can tell
    snapshot = rig.scrape([_uses("p2")])
    assert [work.pod for work in snapshot.workloads[0]] == ["p2"]


def test_a_gpu_that_nobody_uses_has_no_workloads(rig: Rig) -> None:
    snapshot = rig.scrape(healthy(2))
    assert snapshot.workloads == ((), ())


def test_uses_are_renumbered_when_what_has_ended_is_forgotten() -> None:
    watch = WorkWatch()
    works = [Workload("ml", f"p{n}", "p") for n in range(4)]
    numbers = np.array([watch.number(n % 2, work) for n, work in enumerate(works)])
    watch.saw(numbers, np.array([10.0, 20.0, 30.0, 40.0]))
    renumbered = watch.tidy(25.0, np.array([True, False, False, False]))
    assert renumbered.tolist() == [0, -1, 1, 2]
    assert watch.users(41.0, 15.0, 2) == ((works[2],), (works[3],))
    assert watch.users(41.0, 40.0, 2) == ((works[0], works[2]), (works[3],))
    assert watch.number(0, works[0]) == 0


# ------------------------------------------------------------------------------------------------- weeks of churn


def test_what_label_churn_leaves_behind_is_forgotten(rig: Rig) -> None:
    """Pods, their network devices and the exporter's own address come and go for days; memory stays that of today."""
    assembler = rig.assembler
    rig.now = T0
    for hour in range(24 * 9):
        exporter = {"instance": f"10.{hour // 250}.{hour % 250}.1:9400", "pod": f"dcgm-exporter-{hour}"}
        work = {"exported_pod": f"job-{hour}-0", "exported_namespace": "ml"}
        at = T0 + 3600.0 * hour
        rig.feed(
            *(
                (gpu(metric, 0) | exporter | work, [(at, value)])
                for metric, value in ((TEMP, 60), ("DCGM_FI_DEV_XID_ERRORS", 31))
            ),
            (host("node_network_receive_errs_total", device="eth0"), [(at, 5)]),
            (host("node_network_receive_errs_total", device=f"veth{hour}"), [(at, 1)]),
        )
        target = {"__name__": "up", "job": "dcgm-exporter"} | exporter
        assembler.targets(batch((target, [(at, 1)])))
        snapshot = rig.tick(at + 1)
    assert len(snapshot.gpus) == len(snapshot.nodes) == 1
    assert [work.pod for work in snapshot.workloads[0]] == [f"job-{24 * 9 - 1}-0"]
    assert snapshot.gpu.of("gpu_temp")[0] == 60
    assert len(assembler._work) <= 4
    assert len(assembler._codes._gauge) <= 24 * 7 + 2
    assert len(assembler._places._sources) <= 24 * 7 + 3
    assert len(assembler._targets._labels) <= 26
    assert len(assembler._targets._proofs) <= 26
    assert len(assembler.node._slots._components) <= 4
    assert len(assembler.node._slots.used().at) <= 5


def test_series_that_come_back_after_their_place_was_given_away_get_another(rig: Rig) -> None:
    metric = "node_network_receive_errs_total"
    rig.feed((host(metric, device="a"), [(T0, 100)]), query="slow")
    rig.tick(T0 + 1)
    for hour in range(1, 5):  # `slow` fails all the while, and `fast` brings another device
        rig.feed((host(metric, device="b"), [(T0 + 3600.0 * hour, 7)]), query="fast")
        rig.tick(T0 + 3600.0 * hour + 1)
    at = T0 + 5 * 3600.0
    rig.feed((host(metric, device="c"), [(at, 1)]), query="other")
    rig.feed((host(metric, device="a"), [(at, 300)]), query="slow")
    rig.feed((host(metric, device="b"), [(at, 7 + STEP_S)]), query="fast")
    assert rig.tick(at + 1).node.of("node_net_receive_errors")[0] == 1 + 300 + 37

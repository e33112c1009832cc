"""What a node's agent tells of its own GPUs: what is new, once; what is wrong, as long as it is."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daemon.agent.fabric_manager import FabricLog
from daemon.agent.node_facts import NodeFacts
from daemon.agent.node_watch import NodeWatch
from detectors.events import KernelEvent
from rules.vocabulary import EventKind, Severity

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WELL = NodeFacts("580.1", ("0000:5c:00", "0000:ab:00"), ("0000:5c:00", "0000:ab:00"), (), answers=True, fabric="")


class Told:
    """Looks a minute apart, and what each of them told."""

    def __init__(self, expected_gpus: int = 0) -> None:
        self.watch, self.now = NodeWatch("boot", expected_gpus), NOW

    def look(self, facts: NodeFacts, times: int = 1) -> list[KernelEvent]:
        found = []
        for _ in range(times):
            self.now += timedelta(minutes=1)
            found += self.watch.events(facts, self.now)
        return found


def facts(driver: str = "580.1", **uuids: str) -> NodeFacts:
    return NodeFacts(driver, (), (), tuple(sorted((pci, uuid) for uuid, pci in uuids.items())))


def test_the_first_look_says_where_each_gpu_sits_and_the_next_one_what_is_new() -> None:
    told = Told()

    def kinds(now: NodeFacts) -> list[tuple[EventKind, str | None, str | None]]:
        return [(one.kind, one.pci, one.gpu_uuid) for one in told.look(now)]

    assert kinds(facts(a="0000:5c:00")) == [(EventKind.GPU_MAP, "0000:5c:00", "a")]
    assert kinds(facts(a="0000:5c:00")) == []
    assert kinds(facts(b="0000:5c:00")) == [(EventKind.GPU_MAP, "0000:5c:00", "b")]
    assert kinds(facts("580.2", b="0000:5c:00")) == [(EventKind.DRIVER_LOAD, None, None)]


def test_telling_the_same_again_in_one_boot_is_the_same_report() -> None:
    first, again = (Told().look(facts(a="0000:5c:00"))[0] for _ in range(2))
    assert (first.source, first.boot_id, first.sequence) == (again.source, again.boot_id, again.sequence)


@pytest.mark.parametrize(
    ("bad", "name", "says"),
    [
        pytest.param(replace(WELL, answers=False), "gpu_stack", "does not answer", id="the driver's tool hangs"),
        pytest.param(
            replace(WELL, on_bus=WELL.on_bus[:1], driven=WELL.driven[:1]), "gpu_count",
            "1 of 2 GPUs are on the PCI bus; missing: 0000:ab:00", id="a GPU is gone from the bus",
        ),
        pytest.param(
            replace(WELL, driven=WELL.driven[:1]), "gpu_count", "the driver knows 1 of 2 GPUs; missing: 0000:ab:00",
            id="the driver does not know a GPU",
        ),
        pytest.param(replace(WELL, fabric="[ERROR] a"), "fabric_manager", "[ERROR] a", id="Fabric Manager has failed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_when_it_is_sure_and_again_while_it_lasts(bad: NodeFacts, name: str, says: str) -> None:
    told = Told()
    assert told.look(WELL, 2) == []
    assert told.look(bad) == [], "one look proves nothing"
    (first,) = told.look(bad)
    assert (first.kind, first.place, first.severity) == (EventKind.NODE_STATE, name, Severity.NONFATAL)
    assert says in first.text
    (again,) = told.look(bad, 10)
    assert again.sequence != first.sequence, "the controller may have forgotten the first"
    (over,) = told.look(WELL, 3)
    assert (over.place, over.severity) == (name, Severity.INFO)


def test_what_was_wrong_for_one_look_is_never_told() -> None:
    told = Told()
    for _ in range(3):
        assert told.look(WELL) == told.look(replace(WELL, answers=False)) == []


def test_a_node_whose_driver_is_not_loaded_misses_no_gpu() -> None:
    assert Told().look(replace(WELL, driver="", driven=(), answers=None, fabric=None), 5) == []


def test_a_gpu_that_was_gone_before_the_start_is_missed_where_the_site_says_how_many_there_are() -> None:
    one = replace(WELL, on_bus=WELL.on_bus[:1], driven=WELL.driven[:1])
    assert Told().look(one, 3) == []
    assert [event.text for event in Told(expected_gpus=2).look(one, 3)] == ["1 of 2 GPUs are on the PCI bus"]


# ------------------------------------------------------------------------------------------------------ Fabric Manager

DONE = "[Mar 01 2026 11:00:01] [INFO] [tid 25] Successfully configured all the available NVSwitches to route traffic.\n"
ERROR = "[Mar 01 2026 11:00:09] [ERROR] [tid 25] failed to register with the fabric\n"


@pytest.mark.parametrize(
    ("log", "state"),
    [
        pytest.param(DONE, "", id="it is done"),
        pytest.param(DONE + ERROR, ERROR.strip(), id="an error after that"),
        pytest.param(ERROR + DONE, "", id="an error that it got over"),
        pytest.param("", "", id="a log that says nothing yet"),
        pytest.param(DONE + ERROR[:-1], "", id="a line that is being written"),
        pytest.param("x" * 200_000 + "\n" + ERROR, ERROR.strip(), id="a long line before it"),
        pytest.param("\udcff\udcfd[ERROR] \udcfe\n", "\ufffd\ufffd[ERROR] \ufffd", id="what is no text"),
    ],
)
def test_fabric_managers_state_is_its_last_word(tmp_path: Path, log: str, state: str) -> None:
    path = tmp_path / "fabricmanager.log"
    path.write_bytes(log.encode("utf-8", "surrogateescape"))
    watch = FabricLog(path)
    assert watch.look() == state
    assert watch.look() == state


def test_a_log_that_is_made_anew_is_read_from_its_begin_and_one_that_is_gone_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "fabricmanager.log"
    watch = FabricLog(path)
    assert watch.look() is None
    path.write_text(DONE + ERROR)
    assert watch.look() == ERROR.strip()
    path.write_text(DONE)
    assert watch.look() == ""
    path.rename(tmp_path / "old")
    path.write_text(ERROR)
    assert watch.look() == ERROR.strip()
    path.unlink()
    assert watch.look() is None

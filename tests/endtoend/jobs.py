"""Training jobs in the tests of this folder: where they run, what became of their restarts, and what must never be."""

from collections.abc import Mapping
from typing import Any

from daemon.ledger import EntryKind
from tests.endtoend.acts import soon, unbound
from tests.endtoend.site import Site
from tests.testbed.api import Object
from tests.testbed.trainer import Trainer

SPACE = "train"
#: How long each step may take is short enough for a test to wait for its end.
RESTART: dict[str, Any] = {
    "enabled": True,
    "request_deadline": "15s",
    "stop_within": "60s",
    "ready_within": "60s",
    "running_within": "60s",
    "progress_within": "60s",
}
#: A fault that a GPU survives, which takes its node out once what runs there has been saved.
DEGRADED = 94
SAVED_FIRST = {
    "memory": {
        "trend": {
            "ladder": ["no_new_work", "checkpoint", "cordon", "drain", "quarantine"],
            "when_asked": ["restart_app"],
            "reason": "tests: save, then move",
        }
    }
}


def policy(**sections: Mapping[str, Any]) -> dict[str, Any]:
    """A site's policy with restarts of whole jobs, and these sections over it."""
    restart = {**RESTART, **sections.pop("restart", {})}
    return unbound(restart=restart, actions=SAVED_FIRST, **sections)


def submit(site: Site, job: Object) -> None:
    """Create a job in its namespace, which is made where it isn't there."""
    site.plane.namespace(SPACE)
    site.admin.create(job)


def begun(trainer: Trainer, checkpoint: bool = True) -> None:
    """Wait until the program runs, and has written a checkpoint."""
    soon("the program runs", lambda: trainer.is_running)
    if checkpoint:
        soon("it has a checkpoint", lambda: trainer.checkpoint_step)


def home(site: Site, trainer: Trainer, number: int = 0) -> str:
    """One of the nodes with GPU pods of the job."""
    nodes = sorted(
        one["spec"]["nodeName"]
        for one in site.admin.list("Pod", SPACE)
        if one["metadata"]["uid"] in trainer.incarnations[-1].pods and _gpus(one)
    )
    return nodes[number]


def _gpus(pod: Object) -> bool:
    return any("nvidia.com/gpu" in each.get("resources", {}).get("limits", {}) for each in pod["spec"]["containers"])


def restarts(site: Site) -> list[Any]:
    """The newest state of each restart in the ledger, in the order in which they began."""
    newest: dict[str, Any] = {}
    for entry in site.entries(EntryKind.RESTART):
        newest[entry.body["id"]] = entry.body
    return list(newest.values())


def stages(site: Site) -> list[str]:
    """The stages that restarts have gone through, each once, in order."""
    seen = [str(entry.body["stage"]) for entry in site.entries(EntryKind.RESTART)]
    return [one for number, one in enumerate(seen) if number == 0 or seen[number - 1] != one]


def restarted(site: Site) -> Any:
    """Wait for the end of the only restart, and return it."""

    def over() -> Any:
        found = restarts(site)
        return found[0] if len(found) == 1 and found[0]["stage"] in ("done", "failed") else None

    return soon("the restart has ended", over, within_s=180)


def level(restart: Mapping[str, Any]) -> int:
    """How far up the resume ladder it has come."""
    return max((int(one["level"]) for one in restart["reached"]), default=-1)


def assert_one_writer(trainer: Trainer) -> None:
    """No new pod ever ran beside an old one of the same job."""
    assert trainer.overlaps == []


def assert_went_on(trainer: Trainer, restart: Mapping[str, Any]) -> None:
    """The program has started from the checkpoint that the restart was made from."""
    assert len(trainer.incarnations) == 2
    assert trainer.incarnations[1].started_at_step >= restart["checkpoint_step"] > 0

"""A gpuwarden that ends in the middle of a job's restart, at each of its steps: the job is restarted once, by whoever.

Never do two sets of its pods run side by side: each would write the checkpoint of the other.
"""

from collections.abc import Callable, Sequence

import pytest

from tests.endtoend.acts import requests, soon
from tests.endtoend.jobs import SPACE, assert_one_writer, assert_went_on, begun, home, policy, restarted, submit
from tests.endtoend.link import Asked, Matches, Moment
from tests.endtoend.site import Site
from tests.endtoend.stories import replica
from tests.endtoend.test_killed_and_frozen import Step, die_in_turn
from tests.testbed.trainer import Trainer
from tests.testbed.training import job_set

pytestmark = pytest.mark.usefixtures("workload_controllers")
_JOB = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{SPACE}/jobsets/llama"
BEFORE, AFTER = Moment.BEFORE, Moment.AFTER


def _suspends(asked: Asked, *, wanted: bool) -> bool:
    return str(asked) == f"PATCH {_JOB}" and asked.body.get("spec", {}).get("suspend") is wanted


def always(matches: Callable[[Asked, Sequence[Asked]], bool]) -> Step:
    """A step that is about the job, whichever node it is for."""

    def step(_node: str) -> Matches:
        return matches

    return step


STOPS = always(lambda asked, _before: _suspends(asked, wanted=True))
#: What is looked at before it is started: whether a pod of it is left.
LOOKS = always(
    lambda asked, _before: str(asked) == f"GET /api/v1/namespaces/{SPACE}/pods" and "labelSelector" in asked.query
)
STARTS = always(lambda asked, _before: _suspends(asked, wanted=False))
STEPS = (STOPS, LOOKS, STARTS)


def test_killed_at_any_step_of_a_restart_the_job_is_restarted_once(site: Site) -> None:
    submit(site, job_set("llama", SPACE))
    with Trainer(site.plane, SPACE, "JobSet", "llama") as trainer:
        begun(trainer)
        sick = home(site, trainer)
        with replica(site, "a", policy()) as one, replica(site, "b", policy()) as other:
            both = (one, other)
            for warden in both:
                warden.start()
            soon("one watches and leads", lambda: any(warden.leads() for warden in both))
            die_in_turn(both, site.xid, {sick: [(step, when) for step in STEPS for when in (BEFORE, AFTER)]})
            done = restarted(site)
            soon("quarantined", lambda: site.stage(sick) == "quarantined")
    assert done["stage"] == "done", done["detail"]
    assert_went_on(trainer, done)
    assert_one_writer(trainer)
    assert sick not in trainer.incarnations[1].nodes
    patches = [one.body for one in requests(site, "patch", "jobsets") if one.succeeded]
    assert [body["spec"]["suspend"] for body in patches if "suspend" in body.get("spec", {})] == [True, False]

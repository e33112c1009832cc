"""The shape of what packs/policy.yaml says about bringing work and nodes back: restarts of jobs, returns of nodes."""

from typing import Literal

from pydantic import Field

from rules.base import Seconds, Strict
from rules.vocabulary import CauseClass

#: Causes that say nothing about the hardware: an incident of one is no outage, and no reason to call a thing chronic.
NO_OUTAGE = frozenset(
    {CauseClass.APPLICATION, CauseClass.JOB, CauseClass.STORAGE, CauseClass.TELEMETRY, CauseClass.MAINTENANCE}
)


class RestartPolicy(Strict):
    """How jobs are started again elsewhere, as a whole, from their last checkpoint.

    Without it a drain evicts a job's pods one by one, and what becomes of the job is its controller's affair.
    """

    enabled: bool = False
    #: a checkpoint that is older is not restarted from without asking a person: too much would be computed again
    max_checkpoint_age: Seconds = 21600.0
    #: how long the answer to a request for a checkpoint is waited for; a job may ask for less by its annotation
    request_deadline: Seconds = 600.0
    #: what happens when that answer does not come and the last checkpoint is known, and no older than said above
    without_answer: Literal["restart", "ask"] = "restart"
    #: a job that is stopped has this long, beyond its pods' own grace, until a person is told that it hangs
    stop_within: Seconds = 300.0
    #: how long after the start each step of the way back may take: pods ready, running, computing
    ready_within: Seconds = Field(default=1800.0, gt=0)
    running_within: Seconds = Field(default=1800.0, gt=0)
    progress_within: Seconds = Field(default=3600.0, gt=0)
    #: from a job's stop until it computes again: assumed where no restart in the ledger says, and only told to people
    typical_resume: Seconds = 600.0
    #: a GPU that works for a job is busier than this, as a share; loading a checkpoint looks idle
    busy_share: float = Field(default=0.05, ge=0, lt=1)


class ReturnPolicy(Strict):
    """How a node comes back once its fault is over: it soaks, then is on probation, and then in full service.

    On 400 servers over 345 days a node that came back failed within a day at 64 times the fleet's rate, and at 6 times
    within the next two (docs/chronic.md).
    """

    #: a node stays out for so long after its incident has ended
    soak: Seconds = 0.0
    #: then it takes work with a taint that only prefers other nodes; a fault in that time sends it to service
    probation: Seconds = 86400.0


class ChronicPolicy(Strict):
    """When a GPU, a node or a slot is chronic: its rate of outages against that of its like (docs/chronic.md)."""

    #: with at least this chance its rate is above so many times the fleet's
    times_fleet: float = Field(default=3.0, gt=1)
    chance: float = Field(default=0.9, gt=0, lt=1)
    #: and it has had so many outages: one is an accident
    min_outages: int = Field(default=2, ge=1)
    #: the weight of an outage falls to a third in this time after the return
    fade: Seconds = Field(default=1_209_600.0, gt=0)
    #: a new outage of a chronic GPU or node ends in quarantine for service; off, since no score of past outages is sure
    quarantine: bool = False
    #: where more of one kind is chronic at once, the yardstick is wrong or the cause is common: nothing is done by it
    max_share: float = Field(default=0.05, gt=0, le=1)

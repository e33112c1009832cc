"""The shape of what packs/policy.yaml says about work on a node itself: diagnosis, reset, reboot, each as a Job."""

from typing import Any, Self

from pydantic import Field, model_validator

from rules.base import Seconds, Strict
from rules.vocabulary import OPERATIONS, Action

_LARGEST_EXIT_CODE = 255


class OperationPolicy(Strict):
    """One kind of work, as a pod template that runs once on the node, and what its exit code says.

    The Job's pod is pinned to the node and tolerates what keeps other pods off it. Its termination message is kept with
    the verdict. It learns what it is about from GPUWARDEN_NODE, GPUWARDEN_GPUS and GPUWARDEN_INCIDENT.
    """

    enabled: bool = False
    #: from its creation until it counts as of unknown outcome, waiting for its image included
    timeout: Seconds = Field(default=1800.0, gt=0)
    #: how often it is tried for one incident before it is up to people
    max_attempts: int = Field(default=1, ge=1)
    #: exit codes that say that it went well, and that the hardware is bad; any other says nothing of the hardware
    passed: tuple[int, ...] = (0,)
    failed: tuple[int, ...] = ()
    #: a PodTemplateSpec: metadata and spec, with at least one container
    template: dict[str, Any] = {}

    @model_validator(mode="after")
    def _usable(self) -> Self:
        both = sorted(set(self.passed) & set(self.failed))
        if both:
            raise ValueError(f"exit codes {both} cannot say both passed and failed")
        strange = [code for code in (*self.passed, *self.failed) if not 0 <= code <= _LARGEST_EXIT_CODE]
        if strange:
            raise ValueError(f"exit codes lie between 0 and {_LARGEST_EXIT_CODE}; got {strange}")
        if set(self.template) - {"metadata", "spec"}:
            raise ValueError("template is a PodTemplateSpec, with nothing but metadata and spec")
        if self.enabled:
            self._runnable()
        return self

    def _runnable(self) -> None:
        """What has to be there before it is switched on."""
        spec = self.template.get("spec")
        containers = spec.get("containers") if isinstance(spec, dict) else None
        if not isinstance(containers, list) or not containers:
            raise ValueError("enabled, and its template has no container: give template.spec.containers")
        for one in containers:
            if not (isinstance(one, dict) and one.get("name") and one.get("image")):
                raise ValueError("each container of the template needs a name and an image")


class OperationsPolicy(Strict):
    """Work on a node itself. Nothing of it runs without being switched on."""

    #: where the Jobs are; drains must leave this namespace alone (drain.leave_namespaces)
    namespace: str = Field(default="gpuwarden", min_length=1)
    #: a Job that has ended is kept for so long, for people
    keep: Seconds = 86400.0
    #: a node whose incident is over has to pass a diagnosis before it soaks, where diagnose is enabled
    diagnose_before_return: bool = True
    diagnose: OperationPolicy = OperationPolicy()
    reset_gpu: OperationPolicy = OperationPolicy()
    reboot_node: OperationPolicy = OperationPolicy()

    def of(self, action: Action) -> OperationPolicy:
        """The policy of one operation. Raises KeyError for an action that is none."""
        return {
            Action.DIAGNOSE: self.diagnose, Action.RESET_GPU: self.reset_gpu, Action.REBOOT_NODE: self.reboot_node
        }[action]  # fmt: skip

    @property
    def enabled(self) -> frozenset[Action]:
        """The operations that are switched on."""
        return frozenset(action for action in OPERATIONS if self.of(action).enabled)

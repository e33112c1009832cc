"""Gates about who may act at all: the leader, on a cluster that is known as it is now, and not against a person's word.

Pure functions of a plan and the scene.
"""

from collections.abc import Callable

from remediation.breaker import breaker
from remediation.gates import Asked, GateResult
from remediation.scene import Scene


def leadership(asked: Asked, scene: Scene) -> GateResult:
    """This process is the one that would act."""
    del asked
    return GateResult("leadership", scene.leads, scene.leader)


def cluster_fresh(asked: Asked, scene: Scene) -> GateResult:
    """The API server has given a sign of life lately, so what is decided on is what is there."""
    limit_s, age_s = asked.policy.limits.max_cluster_age, scene.stale_s
    if age_s <= limit_s:  # how old exactly would be another reason at each tick
        return GateResult("cluster_fresh", passed=True, reason=f"seen within the last {limit_s:.0f} s")
    said = f"{age_s:.0f} s" if age_s < float("inf") else "any time: it has not been listed yet"
    return GateResult("cluster_fresh", passed=False, reason=f"no sign of life for {said}; limit {limit_s:.0f} s")


def rejected(asked: Asked, scene: Scene) -> GateResult:
    """No person has said that nothing is to be done about this incident."""
    said = scene.said.rejected(asked.incident.id)
    return GateResult("rejected", passed=not said, reason=said or "nobody has rejected it")


def on_hold(asked: Asked, scene: Scene) -> GateResult:
    """No person wants the nodes left alone for now."""
    said = scene.said.on_hold(asked.incident.nodes, asked.around.now)
    return GateResult("on_hold", passed=not said, reason=said or "no node of it is on hold")


def breaker_closed(asked: Asked, scene: Scene) -> GateResult:
    """Not too many nodes were taken out in a short time."""
    return breaker(scene.breaker, asked.plan)


AUTHORITY: tuple[Callable[[Asked, Scene], GateResult], ...] = (
    leadership,
    cluster_fresh,
    rejected,
    on_hold,
    breaker_closed,
)

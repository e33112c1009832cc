"""What disruption budgets will say to a set of evictions, before any of them is asked for.

A dry run of the API server judges each pod alone, so all pods under a budget that allows one disruption would pass.
Here each pod that passes takes its share from the ones after it. The rules are those of the server's eviction
subresource (registry/core/pod/storage/eviction.go); the server has the last word in any case.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from remediation.drain import FINISHED
from remediation.objects import PdbView, PodView, Selector


class Passage(StrEnum):
    """How an eviction fares with the budgets.

    FREE and COUNTED pass, COUNTED at the cost of one disruption. BLOCKED may pass later. UNKNOWN may too, but nobody
    can tell yet. NEVER stays until a person mends the budgets: retrying is of no use.
    """

    FREE = "free"
    COUNTED = "counted"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class PodPassage:
    """What the budgets say to the eviction of one pod. `budgets` are those that cover it, as namespace/name."""

    pod: PodView
    passage: Passage
    reason: str
    budgets: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        """Whether the eviction would be granted."""
        return self.passage in (Passage.FREE, Passage.COUNTED)


def selects(selector: Selector, labels: Mapping[str, str]) -> bool | None:
    """Whether a selector matches labels; None where it has an operator that is not known and nothing else decides.

    An empty selector matches everything. NotIn and DoesNotExist match a label that isn't there.
    """
    answers = [labels.get(key) == value for key, value in selector.match]
    unknown = False
    for key, operator, values in selector.expressions:
        match operator:
            case "In":
                answers.append(key in labels and labels[key] in values)
            case "NotIn":
                answers.append(key not in labels or labels[key] not in values)
            case "Exists":
                answers.append(key in labels)
            case "DoesNotExist":
                answers.append(key not in labels)
            case _:
                unknown = True
    if not all(answers):
        return False
    return None if unknown else True


def passages(pods: Iterable[PodView], budgets: Iterable[PdbView]) -> tuple[PodPassage, ...]:
    """What the budgets say when these pods are evicted one after the other, in this order."""
    by_namespace: dict[str, list[PdbView]] = defaultdict(list)
    for budget in budgets:
        by_namespace[budget.namespace].append(budget)
    left: dict[str, int] = {}
    told = []
    for pod in pods:
        answer = _passage(pod, by_namespace.get(pod.namespace, ()), left)
        if answer.passage is Passage.COUNTED:
            left[answer.budgets[0]] -= 1
        told.append(answer)
    return tuple(told)


def _name(budget: PdbView) -> str:
    return f"{budget.namespace}/{budget.name}"


def _passage(pod: PodView, budgets: Iterable[PdbView], left: dict[str, int]) -> PodPassage:
    if pod.deleting_since is not None:
        return PodPassage(pod, Passage.FREE, "it is terminating already")
    if pod.phase in FINISHED or pod.phase == "Pending":
        return PodPassage(pod, Passage.FREE, f"budgets don't cover a pod that is {pod.phase}")
    labels = dict(pod.labels)
    answers = [(budget, selects(budget.selector, labels)) for budget in budgets]
    covering = sorted((budget for budget, yes in answers if yes is not False), key=_name)
    names = tuple(_name(budget) for budget in covering)
    unreadable = sorted(_name(budget) for budget, yes in answers if yes is None)
    if unreadable:
        said = f"the selector of {', '.join(unreadable)} has an operator that is not known here"
        return PodPassage(pod, Passage.UNKNOWN, said, names)
    if not covering:
        return PodPassage(pod, Passage.FREE, "no budget covers it")
    if len(covering) > 1:
        said = f"{', '.join(names)} cover it together, and the API server evicts no such pod: a person has to mend them"
        return PodPassage(pod, Passage.NEVER, said, names)
    passage, said = _under(pod, covering[0], left)
    return PodPassage(pod, passage, said, names)


def _under(pod: PodView, budget: PdbView, left: dict[str, int]) -> tuple[Passage, str]:
    """The answer of the one budget that covers a pod."""
    name = _name(budget)
    if not pod.ready and budget.evict_unready_always:
        return Passage.FREE, f"it is not ready, and {name} always lets such pods go"
    if not budget.current:
        return Passage.UNKNOWN, f"the status of {name} is older than its spec"
    if not pod.ready and budget.healthy >= budget.desired_healthy > 0:
        return Passage.FREE, f"it is not ready, and {name} has its {budget.desired_healthy} healthy pods without it"
    remaining = left.setdefault(name, max(0, budget.allowed))
    if remaining == 0:
        taken = f", and pods before this one take {budget.allowed}" if budget.allowed > 0 else ""
        said = f"{name} needs {budget.desired_healthy} healthy pods and has {budget.healthy}{taken}"
        return Passage.BLOCKED, said
    return Passage.COUNTED, f"{name} allows {remaining} more"

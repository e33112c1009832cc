"""The marks that a node would carry, as the exact patch and as kubectl's commands: for `gpuwarden plan`. Pure."""

import shlex
from dataclasses import dataclass, replace

import msgspec

from daemon.commands.around import Look
from remediation.decide import Ruling
from remediation.modes import Mode, Modes
from remediation.objects import TAINT_KEY, NodeView
from remediation.patches import Patch, apply
from remediation.wish import NodeWish, wishes

_AUTO = Modes(Mode.AUTO)


@dataclass(frozen=True, slots=True)
class Marks:
    """What the node would carry once all steps may be done: `patch` is what has to change for it, None for nothing.

    `patch_now` is what the daemon changes at its next tick. `kubectl` does the same as `patch`; `undo` takes it back.
    """

    wanted: NodeWish | None
    patch: Patch | None
    patch_now: Patch | None
    kubectl: tuple[str, ...]
    undo: tuple[str, ...]


def marks(look: Look, *, drained: bool) -> Marks:
    """The marks of all that is planned and not refused. `drained`: the drain has been seen to its end."""
    whole = wish_of(look)
    now = wishes(look.decisions, look.incidents, look.modes, look.scene.said).get(look.node.name)
    patch = None if whole is None else apply(look.node, replace(whole, drained=drained))
    patch_now = None if now is None else apply(look.node, replace(now, drained=drained))
    return Marks(whole, patch, patch_now, _kubectl(look.node, patch), _undo(look.node, patch))


def wish_of(look: Look) -> NodeWish | None:
    """What the node should be once nothing holds any step of its plans back; plans that are refused don't count."""
    by_id = {one.id for one in look.here}
    free = [
        replace(one, allowed=tuple(step.action for step in one.plan.steps))
        for one in look.decisions
        if one.plan.incident in by_id and one.ruling is not Ruling.REFUSE
    ]
    return wishes(free, look.here, _AUTO, look.scene.said).get(look.node.name)


def _kubectl(node: NodeView, patch: Patch | None) -> tuple[str, ...]:
    """The same by hand. The annotations come last: alone, they would look as if somebody had taken the rest back."""
    if patch is None:
        return ()
    name, spec = shlex.quote(node.name), patch.get("spec", {})
    lines = [f"kubectl patch node {name} --type=merge -p {shlex.quote(msgspec.json.encode(patch).decode())}", "# or"]
    ours = next((one for one in spec.get("taints", ()) if one["key"] == TAINT_KEY), None)
    if ours is not None:
        lines.append(f"kubectl taint node {name} {ours['key']}={ours['value']}:{ours['effect']} --overwrite")
    if spec.get("unschedulable"):
        lines.append(f"kubectl cordon {name}")
    annotations = patch["metadata"].get("annotations", {})
    if annotations:
        told = " ".join(shlex.quote(f"{key}={value}") for key, value in annotations.items())
        lines.append(f"kubectl annotate node {name} {told} --overwrite")
    return tuple(lines)


def _undo(node: NodeView, patch: Patch | None) -> tuple[str, ...]:
    """What takes the marks back by hand, the annotations first."""
    if patch is None:
        return ()
    name, spec = shlex.quote(node.name), patch.get("spec", {})
    lines = []
    annotations = patch["metadata"].get("annotations", {})
    if annotations:
        lines.append(f"kubectl annotate node {name} {' '.join(f'{key}-' for key in annotations)}")
    if "taints" in spec:
        lines.append(f"kubectl taint node {name} {TAINT_KEY}-")
    if spec.get("unschedulable"):
        lines.append(f"kubectl uncordon {name}")
    return tuple(lines)

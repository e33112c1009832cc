"""How `gpuwarden plan` is printed for people."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from daemon.commands.explained import moment
from daemon.commands.output import say, show
from daemon.commands.planned import GateShown, NodeShown, Planned, Report, StepShown
from daemon.commands.stakes import LostWork, PodShown
from remediation.lost_work import Cheaper, Choice, Source, span
from rules.vocabulary import Action

_STEPS = ("    STEP", "UNDONE BY", "MODE", "WHAT COMES OF IT")
_PODS = ("  POD", "GPUS", "OF", "FATE", "WHY", "BUDGETS", "DRY RUN")
_LOST = ("  JOB", "GPUS", "NOW", "AFTER THE NEXT CHECKPOINT", "CHEAPER")
_CHEAPER = {Cheaper.NOW: "now", Cheaper.WAIT: "to wait", Cheaper.UNKNOWN: "not known"}


def print_report(report: Report) -> None:
    """All of it."""
    source = f"; {report.source}" if report.source else ""
    say(f"{report.node.name} at {moment(report.at)}, verdicts {report.lag_s:.0f} s old, mode {report.mode}{source}")
    if report.mode_of_daemon not in ("", report.mode):
        say(f"  the daemon's last run began in mode {report.mode_of_daemon}; this answer is for {report.mode}")
    _print_node(report)
    if not report.planned:
        say()
        say("no incident is open here: nothing is planned")
    for one in report.planned:
        _print_planned(one)
    _print_marks(report)
    _print_pods(report)
    _print_lost_work(report.lost_work)
    say()
    say("given back")
    for line in report.way_back:
        say(f"  {line}")


def _print_node(report: Report) -> None:
    node = report.node
    ready = {True: "Ready", False: "not Ready", None: "readiness not known"}[node.ready]
    out = f"out of service: {node.out_because}" if node.out_because else "in service"
    say(f"  {out}; {ready}, {node.gpus} GPUs")
    for name, value in _facts(node):
        say(f"  {name}: {value}")
    if report.condition is not None:
        one = report.condition
        say(f"  GPUHealthy should say {one.status} ({one.reason}): {one.message}")


def _facts(node: NodeShown) -> Iterable[tuple[str, str]]:
    yield "taints", ", ".join(node.taints) or "none"
    if node.cordoned_by:
        yield "cordoned by", node.cordoned_by
    yield "marks", ", ".join(f"{name}={value}" for name, value in sorted(node.marks.items())) or "none"
    if node.opted_out:
        yield "opted out by", node.opted_out
    for claim in node.claimed_by:
        yield "not ours to touch", claim
    if node.hold:
        yield "on hold", node.hold


def _print_planned(one: Planned) -> None:
    say()
    if one.about is not None:
        say(f"{one.incident} {one.about.cause_class}, tier {one.about.tier}, opened {moment(one.about.opened)}")
        say(f"  {one.about.why}")
    else:
        say(f"{one.incident}, over: the node is to be given back")
    say(f"  plan: {' > '.join(step.action for step in one.steps)} ({one.ruling}): {one.reason}")
    for gate in one.gates:
        say(f"    {_gate(gate, one)}")
    show(None, "table", [_step(step) for step in one.steps], _STEPS)
    if one.affected:
        say(f"  moves {len(one.affected)} pods; jobs on its nodes: {', '.join(one.jobs) or 'none'}")


def _gate(gate: GateShown, one: Planned) -> str:
    if gate.passed:
        return f"pass {gate.name}: {gate.reason}"
    held = "all of it" if len(gate.holds) == len(one.steps) else ", ".join(gate.holds) or "nothing of this plan"
    may = f"; a person may overrule it: gpuwarden approve {one.incident}" if gate.approvable else ""
    return f"STOP {gate.name} ({gate.leads_to}, holds back {held}): {gate.reason}{may}"


def _step(step: StepShown) -> tuple[str, ...]:
    idle = " (when idle)" if step.when_idle else ""
    return f"    {step.action}{idle}", step.undo, step.mode.value if step.has_hands else "-", step.comes_of_it


def _print_marks(report: Report) -> None:
    marks = report.marks
    if marks.wanted is None:
        return
    say()
    if marks.patch is None:
        say("marks: the node carries all of them")
        return
    now = "nothing" if marks.patch_now is None else "this patch" if marks.patch_now == marks.patch else "a part of it"
    say(f"marks, once all steps may be done (the daemon writes {now} at its next tick)")
    say(f"  {_compact(marks.patch)}")
    if marks.patch_now not in (None, marks.patch):
        say(f"  now: {_compact(marks.patch_now)}")
    for line in marks.kubectl:
        say(f"  {line}")
    for line in marks.undo:
        say(f"  # undo: {line}")


def _compact(patch: Any) -> str:
    return json.dumps(patch, separators=(",", ":"))


def _print_pods(report: Report) -> None:
    drains = any(step.action is Action.DRAIN for one in report.planned for step in one.steps)
    say()
    if not report.pods:
        say("pods: none")
        return
    say(
        "pods, and what the drain does to each"
        if drains
        else "pods, and what a drain would do to each, were one asked for"
    )
    if report.held_up:
        say(f"  {report.held_up}")
    show(None, "table", _pod_rows(report.pods), _PODS)
    say(f"  dry run: {report.dry_run}")
    for pod in report.pods:
        if pod.ends:
            say(f"  {pod.namespace}/{pod.name}: {pod.ends}")
    stake = report.at_stake
    if stake.pods:
        hours = f"{stake.gpu_hours:.1f} GPU-hours since the start"
        say(f"  at stake: {stake.pods} training pods, {stake.gpus} GPUs, {hours}: {', '.join(stake.jobs)}")
    else:
        say("  at stake: no training")


def _print_lost_work(lost: LostWork) -> None:
    if not lost.jobs:
        return
    say()
    say("work that a restart loses, in GPU-hours of the whole job")
    show(None, "table", [_choice(one) for one in lost.jobs], _LOST)
    for one in lost.jobs:
        say(f"  {one.job}: {one.why}")
    say(f"  to resume: {lost.resume}")


def _choice(one: Choice) -> tuple[str, ...]:
    return f"  {one.job}", str(one.gpus), _now(one), _later(one), _CHEAPER[one.cheaper]


def _now(one: Choice) -> str:
    if one.now_gpu_hours is not None and one.lost_s is not None:
        return f"{one.now_gpu_hours:.1f} ({span(one.lost_s)} of work)"
    if one.now_at_most_gpu_hours is not None:
        return f"at most {one.now_at_most_gpu_hours:.1f}"
    return "not known"


def _later(one: Choice) -> str:
    if one.wait_gpu_hours is None or one.next_in_s is None:
        return "-"
    when = "within" if one.source is Source.REQUEST or one.lost_s is None else "in about"
    worst = one.wait_at_worst_gpu_hours
    said = "" if worst is None else f"; at most {worst:.1f} if it fails before"
    return f"{one.wait_gpu_hours:.1f} {when} {span(one.next_in_s)}{said}"


def _pod_rows(pods: Sequence[PodShown]) -> Iterable[tuple[str, ...]]:
    for pod in pods:
        until = f"; until {moment(pod.deadline)}" if pod.deadline is not None else ""
        yield (
            f"  {pod.namespace}/{pod.name}", str(pod.gpus), pod.owner, pod.fate.value, f"{pod.reason}{until}",
            pod.budget or "-", pod.dry_run or "-",
        )  # fmt: skip

"""What the shipped policy does about each cause, tier and request, and what no policy of a site can make it do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.findings import Incident
from remediation.gates import evidence
from remediation.plan import TAKES_OUT, Works, choose, plan
from rules.schema import ActionPolicy, Policy, RuleBook
from rules.vocabulary import DISRUPTIVE, OPERATIONS, Action, CauseClass, FaultAction, Tier
from tests.decide.circumstances import asked
from tests.decide.incidents import incident
from tests.detect.scene import Scene

#: Class, tier, what the fault asks for, and the steps that follow.
LADDERS = """
hardware    fact       none follow_154                watch
hardware    fact       restart_app                    restart_job
hardware    fact       inspect                        no_new_work, diagnose when idle
hardware    fact       reset_gpu                      no_new_work, checkpoint, cordon, drain, reset_gpu
hardware    fact       reboot_node                    no_new_work, checkpoint, cordon, drain, reboot_node, quarantine
hardware    fact       replace                        no_new_work, checkpoint, cordon, drain, quarantine
hardware    trend      none follow_154                watch
hardware    trend      restart_app                    restart_job
hardware    trend      inspect                        no_new_work, checkpoint, diagnose when idle
hardware    trend      reset_gpu                      no_new_work, reset_gpu when idle
hardware    trend      reboot_node                    no_new_work, reboot_node when idle
hardware    trend      replace                        no_new_work, checkpoint, cordon, drain, quarantine
hardware    suspicion  any                            no_new_work, checkpoint, diagnose when idle
memory      fact       none follow_154                watch
memory      fact       restart_app                    restart_job
memory      fact       inspect                        no_new_work, diagnose when idle
memory      fact       reset_gpu                      no_new_work, cordon, drain, reset_gpu
memory      fact       reboot_node                    no_new_work, checkpoint, cordon, drain, reboot_node, quarantine
memory      fact       replace                        no_new_work, checkpoint, cordon, drain, quarantine
memory      trend      none follow_154                watch
memory      trend      restart_app                    restart_job
memory      trend      inspect                        no_new_work, checkpoint, diagnose when idle
memory      trend      reset_gpu                      no_new_work, reset_gpu when idle
memory      trend      reboot_node                    no_new_work, reboot_node when idle
memory      trend      replace                        no_new_work, checkpoint, cordon, drain, quarantine
memory      suspicion  any                            no_new_work, checkpoint, diagnose when idle
link        fact       none follow_154                watch
link        fact       restart_app                    restart_job
link        fact       inspect                        no_new_work, diagnose when idle
link        fact       reset_gpu                      no_new_work, checkpoint, cordon, drain, reset_gpu
link        fact       reboot_node                    no_new_work, checkpoint, cordon, drain, reboot_node, quarantine
link        fact       replace                        no_new_work, checkpoint, cordon, drain, quarantine
link        trend      none inspect                   watch, diagnose when idle
link        trend      restart_app                    restart_job
link        trend      follow_154                     watch
link        trend      reset_gpu                      no_new_work, reset_gpu when idle
link        trend      reboot_node                    no_new_work, reboot_node when idle
link        trend      replace                        no_new_work, checkpoint, cordon, drain, quarantine
link        suspicion  any                            watch, diagnose when idle
thermal     fact       none follow_154                watch
thermal     fact       restart_app                    restart_job
thermal     fact       inspect                        no_new_work, diagnose when idle
thermal     fact       reset_gpu                      no_new_work, checkpoint, cordon, drain, reset_gpu
thermal     fact       reboot_node                    no_new_work, checkpoint, cordon, drain, reboot_node, quarantine
thermal     fact       replace                        no_new_work, checkpoint, cordon, drain, quarantine
thermal     trend      none follow_154                watch
thermal     trend      restart_app                    restart_job
thermal     trend      inspect                        no_new_work, checkpoint, diagnose when idle
thermal     trend      reset_gpu                      no_new_work, reset_gpu when idle
thermal     trend      reboot_node                    no_new_work, reboot_node when idle
thermal     trend      replace                        no_new_work, checkpoint, cordon, drain, quarantine
thermal     suspicion  any                            watch, diagnose when idle
power       fact       none follow_154                watch
power       fact       restart_app                    restart_job
power       fact       inspect                        no_new_work, diagnose when idle
power       fact       reset_gpu                      no_new_work, checkpoint, cordon, drain, reset_gpu
power       fact       reboot_node                    no_new_work, checkpoint, cordon, drain, reboot_node, quarantine
power       fact       replace                        no_new_work, checkpoint, cordon, drain, quarantine
power       trend      none follow_154                watch
power       trend      restart_app                    restart_job
power       trend      inspect                        no_new_work, checkpoint, diagnose when idle
power       trend      reset_gpu                      no_new_work, reset_gpu when idle
power       trend      reboot_node                    no_new_work, reboot_node when idle
power       trend      replace                        no_new_work, checkpoint, cordon, drain, quarantine
power       suspicion  any                            watch, diagnose when idle
driver      fact       none follow_154                watch
driver      fact       restart_app                    restart_job
driver      fact       inspect                        no_new_work, diagnose when idle
driver      fact       reset_gpu                      no_new_work, cordon, reset_gpu when idle
driver      fact       reboot_node                    no_new_work, checkpoint, cordon, drain, reboot_node, quarantine
driver      fact       replace                        no_new_work, checkpoint, cordon, drain, quarantine
driver      trend      none follow_154                watch
driver      trend      restart_app                    restart_job
driver      trend      inspect                        no_new_work, checkpoint, diagnose when idle
driver      trend      reset_gpu                      no_new_work, reset_gpu when idle
driver      trend      reboot_node                    no_new_work, reboot_node when idle
driver      trend      replace                        no_new_work, checkpoint, cordon, drain, quarantine
driver      suspicion  any                            no_new_work, diagnose when idle
application fact       any                            watch
application trend      any                            watch
application suspicion  any                            watch
job         fact       none restart_app follow_154    watch
job         fact       inspect                        no_new_work, diagnose when idle
job         fact       reset_gpu reboot_node replace  no_new_work, checkpoint
job         trend      any                            watch
job         suspicion  any                            watch
storage     fact       none follow_154                watch
storage     fact       restart_app                    restart_job
storage     fact       inspect                        no_new_work, diagnose when idle
storage     fact       reset_gpu                      no_new_work, checkpoint, cordon, drain, reset_gpu
storage     fact       reboot_node                    no_new_work, checkpoint, cordon, drain, reboot_node, quarantine
storage     fact       replace                        no_new_work, checkpoint, cordon, drain, quarantine
storage     trend      any                            watch
storage     suspicion  any                            watch
network     fact       none follow_154                watch
network     fact       restart_app                    restart_job
network     fact       inspect                        no_new_work, diagnose when idle
network     fact       reset_gpu                      no_new_work, checkpoint, cordon, drain, reset_gpu
network     fact       reboot_node                    no_new_work, checkpoint, cordon, drain, reboot_node, quarantine
network     fact       replace                        no_new_work, checkpoint, cordon, drain, quarantine
network     trend      any                            no_new_work, diagnose when idle
network     suspicion  any                            watch
telemetry   fact       none restart_app follow_154    watch
telemetry   fact       inspect                        no_new_work, diagnose when idle
telemetry   fact       reset_gpu reboot_node replace  no_new_work, checkpoint
telemetry   trend      any                            diagnose when idle
telemetry   suspicion  any                            watch
maintenance fact       none follow_154                watch
maintenance fact       restart_app                    restart_job
maintenance fact       inspect                        no_new_work, diagnose when idle
maintenance fact       reset_gpu                      no_new_work, checkpoint, cordon, drain, reset_gpu
maintenance fact       reboot_node                    no_new_work, checkpoint, cordon, drain, reboot_node, quarantine
maintenance fact       replace                        no_new_work, checkpoint, cordon, drain, quarantine
maintenance trend      any                            watch
maintenance suspicion  any                            watch
unknown     fact       any                            watch
unknown     trend      any                            watch
unknown     suspicion  any                            watch
"""


def table(rules: RuleBook) -> str:
    lines = []
    for cause in CauseClass:
        for tier in Tier:
            steps_of: dict[str, list[str]] = {}
            for asks in FaultAction:
                steps = plan(incident(cause_class=cause, tier=tier, action=asks), Works(), rules.policy).steps
                said = ", ".join(step.action + (" when idle" if step.when_idle else "") for step in steps)
                steps_of.setdefault(said, []).append(asks.value)
            for said, asking in steps_of.items():
                what = "any" if len(asking) == len(FaultAction) else " ".join(asking)
                lines.append(f"{cause:<12}{tier.name.lower():<11}{what:<31}{said}")
    return "\n".join(lines)


def test_the_shipped_ladders(rules: RuleBook) -> None:
    assert table(rules).splitlines() == LADDERS.strip().splitlines()


# ------------------------------------------------------------------------------------------------ what no site can do

ACTIONS = st.lists(st.sampled_from(Action), min_size=1, max_size=5).map(tuple)
RUNGS = st.builds(
    ActionPolicy,
    ladder=ACTIONS,
    reason=st.just("a site's"),
    when_asked=st.lists(st.sampled_from(FaultAction)).map(tuple),
)
POLICIES = st.builds(
    Policy,
    actions=st.dictionaries(
        st.sampled_from(CauseClass), st.dictionaries(st.sampled_from(["fact", "trend", "suspicion"]), RUNGS)
    ),
    by_fault_action=st.dictionaries(st.sampled_from(FaultAction), RUNGS),
    by_trend_action=st.dictionaries(st.sampled_from(FaultAction), RUNGS),
)
INCIDENTS = st.builds(
    incident,
    cause_class=st.sampled_from(CauseClass),
    tier=st.sampled_from(Tier),
    action=st.sampled_from(FaultAction),
    standing=st.booleans(),
)


@given(POLICIES, INCIDENTS)
def test_suspicion_alone_never_disrupts_whatever_the_sites_policy_says(policy: Policy, doubt: Incident) -> None:
    wanted = plan(doubt, Works(), policy)
    if doubt.tier is Tier.SUSPICION:
        assert wanted.does(DISRUPTIVE) == ()
    assert evidence(asked(wanted, doubt, policy=policy)).passed, "the gate never has to catch what a plan wants"


@given(POLICIES, INCIDENTS)
def test_a_programs_fault_never_takes_hardware_out_whatever_the_sites_policy_says(
    policy: Policy, fault: Incident
) -> None:
    if fault.cause_class in (CauseClass.APPLICATION, CauseClass.JOB, CauseClass.TELEMETRY):
        assert plan(fault, Works(), policy).does(DISRUPTIVE) == ()


@given(POLICIES, INCIDENTS)
def test_nothing_is_done_about_what_no_longer_stands(policy: Policy, fault: Incident) -> None:
    wanted = plan(fault, Works(), policy)
    assert wanted.steps
    assert fault.standing or [step.action for step in wanted.steps] == [Action.WATCH]


@given(POLICIES, INCIDENTS)
def test_an_operation_without_a_drain_before_it_waits_for_the_work_to_end(policy: Policy, fault: Incident) -> None:
    drained = False
    for step in plan(fault, Works(), policy).steps:
        drained |= step.action is Action.DRAIN
        assert step.when_idle is (step.action in OPERATIONS and not drained)


# ------------------------------------------------------------------------------------------------------ which ladder


def rung(*ladder: Action, reason: str = "r", **fields) -> ActionPolicy:
    return ActionPolicy(ladder=ladder, reason=reason, **fields)


@pytest.mark.parametrize(
    ("tier", "asks", "reason"),
    [
        pytest.param(Tier.FACT, FaultAction.RESET_GPU, "cause", id="the cause decides for what it is asked"),
        pytest.param(Tier.FACT, FaultAction.REPLACE, "request", id="the request decides for what the cause leaves out"),
        pytest.param(Tier.FACT, FaultAction.NONE, "policy says nothing about this", id="nobody decides: watch"),
        pytest.param(Tier.TREND, FaultAction.INSPECT, "trend", id="a trend has requests of its own"),
        pytest.param(Tier.SUSPICION, FaultAction.INSPECT, "policy says nothing about this", id="suspicion has none"),
    ],
)
def test_which_ladder_is_chosen(tier: Tier, asks: FaultAction, reason: str) -> None:
    policy = Policy(
        actions={CauseClass.MEMORY: {"fact": rung(Action.DRAIN, reason="cause", when_asked=(FaultAction.RESET_GPU,))}},
        by_fault_action={FaultAction.REPLACE: rung(Action.QUARANTINE, reason="request")},
        by_trend_action={FaultAction.INSPECT: rung(Action.DIAGNOSE, reason="trend")},
    )
    assert choose(incident(tier=tier, action=asks), policy).reason == reason


def test_a_ladder_that_is_cut_says_so() -> None:
    policy = Policy(actions={CauseClass.MEMORY: {"suspicion": rung(Action.NO_NEW_WORK, Action.DRAIN, reason="why")}})
    chosen = choose(incident(tier=Tier.SUSPICION), policy)
    assert (chosen.ladder, chosen.reason) == ((Action.NO_NEW_WORK,), "why; the evidence allows no more")
    policy = Policy(actions={CauseClass.MEMORY: {"suspicion": rung(Action.DRAIN)}})
    assert choose(incident(tier=Tier.SUSPICION), policy).ladder == (Action.WATCH,)


# ---------------------------------------------------------------------------------------------------- who is affected


def affected(scene: Scene, *ladder: Action, **fields) -> set[str]:
    policy = Policy(actions={CauseClass.MEMORY: {"fact": rung(*ladder)}})
    about = incident(**fields)
    wanted = plan(about, Works.around(scene.tick(), about.nodes), policy)
    return {pod.removeprefix("pod team/") for pod in wanted.affected}


@pytest.mark.parametrize(
    ("ladder", "fields", "pods"),
    [
        pytest.param([Action.WATCH, Action.DIAGNOSE], {}, set(), id="who watches touches nobody"),
        pytest.param([Action.NO_NEW_WORK, Action.RESET_GPU], {}, set(), id="who waits touches nobody"),
        pytest.param([Action.CORDON, Action.DRAIN], {}, {"a-0", "a-1", "b-2"}, id="a drain takes the whole node"),
        pytest.param([Action.CHECKPOINT], {}, {"a-0", "a-1", "b-2"}, id="everybody on it is asked to save"),
        pytest.param([Action.RESTART_JOB], {}, {"a-0", "a-1", "a-4"}, id="a restart takes the whole job of that GPU"),
        pytest.param(
            [Action.RESTART_JOB], {"gpu_uuids": ()}, {"a-0", "a-1", "a-4", "b-2", "b-5"}, id="of the node if unknown"
        ),
        pytest.param([Action.DRAIN], {"nodes": ("n000", "n001")}, {"a-0", "a-1", "b-2", "a-4", "b-5"}, id="two nodes"),
    ],
)
def test_the_pods_that_a_plan_touches(ladder: list[Action], fields: dict, pods: set[str]) -> None:
    scene = Scene(nodes=2, gpus=4).run_job("a", (0, 0), (0, 1), (1, 0)).run_job("b", (0, 2), (1, 1))
    assert affected(scene, *ladder, **fields) == pods


def test_a_plan_names_its_gpu_its_jobs_and_what_undoes_it(rules: RuleBook) -> None:
    scene = Scene(nodes=2).run_job("a", (0, 0), (0, 1)).run_job("b", (0, 2), (1, 0))
    about = incident()
    wanted = plan(about, Works.around(scene.tick(), about.nodes), rules.policy)
    assert (wanted.gpu, wanted.jobs) == ("GPU-0000-0", ("team/a", "team/b"))
    assert wanted.action is Action.RESET_GPU
    assert [(step.action, step.undo) for step in wanted.steps] == [
        (Action.NO_NEW_WORK, "remove the taint"),
        (Action.CORDON, "uncordon the node"),
        (Action.DRAIN, "uncordon the node; evicted pods run elsewhere by then"),
        (Action.RESET_GPU, "nothing"),
    ]
    assert plan(incident(gpu_uuids=("a", "b")), Works(), rules.policy).gpu == ""


def test_what_takes_a_node_out_ends_or_keeps_work_away() -> None:
    rest = {Action.WATCH, Action.CHECKPOINT, Action.DIAGNOSE, Action.RESTART_JOB, Action.RELEASE}
    assert set(Action) - TAKES_OUT == rest

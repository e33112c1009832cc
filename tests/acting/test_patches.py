"""What a patch may touch: ours and nothing else, once, and back to exactly what was there before."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.objects import (
    CONDITION,
    CORDONED_BY,
    DECLARED_OFF_BY,
    INCIDENT,
    OFF_TAINT,
    OUT_OF_SERVICE,
    OWNER,
    PROBATION,
    REASON,
    SINCE,
    STAGE,
    TAINT_KEY,
    NodeView,
    Stage,
    Taint,
)
from remediation.patches import (
    Order,
    Patch,
    Shown,
    apply,
    condition_patch,
    forget,
    order_of,
    put_on_probation,
    release,
)
from remediation.wish import Condition, NodeWish

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
FOREIGN = Taint("node.kubernetes.io/unreachable", "NoExecute", "", "2026-11-01T00:00:00Z")
NODE = NodeView("n1", "uid-1", "7", unschedulable=False, ready=True, taints=(FOREIGN,))
WISH = NodeWish("n1", ("inc-a",), "xid_79", NOW, cordon=True, drain=True, quarantine=True)


def patched(node: NodeView, patch: Patch | None) -> NodeView:
    """The node after the API server took a JSON merge patch; a wrong version or uid is a conflict."""
    if patch is None:
        return node
    metadata: dict[str, Any] = dict(patch["metadata"])
    assert (metadata.pop("resourceVersion"), metadata.pop("uid")) == (node.version, node.uid)
    spec: dict[str, Any] = dict(patch.get("spec", {}))
    assert set(spec) <= {"taints", "unschedulable"}
    annotations = dict(node.annotations) | metadata.pop("annotations", {})
    labels = dict(node.labels) | metadata.pop("labels", {})
    assert not metadata
    taints = node.taints
    if "taints" in spec:
        taints = tuple(Taint(t["key"], t["effect"], t.get("value", ""), t.get("timeAdded", "")) for t in spec["taints"])
    return replace(
        node,
        version=str(int(node.version) + 1),
        taints=taints,
        unschedulable=spec.get("unschedulable", node.unschedulable),
        annotations=tuple(sorted((k, v) for k, v in annotations.items() if v is not None)),
        labels=tuple(sorted((k, v) for k, v in labels.items() if v is not None)),
    )


def test_a_wish_becomes_one_patch_with_taint_cordon_and_marks() -> None:
    node = patched(NODE, apply(NODE, WISH))
    assert node.taints == (FOREIGN, Taint(TAINT_KEY, "NoSchedule", "xid_79"))
    assert node.unschedulable
    assert dict(node.annotations) == {
        INCIDENT: "inc-a", REASON: "xid_79", SINCE: "2026-11-01T12:00:00Z", STAGE: "draining", CORDONED_BY: OWNER,
    }  # fmt: skip


def test_no_new_work_alone_does_not_cordon() -> None:
    node = patched(NODE, apply(NODE, replace(WISH, cordon=False)))
    assert not node.unschedulable
    assert node.annotation(CORDONED_BY) == ""


def test_a_cordon_that_a_person_made_stays_theirs_through_apply_and_release() -> None:
    theirs = replace(NODE, unschedulable=True)
    taken = patched(theirs, apply(theirs, WISH))
    assert taken.annotation(CORDONED_BY) == ""
    back = patched(taken, release(taken))
    assert (back.unschedulable, back.taints, back.annotations) == (True, theirs.taints, ())


def test_the_name_of_somebody_else_on_a_cordon_stays_there() -> None:
    theirs = replace(NODE, unschedulable=True, annotations=((CORDONED_BY, "ann"),))
    taken = patched(theirs, apply(theirs, WISH))
    assert taken.annotation(CORDONED_BY) == "ann"
    for take_back in (release, forget):
        back = patched(taken, take_back(taken))
        assert (back.unschedulable, back.annotations) == (True, theirs.annotations)
    assert release(theirs) is None


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.PROBATION])
def test_the_stage_is_written_and_changes_nothing_else(stage: Stage) -> None:
    wish = replace(WISH, cordon=True, drain=stage is Stage.DRAINING, quarantine=stage is Stage.QUARANTINED)
    wish = replace(wish, cordon=stage is not Stage.NO_NEW_WORK)
    before = patched(NODE, apply(NODE, replace(WISH, drain=False, quarantine=False, cordon=wish.cordon)))
    patch = apply(before, wish)
    after = patched(before, patch)
    assert after.annotation(STAGE) == stage.value
    assert patch is None or "spec" not in patch


def test_a_changed_reason_replaces_our_taint_and_keeps_the_others_where_they_are() -> None:
    node = patched(NODE, apply(NODE, WISH))
    node = patched(node, apply(node, replace(WISH, reason="xid_64")))
    assert node.taints == (FOREIGN, Taint(TAINT_KEY, "NoSchedule", "xid_64"))


@pytest.mark.parametrize(
    ("change", "order"),
    [
        pytest.param({}, Order.NONE, id="our own marks are no order"),
        pytest.param({"unschedulable": False}, Order.UNCORDONED, id="a person's uncordon is an order"),
        pytest.param({"taints": (FOREIGN,)}, Order.UNTAINTED, id="a person who takes our taint off gives one too"),
    ],
)
def test_what_a_person_took_back_is_an_order(change: dict[str, Any], order: Order) -> None:
    node = replace(patched(NODE, apply(NODE, WISH)), **change)
    assert order_of(node) is order


SILENT = replace(NODE, ready=False)
THEIR_OFF = replace(SILENT, taints=(FOREIGN, Taint(OUT_OF_SERVICE, "NoExecute", "by-hand")))


@pytest.mark.parametrize(
    ("node", "off", "declared"),
    [
        pytest.param(SILENT, True, True, id="a silent node that is certain to be off"),
        pytest.param(replace(NODE, ready=None), True, True, id="or that nobody hears of any more"),
        pytest.param(SILENT, False, False, id="silence alone is not certainty"),
        pytest.param(NODE, True, False, id="a node that answers is not off"),
        pytest.param(THEIR_OFF, True, False, id="somebody else has declared it off already"),
    ],
)
def test_a_node_is_declared_off_with_our_name_and_taken_back_with_the_rest(node: NodeView, off, declared) -> None:
    wish = replace(WISH, off=off)
    taken = patched(node, apply(node, wish))
    assert (OFF_TAINT in taken.taints) is declared
    assert (taken.annotation(DECLARED_OFF_BY) == OWNER) is declared
    assert apply(taken, wish) is None
    for take_back in (release, forget):
        back = patched(taken, take_back(taken))
        assert (back.taints, back.annotations) == (node.taints, ())


def test_what_declares_a_node_off_is_what_kubernetes_documents() -> None:
    assert Taint("node.kubernetes.io/out-of-service", "NoExecute", "nodeshutdown") == OFF_TAINT


WISH_OFF = replace(WISH, off=True)
DECLARED = patched(SILENT, apply(SILENT, WISH_OFF))


def taints_of(node: NodeView) -> set[Taint]:
    """What declares it off."""
    return {taint for taint in node.taints if taint.key == OUT_OF_SERVICE}


def retainted(*taints: Taint) -> NodeView:
    """A node that we have declared off, where these taints say so by now."""
    rest = tuple(taint for taint in DECLARED.taints if taint.key != OUT_OF_SERVICE)
    return replace(DECLARED, taints=(*rest, *taints))


THEIRS = Taint(OUT_OF_SERVICE, "NoExecute", "by-hand")
TIMED = replace(OFF_TAINT, time_added="2026-11-01T12:00:00Z")
BESIDE = Taint(OUT_OF_SERVICE, "NoSchedule", "by-hand")


@pytest.mark.parametrize(
    ("node", "wish", "stays", "signed"),
    [
        pytest.param(DECLARED, WISH_OFF, {OFF_TAINT}, True, id="as long as it is off"),
        pytest.param(retainted(TIMED), WISH_OFF, {TIMED}, True, id="whatever time the API server has put to it"),
        pytest.param(retainted(TIMED), WISH, set(), False, id="which makes it no less ours"),
        pytest.param(replace(DECLARED, ready=True), WISH_OFF, set(), False, id="not once it answers again"),
        pytest.param(DECLARED, WISH, set(), False, id="nor once nobody is certain any more"),
        pytest.param(replace(DECLARED, ready=True), WISH, set(), False, id="nor with both"),
        pytest.param(retainted(), WISH_OFF, set(), True, id="where a person has taken it off it is not put back"),
        pytest.param(retainted(), WISH, set(), False, id="and the signature goes when it is not to be off any more"),
        pytest.param(retainted(THEIRS), WISH_OFF, {THEIRS}, True, id="another's in its place stays"),
        pytest.param(retainted(THEIRS), WISH, {THEIRS}, False, id="then too"),
        pytest.param(retainted(OFF_TAINT, BESIDE), WISH_OFF, {OFF_TAINT, BESIDE}, True, id="another's beside it stays"),
        pytest.param(retainted(OFF_TAINT, BESIDE), WISH, {BESIDE}, False, id="when ours goes"),
        pytest.param(THEIR_OFF, WISH_OFF, {THEIRS}, False, id="another's alone is not signed"),
        pytest.param(replace(THEIR_OFF, ready=True), WISH, {THEIRS}, False, id="nor taken off"),
        pytest.param(replace(SILENT, taints=(OFF_TAINT,)), WISH_OFF, {OFF_TAINT}, False,
                     id="though it looks like ours"),
        pytest.param(replace(SILENT, taints=(OFF_TAINT,)), WISH, {OFF_TAINT}, False, id="whatever is wished"),
    ],
)  # fmt: skip
def test_how_long_a_node_stays_declared_off(node: NodeView, wish: NodeWish, stays: set[Taint], signed: bool) -> None:
    after = patched(node, apply(node, wish))
    assert taints_of(after) == stays
    assert (after.annotation(DECLARED_OFF_BY) == OWNER) is signed
    assert apply(after, wish) is None, "the second time there is nothing to do"
    assert order_of(after) is Order.NONE
    identities = [(taint.key, taint.effect) for taint in after.taints]
    assert len(identities) == len(set(identities)), "the API server takes no two taints of one key and effect"


@pytest.mark.parametrize(
    ("node", "stays"),
    [
        pytest.param(DECLARED, set(), id="ours goes"),
        pytest.param(retainted(), set(), id="so does the signature alone"),
        pytest.param(retainted(THEIRS), {THEIRS}, id="another's in its place stays"),
        pytest.param(retainted(OFF_TAINT, BESIDE), {BESIDE}, id="and one beside it"),
        pytest.param(patched(THEIR_OFF, apply(THEIR_OFF, WISH_OFF)), {THEIRS}, id="or one that was there before"),
    ],
)
def test_giving_a_node_back_takes_off_no_other_declaration_than_ours(node: NodeView, stays: set[Taint]) -> None:
    for take_back in (release, forget):
        back = patched(node, take_back(node))
        assert taints_of(back) == stays
        assert back.annotations == ()


def test_after_an_order_our_marks_go_and_the_person_s_state_stays() -> None:
    node = replace(patched(NODE, apply(NODE, WISH)), unschedulable=False)
    after = patched(node, forget(node))
    assert (after.unschedulable, after.taints, after.annotations) == (False, (FOREIGN,), ())
    assert order_of(after) is Order.NONE
    assert forget(after) is None


def test_a_condition_changes_its_transition_time_only_with_its_status() -> None:
    first = condition_patch(CONDITION, Condition("False", "GPUMemoryFault", "a"), None, NOW)
    assert first is not None
    shown = Shown(Condition("False", "GPUMemoryFault", "a"), NOW)
    later = NOW + timedelta(minutes=5)
    assert condition_patch(CONDITION, shown.condition, shown, later) is None
    other = condition_patch(CONDITION, Condition("False", "GPUMemoryFault", "b"), shown, later)
    back = condition_patch(CONDITION, Condition("True", "GPUsHealthy", "c"), shown, later)
    assert other is not None
    assert back is not None
    times = [one["status"]["conditions"][0]["lastTransitionTime"] for one in (first, other, back)]
    assert times == ["2026-11-01T12:00:00Z", "2026-11-01T12:00:00Z", "2026-11-01T12:05:00Z"]


TAINTS = st.lists(
    st.builds(Taint, st.sampled_from(["a", "b", OUT_OF_SERVICE]), st.sampled_from(["NoSchedule", "NoExecute"])),
    unique_by=lambda taint: (taint.key, taint.effect), max_size=4,
)  # fmt: skip
NODES = st.builds(
    lambda taints, cordoned, ready: replace(NODE, taints=tuple(taints), unschedulable=cordoned, ready=ready),
    TAINTS,
    st.booleans(),
    st.booleans(),
)
WISHES = st.builds(
    lambda reason, cordon, off: replace(WISH, reason=reason, cordon=cordon, off=off),
    st.sampled_from(["x", "y_1"]),
    st.booleans(),
    st.booleans(),
)


@given(NODES, st.lists(WISHES, min_size=1, max_size=4))
def test_however_often_we_wish_release_gives_back_exactly_what_was_there(node: NodeView, asked: list[NodeWish]) -> None:
    now = node
    for wish in asked:
        now = patched(now, apply(now, wish))
        assert apply(now, wish) is None, "the second time there is nothing to do"
        assert tuple(taint for taint in now.taints if not now.is_ours(taint)) == node.taints
    back = patched(now, release(now))
    assert (back.taints, back.unschedulable, back.annotations) == (node.taints, node.unschedulable, node.annotations)
    assert release(back) is None


# ----------------------------------------------------------------------------------------------------------- probation


def out(**fields: object) -> NodeView:
    """A node that we have taken out, with a taint of somebody else's beside ours."""
    return patched(NODE, apply(NODE, replace(WISH, cordon=True, **fields)))


def test_a_node_on_probation_takes_work_and_prefers_others_to_do_it() -> None:
    node = patched(out(), put_on_probation(out(), NOW))
    assert not node.unschedulable
    assert not node.keeps_new_work_off
    assert [(one.key, one.effect) for one in node.taints if node.is_ours(one)] == [(PROBATION, "PreferNoSchedule")]
    assert [one for one in node.taints if not node.is_ours(one)] == list(NODE.taints)
    assert (node.label(PROBATION), node.on_probation) == ("true", True)
    assert node.annotation(INCIDENT) == WISH.incidents[0]
    assert order_of(node) is Order.NONE
    assert put_on_probation(node, NOW) is None, "it is so already"


def test_what_a_release_takes_back_after_a_probation_leaves_nothing_of_ours() -> None:
    node = patched(out(), put_on_probation(out(), NOW))
    back = patched(node, release(node))
    assert (back.taints, back.label(PROBATION), back.annotations) == (NODE.taints, "", NODE.annotations)
    assert release(back) is None


def test_a_fault_within_it_takes_the_node_out_as_before_and_for_service() -> None:
    node = patched(out(), put_on_probation(out(), NOW))
    again = replace(WISH, cordon=True, incidents=("inc-9",), service=True)
    taken = patched(node, apply(node, again))
    assert (taken.unschedulable, taken.keeps_new_work_off, taken.on_probation) == (True, True, False)
    assert (taken.label(PROBATION), taken.needs_service) == ("", True)
    assert apply(taken, again) is None
    kept = patched(taken, apply(taken, replace(again, service=False, reason="other")))
    assert kept.needs_service, "only a release takes that back"


def test_a_person_who_takes_its_taint_off_has_given_an_order() -> None:
    node = replace(patched(out(), put_on_probation(out(), NOW)), taints=())
    assert order_of(node) is Order.UNTAINTED
    assert patched(node, forget(node)).label(PROBATION) == ""

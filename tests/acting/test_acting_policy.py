"""What policy may say about acting, and what is refused with a reason before anything starts."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from rules.loader import load_rules
from rules.policy_schema import parse_clock
from rules.schema import BreakerPolicy, DrainMode, DrainPolicy, LeasePolicy, LimitPolicy, MaintenanceWindow, Policy


def test_by_default_nothing_is_lost_and_nothing_is_forced():
    policy = Policy()
    assert not policy.drain.allow_empty_dir
    assert not policy.drain.allow_unmanaged
    assert policy.drain.on_refusal == "ask"
    assert policy.breaker.cool_down is None
    assert "kube-system" in policy.drain.leave_namespaces


@pytest.mark.parametrize(
    ("model", "fields", "reason"),
    [
        pytest.param(LeasePolicy, {"renew": "20s"}, "renew must be shorter", id="a renewal as long as the deadline"),
        pytest.param(LeasePolicy, {"deadline": "30s"}, "deadline shorter than duration",
                     id="a deadline of the duration"),
        pytest.param(LeasePolicy, {"renew": 0}, "greater than 0", id="a renewal without a pause"),
        pytest.param(DrainPolicy, {"deadline": "25h"}, "beyond max_wait", id="a deadline beyond the longest wait"),
        pytest.param(DrainPolicy, {"mode": "force"}, "evict_now", id="a mode that is none"),
        pytest.param(DrainPolicy, {"grace": 0}, "Extra inputs", id="a grace of nought: there is no such key"),
        pytest.param(BreakerPolicy, {"min_nodes": 0}, "greater than or equal to 1", id="a breaker that is always open"),
        pytest.param(BreakerPolicy, {"window": 0}, "greater than 0", id="a window of no time"),
        pytest.param(LimitPolicy, {"max_unavailable_share_of_pool": 1.5}, "less than or equal to 1",
                     id="more than all"),
        pytest.param(MaintenanceWindow, {"days": [], "from": "01:00", "to": "02:00"}, "at least 1", id="no day"),
        pytest.param(MaintenanceWindow, {"days": ["sat"], "from": "01:00", "to": "01:00"}, "same time", id="no time"),
        pytest.param(MaintenanceWindow, {"days": ["Sat"], "from": "01:00", "to": "02:00"}, "'sat'",
                     id="a day in capitals"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_meant_is_refused(model, fields, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        model.model_validate(fields)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        pytest.param("00:00", 0, id="midnight"),
        pytest.param("7:05", 425, id="one digit"),
        pytest.param(" 22:30 ", 1350, id="spaces around it"),
        pytest.param("24:00", 1440, id="the end of a day"),
        pytest.param(1350, 1350, id="what YAML makes of an unquoted 22:30"),
    ],
)
def test_a_time_of_day_is_minutes_since_midnight(text: object, minutes: int) -> None:
    assert parse_clock(text) == minutes


@pytest.mark.parametrize(
    "text", [6, True, 1441, -60, 22.5, None, "24:01", "25:00", "12:60", "noon", "6", "12:00:00", "-1:00"], ids=repr
)
def test_anything_else_is_no_time_of_day(text: object) -> None:
    with pytest.raises(ValueError, match="written like 22:30"):
        parse_clock(text)


def test_a_site_says_it_in_yaml(tmp_path: Path):
    path = tmp_path / "site.yaml"
    path.write_text(
        "version: 1\nname: site\nowner: us\npolicy:\n"
        "  drain: {modes: {'batch-*': wait_for_completion}, min_grace: 15m}\n"
        "  breaker: {share: 0.02, cool_down: 4h}\n"
        "  maintenance: {windows: [{days: [sat, sun], from: 22:30, to: 04:00}]}\n",
        encoding="utf-8",
    )
    policy = load_rules([path]).policy
    (window,) = policy.maintenance.windows
    assert policy.drain.modes == {"batch-*": DrainMode.WAIT_FOR_COMPLETION}
    assert (policy.drain.min_grace, policy.breaker.cool_down) == (900, 14400)
    assert (window.days, window.from_minute, window.to_minute) == (("sat", "sun"), 1350, 240)

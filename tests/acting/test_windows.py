"""Maintenance windows: when each is open, and what waits for one."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from remediation.limits import is_open, maintenance_window
from remediation.plan import Plan
from rules.schema import MaintenancePolicy, MaintenanceWindow, Policy
from rules.vocabulary import Action
from tests.acting.test_limits import DRAIN, RELEASE, RESET, ask
from tests.decide.circumstances import plan_of


def window(days: str, begin: str, end: str) -> MaintenanceWindow:
    return MaintenanceWindow.model_validate({"days": days.split(), "from": begin, "to": end})


NIGHT = window("wed", "22:30", "04:00")
NOON = window("wed thu", "12:00", "13:00")
TOKYO = timezone(timedelta(hours=9))


@pytest.mark.parametrize(
    ("given_window", "now", "is_in"),
    [
        pytest.param(NOON, datetime(2026, 3, 4, 12, 0, tzinfo=UTC), True, id="its first minute"),
        pytest.param(NOON, datetime(2026, 3, 4, 12, 59, 59, tzinfo=UTC), True, id="its last second"),
        pytest.param(NOON, datetime(2026, 3, 4, 13, 0, tzinfo=UTC), False, id="its end is outside"),
        pytest.param(NOON, datetime(2026, 3, 4, 11, 59, tzinfo=UTC), False, id="the minute before"),
        pytest.param(NOON, datetime(2026, 3, 6, 12, 30, tzinfo=UTC), False, id="another day"),
        pytest.param(NIGHT, datetime(2026, 3, 4, 22, 30, tzinfo=UTC), True, id="a night's evening"),
        pytest.param(NIGHT, datetime(2026, 3, 5, 3, 59, tzinfo=UTC), True, id="its morning, a day later"),
        pytest.param(NIGHT, datetime(2026, 3, 5, 4, 0, tzinfo=UTC), False, id="after it"),
        pytest.param(NIGHT, datetime(2026, 3, 4, 3, 0, tzinfo=UTC), False,
                     id="the morning before belongs to the day before"),
        pytest.param(NIGHT, datetime(2026, 3, 5, 23, 0, tzinfo=UTC), False, id="the evening after is another day's"),
        pytest.param(NOON, datetime(2026, 3, 4, 21, 30, tzinfo=TOKYO), True,
                     id="windows are in UTC, whatever the clock"),
        pytest.param(window("sun", "00:00", "24:00"), datetime(2026, 3, 8, 23, 59, tzinfo=UTC), True, id="a whole day"),
        pytest.param(window("sun", "22:00", "02:00"), datetime(2026, 3, 9, 1, 0, tzinfo=UTC), True,
                     id="from Sunday into Monday"),
    ],
)  # fmt: skip
def test_a_window_is_open_on_its_days(given_window: MaintenanceWindow, now: datetime, is_in: bool) -> None:
    assert is_open(given_window, now) is is_in


@pytest.mark.parametrize(
    ("plan", "windows", "passes", "reason"),
    [
        pytest.param(DRAIN, (), True, "no windows are set", id="without windows work may be ended at any time"),
        pytest.param(DRAIN, (NIGHT, NOON), True, "a window for drain is open", id="one open window is enough"),
        pytest.param(DRAIN, (NIGHT,), False, "no window for drain is open at 2026-03-04 12:00 UTC", id="outside of it"),
        pytest.param(RESET, (NIGHT,), False, "no window for reset_gpu", id="a reset waits too"),
        pytest.param(plan_of(Action.NO_NEW_WORK, Action.CORDON), (NIGHT,), True, "cordon needs no window",
                     id="what ends no work does not wait"),
        pytest.param(RELEASE, (NIGHT,), True, "release needs no window", id="recovery does not wait"),
    ],
)  # fmt: skip
def test_what_ends_work_waits_for_a_window(plan: Plan, windows, passes: bool, reason: str) -> None:
    answer = maintenance_window(ask(plan, policy=Policy(maintenance=MaintenancePolicy(windows=windows))))
    assert answer.passed is passes
    assert reason in answer.reason

"""The two registers of an NVLink 5 fault: unit, bit layout by driver branch, error status."""

import pytest

from detectors.events import KernelEvent
from detectors.nvlink5 import Decoded, bits_match, decode
from rules.schema import RuleBook, SubCode
from rules.vocabulary import EventKind, FaultAction, Severity


def row(unit: str, status: int, action: FaultAction, **more: object) -> SubCode:
    fields: dict[str, object] = {
        "xid": 145,
        "unit": unit,
        "before_r575": "------000000--------------000001",
        "from_r575": "------000000--------------000010",
        "error_status": status,
        "action": action,
        "severity": Severity.NONFATAL if action is FaultAction.NONE else Severity.FATAL,
    }
    return SubCode.model_validate({**fields, **more})


def event(*registers: int, unit: str | None = None, code: int = 145) -> KernelEvent:
    return KernelEvent(EventKind.XID, code, "", registers=registers, unit=unit)


A_RESET = row("A", 1, FaultAction.RESET_GPU)
A_IGNORE = row("A", 2, FaultAction.NONE)
#: The same bits mean A in the old layout and B in the new one.
B_IGNORE = row(
    "B/B_EVENT", 1, FaultAction.NONE, from_r575=A_RESET.before_r575, before_r575="------000000--------------000100"
)
TABLE = (A_RESET, A_IGNORE, B_IGNORE)


@pytest.mark.parametrize(
    ("found", "driver", "expected"),
    [
        pytest.param(event(1, 1), "570.86.15", ("A", FaultAction.RESET_GPU), id="the old layout"),
        pytest.param(event(1, 1), "575.51.03", ("B/B_EVENT", FaultAction.NONE), id="the new layout"),
        pytest.param(event(2, 1), "580.105.08", ("A", FaultAction.RESET_GPU), id="the new layout, another unit"),
        pytest.param(event(1, 1, unit="A"), None, ("A", FaultAction.RESET_GPU), id="unknown driver, the text names A"),
        pytest.param(event(1, 1, unit="B_EVENT"), None, ("B/B_EVENT", FaultAction.NONE), id="the text names B"),
        pytest.param(event(1, 1), None, ("A", FaultAction.RESET_GPU), id="nothing decides: the stronger"),
        pytest.param(event(1, 1), "rubbish", ("A", FaultAction.RESET_GPU), id="a version that is none"),
        pytest.param(event(1, 2), "570", ("A", FaultAction.NONE), id="another status"),
        pytest.param(event(1, 0x10 | 2), "570", ("A", FaultAction.NONE), id="one known bit of the status"),
        pytest.param(event(1, 3), "570", ("A", FaultAction.RESET_GPU), id="two known bits: the stronger"),
        pytest.param(event(1, 4), "570", None, id="an unknown status"),
        pytest.param(event(1), "575", ("B/B_EVENT", FaultAction.NONE), id="no status, and all rows agree"),
        pytest.param(event(1), "570", None, id="no status, and the rows differ"),
        pytest.param(event(), "570", None, id="no registers"),
        pytest.param(event(1, 1, code=146), "570", None, id="another code"),
        pytest.param(event(1 << 24, 1), "570", None, id="a bit that must be zero"),
    ],
)
def test_the_registers_name_the_unit_and_the_action(
    found: KernelEvent, driver: str | None, expected: tuple[str, FaultAction] | None
) -> None:
    decoded = decode(found, TABLE, driver)
    assert (None if decoded is None else (decoded.unit, decoded.action)) == expected


def test_an_enumerated_status_is_matched_as_a_whole_before_bit_by_bit() -> None:
    table = (row("E", 1, FaultAction.RESET_GPU), row("E", 3, FaultAction.NONE))
    assert decode(event(1, 3), table, "570") == Decoded("E", Severity.NONFATAL, FaultAction.NONE)


def test_a_row_without_a_status_takes_any() -> None:
    table = (row("N", 0, FaultAction.RESET_GPU),)
    assert decode(event(1, 0x80), table, "570") == Decoded("N", Severity.FATAL, FaultAction.RESET_GPU)


def test_a_further_bit_asks_for_the_second_action() -> None:
    second = {"second_before_r575": "------000000--------------100001", "second_action": FaultAction.RESET_GPU}
    first = {"before_r575": "------000000--------------000001"}
    table = (row("S", 1, FaultAction.NONE, **first, **second),)
    plain, further = decode(event(1, 1), table, "570"), decode(event(0b100001, 1), table, "570")
    assert plain is not None
    assert further is not None
    assert (plain.action, further.action) == (FaultAction.NONE, FaultAction.RESET_GPU)


def test_every_row_of_the_shipped_table_is_reached(rules: RuleBook) -> None:
    missed = []
    for key, entry in rules.nvlink5.items():
        for driver, pattern in (("570", entry.before_r575), ("580", entry.from_r575)):
            first = int(pattern.replace("-", "0"), 2)
            unit = entry.unit.split("/")[-1]
            found = decode(event(first, entry.error_status, unit=unit, code=entry.xid), rules.nvlink5.values(), driver)
            if found is None or found.action is not entry.action:
                missed.append((key, driver, found))
    assert missed == []


@pytest.mark.parametrize(
    ("value", "pattern", "fits"),
    [
        (0x04084507, "------000000-------------0000111", True),
        (0x04084507, "------000000----------0011100010", False),
        (0, "-" * 32, True),
        (0xFFFFFFFF, "1" * 32, True),
    ],
)
def test_a_pattern_is_read_from_the_most_significant_bit(value: int, pattern: str, fits: bool) -> None:
    assert bits_match(value, pattern) is fits

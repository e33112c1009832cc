"""Which NVLink 5 unit reported what: the decode of the two registers of XIDs 144 to 150.

The number says only which block of the link spoke. The bits of the first register name the unit and those of the
second the error, and these decide between "ignore" and "reset" (NVIDIA Xid catalog). The layout of the first register
moved with driver branch R575. Called by `detectors.classify`; the table is the rule pack's.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from detectors.events import KernelEvent
from rules.schema import SubCode
from rules.vocabulary import FaultAction, Severity

#: The first driver branch with the newer bit layout.
NEW_LAYOUT_BRANCH = 575
_BRANCH = re.compile(r"\s*([0-9]{1,4})(?![0-9])")


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the registers say: the unit that reported, how grave it is, and what the catalog asks for."""

    unit: str
    severity: Severity
    action: FaultAction


def decode(event: KernelEvent, rows: Iterable[SubCode], driver_version: str | None) -> Decoded | None:
    """The table's answer for an event's registers, or None where the record was cut too short or no row fits.

    With an unknown driver version both bit layouts are tried, and the unit's name in the text decides between them.
    Of several rows that fit the one with the strongest action counts.
    """
    if not event.registers:
        return None
    found = _by_layout(event, [row for row in rows if row.xid == event.code], _branch(driver_version))
    named = [(row, action) for row, action in found if _has_unit(row, event.unit)]
    fitting = _by_status(named or found, event.registers[1] if len(event.registers) > 1 else None)
    if not fitting:
        return None
    row, action = max(fitting, key=lambda fit: (fit[1].rank, fit[0].severity is Severity.FATAL))
    return Decoded(row.unit, row.severity, action)


Fit = tuple[SubCode, FaultAction]


def _by_layout(event: KernelEvent, rows: list[SubCode], branch: int | None) -> list[Fit]:
    """The rows whose pattern fits the first register, each with the action of the pattern that fits."""
    first = event.registers[0]
    fits: list[Fit] = []
    for row in rows:
        patterns = []
        if branch is None or branch < NEW_LAYOUT_BRANCH:
            patterns.append((row.before_r575, row.second_before_r575))
        if branch is None or branch >= NEW_LAYOUT_BRANCH:
            patterns.append((row.from_r575, row.second_from_r575))
        for pattern, second in patterns:
            if second and row.second_action is not None and bits_match(first, second):
                fits.append((row, row.second_action))
            elif bits_match(first, pattern):
                fits.append((row, row.action))
    return fits


def _by_status(fits: list[Fit], status: int | None) -> list[Fit]:
    """The rows whose error status fits: the very value, else a bit of it, else a row that asks for no status at all.

    Some units report a bit mask and some an enumeration, so the very value comes first. A record that was cut off
    before its second register fits only where every row of the unit agrees.
    """
    if status is None:
        return fits if len({(row.severity, action) for row, action in fits}) == 1 else []
    return (
        [fit for fit in fits if fit[0].error_status == status]
        or [fit for fit in fits if fit[0].error_status & status]
        or [fit for fit in fits if fit[0].error_status == 0]
    )


def bits_match(value: int, pattern: str) -> bool:
    """Whether a 32-bit value fits a pattern of 0, 1 and - (any), most significant bit first.

    >>> bits_match(0b101, "-" * 29 + "1-1"), bits_match(0b001, "-" * 29 + "1-1")
    (True, False)
    """
    mask = int("".join("0" if bit == "-" else "1" for bit in pattern), 2)
    return value & mask == int(pattern.replace("-", "0"), 2)


def _has_unit(row: SubCode, unit: str | None) -> bool:
    return unit is not None and unit.upper() in row.unit.upper().split("/")


def _branch(driver_version: str | None) -> int | None:
    """The branch number of a driver version (`580.105.08` gives 580), or None where there is none to be read."""
    found = _BRANCH.match(driver_version or "")
    return int(found[1]) if found is not None else None

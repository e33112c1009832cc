"""Lines from real logs, kept beside the repository: each gives the fault that its collector says it should."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Decode = Callable[..., list[dict[str, Any]]]


def rows(shared: Path) -> list[dict[str, str]]:
    table = shared / "data" / "xid_lines.tsv"
    if not table.is_file():
        pytest.skip("the recorded XID lines are not there (shared/data/xid_lines.tsv)")
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def raw(line: str) -> bytes:
    """The bytes a row stands for. In /dev/kmsg records the kernel itself writes escapes, so those stay."""
    if line[0].isdigit() and line[1] == ",":
        return line.encode()
    return line.replace("\\n", "\n").replace("\\x1b", "\x1b").encode()


def expected(row: dict[str, str]) -> list[tuple[bool, int]]:
    code = row["xid_expected"]
    return [(code.startswith("S"), int(code.lstrip("S")))] if code else []


def test_each_recorded_line_gives_the_fault_it_should(shared: Path, decoded: Decode) -> None:
    wrong = []
    for row in rows(shared):
        faults = decoded(raw(row["line"]))
        coded = [(fault["kind"] == "sxid", fault["code"]) for fault in faults if fault["kind"] != "ras"]
        places = {fault["pci"] for fault in faults} - {row["pci_expected"]}
        if coded != expected(row) or places:
            wrong.append((row["id"], coded, faults))
    assert wrong == []


@pytest.mark.parametrize(
    ("words", "ras"),
    [
        pytest.param("ERREVENT_ATHUB_INTERRUPT", True, id="an uncorrectable error's interrupt"),
        pytest.param(": 2 uncorrectable hardware errors", True, id="a count of errors"),
        pytest.param(": 0 uncorrectable hardware errors", False, id="a count of none"),
        pytest.param("MEM ECC is active", False, id="ECC is on"),
        pytest.param("aca entry[00].STATUS", False, id="a register after an error"),
    ],
)
def test_recorded_amd_lines_tell_faults_from_reports(shared: Path, decoded: Decode, words: str, ras: bool) -> None:
    lines = [raw(row["line"]) for row in rows(shared) if words in row["line"]]
    assert lines
    faults = [fault for line in lines for fault in decoded(line)]
    assert [(fault["kind"], fault["code"]) for fault in faults] == [("ras", None)] * (len(lines) if ras else 0)


def test_all_recorded_lines_as_one_log_give_the_same_faults_in_order(shared: Path, decoded: Decode) -> None:
    table = rows(shared)
    faults = decoded(b"\n".join(raw(row["line"]) for row in table))
    coded = [(fault["kind"] == "sxid", fault["code"]) for fault in faults if fault["kind"] != "ras"]
    assert coded == [code for row in table for code in expected(row)]
    assert [fault["line"] for fault in faults] == sorted(fault["line"] for fault in faults)

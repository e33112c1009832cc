"""The shipped fault packs against NVIDIA's catalog and the recorded kernel lines; skipped where those are not there."""

import csv
from itertools import combinations
from pathlib import Path

from rules.schema import RuleBook, SubCode
from rules.vocabulary import FaultAction, Severity
from tests.rules.xid_packs import ras_of

#: What each bucket of the catalog asks for, in our words. A blank bucket is no permission to do nothing.
BUCKETS = {
    "RESTART_APP": FaultAction.RESTART_APP,
    "RESET_GPU": FaultAction.RESET_GPU,
    "RESTART_BM": FaultAction.REBOOT_NODE,
    "RESTART_VM": FaultAction.REBOOT_NODE,
    "IGNORE": FaultAction.NONE,
    "CONTACT_SUPPORT": FaultAction.INSPECT,
    "CHECK_MECHANICALS": FaultAction.INSPECT,
    "UPDATE_SWFW": FaultAction.INSPECT,
    "CHECK_UVM": FaultAction.INSPECT,
    "WORKFLOW_XID_45": FaultAction.NONE,
    "WORKFLOW_XID_48": FaultAction.RESET_GPU,
    "WORKFLOW_NVLINK_ERR": FaultAction.INSPECT,
    "WORKFLOW_NVLINK5_ERR": FaultAction.INSPECT,
    "XID_154": FaultAction.FOLLOW_154,
    "XID_154_EVAL": FaultAction.FOLLOW_154,
    "": FaultAction.INSPECT,
}


PARTS = ("a100", "h100", "b100", "gb200")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t"))


# ---------------------------------------------------------------------------------------------- against the catalog


def test_every_code_of_the_catalog_is_there_with_its_name_and_parts(book: RuleBook, shared: Path) -> None:
    rows = {int(row["code"]): row for row in rows_of(shared / "facts" / "xid_catalog.tsv")}
    assert len(rows) == 172
    assert sorted(book.xid) == sorted(rows)
    for code, row in rows.items():
        assert book.xid[code].mnemonic == row["mnemonic"], code
        assert book.xid[code].applies_to == tuple(part for part in PARTS if row[part] == "y"), code


def test_every_code_asks_for_what_the_catalog_asks_or_says_why_not(book: RuleBook, shared: Path) -> None:
    for row in rows_of(shared / "facts" / "xid_catalog.tsv"):
        rule = book.xid[int(row["code"])]
        used = any(row[part] == "y" for part in PARTS)
        assert (row["immediate"] or "bucket blank") in rule.source, row["code"]
        if rule.action is not BUCKETS[row["immediate"]] or (used and not row["immediate"]):
            assert "; here: " in rule.source, row["code"]


def test_where_sources_disagree_each_is_named(book: RuleBook) -> None:
    for code in (44, 45, 48, 63, 64, 68, 74, 94, 109, 121):
        source = book.xid[code].source
        assert "sources disagree" in source, code
        assert source.startswith("NVIDIA Xid catalog"), code
        assert "gpud" in source or "k8s-device-plugin" in source, code


def test_every_row_of_the_nvlink_decode_is_there(book: RuleBook, shared: Path) -> None:
    rows = rows_of(shared / "facts" / "xid_nvlink5_decode.tsv")
    assert len(rows) == 95
    expected = []
    for row in rows:
        second = FaultAction.RESET_GPU if row["action2"] else None
        severity = Severity.NONFATAL if row["severity"].startswith("Non-fatal") else Severity.FATAL
        expected += [
            SubCode(
                xid=int(row["xid"]),
                unit=row["unit"],
                before_r575=row["intrinfo_before_r575"],
                from_r575=row["intrinfo_from_r575"],
                error_status=int(status, 16),
                action=BUCKETS[row["immediate"]],
                severity=severity,
                second_before_r575=row["before_r575_action2"],
                second_from_r575=row["from_r575_action2"],
                second_action=second,
            )
            for status in (row["error_status"] or "0x0").split("/")
        ]
    assert list(book.nvlink5.values()) == expected


def test_two_sub_codes_that_fit_one_record_ask_for_the_same(book: RuleBook) -> None:
    def overlap(one: str, two: str) -> bool:
        return all(a == b or "-" in (a, b) for a, b in zip(one, two, strict=True))

    for one, two in combinations(book.nvlink5.values(), 2):
        if (one.xid, one.error_status) == (two.xid, two.error_status) and (
            overlap(one.before_r575, two.before_r575) or overlap(one.from_r575, two.from_r575)
        ):
            assert (one.action, one.severity) == (two.action, two.severity), (one.unit, two.unit)


def test_every_number_in_the_recorded_lines_is_known(book: RuleBook, shared: Path) -> None:
    expected = {row["xid_expected"] for row in rows_of(shared / "data" / "xid_lines.tsv")} - {"", "999"}
    assert {int(code) for code in expected if code.isdecimal()} <= set(book.xid)
    assert {int(code[1:]) for code in expected if code.startswith("S")} <= set(book.sxid)


def test_the_recorded_amdgpu_lines_are_faults_only_where_they_should_be(book: RuleBook, shared: Path) -> None:
    rows = rows_of(shared / "data" / "xid_lines.tsv")
    assert {row["id"]: ras_of(book, row["line"]) for row in rows if "amdgpu" in row["line"]} == {
        "L061": None,
        "L062": "uncorrectable_interrupt",
        "L064": None,
        "L065": "uncorrectable_errors",
        "L066": None,
        "L068": "ring_timeout",
    }

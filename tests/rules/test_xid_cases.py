"""Single fault codes and records, each with what the field taught about it."""

import pytest

from rules.schema import Phrase, RuleBook, XidRule
from rules.vocabulary import CauseClass, FaultAction, Tier
from tests.rules.xid_packs import ras_of


def phrase_of(rule: XidRule, text: str) -> Phrase | None:
    """The phrase that decides for a record: the first one in it, whatever its case."""
    return next((phrase for phrase in rule.phrases if phrase.contains.lower() in text.lower()), None)


def fits(pattern: str, register: int) -> bool:
    """Whether a register's 32 bits, most significant first, fit a pattern of 0, 1 and -."""
    return all(wanted in ("-", bit) for wanted, bit in zip(pattern, f"{register:032b}", strict=True))


# ----------------------------------------------------------------------------------------------- single field cases


@pytest.mark.parametrize(
    ("code", "incident", "tier", "action"),
    [
        pytest.param(79, CauseClass.HARDWARE, 0, "reboot_node", id="a GPU off the bus needs a reboot"),
        pytest.param(48, CauseClass.MEMORY, 0, "reset_gpu", id="a double-bit error needs a reset"),
        pytest.param(95, CauseClass.MEMORY, 0, "reset_gpu", id="an uncontained error makes every job suspect"),
        pytest.param(
            94, CauseClass.MEMORY, 1, "restart_app", id="a contained error costs one job (k8s-device-plugin#1974)"
        ),
        pytest.param(63, CauseClass.MEMORY, 1, "none", id="a remap that is recorded is no failure (gpud#987)"),
        pytest.param(64, CauseClass.MEMORY, 0, "replace", id="a remap that failed is (awsome-distributed-ai#1190)"),
        pytest.param(74, CauseClass.LINK, 1, "inspect", id="one NVLink error resets nothing (NVSentinel#364)"),
        pytest.param(
            109, CauseClass.DRIVER, 1, "reset_gpu", id="a context-switch time-out asks for a reset, as a trend"
        ),
        pytest.param(119, CauseClass.DRIVER, 0, "reset_gpu", id="a silent GSP needs a reset"),
        pytest.param(45, CauseClass.APPLICATION, 1, "none", id="a teardown is never a cause (NVSentinel#1710)"),
        pytest.param(43, CauseClass.APPLICATION, 1, "none", id="a stopped channel is the program's business"),
        pytest.param(68, CauseClass.APPLICATION, 1, "inspect", id="where vendors disagree it is a warning"),
        pytest.param(54, CauseClass.POWER, 1, "inspect", id="a missing power cable is looked at"),
        pytest.param(
            145, CauseClass.LINK, 1, "inspect", id="an NVLink 5 number alone decides nothing (NVSentinel#1357)"
        ),
    ],
)
def test_a_code_asks_for_what_the_field_taught(
    book: RuleBook, code: int, incident: CauseClass, tier: int, action: str
) -> None:
    rule = book.xid[code]
    assert (rule.incident_class, rule.tier, rule.action) == (incident, tier, action)


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        pytest.param(
            145,
            "RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507",
            ("nonfatal", 1, "inspect"),
            id="Nonfatal isn't Fatal",
        ),
        pytest.param(149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 09", ("fatal", 0, "reset_gpu"), id="a fatal link event"),
        pytest.param(144, "SAW_MVB Non-fatal XC0", ("nonfatal", 1, "inspect"), id="the other spelling of nonfatal"),
        pytest.param(
            94,
            "Contained: SM (0x1). RST: Yes, D-RST: No",
            ("fatal", 0, "reset_gpu"),
            id="the record itself asks for a reset",
        ),
        pytest.param(
            94,
            "Contained: SM (0x1). RST: No, D-RST: Yes",
            (None, None, "reset_gpu"),
            id="a reset once drained is planned",
        ),
        pytest.param(
            63,
            "New row marked for remapping, reset gpu to activate.",
            ("nonfatal", None, "reset_gpu"),
            id="a remap waits for a planned reset",
        ),
        pytest.param(
            74,
            "NVLink: fatal error detected on link 14(0x0, 0x0",
            ("fatal", None, None),
            id="a fatal word changes no action",
        ),
    ],
)
def test_words_decide_where_the_number_does_not(
    book: RuleBook, code: int, text: str, expected: tuple[str | None, int | None, str | None]
) -> None:
    phrase = phrase_of(book.xid[code], text)
    assert phrase is not None
    assert (phrase.severity, phrase.tier, phrase.action) == expected


@pytest.mark.parametrize(
    ("code", "text"),
    [
        pytest.param(
            94, "Contained: CE User Channel (0x9). RST: No, D-RST: No", id="a contained error as it mostly is"
        ),
        pytest.param(63, "Row Remapper: remap recorded", id="a remap that asks for nothing"),
        pytest.param(147, "TREX XC0 i0 Link 03", id="an NVLink 5 line without a word"),
    ],
)
def test_without_the_words_the_number_decides(book: RuleBook, code: int, text: str) -> None:
    assert phrase_of(book.xid[code], text) is None


@pytest.mark.parametrize(
    ("code", "same"),
    [
        pytest.param(13, "gpc_tpc", id="an exception at one place of the chip"),
        pytest.param(31, "gpu", id="a page fault on one GPU"),
    ],
)
def test_only_different_jobs_make_a_programs_error_a_hardware_question(book: RuleBook, code: int, same: str) -> None:
    (step,) = book.xid[code].escalate
    assert (step.same, step.distinct_jobs) == (same, 3)
    assert step.count >= step.distinct_jobs
    assert (step.tier, step.action, step.incident_class) == (Tier.TREND, FaultAction.INSPECT, CauseClass.HARDWARE)


@pytest.mark.parametrize(
    ("code", "roots"),
    [
        pytest.param(
            45, (13, 31, 43, 48, 62, 64, 74, 79, 94, 95, 109, 119, 120, 149, 154), id="a teardown follows anything"
        ),
        pytest.param(43, (13, 31, 79, 94), id="a stopped channel follows the error that stopped it"),
        pytest.param(119, (62, 79, 120), id="a silent GSP follows its crash (dcgm-exporter#84)"),
        pytest.param(
            154, (62, 79, 119, 149), id="the driver's request rides on the fault (open-gpu-kernel-modules#1045)"
        ),
        pytest.param(63, (48, 94, 95), id="a remap follows the error that asked for it"),
        pytest.param(171, (48,), id="the DRAM detail follows its double-bit error"),
    ],
)
def test_a_consequence_knows_its_causes(book: RuleBook, code: int, roots: tuple[int, ...]) -> None:
    assert set(roots) <= set(book.xid[code].secondary_to)


def test_a_fallen_gpu_brings_a_storm_of_switch_errors_that_are_not_its_equals(book: RuleBook) -> None:
    storm = book.sxid[20034]
    assert storm.secondary_to == (79,)
    assert storm.secondary_window == pytest.approx(120)


@pytest.mark.parametrize(
    ("word", "tier", "action"),
    [pytest.param("fatal", 0, "reboot_node", id="fatal"), pytest.param("nonfatal", 1, "none", id="non-fatal")],
)
def test_an_unknown_switch_error_goes_by_its_word(book: RuleBook, word: str, tier: int, action: str) -> None:
    rule = next(rule for name, rule in book.sxid_default.items() if name == word)
    assert (rule.tier, rule.action, rule.severity) == (tier, action, word)


@pytest.mark.parametrize(
    ("xid", "registers", "branch", "action"),
    [
        pytest.param(145, (0x04084507, 4), 575, FaultAction.FOLLOW_154, id="RLW_SRC_TRACK waits for its 154"),
        pytest.param(149, (0x025525C6, 0), 570, FaultAction.RESET_GPU, id="a link whose peer is at fault"),
        pytest.param(149, (0x026001C6, 0), 570, FaultAction.NONE, id="a link that software took down"),
        pytest.param(144, (0x00000001, 2), 575, FaultAction.RESET_GPU, id="a fatal SAW error"),
    ],
)
def test_a_recorded_register_finds_its_sub_code(
    book: RuleBook, xid: int, registers: tuple[int, int], branch: int, action: FaultAction
) -> None:
    info, status = registers
    (row,) = [
        row
        for row in book.nvlink5.values()
        if (row.xid, row.error_status) == (xid, status)
        and fits(row.from_r575 if branch >= 575 else row.before_r575, info)
    ]
    assert row.action is action


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param(
            "2 uncorrectable hardware errors detected in umc block", "uncorrectable_errors", id="errors in the HBM"
        ),
        pytest.param(
            "socket: 0, die: 1, 1 new uncorrectable hardware errors detected in gfx block",
            "uncorrectable_errors",
            id="errors since the last report",
        ),
        pytest.param(
            "socket: 0, die: 1, 7 uncorrectable hardware errors detected in total in gfx block",
            None,
            id="a sum is no new fault",
        ),
        pytest.param(
            "00 uncorrectable hardware errors detected in umc block", None, id="zero is health, however it is written"
        ),
        pytest.param(
            "{3}Uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
            "uncorrectable_interrupt",
            id="the interrupt, in newer spelling",
        ),
        pytest.param(
            "3 correctable hardware errors detected in umc block, no user action is needed.",
            "correctable_errors",
            id="repaired errors",
        ),
        pytest.param("0 correctable hardware errors detected in umc block", None, id="no repaired errors"),
        pytest.param(
            "1 new deferred hardware errors detected in umc block",
            "deferred_errors",
            id="damaged data that nobody used",
        ),
        pytest.param(
            "RAS poison consumption, unmap queue flow succeeded: client id 10",
            "poison_consumed",
            id="one program used damaged data",
        ),
        pytest.param(
            "RAS poison consumption, fall back to gpu reset flow: client id 10",
            "poison_reset",
            id="and could not be stopped alone",
        ),
        pytest.param("RAS records:282 exceed threshold:256", "bad_pages_over_limit", id="too many retired pages"),
        pytest.param("GPU reset begin!", "reset_begun", id="a reset that begins"),
        pytest.param("GPU reset(1) failed", "reset_failed", id="a reset that failed"),
        pytest.param("GPU reset end with ret = -62", "reset_failed", id="a reset that ended in an error"),
        pytest.param("GPU reset(2) succeeded!", None, id="a reset that worked"),
        pytest.param("ring sdma0 timeout, but soft recovered", "ring_recovered", id="a hang that cost one job"),
        pytest.param("*ERROR* ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3", "ring_timeout", id="a hang"),
        pytest.param(
            "[Hardware Error]: Accelerator Check Architecture events logged", None, id="the head of a register dump"
        ),
        pytest.param("SRAM ECC is active.", None, id="a feature that is on"),
    ],
)
def test_an_amdgpu_line_is_a_fault_or_is_not(book: RuleBook, text: str, name: str | None) -> None:
    assert ras_of(book, f"amdgpu 0000:c3:00.0: amdgpu: {text}") == name


def test_the_drivers_request_is_known_by_number_and_by_words(book: RuleBook) -> None:
    assert {text.value for text in book.recovery.values()} == set(range(8))
    assert {text.words: text.action.value for text in book.recovery.values()} == {
        "None": "none",
        "GPU Reset Required": "reset_gpu",
        "PF FLR": "reset_gpu",
        "Node Reboot Required": "reboot_node",
        "OS Reboot": "reboot_node",
        "Drain P2P": "inspect",
        "Drain and Reset": "reset_gpu",
        "Recover IMEX Domain": "inspect",
        "Bus Reset": "reset_gpu",
        "System Reboot": "reboot_node",
    }


def test_two_words_for_one_number_ask_for_the_same(book: RuleBook) -> None:
    actions = {(text.value, text.action) for text in book.recovery.values()}
    assert len(actions) == len({value for value, _ in actions})

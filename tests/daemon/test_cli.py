"""The command line: it teaches, it answers at once, its codes hold, and its stdout is for results alone."""

import gzip
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from daemon.cli import app
from daemon.commands import output
from daemon.commands.output import ExitCode, flat, progress, show
from daemon.secrets import only_host, without_password
from daemon.version import own_version

ROOT = Path(__file__).parents[2]
HEAVY = (
    "numpy",
    "pandas",
    "sklearn",
    "scipy",
    "sqlalchemy",
    "alembic",
    "pydantic",
    "requests",
    "msgspec",
    "yaml",
    "kubernetes",
)


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command and group with the words that call it."""

    def walk(words: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield words, command
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(f"{words} {name}".strip(), below)

    yield from walk("", typer.main.get_command(app))


COMMANDS = dict(commands())
EACH = pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words or "gpuwarden itself")


def run(*words: str, stdin: str = "", cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    code = "from daemon.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words], input=stdin, cwd=cwd, check=False, capture_output=True, text=True,
        timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- help


@EACH
def test_help_says_what_it_is_for(words: str) -> None:
    answer = CliRunner().invoke(app, [*words.split(), "--help"])
    assert answer.exit_code == 0
    assert (COMMANDS[words].help or "").strip()
    assert answer.stdout.startswith("Usage: ")


@EACH
def test_help_explains_each_option(words: str) -> None:
    silent = [
        param.name
        for param in COMMANDS[words].params
        if not getattr(param, "help", None) and param.name not in ("help", "install_completion", "show_completion")
    ]
    assert silent == []


PEOPLE = ["plan", "approve", "reject", "hold", "release", "breaker"]


@pytest.mark.parametrize("words", ["run", "audit", "explain", *PEOPLE, "xid decode", "rules check"])
def test_help_of_what_people_use_has_an_example_that_is_a_command(words: str) -> None:
    example = re.search(r"Example:(.*)", (COMMANDS[words].help or "").replace("\n", " "))
    assert example
    assert f"gpuwarden {words}" in example[1]


def test_the_codes_of_the_help_are_those_of_the_code() -> None:
    told = re.search(r"Exit codes: (.*)", " ".join((COMMANDS[""].help or "").split()))
    assert told
    assert [int(number) for number in re.findall(r"\b(\d) ", told[1])] == [code.value for code in ExitCode]


@pytest.mark.parametrize("words", PEOPLE)
def test_what_people_ask_and_say_can_be_had_as_data(words: str) -> None:
    options = {option for param in COMMANDS[words].params for option in param.opts}
    assert {"--config", "-c", "--output", "-o"} <= options


def test_help_answers_without_loading_what_it_does_not_need() -> None:
    probe = (
        "import sys\nsys.argv = ['gpuwarden', '--help']\nfrom daemon.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.splitlines()[-1] == "LOADED []"


def test_the_version_is_that_of_the_package() -> None:
    answer = CliRunner().invoke(app, ["--version"])
    assert (answer.exit_code, answer.stdout) == (0, f"gpuwarden {own_version()}\n")


# ----------------------------------------------------------------------------------------------------------- codes


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param(["nonsense"], 2, id="a command that is none"),
        pytest.param(["audit"], 2, id="an option that is missing"),
        pytest.param(["explain", "x", "-o", "xml"], 2, id="a form that is none"),
        pytest.param(["run", "--config", "/no/gpuwarden.yaml"], 2, id="a configuration that is not there"),
        pytest.param(["run", "--mode", "auto", "--check"], 2, id="a mode that acts on no cluster"),
        pytest.param(["plan", "gpu001"], 2, id="a plan without a cluster"),
        pytest.param(["hold", "gpu001", "--for", "8h", "--end"], 4, id="a word without a ledger"),
        pytest.param(["breaker", "open"], 2, id="what nobody asks of a breaker"),
        pytest.param(["xid", "decode", "/no/log"], 5, id="a log that is not there"),
        pytest.param(["rules", "check", "/no/pack.yaml"], 1, id="a pack that is not there"),
    ],
)
def test_what_is_wrong_ends_with_its_code_and_nothing_on_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)  # no ledger here
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == code
    assert answer.stdout == ""
    assert answer.stderr or capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ end to end


def test_xid_decode_reads_standard_input_to_json_lines() -> None:
    log = (
        "an ordinary line\n"
        "[ 1234.567890] NVRM: Xid (PCI:0000:5C:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        "2026-03-01T12:00:00+00:00 n1 trainer[7]: NVRM: Xid (PCI:0000:5c:00): 95, pid=7, name=x, a claim\n"
    )
    answer = run("xid", "decode", "-", stdin=log)
    assert (answer.returncode, answer.stderr) == (0, "")
    first, second = (json.loads(line) for line in answer.stdout.splitlines())
    assert (first["line"], first["code"], first["pci"], first["trusted"]) == (2, 79, "0000:5c:00", True)
    assert (second["line"], second["code"], second["trusted"]) == (3, 95, False)


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text("[ 1.0] NVRM: Xid (PCI:0000:5c:00): 79, GPU has fallen off the bus.\n" * 20_000, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-c", "from daemon.cli import main; main()", "xid", "decode", str(log)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stderr is not None
        assert json.loads(child.stdout.readline())["code"] == 79
        child.stdout.close()
        assert (child.wait(60), child.stderr.read()) == (0, b"")


def test_xid_decode_says_that_its_input_is_no_plain_text(tmp_path: Path) -> None:
    log = tmp_path / "kern.log.gz"
    log.write_bytes(gzip.compress(b"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"))
    answer = CliRunner().invoke(app, ["xid", "decode", str(log)])
    assert (answer.exit_code, answer.stdout) == (0, "")
    assert "gzip data, not plain text; give what `zcat FILE` prints" in answer.stderr


def test_rules_check_names_file_line_key_and_reason(tmp_path: Path) -> None:
    pack = tmp_path / "ours.yaml"
    pack.write_text("version: 1\nname: ours\nowner: us\nsource: us\nthresholds:\n  hot: {signal: gpu_temp, abov: 3}\n")
    answer = CliRunner().invoke(app, ["rules", "check", str(pack), "-o", "json"])
    assert answer.exit_code == 1
    problems = json.loads(answer.stdout)
    assert {problem["file"] for problem in problems} == {str(pack)}
    assert any(problem["line"] == 6 and "abov" in problem["key"] for problem in problems)
    assert str(pack) in answer.stderr


def test_rules_check_says_what_the_packs_add_up_to() -> None:
    answer = CliRunner().invoke(app, ["rules", "check", "-o", "json"])
    assert answer.exit_code == 0
    told = json.loads(answer.stdout)
    assert told["rules"]["xid"] > 100
    assert re.fullmatch(r"[0-9a-f]+", told["digest"])


# --------------------------------------------------------------------------------------------------------- printing


def test_a_table_shows_brackets_and_colons_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show(None, "table", [("[/drm] :warning: x[5m]", "[bold]")], ("WHERE", "WHAT"))
    assert capsys.readouterr().out.split() == ["WHERE", "WHAT", "[/drm]", ":warning:", "x[5m]", "[bold]"]


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"])
def test_no_colour_and_no_progress_where_nobody_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with progress("counting", 3) as tell:
        for number in range(3):
            tell(number)
    show(None, "table", [("a",)], ("HEAD",))
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out
    assert captured.err == ""


def test_progress_is_shown_on_a_terminal_and_only_on_stderr() -> None:
    code = (
        "from daemon.commands.output import progress, say\n"
        "with progress('counting', 3) as tell:\n"
        "    tell(1)\n"
        "say('result')\n"
    )
    reader, writer = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=writer, text=True,
            timeout=60, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )  # fmt: skip
        shown = os.read(reader, 65536).decode()
    finally:
        os.close(reader)
        os.close(writer)
    assert done.stdout == "result\n"
    assert "counting" in shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        pytest.param("http://127.0.0.1:9090", "http://127.0.0.1:9090", id="nothing to hide"),
        pytest.param("https://a:b@host/path?x=1", "https://a:***@host/path?x=1", id="a password"),
        pytest.param("https://token@host", "https://token@host", id="a name alone"),
        pytest.param("postgresql://a:b%40c@host/db", "postgresql://a:***@host/db", id="a password with an at sign"),
        pytest.param("sqlite:////var/lib/x.db", "sqlite:////var/lib/x.db", id="a file"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        pytest.param("https://desk.example", "https://desk.example", id="nothing to hide"),
        pytest.param("https://desk.example:8443/", "https://desk.example:8443", id="a port"),
        pytest.param("https://desk.example/hook", "https://desk.example/***", id="a path"),
        pytest.param("https://desk.example?key=x", "https://desk.example/***", id="a query"),
        pytest.param("http://me:b@[::1]:80/hook?key=x#y", "http://[::1]:80/***", id="all that there can be"),
    ],
)
def test_of_a_webhook_only_the_host_is_shown(url: str, shown: str) -> None:
    assert only_host(url) == shown


def test_a_nested_result_is_a_flat_table() -> None:
    assert list(flat({"ours": {"seconds": 1.23456789, "peak": 3}, "n": 2})) == [
        ("ours.seconds", "1.235"), ("ours.peak", "3"), ("n", "2"),
    ]  # fmt: skip


def test_errors_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output.complain("what, where, why, next")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "gpuwarden: what, where, why, next\n")

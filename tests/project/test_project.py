"""What holds for the repository as a whole: packaging, the lock, the house's own rules, the commands that docs name.

Reads files and runs the project's scripts against stand-ins on a PATH of their own; nothing here touches the machine.
"""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import daemon

ROOT = Path(__file__).parents[2]
PRODUCT = ("daemon", "detectors", "remediation", "rules")
LOCKS = ("requirements.lock", "requirements-dev.lock")
MAX_LINES = 400
#: What may catch everything, one function for each thread: a turn that breaks is told, and the next one comes.
OUTERMOST_FRAMES = {
    ("daemon/agent/run.py", "_turns"),
    ("daemon/loki/inlet.py", "_turns"),
    ("daemon/loop.py", "run"),
    ("daemon/tickets.py", "_turns"),
    ("remediation/cluster/executor.py", "_turns"),
}

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RUNTIME = [Requirement(line) for line in PYPROJECT["project"]["dependencies"]]
DEV = [Requirement(line) for line in PYPROJECT["dependency-groups"]["dev"]]


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ----------------------------------------------------------------------------------------------------------- packaging


def test_the_import_name_daemon_is_ours():
    assert Path(daemon.__file__) == ROOT / "daemon" / "__init__.py"


@pytest.mark.parametrize("lock", LOCKS)
def test_python_daemon_is_no_dependency_however_it_is_spelled(lock: str):
    named = {canonicalize_name(requirement.name) for requirement in (*RUNTIME, *DEV)}
    assert "python-daemon" not in named | set(pins(lock))


def test_each_dependency_says_why_it_is_there():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    without = [
        line.strip()
        for block in re.findall(r"^(?:dependencies|dev) = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if line.strip().startswith('"') and not re.search(r'",\s*# \w.*\w', line)
    ]
    assert without == []


def test_the_wheel_holds_the_four_packages_whole_and_nothing_else(tmp_path: Path):
    if Version(importlib.metadata.version("setuptools")) < Version("77"):
        pytest.skip("the wheel, because this environment has no setuptools 77 (`make venv` makes one that has)")
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in (*PRODUCT, "fixtures", "tests"):
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, source / folder, ignore=ignore)
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, source / name)

    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation",
         "--wheel-dir", tmp_path, source],
        check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip

    (wheel,) = tmp_path.glob("gpuwarden-*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(source).as_posix()
        for folder in PRODUCT
        for path in (source / folder).rglob("*")
        if path.is_file()
    }
    assert inside == expected
    assert any(name.startswith("rules/packs/") for name in inside), "the shipped rule packs"


# ------------------------------------------------------------------------------------------------------------ the lock


def pins(lock: str) -> dict[str, set[Version]]:
    """Locked versions by name; a name has two where an older Python needs another one."""
    found: dict[str, set[Version]] = {}
    for line in (ROOT / lock).read_text(encoding="utf-8").splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==([^ ;\\]+)", line):
            found.setdefault(canonicalize_name(match[1]), set()).add(Version(match[2]))
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_holds_versions_and_hashes_and_no_host_or_path(lock: str):
    pin = r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!-]+( ; [a-z_]+ (<|<=|==|!=|>=|>) '[\w.]+')? \\"
    digest = r"    --hash=sha256:[0-9a-f]{64}( \\)?"
    lines = (ROOT / lock).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(f"{pin}|{digest}", line)] == []


@pytest.mark.parametrize(
    ("lock", "requirements"),
    [
        pytest.param("requirements.lock", RUNTIME, id="what runs"),
        pytest.param("requirements-dev.lock", [*RUNTIME, *DEV], id="what runs, checks and tests"),
    ],
)
def test_the_lock_satisfies_pyproject(lock: str, requirements: list[Requirement]):
    locked = pins(lock)
    unmet = [
        str(requirement)
        for requirement in requirements
        if not (versions := locked.get(canonicalize_name(requirement.name)))
        or not all(requirement.specifier.contains(version) for version in versions)
    ]
    assert unmet == [], "run `make lock`"


def test_what_is_tested_is_what_runs():
    tested = pins("requirements-dev.lock")
    assert {name: tested.get(name) for name in pins("requirements.lock")} == pins("requirements.lock")


# ----------------------------------------------------------------------------------------------------- what files hold

#: Folders that exist on one machine only, and package-registry hosts.
MACHINE_PATH = re.compile(r"(?:^|[^\w./-])/(?:work|root|farm|opt/gw|home/[a-z]\w*|Users/\w+)/")
REGISTRY_HOST = re.compile(r"\b(?:files\.pythonhosted|(?:test\.)?pypi|registry\.npmjs|crates)\.(?:org|io)\b")


def repository_files() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("what committed files hold, because this is no git checkout")
    names = listed.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def test_no_text_file_names_a_folder_of_one_machine_or_a_package_registry():
    found = []
    for path in repository_files():
        content = path.read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            if MACHINE_PATH.search(line) or REGISTRY_HOST.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()[:120]}")
    assert found == []


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        pytest.param("open('/" + "root/x')", True, id="a path in quotes is caught"),
        pytest.param("/" + "home/ann/gpu.yaml", True, id="a path at the start of a line is caught"),
        pytest.param("see rules/work/x and https://example.org/root/", False, id="a part of a longer path is not"),
        pytest.param("/rootfs/ and /workers/", False, id="a longer name is not"),
    ],
)
def test_the_pattern_of_machine_paths(line: str, *, caught: bool):
    assert bool(MACHINE_PATH.search(line)) is caught


def test_modules_are_short_enough_to_be_one_noun():
    lengths = {
        relative(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files(*PRODUCT, "fixtures")
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_each_module_says_why_it_exists():
    silent = [
        relative(path)
        for path in python_files(*PRODUCT, "fixtures")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


# --------------------------------------------------------------------------------------------- what decides is a value

#: Reading any of these makes an answer depend on when and where it is asked.
AMBIENT = {
    ("datetime", "now"), ("datetime", "today"), ("datetime", "utcnow"), ("date", "today"),
    ("time", "time"), ("time", "time_ns"), ("time", "monotonic"), ("time", "monotonic_ns"), ("time", "perf_counter"),
    ("time", "sleep"), ("os", "environ"), ("os", "getenv"),
}  # fmt: skip


def ambient_reads(source: str) -> list[tuple[int, str]]:
    """Line and name of each read of the clock or the environment."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if (name, node.attr) in AMBIENT:
                found.append((node.lineno, f"{name}.{node.attr}"))
        elif isinstance(node, ast.ImportFrom):
            hits = [alias.name for alias in node.names if (node.module, alias.name) in AMBIENT]
            found.extend((node.lineno, f"{node.module}.{name}") for name in hits)
    return found


def test_what_decides_reads_no_clock_and_no_environment():
    hands = ROOT / "remediation" / "cluster"
    deciding = [
        path
        for path in python_files("detectors", "remediation", "rules")
        if path.with_suffix("") != hands and hands not in path.parents
    ]
    reads = [
        f"{relative(path)}:{line}: {name}"
        for path in deciding
        for line, name in ambient_reads(path.read_text(encoding="utf-8"))
    ]
    assert reads == []


@pytest.mark.parametrize(
    ("source", "read"),
    [
        pytest.param("datetime.now(UTC)", "datetime.now", id="the wall clock by class"),
        pytest.param("datetime.datetime.utcnow()", "datetime.utcnow", id="the wall clock by module"),
        pytest.param("field(default_factory=time.monotonic)", "time.monotonic", id="a clock passed on uncalled"),
        pytest.param("from time import time", "time.time", id="a clock imported by name"),
        pytest.param("os.environ['HOME']", "os.environ", id="the environment"),
        pytest.param("from os import getenv as g", "os.getenv", id="the environment imported by name"),
    ],
)
def test_the_check_sees_each_spelling(source: str, read: str):
    assert ambient_reads(source) == [(1, read)]


def test_the_check_lets_times_as_values_pass():
    assert ambient_reads("def due(now: datetime) -> bool: return now > datetime.fromisoformat(text)") == []


def catch_alls(source: str) -> Iterator[tuple[int, str]]:
    """Line and enclosing function of each handler that catches everything and does not raise it on as it is."""

    def broad(kind: ast.expr | None) -> bool:
        names = kind.elts if isinstance(kind, ast.Tuple) else [kind]
        return any(name is None or getattr(name, "id", "") in {"Exception", "BaseException"} for name in names)

    def reraises(handler: ast.ExceptHandler) -> bool:
        last = handler.body[-1]
        return isinstance(last, ast.Raise) and last.exc is None

    def walk(node: ast.AST, function: str) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.ExceptHandler) and broad(node.type) and not reraises(node):
            yield node.lineno, function
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "suppress":
            yield from ((node.lineno, function) for argument in node.args if broad(argument))
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function)

    yield from walk(ast.parse(source), "")


def test_only_the_outermost_frame_of_a_thread_catches_everything():
    found = [
        f"{relative(path)}:{line}: in {function or 'the module'}"
        for path in python_files(*PRODUCT, "fixtures")
        for line, function in catch_alls(path.read_text(encoding="utf-8"))
        if (relative(path), function) not in OUTERMOST_FRAMES
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        pytest.param("try: f()\nexcept Exception: pass", [2], id="by name"),
        pytest.param("try: f()\nexcept: pass", [2], id="bare"),
        pytest.param("try: f()\nexcept (OSError, BaseException): pass", [2], id="within a tuple"),
        pytest.param("with contextlib.suppress(Exception): f()", [1], id="suppressed"),
        pytest.param("try: f()\nexcept Exception as e: raise Odd from e", [2], id="turned into another error"),
        pytest.param("try: f()\nexcept BaseException:\n    g()\n    raise", [], id="cleaning up and raising is fine"),
        pytest.param("try: f()\nexcept (OSError, ValueError): pass", [], id="named errors are fine"),
    ],
)
def test_the_check_sees_each_way_to_catch_everything(source: str, lines: list[int]):
    assert [line for line, _ in catch_alls(source)] == lines


# -------------------------------------------------------------------------------------------------- targets and scripts


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_make_explains_each_target():
    explained = re.findall(r"^([a-z-]+):.*## \w", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(explained) == make_targets()


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", ".ci/run", ".pre-commit-config.yaml"])
def test_each_make_target_that_a_document_names_exists(document: str):
    path = ROOT / document
    if not path.is_file():
        pytest.skip(f"{document} is not written yet")
    command = re.compile(r"(?:^\s*|`|\$ |step |entry: )make ([a-z]+)", re.MULTILINE)
    named = set(command.findall(path.read_text(encoding="utf-8")))
    assert named, "the document names no target: has its notation changed?"
    assert named <= make_targets()


def stand_in(folder: Path, name: str, body: str) -> None:
    """An executable on a PATH of its own, in place of a program of the machine."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f"#!{shutil.which('bash')}\n{body}\n", encoding="utf-8")
    script.chmod(0o755)


def run_script(script: str, *arguments: str, path: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(shutil.which("bash")), str(ROOT / script), *arguments],
        env={"PATH": path, **env}, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip


def test_ci_runs_the_checks_then_the_tests(tmp_path: Path):
    stand_in(tmp_path / "bin", "make", f'echo "$*" >>{tmp_path}/calls')
    done = run_script(".ci/run", path=f"{tmp_path}/bin:{os.defpath}")
    assert (done.returncode, (tmp_path / "calls").read_text().split()) == (0, ["check", "test"])


def test_ci_stops_where_a_check_fails(tmp_path: Path):
    stand_in(tmp_path / "bin", "make", f'echo "$*" >>{tmp_path}/calls; exit 3')
    done = run_script(".ci/run", path=f"{tmp_path}/bin:{os.defpath}")
    assert (done.returncode, (tmp_path / "calls").read_text().split()) == (3, ["check"])


def test_ci_can_be_started_by_itself():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize(
    ("programs", "says"),
    [
        pytest.param({"prometheus": "", "promtool": ""}, "", id="nothing where both are there"),
        pytest.param({}, "no apt-get", id="where the system has no apt-get"),
        pytest.param({"apt-get": "exit 9", "id": "echo 1000"}, "only root may install", id="where we are not root"),
    ],
)
def test_the_prometheus_installer_says_what_stays_untested(tmp_path: Path, programs: dict[str, str], says: str):
    (tmp_path / "bin").mkdir()
    for name, body in programs.items():
        stand_in(tmp_path / "bin", name, body)
    done = run_script("scripts/install_debian.sh", path=f"{tmp_path}/bin")
    assert done.returncode == 0
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert [says in line and "NOT TESTED" in line for line in lines] == ([True] if says else [])


def test_the_environment_refuses_an_unfit_python_by_name(tmp_path: Path):
    stand_in(tmp_path / "bin", "old-python", "exit 1")
    done = run_script(
        "scripts/bootstrap.sh", str(tmp_path / "venv"), path=f"{tmp_path}/bin:{os.defpath}", PYTHON="old-python"
    )
    assert done.returncode == 1
    assert "PYTHON=old-python is not a Python 3.11" in done.stderr
    assert not (tmp_path / "venv").exists()

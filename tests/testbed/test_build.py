"""Where the control plane's programs come from, with a stand-in for Go: no network, and nothing is compiled."""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.testbed.build import (
    CONTROLLERS,
    DEFINITIONS,
    PROGRAMS,
    TOOLS,
    BuildFailed,
    Unavailable,
    binaries,
    controllers,
)

#: Writes what it is asked to build, and a line for each build. FAILS names the subcommand that fails, MODULES the
#: folder of all modules.
GO = """#!/bin/sh
if [ "$1" = "$FAILS" ]; then echo "go: some context" >&2; echo "go: the reason" >&2; exit 1; fi
case "$1" in
  env) echo "${GO_VERSION:-go1.26}" ;;
  mod) echo "{\\"Path\\": \\"$4\\", \\"Dir\\": \\"$MODULES\\"}" ;;
  build)
    while [ "$1" != -o ]; do shift; done
    echo "$3" >> "$BUILDS"
    printf '#!/bin/sh\\n' > "$2" && chmod +x "$2" ;;
esac
"""


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a Go and nothing built yet; the file lists the packages that get built."""
    path = tmp_path / "path"
    path.mkdir()
    program(path / "go").write_text(GO, encoding="utf-8")
    program(path / "openssl")
    for name in ("GPUWARDEN_TESTBED_DIR", "KUBEBUILDER_ASSETS", "FAILS", "GO_VERSION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BUILDS", str(tmp_path / "builds"))
    monkeypatch.setenv("MODULES", str(tmp_path / "modules"))
    for _, _, source in DEFINITIONS:
        (tmp_path / "modules" / source).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "modules" / source).write_text(f"metadata: {{name: {Path(source).stem}}}\n", encoding="utf-8")
    (tmp_path / "builds").touch()
    return tmp_path / "builds"


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


def silent(_line: str) -> None:
    pass


def without_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "path" / "go").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "path"))


def test_each_program_is_built_once_and_found_from_then_on(builds: Path, tmp_path: Path):
    said: list[str] = []
    first = binaries(said.append)
    assert builds.read_text().split() == [p.package for p in PROGRAMS]
    assert [line for line in said if line.startswith("built")] != []
    assert first.kwok.is_relative_to(tmp_path / "cache" / "gpuwarden-testbed")
    said.clear()
    assert binaries(said.append) == first
    assert len(builds.read_text().split()) == len(PROGRAMS)
    assert said == []


@pytest.mark.usefixtures("builds")
def test_another_go_builds_anew(monkeypatch: pytest.MonkeyPatch):
    first = binaries(silent)
    monkeypatch.setenv("GO_VERSION", "go1.27")
    assert binaries(silent).etcd != first.etcd


def test_runs_side_by_side_build_once(builds: Path):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(binaries, [silent] * 4))
    assert len(set(found)) == 1
    assert len(builds.read_text().split()) == len(PROGRAMS)


def test_a_build_that_was_cut_off_leaves_no_program_behind(builds: Path):
    folder = binaries(silent).etcd.parent
    assert sorted(path.name for path in folder.iterdir()) == sorted(p.name for p in PROGRAMS)
    (folder / "kwok").rename(folder / ".kwok")
    binaries(silent)
    assert builds.read_text().split()[len(PROGRAMS) :] == ["sigs.k8s.io/kwok/cmd/kwok"]


@pytest.mark.usefixtures("builds")
def test_a_folder_that_is_given_needs_no_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for each in PROGRAMS:
        program(tmp_path / "given" / "bin" / each.name)
    monkeypatch.setenv("GPUWARDEN_TESTBED_DIR", str(tmp_path / "given"))
    without_go(tmp_path, monkeypatch)
    assert binaries(silent).kube_scheduler == tmp_path / "given" / "bin" / "kube-scheduler"


def test_a_folder_that_is_given_gets_what_it_lacks(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program(tmp_path / "given" / "bin" / "etcd")
    monkeypatch.setenv("GPUWARDEN_TESTBED_DIR", str(tmp_path / "given"))
    assert binaries(silent).kwok == tmp_path / "given" / "bin" / "kwok"
    assert "go.etcd.io/etcd/server/v3" not in builds.read_text()


def test_what_other_projects_keep_for_envtest_comes_first(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("etcd", "kube-apiserver", "kubectl"):
        program(tmp_path / "assets" / name)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    found = binaries(silent)
    assert (found.etcd, found.kube_apiserver) == (tmp_path / "assets" / "etcd", tmp_path / "assets" / "kube-apiserver")
    assert len(builds.read_text().split()) == len(PROGRAMS) - 2


@pytest.mark.usefixtures("builds")
def test_without_go_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    without_go(tmp_path, monkeypatch)
    with pytest.raises(Unavailable, match=r"needs Go .*or name a folder .* in GPUWARDEN_TESTBED_DIR") as missing:
        binaries(silent)
    assert "\n" not in str(missing.value)


@pytest.mark.usefixtures("builds")
def test_without_openssl_it_says_so_before_it_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "path" / "openssl").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    with pytest.raises(Unavailable, match="install openssl"):
        binaries(silent)


@pytest.mark.usefixtures("builds")
@pytest.mark.parametrize(
    ("fails", "error"),
    [
        pytest.param("env", Unavailable, id="a Go that is too old for the modules is a lack of the machine"),
        pytest.param("list", Unavailable, id="modules that cannot be fetched are a lack of the machine"),
        pytest.param("build", BuildFailed, id="a program that does not compile is a fault of ours"),
    ],
)
def test_a_failure_of_go_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch, fails: str, error: type[Exception]):
    monkeypatch.setenv("FAILS", fails)
    with pytest.raises(error, match="go: the reason"):
        binaries(silent)


# ---------------------------------------------------------------------------------------- controllers of training jobs


def test_controllers_are_built_apart_from_the_control_plane_and_once(builds: Path):
    plane = binaries(silent)
    before = len(builds.read_text().split())
    first = controllers(silent)
    assert controllers(silent) == first
    assert builds.read_text().split()[before:] == [program.package for program in CONTROLLERS]
    assert first.jobset.parent != plane.kwok.parent
    assert binaries(silent) == plane, "nothing of Kubernetes is built anew"


@pytest.mark.usefixtures("builds")
def test_definitions_of_their_kinds_are_kept_beside_them(tmp_path: Path):
    found = controllers(silent)
    names = [json.loads(path.read_text(encoding="utf-8"))["metadata"]["name"] for path in found.definitions]
    assert names == [Path(source).stem for _, _, source in DEFINITIONS]
    assert {path.parent.parent for path in found.definitions} == {found.jobset.parent.parent}
    shutil.rmtree(tmp_path / "modules")
    assert controllers(silent) == found, "what is kept needs no module cache"


def test_a_definition_that_is_missing_is_fetched_without_a_build(builds: Path):
    found = controllers(silent)
    before = builds.read_text()
    found.definitions[-1].unlink()
    assert controllers(silent) == found
    assert found.definitions[-1].is_file()
    assert builds.read_text() == before


@pytest.mark.usefixtures("builds")
def test_controllers_in_a_folder_that_is_given_need_no_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPUWARDEN_TESTBED_DIR", str(tmp_path / "given"))
    found = controllers(silent)
    assert found.training_operator == tmp_path / "given" / "bin" / "training-operator"
    without_go(tmp_path, monkeypatch)
    assert controllers(silent) == found


@pytest.mark.usefixtures("builds")
@pytest.mark.parametrize("fails", ["list", "mod"])
def test_a_module_of_a_controller_that_cannot_be_fetched_is_a_lack_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, fails: str
):
    monkeypatch.setenv("FAILS", fails)
    with pytest.raises(Unavailable, match=r"tools/jobset: go: the reason"):
        controllers(silent)


# ------------------------------------------------------------------------------------------------------ the modules


def test_all_parts_of_kubernetes_have_one_version():
    text = (TOOLS / "kubernetes" / "go.mod").read_text(encoding="utf-8")
    (kubernetes,) = re.findall(r"k8s\.io/kubernetes v1\.(\S+)", text)
    siblings = re.findall(r"^replace (\S+) => (\S+) v0\.(\S+)$", text, re.MULTILINE)
    assert {(name == to, version) for name, to, version in siblings} == {(True, kubernetes)}
    assert {f"\t{p.package}" for p in PROGRAMS if p.module == "kubernetes"} <= set(text.splitlines())

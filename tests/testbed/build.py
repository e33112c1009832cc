"""The testbed's programs, built once from the Go modules in `tools/` and kept outside the checkout.

Called by `make testbed` and by the fixtures `control_plane` and `workload_controllers`. Where the control plane's
programs come from, in this order, program by program:

1. the folder that KUBEBUILDER_ASSETS names (etcd and kube-apiserver only, as other projects' envtest keeps them);
2. `bin/` in the folder that GPUWARDEN_TESTBED_DIR names, or by default in
   `$XDG_CACHE_HOME/gpuwarden-testbed/<hash of the modules and of the Go version>`;
3. a build into 2, about six minutes for all of them on two cores with an empty Go cache.

The controllers of training jobs take the same way from 2 on (some three minutes), in a folder with a hash of their own,
so that a change of theirs builds no Kubernetes anew. The definitions of their kinds lie beside them.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

TOOLS = Path(__file__).parent / "tools"
Say = Callable[[str], None]


class Unavailable(Exception):
    """This machine cannot have the programs. The message is one line: what is missing and how to get it."""


class BuildFailed(Exception):
    """Go is there and the modules are there, and still a program does not build: a fault of `tools/`."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program: the folder of its module under `tools/`, its package, and the variable that holds its version."""

    name: str
    module: str
    package: str
    version_variable: str | None = None


# Without its version kube-apiserver takes itself for 0.0.0 and refuses what later versions brought.
_KUBERNETES_VERSION = "k8s.io/component-base/version.gitVersion"
PROGRAMS = (
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", _KUBERNETES_VERSION),
    Program(
        "kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", _KUBERNETES_VERSION
    ),
    Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", _KUBERNETES_VERSION),
    Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok/pkg/consts.Version"),
)
#: Not part of a control plane: what `make bench-cluster` compares with.
KUBECTL = Program("kubectl", "kubectl", ".")
#: What `make bench-agent` compares with.
NODE_PROBLEM_DETECTOR = Program(
    "node-problem-detector",
    "node-problem-detector",
    "k8s.io/node-problem-detector/cmd/nodeproblemdetector",
    "k8s.io/node-problem-detector/pkg/version.version",
)
#: Who makes pods of training jobs. They are built when a test first asks for them.
CONTROLLERS = (
    Program("jobset", "jobset", "sigs.k8s.io/jobset"),
    Program("training-operator", "training-operator", "."),
)
#: The definitions of the kinds that tests use, as YAML in the modules that the controllers come from.
DEFINITIONS = (
    ("jobset", "sigs.k8s.io/jobset", "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"),
    ("training-operator", "github.com/kubeflow/training-operator", "manifests/base/crds/kubeflow.org_pytorchjobs.yaml"),
    ("training-operator", "github.com/kubeflow/training-operator", "manifests/base/crds/kubeflow.org_mpijobs.yaml"),
)
FROM_KUBEBUILDER = ("etcd", "kube-apiserver")
BUILD_FLAGS = ("-mod=readonly", "-trimpath", "-buildvcs=false")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A path for each program."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kube_scheduler: Path
    kwok: Path


@dataclass(frozen=True, slots=True)
class Controllers:
    """A path for each program, and the definitions (CRDs) of their kinds as JSON, which loads at once."""

    jobset: Path
    training_operator: Path
    definitions: tuple[Path, ...]


def say_on_stderr(line: str) -> None:
    """The default way to tell progress."""
    print(f"testbed: {line}", file=sys.stderr, flush=True)


def binaries(say: Say = say_on_stderr) -> Binaries:
    """Find all programs of the control plane, and build the ones that are missing.

    Raises:
        Unavailable: programs are missing, and Go too, or their modules cannot be fetched; or openssl is missing.
        BuildFailed: a program does not compile.
    """
    if shutil.which("openssl") is None:
        raise Unavailable("the Kubernetes control plane needs a key for its service accounts: install openssl")
    given = _given()
    missing = [program for program in PROGRAMS if program.name not in given]
    if missing:
        folder = _folder(PROGRAMS)
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        with _alone(folder, say):
            # Another run may have built some of them while this one waited.
            to_build = [program for program in missing if not _is_program(folder / "bin" / program.name)]
            if to_build:
                _build(to_build, folder / "bin", say)
        given |= {program.name: folder / "bin" / program.name for program in missing}
    return Binaries(**{name.replace("-", "_"): path for name, path in given.items()})


def kubectl(say: Say = say_on_stderr) -> Path:
    """Find kubectl among what was built here before, or build it.

    Raises:
        Unavailable: Go is missing, or its module cannot be fetched.
        BuildFailed: it does not compile.
    """
    return _one(KUBECTL, PROGRAMS, say)


def node_problem_detector(say: Say = say_on_stderr) -> Path:
    """Find node-problem-detector among what was built here before, or build it (some five minutes).

    Raises:
        Unavailable: Go is missing, or its module cannot be fetched.
        BuildFailed: it does not compile.
    """
    return _one(NODE_PROBLEM_DETECTOR, (NODE_PROBLEM_DETECTOR,), say)


def _one(program: Program, beside: Sequence[Program], say: Say) -> Path:
    """A program by itself, in the folder of these."""
    folder = _folder(beside)
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    with _alone(folder, say):
        if not _is_program(folder / "bin" / program.name):
            _build([program], folder / "bin", say)
    return folder / "bin" / program.name


def controllers(say: Say = say_on_stderr) -> Controllers:
    """Find the controllers of training jobs among what was built here before, or build them.

    Raises:
        Unavailable: Go is missing, or a module cannot be fetched.
        BuildFailed: one does not compile.
    """
    folder = _folder(CONTROLLERS)
    for part in ("bin", "definitions"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    definitions = [folder / "definitions" / f"{Path(source).stem}.json" for _, _, source in DEFINITIONS]
    with _alone(folder, say):
        to_build = [program for program in CONTROLLERS if not _is_program(folder / "bin" / program.name)]
        if to_build:
            _build(to_build, folder / "bin", say)
        for (module, origin, source), path in zip(DEFINITIONS, definitions, strict=True):
            if not path.is_file():
                _define(module, origin, source, path)
    programs = {program.name.replace("-", "_"): folder / "bin" / program.name for program in CONTROLLERS}
    return Controllers(**programs, definitions=tuple(definitions))


def _define(module: str, origin: str, source: str, path: Path) -> None:
    """Take a definition from the module cache, where the module is fetched to if it isn't there any more."""
    folder = json.loads(_go(module, ["mod", "download", "-json", origin]))["Dir"]
    definition = yaml.safe_load(Path(folder, source).read_text(encoding="utf-8"))
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(json.dumps(definition), encoding="utf-8")
    unfinished.replace(path)


def _given() -> dict[str, Path]:
    """What the two variables name and really have."""
    found = {}
    if override := os.environ.get("GPUWARDEN_TESTBED_DIR"):
        found = {program.name: Path(override).absolute() / "bin" / program.name for program in PROGRAMS}
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        envtest = {name: Path(assets).absolute() / name for name in FROM_KUBEBUILDER}
        found |= {name: path for name, path in envtest.items() if _is_program(path)}
    return {name: path for name, path in found.items() if _is_program(path)}


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _folder(programs: Sequence[Program]) -> Path:
    """The folder to build into: one for each state of their modules and each Go, so a change of either builds anew."""
    if override := os.environ.get("GPUWARDEN_TESTBED_DIR"):
        return Path(override).absolute()
    digest = hashlib.sha256(repr((programs, BUILD_FLAGS)).encode())
    for module in sorted({program.module for program in programs}):
        digest.update(_go(module, ["env", "GOVERSION", "GOOS", "GOARCH"]).encode())
        for path in (TOOLS / module / "go.mod", TOOLS / module / "go.sum", *sorted((TOOLS / module).glob("*.go"))):
            digest.update(path.read_bytes())
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "gpuwarden-testbed" / digest.hexdigest()[:16]


@contextmanager
def _alone(folder: Path, say: Say) -> Iterator[None]:
    """Hold the folder's lock; the kernel gives it back whatever ends this process."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run is building into {folder}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(programs: Sequence[Program], folder: Path, say: Say) -> None:
    for module in dict.fromkeys(program.module for program in programs):
        say(f"fetching the Go modules of {module} where the module cache lacks them")
        _go(module, ["list", "-mod=readonly", "-deps", *(p.package for p in programs if p.module == module)])
    for number, program in enumerate(programs, 1):
        say(f"building {program.name} ({number} of {len(programs)}); up to a few minutes, once")
        began = time.monotonic()
        unfinished = folder / f".{program.name}"
        command = ["go", "build", *BUILD_FLAGS, f"-ldflags={_ldflags(program)}", "-o", str(unfinished), program.package]
        done = subprocess.run(command, cwd=TOOLS / program.module, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildFailed(
                f"{program.name} does not build from {TOOLS / program.module}: {_last_line(done.stderr)}. "
                f"Run `go build {program.package}` there to see all of it."
            )
        unfinished.replace(folder / program.name)
        say(f"built {program.name} in {time.monotonic() - began:.0f} s")


def _ldflags(program: Program) -> str:
    if program.version_variable is None:
        return "-s -w"
    return f"-s -w -X {program.version_variable}={_version(program)}"


def _version(program: Program) -> str:
    """The version that go.mod pins for the module which holds the package."""
    for line in (TOOLS / program.module / "go.mod").read_text(encoding="utf-8").splitlines():
        pin = re.fullmatch(r"\s*(?:require )?(\S+) (v\S+)(?: // indirect)?", line)
        if pin and program.package.startswith(f"{pin[1]}/"):
            return pin[2]
    raise BuildFailed(f"{TOOLS / program.module / 'go.mod'} requires no module that holds {program.package}")


def _go(module: str, arguments: Sequence[str]) -> str:
    """Run Go in a module's folder. It fails on what the machine lacks: Go itself, its version, or the network."""
    if shutil.which("go") is None:
        raise Unavailable(
            "Kubernetes for tests needs Go 1.26 to be built, and there is none on PATH "
            "(or name a folder with bin/ of its programs in GPUWARDEN_TESTBED_DIR)"
        )
    done = subprocess.run(["go", *arguments], cwd=TOOLS / module, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(
            f"Kubernetes for tests cannot be built here: go {arguments[0]} in {TOOLS.name}/{module}: "
            f"{_last_line(done.stderr)}"
        )
    return done.stdout


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["(it said nothing)"])[-1]

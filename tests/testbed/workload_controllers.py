"""The controllers that make training jobs' pods, on a control plane: JobSet's and the Kubeflow training operator's.

Tests take the fixture `workload_controllers`, which starts them where a module first asks, and then create what
training.py describes. Kinds, defaults, refusals and pods are the controllers' own. Each has its own user, so the audit
log tells them apart, and its webhooks, so what a real cluster refuses is refused here.
"""

import base64
import json
import subprocess
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.testbed.api import ApiError, Object
from tests.testbed.build import Controllers
from tests.testbed.cleaning import Identity
from tests.testbed.control_plane import ControlPlane
from tests.testbed.server import Server, free_port
from tests.testbed.settings import Who
from tests.testbed.training import job_set, mpi_job, pytorch_job
from tests.testbed.waiting import until

#: Without these, Kubeflow's controllers make 20 requests a second.
_FAST = ("--kube-api-qps=1000", "--kube-api-burst=2000")
#: A kind that is not served yet (404, 503) or has no storage yet (429), a webhook that is not there yet (404, 500). Any
#: other refusal is a fault of a manifest.
_NOT_YET = (404, 429, 500, 503)
_REGISTRATION = "admissionregistration.k8s.io"


@dataclass(frozen=True, slots=True)
class Hook:
    """One webhook as its project registers it: who answers it at which path, and for what it is called."""

    who: Who
    path: str
    resource: str
    operations: tuple[str, ...]
    mutates: bool = False
    #: Only objects with this label.
    label: str = ""


_JOB_SET, _POD, _PYTORCH_JOB = "jobset.x-k8s.io/v1alpha2/jobsets", "/v1/pods", "kubeflow.org/v1/pytorchjobs"
_JOB_SETS_POD = "jobset.sigs.k8s.io/jobset-name"
HOOKS = (
    Hook(Who.JOBSET, "/mutate-jobset-x-k8s-io-v1alpha2-jobset", _JOB_SET, ("CREATE",), mutates=True),
    Hook(Who.JOBSET, "/mutate--v1-pod", _POD, ("CREATE",), mutates=True, label=_JOB_SETS_POD),
    Hook(Who.JOBSET, "/validate-jobset-x-k8s-io-v1alpha2-jobset", _JOB_SET, ("CREATE", "UPDATE")),
    Hook(Who.JOBSET, "/validate--v1-pod", _POD, ("CREATE",), label=_JOB_SETS_POD),
    Hook(Who.TRAINING_OPERATOR, "/validate-kubeflow-org-v1-pytorchjob", _PYTORCH_JOB, ("CREATE", "UPDATE")),
)


class WorkloadControllers:
    """Both, as a context manager on a control plane that runs. The servers can be stopped and frozen one by one.

    `ControlPlane.clean` removes the jobs and makes the controllers work again; their kinds stay until `close`.
    Kubernetes' garbage collector looks for new kinds every half minute: until then, the pods of a deleted root stay.
    """

    name = "the controllers of training jobs"

    def __init__(self, plane: ControlPlane, programs: Controllers) -> None:
        self._plane = plane
        self._definitions = [json.loads(path.read_text(encoding="utf-8")) for path in programs.definitions]
        self._folder = plane.folder / "webhooks"
        self._ports = {who: free_port() for who in (Who.JOBSET, Who.TRAINING_OPERATOR)}
        config = self._folder / "jobset.json"
        self.jobset = plane.server(
            "jobset",
            [str(programs.jobset), f"--kubeconfig={plane.kubeconfig_of(Who.JOBSET)}", f"--config={config}", *_FAST],
        )
        self.training_operator = plane.server(
            "training-operator",
            [
                str(programs.training_operator), f"--kubeconfig={plane.kubeconfig_of(Who.TRAINING_OPERATOR)}",
                f"--webhook-port={self._ports[Who.TRAINING_OPERATOR]}", f"--webhook-certificates={self._folder}",
                *_FAST,
            ],
        )  # fmt: skip
        #: Seconds from the first definition to controllers that take jobs.
        self.started_in_s = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def servers(self) -> tuple[Server, ...]:
        """Both controllers."""
        return (self.jobset, self.training_operator)

    @property
    def kept(self) -> set[Identity]:
        """Their kinds, served groups and webhooks; see `Guest`."""
        made = [_identity(one) for one in (*self._definitions, *self._configurations())]
        groups = {
            ("apiregistration.k8s.io", "apiservices", "", f"{version['name']}.{one['spec']['group']}")
            for one in self._definitions
            for version in one["spec"]["versions"]
        }
        return groups.union(made)

    def start(self) -> None:
        """Install the kinds, start the controllers, and wait until they take jobs.

        Raises:
            TestbedError: one ended or did not get ready.
        """
        began = time.monotonic()
        admin = self._plane.admin
        self._write_files()
        try:
            for definition in self._definitions:
                admin.create(definition)
            # A controller whose kind isn't served at its start looks again only after ten seconds.
            until("the kinds of training jobs", self._are_established)
            for server in self.servers:
                server.start()
            for configuration in self._configurations():
                admin.create(configuration)
            self._plane.admit(self)
        except BaseException:
            self.close()
            raise
        self.started_in_s = time.monotonic() - began

    def close(self) -> None:
        """Kill the controllers and remove their webhooks and kinds, with all jobs of these kinds."""
        self._plane.dismiss(self)
        if not self._plane.api_server.running:
            return
        for made in (*self._configurations(), *self._definitions):
            kind, name = made["kind"], made["metadata"]["name"]
            if self._plane.admin.find(kind, name) is not None:
                self._plane.admin.delete(kind, name)
        until("no kinds of training jobs", self._are_gone, within_s=60)

    def is_ready(self) -> bool:
        """Whether a job of each kind would be taken, and found again; see `Guest`."""
        try:
            for make in (job_set, pytorch_job, mpi_job):
                asked = self._plane.admin.create(make("testbed-asks", "default"), dry_run=True)
                self._plane.admin.list(asked["kind"], "default")
        except LookupError:  # a kind is established a moment before it is listed among all kinds
            return False
        except ApiError as refused:
            if refused.code in _NOT_YET:
                self._plane.admin.kinds()  # what it knew of a kind of that name may be another group's or version's
                return False
            raise
        return True

    def _are_established(self) -> bool:
        found = [self._plane.admin.get(one["kind"], one["metadata"]["name"]) for one in self._definitions]
        conditions = [condition for one in found for condition in one["status"]["conditions"] or ()]
        return sum(c["type"] == "Established" and c["status"] == "True" for c in conditions) == len(found)

    def _are_gone(self) -> bool:
        served = {kind.name for kind in self._plane.admin.kinds()}
        return served.isdisjoint(one["spec"]["names"]["kind"] for one in self._definitions)

    def _write_files(self) -> None:
        self._folder.mkdir(exist_ok=True)
        made = [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=testbed",
            "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", str(self._folder / "tls.key"), "-out", str(self._folder / "tls.crt"),
        ]  # fmt: skip
        subprocess.run(made, check=True, capture_output=True)
        config: dict[str, Any] = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"host": "127.0.0.1", "port": self._ports[Who.JOBSET], "certDir": str(self._folder)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": "0"},
        }
        (self._folder / "jobset.json").write_text(json.dumps(config, indent=1), encoding="utf-8")

    def _configurations(self) -> list[Object]:
        """The registrations of all webhooks: one of those that change objects, one of those that judge them."""
        return [
            {
                "apiVersion": f"{_REGISTRATION}/v1",
                "kind": f"{kind}WebhookConfiguration",
                "metadata": {"name": "testbed-training"},
                "webhooks": [self._webhook(hook) for hook in HOOKS if hook.mutates is mutates],
            }
            for kind, mutates in (("Mutating", True), ("Validating", False))
        ]

    def _webhook(self, hook: Hook) -> Object:
        group, version, plural = hook.resource.rsplit("/", 2)
        found = {
            "name": f"{hook.path.strip('/').replace('--', '-')}.testbed.gpuwarden.io",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {
                "url": f"https://127.0.0.1:{self._ports[hook.who]}{hook.path}",
                "caBundle": base64.b64encode((self._folder / "tls.crt").read_bytes()).decode(),
            },
            "rules": [
                {
                    "apiGroups": [group],
                    "apiVersions": [version],
                    "resources": [plural],
                    "operations": list(hook.operations),
                }
            ],
        }
        if hook.label:
            found["objectSelector"] = {"matchExpressions": [{"key": hook.label, "operator": "Exists"}]}
        return found


def _identity(made: Object) -> Identity:
    return (made["apiVersion"].partition("/")[0], f"{made['kind'].lower()}s", "", made["metadata"]["name"])

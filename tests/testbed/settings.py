"""How the control plane's servers are set up: who they are, their files and their command lines.

`ControlPlane` makes one `Setup` and starts what `commands` returns. All listen on loopback only.
"""

import json
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.testbed.build import Binaries
from tests.testbed.server import free_port

HERE = Path(__file__).parent
ISSUER = "https://kubernetes.default.svc.cluster.local"
#: Without these, 20 requests a second are all that a controller makes, and a bench would measure that.
_FAST = ("--kube-api-qps=1000", "--kube-api-burst=2000")


class Who(StrEnum):
    """Each component is its own user, as on a real cluster: the audit log tells them apart and RBAC holds for them."""

    ADMIN = "testbed:admin"
    KWOK = "testbed:kwok"
    CONTROLLERS = "system:kube-controller-manager"
    SCHEDULER = "system:kube-scheduler"
    JOBSET = "testbed:jobset"
    TRAINING_OPERATOR = "testbed:training-operator"


MASTERS = (Who.ADMIN, Who.KWOK, Who.JOBSET, Who.TRAINING_OPERATOR)


@dataclass(frozen=True, slots=True)
class Setup:
    """One control plane's folders, ports and tokens.

    `folder` takes configuration and logs, `data` etcd's files. A node's Lease lasts `node_lease_s` and is renewed every
    quarter of that; a node whose Lease is a quarter over is NotReady.
    """

    folder: Path
    data: Path
    node_lease_s: int
    etcd_port: int = field(default_factory=free_port)
    etcd_peer_port: int = field(default_factory=free_port)
    api_port: int = field(default_factory=free_port)
    tokens: dict[Who, str] = field(default_factory=lambda: {who: secrets.token_urlsafe(24) for who in Who})

    @property
    def url(self) -> str:
        """The API server's address."""
        return f"https://127.0.0.1:{self.api_port}"

    @property
    def authority(self) -> Path:
        """Certificate and authority that the API server makes itself at its first start."""
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def audit_log(self) -> Path:
        """What audit-policy.yaml says, one JSON object a line."""
        return self.folder / "audit.jsonl"

    def kubeconfig(self, name: str, token: str) -> Path:
        """Write a kubeconfig for whoever has this token. JSON is YAML, too."""
        path = self.folder / f"{name}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": "testbed", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": "testbed", "user": name}}],
        }
        path.write_text(json.dumps(config, indent=1), encoding="utf-8")
        path.chmod(0o600)
        return path

    def write_files(self) -> None:
        """Write what the servers read at their start."""
        lines = [
            f"{token},{who},{who},{'system:masters' if who in MASTERS else ''}" for who, token in self.tokens.items()
        ]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (self.folder / "tokens.csv").chmod(0o600)
        made = ["openssl", "genpkey", "-algorithm", "RSA", "-out", str(self.folder / "service-accounts.key")]
        subprocess.run(made, check=True, capture_output=True)

    def commands(self, programs: Binaries) -> dict[str, Sequence[str]]:
        """The command line of each server, in the order in which they can start."""
        key = self.folder / "service-accounts.key"
        etcd_url, peer_url = (f"http://127.0.0.1:{port}" for port in (self.etcd_port, self.etcd_peer_port))
        configs = {who: self.kubeconfig(who.rpartition(":")[2], token) for who, token in self.tokens.items()}
        return {
            "etcd": [
                str(programs.etcd), f"--data-dir={self.data}", "--unsafe-no-fsync", "--log-level=warn",
                f"--listen-client-urls={etcd_url}", f"--advertise-client-urls={etcd_url}",
                f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}",
                f"--initial-cluster=default={peer_url}",
            ],
            "api_server": [
                str(programs.kube_apiserver), f"--etcd-servers={etcd_url}",
                "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self.api_port}",
                f"--cert-dir={self.authority.parent}", f"--token-auth-file={self.folder / 'tokens.csv'}",
                "--authorization-mode=Node,RBAC", f"--service-account-issuer={ISSUER}",
                f"--service-account-signing-key-file={key}", f"--service-account-key-file={key}",
                "--service-cluster-ip-range=10.32.0.0/16",
                "--endpoint-reconciler-type=none",  # loopback cannot be an endpoint of the service `kubernetes`
                "--allow-privileged=true", "--profiling=false", "--delete-collection-workers=8",
                f"--audit-policy-file={HERE / 'audit-policy.yaml'}", f"--audit-log-path={self.audit_log}",
                "--audit-log-maxsize=10000",  # MB; else it rotates at 100, and readers would lose their place
            ],
            "controllers": [
                str(programs.kube_controller_manager), f"--kubeconfig={configs[Who.CONTROLLERS]}",
                "--leader-elect=false", "--use-service-account-credentials=true", "--secure-port=0", *_FAST,
                "--controllers=*,-root-ca-certificate-publisher-controller",  # no pod here ever reads its certificate
                f"--node-monitor-grace-period={self.node_lease_s * 5 // 4}s", "--node-monitor-period=1s",
            ],
            "scheduler": [
                str(programs.kube_scheduler), f"--kubeconfig={configs[Who.SCHEDULER]}",
                "--leader-elect=false", "--secure-port=0", *_FAST,
            ],
            "kwok": [
                str(programs.kwok), f"--kubeconfig={configs[Who.KWOK]}", f"--config={HERE / 'kubelet-stages.yaml'}",
                "--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
                f"--node-lease-duration-seconds={self.node_lease_s}", "--node-ip=127.0.0.1",
            ],
        }  # fmt: skip

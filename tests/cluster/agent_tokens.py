"""Tokens as agents have them: of a service account, bound to a pod that a DaemonSet would run on a node."""

import base64
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

from tests.testbed.api import Object
from tests.testbed.control_plane import ControlPlane
from tests.testbed.settings import ISSUER

NAMESPACE = "gpuwarden"
AGENT = "gpuwarden-agent"
RBAC = Path(__file__).parents[2] / "deploy" / "rbac.yaml"


def install(plane: ControlPlane) -> str:
    """Apply the roles that ship; returns a token of the controller's own service account."""
    plane.namespace(NAMESPACE)
    for document in yaml.safe_load_all(RBAC.read_text(encoding="utf-8")):
        plane.admin.apply(document)
    return plane.token(NAMESPACE, "gpuwarden")


def pod_on(plane: ControlPlane, node: str, name: str = "", account: str = AGENT) -> Object:
    """A pod of this service account on a node, as it is stored."""
    name = name or f"{account}-{node}"
    spec = {
        "serviceAccountName": account, "nodeName": node, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "agent", "image": "example/agent:1"}],
    }  # fmt: skip
    metadata = {"name": name, "namespace": NAMESPACE}
    return plane.admin.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def token(plane: ControlPlane, pod: Object | None, audience: str = "gpuwarden", account: str = AGENT) -> str:
    """A token that is bound to this pod, or to nothing."""
    spec: Object = {"audiences": [audience], "expirationSeconds": 3600}
    if pod is not None:
        meta = pod["metadata"]
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = plane.admin.kind("ServiceAccount").path(NAMESPACE, account, "token")
    return str(plane.admin.request("POST", path, asked)["status"]["token"])


def claims_in(text: str) -> dict[str, Any]:
    """What a token says of itself."""
    part = text.split(".")[1]
    return dict(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))))


def signed(plane: ControlPlane, like: str, lives_s: float) -> str:
    """A token with the claims of another one, issued an hour ago, that ends in so many seconds.

    The API server issues none with less than ten minutes to live, so this is signed with its own key.
    """
    now = int(time.time())
    claims = claims_in(like) | {"iat": now - 3600, "nbf": now - 3600, "exp": now + int(lives_s), "iss": ISSUER}
    parts = [{"alg": "RS256", "typ": "JWT"}, claims]
    body = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    key = plane.folder / "service-accounts.key"
    made = subprocess.run(
        ["openssl", "dgst", "-sha256", "-sign", str(key)], input=body, check=True, capture_output=True
    )  # fmt: skip
    return f"{body.decode()}.{base64.urlsafe_b64encode(made.stdout).rstrip(b'=').decode()}"

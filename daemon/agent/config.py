"""The section `agent` of `gpuwarden.yaml`: which log is read, where the spool is, and where events go."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from daemon.agent.fabric_manager import PATH as FABRIC_LOG
from daemon.web_address import http_address
from rules.base import Seconds, Strict

_MIB = 1 << 20


class AgentListen(Strict):
    """Where the agent serves /metrics and /healthz. Loopback unless told otherwise."""

    host: str = "127.0.0.1"
    port: int = Field(default=9845, ge=0, le=65535)


class AgentConfig(Strict):
    """What `gpuwarden agent` does on its node."""

    #: the node's name in the cluster; without it NODE_NAME of the environment, then the host's name
    node: str = ""
    source: Literal["kmsg", "journal", "file"] = "kmsg"
    #: the log: by default /dev/kmsg; of the journal the folder with its files; a file has to be named
    path: Path | None = None
    #: a folder of its own that survives the agent's restart
    spool: Path = Path("/var/lib/gpuwarden/agent")
    spool_bytes: int = Field(default=32 * _MIB, ge=_MIB)
    #: on its very first start, so much of the past is taken in; later it goes on where it was
    lookback: Seconds = 0.0
    #: the controller's address, such as https://gpuwarden.gpuwarden.svc:9844
    controller: str = ""
    ca_file: Path | None = None
    #: read anew for each request, since a projected token is renewed
    token_file: Path | None = Path("/var/run/secrets/gpuwarden/token")
    timeout: Seconds = Field(default=15.0, gt=0, le=300)
    #: the longest wait between two tries to reach the controller
    backoff_max: Seconds = Field(default=60.0, gt=0)
    listen: AgentListen = AgentListen()
    #: between two looks at what the node's driver says of itself
    look_every: Seconds = Field(default=60.0, ge=5)
    #: how many GPUs the node should have; 0: as many as its PCI bus has shown since the agent's start
    expected_gpus: int = Field(default=0, ge=0, le=64)
    #: Fabric Manager's own log; where there is none, nothing is said of it
    fabric_log: Path = FABRIC_LOG

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.source == "file" and self.path is None:
            raise ValueError("source file needs the path of the log")
        if self.controller:
            parsed = http_address(self.controller, f"controller to be https://HOST:PORT, got {self.controller!r}")
            if parsed.username:
                raise ValueError("controller has a user in it: an agent shows its token and nothing else")
        return self

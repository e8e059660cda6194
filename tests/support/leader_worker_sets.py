"""LeaderWorkerSet on a control plane of the tests: its real controller and webhooks, and its CRDs, from its Go module."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from testenv.api import ApiError
from testenv.binaries import TOOLS, cache_root, ensure_binaries
from testenv.controlplane import ControlPlane
from testenv.processes import ProcessGroup, accepts_connections, free_ports
from testenv.toolchain import find_go

MODULE = "sigs.k8s.io/lws"
NAME = "leader-worker-sets"
OF_PODS = "pod.kb.io"
"""End of the names of the webhooks for Pods."""
_SELECTED = {"matchExpressions": [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]}
_UP_WITHIN = 60.0


class LeaderWorkerSets:
    """The controller as a process of its own. `install` and `remove` its CRDs and webhooks, `start` and `stop` the process."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self._plane, self._folder = control_plane, folder
        self._processes = ProcessGroup(folder)
        (self.port,) = free_ports(1)
        self._address = str(urlsplit(control_plane.server).hostname)
        """Of the webhooks: where the API server listens, whose certificate they have."""
        self._sources = _sources()

    def install(self) -> None:
        """Register the webhooks, which refuse everything while the process does not run; then install the CRDs.

        They include that of DisaggregatedSet, whose controller always runs.
        """
        for manifest in yaml.safe_load_all((self._sources / "config/webhook/manifests.yaml").read_text("utf-8")):
            for webhook in manifest["webhooks"]:
                path = webhook["clientConfig"].pop("service")["path"]
                webhook["clientConfig"] = {"url": f"https://{self._address}:{self.port}{path}", "caBundle": self._authority()}
                # as its installation selects the Pods of a LeaderWorkerSet
                webhook |= {"objectSelector": _SELECTED} if webhook["name"].endswith(OF_PODS) else {}
            manifest["metadata"]["name"] = NAME
            self._plane.client().apply(manifest)
        for definition in self.definitions():
            self._plane.client().apply(definition)
        self._await(lambda: [self._plane.client().request("GET", path) for path in self._collections()])

    def remove(self) -> None:
        """Stop the process and remove everything."""
        self.stop()
        self.remove_webhooks()
        self._delete(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{it['metadata']['name']}" for it in self.definitions())

    def remove_webhooks(self) -> None:
        """Remove the webhooks only."""
        kinds = ("mutating", "validating")
        self._delete(f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{NAME}" for kind in kinds)

    def _delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(ApiError):
                self._plane.client().request("DELETE", path)

    def start(self) -> None:
        """Start the process; return when its webhooks answer."""
        self._folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._plane.authority, self._folder / "tls.crt")
        shutil.copy(self._plane.authority_key, self._folder / "tls.key")
        configuration = {
            "apiVersion": "config.lws.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "internalCertManagement": {"enable": False},
            "leaderElection": {"leaderElect": False},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": "0"},
            "webhook": {"host": self._address, "port": self.port, "certDir": str(self._folder)},
        }
        (self._folder / "configuration.yaml").write_text(json.dumps(configuration))
        command = [str(ensure_binaries(["lws"])["lws"]), f"--config={self._folder / 'configuration.yaml'}"]
        self._processes.start("lws", command, environment={"KUBECONFIG": str(self._plane.kubeconfig)})
        self._await(lambda: accepts_connections(self.port, self._address))

    def stop(self) -> None:
        """Stop the process. The webhooks stay registered."""
        self._processes.stop_all()

    def kill(self) -> None:
        """Kill the process: it can finish nothing."""
        self._processes.stop("lws", kill=True)

    def definitions(self) -> Iterator[dict[str, Any]]:
        """The CRDs."""
        for path in sorted((self._sources / "config/crd/bases").glob("*.yaml")):
            yield yaml.load(path.read_text("utf-8"), Loader=yaml.CSafeLoader)

    def _collections(self) -> Iterator[str]:
        for definition in self.definitions():
            spec = definition["spec"]
            yield f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"

    def _authority(self) -> str:
        return base64.b64encode(self._plane.authority.read_bytes()).decode()

    def _await(self, ready: Any) -> None:
        deadline = time.monotonic() + _UP_WITHIN
        while True:
            with suppress(ApiError):
                if ready():
                    return
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def log(self) -> str:
        """What the process has said."""
        path = self._folder / "lws.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""


def _sources() -> Path:
    """Return the folder of the module, which is downloaded if only the binary is there."""
    command = [str(find_go(cache_root() / "go")), "mod", "download", "-json", MODULE]
    environment = os.environ | {"GOFLAGS": "-mod=mod", "GOWORK": "off"}
    done = subprocess.run(command, cwd=TOOLS / "lws", env=environment, capture_output=True, text=True, check=True)
    return Path(json.loads(done.stdout)["Dir"])

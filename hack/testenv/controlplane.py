"""A Kubernetes control plane on this machine: etcd, API server, controller manager, scheduler.

Everything it needs is in one data folder, a temporary one unless told otherwise. The API server makes its own
certificate on its first start; that certificate is the authority in the kubeconfig, and its key also signs service
account tokens. Clients verify it: nothing here turns verification off.
"""

import base64
import json
import secrets
import shutil
import signal
import tempfile
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import yaml

from testenv import components
from testenv.api import ApiClient, ApiError
from testenv.binaries import CONTROL_PLANE, ensure_binaries
from testenv.components import Setup
from testenv.processes import ProcessGroup, accepts_connections, free_ports

AuditLevel = Literal["Metadata", "RequestResponse"]

# A cold machine needs longer than the 3 seconds of a warm one.
_READY_WITHIN = 60.0
_START_ATTEMPTS = 3


class ControlPlaneError(Exception):
    """The control plane did not do what was asked; the message says why."""


class Startable(ABC):
    """Starts on entry, stops on exit."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start everything."""

    @abstractmethod
    def stop(self) -> None:
        """Stop everything that was started here."""


class ControlPlane(Startable):
    """etcd, kube-apiserver, kube-controller-manager and kube-scheduler, as child processes.

    Args:
        folder: where data, logs and certificates go; a temporary folder, removed at the end, if not given.
        keep: let it run on when this process ends.
        audit_level: how much of every request `audit.log` in the folder records; nothing if not given.
        address: of this machine, where the API server listens.
    """

    def __init__(
        self, folder: Path | None = None, *, keep: bool = False, audit_level: AuditLevel | None = None, address: str = "127.0.0.1"
    ) -> None:
        self._temporary = folder is None
        self.folder = folder if folder is not None else Path(tempfile.mkdtemp(prefix="vllm-operator-testenv-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.processes = ProcessGroup(self.folder, keep=keep, disposable=self._temporary)
        self.token = ""
        self._audit_level = audit_level
        self._setup = Setup(folder=self.folder, binaries={}, etcd_port=0, port=0, audited=audit_level is not None, address=address)

    @property
    def server(self) -> str:
        return f"https://{self._setup.address}:{self._setup.port}"

    @property
    def kubeconfig(self) -> Path:
        return self._setup.kubeconfig

    @property
    def authority(self) -> Path:
        return self._setup.authority

    @property
    def authority_key(self) -> Path:
        """The key of that certificate; good for any other server on 127.0.0.1 too."""
        return self._setup.authority_key

    @property
    def audit_log(self) -> Path:
        """One JSON audit event per line, if an audit level was asked for."""
        return self._setup.audit_log

    def start(self) -> None:
        """Starts everything and returns when the API server is ready and the other two are connected. Raises ControlPlaneError."""
        if leftovers := self.processes.leftovers():
            running = ", ".join(f"{name} (pid {identity.pid})" for name, identity in leftovers.items())
            stop = f"python hack/testenv/__main__.py --folder {self.folder} down"
            raise ControlPlaneError(f"A control plane already runs from {self.folder}: {running}. `{stop}` stops it.")
        self._setup = replace(self._setup, binaries=ensure_binaries(CONTROL_PLANE))
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._start_all()
                return
            except ControlPlaneError as error:
                self.processes.stop_all()
                # Somebody took a port between our look at it and the server's start.
                if "address already in use" not in str(error) or attempt == _START_ATTEMPTS:
                    raise
            except BaseException:
                self.processes.stop_all()
                raise

    def stop(self) -> None:
        self.processes.stop_all()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def write_kubeconfig(self, path: Path, *, token: str, user: str = "admin") -> None:
        cluster = {"server": self.server, "certificate-authority": str(self.authority)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testenv", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "testenv", "context": {"cluster": "testenv", "user": user}}],
            "current-context": "testenv",
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))

    def stop_component(self, name: str, *, kill: bool = False) -> None:
        self.processes.stop(name, kill=kill)

    def start_component(self, name: str) -> None:
        """Starts a stopped component again, on the same port and data, and waits until it is ready."""
        command, ready = self._component(name)
        self.processes.start(name, command)
        self.await_ready(name, ready)

    def pause_component(self, name: str) -> None:
        """Freezes one component: it keeps its connections and answers nothing."""
        self.processes.send_signal(name, signal.SIGSTOP)

    def resume_component(self, name: str) -> None:
        """Lets a frozen component go on."""
        self.processes.send_signal(name, signal.SIGCONT)

    def compact_history(self) -> int:
        """Makes etcd forget all but the newest revision, and returns that revision.

        Whoever asks etcd for changes since an older one is told that it is gone. The API server answers watches from its
        own memory, and so tells its clients `410 Gone` once it has been started again.
        """
        newest = self._ask_etcd("kv/range", {"key": base64.b64encode(b"/").decode()})["header"]["revision"]
        self._ask_etcd("kv/compaction", {"revision": newest})
        return int(newest)

    def _ask_etcd(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._setup.etcd_port}/v3/{path}"
        request = urllib.request.Request(url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
        # without proxies, as in `testenv.api`
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10.0) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def client(self) -> ApiClient:
        return ApiClient(self.server, self.authority, self.token)

    def is_ready(self) -> bool:
        return self._answers("/readyz")

    def _start_all(self) -> None:
        for name in ("etcd", "pki", "logs"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self.audit_log.unlink(missing_ok=True)
        (self.folder / "pki").mkdir(mode=0o700)
        etcd_port, port = free_ports(2)
        self._setup = replace(self._setup, etcd_port=etcd_port, port=port)
        self.token = secrets.token_hex(16)
        self._write_private("pki/tokens.csv", f'{self.token},admin,admin,"system:masters"\n')
        if self._audit_level:
            self._write_private("audit-policy.yaml", yaml.safe_dump(_audit_policy(self._audit_level)))
        for name in ("etcd", "kube-apiserver"):
            self.start_component(name)
        self.write_kubeconfig(self.kubeconfig, token=self.token)
        others = ("kube-controller-manager", "kube-scheduler")
        for name in others:
            self.processes.start(name, self._component(name)[0])
        for name in others:
            self.await_ready(name, self._component(name)[1])

    def _component(self, name: str) -> tuple[Sequence[str], Callable[[], bool]]:
        setup = self._setup
        # It is at work when it has made the account that every Pod of the namespace needs.
        has_account = partial(self._answers, "/api/v1/namespaces/default/serviceaccounts/default")
        known: dict[str, tuple[Sequence[str], Callable[[], bool]]] = {
            "etcd": (components.etcd(setup), partial(accepts_connections, setup.etcd_port)),
            "kube-apiserver": (components.apiserver(setup), self.is_ready),
            "kube-controller-manager": (components.controller_manager(setup), has_account),
            # it says nowhere that it is; Pods wait for it
            "kube-scheduler": (components.scheduler(setup), lambda: True),
        }
        try:
            return known[name]
        except KeyError:
            raise ControlPlaneError(f"There is no component {name!r}; there are {', '.join(known)}.") from None

    def _write_private(self, name: str, content: str) -> None:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(content)

    def await_ready(self, name: str, ready: Callable[[], bool]) -> None:
        """Waits until `ready` holds of a process started here. Raises ControlPlaneError."""
        deadline = time.monotonic() + _READY_WITHIN
        while not ready():
            if not self.processes.is_alive(name):
                raise ControlPlaneError(f"{name} ended at once. Its last words:\n{self.processes.log_tail(name)}")
            if time.monotonic() > deadline:
                raise ControlPlaneError(
                    f"{name} is not ready after {_READY_WITHIN:.0f} s. Its last words:\n{self.processes.log_tail(name)}"
                )
            time.sleep(0.05)

    def _answers(self, path: str) -> bool:
        try:
            self.client().request("GET", path)
        except (OSError, ApiError):
            return False
        return True


def _audit_policy(level: AuditLevel) -> dict[str, object]:
    return {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": level}]}


class BaseEnvironment(Startable):
    """A control plane with nodes."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane

    @property
    def kubeconfig(self) -> Path:
        return self.control_plane.kubeconfig

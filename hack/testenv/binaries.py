"""Finds the control plane's binaries, downloads them, or builds them.

Each binary comes from a Go module of its own kind below `tools/`, whose go.mod pins the version as a `tool` and whose
go.sum pins every byte that goes in. The README says where a binary is looked for, and in which order.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from testenv.releases import ReleaseError, by_release, download, known_releases
from testenv.toolchain import find_go

TOOLS = Path(__file__).parent / "tools"
KUBERNETES = "kubernetes"
_UNFINISHED = ".building-"


class BuildError(Exception):
    """A binary could not be built; the message carries the compiler's last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """One program: the module that pins it, the package that is its main, and the build tags and linker flags it needs."""

    module: str
    package: str
    ldflags: str = ""
    tags: str = ""
    any_version_will_do: bool = False


def _kubernetes(command: str, *, any_version_will_do: bool = False) -> Binary:
    return Binary(module=KUBERNETES, package=f"k8s.io/kubernetes/cmd/{command}", any_version_will_do=any_version_will_do)


BINARIES: dict[str, Binary] = {
    "etcd": Binary(module="etcd", package="go.etcd.io/etcd/server/v3"),
    "kube-apiserver": _kubernetes("kube-apiserver"),
    "kube-controller-manager": _kubernetes("kube-controller-manager"),
    "kube-scheduler": _kubernetes("kube-scheduler"),
    "kwok": Binary(module="kwok", package="sigs.k8s.io/kwok/cmd/kwok"),
    "kubectl": _kubernetes("kubectl", any_version_will_do=True),
    "helm": Binary(module="helm", package="helm.sh/helm/v4/cmd/helm", any_version_will_do=True),
    # without the clients of two dozen clouds, which only discover what to scrape: a third less to compile
    "promtool": Binary(
        module="prometheus", package="github.com/prometheus/prometheus/cmd/promtool", tags="remove_all_sd", any_version_will_do=True
    ),
    "prometheus": Binary(module="prometheus", package="github.com/prometheus/prometheus/cmd/prometheus", tags="remove_all_sd"),
    "lws": Binary(module="lws", package="sigs.k8s.io/lws/cmd"),
    "registry": Binary(module="registry", package="github.com/distribution/distribution/v3/cmd/registry"),
    **{name: _kubernetes(name) for name in ("kubelet", "kube-proxy")},
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
TEST_ENVIRONMENT = (*CONTROL_PLANE, "kwok", "kubectl", "helm")
OF_TESTS = (*TEST_ENVIRONMENT, "promtool", "prometheus", "registry", "lws")
"""What tests need besides: for alerts, dashboards, the caches in a registry, and LeaderWorkerSets."""


def ensure_binaries(names: Sequence[str]) -> dict[str, Path]:
    """Returns where each of `names` is, building what is missing. Raises BuildError or ToolchainError."""
    found = {name: find_binary(name) for name in names}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        with _only_one_builder():
            # another run may have built them while we waited for its lock
            missing = [name for name in missing if find_binary(name) is None]
            # releases are of the usual version
            _download([name for name in missing if _binary(name).module == BINARIES[name].module])
            missing = [name for name in missing if find_binary(name) is None]
            go = find_go(cache_root() / "go") if missing else Path()
            for position, name in enumerate(missing, start=1):
                _build(go, name, label=f"building {name} ({position} of {len(missing)})")
    return {name: path or _cached(name) for name, path in found.items()}


def find_binary(name: str) -> Path | None:
    """Returns where a ready-made `name` is, or None if it would have to be built."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    candidates = [Path(assets) / name] if assets else []
    candidates.append(_cached(name))
    if BINARIES[name].any_version_will_do and (on_path := shutil.which(name)):
        candidates.append(Path(on_path))
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def cache_root() -> Path:
    """Returns the cache folder: outside the source tree, so that clones share it and `git clean` spares it."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vllm-operator" / "testenv"


def kubernetes_versions() -> dict[str, str]:
    """The versions of Kubernetes that tests can run on, oldest first, each with the module that pins it: `1.35.4` and `kubernetes`."""
    pins = {path.parent.name: re.findall(r"k8s\.io/kubernetes v([\d.]+)", path.read_text()) for path in TOOLS.glob(f"{KUBERNETES}*/go.mod")}
    return dict(sorted((found[0], module) for module, found in pins.items()))


def kubernetes_version(*, minor: str | None = None) -> str:
    """The version of the control plane, of `minor` or else of TESTENV_KUBERNETES; usually that of the module `kubernetes`."""
    minor = os.environ.get("TESTENV_KUBERNETES", "") if minor is None else minor
    known = kubernetes_versions()
    for version, module in known.items():
        if version.startswith(f"{minor}.") if minor else module == KUBERNETES:
            return version
    raise BuildError(f"TESTENV_KUBERNETES is {minor}; there are {', '.join(known)}.")


def kubernetes_minor() -> int:
    """The minor version of the control plane: 35 of 1.35.4."""
    return int(kubernetes_version().split(".")[1])


def _binary(name: str) -> Binary:
    binary = BINARIES[name]
    if binary.module != KUBERNETES:
        return binary
    version = kubernetes_version(minor=None if name in CONTROL_PLANE else "")
    numbers = version.split(".")
    # Without these the server says it is v0.0.0, and clients refuse or misbehave.
    values = {"gitVersion": f"v{version}", "gitMajor": numbers[0], "gitMinor": numbers[1], "gitTreeState": "clean"}
    ldflags = " ".join(f"-X k8s.io/component-base/version.{field}={value}" for field, value in values.items())
    return replace(binary, module=kubernetes_versions()[version], ldflags=ldflags)


def _cached(name: str) -> Path:
    binary = _binary(name)
    folder = TOOLS / binary.module
    contents = [
        binary.ldflags.encode(),
        *([binary.tags.encode()] if binary.tags else []),
        *((folder / part).read_bytes() for part in ("go.mod", "go.sum")),
    ]
    key = hashlib.sha256(b"\0".join(contents)).hexdigest()[:16]
    return cache_root() / f"{binary.module}-{platform.system()}-{platform.machine()}-{key}".lower() / name


def _download(names: Sequence[str]) -> None:
    for release, having in by_release(names, known_releases() if names else ()):
        print(f"downloading {', '.join(having)} {release.version}", file=sys.stderr, flush=True)
        try:
            download(release, {name: _cached(name) for name in having})
        except ReleaseError as error:
            print(f"not downloaded: {error}", file=sys.stderr, flush=True)


@contextmanager
def _only_one_builder() -> Iterator[None]:
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another run is building the control plane's binaries; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(go: Path, name: str, *, label: str) -> None:
    binary = _binary(name)
    target = _cached(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    # of a build that was killed; nobody else builds now
    for left in target.parent.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=_UNFINISHED) as scratch:
        unfinished = Path(scratch) / name
        flags = ["-trimpath", "-tags", binary.tags, "-ldflags", f"-s -w {binary.ldflags}"]
        command = [str(go), "build", *flags, "-o", str(unfinished), binary.package]
        print(f"{label}, which takes minutes", file=sys.stderr, flush=True)
        done = subprocess.run(
            command, cwd=TOOLS / binary.module, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise BuildError(f"{name} could not be built:\n" + "\n".join(done.stdout.strip().splitlines()[-15:]))
        unfinished.replace(target)

"""Measure the first minutes of a new user.

    python hack/bench/first_minute.py           # both; --only demo or --only install for one

demo: `make demo` in a new clone, without Go, kubectl and helm on PATH, with empty caches of pip and of the binaries. A server on this
machine has the release binaries: archives in the layout of the official ones, packed from the binaries of this machine and pinned by their
own checksums. Python packages come from the index that pip is configured for.

install: `kubectl apply` of install.yaml and then of `examples/minimal.yaml`, on a control plane with simulated nodes, until the first
VLLMDeployment is Ready. The operator's Pod is simulated: a process does its work, with the permissions of the file. No image is pulled
and no model is loaded.

The CPU time is that of all processes that were started. The other work of the machine is shown beside it.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))

import release
from bench.contenders import busy_seconds, cpu_seconds, descendants
from testenv import Environment
from testenv.binaries import CONTROL_PLANE, ensure_binaries
from testenv.releases import DATA, MIRROR, PLAIN_FILE, checksum_of

ROOT = Path(__file__).parent.parent.parent
NEEDED = (*CONTROL_PLANE, "kwok", "kubectl")
"""The binaries of the demo."""
HIDDEN = frozenset({"go", "gofmt", "helm", "promtool", *NEEDED})
"""Programs that a new user need not have."""
LIMIT = "300s"


def pack(folder: Path, machine: str = "amd64") -> dict[str, Any]:
    """Write archives like those of releases.yaml into a folder, as a mirror has them, and return releases.yaml with their checksums."""
    document: dict[str, Any] = yaml.safe_load(DATA.read_text("utf-8"))
    binaries = ensure_binaries(NEEDED)
    for entry in document["releases"]:
        target = folder / entry["url"].partition("://")[2].replace("{machine}", machine)
        target.parent.mkdir(parents=True, exist_ok=True)
        members = {name: path.replace("{machine}", machine) for name, path in entry["members"].items() if name in binaries}
        entry["members"] = members
        if PLAIN_FILE in members.values():
            shutil.copyfile(binaries[next(iter(members))], target)
        else:
            with tarfile.open(target, "w:gz", compresslevel=1) as archive:
                # the official archive of Kubernetes has the image of each server beside it
                images = {f"{path}.tar": name for name, path in members.items() if name.startswith("kube-")}
                for path, name in {**images, **{path: name for name, path in members.items()}}.items():
                    with binaries[name].open("rb") as content:
                        archive.addfile(archive.gettarinfo(arcname=path, fileobj=content), content)
                        archive.inodes.clear()  # type: ignore[attr-defined]  # else the second copy becomes a link to the first
        entry["checksums"] = {machine: checksum_of(target, "sha256")}
    return document


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder as a mirror, and return its URL."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def new_machine(folder: Path, mirror: str) -> dict[str, str]:
    """Return the environment of a user who has no Go and nothing in a cache; `folder` is empty."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for entry in (Path(each) for each in os.get_exec_path()):
        for program in entry.iterdir() if entry.is_dir() else ():
            link = programs / program.name
            if program.name not in HIDDEN and not link.is_symlink():
                link.symlink_to(program)
    caches = {"XDG_CACHE_HOME": str(folder / "cache"), "PIP_CACHE_DIR": str(folder / "pip")}
    kept = {name: value for name, value in os.environ.items() if name not in ("KUBEBUILDER_ASSETS", "VIRTUAL_ENV", "PYTHONPATH")}
    return {**kept, **caches, "PATH": str(programs), MIRROR: mirror, "TERM": "dumb", "COLUMNS": "200"}


class Clock:
    """Elapsed time, own CPU time, and the CPUs that others used meanwhile."""

    def __init__(self) -> None:
        self._began, self._own, self._busy = time.monotonic(), _own_cpu(), busy_seconds()

    @property
    def elapsed(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self._began

    def row(self, what: str) -> None:
        """Print what took until now; the processes have ended."""
        elapsed, own = self.elapsed, _own_cpu() - self._own
        others = max(0.0, busy_seconds() - self._busy - own) / elapsed
        print(f"{what:<58} {elapsed:6.1f} s   CPU time {own:6.1f} s   others used {others:.1f} CPUs", flush=True)


def _own_cpu() -> float:
    return cpu_seconds(descendants(os.getpid()))


def _step(what: str, clock: Clock) -> None:
    print(f"  {clock.elapsed:6.1f} s  {what}", flush=True)


def measure_demo(scratch: Path) -> int:
    """Measure `make demo`; return its exit status."""
    document = pack(scratch / "mirror")
    checkout = scratch / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
    (checkout / DATA.relative_to(ROOT)).write_text(yaml.safe_dump(document), "utf-8")
    size = sum(file.stat().st_size for file in (scratch / "mirror").rglob("*") if file.is_file())
    print(f"make demo, with {size >> 20} MiB of release binaries on a server of this machine")
    with served(scratch / "mirror") as mirror:
        environment = new_machine(scratch / "machine", mirror)
        clock = Clock()
        command = ["make", "demo", f"PYTHON={getattr(sys, '_base_executable', sys.executable)}"]
        with subprocess.Popen(
            command, cwd=checkout, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as process:
            try:
                _follow(process.stdout or (), clock)
            except BaseException:
                os.killpg(process.pid, signal.SIGTERM)
                raise
    clock.row("make demo, nothing cached, no Go")
    return process.returncode


def _follow(lines: Iterable[str], clock: Clock) -> None:
    """Print when a step begins, and all of it if it fails.

    Raises:
        SystemExit: Something is compiled.
    """
    steps = {
        "downloading": "the Python environment is there; the first download begins",
        "control plane": "the control plane is up",
        "the operator is running": "the operator runs",
        "all four situations": "the demo has ended as it should",
    }
    for text in lines:
        for word in [word for word in steps if word in text]:
            _step(steps.pop(word), clock)
        if text.startswith(("building", "No Go toolchain")):
            raise SystemExit(f"It compiles what it should download: {text}")
        if text.startswith(("not downloaded", "The demo failed", "✘", "make:")):
            _step(text.rstrip(), clock)


def measure_install(scratch: Path) -> int:
    """Measure from install.yaml to the first Ready; return 0."""
    manifest = scratch / "install.yaml"
    manifest.write_text(release.install_manifest(), "utf-8")
    kubectl = str(ensure_binaries(["kubectl"])["kubectl"])
    print("install.yaml to the first Ready, on simulated nodes")
    with Environment() as cluster:
        cluster.add_nodes("cpu", "h100-sxm")

        def run(*arguments: str) -> str:
            environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "KUBECACHEDIR": str(scratch / "kubectl")}
            return subprocess.run([kubectl, *arguments], env=environment, check=True, capture_output=True, text=True).stdout

        clock = Clock()
        run("apply", "--server-side", "-f", str(manifest))
        _step("install.yaml is applied", clock)
        run("rollout", "status", f"deployment/{release.NAME}", "--namespace", release.NAMESPACE, f"--timeout={LIMIT}")
        _step("the operator's Pod is Ready", clock)
        token = run("create", "token", release.NAME, "--namespace", release.NAMESPACE).strip()
        account = scratch / "kubeconfig"
        cluster.control_plane.write_kubeconfig(account, token=token, user=release.NAME)
        operator = subprocess.Popen([sys.executable, "-m", "vllm_operator", "run"], env=_settings(account), stderr=subprocess.DEVNULL)
        try:
            run("apply", "-f", str(ROOT / "examples" / "minimal.yaml"))
            for condition in ("Planned", "Ready"):
                run("wait", "vllm/qwen", f"--for=condition={condition}", f"--timeout={LIMIT}")
                _step(f"{condition} is True", clock)
        finally:
            operator.terminate()
            operator.wait()
        clock.row("install.yaml to the first Ready (without the control plane)")
        print(run("get", "vllm"))
    return 0


def _settings(kubeconfig: Path) -> Mapping[str, str]:
    settings = {"HTTP_HOST": "127.0.0.1", "HTTP_PORT": "0", "HUB_ENDPOINT": "", "LEASE": f"{release.NAMESPACE}/{release.NAME}"}
    return {**os.environ, "KUBECONFIG": str(kubeconfig), **{f"VLLM_OPERATOR_{name}": value for name, value in settings.items()}}


MEASUREMENTS = {"demo": measure_demo, "install": measure_install}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurements; 0 if all ended as they should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MEASUREMENTS, help="measure only this")
    only = parser.parse_args(arguments).only
    statuses = []
    for name, measure in MEASUREMENTS.items():
        if only in (None, name):
            with tempfile.TemporaryDirectory(prefix="first-minute-") as scratch:
                statuses.append(measure(Path(scratch)))
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())

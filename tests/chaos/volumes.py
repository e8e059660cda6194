"""Directories that stand for volumes, and the cleaning Job as a kubelet would run it.

Every volume holds files of somebody else: directories that are named like caches, links, files of any kind. The program
of the Job runs for real, in a process, on such a directory; the volume tells it that it is full. Nothing but caches that
no Pod uses may be gone afterwards.
"""

import asyncio
import hashlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from chaos.client import PatientCluster
from chaos.journal import Journal
from support.cluster import Manifest
from vllm_operator.caches.address import folders_of

CLEANING = "app.kubernetes.io/component=cleaning"
FULL = "import os; os.statvfs = lambda path: os.statvfs_result((4096, 4096, 1000, 10, 10, 100, 10, 10, 0, 255))\n"
"""Runs before the program: one percent of the volume is free."""
AGE_SECONDS = 86_400
MARKER = ".vllm-operator-"
"""Begins the name of the file by which a Pod marks the directory of its caches; the directory's name follows."""
_FILES = {
    "models/hub/model.safetensors": "weights",
    "v2-export-20240115/data.bin": "an export that is named like a cache",
    "v0.20.1-backup-deadbeef/data.bin": "a backup that is named like a cache",
    "v0.16.0-sm90-h100-tp1-00000001/notes.txt": "a directory with exactly the form of a cache key",
    "unknown-results-0badcafe/table.csv": "1,2",
    "nvllm-v1-00000002/a": "b",
    ".leaving-home/photo.jpg": "a directory that is named like one on its way out",
    ".deleting-home/photo.jpg": "the same, one step further",
    f"v0.20.1-copy-0000000a/{MARKER}v0.20.1-sm90-h100-80gb-hbm3-tp1-11e89eaa": "a copy of a cache, with the mark of the other one",
    "v3-file-00000003": "a file that is named like a cache",
    "notes.txt": "notes",
}
_CACHE_FILES = ("vllm/torch_compile_cache/a/artifact", "triton/b.cubin", "flashinfer/c.so")


def inventory(folder: Path) -> dict[str, str]:
    """Everything below a folder: its kind, mode, time of change and content. The folder itself is left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        if stat.S_ISLNK(state.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(state.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            content = ""
        found[str(path.relative_to(folder))] = f"{stat.filemode(state.st_mode)} {state.st_mtime_ns} {content}"
    return found


def _age(folder: Path) -> None:
    then = time.time() - AGE_SECONDS
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (then, then), follow_symlinks=False)


class Volume:
    """The directory of one volume."""

    def __init__(self, folder: Path, outside: Path) -> None:
        self.folder = folder
        for name, text in _FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (folder / "v0.9-link-00000004").symlink_to(outside)
        _age(folder)
        self._fields_of_others = inventory(folder)
        self._outside = outside

    def add_cache(self, key: str) -> None:
        """Fills the directory of a cache as an engine does; it was last used long ago. A link in it leads out of the volume."""
        folder = self.folder / key
        if folder.exists():
            return
        for name in (*_CACHE_FILES, MARKER + key):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        (folder / "shared").symlink_to(self._outside)
        _age(folder)

    def rest(self) -> None:
        """Lets nothing look as if it had just been read, which the inventory has done."""
        for path in self.folder.rglob("*"):
            state = path.lstat()
            os.utime(path, ns=(state.st_mtime_ns, state.st_mtime_ns), follow_symlinks=False)

    def changed(self) -> list[str]:
        """Says which files of others are not as they were."""
        now = inventory(self.folder)
        return [f"{name} on volume {self.folder.name}" for name, state in self._fields_of_others.items() if now.get(name) != state]


class Volumes:
    """All volumes, and the Pods that clean them."""

    def __init__(self, client: PatientCluster, journal: Journal, root: Path) -> None:
        self._client = client
        self._journal = journal
        self._root = root
        self._outside = root / "outside"
        self._outside.mkdir(parents=True)
        (self._outside / "precious").write_text("not on any volume")
        self._outside_before = inventory(self._outside)
        self._volumes: dict[str, Volume] = {}
        self._done: set[str] = set()
        self.removed = 0

    def changed(self) -> list[str]:
        """Says which files of others are not as they were, on all volumes and beside them."""
        found = [text for volume in self._volumes.values() for text in volume.changed()]
        return found + (["a file outside of the volumes"] if inventory(self._outside) != self._outside_before else [])

    async def run(self) -> None:
        """Runs cleaning Pods as they come, until cancelled."""
        while True:
            for pod in await self._client.list_all("Pod", selector=CLEANING):
                if pod["metadata"]["uid"] not in self._done and pod["metadata"].get("ownerReferences"):
                    self._done.add(pod["metadata"]["uid"])
                    await self._run_pod(pod)
            await asyncio.sleep(0.3)

    async def _run_pod(self, pod: Manifest) -> None:
        [volume] = pod["spec"]["volumes"]
        claim = await self._client.find("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
        if claim is None:
            return
        uid, name = claim["metadata"]["uid"], claim["metadata"]["name"]
        if uid not in self._volumes:
            self._volumes[uid] = Volume(self._root / uid, self._outside)
        directory = self._volumes[uid]
        pods = await self._client.list_all("Pod")
        used = {folder for each in pods for folder in folders_of(each["spec"], name) if _may_run(each)}
        for key in used | _recorded(claim):
            directory.add_cache(key)
        directory.rest()
        before = set(os.listdir(directory.folder))
        [container] = pod["spec"]["containers"]
        report = self._root / f"{pod['metadata']['uid']}.json"
        status, said = await asyncio.to_thread(_run_container, container, directory.folder, report)
        gone = before - set(os.listdir(directory.folder))
        self.removed += len(gone)
        self._journal.note(f"{pod['metadata']['name']} cleaned {name}: exit status {status}, removed {sorted(gone)} {said}")
        self._journal.violate(*(f"cleaning {name} removed {key}, which a Pod uses" for key in sorted(gone & used)))
        self._journal.violate(*(f"cleaning {name} changed {what}" for what in directory.changed()))
        if status:
            self._journal.violate(f"the cleaning program ended with {status}: {said}")
        await self._finish(pod, report.read_text() if report.exists() else "", status)

    async def _finish(self, pod: Manifest, message: str, status: int) -> None:
        """Writes what a kubelet writes of a container that has ended."""
        name = pod["metadata"]["name"]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        reason = "Error" if status else "Completed"
        ended = {"exitCode": status, "reason": reason, "message": message, "startedAt": now, "finishedAt": now}
        image = pod["spec"]["containers"][0]["image"]
        container = {"name": "clean", "image": image, "imageID": "", "ready": False, "restartCount": 0, "state": {"terminated": ended}}
        phase = "Failed" if status else "Succeeded"
        for _ in range(20):  # the simulator may write at the same time
            if (live := await self._client.find("Pod", name)) is None:
                return
            containers = live.get("status", {}).get("containerStatuses") or [{}]
            if containers[0].get("state", {}).get("terminated", {}).get("message") == message and live["status"]["phase"] == phase:
                return
            await self._client.patch("Pod", name, {"status": {"phase": phase, "containerStatuses": [container]}}, subresource="status")
            await asyncio.sleep(0.3)


def _run_container(container: Manifest, root: Path, report: Path) -> tuple[int, str]:
    """Runs the program of a container with its environment, on this directory instead of the mounted volume."""
    [mount] = container["volumeMounts"]
    places = {mount["mountPath"]: str(root), "/dev/termination-log": str(report)}
    given: Mapping[str, str] = {entry["name"]: places.get(entry["value"], entry["value"]) for entry in container["env"]}
    command = [sys.executable, "-c", FULL + container["command"][-1]]
    environment = {"PATH": os.environ["PATH"], "CLEAN_GRACE": "0", **given}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.strip()


def _may_run(pod: Manifest) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _recorded(claim: Manifest) -> set[str]:
    """The cache keys that are recorded on a claim."""
    found = (name.partition("/") for name in claim["metadata"].get("annotations") or {})
    return {key for prefix, _, key in found if key and prefix.endswith(".vllm-operator.dev")}

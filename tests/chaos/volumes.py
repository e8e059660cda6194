"""Directories that stand for volumes, and the cleaning Job as a kubelet would run it.

Every volume holds files of somebody else: directories that are named like caches, links, files of any kind, and a directory that
the claim records but that has no marker. The program of the Job runs for real, in a process, on such a directory; the volume
reports that it is full. Some runs are killed, and in some files vanish meanwhile. The inventories before and after are compared:
only directories may be gone that the claim has recorded, that had the marker, and that no Pod used.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random

from chaos.client import PatientCluster
from chaos.journal import Journal
from support.cluster import Manifest, RefusedError
from vllm_operator.caches.address import folders_of
from vllm_operator.pods.tools import TOOLS_ROOT

CLEANING = "app.kubernetes.io/component=cleaning"
FULL = "import os; os.statvfs = lambda path: os.statvfs_result((4096, 4096, 1000, 10, 10, 100, 10, 10, 0, 255))\n"
"""Runs before the program: one percent of the volume is free."""
AGE_SECONDS = 86_400
LEAVING, DELETING = ".leaving-", ".deleting-"
UNMARKED = "v0.15.0-sm90-h100-tp1-0000000e"
"""A directory that users' claims record, and that has no marker: a user has filled it."""
SEEN_SECONDS = 30.0
"""A Job is created from a picture of the Pods, and may be retried; a Pod that is that much older than its Pod is in the picture."""
TERMINATED, KILLED = 143, 137
"""Exit statuses of a program that was ended."""
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
    f"{UNMARKED}/triton/a.cubin": "recorded, but not marked",
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

    def holds(self, key: str) -> bool:
        """Whether there is a directory of a cache, or what an interrupted run has left of it."""
        return any((self.folder / f"{prefix}{key}").exists() for prefix in ("", LEAVING, DELETING))

    def use(self, key: str) -> None:
        """Reads and writes a cache as an engine does."""
        (self.folder / key / _CACHE_FILES[0]).write_text("used")

    def rest(self, used: Iterable[str] = ()) -> None:
        """Lets nothing else look as if it had just been read, which the inventory has done."""
        for path in self.folder.rglob("*"):
            if path.relative_to(self.folder).parts[0] not in set(used):
                state = path.lstat()
                os.utime(path, ns=(state.st_mtime_ns, state.st_mtime_ns), follow_symlinks=False)

    def marked(self) -> set[str]:
        """The keys of the directories that have a marker with their name."""
        names = {path.name: path.name.removeprefix(LEAVING).removeprefix(DELETING) for path in self.folder.iterdir()}
        return {
            key
            for name, key in names.items()
            if (self.folder / name / f"{MARKER}{key}").is_file() and not (self.folder / name).is_symlink()
        }

    def changed(self) -> list[str]:
        """Says which files of others are not as they were."""
        now = inventory(self.folder)
        return [f"{name} on volume {self.folder.name}" for name, state in self._fields_of_others.items() if now.get(name) != state]


def unexpected_losses(
    before: Mapping[str, str], after: Mapping[str, str], removable: Iterable[str], vanished: Iterable[str] = ()
) -> list[str]:
    """Says what a run of the cleaning program has changed and may not change.

    Args:
        before: The inventory of the volume.
        after: The same afterwards.
        removable: The directories that it may remove: whole, or under the name of one that is being deleted.
        vanished: Paths of files that somebody else has deleted meanwhile.
    """
    may_go, expected = set(removable), set(vanished)
    found = []
    for path, state in before.items():
        top, _, rest = path.partition("/")
        key = top.removeprefix(LEAVING).removeprefix(DELETING)
        if key not in may_go:
            found += [path] if after.get(path) != state else []
            continue
        if state.startswith("d") or top.startswith(DELETING) or path in expected:
            continue
        kept = [after.get(f"{prefix}{key}/{rest}") for prefix in ("", LEAVING) if f"{prefix}{key}" in after]
        if kept and state not in kept:
            found.append(path)
    return found


@dataclass
class Claim:
    """What a run has seen of one PersistentVolumeClaim."""

    volume: Volume
    recorded: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)


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
        self._claims: dict[str, Claim] = {}
        self._done: set[str] = set()
        self._random = Random(f"{journal.seed}/volumes")
        self.is_disturbed = True
        """Whether some runs of the cleaning program are killed, and files vanish during others."""

    @property
    def removed(self) -> int:
        """How many directories cleaning Pods have removed."""
        return sum(len(claim.removed) for claim in self._claims.values())

    def has_removed(self, uid: str, key: str) -> bool:
        """Whether cleaning Pods have removed a directory from a claim."""
        return uid in self._claims and key in self._claims[uid].removed

    def changed(self) -> list[str]:
        """Says which files of others are not as they were, on all volumes and beside them."""
        found = [text for claim in self._claims.values() for text in claim.volume.changed()]
        return found + (["a file outside of the volumes"] if inventory(self._outside) != self._outside_before else [])

    async def run(self) -> None:
        """Runs cleaning Pods as they come, until cancelled."""
        while True:
            for live in await self._client.list_all("PersistentVolumeClaim"):
                self._see(live)
            for pod in await self._client.list_all("Pod", selector=CLEANING):
                if pod["metadata"]["uid"] not in self._done and pod["metadata"].get("ownerReferences"):
                    self._done.add(pod["metadata"]["uid"])
                    await self._run_pod(pod)
            await asyncio.sleep(0.3)

    def _see(self, live: Manifest) -> Claim:
        uid = live["metadata"]["uid"]
        if uid not in self._claims:
            self._claims[uid] = Claim(Volume(self._root / uid, self._outside))
        self._claims[uid].recorded |= _recorded(live)
        return self._claims[uid]

    async def _run_pod(self, pod: Manifest) -> None:
        [volume] = [each for each in pod["spec"]["volumes"] if "persistentVolumeClaim" in each]
        live = await self._client.find("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
        if live is None or live["metadata"].get("deletionTimestamp"):
            return  # no kubelet mounts it
        claim, name = self._see(live), live["metadata"]["name"]
        directory = claim.volume
        pods = [each for each in await self._client.list_all("Pod") if _may_run(each)]
        used = {folder for each in pods for folder in folders_of(each["spec"], name) if _runs(each)}
        known = {folder for each in pods for folder in folders_of(each["spec"], name) if _is_older(each, pod)}
        for key in used | {key for key in _recorded(live) if not directory.holds(key)}:
            directory.add_cache(key)
        for key in used:
            directory.use(key)
        before = inventory(directory.folder)
        directory.rest(used)
        removable = (claim.recorded & directory.marked()) - used - known
        [container] = pod["spec"]["containers"]
        report = self._root / f"{pod['metadata']['uid']}.json"
        vanishing = self._draw_vanishing(directory, removable)
        end = self._random.choice((None, None, None, signal.SIGTERM, signal.SIGKILL))
        done, _ = await asyncio.gather(
            asyncio.to_thread(_run_container, container, directory.folder, report, end if self.is_disturbed else None),
            asyncio.to_thread(_unlink, directory.folder, vanishing),
        )
        after = inventory(directory.folder)
        gone = {key for key in {path.partition("/")[0] for path in before} & removable if not directory.holds(key)}
        claim.removed |= gone
        self._journal.note(f"{pod['metadata']['name']} cleaned {name}: exit status {done.status}, removed {sorted(gone)} {done.said}")
        losses = unexpected_losses(before, after, removable, vanishing)
        self._journal.violate(*(f"cleaning {name} changed {path}, of which it may not ({done.said})" for path in losses))
        self._journal.violate(*(f"cleaning {name} changed {what}" for what in directory.changed()))
        if done.status not in (0, TERMINATED, KILLED):
            self._journal.violate(f"the cleaning program ended with {done.status}: {done.said}")
        if done.status == 0:
            reported = set(json.loads(report.read_text())["removed"])
            self._journal.violate(
                *(f"cleaning {name} reports the removal of {key}, which is there" for key in reported if directory.holds(key))
            )
            await self._finish(pod, report.read_text())

    def _draw_vanishing(self, directory: Volume, removable: Iterable[str]) -> list[str]:
        """Files that somebody else deletes while the program runs."""
        keys = sorted(key for key in removable if (directory.folder / key).is_dir())
        if not keys or not self.is_disturbed or self._random.random() < 0.7:
            return []
        return [f"{self._random.choice(keys)}/{self._random.choice(_CACHE_FILES)}"]

    async def _finish(self, pod: Manifest, message: str) -> None:
        """Writes what a kubelet writes of a container that has ended well."""
        name = pod["metadata"]["name"]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ended = {"exitCode": 0, "reason": "Completed", "message": message, "startedAt": now, "finishedAt": now}
        image = pod["spec"]["containers"][0]["image"]
        container = {"name": "clean", "image": image, "imageID": "", "ready": False, "restartCount": 0, "state": {"terminated": ended}}
        for _ in range(20):  # the simulator may write at the same time
            if (live := await self._client.find("Pod", name)) is None:
                return
            containers = live.get("status", {}).get("containerStatuses") or [{}]
            if containers[0].get("state", {}).get("terminated", {}).get("message") == message and live["status"]["phase"] == "Succeeded":
                return
            status = {"status": {"phase": "Succeeded", "containerStatuses": [container]}}
            with contextlib.suppress(RefusedError):  # it may be gone by now
                await self._client.patch("Pod", name, status, subresource="status")
            await asyncio.sleep(0.3)


@dataclass(frozen=True)
class Done:
    """How a run of a container ended, and what it said."""

    status: int
    said: str


def _run_container(container: Manifest, root: Path, report: Path, end: signal.Signals | None) -> Done:
    """Runs the program of a container with its environment, on this directory instead of the mounted volume; may end it early."""
    [mount] = [each for each in container["volumeMounts"] if each["mountPath"] != TOOLS_ROOT]
    places = {mount["mountPath"]: str(root), "/dev/termination-log": str(report)}
    given: Mapping[str, str] = {entry["name"]: places.get(entry["value"], entry["value"]) for entry in container["env"]}
    program = (
        f"import sys; sys.argv = ['tools', {container['command'][-1]!r}]; from vllm_operator.tools.__main__ import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", FULL + program]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "CLEAN_GRACE": "0.3", **given}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if end is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.send_signal(end)
    _, said = process.communicate(timeout=60)
    status = process.returncode
    return Done(128 - status if status < 0 else status, said.strip())


def _unlink(folder: Path, paths: Iterable[str]) -> None:
    """Deletes files a moment after the program has begun."""
    for path in paths:
        time.sleep(0.2)
        (folder / path).unlink(missing_ok=True)


def _may_run(pod: Manifest) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _runs(pod: Manifest) -> bool:
    """Whether a container of a Pod runs, so that it uses what it mounts."""
    return any("running" in status.get("state", {}) for status in pod.get("status", {}).get("containerStatuses") or ())


def _is_older(pod: Manifest, cleaner: Manifest) -> bool:
    """Whether a Pod was there when the Job of another one was created, and long enough before it to be seen."""
    times = [datetime.fromisoformat(it["metadata"]["creationTimestamp"]) for it in (pod, cleaner)]
    return (times[1] - times[0]).total_seconds() > SEEN_SECONDS


def _recorded(claim: Manifest) -> set[str]:
    """The cache keys that are recorded on a claim."""
    found = (name.partition("/") for name in claim["metadata"].get("annotations") or {})
    return {key for prefix, _, key in found if key and prefix.endswith(".vllm-operator.dev")}

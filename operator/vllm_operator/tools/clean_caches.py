"""Removes unused cache directories from a volume. Runs in a Pod that mounts only that volume.

    CLEAN_ROOT      where the volume is mounted
    CLEAN_RECORDED  JSON list: directories that the operator has recorded as its own on the claim
    CLEAN_KEEP      JSON list: directories in use, never touched
    CLEAN_DOOMED    JSON list: directories that go first, and in any case
    CLEAN_SHARE     percentage of the volume that must be free afterwards; 0 removes only doomed directories
    CLEAN_GRACE     seconds between taking a directory out of use and deleting it
    CLEAN_REPORT    file for the result, one line of JSON

A directory is the operator's if it is recorded, and holds the marker that each Pod of the operator writes: a file `.vllm-operator-NAME`
with the name of the directory. A copy under another name, a directory of a similar name, a link and a mount point are not. Directories of
other owners are counted and kept, regardless of their names.

Doomed directories are removed first, then older generations of keys in use, then the least recently used. A directory that was used in the
last ten minutes stays even without a known user; a directory that a new Pod uses after it was taken out of use is put back. The next run
continues an interrupted one: `.leaving-NAME` is complete and is put back, `.deleting-NAME` is incomplete and is deleted. The marker is
deleted last, so that the rest can be recognized.
"""

import json
import os
import re
import signal
import stat
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

from vllm_operator.tools.artifact import opened_folder, opened_root, report

MARKER = ".vllm-operator-"
LEAVING, DELETING = ".leaving-", ".deleting-"
RECENT_SECONDS = 600
MAX_REMOVED = 32
"""Maximum number of directories that one run removes; more would not fit into the report."""
MAX_REASON, MAX_REASONS = 120, 1500
"""Maximum characters of one reason why a directory stays, and of all reasons."""
MAX_COUNTED = 200_000
"""Maximum number of files to examine for the size of kept directories."""


def main() -> int:
    """Clean up, and report the result."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the first process of a container ignores it by default
    recorded, keep, doomed = (set(json.loads(os.environ.get(f"CLEAN_{name}", "[]"))) for name in ("RECORDED", "KEEP", "DOOMED"))
    volume = Volume(os.environ["CLEAN_ROOT"], recorded, keep, mounted_below(os.environ["CLEAN_ROOT"]))
    report(volume.clean(doomed, int(os.environ.get("CLEAN_SHARE", "0"))), "CLEAN_REPORT")
    return 0


@dataclass
class Volume:
    """A volume, the directories that are the operator's, those in use, and the first parts of paths with other mounts."""

    root: str
    recorded: set[str]
    keep: set[str]
    mounts: set[str] = field(default_factory=set)
    removed: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)

    def clean(self, doomed: set[str], share: int) -> dict[str, object]:
        """Remove directories, and return the report."""
        before = self.free()[0]
        self.resume()
        for name in self.candidates(doomed - self.keep):
            free, total = self.free()
            if (name not in doomed and free * 100 >= total * share) or len(self.removed) >= MAX_REMOVED:
                break
            if why := self.remove(name):
                self.kept[name] = why
            else:
                self.removed.append(name)
        for name in sorted(doomed - self.kept.keys() - set(self.removed)):
            self.kept[name] = self.why_kept(name)
        free, total = self.free()
        others = [self.path(entry) for entry in os.listdir(self.root) if self.is_of_others(entry)]
        return {
            "removed": self.removed,
            "kept": bounded(self.kept),
            "freedBytes": max(0, free - before),
            "freeBytes": free,
            "totalBytes": total,
            "others": len(others),
            "otherBytes": size_of(others),
        }

    def path(self, entry: str) -> str:
        """Return the path of an entry."""
        return os.path.join(self.root, entry)

    def free(self) -> tuple[int, int]:
        """Return the free bytes and the total bytes."""
        volume = os.statvfs(self.root)
        return volume.f_bavail * volume.f_frsize, volume.f_blocks * volume.f_frsize

    def is_ours(self, entry: str, name: str) -> bool:
        """Return whether an entry is the directory of this name that the operator has recorded and marked."""
        if name not in self.recorded or entry in self.mounts:
            return False
        try:
            found, marker = os.lstat(self.path(entry)), os.lstat(os.path.join(self.path(entry), MARKER + name))
            return stat.S_ISDIR(found.st_mode) and found.st_dev == os.lstat(self.root).st_dev and stat.S_ISREG(marker.st_mode)
        except OSError:
            return False

    def is_of_others(self, entry: str) -> bool:
        """Return whether an entry is not the operator's and has no known user."""
        name = entry.removeprefix(LEAVING).removeprefix(DELETING)
        return entry not in self.keep and entry != "lost+found" and not self.is_ours(entry, name)

    def candidates(self, doomed: set[str]) -> list[str]:
        """Return the names of removable directories, the first to remove first."""
        lineages = {lineage(name) for name in self.keep}
        found = []
        for name in os.listdir(self.root):
            if name in self.keep or not self.is_ours(name, name):
                continue
            with suppress(OSError):
                used = last_use(self.path(name))
                if used != float("inf") and (name in doomed or time.time() - used > RECENT_SECONDS):
                    found.append((name not in doomed, lineage(name) not in lineages, used, name))
        return [entry[-1] for entry in sorted(found)]

    def why_kept(self, name: str) -> str:
        """Return why a doomed directory was not tried."""
        entries = [prefix + name for prefix in ("", LEAVING, DELETING) if os.path.lexists(self.path(prefix + name))]
        if not entries:
            return "gone"
        if name in self.keep:
            return "a Pod or a VLLMDeployment uses it"
        if entries[0] in self.mounts:
            return "something is mounted on it"
        if not any(self.is_ours(entry, name) for entry in entries):
            return f"it has no file {MARKER}{name}, which each Pod of the operator writes"
        return "it was used in the last minutes, something is mounted in it, or it cannot be read"

    def resume(self) -> None:
        """Put back, or delete, the leftovers of an interrupted run."""
        for entry in sorted(os.listdir(self.root)):
            prefix = next((each for each in (LEAVING, DELETING) if entry.startswith(each)), "")
            name = entry.removeprefix(prefix)
            if not prefix or entry in self.keep or not self.is_ours(entry, name):
                continue
            path, deleting = self.path(name), self.path(DELETING + name)
            try:
                if prefix == LEAVING and not os.path.lexists(path):
                    os.rename(self.path(entry), path)
                    continue
                if prefix == LEAVING:  # a Pod has created it again; another one may still use this
                    if os.path.lexists(deleting) or time.time() - last_use(self.path(entry)) <= RECENT_SECONDS:
                        continue
                    os.rename(self.path(entry), deleting)
                self.delete(name)
                if not os.path.lexists(path) and name not in self.removed:
                    self.removed.append(name)
            except (OSError, RecursionError) as error:
                print(f"{entry} cannot be removed: {error}", file=sys.stderr)
                self.kept[name] = str(error)

    def remove(self, name: str) -> str:
        """Take a directory out of use immediately, and delete it after the grace period; return why it stays, empty if deleted."""
        path, leaving, deleting = (self.path(prefix + name) for prefix in ("", LEAVING, DELETING))
        if os.path.lexists(leaving) or os.path.lexists(deleting):  # a rename would replace an empty directory of any owner
            return f"{LEAVING}{name} or {DELETING}{name} is in the way"
        try:
            before = last_use(path)
            os.rename(path, leaving)
            is_idle = False
            try:
                wait(float(os.environ.get("CLEAN_GRACE", "10")))
                is_idle = last_use(leaving) <= before
            finally:
                if not is_idle and not os.path.lexists(path):  # otherwise a Pod has created another one
                    os.rename(leaving, path)
            if not is_idle:
                return "it was used while it was taken out of use"
            os.rename(leaving, deleting)
            self.delete(name)
        except (OSError, RecursionError) as error:
            print(f"{name} cannot be removed: {error}", file=sys.stderr)
            return str(error)
        return ""

    def delete(self, name: str) -> None:
        """Delete the directory `.deleting-NAME`, its marker last. Links are not followed, and other file systems are not entered."""
        with opened_root(self.root) as parent, opened_folder(parent, DELETING + name) as top:
            empty(top, os.fstat(parent).st_dev, but=MARKER + name)
            os.unlink(MARKER + name, dir_fd=top)
            try:
                os.rmdir(DELETING + name, dir_fd=parent)
            except OSError:  # a file was created meanwhile
                os.close(os.open(MARKER + name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=top))
                raise


def bounded(kept: dict[str, str]) -> dict[str, str]:
    """Return as many reasons as fit into the report."""
    result: dict[str, str] = {}
    for name, why in kept.items():
        longer = {**result, name: why[:MAX_REASON]}
        if len(json.dumps(longer)) > MAX_REASONS:
            break
        result = longer
    return result


def lineage(name: str) -> str:
    """Return a key without its generation and digest: equal for all generations of one cache."""
    return re.sub(r"(-g\d+)?-[0-9a-f]{8}$", "", name)


def last_use(path: str) -> float:
    """Return when any file below was last read or written; infinity if it leads to another file system. Vanished files are ignored."""
    latest, device = 0.0, os.lstat(path).st_dev
    for folder, folders, names in os.walk(path):
        for name in ["", *folders, *names]:
            try:
                found = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            if found.st_dev != device:
                return float("inf")
            read = found.st_atime if stat.S_ISREG(found.st_mode) else 0.0  # looking into a directory reads it
            latest = max(latest, found.st_mtime, read)
    return latest


def wait(seconds: float) -> None:
    """Sleep in short steps, because a signal just before a sleep does not end it."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(1.0, left))


def empty(folder: int, device: int, but: str = "") -> None:
    """Delete the content of an open directory."""
    if os.fstat(folder).st_dev != device:
        raise OSError("another file system is mounted in it")
    for name in os.listdir(folder):
        if name == but:
            continue
        with suppress(FileNotFoundError):  # another process deleted it
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                with opened_folder(folder, name) as inner:
                    empty(inner, device)
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)


def mounted_below(root: str) -> set[str]:
    """Return the first parts of the paths below the root with other mounts."""
    prefix = os.path.realpath(root).rstrip("/") + "/"
    found: set[str] = set()
    with suppress(OSError), open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            path = os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), line.split()[4]))
            if path.startswith(prefix):
                found.add(path.removeprefix(prefix).partition("/")[0])
    return found


def size_of(paths: list[str]) -> int | None:
    """Return the bytes on the disk; None if there are more than `MAX_COUNTED` files."""
    files: list[str] = []
    for path in paths:
        if os.path.islink(path) or not os.path.isdir(path):
            files.append(path)
            continue
        for folder, _, names in os.walk(path):
            files.extend(os.path.join(folder, name) for name in names[: MAX_COUNTED + 1])
            if len(files) > MAX_COUNTED:
                return None
    total = 0
    for file in files:
        with suppress(OSError):
            total += os.lstat(file).st_blocks * 512
    return total

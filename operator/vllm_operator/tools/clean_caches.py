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

MARKER = ".vllm-operator-"
LEAVING, DELETING = ".leaving-", ".deleting-"
RECENT_SECONDS = 600
MOST = 32
"""Maximum number of directories that one run removes; more would not fit into the report."""
MOST_REASON, MOST_REASONS = 120, 1500
"""Maximum characters of one reason why a directory stays, and of all reasons."""
MOST_COUNTED = 200_000
"""Maximum number of files to examine for the size of kept directories."""


def main() -> int:
    """Clean up, and report the result."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the first process of a container ignores it by default
    root = os.environ["CLEAN_ROOT"]
    recorded, keep, doomed = (set(json.loads(os.environ.get(f"CLEAN_{name}", "[]"))) for name in ("RECORDED", "KEEP", "DOOMED"))
    wanted, doomed = doomed, doomed - keep
    share = int(os.environ.get("CLEAN_SHARE", "0"))
    before = free(root)[0]
    mounts = mounted_below(root)
    removed: list[str] = []
    kept: dict[str, str] = {}
    resume(root, recorded, keep, mounts, removed, kept)
    for name in candidates(root, recorded, keep, doomed, mounts):
        enough = name not in doomed and free(root)[0] * 100 >= free(root)[1] * share
        if enough or len(removed) >= MOST:
            break
        if why := remove(root, name):
            kept[name] = why
        else:
            removed.append(name)
    for name in sorted(wanted - kept.keys() - set(removed)):
        kept[name] = why_kept(root, name, recorded, keep, mounts)
    now, total = free(root)
    result: dict[str, object] = {
        "removed": removed,
        "kept": bounded(kept),
        "freedBytes": max(0, now - before),
        "freeBytes": now,
        "totalBytes": total,
    }
    result.update(left_alone(root, recorded, keep, mounts))
    print(json.dumps(result))
    if os.environ.get("CLEAN_REPORT"):
        with open(os.environ["CLEAN_REPORT"], "w") as report:
            json.dump(result, report)
    return 0


def why_kept(root: str, name: str, recorded: set[str], keep: set[str], mounts: set[str]) -> str:
    """Return why a doomed directory was not tried."""
    entries = [prefix + name for prefix in ("", LEAVING, DELETING) if os.path.lexists(os.path.join(root, prefix + name))]
    if not entries:
        return "gone"
    if name in keep:
        return "a Pod or a VLLMDeployment uses it"
    if entries[0] in mounts:
        return "something is mounted on it"
    if not any(is_ours(root, entry, name, recorded, mounts) for entry in entries):
        return f"it has no file {MARKER}{name}, which each Pod of the operator writes"
    return "it was used in the last minutes, something is mounted in it, or it cannot be read"


def bounded(kept: dict[str, str]) -> dict[str, str]:
    """Return as many reasons as fit into the report."""
    result: dict[str, str] = {}
    for name, why in kept.items():
        longer = {**result, name: why[:MOST_REASON]}
        if len(json.dumps(longer)) > MOST_REASONS:
            break
        result = longer
    return result


def is_ours(root: str, entry: str, name: str, recorded: set[str], mounts: set[str]) -> bool:
    """Return whether an entry of the volume is the directory of this name that the operator has recorded and marked."""
    if name not in recorded or entry in mounts:
        return False
    try:
        found = os.lstat(os.path.join(root, entry))
        marker = os.lstat(os.path.join(root, entry, MARKER + name))
        device = os.lstat(root).st_dev
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_dev == device and stat.S_ISREG(marker.st_mode)


def candidates(root: str, recorded: set[str], keep: set[str], doomed: set[str], mounts: set[str]) -> list[str]:
    """Return the names of removable directories, the first to remove first."""
    lineages = {lineage(name) for name in keep}
    found = []
    for name in os.listdir(root):
        if name in keep or not is_ours(root, name, name, recorded, mounts):
            continue
        try:
            used = last_use(os.path.join(root, name))
        except OSError:
            continue
        if used != float("inf") and (name in doomed or time.time() - used > RECENT_SECONDS):
            found.append((name not in doomed, lineage(name) not in lineages, used, name))
    return [entry[-1] for entry in sorted(found)]


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


def resume(root: str, recorded: set[str], keep: set[str], mounts: set[str], removed: list[str], kept: dict[str, str]) -> None:
    """Put back, or delete, the leftovers of an interrupted run."""
    for entry in sorted(os.listdir(root)):
        prefix = next((each for each in (LEAVING, DELETING) if entry.startswith(each)), None)
        name = entry[len(prefix) :] if prefix else ""
        if not prefix or entry in keep or not is_ours(root, entry, name, recorded, mounts):
            continue
        path = os.path.join(root, name)
        try:
            if prefix == LEAVING and not os.path.lexists(path):
                os.rename(os.path.join(root, entry), path)
                continue
            if prefix == LEAVING:  # a Pod has created it again; another one may still use this
                in_the_way = os.path.lexists(os.path.join(root, DELETING + name))
                if in_the_way or time.time() - last_use(os.path.join(root, entry)) <= RECENT_SECONDS:
                    continue
                os.rename(os.path.join(root, entry), os.path.join(root, DELETING + name))
            delete(root, DELETING + name, name)
            if not os.path.lexists(path) and name not in removed:
                removed.append(name)
        except (OSError, RecursionError) as error:
            print(f"{entry} cannot be removed: {error}", file=sys.stderr)
            kept[name] = str(error)


def remove(root: str, name: str) -> str:
    """Take a directory out of use immediately, and delete it after the grace period; return why it stays, empty if deleted."""
    path, leaving, deleting = (os.path.join(root, prefix + name) for prefix in ("", LEAVING, DELETING))
    if os.path.lexists(leaving) or os.path.lexists(deleting):  # a rename would replace an empty directory of any owner
        return f"{LEAVING}{name} or {DELETING}{name} is in the way"
    try:
        before = last_use(path)
        os.rename(path, leaving)
        try:
            wait(float(os.environ.get("CLEAN_GRACE", "10")))
            is_used = last_use(leaving) > before
        except BaseException:
            put_back(leaving, path)
            raise
        if is_used:
            put_back(leaving, path)
            return "it was used while it was taken out of use"
        os.rename(leaving, deleting)
        delete(root, DELETING + name, name)
    except (OSError, RecursionError) as error:
        print(f"{name} cannot be removed: {error}", file=sys.stderr)
        return str(error)
    return ""


def wait(seconds: float) -> None:
    """Sleep in short steps, because a signal just before a sleep does not end it."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(1.0, left))


def put_back(leaving: str, path: str) -> None:
    """Put a directory back, unless a Pod has created another one."""
    if not os.path.lexists(path):
        os.rename(leaving, path)


def delete(root: str, entry: str, name: str) -> None:
    """Delete a directory, its marker last. Links are not followed, and other file systems are not entered."""
    parent = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        top = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            device = os.fstat(parent).st_dev
            empty(top, device, but=MARKER + name)
            os.unlink(MARKER + name, dir_fd=top)
            try:
                os.rmdir(entry, dir_fd=parent)
            except OSError:  # a file was created meanwhile
                os.close(os.open(MARKER + name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=top))
                raise
        finally:
            os.close(top)
    finally:
        os.close(parent)


def empty(folder: int, device: int, but: str = "") -> None:
    """Delete the content of an open directory."""
    if os.fstat(folder).st_dev != device:
        raise OSError("another file system is mounted in it")
    for name in os.listdir(folder):
        if name == but:
            continue
        try:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                try:
                    empty(inner, device)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            continue  # another process deleted it


def mounted_below(root: str) -> set[str]:
    """Return the first parts of the paths below the root with other mounts."""
    prefix = os.path.realpath(root).rstrip("/") + "/"
    found: set[str] = set()
    try:
        with open("/proc/self/mountinfo", "rb") as table:
            for line in table:
                path = re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), line.split()[4])
                if os.fsdecode(path).startswith(prefix):
                    found.add(os.fsdecode(path)[len(prefix) :].partition("/")[0])
    except OSError:
        pass
    return found


def left_alone(root: str, recorded: set[str], keep: set[str], mounts: set[str]) -> dict[str, int | None]:
    """Return kept entries of the volume without a known user, with their sizes: everything that is not the operator's."""
    others: list[str] = []
    for entry in os.listdir(root):
        name = re.sub(rf"^({re.escape(LEAVING)}|{re.escape(DELETING)})", "", entry)
        if entry in keep or entry == "lost+found" or is_ours(root, entry, name, recorded, mounts):
            continue
        others.append(os.path.join(root, entry))
    return {"others": len(others), "otherBytes": size_of(others)}


def size_of(paths: list[str]) -> int | None:
    """Return the bytes on the disk; None if there are more than `MOST_COUNTED` files."""
    total, budget = 0, MOST_COUNTED
    for path in paths:
        files = [path] if os.path.islink(path) or not os.path.isdir(path) else []
        for folder, _, names in os.walk(path) if not files else ():
            files.extend(os.path.join(folder, name) for name in names[: budget + 1])
            if len(files) > budget:
                return None
        budget -= len(files)
        for file in files:
            try:
                total += os.lstat(file).st_blocks * 512
            except OSError:
                continue
    return total


def free(root: str) -> tuple[int, int]:
    """Return the free bytes and the total bytes of the volume."""
    volume = os.statvfs(root)
    return volume.f_bavail * volume.f_frsize, volume.f_blocks * volume.f_frsize

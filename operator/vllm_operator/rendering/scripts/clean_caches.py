"""Removes directories of caches that nobody uses from a volume. Runs in a Pod that mounts only that volume.

    CLEAN_ROOT     where the volume is mounted
    CLEAN_KEEP     JSON list: directories in use, never touched
    CLEAN_DOOMED   JSON list: directories that go first, and in any case
    CLEAN_SHARE    how much of the volume shall be free afterwards, in percent; 0 removes only what is doomed
    CLEAN_GRACE    seconds between taking a directory out of use and deleting it
    CLEAN_REPORT   file for the result, one line of JSON

Only directories that look like a cache key are considered, so weights and what others keep on the volume stay. First
the doomed ones, then older generations of keys in use, then the one that was not used for the longest time. A directory
used in the last ten minutes stays even if nobody is known to use it; one that is used although it was taken out of use, by a Pod
that started meanwhile, is put back.
"""

import json
import os
import re
import shutil
import sys
import time

KEY = re.compile(r"(nvllm-)?(v\d|unknown).*-[0-9a-f]{8}")
LEAVING = ".leaving-"
RECENT_SECONDS = 600


def main() -> int:
    """Clean up, and report what was done."""
    root = os.environ["CLEAN_ROOT"]
    keep = set(json.loads(os.environ.get("CLEAN_KEEP", "[]")))
    doomed = set(json.loads(os.environ.get("CLEAN_DOOMED", "[]"))) - keep
    share = int(os.environ.get("CLEAN_SHARE", "0"))
    before = free(root)[0]
    removed: list[str] = []
    failed: list[str] = []
    for name in sorted(os.listdir(root)):
        if name.startswith(LEAVING):  # an earlier run was interrupted
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    for name in candidates(root, keep, doomed):
        if name not in doomed and free(root)[0] * 100 >= free(root)[1] * share:
            break
        (removed if remove(root, name) else failed).append(name)
    now, total = free(root)
    result = {"removed": removed[:32], "failed": failed[:16], "freedBytes": max(0, now - before), "freeBytes": now, "totalBytes": total}
    print(json.dumps(result))
    if os.environ.get("CLEAN_REPORT"):
        with open(os.environ["CLEAN_REPORT"], "w") as report:
            json.dump(result, report)
    return 0


def candidates(root: str, keep: set[str], doomed: set[str]) -> list[str]:
    """Names of what may go, what should go first at the front."""
    lineages = {lineage(name) for name in keep}
    found = []
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if not KEY.fullmatch(name) or name in keep or os.path.islink(path) or not os.path.isdir(path):
            continue
        used = last_use(path)
        if name in doomed or time.time() - used > RECENT_SECONDS:
            found.append((name not in doomed, lineage(name) not in lineages, used, name))
    return [entry[-1] for entry in sorted(found)]


def lineage(name: str) -> str:
    """A key without its generation and digest: equal for all generations of one cache."""
    return re.sub(r"(-g\d+)?-[0-9a-f]{8}$", "", name)


def last_use(path: str) -> float:
    """When anything below was last read or written."""
    latest = os.stat(path).st_mtime
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                found = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            latest = max(latest, found.st_mtime, found.st_atime)
    return latest


def remove(root: str, name: str) -> bool:
    """Takes a directory out of use at once, deletes it a little later; False if it is in use after all, or cannot be deleted."""
    path, leaving = os.path.join(root, name), os.path.join(root, LEAVING + name)
    try:
        before = last_use(path)
        os.rename(path, leaving)
        time.sleep(float(os.environ.get("CLEAN_GRACE", "10")))
        if last_use(leaving) > before and not os.path.exists(path):
            os.rename(leaving, path)
            return False
        shutil.rmtree(leaving)
    except OSError as error:
        print(f"{name} cannot be removed: {error}", file=sys.stderr)
        return False
    return True


def free(root: str) -> tuple[int, int]:
    """Bytes that can still be written, and bytes in all."""
    volume = os.statvfs(root)
    return volume.f_bavail * volume.f_frsize, volume.f_blocks * volume.f_frsize


if __name__ == "__main__":
    sys.exit(main())

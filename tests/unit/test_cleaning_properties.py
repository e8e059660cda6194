"""The program that makes room, on volumes of any content: what is not recorded, marked and unused is there afterwards as before."""

import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_operator.tools import clean_caches

KEYS = (
    "v0.20.1-sm90-h100-tp1-00000001",
    "v0.20.1-sm90-h100-tp1-g1-00000002",
    "nvllm-v0.16.0-sm121-gb10-tp1-00000003",
    "unknown-tp1-00000004",
)
LOOK_ALIKES = (
    "v2-export-20240115",
    "v0.20.1-sm90-h100-tp1-00000001.bak",
    "V0.20.1-sm90-h100-tp1-00000001",
    "models",
    "lost+found",
    " ",
    "é",
)
NAMES = (*KEYS, *LOOK_ALIKES, *(f"{prefix}{name}" for prefix in (".leaving-", ".deleting-") for name in (*KEYS[:2], LOOK_ALIKES[0])))
KINDS = ("directory", "file", "link to a directory", "link to nothing", "fifo")
MARKERS = ("own", "of another", "link", "directory", "none")
INSIDE = ("file", "empty directory", "link to a directory", "link to a file", "hard link", "fifo", "read-only", "odd name")


@dataclass(frozen=True)
class Entry:
    kind: str
    marker: str
    inside: tuple[str, ...]
    is_recent: bool

    @property
    def is_marked(self) -> bool:
        return self.kind == "directory" and self.marker == "own"


ENTRIES = st.builds(
    Entry,
    st.sampled_from((*KINDS, "directory", "directory", "directory")),
    st.sampled_from((*MARKERS, "own", "own", "own")),
    st.lists(st.sampled_from(INSIDE), max_size=4).map(tuple),
    st.booleans(),
)
VOLUMES = st.dictionaries(st.sampled_from(NAMES), ENTRIES, max_size=8)
SUBSETS = st.sets(st.sampled_from(NAMES))


def key_of(name: str) -> str:
    return name.removeprefix(".leaving-").removeprefix(".deleting-")


def build(root: Path, outside: Path, name: str, entry: Entry) -> None:
    path = root / name
    match entry.kind:
        case "file":
            path.write_text(name)
        case "link to a directory":
            path.symlink_to(outside)
        case "link to nothing":
            path.symlink_to(root / "nothing")
        case "fifo":
            os.mkfifo(path)
        case _:
            path.mkdir()
            mark(path, outside, key_of(name), entry.marker)
            for number, what in enumerate(entry.inside):
                fill(path / f"{number}", outside, what)
    if not entry.is_recent:
        for found in (*path.rglob("*"), path) if not path.is_symlink() else (path,):
            os.utime(found, (time.time() - 86400,) * 2, follow_symlinks=False)


def mark(path: Path, outside: Path, key: str, marker: str) -> None:
    place = path / f".vllm-operator-{key}"
    match marker:
        case "own":
            place.touch()
        case "of another":
            (path / ".vllm-operator-v0.1.0-tp1-00000000").touch()
        case "link":
            place.symlink_to(outside / "file")
        case "directory":
            place.mkdir()


def fill(path: Path, outside: Path, what: str) -> None:
    match what:
        case "empty directory":
            path.mkdir()
        case "link to a directory":
            path.symlink_to(outside)
        case "link to a file":
            path.symlink_to(outside / "file")
        case "hard link":
            os.link(outside / "file", path)
        case "fifo":
            os.mkfifo(path)
        case "odd name":
            (path.parent / "\n\udcff").write_bytes(b"x")
        case "read-only":
            path.mkdir()
            (path / "file").write_bytes(b"x")
            path.chmod(0o555)
        case _:
            path.mkdir()
            (path / "file").write_bytes(b"x" * 100)


def inventory(path: Path) -> dict[str, Any]:
    """All that is at and below a path: kind, inode, content."""
    found = {}
    for each in (path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())):
        status = each.lstat()
        content = each.read_bytes() if each.is_file() and not each.is_symlink() else b""
        found[os.fspath(each)] = (status.st_mode, status.st_ino, content)
    return found


def run(root: Path, **lists: set[str]) -> dict[str, Any]:
    report = root.parent / "report"
    variables = {f"CLEAN_{name.upper()}": json.dumps(sorted(values)) for name, values in lists.items()}
    fixed = {"CLEAN_ROOT": str(root), "CLEAN_SHARE": "100", "CLEAN_GRACE": "0", "CLEAN_REPORT": str(report)}
    with patch.dict(os.environ, {**variables, **fixed}), patch.object(clean_caches, "print", create=True), patch("signal.signal"):
        assert clean_caches.main() == 0
    told: dict[str, Any] = json.loads(report.read_text())
    return told


@contextmanager
def a_volume(entries: dict[str, Entry]) -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        root, outside = Path(folder) / "claim", Path(folder) / "outside"
        for path in (root, outside):
            path.mkdir()
        (outside / "file").write_text("theirs")
        for name, entry in entries.items():
            build(root, outside, name, entry)
        yield root, outside


@given(entries=VOLUMES, recorded=SUBSETS, keep=SUBSETS, doomed=SUBSETS)
def test_nothing_goes_but_what_is_recorded_and_marked_and_not_kept(
    entries: dict[str, Entry], recorded: set[str], keep: set[str], doomed: set[str]
) -> None:
    with a_volume(entries) as (root, outside):
        ours = {name for name, entry in entries.items() if entry.is_marked and key_of(name) in recorded}
        may_go = {name for name in ours if name not in keep}
        before = {name: inventory(root / name) for name in entries if name not in may_go}
        theirs = inventory(outside)
        told = run(root, recorded=recorded, keep=keep, doomed=doomed)
        assert {name: inventory(root / name) for name in before} == before
        assert inventory(outside).keys() == theirs.keys()
        assert (outside / "file").read_text() == "theirs"
        assert set(told["removed"]) <= {key_of(name) for name in may_go}
        gone = {name for name in may_go if name in KEYS and not os.path.lexists(root / name)}
        assert gone <= set(told["removed"])
        # a hard link was read when the inventory was taken: it counts as used
        unread = {name for name in may_go & set(KEYS) if not entries[name].is_recent and "hard link" not in entries[name].inside}
        idle = {name for name in unread if f".leaving-{name}" not in entries}
        if os.getuid() == 0:
            assert idle <= gone | set(told["kept"])
        assert told["others"] == len(set(os.listdir(root)) - keep - {"lost+found"} - _ours_on(root, recorded))


def _ours_on(root: Path, recorded: set[str]) -> set[str]:
    volume = clean_caches.Volume(str(root), recorded, set())
    return {name for name in os.listdir(root) if volume.is_ours(name, key_of(name))}


@settings(deadline=None)
@given(entries=VOLUMES, seed=st.integers(0, 2**32))
def test_files_that_vanish_or_come_while_it_runs_stop_nothing(entries: dict[str, Entry], seed: int) -> None:
    """Somebody deletes and creates files in the very directories that are being looked at and deleted."""
    chance = random.Random(seed)
    with a_volume(entries) as (root, outside):
        foreign = {name for name, entry in entries.items() if not (entry.is_marked and key_of(name) in KEYS)}
        before = {name: inventory(root / name) for name in foreign}
        victims = [path for name in entries if name not in foreign for path in (root / name).rglob("*")]
        lstat, listdir = os.lstat, os.listdir  # what the program looks with; it imports the same module

        def meddle() -> None:
            if victims and chance.random() < 0.3:
                victim = chance.choice(victims)
                try:
                    victim.unlink() if chance.random() < 0.5 else (victim.parent / f"new-{chance.random()}").touch()
                except OSError:
                    return

        def meddling_lstat(path: Any, **more: Any) -> os.stat_result:
            meddle()
            return lstat(path, **more)

        def meddling_listdir(path: Any) -> list[str]:
            found = listdir(path)
            meddle()
            return found

        with patch("os.lstat", meddling_lstat), patch("os.listdir", meddling_listdir):
            run(root, recorded=set(KEYS), keep=set(), doomed=set())
        assert {name: inventory(root / name) for name in foreign} == before
        assert (outside / "file").read_text() == "theirs"

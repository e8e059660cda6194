"""The machine of a new user: no Go, nothing cached, and a server with the release binaries."""

import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from testenv.binaries import CONTROL_PLANE, ensure_binaries
from testenv.releases import DATA, MIRROR, PLAIN_FILE, checksum_of

NEEDED = (*CONTROL_PLANE, "kwok", "kubectl")
"""The binaries of the demo."""
HIDDEN = frozenset({"go", "gofmt", "helm", "promtool", *NEEDED})
"""Programs that a new user need not have."""


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

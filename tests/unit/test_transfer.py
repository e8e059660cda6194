"""`kubectl vllm caches export` and `import`: a file that other tools read, and nothing from a hostile one."""

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from support.artifacts import FILES, fill
from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.__main__ import kubectl_plugin
from vllm_operator.caches.scripts.artifact import ArtifactError
from vllm_operator.caches.scripts.layout_file import LayoutFile, find_members
from vllm_operator.caches.transfer import EXEC
from vllm_operator.cli import transfer
from vllm_operator.cli.errors import INPUT_ERROR_STATUS, InputError
from vllm_operator.cluster.client import POD

LEFT_OUT = ("cache_key_factors.json", ".lock", "grammar.db")
EXPECTED = {name: content for name, content in FILES.items() if not name.endswith(LEFT_OUT)}


class Kubectl:
    """Runs the program of a Pod here, as `kubectl exec` does there, with another root of the caches."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pods: list[dict[str, Any]] = []

    async def __call__(self, pod: dict[str, Any], *, source: IO[bytes] | None, target: IO[bytes] | None) -> tuple[int, str]:
        self.pods.append(pod)
        (container,) = pod["spec"]["containers"]
        variables = {entry["name"]: entry.get("value", "") for entry in container["env"]}
        for name in ("EXPORT_ARTIFACT", "IMPORT_ARTIFACT"):
            if name in variables:
                variables[name] = json.dumps(json.loads(variables[name]) | {"root": str(self.root), "pause": 0})
        command = [*EXEC[:2], EXEC[2].replace("python3", sys.executable)]
        done = await asyncio.to_thread(
            subprocess.run, command, env=variables, stdin=source, stdout=target, stderr=subprocess.PIPE, check=False, timeout=100
        )
        return done.returncode, done.stderr.decode() + f"command terminated with exit code {done.returncode}\n"


class Running:
    """A cluster in which Pods that are created run at once."""

    def __init__(self, bench: Bench) -> None:
        self._cluster = bench.cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        created = await self._cluster.create(manifest)
        status = {"phase": "Running", "containerStatuses": [{"name": "transfer", "state": {"running": {"startedAt": "x"}}}]}
        self._cluster.edit(POD, "default", manifest["metadata"]["name"], {"status": status})
        return created


def cluster(fleet: Fleet) -> Any:
    return Running(fleet.bench)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def aged(root: Path) -> Path:
    for path in fill(root).rglob("*"):
        os.utime(path, (time.time() - 100, time.time() - 100.5))
    return root


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.parent != root}


async def export(fleet: Fleet, tmp_path: Path) -> tuple[Path, Kubectl]:
    await fleet.serve()
    fleet.ready(fleet.start())
    kubectl = Kubectl(aged(tmp_path / "filled"))
    file = tmp_path / "caches.tar"
    status = await transfer.export_caches(cluster(fleet), "default", "llama", file, execute=kubectl)
    assert status == transfer.DONE_STATUS
    return file, kubectl


async def bring(fleet: Fleet, root: Path, file: Path) -> int:
    os.makedirs(root, exist_ok=True)
    return await transfer.import_caches(cluster(fleet), "default", "llama", file, execute=Kubectl(root))


async def test_what_was_exported_is_imported_with_its_times(fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, kubectl = await export(fleet, tmp_path)
    assert "has the caches of llama: tag v0.20.1-sm90-h100" in capsys.readouterr().out
    assert await bring(fleet, tmp_path / "empty", file) == transfer.DONE_STATUS
    assert files_of(tmp_path / "empty") == EXPECTED
    for name in EXPECTED:
        assert (tmp_path / "empty" / name).stat().st_mtime_ns == (kubectl.root / name).stat().st_mtime_ns // 10**9 * 10**9
    state = json.loads((tmp_path / "empty" / ".vllm-operator-artifact").read_text())
    assert (state["state"], state["digest"]) == ("Installed", transfer.check_file(file)[1])
    assert [pod["metadata"]["name"] for pod in fleet.bench.cluster.all(POD)] == ["llama-1"], "no Pod is left"
    assert await bring(fleet, tmp_path / "empty", file) == transfer.FAILED_STATUS
    assert "already has the caches of" in capsys.readouterr().err


async def test_equal_caches_give_equal_files_in_the_form_of_an_oci_layout(fleet: Fleet, tmp_path: Path) -> None:
    file, _ = await export(fleet, tmp_path)
    first = file.read_bytes()
    status = await transfer.export_caches(cluster(fleet), "default", "llama", file, execute=Kubectl(tmp_path / "filled"))
    assert (status, file.read_bytes()) == (transfer.DONE_STATUS, first)
    with tarfile.open(file) as archive:
        names = archive.getnames()
        index = json.load(archive.extractfile("index.json") or io.BytesIO())
        layout = json.load(archive.extractfile("oci-layout") or io.BytesIO())
    assert layout == {"imageLayoutVersion": "1.0.0"}
    (image,) = index["manifests"]
    assert f"blobs/{image['digest'].replace(':', '/')}" in names
    tag, digest = transfer.check_file(file)
    assert (image["digest"], image["annotations"]["org.opencontainers.image.ref.name"]) == (digest, tag)


async def test_the_pod_has_no_more_than_it_needs(fleet: Fleet, tmp_path: Path) -> None:
    _, kubectl = await export(fleet, tmp_path)
    (pod,) = kubectl.pods
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert (spec["nodeName"], spec["automountServiceAccountToken"], spec["restartPolicy"]) == ("node-1", False, "Never")
    assert spec["activeDeadlineSeconds"] == 3600
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert set(container["resources"]) == {"requests"}
    assert container["volumeMounts"][0] == {"name": "claim", "mountPath": "/cache", "subPath": fleet.key(), "readOnly": True}
    assert {volume["name"] for volume in spec["volumes"]} == {"claim", "temporary"}
    assert "app.kubernetes.io/instance" not in pod["metadata"]["labels"], "the operator must not take it for one of its own"


def damaged(change: Callable[[bytearray], object]) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        data = bytearray(content)
        change(data)
        return bytes(data)

    return damage


def rewritten(rename: Callable[[tarfile.TarInfo], object], *, twice: bool = False) -> Callable[[bytes], bytes]:
    """The same members with other headers."""

    def rewrite(content: bytes) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=io.BytesIO(content)) as source, tarfile.open(fileobj=out, mode="w") as target:
            for info in [it for it in source.getmembers() for _ in range(1 + twice)]:
                data = source.extractfile(info)
                rename(info)
                target.addfile(info, data if info.isreg() else None)
        return out.getvalue()

    return rewrite


def link_to_a_file(info: tarfile.TarInfo) -> None:
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"


def put_outside(info: tarfile.TarInfo) -> None:
    info.name = f"../../{info.name}"


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "no tar": lambda content: b"x" * 4096,
    "truncated": lambda content: content[: len(content) // 2],
    "a bit of the layer": damaged(
        lambda data: data.__setitem__(data.index(b"\x1f\x8b\x08") + 200, data[data.index(b"\x1f\x8b\x08") + 200] ^ 1)
    ),
    "a bit of the index": damaged(lambda data: data.__setitem__(data.index(b"sha256:") + 9, ord("z"))),
    "each member twice": rewritten(lambda info: None, twice=True),
    "links in place of files": rewritten(link_to_a_file),
    "names outside of the layout": rewritten(put_outside),
}


@pytest.mark.parametrize("damage", HOSTILE.values(), ids=HOSTILE)
async def test_a_damaged_or_hostile_file_is_refused_before_a_pod_exists(
    fleet: Fleet, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    file, _ = await export(fleet, tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    writes = list(fleet.bench.cluster.writes)
    with pytest.raises(ArtifactError):
        await bring(fleet, tmp_path / "empty", file)
    assert fleet.bench.cluster.writes == writes


async def test_the_program_in_the_pod_trusts_the_file_no_more(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, _ = await export(fleet, tmp_path)
    file.write_bytes(HOSTILE["a bit of the layer"](file.read_bytes()))
    monkeypatch.setattr(transfer, "check_file", lambda path: ("", ""))
    assert await bring(fleet, tmp_path / "empty", file) == transfer.FAILED_STATUS
    assert "Error:" in capsys.readouterr().err
    assert names_in(tmp_path / "empty") == []


async def test_caches_of_another_image_or_gpu_are_refused(fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, _ = await export(fleet, tmp_path)
    await fleet.change(engine={"version": "0.24.0"}, cache={"priming": "Never"})
    assert await bring(fleet, tmp_path / "empty", file) == transfer.FAILED_STATUS
    assert "this engine needs v0.24.0" in capsys.readouterr().err
    assert files_of(tmp_path / "empty") == {}


async def test_an_interrupted_export_leaves_no_file_and_no_pod(fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await fleet.serve()

    async def fail(pod: dict[str, Any], *, source: IO[bytes] | None, target: IO[bytes] | None) -> tuple[int, str]:
        assert target is not None
        target.write(b"half")
        return 137, "command terminated with exit code 137"

    status = await transfer.export_caches(cluster(fleet), "default", "llama", tmp_path / "caches.tar", execute=fail)
    assert status == transfer.FAILED_STATUS
    assert "ended with status 137" in capsys.readouterr().err
    assert names_in(tmp_path) == []
    assert fleet.bench.cluster.all(POD) == []


async def test_where_there_is_nothing_to_export(fleet: Fleet, tmp_path: Path) -> None:
    await fleet.serve(cache={"storage": "EmptyDir"})
    with pytest.raises(InputError, match="on no PersistentVolumeClaim that its Pods share"):
        await transfer.export_caches(cluster(fleet), "default", "llama", tmp_path / "caches.tar", execute=Kubectl(tmp_path))


async def test_a_packed_file_is_not_exported(fleet: Fleet, tmp_path: Path) -> None:
    await fleet.serve(cache={"layout": "Packed"})
    with pytest.raises(InputError, match="one packed file, which is not exported; set"):
        await transfer.export_caches(cluster(fleet), "default", "llama", tmp_path / "caches.tar", execute=Kubectl(tmp_path))
    assert fleet.bench.cluster.all(POD) == []


def test_a_file_that_does_not_exist_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert kubectl_plugin(["caches", "import", "llama", str(tmp_path / "none.tar"), "-n", "models"]) == INPUT_ERROR_STATUS
    assert "Error:" in capsys.readouterr().err


def test_members_that_a_layout_does_not_have_are_not_looked_at() -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in ("./oci-layout", "manifest.json", "blobs/sha256/short", "blobs/sha512/" + "a" * 64):
            info = tarfile.TarInfo(name)
            archive.addfile(info, io.BytesIO())
    assert list(find_members(content)) == ["oci-layout"]
    with pytest.raises(ArtifactError, match="no index"):
        LayoutFile(content).find_manifest()

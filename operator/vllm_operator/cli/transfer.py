"""`kubectl vllm caches export NAME -o FILE` and `caches import NAME FILE`: caches as a file, for clusters without a registry in common.

The file is an OCI image layout in a tar. Both commands start a Pod on the PersistentVolumeClaim of the caches with the user's account, run
a program in it with `kubectl exec`, and delete the Pod. The user needs the permissions to create, get and delete Pods and to create
`pods/exec`, and `kubectl` on the path.

Exit status: 0, 1 if nothing was exported or imported, 2 if the cluster, the object or the file cannot be used.
"""

import argparse
import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Protocol

from pydantic import ValidationError

from vllm_operator.api.labels import KIND
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.scripts.artifact import LABEL, ArtifactError
from vllm_operator.caches.scripts.layout_file import COPY_BYTES, LayoutFile
from vllm_operator.caches.transfer import EXEC, TRANSFER_CONTAINER, render_transfer
from vllm_operator.catalog.caches import load_caches
from vllm_operator.cli.errors import InputError
from vllm_operator.cli.live import connected, find_plans, namespace_or_current
from vllm_operator.cli.revisions import with_pinned_plan
from vllm_operator.cluster.client import DEPLOYMENT, POD, VLLM_DEPLOYMENT, ClusterClient, Conflict, Manifest
from vllm_operator.cluster.observe import find_pods
from vllm_operator.planning.presets import with_pinned_preset
from vllm_operator.pods import reading
from vllm_operator.pods.view import Phase, read_pod
from vllm_operator.text import wording

DONE_STATUS, FAILED_STATUS = 0, 1
START_SECONDS = 300
_FAILED = (Phase.IMAGE_PULL_FAILED, Phase.CONTAINER_FAILED, Phase.CRASHED, Phase.FAILED)


class Execute(Protocol):
    """Runs the program in a Pod with these files as standard input and output; returns its exit status and what it printed."""

    def __call__(self, pod: Manifest, *, source: IO[bytes] | None, target: IO[bytes] | None) -> Awaitable[tuple[int, str]]:
        """Run it."""


def run(arguments: argparse.Namespace) -> int:
    """Export or import; return the exit status. Raises InputError if the cluster, the object or the file cannot be used."""
    try:
        return asyncio.run(_connect(arguments))
    except (ArtifactError, OSError) as error:
        raise InputError(f"{arguments.file} cannot be used: {error}") from error


async def _connect(arguments: argparse.Namespace) -> int:
    namespace = await namespace_or_current(arguments.namespace)
    async with connected(f"{KIND} {arguments.name} in the namespace {namespace}") as client:
        act = export_caches if arguments.transfer == "export" else import_caches
        return await act(client, namespace, arguments.name, Path(arguments.file), execute=execute)


async def export_caches(client: ClusterClient, namespace: str, name: str, file: Path, *, execute: Execute) -> int:
    """Write the caches of a VLLMDeployment to a file; return the exit status.

    Raises:
        InputError: The object cannot be exported.
        ClusterError: The cluster refuses or does not answer.
        OSError: The file cannot be written.
    """
    context = await read_context(client, namespace, name)
    if context.plan.cache_packing is not None:
        raise InputError(f"the caches of {name} are one packed file, which is not exported; set spec.cache.layout to Files first")
    pod = render_transfer(context, load_caches(), "export")
    part = file.with_name(f"{file.name}.part")
    try:
        with part.open("xb") as target:
            result = await _run(client, pod, lambda running: execute(running, source=None, target=target))
        if result.get("result") != "Exported":
            return _failed(result)
        try:
            tag, digest = check_file(part)
        except ArtifactError as error:
            return _failed({"message": f"What arrived is damaged: {error}"})
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    print(f"{file} has the caches of {name}: tag {tag}, digest {digest}, {wording.count(result.get('files', 0), 'file')}.")
    return DONE_STATUS


async def import_caches(client: ClusterClient, namespace: str, name: str, file: Path, *, execute: Execute) -> int:
    """Fill the empty caches of a VLLMDeployment from a file; return the exit status.

    Raises:
        InputError: Nothing can be imported for the object.
        ArtifactError: The file is not one that `export` wrote.
        ClusterError: The cluster refuses or does not answer.
        OSError: The file cannot be read.
    """
    check_file(file)
    pod = render_transfer(await read_context(client, namespace, name), load_caches(), "import")
    with file.open("rb") as source:
        result = await _run(client, pod, lambda running: execute(running, source=source, target=None))
    if result.get("result") not in ("Fetched", "PartlyFetched"):
        return _failed(result)
    print(f"The caches of {name} are filled: tag {_text(result, 'tag')}, {wording.count(result.get('files', 0), 'file')}.")
    if result["result"] == "PartlyFetched":
        print("They are of another model or of other settings, so a part is built at the first start.")
    return DONE_STATUS


async def read_context(client: ClusterClient, namespace: str, name: str) -> CacheContext:
    """Read a VLLMDeployment with its plan, its Deployment and its Pods. Raises InputError and ClusterError."""
    manifest = await client.get(VLLM_DEPLOYMENT, name, namespace)
    plans = await find_plans(client, namespace, name)
    try:
        resource = with_pinned_preset(with_pinned_plan(VLLMDeployment.parse(manifest), plans))
    except ValidationError as error:
        raise InputError(f"the spec of {name} is not valid; see its condition Ready") from error
    if resource.pinned is None:
        raise InputError(f"{name} has no plan yet; see its conditions Accepted and Planned")
    deployment = await client.get(DEPLOYMENT, name, namespace)
    context = CacheContext(
        resource=resource,
        plan=resource.pinned,
        desired=deployment,
        now=datetime.now(UTC),
        pods=await find_pods(client, namespace, name),
    )
    if context.address is None:
        raise InputError(f"the caches of {name} are on no PersistentVolumeClaim that its Pods share")
    if context.address.key != resource.pinned.cache_key:
        raise InputError(f"a rollout of {name} waits for its caches; try again when CacheWarm no longer says Priming")
    return context


async def _run(client: ClusterClient, pod: Manifest, act: Callable[[Manifest], Awaitable[tuple[int, str]]]) -> dict[str, Any]:
    """Create the Pod, run the program in it, and delete it. Return what the program reported."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    try:
        created = await client.create(pod)
    except Conflict:
        raise InputError(f"Pod {name} exists: another transfer is under way. If none is, delete it") from None
    try:
        await _wait_until_running(client, name, namespace)
        status, printed = await act(created)
    finally:
        await client.delete(POD, name, namespace, uid=created["metadata"].get("uid"))
    for line in reversed(printed.splitlines()):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return {"message": f"The program in the Pod ended with status {status}: {wording.clean(printed[-600:]) or 'no message'}"}


async def _wait_until_running(client: ClusterClient, name: str, namespace: str) -> None:
    """Wait until the container runs. Raises InputError if it cannot."""
    for _ in range(START_SECONDS):
        pod = await client.get(POD, name, namespace)
        container = reading.named(pod, TRANSFER_CONTAINER, "status", "containerStatuses", key="name")
        if reading.mapping(container, "state", "running"):
            return
        view = read_pod(pod)
        if view.phase in _FAILED:
            raise InputError(f"Pod {name} cannot start: {wording.clean(f'{view.reason} {view.message}', 300)}")
        await asyncio.sleep(1)
    raise InputError(f"Pod {name} did not start within {START_SECONDS} s: {wording.clean(f'{view.phase} {view.message}', 300)}")


async def execute(pod: Manifest, *, source: IO[bytes] | None, target: IO[bytes] | None) -> tuple[int, str]:
    """Run the program in the Pod with `kubectl exec`. Raises InputError without kubectl."""
    metadata = pod["metadata"]
    flags = ["exec", "--namespace", metadata["namespace"], metadata["name"], "--container", TRANSFER_CONTAINER]
    try:
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            *flags,
            *(["--stdin"] if source is not None else []),
            "--",
            *EXEC,
            stdin=source if source is not None else asyncio.subprocess.DEVNULL,
            stdout=target if target is not None else asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except FileNotFoundError:
        raise InputError("kubectl is not on the path, and is needed to run a program in a Pod") from None
    _, errors = await process.communicate()
    return process.returncode or 0, errors.decode(errors="replace")


def check_file(path: Path) -> tuple[str, str]:
    """Check all digests of a file; return the tag and the digest of its artifact. Raises ArtifactError and OSError."""
    with path.open("rb") as file:
        layout = LayoutFile(file)
        content, digest, _ = layout.find_manifest()
        try:
            manifest = json.loads(content)
            config = json.loads(layout.small_blob(str(manifest["config"]["digest"]), int(manifest["config"]["size"])))
            (layer,) = manifest["layers"]
            name, size, tag = str(layer["digest"]), int(layer["size"]), str(config["config"]["Labels"][f"{LABEL}tag"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ArtifactError("Rejected", "The image in it is not one of a cache.") from None
        seen, found = hashlib.sha256(), 0
        with layout.blob(name) as part:
            while data := part.read(COPY_BYTES):
                seen.update(data)
                found += len(data)
        if f"sha256:{seen.hexdigest()}" != name or found != size:
            raise ArtifactError("Rejected", f"The content of {name[:80]} is another one.")
    return wording.clean(tag, 128), digest


def _failed(result: dict[str, Any]) -> int:
    print(f"Error: {_text(result, 'message') or _text(result, 'result') or 'the program reported nothing'}", file=sys.stderr)
    return FAILED_STATUS


def _text(result: dict[str, Any], name: str) -> str:
    return wording.clean(str(result.get(name) or ""), 600)

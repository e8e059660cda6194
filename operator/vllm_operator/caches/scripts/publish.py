"""Publishes a filled cache directory as an artifact. Runs in a Job in the engine's image that mounts the directory read-only.

    PUBLISH_ARTIFACT   JSON, see `publish`

With the setting `ready`, it runs beside an engine, and waits until the engine says that it is ready.

The first writer of a tag wins: if the tag exists, nothing is packed. Files may change while they are read, because an engine serves with
them. Then everything is packed again.
"""

import http.client
import json
import os
import platform
import ssl
import tempfile
import time
from typing import Any

from vllm_operator.caches.scripts.artifact import COLD_LABEL, LABEL, MAX_BYTES, ArtifactError, run_with_report, start_deadline, travel_key
from vllm_operator.caches.scripts.build import FACTS_LABEL, build_fingerprint, describe_build
from vllm_operator.caches.scripts.pack import Entry, Packed, digest_of, pack, take_inventory
from vllm_operator.caches.scripts.registry import Registry, read_manifest

DEADLINE_SECONDS = 840
QUIET_SECONDS = 10
PAUSE_SECONDS = 5
ENGINE_SECONDS = 7 * 86_400
"""How long an engine may take to be ready. Its startup probe ends before."""
PACK_ATTEMPTS = 20
SECRETS = "SECRET_"
"""Prefix of the variables with values that must not be published."""
MIN_SECRET = 8
"""Shorter values occur everywhere by chance."""


def run_publish() -> int:
    """Publish; return the exit status."""
    return run_with_report("PUBLISH_ARTIFACT", publish_when_ready, deadline=DEADLINE_SECONDS, good=("Published", "AlreadyPublished"))


def publish_when_ready(settings: dict[str, Any]) -> dict[str, Any]:
    """Publish, after the engine in the same Pod serves, if the settings have its readiness probe.

    Raises:
        ArtifactError: It was not published.
    """
    if settings.get("ready"):
        start_deadline(ENGINE_SECONDS)
        wait_for_engine(settings["ready"], pause=float(settings.get("pause", PAUSE_SECONDS)))
        start_deadline(float(settings.get("deadline", DEADLINE_SECONDS)))
    return publish(settings)


def wait_for_engine(probe: dict[str, Any], *, pause: float) -> None:
    """Wait until the engine in the same Pod answers with the status 200. The kubelet ends an engine that takes too long."""
    while True:
        try:
            if is_ready(probe):
                return
        except (OSError, http.client.HTTPException):
            pass  # it does not listen yet
        time.sleep(pause)


def is_ready(probe: dict[str, Any]) -> bool:
    """Ask the engine as its readiness probe does, which does not check certificates either."""
    if probe["scheme"] == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection("127.0.0.1", probe["port"], timeout=10, context=context)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", probe["port"], timeout=10)
    try:
        connection.request("GET", probe["path"])
        return connection.getresponse().status == 200
    finally:
        connection.close()


def publish(settings: dict[str, Any]) -> dict[str, Any]:
    """Pack and push.

    Raises:
        ArtifactError: It was not published.
    """
    base, tag = travel_key(settings["readable"], settings["parts"], settings["settings"], build_fingerprint(settings.get("image", "")))
    registry = Registry(settings["repository"], settings.get("secret", ""), settings.get("scheme", "https"), push=True)
    if (there := find_present(registry, tag, base)) is not None:
        return {"result": "AlreadyPublished", "tag": tag, "digest": there}
    with tempfile.TemporaryFile() as file:
        cold = {COLD_LABEL: str(settings["coldSeconds"])} if settings.get("coldSeconds") else {}
        made_with = json.dumps(describe_build(settings), sort_keys=True)
        packed = pack_unchanged(settings, file, {f"{LABEL}base": base, f"{LABEL}tag": tag, FACTS_LABEL: made_with, **cold})
        if packed.size > int(settings.get("maxBytes") or MAX_BYTES):
            raise ArtifactError("TooLarge", f"The caches have {packed.size} bytes.")
        push(registry, packed, file)
    if (there := find_present(registry, tag, base)) is not None:
        return {"result": "AlreadyPublished", "tag": tag, "digest": there}
    registry.push_manifest(tag, packed.manifest)
    if not registry.has(f"manifests/{base}"):
        registry.push_manifest(base, packed.manifest)
    sizes = {"files": packed.files, "bytes": packed.size, "packedBytes": packed.layer_size}
    return {"result": "Published", "tag": tag, "digest": packed.digest, **sizes}


def find_present(registry: Registry, tag: str, base: str) -> str | None:
    """Return the digest of the artifact that the tag already has; None without one."""
    try:
        content, digest = registry.manifest(tag)
    except ArtifactError as error:
        if error.reason == "NotFound":
            return None
        raise
    try:
        read_manifest(registry, content, base)
    except ArtifactError as error:
        raise ArtifactError("TagTaken", f"The tag {tag} has something else, {digest}: {error}") from None
    return digest


def pack_unchanged(settings: dict[str, Any], file: Any, labels: dict[str, str]) -> Packed:
    """Pack the directory while nothing in it changes."""
    root, folders, excluded, whole = settings["root"], settings["folders"], settings["excluded"], settings["whole"]
    values = (value.strip() for name, value in os.environ.items() if name.startswith(SECRETS))
    secrets = tuple({value.encode() for value in values if len(value) >= MIN_SECRET})
    for _ in range(PACK_ATTEMPTS):
        try:
            inventory = take_inventory(root, folders, excluded, whole)
            if is_quiet(inventory, float(settings.get("quiet", QUIET_SECONDS))):
                file.seek(0)
                file.truncate()
                packed = pack(
                    root,
                    inventory,
                    file,
                    labels=labels,
                    architecture=settings["architecture"],
                    machine=platform.machine(),
                    mounts=settings["mounts"],
                    secrets=secrets,
                    scans=bool(settings.get("scans", True)),
                )
                if take_inventory(root, folders, excluded, whole) == inventory:
                    return packed
        except FileNotFoundError as error:
            print(f"{error.filename} vanished; once more", flush=True)
        except ArtifactError as error:
            if error.reason != "Changing":
                raise
            print(f"{error}; once more", flush=True)
        time.sleep(float(settings.get("pause", PAUSE_SECONDS)))
    raise ArtifactError("Changing", "The engine kept changing its caches.")


def is_quiet(inventory: list[Entry], seconds: float) -> bool:
    """Return whether nothing was written for a while. A time in the future counts as long ago."""
    now = time.time()
    return not any(0 <= now - entry.mtime_ns / 1e9 < seconds for entry in inventory)


def push(registry: Registry, packed: Packed, file: Any) -> None:
    """Push the blobs."""
    with tempfile.TemporaryFile() as config:
        config.write(packed.config)
        registry.push_blob(digest_of(packed.config), config, len(packed.config))
    registry.push_blob(packed.layer_digest, file, packed.layer_size)

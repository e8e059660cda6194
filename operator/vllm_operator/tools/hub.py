"""Downloads weights and LoRA adapters from the model hub. Runs in the engine's image, which has huggingface_hub.

`fetch-weights` runs in a Job without a GPU. `FETCH_WEIGHTS` is JSON: `{repository, revision}`; without a revision, it is that of the hub's
default branch. The revision is resolved to a commit first, and exactly that commit is downloaded to the cache of the hub's client. Existing
files are not downloaded again. A partial file is continued by versions of the client that support it, otherwise it is restarted. Progress
is printed as the bars that the operator reads in logs of engines. The result is a line of JSON in the termination message: `{result,
message, commit, bytes, needed, free}`. `result` is `Fetched`, `Denied`, `NotFound`, `NoSpace`, `Unreachable` or `Failed`.

`fetch-adapters` runs before the engine starts. `ADAPTERS` is a JSON list of `{name, uri, repository, revision, path, token}`: `path` is the
link to make to the files, and `token` the file with the token, if the adapter has a separate one. If the hub is unavailable, an earlier
download is used. Every adapter is tried, and each failure has a separate line.

Exit status: 0 if all files are available, otherwise 1. The kubelet then restarts the program.
"""

import contextlib
import fnmatch
import glob
import json
import os
import re
import signal
import sys
import threading
import time
from typing import Any

from vllm_operator.tools.artifact import DISK_ERRORS, ArtifactError, report

FORMATS = ("*.safetensors", "*.bin", "*.pt")
"""Formats of weights in the order in which vLLM prefers them (model_executor/model_loader/default_loader.py, `_prepare_weights`)."""
OTHER_FORMATS = (*FORMATS, "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.gguf", "*.ot", "*.tflite", "*.npz")
SMALL_BYTES = 64 * 2**20
"""Maximum size of files that are fetched in any format. Dense layers of embedding models may have another format than the rest."""
MARGIN_BYTES = 64 * 2**20
"""Space for small files and the metadata of the file system."""
REPORT_SECONDS = 5.0
UNIQUE = re.compile(r"\.[0-9a-f]{8}\.incomplete$")
"""Names of partial files that no later process continues (huggingface_hub 2, file_download.py, `_download_to_tmp_and_move`)."""
STALE_SECONDS = 600
"""Time without a write after which a partial file is a leftover of a killed process. Other partial files may belong to an engine."""
MAX_REASON = 300
UNREACHABLE = ("ConnectionError", "ConnectError", "Timeout", "TimeoutException", "TransportError", "OfflineModeIsEnabled")
"""Names of errors, because the libraries of huggingface_hub differ between its versions."""
ADAPTER_FILES = ["*.json", "adapter_model.*", "new_embeddings.*", "tokenizer.model", "*.txt"]
NOT_ADAPTER_FILES = ["*/*"]
"""Training checkpoints, which adapters often contain, are in folders."""
REQUIRED = "adapter_config.json"


def files_to_fetch(sizes: dict[str, int]) -> dict[str, int]:
    """Return the files to fetch: all but the weights in formats that the engine does not read."""
    top = [name for name in sizes if "/" not in name]
    chosen = next((pattern for pattern in FORMATS if fnmatch.filter(top, pattern)), None)
    others = [pattern for pattern in OTHER_FORMATS if pattern != chosen]
    return {
        name: size for name, size in sizes.items() if size <= SMALL_BYTES or not any(fnmatch.fnmatch(name, pattern) for pattern in others)
    }


def fetch_weights(settings: dict[str, Any]) -> dict[str, Any]:
    """Download a model, and return the result. Raises any exception of huggingface_hub."""
    from huggingface_hub import HfApi, constants, snapshot_download

    repository = settings["repository"]
    info = HfApi().model_info(repository, revision=settings.get("revision"), files_metadata=True)
    siblings = {entry.rfilename: entry for entry in info.siblings or ()}
    sizes = files_to_fetch({name: entry.size or 0 for name, entry in siblings.items()})
    root = constants.HF_HUB_CACHE
    blobs = os.path.join(root, f"models--{repository.replace('/', '--')}", "blobs")
    os.makedirs(blobs, exist_ok=True)
    remove_leftovers(blobs, time.time())
    total = sum(sizes.values())
    missing = sum(bytes_left(blobs, blob_of(siblings[name]), size) for name, size in sizes.items())
    disk = os.statvfs(root)
    free = disk.f_bavail * disk.f_frsize
    print(f"{repository}, commit {info.sha}: {total} bytes, {missing} of them to download; {free} bytes are free", flush=True)
    if missing and missing + MARGIN_BYTES > free:
        raise ArtifactError("NoSpace", "The volume has too little space.", needed=missing + MARGIN_BYTES, free=free)
    threading.Thread(target=report_progress, args=(blobs, total, missing, bytes_in(blobs)), daemon=True).start()
    folder = snapshot_download(repository, revision=info.sha, allow_patterns=[glob.escape(name) for name in sizes])
    absent = [name for name, size in sizes.items() if siblings[name].size is not None and not has_size(os.path.join(folder, name), size)]
    if absent:
        raise ArtifactError("Failed", f"{len(absent)} files are missing or have another size, such as {absent[0]}.")
    return {"result": "Fetched", "commit": info.sha}


def has_size(path: str, size: int) -> bool:
    """Return whether a file exists and has this size."""
    return os.path.exists(path) and os.path.getsize(path) == size


def blob_of(entry: Any) -> str | None:
    """Return the name of a file in the cache of the client: its ETag."""
    of_lfs = entry.lfs.get("sha256") if isinstance(entry.lfs, dict) else getattr(entry.lfs, "sha256", None)
    name: str | None = of_lfs or entry.blob_id
    return name


def bytes_left(blobs: str, blob: str | None, size: int) -> int:
    """Return how many bytes of a file are not downloaded yet."""
    path = os.path.join(blobs, blob or "")
    if blob is not None and os.path.exists(path):
        return 0
    return size if blob is None else max(0, size - bytes_on_disk(f"{path}.incomplete"))


def remove_leftovers(blobs: str, now: float) -> None:
    """Delete partial files that no process writes or continues."""
    for name in os.listdir(blobs):
        path = os.path.join(blobs, name)
        with contextlib.suppress(FileNotFoundError):
            if UNIQUE.search(name) and now - os.stat(path).st_mtime > STALE_SECONDS:
                os.unlink(path)
                print(f"deleted {name}, a leftover of an interrupted download", flush=True)


def handle_termination(*_: Any) -> None:
    """Exit immediately, and delete the partial files of this process that no later process continues."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if UNIQUE.search(path):
                os.unlink(path)
    os._exit(143)


def bytes_on_disk(path: str) -> int:
    """Return the bytes of a file on the disk. A file may have its full size before its content."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return min(found.st_size, found.st_blocks * 512)
    return 0


def bytes_in(folder: str) -> int:
    """Return the bytes of the files in a folder on the disk."""
    with os.scandir(folder) as entries:
        return sum(bytes_on_disk(entry.path) for entry in entries)


def report_progress(blobs: str, total: int, missing: int, base: int) -> None:
    """Print bars of tqdm until the process ends. `missing` of `total` bytes are to be added to the directory `blobs` with `base` bytes."""
    begun = time.monotonic()
    while total:
        fetched, elapsed = max(0, bytes_in(blobs) - base), time.monotonic() - begun
        done = min(total, total - missing + fetched)
        rest = clock(elapsed / fetched * (total - done)) if fetched and elapsed > 1 else "?"
        percent, amounts = done * 100 // total, f"{done / 10**6:.1f}M/{total / 10**6:.1f}M"  # small models show progress in this unit, too
        bar = f"{percent:3}%|{'#' * (percent // 10):10}| {amounts} [{clock(elapsed)}<{rest}]"
        print(f"Downloading weights: {bar}", flush=True)
        time.sleep(REPORT_SECONDS)


def clock(seconds: float) -> str:
    """Return a duration in the format of tqdm."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute:02}:{second:02}"


def describe(error: BaseException) -> dict[str, Any]:
    """Return the result for an error."""
    if isinstance(error, ArtifactError):
        return {"result": error.reason, "message": str(error), **error.facts}
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", None)
    message = f"{type(error).__name__}: {' '.join(without_token(str(error)).split())[:MAX_REASON]}"
    if getattr(error, "errno", None) in DISK_ERRORS:
        return {"result": "NoSpace", "message": "The volume became full during the download."}
    if "GatedRepoError" in kinds or status in (401, 403):
        return {"result": "Denied", "message": message}
    if kinds & {"RepositoryNotFoundError", "RevisionNotFoundError"} or status == 404:
        return {"result": "NotFound", "message": message}
    if kinds & set(UNREACHABLE) or (status or 0) >= 429:
        return {"result": "Unreachable", "message": message}
    cause = error.__cause__ or error.__context__
    if cause is not None:
        found = describe(cause)
        return found if found["result"] != "Failed" else {"result": "Failed", "message": message}
    return {"result": "Failed", "message": message}


def without_token(text: str) -> str:
    """Return the text without the token for the hub."""
    try:
        from huggingface_hub import get_token

        token = get_token()
    except Exception:  # the error itself is more important than this precaution
        return text
    return text.replace(token, "***") if token else text


def main_weights() -> int:
    """Fetch the weights, and write the result."""
    # The first process of a container ignores this signal unless it handles it.
    signal.signal(signal.SIGTERM, handle_termination)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    try:
        result = fetch_weights(json.loads(os.environ["FETCH_WEIGHTS"]))
    except Exception as error:  # the status of the VLLMDeployment must name every error
        result = describe(error)
    report(result, "FETCH_REPORT")
    return 0 if result["result"] == "Fetched" else 1


def fetch_adapter(adapter: dict[str, str]) -> None:
    """Download one adapter, and link its path to it. Raises any exception of huggingface_hub."""
    from huggingface_hub import snapshot_download

    token = None
    if adapter.get("token"):
        with open(adapter["token"], encoding="utf-8") as file:
            token = file.read().strip()
    folder = snapshot_download(
        adapter["repository"],
        revision=adapter.get("revision"),
        token=token,
        allow_patterns=ADAPTER_FILES,
        ignore_patterns=NOT_ADAPTER_FILES,
    )
    if not os.path.exists(os.path.join(folder, REQUIRED)):
        raise FileNotFoundError(f"it has no {REQUIRED}, so it is not a LoRA adapter")
    link(folder, adapter["path"])


def link(folder: str, path: str) -> None:
    """Make `path` a link to a folder, atomically, because other replicas may read it meanwhile."""
    if os.path.islink(path) and os.readlink(path) == folder:
        return
    if os.path.exists(path) and not os.path.islink(path):
        raise FileExistsError(f"{path} is not a link, and was left as it is")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.uname().nodename}"  # the hostname is the name of the Pod
    if os.path.islink(temporary):  # a container of this Pod was killed before the rename
        os.unlink(temporary)
    os.symlink(folder, temporary)
    os.replace(temporary, path)


def main_adapters() -> int:
    """Fetch all adapters."""
    failed = 0
    for adapter in json.loads(os.environ["ADAPTERS"]):
        revision = f", revision {adapter['revision']}" if adapter.get("revision") else ""
        try:
            fetch_adapter(adapter)
        except Exception as error:  # the next adapter may be available, and every failure must be reported
            failed = 1
            reason = " ".join(str(error).split())[:MAX_REASON] or "no reason given"
            what = f"Adapter {adapter['name']} ({adapter['uri']}{revision})"
            print(f"{what} cannot be fetched: {type(error).__name__}: {reason}", file=sys.stderr)
        else:
            print(f"Adapter {adapter['name']} ({adapter['uri']}{revision}) is in {adapter['path']}")
    return failed

"""Downloads LoRA adapters from the model hub. Runs in the engine's image, which has huggingface_hub, before the engine starts.

`ADAPTERS` is a JSON list of `{name, uri, repository, revision, path, token}`: `path` is the link to make to the files, and `token` the file
with the token, if the adapter has a separate one. Existing files are not downloaded again. If the hub is unavailable, an earlier download
is used. Every adapter is tried, and each failure has a separate line.

Exit status: 0 if all adapters are available, otherwise 1.
"""

import json
import os
import sys

WANTED = ["*.json", "adapter_model.*", "new_embeddings.*", "tokenizer.model", "*.txt"]
NOT_WANTED = ["*/*"]
"""Training checkpoints, which adapters often contain, are in folders."""
REQUIRED = "adapter_config.json"
MAX_REASON = 300


def fetch(adapter: dict[str, str]) -> None:
    """Download one adapter, and link its path to it.

    Raises:
        Exception: It cannot be downloaded, or is not an adapter.
    """
    from huggingface_hub import snapshot_download

    token = None
    if adapter.get("token"):
        with open(adapter["token"], encoding="utf-8") as file:
            token = file.read().strip()
    folder = snapshot_download(
        adapter["repository"], revision=adapter.get("revision"), token=token, allow_patterns=WANTED, ignore_patterns=NOT_WANTED
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


def main() -> int:
    """Fetch all adapters."""
    failed = 0
    for adapter in json.loads(os.environ["ADAPTERS"]):
        revision = f", revision {adapter['revision']}" if adapter.get("revision") else ""
        try:
            fetch(adapter)
        except Exception as error:  # the next adapter may be available, and every failure must be reported
            failed = 1
            reason = " ".join(str(error).split())[:MAX_REASON] or "no reason given"
            what = f"Adapter {adapter['name']} ({adapter['uri']}{revision})"
            print(f"{what} cannot be fetched: {type(error).__name__}: {reason}", file=sys.stderr)
        else:
            print(f"Adapter {adapter['name']} ({adapter['uri']}{revision}) is in {adapter['path']}")
    return failed

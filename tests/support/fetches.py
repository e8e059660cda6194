"""What init containers report that fetch caches from a registry, on a cluster in memory."""

import json
from typing import Any

from support.fleet import Fleet
from vllm_operator.kube.client import POD

REPOSITORY = "registry.example:5000/team/caches"
ARTIFACT = {"repository": REPOSITORY, "pullSecretRef": {"name": "read"}, "pushSecretRef": {"name": "write"}}
DIGEST = f"sha256:{'1' * 64}"
FETCHED = {"result": "Fetched", "tag": "tag-1", "digest": DIGEST, "seconds": 1.2, "bytes": 76_000_000, "files": 836, "coldSeconds": 459}


def fetched(fleet: Fleet, pod: str, result: dict[str, Any]) -> None:
    """The init container of a Pod has ended."""
    message = json.dumps({"seconds": 0.5, **result})
    ended = {"name": "fetch-caches", "state": {"terminated": {"exitCode": 0, "message": message}}, "ready": True}
    fleet.bench.cluster.edit(POD, "default", pod, {"status": {"initContainerStatuses": [ended]}})

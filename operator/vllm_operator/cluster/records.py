"""Writing annotations on a claim that several VLLMDeployments may share.

Only single annotations are touched, under a field manager of its own, so this works on claims that a user made as
well. The write fails if the claim has changed since it was read: who takes a lease must know that it was free.
"""

from collections.abc import Mapping

from vllm_operator.api import labels
from vllm_operator.cluster.client import CLAIM, ClusterClient, Manifest


async def annotate_claim(client: ClusterClient, claim: Manifest, changes: Mapping[str, str | None]) -> Manifest:
    """Set annotations of a claim, or remove those that are None; return the claim as it is then.

    Raises:
        Conflict: The claim has changed meanwhile; look again.
        ClusterError: It could not be written.
    """
    metadata = claim["metadata"]
    present: Mapping[str, str] = metadata.get("annotations") or {}
    changed = {name: value for name, value in changes.items() if value != present.get(name)}
    if not changed:
        return claim
    operations: list[Manifest] = [{"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}]
    if "annotations" not in metadata:
        operations.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    for name, value in changed.items():
        path = "/metadata/annotations/" + name.replace("~", "~0").replace("/", "~1")
        operations.append({"op": "remove", "path": path} if value is None else {"op": "add", "path": path, "value": value})
    return await client.patch(CLAIM, metadata["name"], metadata["namespace"], operations, manager=labels.CLAIM_FIELD_MANAGER)

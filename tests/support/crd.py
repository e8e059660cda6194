"""Installing the committed CRD on the control plane of the tests."""

import asyncio
from pathlib import Path

import yaml

from support.cluster import Cluster, Manifest, RefusedError

CRD: Manifest = yaml.safe_load((Path(__file__).parent.parent.parent / "crds" / "vllmdeployments.yaml").read_text("utf-8"))
SERVED_WITHIN = 15.0


async def install_crd(cluster: Cluster, crd: Manifest = CRD) -> None:
    """Apply a CRD, by default the committed one, and wait until the API server serves it with exactly this schema."""
    applied = await cluster.apply(crd)
    async with asyncio.timeout(SERVED_WITHIN):
        while True:
            if await _is_served(cluster, applied["metadata"]["generation"]):
                return
            await asyncio.sleep(0.05)


async def _is_served(cluster: Cluster, generation: int) -> bool:
    crd = await cluster.get("CustomResourceDefinition", CRD["metadata"]["name"])
    conditions = {c["type"]: c["status"] for c in (crd.get("status", {}).get("conditions") or [])}
    if conditions.get("Established") != "True" or crd["metadata"]["generation"] != generation:
        return False
    try:
        await cluster.list_all("VLLMDeployment")
    except RefusedError:
        return False
    return True

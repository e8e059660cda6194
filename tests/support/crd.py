"""Installing the committed CRDs on the control plane of the tests."""

import asyncio
from pathlib import Path

import yaml

from support.cluster import Cluster, Manifest, RefusedError

FOLDER = Path(__file__).parent.parent.parent / "crds"
CRD: Manifest = yaml.safe_load((FOLDER / "vllmdeployments.yaml").read_text("utf-8"))
PRESET_CRDS: list[Manifest] = [
    yaml.safe_load((FOLDER / f"{plural}.yaml").read_text("utf-8")) for plural in ("vllmpresets", "clustervllmpresets")
]
SERVED_WITHIN = 15.0


async def install_crd(cluster: Cluster, crd: Manifest = CRD) -> None:
    """Apply a CRD, by default the committed one and those of presets, and wait until the API server serves it with exactly this schema."""
    await _install(cluster, crd)
    if crd is CRD:
        await install_preset_crds(cluster)


async def install_preset_crds(cluster: Cluster) -> None:
    """The same for the kinds of presets."""
    for crd in PRESET_CRDS:
        await _install(cluster, crd)


async def remove_preset_crds(cluster: Cluster) -> None:
    """Remove the kinds of presets, with all presets."""
    for crd in PRESET_CRDS:
        name = crd["metadata"]["name"]
        await cluster.delete("CustomResourceDefinition", name)
        await cluster.wait_until_gone("CustomResourceDefinition", name)


async def _install(cluster: Cluster, crd: Manifest) -> None:
    applied = await cluster.apply(crd)
    async with asyncio.timeout(SERVED_WITHIN):
        while True:
            if await _is_served(cluster, crd, applied["metadata"]["generation"]):
                return
            await asyncio.sleep(0.05)


async def _is_served(cluster: Cluster, wanted: Manifest, generation: int) -> bool:
    crd = await cluster.get("CustomResourceDefinition", wanted["metadata"]["name"])
    conditions = {c["type"]: c["status"] for c in (crd.get("status", {}).get("conditions") or [])}
    if conditions.get("Established") != "True" or crd["metadata"]["generation"] != generation:
        return False
    try:
        await cluster.list_all(wanted["spec"]["names"]["kind"])
    except RefusedError:
        return False
    return True

"""From v1alpha1 to v1beta1 as docs/upgrade-policy.md says: both are served with the same fields, and nothing is lost on the way.

The CRD is a copy in a group of its own, so that no other test sees a second version.
"""

from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cluster import Cluster, Manifest, RefusedError
from support.crd import CRD
from support.engines import eventually

pytestmark = pytest.mark.cluster

GROUP = "versions.vllm-operator.dev"
NAME = f"vllmdeployments.{GROUP}"
OLD, NEW = "v1alpha1", "v1beta1"
EXAMPLES = [
    manifest
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text("utf-8"))
    if manifest and manifest["kind"] == "VLLMDeployment"
]


def crd(*, stored: str, served: tuple[str, ...]) -> Manifest:
    """The CRD at one step of the way: the version that is stored, and those that are served."""
    made = deepcopy(CRD)
    made["metadata"] = {"name": NAME}
    made["spec"]["group"] = GROUP
    [version] = made["spec"]["versions"]
    made["spec"]["versions"] = [deepcopy(version) | {"name": name, "storage": name == stored, "served": True} for name in served]
    return made


class Versions:
    """The objects of the copied CRD, by version."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def serve(self, *, stored: str, served: tuple[str, ...]) -> None:
        """Apply the CRD, and wait until exactly these versions are served."""
        await self._cluster.apply(crd(stored=stored, served=served))

        async def are_served() -> bool:
            return await self._served() == set(served)

        await eventually(are_served, within=30)

    async def _served(self) -> set[str]:
        try:
            group = await self._cluster.request("GET", f"/apis/{GROUP}")
            found = {version["version"] for version in group["versions"]}
            for version in found:
                await self._cluster.request("GET", self.path(version))
        except RefusedError:
            return set()
        return found

    def path(self, version: str, name: str = "") -> str:
        return f"/apis/{GROUP}/{version}/namespaces/{self._cluster.namespace}/vllmdeployments" + (f"/{name}" if name else "")

    async def create(self, version: str, manifest: Manifest) -> Manifest:
        body = manifest | {"apiVersion": f"{GROUP}/{version}", "metadata": {"name": manifest["metadata"]["name"]}}
        return dict(await self._cluster.request("POST", self.path(version), body=body))

    async def get(self, version: str, name: str) -> Manifest:
        return dict(await self._cluster.request("GET", self.path(version, name)))

    async def replace(self, version: str, manifest: Manifest) -> Manifest:
        return dict(await self._cluster.request("PUT", self.path(version, manifest["metadata"]["name"]), body=manifest))

    async def stored_versions(self) -> list[str]:
        return list((await self._cluster.get("CustomResourceDefinition", NAME))["status"]["storedVersions"])

    async def forget_stored(self, version: str) -> None:
        """Say that no object is stored in this version any more, as a storage migration does at its end."""
        kept = [it for it in await self.stored_versions() if it != version]
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}/status"
        body = {"status": {"storedVersions": kept}}
        await self._cluster.request("PATCH", path, body=body, content_type="application/merge-patch+json")


@pytest.fixture
async def versions(cluster: Cluster) -> AsyncIterator[Versions]:
    yield Versions(cluster)
    await cluster.delete("CustomResourceDefinition", NAME)
    await cluster.wait_until_gone("CustomResourceDefinition", NAME)


def content(resource: Manifest) -> tuple[Any, Any]:
    """What must not change with the version."""
    return resource["spec"], resource.get("status")


async def test_every_example_comes_back_as_it_was_from_the_next_version_and_outlives_the_old_one(versions: Versions) -> None:
    await versions.serve(stored=OLD, served=(OLD,))
    made = {example["metadata"]["name"]: await versions.create(OLD, example) for example in EXAMPLES}
    assert len(made) > 40

    await versions.serve(stored=NEW, served=(OLD, NEW))
    for name, before in made.items():
        read = await versions.get(NEW, name)
        assert read["apiVersion"] == f"{GROUP}/{NEW}"
        assert content(read) == content(before)
        written = await versions.replace(NEW, read)  # stores it in the new version
        assert content(await versions.get(OLD, name)) == content(before)
        assert written["metadata"]["generation"] == before["metadata"]["generation"], "a conversion is no change of the spec"

    assert await versions.stored_versions() == [OLD, NEW]
    await versions.forget_stored(OLD)
    await versions.serve(stored=NEW, served=(NEW,))
    for name, before in made.items():
        assert content(await versions.get(NEW, name)) == content(before)


async def test_what_one_version_refuses_the_other_refuses_in_the_same_words(versions: Versions) -> None:
    await versions.serve(stored=OLD, served=(OLD, NEW))
    wrong = {"kind": "VLLMDeployment", "metadata": {"name": "wrong"}, "spec": {"model": {"uri": "ftp://models/llama"}, "replicas": -1}}
    words = []
    for version in (OLD, NEW):
        with pytest.raises(RefusedError) as refused:
            await versions.create(version, wrong)
        words.append(refused.value.message)
    assert words[0] == words[1]
    assert "spec.replicas" in words[0]

"""Python's bytecode on the volume, with images that hold none, forbid it, or bring their own."""

import pytest

from support.cluster import Cluster
from support.engines import COMPILED_ENGINE_IMAGE, ENGINE_IMAGE, model, the_engine, until_ready
from support.operator_process import has

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

SOURCE = "/engine/engine/start.py"
KEPT = "/cache/bytecode/engine/engine/start."
OWN = "/engine/engine/__pycache__/start."
LOCKED = {
    "securityContext": {"runAsNonRoot": True, "runAsUser": 1_000_680_000},
    "containers": [{"name": "vllm", "securityContext": {"readOnlyRootFilesystem": True}}],
}


async def start(cluster: Cluster) -> str:
    """What Python says of a module of the engine, in the log of the Pod that serves."""
    await until_ready(cluster)
    pod = await the_engine(cluster)
    log = await cluster.read_log(pod["metadata"]["name"])
    return "\n".join(line for line in log.splitlines() if "engine/start." in line)


@pytest.mark.parametrize("locked", [False, True], ids=["as root", "as any user, on a root file system that is read-only"])
@pytest.mark.parametrize("image", [ENGINE_IMAGE, COMPILED_ENGINE_IMAGE], ids=["without bytecode, which forbids it", "with its own"])
async def test_the_second_container_of_an_image_compiles_nothing(cluster: Cluster, image: str, locked: bool) -> None:
    resource = model(cluster, speed="200", pod=LOCKED if locked else None)
    resource["spec"]["engine"]["image"] = image
    resource["spec"]["engine"]["env"].append({"name": "PYTHONVERBOSE", "value": "1"})
    await cluster.create(resource)
    first = await start(cluster)
    assert f"created '{KEPT}" in first
    await cluster.delete("Pod", (await the_engine(cluster))["metadata"]["name"])
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "False"), within=60)
    second = await start(cluster)
    assert (KEPT in second and f" matches {SOURCE}" in second, "created" in second) == (True, False)


async def test_an_image_with_bytecode_of_its_own_uses_it_where_the_prefix_is_set_to_nothing(cluster: Cluster) -> None:
    resource = model(cluster, speed="200")
    resource["spec"]["engine"]["image"] = COMPILED_ENGINE_IMAGE
    resource["spec"]["engine"]["env"] += [{"name": "PYTHONVERBOSE", "value": "1"}, {"name": "PYTHONPYCACHEPREFIX", "value": ""}]
    await cluster.create(resource)
    said = await start(cluster)
    assert (OWN in said and f" matches {SOURCE}" in said, KEPT in said, "created" in said) == (True, False, False)

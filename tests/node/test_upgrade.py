"""The chart is upgraded to a next version and rolled back on a real node: engines run on, and the new operator does the work."""

import asyncio
import shutil
from pathlib import Path

import pytest
import yaml

from nodeenv import NodeEnvironment
from support import helm
from support.cluster import Cluster
from support.engines import model, nothing_moved, the_engine, until_ready
from support.operator_pods import OPERATOR
from support.operator_process import condition
from vllm_operator import __version__

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

REPOSITORY = "ghcr.io/vllm-operator/vllm-operator"
NEXT = "0.2.0"
NEW_FIELD = "fieldOfTheNextVersion"


def package_next(folder: Path) -> Path:
    """Package this chart as the next version, whose CRD has one more field of the spec; return the package."""
    chart = folder / "next" / "vllm-operator"
    shutil.copytree(helm.CHART, chart)
    path = chart / "files" / "vllmdeployments.yaml"
    crd = yaml.safe_load(path.read_text())
    [version] = crd["spec"]["versions"]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][NEW_FIELD] = {"type": "string"}
    path.write_text(yaml.safe_dump(crd))
    helm.run("package", chart, "--version", NEXT, "--app-version", NEXT, "--destination", folder)
    return folder / f"vllm-operator-{NEXT}.tgz"


async def move(environment: NodeEnvironment, *command: str | Path) -> None:
    """Run `helm upgrade` or `helm rollback` as docs/operations.md says, and wait."""
    settings = ("--namespace", helm.NAMESPACE, "--wait", "--timeout", "90s")
    await asyncio.to_thread(helm.run, *command, *settings, kubeconfig=environment.kubeconfig)


async def versions_of_the_operator(cluster: Cluster) -> set[str]:
    pods = await cluster.list_all("Pod", namespace=helm.NAMESPACE, selector=OPERATOR)
    running = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    return {container["image"].removeprefix(f"{REPOSITORY}:") for pod in running for container in pod["spec"]["containers"]}


async def serve(cluster: Cluster, name: str) -> tuple[str, object]:
    """Serve one more model; return the version whose programs its Pod runs, and what the API server kept of the new field."""
    manifest = model(cluster, name=name, speed="200")
    manifest["spec"][NEW_FIELD] = "kept"
    made = await cluster.create(manifest)
    await until_ready(cluster, name)
    tools = (await the_engine(cluster, name))["spec"]["initContainers"][0]["image"]
    return tools.removeprefix(f"{REPOSITORY}:"), made["spec"].get(NEW_FIELD)


async def test_an_upgrade_and_its_rollback_restart_no_engine_and_each_operator_serves_new_models(
    cluster: Cluster, environment: NodeEnvironment, tmp_path: Path
) -> None:
    await cluster.create(model(cluster, speed="200"))
    await until_ready(cluster)
    before = await the_engine(cluster)
    image = f"{REPOSITORY}:{NEXT}"
    await asyncio.to_thread(environment.images.tag, f"{REPOSITORY}:{__version__}", image)
    await asyncio.to_thread(environment.load_image, image)

    await move(environment, "upgrade", helm.RELEASE, package_next(tmp_path))
    try:
        assert await versions_of_the_operator(cluster) == {NEXT}
        assert await serve(cluster, "after-the-upgrade") == (NEXT, "kept")
        await nothing_moved(cluster, before)
        await cluster.delete("VLLMDeployment", "after-the-upgrade")
    finally:
        await move(environment, "rollback", helm.RELEASE)
    assert await versions_of_the_operator(cluster) == {__version__}
    assert await serve(cluster, "after-the-rollback") == (__version__, None)
    await nothing_moved(cluster, before)
    assert condition(await cluster.get("VLLMDeployment", "llama"), "PlanDrifted").get("status", "False") == "False"

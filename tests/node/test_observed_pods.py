"""Pods of other tools on a real kubelet get the diagnosis of ours: their own templates, with an engine that crashes as a real one did."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nodeenv import NodeEnvironment
from support import helm
from support.cluster import Cluster
from support.engines import ENGINE_IMAGE, model
from support.operator_pods import OPERATOR
from support.operator_process import has
from support.peers import PEERS

pytestmark = [pytest.mark.node, pytest.mark.extended, pytest.mark.timeout(900)]

TOOLS = ("kserve", "llm-d", "production-stack", "dynamo", "kaito", "deployment")
CRASH, SIGNATURE = "gpu-util-too-low", "NoKvCacheMemory"
PROGRAMS = """\
FROM {image}
RUN mkdir -p /opt/venv/bin /workspace/vllm /engine/dynamo && touch /engine/dynamo/__init__.py && \\
    ln -s /usr/local/bin/vllm /opt/venv/bin/vllm
COPY serve.py /engine/dynamo/vllm.py
COPY serve.py /workspace/vllm/inference_api.py
ENTRYPOINT ["vllm", "serve", "model"]
"""
"""Where the images of these tools have what their commands run."""
SERVE = 'import os, sys\n\nos.execvp("vllm", ["vllm", "serve", "model", *sys.argv[1:]])\n'


@pytest.fixture(scope="module")
def images(environment: NodeEnvironment, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The images that the templates name."""
    folder = tmp_path_factory.mktemp("peers")
    (folder / "Dockerfile").write_text(PROGRAMS.format(image=ENGINE_IMAGE))
    (folder / "serve.py").write_text(SERVE)
    names = {container["image"] for tool in TOOLS for container in PEERS[tool][1]["spec"]["containers"]}
    for name in sorted(names):
        full = name if "." in name.partition("/")[0] else f"docker.io/{name}"
        environment.images.build(full, folder)
        environment.load_image(full)


@pytest.fixture
async def observed(environment: NodeEnvironment, cluster: Cluster, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A namespace in which the operator observes Pods."""
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"observe": {"enabled": True, "namespaces": [cluster.namespace]}}))
    settings = ("--namespace", helm.NAMESPACE, "--wait", "--timeout", "120s")

    async def move(*command: str | Path) -> None:
        await asyncio.to_thread(helm.run, *command, *settings, kubeconfig=environment.kubeconfig)

    await move("upgrade", helm.RELEASE, helm.CHART, "--reuse-values", "--values", values)
    yield cluster
    await move("rollback", helm.RELEASE)


def pod(tool: str) -> dict[str, Any]:
    """A Pod of a tool whose engine crashes. Another container of it does nothing."""
    engine, template = PEERS[tool]
    crash = {"imagePullPolicy": "Never", "env": [{"name": "ENGINE_CRASH", "value": CRASH}, {"name": "ENGINE_SPEED", "value": "200"}]}
    idle = {"imagePullPolicy": "Never", "command": ["sleep", "1000"]}
    containers = [{**each, **(crash if each["name"] == engine else idle)} for each in template["spec"]["containers"]]
    return {**template, "metadata": {**template["metadata"], "name": tool}, "spec": {**template["spec"], "containers": containers}}


async def test_pods_of_other_tools_are_diagnosed_like_ours_and_nothing_but_events_is_written(observed: Cluster, images: None) -> None:
    await observed.create(model(observed, speed="200", crash=CRASH))
    for tool in TOOLS:
        await observed.create(pod(tool))
    crashed = await observed.wait_for("VLLMDeployment", "llama", has("Crashed", "True", SIGNATURE), within=120)
    cause = crashed["status"]["lastCrash"]["cause"]
    for tool in TOOLS:
        event = await observed.wait_for_event(tool, SIGNATURE, within=180)
        assert event["involvedObject"]["kind"] == "Pod"
        assert cause in event["message"], tool
        assert "What to do: " in event["message"], tool
    operators = {each["metadata"]["name"] for each in await observed.list_all("Pod", namespace=helm.NAMESPACE, selector=OPERATOR)}
    assert len(operators) == 2
    for tool in TOOLS:
        managers = {entry["manager"] for entry in (await observed.get("Pod", tool))["metadata"]["managedFields"]}
        assert not any("vllm" in manager for manager in managers), managers

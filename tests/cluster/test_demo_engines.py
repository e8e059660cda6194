"""The engines of the demo on a real API server: they start as their spec says, also after a person has changed it."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from demo.pods import Player
from demo.situations import MANIFESTS
from support.cluster import Cluster, Manifest
from support.operator_process import OperatorProcess, condition, has
from testenv.binaries import find_binary

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
async def demo(served: Cluster) -> AsyncIterator[Cluster]:
    """The test's namespace as that of the demo, where starts are replayed a hundred times as fast."""
    [namespace, _] = yaml.safe_load_all((MANIFESTS / "namespace.yaml").read_text("utf-8"))
    await served.patch("Namespace", served.namespace, {"metadata": {"annotations": namespace["metadata"]["annotations"]}})
    environment = served.simulated
    player = Player(environment.control_plane.client(), environment.log_root, namespace=served.namespace, speed=100)
    playing = asyncio.create_task(player.play())
    yield served
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)


def of_the_test(path: Path, cluster: Cluster) -> Manifest:
    manifest: Manifest = yaml.safe_load(path.read_text("utf-8"))
    manifest["metadata"]["namespace"] = cluster.namespace
    return manifest


async def in_a_shell(command: str, kubeconfig: Path) -> int:
    environment = {"PATH": f"{Path(str(find_binary('kubectl'))).parent}:{os.environ['PATH']}", "KUBECONFIG": str(kubeconfig)}
    process = await asyncio.create_subprocess_exec("bash", "-c", command, env=environment)
    return await process.wait()


def messages(resource: Manifest) -> str:
    return "\n".join(each["message"] for each in resource["status"]["conditions"])


@pytest.mark.usefixtures("operator")
async def test_the_printed_command_mends_the_crash_and_no_figure_is_invented(demo: Cluster) -> None:
    await demo.create(of_the_test(MANIFESTS / "c-mig-uuid.yaml", demo))
    crashed = await demo.wait_for("VLLMDeployment", "tinyllama", lambda it: bool(it.get("status", {}).get("lastCrash", {}).get("command")))
    assert condition(crashed, "Crashed")["reason"] == "MigUuidNotInteger"
    assert await in_a_shell(crashed["status"]["lastCrash"]["command"], demo.kubeconfig) == 0
    serving = await demo.wait_for("VLLMDeployment", "tinyllama", has("Ready", "True"))
    assert serving["spec"]["engine"]["env"] == []
    told = await demo.wait_for("VLLMDeployment", "tinyllama", lambda it: bool(it["status"].get("cache", {}).get("state")))
    assert "measured" not in messages(told)


async def test_jobs_of_the_demo_end_as_jobs_do(demo: Cluster, operator: OperatorProcess) -> None:
    manifest = of_the_test(EXAMPLES / "prefetched-weights.yaml", demo)
    await demo.create(manifest)
    serving = await demo.wait_for("VLLMDeployment", manifest["metadata"]["name"], has("Ready", "True"), within=60)
    assert "Completed" not in messages(serving) + operator.log
    assert "measured" not in messages(serving)

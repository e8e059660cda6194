"""`kubectl vllm diagnose POD` on a real API server: the page of `diagnose`, from the log and the status of a Pod."""

import asyncio
import os
import sys

import pytest

from support.cluster import Cluster, Simulator
from support.stories import LOADING, RUNNING, TOO_LONG, in_order

pytestmark = [pytest.mark.cluster, pytest.mark.extended]


async def diagnose(cluster: Cluster, *words: str) -> tuple[int, str]:
    """Runs the plugin; returns its exit status and what it printed."""
    code = "import sys; from vllm_operator.__main__ import kubectl_plugin; sys.exit(kubectl_plugin())"
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, "diagnose", *words, env=environment, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def make_pod(cluster: Cluster, sim: Simulator, **script: str) -> None:
    await sim.script(pull="0", **script)
    container = {"name": "engine", "image": "vllm/vllm-openai:v0.20.1"}
    await cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "any"},
            "spec": {"containers": [container], "tolerations": [{"operator": "Exists"}]},
        }
    )


async def test_a_pod_that_crashed_is_explained_whoever_made_it(served: Cluster, sim: Simulator) -> None:
    await make_pod(served, sim, path="crash", crash_after="hold", crash_times="1", load="hold")
    await served.wait_for("Pod", "any", lambda p: "running" in (p["status"].get("containerStatuses") or [{}])[0].get("state", {}))
    log = sim.log("any", container="engine")
    log.write(RUNNING + LOADING + TOO_LONG)
    log.exit()
    await sim.change("any", crash_after="0")
    await served.wait_for("Pod", "any", lambda p: (p["status"].get("containerStatuses") or [{}])[0].get("restartCount") == 1)
    sim.log("any", container="engine", run=1).write(RUNNING)
    status, page = await diagnose(served, "pod/any", "-n", served.namespace, "--previous")
    assert status == 0, page
    assert in_order(page, "Pod any on node", "Crashed during weight load: MaxModelLenExceedsKvCache", "What happened", "16.00 GiB", "5568")
    status, json = await diagnose(served, "any", "-n", served.namespace, "-p", "-o", "json")
    assert (status, '"signature": "MaxModelLenExceedsKvCache"' in json) == (0, True)


async def test_a_pod_without_a_log_is_explained_by_its_status(served: Cluster, sim: Simulator) -> None:
    await make_pod(served, sim, path="imagepull")
    await served.wait_for("Pod", "any", lambda p: "ImagePullBackOff" in str(p["status"].get("containerStatuses")))
    status, page = await diagnose(served, "any", "-n", served.namespace)
    assert status == 0, page
    assert "cannot pull image vllm/vllm-openai:v0.20.1" in page


async def test_a_pod_that_does_not_exist_is_an_error_in_one_line(served: Cluster) -> None:
    told = await diagnose(served, "nobody", "-n", served.namespace)
    assert told == (2, f"Error: there is no Pod nobody in the namespace {served.namespace}\n")

"""Crashes of real containers, as a kubelet shows them, and what is told of them."""

from typing import Any

import pytest

from nodeenv import NodeEnvironment
from support.cluster import Cluster, Manifest
from support.engines import container, model, the_engine, told_once, until_ready
from support.operator_process import condition, has, problem

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

# name: how the engine ends, the reason that must be told, the exit code
CRASHES: dict[str, tuple[dict[str, Any], str, int]] = {
    "it finds no compiler": ({"crash": "no-c-compiler"}, "TritonLauncherCompileFailed", 1),
    "it may not download the model": ({"crash": "HfGatedRepo"}, "HfGatedRepo", 1),
    "it ends without a word": ({"crash": "exit:3"}, "UnknownCrash", 3),
    "it is ended by a segmentation fault": ({"crash": "exit:139"}, "NativeCodeCrash", 139),
}


@pytest.mark.parametrize("name", CRASHES)
async def test_a_crash_is_reported_by_name_with_its_remedy(cluster: Cluster, name: str) -> None:
    settings, reason, exit_code = CRASHES[name]
    await cluster.create(model(cluster, speed="200", **settings))
    crashed = await cluster.wait_for("VLLMDeployment", "llama", has("Crashed", "True", reason), within=90)
    message = condition(crashed, "Crashed")["message"]
    assert f"with exit code {exit_code}" in message
    assert "What to do: " in message
    assert has("Ready", "False", reason)(crashed)


async def test_a_crash_loop_stays_reported_with_one_event_and_one_rollout(cluster: Cluster) -> None:
    await cluster.create(model(cluster, speed="200", crash="HfGatedRepo"))
    await cluster.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "HfGatedRepo"), within=90)
    seen: list[str] = []

    def note(resource: Manifest) -> bool:
        seen.append(condition(resource, "Crashed")["reason"])
        return int(resource["status"]["lastCrash"].get("restarts", 0)) >= 2

    await cluster.wait_for("VLLMDeployment", "llama", note, within=120)
    assert set(seen) == {"HfGatedRepo"}
    assert (await told_once(cluster)).count("HfGatedRepo") == 1
    assert (await cluster.get("Deployment", "llama"))["metadata"]["generation"] == 1


async def recovered_from(cluster: Cluster) -> int:
    """The exit code of the crash that a later start has made good; its log is read for a while after that."""

    def is_examined(resource: Manifest) -> bool:
        return has("Ready", "True")(resource) and not condition(resource, "Crashed") and "lastCrash" in resource["status"]

    done = await cluster.wait_for("VLLMDeployment", "llama", is_examined, within=60)
    return int(done["status"]["lastCrash"]["exitCode"])


async def test_a_start_that_succeeds_makes_a_crash_good(cluster: Cluster) -> None:
    await cluster.create(model(cluster, speed="200", crash="exit:3", crash_times="1"))
    await until_ready(cluster)
    assert await recovered_from(cluster) == 3


async def test_an_engine_that_crashes_while_it_serves_is_reported_and_serves_again(cluster: Cluster) -> None:
    await cluster.create(model(cluster, speed="200", crash="exit:139", crash_at="serving", crash_times="1"))
    await until_ready(cluster)
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "False"), within=60)
    assert await recovered_from(cluster) == 139
    await until_ready(cluster)


async def test_an_engine_that_takes_too_much_memory_is_reported_as_such(cluster: Cluster) -> None:
    limited = container(resources={"requests": {"cpu": "10m"}, "limits": {"memory": "128Mi"}})
    await cluster.create(model(cluster, speed="200", crash="memory", pod=limited))
    crashed = await cluster.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "OOMKilled"), within=90)
    message = condition(crashed, "Crashed")["message"]
    assert "with exit code 1 " in message or "with exit code 137 " in message
    assert "memory" in message


async def test_a_start_that_takes_too_long_is_reported_as_such_and_not_as_a_crash_of_the_engine(cluster: Cluster) -> None:
    # spec.startup.deadlineSeconds does the same; it allows a minute at least
    impatient = container(startupProbe={"failureThreshold": 2, "periodSeconds": 5}) | {"terminationGracePeriodSeconds": 1}
    await cluster.create(model(cluster, speed="200", crash="silence", pod=impatient))
    crashed = await cluster.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "StartupProbeFailed"), within=90)
    assert "deadlineSeconds" in condition(crashed, "Crashed")["message"]


async def test_a_damaged_cache_is_quarantined_and_the_next_start_serves(cluster: Cluster, environment: NodeEnvironment) -> None:
    await cluster.create(model(cluster, speed="200"))
    before = await until_ready(cluster)
    claim = await cluster.get("PersistentVolumeClaim", "llama-cache")
    volume = environment.folder / "volumes" / claim["spec"]["volumeName"]
    [damaged] = volume.rglob("triton/0/kernel.cubin")
    damaged.write_bytes(b"")
    await cluster.delete("Pod", (await the_engine(cluster))["metadata"]["name"])
    await cluster.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "TritonKernelImageInvalid"), within=90)
    done = await until_ready(cluster)
    assert done["status"]["cache"]["key"] != before["status"]["cache"]["key"] or done["status"]["cache"]["generation"]
    assert damaged.exists()


async def test_a_full_volume_is_reported_and_served_from_once_there_is_room(cluster: Cluster, environment: NodeEnvironment) -> None:
    name = f"small-{cluster.namespace}"
    volume = environment.add_small_volume(name, kibibytes=2048)
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}, "storageClassName": "", "volumeName": name}
    await cluster.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "mine"}, "spec": claim})
    environment.node.fill(volume / "of-somebody-else", kibibytes=1900)
    full = model(cluster, speed="200", spec={"cache": {"claimName": "mine"}})
    # the bytecode of the Python that plays the engine is larger than this volume (what a full one does to it: test_cache_repair.py)
    full["spec"]["engine"]["env"].append({"name": "PYTHONPYCACHEPREFIX", "value": ""})
    await cluster.create(full)
    crashed = await cluster.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "DiskFull"), within=90)
    assert "full" in condition(crashed, "Crashed")["message"]
    environment.node.remove(volume / "of-somebody-else")
    await until_ready(cluster, within=180)


async def test_an_image_that_does_not_exist_is_reported(cluster: Cluster) -> None:
    manifest = model(cluster)
    manifest["spec"]["engine"]["image"] = "docker.io/library/no-such-image:test"
    await cluster.create(manifest)
    told = await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ImagePullFailed"), within=60)
    assert "no-such-image" in problem(told)
    right = {"spec": {"engine": {"image": model(cluster)["spec"]["engine"]["image"]}}}
    await cluster.patch("VLLMDeployment", "llama", right)
    await until_ready(cluster)


async def test_an_image_for_another_processor_is_reported(cluster: Cluster) -> None:
    await cluster.create(model(cluster, pod=container(command=["vllm-arm64", "serve"])))
    crashed = await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ExecFormatError"), within=90)
    assert "arm64" in condition(crashed, "Crashed")["message"]

"""Caches as one packed file on a volume, on a real kubelet: from files to packed without a cold start, and from an empty volume."""

import json
from typing import Any

import pytest

from support.cluster import Cluster, Manifest
from support.engines import ENGINE, eventually, model, seconds_to_serve, the_engine, until_ready
from support.operator_process import condition

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

SPEED = "20"


def report_of(pod: Manifest, container: str) -> dict[str, Any]:
    """What an init container reported."""
    status = next(it for it in pod["status"]["initContainerStatuses"] if it["name"] == container)
    return dict(json.loads(status["state"]["terminated"]["message"]))


async def next_engine(cluster: Cluster, before: Manifest) -> Manifest:
    """The Pod that replaces another one, when it is ready and its start is in the status."""

    async def is_ready() -> Manifest | None:
        pods = [pod for pod in await cluster.list_all("Pod", selector=ENGINE) if not pod["metadata"].get("deletionTimestamp")]
        pods = [pod for pod in pods if pod["metadata"]["uid"] != before["metadata"]["uid"]]
        conditions = [it for pod in pods for it in pod["status"].get("conditions", ()) if it["type"] == "Ready" and it["status"] == "True"]
        return pods[0] if len(pods) == 1 and conditions else None

    return dict(await eventually(is_ready, within=120))


async def is_warm(cluster: Cluster, text: str) -> Manifest:
    def says(resource: Manifest) -> bool:
        warm = condition(resource, "CacheWarm")
        return warm.get("status") == "True" and text in warm["message"]

    return await cluster.wait_for("VLLMDeployment", "llama", says, within=60)


async def test_files_become_one_packed_file_and_every_start_stays_warm(cluster: Cluster) -> None:
    await cluster.create(model(cluster, speed=SPEED))
    await until_ready(cluster)
    cold = await the_engine(cluster)
    cold_seconds = await seconds_to_serve(cluster, cold)
    assert report_of(cold, "mark-cache")["fileMicroseconds"] > 0
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"cache": {"layout": "Packed"}}})
    second = await next_engine(cluster, cold)
    assert report_of(second, "unpack-caches")["result"] == "Fetched"
    assert await seconds_to_serve(cluster, second) * 5 < cold_seconds
    resource = await is_warm(cluster, "were unpacked from one file on the volume")
    assert resource["status"]["cache"]["layout"] == "Packed"
    await cluster.delete("Pod", second["metadata"]["name"])
    third = await next_engine(cluster, second)
    assert report_of(third, "unpack-caches")["result"] == "Fetched"
    assert await seconds_to_serve(cluster, third) * 5 < cold_seconds
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"cache": {"layout": "Files"}}})
    fourth = await next_engine(cluster, third)
    assert [it["name"] for it in fourth["spec"]["initContainers"]] == ["mark-cache"]
    assert await seconds_to_serve(cluster, fourth) * 5 < cold_seconds  # the files are still there


async def test_a_cold_start_is_packed_when_the_engine_is_ready(cluster: Cluster) -> None:
    await cluster.create(model(cluster, speed=SPEED, spec={"cache": {"layout": "Packed"}}))
    await until_ready(cluster)
    cold = await the_engine(cluster)
    cold_seconds = await seconds_to_serve(cluster, cold)
    assert report_of(cold, "unpack-caches")["result"] == "NotFound"

    async def is_packed() -> bool:
        return '"Packed"' in await cluster.read_log(cold["metadata"]["name"], container="pack-caches")

    await eventually(is_packed, within=60)
    await cluster.delete("Pod", cold["metadata"]["name"])
    warm = await next_engine(cluster, cold)
    assert report_of(warm, "unpack-caches")["result"] == "Fetched"
    assert await seconds_to_serve(cluster, warm) * 5 < cold_seconds
    assert (await cluster.get("Deployment", "llama"))["metadata"]["generation"] == 1

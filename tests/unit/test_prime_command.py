"""`vllm-operator prime` on a cluster in memory."""

import asyncio
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.fleet import Fleet
from support.operators import Bench, llama
from vllm_operator.api.labels import PRIME_ANNOTATION
from vllm_operator.cli.requests import prime
from vllm_operator.kube.client import VLLM_DEPLOYMENT, Kind, NotFound, Unavailable


async def test_it_asks_waits_and_tells(bench: Bench, fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    await fleet.serve(replicas=0)
    command = asyncio.create_task(prime(bench.cluster, "default", "llama", timeout_seconds=20, look_seconds=0))
    await asyncio.sleep(0.01)
    assert bench.resource()["metadata"]["annotations"] == {PRIME_ANNOTATION: fleet.key()}
    await fleet.settle()
    fleet.ready(fleet.start("llama.primer"))
    await asyncio.sleep(0.01)
    await fleet.settle()
    assert await command == 0
    said = capsys.readouterr().out
    assert "A helper Pod compiles kernels" in said
    assert f"The caches of llama are filled (cache key {fleet.key()})." in said


async def test_it_does_not_wait_where_it_is_asked_only_to_request(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=0)
    assert await prime(bench.cluster, "default", "llama", timeout_seconds=0, look_seconds=0) == 0
    assert bench.resource()["metadata"]["annotations"] == {PRIME_ANNOTATION: fleet.key()}


async def test_it_gives_up_in_the_end(bench: Bench, fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    await fleet.serve(replicas=0)
    assert await prime(bench.cluster, "default", "llama", timeout_seconds=0.05, look_seconds=0) == 1
    assert "not filled within 0.05 s. The operator continues" in capsys.readouterr().out


@pytest.mark.parametrize("timeout_seconds", [0, 0.05])
async def test_it_does_not_wait_forever_for_a_plan(
    bench: Bench, timeout_seconds: float, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_operator.cli.requests.PLAN_SECONDS", 0.05)
    bench.cluster.put(llama())
    command = prime(bench.cluster, "default", "llama", timeout_seconds=timeout_seconds, look_seconds=0)
    assert await asyncio.wait_for(command, 10) == 1
    assert "llama has no plan yet" in capsys.readouterr().out


async def test_an_outage_of_the_api_server_does_not_end_the_command(bench: Bench, fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    await fleet.serve(replicas=0)
    command = asyncio.create_task(prime(bench.cluster, "default", "llama", timeout_seconds=20, look_seconds=0))
    await asyncio.sleep(0.01)
    bench.cluster.fail("get", VLLM_DEPLOYMENT, Unavailable("it restarts"), times=3)
    await asyncio.sleep(0.01)
    await fleet.settle()
    fleet.ready(fleet.start("llama.primer"))
    await asyncio.sleep(0.01)
    await fleet.settle()
    assert await command == 0
    assert "The API server is not available: it restarts" in capsys.readouterr().out


async def test_an_annotation_that_somebody_adds_meanwhile_stays(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=0)
    cluster, theirs = bench.cluster, [{"op": "add", "path": "/metadata/annotations", "value": {"theirs": "kept"}}]

    class Raced(FakeCluster):
        async def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any]:
            found = await cluster.get(kind, name, namespace)
            if "annotations" not in found["metadata"]:
                await cluster.patch(VLLM_DEPLOYMENT, "llama", "default", theirs, manager="somebody")
            return found

        apply = cluster.apply

    assert await prime(Raced(), "default", "llama", timeout_seconds=0, look_seconds=0) == 0
    assert bench.resource()["metadata"]["annotations"] == {"theirs": "kept", PRIME_ANNOTATION: fleet.key()}


async def test_what_is_not_shared_cannot_be_filled_ahead(bench: Bench, fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    await fleet.serve(replicas=0, cache={"storage": "ClaimPerReplica"})
    assert await prime(bench.cluster, "default", "llama", timeout_seconds=20, look_seconds=0) == 1
    assert "no PersistentVolumeClaim for caches that its Pods share" in capsys.readouterr().out
    assert PRIME_ANNOTATION not in bench.resource()["metadata"].get("annotations", {})


async def test_an_object_that_does_not_exist(bench: Bench) -> None:
    with pytest.raises(NotFound):
        await prime(bench.cluster, "default", "llama", timeout_seconds=1)


async def test_the_time_saved_is_a_metric(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    status = bench.status()
    assert status.cache is not None
    cache = status.cache.model_copy(update={"cold_start_seconds": 459, "warm_start_seconds": 35})
    bench.metrics.reported("default", "llama", status.model_copy(update={"cache": cache}))
    text = bench.metrics.render().decode()
    assert 'vllm_operator_start_saved_seconds{name="llama",namespace="default"} 424.0' in text
    bench.metrics.forget("default", "llama")
    assert 'name="llama"' not in bench.metrics.render().decode()

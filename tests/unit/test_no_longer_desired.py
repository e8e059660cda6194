"""Each object that a spec asks for goes when the spec no longer asks for it, whatever happens to the operator meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from support.fleet import Fleet
from support.gpus import device, real_node, resource_slice
from support.operators import KEY, Bench, llama
from support.permissions import GATEWAY as GATEWAY_PERMISSIONS
from support.permissions import KEDA, OPTIONAL
from vllm_operator.controller.optional_objects import INTEGRATIONS, METRICS_API
from vllm_operator.kube.client import (
    AUTOSCALER,
    CLAIM_TEMPLATE,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    HTTP_ROUTE,
    INFERENCE_POOL,
    JOB,
    LEADER_WORKER_SET,
    NETWORK_POLICY,
    POD,
    REVISION,
    SCALED_OBJECT,
    SERVICE,
    VLLM_DEPLOYMENT,
    Forbidden,
    Kind,
    Unavailable,
)

NODE = real_node("h100-sxm")["metadata"]["name"]


@dataclass(frozen=True)
class Wish:
    """What a spec asks for, and the fields that no longer ask for it."""

    spec: dict[str, Any]
    without: dict[str, Any]


GATEWAY: dict[str, Any] = {"parentRefs": [{"name": "public"}], "hostnames": ["llama.example.com"]}
POOL: dict[str, Any] = {**GATEWAY, "inferencePool": {"endpointPicker": {"name": "picker"}}}
WISHES: dict[Kind, Wish] = {
    NETWORK_POLICY: Wish({"networkPolicy": {}}, {"networkPolicy": None}),
    DISRUPTION_BUDGET: Wish({"replicas": 2}, {"replicas": 1}),
    AUTOSCALER: Wish({"autoscaling": {"maxReplicas": 4}}, {"autoscaling": None}),
    SCALED_OBJECT: Wish({"autoscaling": {"maxReplicas": 4, "keda": {"prometheusAddress": "http://p:9090"}}}, {"autoscaling": None}),
    HTTP_ROUTE: Wish({"gateway": GATEWAY}, {"gateway": None}),
    INFERENCE_POOL: Wish({"gateway": POOL}, {"gateway": None}),
    CLAIM_TEMPLATE: Wish({"accelerator": {"allocation": "DRA"}, "replicas": 0}, {"accelerator": {"allocation": "DevicePlugin"}}),
}


async def nothing(bench: Bench) -> None:
    pass


async def fail(bench: Bench) -> None:
    """The operator fails on the object, which writes a status of the new generation."""
    await bench.reconciler.report_bug(KEY, KeyError("one answer of a proxy"))


async def be_invalid(bench: Bench) -> None:
    """The CRD is newer than the operator."""
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"cache": {"priming": "Sometimes"}}})
    await bench.reconciler.reconcile(KEY)
    assert bench.condition("Ready").reason == "InvalidSpec"
    bench.restart()  # the upgrade
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"cache": {"priming": "Never"}}})


async def restart(bench: Bench) -> None:
    bench.restart()


async def fail_and_restart(bench: Bench) -> None:
    await fail(bench)
    bench.restart()


async def be_without_integrations(bench: Bench) -> None:
    bench.integrations = ()
    bench.restart()
    await bench.settle()
    bench.integrations = tuple(INTEGRATIONS)
    bench.restart()


async def lose_the_status(bench: Bench) -> None:
    """As after a restore from a backup, or if the operator was killed before its first status."""
    bench.cluster.set_status(VLLM_DEPLOYMENT, "default", "llama", {})
    bench.restart()


MEANWHILE: dict[str, Callable[[Bench], Any]] = {
    each.__name__: each for each in (nothing, fail, be_invalid, restart, fail_and_restart, be_without_integrations, lose_the_status)
}


@pytest.fixture
def bench() -> Bench:
    bench = Bench(real_node("h100-sxm"))
    devices = resource_slice(NODE, *(device(uuid=f"GPU-{number}") for number in range(8)))
    bench.cluster.put({"apiVersion": "resource.k8s.io/v1", "metadata": {"name": "slice"}, **devices})
    bench.cluster.documents[METRICS_API] = {"kind": "APIGroup"}
    bench.integrations = tuple(INTEGRATIONS)
    bench.restart()
    return bench


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("kind", WISHES, ids=lambda kind: kind.kind)
async def test_it_goes(bench: Bench, kind: Kind, meanwhile: str) -> None:
    bench.cluster.put(llama(cache={"priming": "Never"}, **WISHES[kind].spec))
    await bench.settle()
    assert bench.cluster.all(kind)
    resource = bench.resource()
    spec = {name: value for name, value in {**resource["spec"], **WISHES[kind].without}.items() if value is not None}
    bench.cluster.put({**resource, "spec": spec})
    await MEANWHILE[meanwhile](bench)
    await bench.settle()
    replicas = bench.deployment()["spec"]["replicas"]
    count(bench, updated=replicas, replicas=replicas, available=replicas)
    await bench.settle()
    assert not bench.cluster.all(kind)
    assert bench.condition("Ready").reason not in ("OperatorFailed", "InvalidSpec")


def test_every_kind_that_may_no_longer_be_desired_is_here() -> None:
    """The others are in the table of how-it-works.md."""
    deletable = {permission.kind for permission in (*OPTIONAL, *GATEWAY_PERMISSIONS, *KEDA) if permission.verb == "delete"}
    assert deletable - {DEPLOYMENT, LEADER_WORKER_SET, SERVICE, REVISION, POD, JOB} == set(WISHES)


async def test_nothing_is_asked_for_while_nothing_changes(bench: Bench) -> None:
    bench.cluster.put(llama(cache={"priming": "Never"}))
    await bench.settle()
    for kind in WISHES:
        for verb in ("find", "get"):
            bench.cluster.fail(verb, kind, Unavailable("asked"), times=1)
    before = dict(bench.cluster.calls)
    await bench.settle()
    assert bench.cluster.calls["page"] == before.get("page", 0)
    assert bench.condition("Ready").reason != "OperatorFailed"


@pytest.mark.parametrize("error", [Forbidden("may not list"), Unavailable("500")], ids=["forbidden", "unavailable"])
async def test_a_list_that_fails_stops_nothing(bench: Bench, error: Exception) -> None:
    bench.cluster.fail("find", NETWORK_POLICY, error, times=1)  # type: ignore[arg-type]
    bench.cluster.put(llama(cache={"priming": "Never"}))
    await bench.settle()
    assert bench.status().observed_generation == 1


# ResourceClaimTemplates: what a ReplicaSet that may still create Pods names stays


@pytest.fixture
async def serving(bench: Bench) -> Fleet:
    fleet = Fleet(bench)
    await fleet.serve(replicas=3, cache={"priming": "Never"}, accelerator={"allocation": "DRA", "count": 1})
    for number in range(3):
        fleet.ready(fleet.start(pod=f"llama-old-{number}"))
    count(bench, updated=3)
    await fleet.settle()
    return fleet


def count(bench: Bench, *, updated: int, replicas: int = 3, available: int = 3) -> None:
    """What the Deployment controller says."""
    status = {"observedGeneration": bench.deployment()["metadata"]["generation"], "replicas": replicas}
    status |= {"updatedReplicas": updated, "readyReplicas": available, "availableReplicas": available}
    bench.cluster.set_status(DEPLOYMENT, "default", "llama", status)


def templates(bench: Bench) -> list[str]:
    return sorted(item["metadata"]["name"] for item in bench.cluster.all(CLAIM_TEMPLATE))


async def test_the_claim_template_of_old_pods_stays_until_the_rollout_is_complete(bench: Bench, serving: Fleet) -> None:
    [old] = templates(bench)
    await serving.change(accelerator={"allocation": "DRA", "count": 2})
    assert len(templates(bench)) == 2, "old Pods serve"
    for number in range(3):  # all old Pods are evicted while the new one crashes: their ReplicaSet creates them again
        serving.gone(f"llama-old-{number}")
    count(bench, updated=1, replicas=1, available=0)
    await serving.settle()
    assert old in templates(bench)
    count(bench, updated=3, available=2)  # one old Pod is about to be created again
    await serving.settle()
    assert old in templates(bench)
    count(bench, updated=3)
    bench.restart()
    await serving.settle()
    assert old not in templates(bench)
    assert len(templates(bench)) == 1


async def test_the_claim_template_goes_after_a_rollout_to_the_device_plugin(bench: Bench, serving: Fleet) -> None:
    await serving.change(accelerator={"allocation": "DevicePlugin", "count": 1})
    assert templates(bench), "old Pods serve"
    for number in range(3):
        serving.gone(f"llama-old-{number}")
    count(bench, updated=3)
    bench.restart()
    await serving.settle()
    assert templates(bench) == []

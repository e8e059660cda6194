"""The PodDisruptionBudget and the autoscaler of an engine, on a cluster in memory."""

from typing import Any

import pytest

from support.operators import Bench
from support.operators import llama as any_llama
from vllm_operator.controller.optional_objects import BUDGET_SECONDS, INTEGRATIONS, METRICS_API
from vllm_operator.kube.client import (
    AUTOSCALER,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    SCALED_OBJECT,
    Forbidden,
    Manifest,
    Unavailable,
)
from vllm_operator.status.report import REAPPLY_LIMIT_SECONDS

SCALING: dict[str, Any] = {"maxReplicas": 4}
KEDA: dict[str, Any] = {**SCALING, "keda": {"prometheusAddress": "http://prometheus:9090"}}
BUDGET_OF_A_USER: Manifest = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "theirs", "namespace": "default"},
    "spec": {
        "minAvailable": 2,
        "selector": {"matchExpressions": [{"key": "app.kubernetes.io/instance", "operator": "In", "values": ["llama"]}]},
    },
}


def llama(**spec: Any) -> Manifest:
    """A VLLMDeployment whose replicas start together."""
    return any_llama(cache={"priming": "Never"}, **spec)


def change(bench: Bench, **spec: Any) -> None:
    resource = bench.resource()
    kept = {name: value for name, value in {**resource["spec"], **spec}.items() if value is not None}
    generation = resource["metadata"]["generation"] + 1
    bench.cluster.put({**resource, "spec": kept, "metadata": {**resource["metadata"], "generation": generation}})


def budgets(bench: Bench) -> list[str]:
    return [item["metadata"]["name"] for item in bench.cluster.all(DISRUPTION_BUDGET)]


def autoscaler_of_a_user(name: str, target: str) -> Manifest:
    spec = {"scaleTargetRef": {"apiVersion": "vllm-operator.dev/v1alpha1", "kind": "VLLMDeployment", "name": target}, "maxReplicas": 3}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}


@pytest.fixture
def measured(bench: Bench) -> Bench:
    """A cluster that serves the metrics of Pods."""
    bench.cluster.documents[METRICS_API] = {"kind": "APIGroup"}
    return bench


async def test_a_refused_budget_is_applied_again_soon(bench: Bench) -> None:
    """An API server that has just learned the kind refuses owner references to it."""
    bench.cluster.put(llama(replicas=2))
    bench.cluster.fail("apply", DISRUPTION_BUDGET, Forbidden("cannot find RESTMapping"), times=100)
    assert (await bench.settle()).requeue_seconds == REAPPLY_LIMIT_SECONDS
    assert bench.condition("Protected").reason == "ApplyFailed"
    bench.cluster.heal()
    assert (await bench.settle()).requeue_seconds is None
    assert bench.condition("Protected").reason == "InEffect"


async def test_several_replicas_are_evicted_one_by_one(bench: Bench) -> None:
    bench.cluster.put(llama(replicas=2))
    await bench.settle()
    [budget] = bench.cluster.all(DISRUPTION_BUDGET)
    assert (budget["spec"]["maxUnavailable"], budget["spec"]["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert budget["spec"]["selector"] == bench.deployment()["spec"]["selector"]
    bench.restart()
    await bench.settle()
    assert [write.kind for write in bench.cluster.writes].count("PodDisruptionBudget") == 1


async def test_a_single_replica_has_no_budget_and_costs_no_request(bench: Bench) -> None:
    bench.cluster.put(llama())
    bench.cluster.fail("*", DISRUPTION_BUDGET, Forbidden("no"), times=99)
    await bench.settle()
    assert budgets(bench) == []
    assert bench.message("Protected") == ""


async def test_what_was_never_desired_is_not_looked_for_in_an_update(bench: Bench) -> None:
    bench.cluster.put(llama())
    for kind in (DISRUPTION_BUDGET, AUTOSCALER, NETWORK_POLICY):
        bench.cluster.fail("get", kind, Unavailable("500"), times=99)
    await bench.settle()
    change(bench, engine={"version": "0.24.0"})
    await bench.settle()
    assert bench.status().observed_generation == bench.resource()["metadata"]["generation"]
    assert bench.deployment()["spec"]["template"]["spec"]["containers"][0]["image"].startswith("vllm/vllm-openai:v0.24.0")


@pytest.mark.parametrize("restarts", [True, False])
async def test_the_budget_comes_and_goes_with_the_replicas_without_a_rollout(bench: Bench, restarts: bool) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    plan, template = bench.status().plan, bench.deployment()["spec"]["template"]
    for replicas, expected in ((3, ["llama"]), (1, []), (2, ["llama"]), (0, [])):
        change(bench, replicas=replicas)
        if restarts:
            bench.restart()  # what it knew is forgotten; the generation in the status says that there is something to do
        await bench.settle()
        assert budgets(bench) == expected
    assert (bench.status().plan, bench.deployment()["spec"]["template"]) == (plan, template)


async def test_the_budgets_of_a_namespace_are_looked_at_again_after_a_while(bench: Bench) -> None:
    bench.cluster.put(llama(replicas=2))
    await bench.settle()
    bench.cluster.remove(DISRUPTION_BUDGET, "default", "llama")
    await bench.settle()
    assert budgets(bench) == [], "nothing was asked"
    bench.pass_time(BUDGET_SECONDS)
    await bench.settle()
    assert budgets(bench) == ["llama"]


async def test_a_budget_of_a_user_for_the_same_pods_replaces_ours(bench: Bench) -> None:
    """The eviction API refuses Pods with two."""
    bench.cluster.put(llama(replicas=2))
    await bench.settle()
    theirs = bench.cluster.put(BUDGET_OF_A_USER)
    bench.pass_time(BUDGET_SECONDS)
    await bench.settle()
    assert budgets(bench) == ["theirs"]
    assert bench.cluster.all(DISRUPTION_BUDGET) == [theirs]
    assert bench.condition("Protected").status == "True"
    bench.cluster.remove(DISRUPTION_BUDGET, "default", "theirs")
    bench.pass_time(BUDGET_SECONDS)
    await bench.settle()
    assert budgets(bench) == ["llama"]


@pytest.mark.parametrize(
    ("selector", "problem"),
    [
        ({"matchLabels": {"app": "other"}}, True),
        (None, True),
        ({"matchLabels": {"app.kubernetes.io/instance": "llama"}}, False),
        ({}, False),  # all Pods of the namespace
    ],
)
async def test_a_budget_of_a_user_with_our_name_is_never_touched(bench: Bench, selector: Any, problem: bool) -> None:
    spec = {"maxUnavailable": 0, **({"selector": selector} if selector is not None else {})}
    theirs = bench.cluster.put({**BUDGET_OF_A_USER, "metadata": {"name": "llama", "namespace": "default"}, "spec": spec})
    bench.cluster.put(llama(replicas=2))
    await bench.settle()
    change(bench, replicas=1)
    await bench.settle()
    change(bench, replicas=2)
    await bench.settle()
    assert bench.cluster.all(DISRUPTION_BUDGET) == [theirs]
    assert ("was not created by the operator" in bench.message("Protected")) is problem
    assert bench.deployment()["spec"]["replicas"] == 2


async def test_without_the_permission_engines_serve_and_a_condition_says_what_is_missing(bench: Bench) -> None:
    bench.cluster.fail("find", DISRUPTION_BUDGET, Forbidden("cannot list poddisruptionbudgets"), times=9)
    bench.cluster.put(llama(replicas=2))
    await bench.settle()
    assert bench.deployment()["spec"]["replicas"] == 2
    assert "cannot list poddisruptionbudgets" in bench.message("Protected")


@pytest.mark.parametrize("verb", ["find", "get", "apply"])
async def test_without_the_permission_for_autoscalers_the_condition_says_so(measured: Bench, verb: str) -> None:
    measured.cluster.fail(verb, AUTOSCALER, Forbidden(f"cannot {verb} horizontalpodautoscalers"), times=99)
    measured.cluster.put(llama(autoscaling=SCALING))
    await measured.settle()
    assert ("cannot" in measured.message("Autoscaled")) is (verb != "get"), "applying tells"
    assert measured.deployment()["spec"]["replicas"] == 1


async def test_an_autoscaler_is_written_once_and_follows_the_measured_start(measured: Bench) -> None:
    measured.cluster.put(llama(autoscaling=SCALING))
    await measured.settle()
    [autoscaler] = measured.cluster.all(AUTOSCALER)
    assert autoscaler["spec"]["scaleTargetRef"]["kind"] == "VLLMDeployment"
    assert budgets(measured) == ["llama"], "there may soon be several replicas"
    writes = [write.kind for write in measured.cluster.writes].count("HorizontalPodAutoscaler")
    measured.restart()
    await measured.settle()
    assert ([write.kind for write in measured.cluster.writes].count("HorizontalPodAutoscaler"), writes) == (1, 1)


async def test_it_comes_and_goes_without_a_new_plan_and_keeps_the_replicas(measured: Bench) -> None:
    measured.cluster.put(llama())
    await measured.settle()
    plan = measured.status().plan
    change(measured, autoscaling=SCALING)
    await measured.settle()
    assert measured.cluster.all(AUTOSCALER)
    change(measured, replicas=3)  # as the autoscaler does
    await measured.settle()
    change(measured, autoscaling=None)
    measured.restart()
    await measured.settle()
    assert not measured.cluster.all(AUTOSCALER)
    assert (measured.status().plan, measured.cluster.all(DEPLOYMENT)[0]["spec"]["replicas"]) == (plan, 3)


async def test_without_metrics_there_is_no_autoscaler_and_the_condition_says_how_to_get_them(bench: Bench) -> None:
    bench.cluster.put(llama(autoscaling=SCALING))
    await bench.settle()
    assert not bench.cluster.all(AUTOSCALER)
    assert bench.condition("Autoscaled").reason == "MetricsAPIMissing"
    assert "such as prometheus-adapter" in bench.message("Autoscaled")
    bench.cluster.documents[METRICS_API] = {"kind": "APIGroup"}
    await bench.settle()
    assert bench.cluster.all(AUTOSCALER)
    assert bench.condition("Autoscaled").status == "True"
    del bench.cluster.documents[METRICS_API]  # an adapter that is replaced
    await bench.settle()
    assert bench.cluster.all(AUTOSCALER)
    assert bench.condition("Autoscaled").status == "True"


async def test_metrics_that_are_not_served_at_the_moment_stop_neither_the_autoscaler_nor_the_status(bench: Bench) -> None:
    bench.cluster.fail("get_path", None, Unavailable("the adapter is down"), times=99)
    bench.cluster.put(llama(autoscaling=SCALING))
    await bench.settle()
    assert bench.cluster.all(AUTOSCALER)
    assert bench.status().observed_generation is not None


async def test_a_second_autoscaler_for_the_same_object_is_not_created(measured: Bench) -> None:
    measured.cluster.put(autoscaler_of_a_user("theirs", "llama"))
    measured.cluster.put(autoscaler_of_a_user("of-another", "gemma"))
    measured.cluster.put(llama(autoscaling=SCALING))
    await measured.settle()
    assert "already scales this VLLMDeployment. Delete that one, or remove spec.autoscaling" in measured.message("Autoscaled")
    assert {item["metadata"]["name"] for item in measured.cluster.all(AUTOSCALER)} == {"theirs", "of-another"}
    measured.cluster.remove(AUTOSCALER, "default", "theirs")
    await measured.settle()
    assert {item["metadata"]["name"] for item in measured.cluster.all(AUTOSCALER)} == {"llama", "of-another"}


async def test_an_autoscaler_of_a_user_that_appears_later_replaces_ours(measured: Bench) -> None:
    """Two autoscalers undo what the other does."""
    measured.cluster.put(llama(autoscaling=SCALING))
    await measured.settle()
    theirs = measured.cluster.put(autoscaler_of_a_user("theirs", "llama"))
    await measured.settle()
    assert measured.cluster.all(AUTOSCALER) == [theirs]
    assert measured.condition("Autoscaled").reason == "AutoscalerExists"
    measured.cluster.remove(AUTOSCALER, "default", "theirs")
    await measured.settle()
    assert [item["metadata"]["name"] for item in measured.cluster.all(AUTOSCALER)] == ["llama"]
    assert measured.condition("Autoscaled").status == "True"


def scaler_of_keda(name: str) -> Manifest:
    """What KEDA makes for a ScaledObject of this name."""
    owner = {"kind": "ScaledObject", "name": name, "controller": True, "uid": "1"}
    manifest = autoscaler_of_a_user(f"keda-hpa-{name}", "llama")
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}


@pytest.mark.parametrize("name", ["theirs", "llama"])
async def test_a_scaled_object_of_a_user_replaces_our_autoscaler(measured: Bench, name: str) -> None:
    """The operator does not use KEDA, so a ScaledObject is not its own, whatever its name."""
    measured.cluster.put(llama(autoscaling=SCALING))
    await measured.settle()
    theirs = measured.cluster.put(scaler_of_keda(name))
    await measured.settle()
    assert measured.cluster.all(AUTOSCALER) == [theirs]
    assert measured.condition("Autoscaled").reason == "AutoscalerExists"


async def test_a_scaled_object_of_a_user_replaces_ours(measured: Bench) -> None:
    measured.integrations = tuple(INTEGRATIONS)
    measured.restart()
    measured.cluster.put(llama(autoscaling=KEDA))
    await measured.settle()
    assert measured.cluster.all(SCALED_OBJECT)
    measured.cluster.put(scaler_of_keda("theirs"))
    await measured.settle()
    assert not measured.cluster.all(SCALED_OBJECT)
    assert measured.condition("Autoscaled").reason == "AutoscalerExists"


async def test_an_autoscaler_of_a_user_with_our_name_is_never_touched(measured: Bench) -> None:
    theirs = measured.cluster.put(autoscaler_of_a_user("llama", "gemma"))
    measured.cluster.put(llama(autoscaling=SCALING))
    await measured.settle()
    assert "was not created by the operator" in measured.message("Autoscaled")
    change(measured, autoscaling=None)
    await measured.settle()
    assert measured.cluster.all(AUTOSCALER) == [theirs]


async def test_keda_must_be_allowed_and_takes_the_place_of_the_other_autoscaler(measured: Bench) -> None:
    measured.cluster.put(llama(autoscaling=SCALING))
    await measured.settle()
    change(measured, autoscaling=KEDA)
    await measured.settle()
    assert not measured.cluster.all(SCALED_OBJECT)
    assert "Set integrations.keda to true" in measured.message("Autoscaled")
    assert "remove spec.autoscaling.keda" in measured.message("Autoscaled")
    measured.integrations = tuple(INTEGRATIONS)
    measured.restart()
    await measured.settle()
    assert measured.cluster.all(SCALED_OBJECT)
    assert not measured.cluster.all(AUTOSCALER)
    of_keda = autoscaler_of_a_user("keda-hpa-llama", "llama")
    of_keda["metadata"]["ownerReferences"] = [{"kind": "ScaledObject", "name": "llama", "controller": True, "uid": "1"}]
    measured.cluster.put(of_keda)
    await measured.settle()
    assert measured.condition("Autoscaled").status == "True"

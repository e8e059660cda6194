"""How replicas are scaled: what of a spec and of the measured starts reaches an autoscaler."""

from typing import Any

import pytest

from support import engine_metrics
from support.operators import llama
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.versions import load_engine_facts
from vllm_operator.pods.view import selects
from vllm_operator.rendering.exposure import period_seconds, render_autoscaler

PROMETHEUS = {"prometheusAddress": "http://prometheus:9090"}


def parsed(measured: dict[str, int] | None = None, **spec: Any) -> VLLMDeployment:
    return VLLMDeployment.parse({**llama(**spec), "status": {"cache": measured} if measured else {}})


def autoscaler(**spec: Any) -> dict[str, Any]:
    rendered = render_autoscaler(parsed(autoscaling={"maxReplicas": 4, **spec}))
    assert rendered is not None
    content: dict[str, Any] = rendered["spec"]
    return content


@pytest.mark.parametrize(
    ("storage", "measured", "period"),
    [
        ({}, None, 600),
        ({}, {"coldStartSeconds": 1900, "warmStartSeconds": 95}, 120),
        ({}, {"coldStartSeconds": 500}, 510),
        ({"storage": "EmptyDir"}, {"coldStartSeconds": 500, "warmStartSeconds": 95}, 510),
        ({"hostPath": "/cache"}, {"warmStartSeconds": 95}, 120),
        ({}, {"coldStartSeconds": 5000}, 1800),
        ({}, {"warmStartSeconds": 1}, 30),
    ],
)
def test_between_two_steps_passes_the_time_of_a_start(storage: dict[str, str], measured: dict[str, int] | None, period: int) -> None:
    resource = parsed(measured, cache=storage, autoscaling={"maxReplicas": 4})
    assert period_seconds(resource) == period
    rendered = render_autoscaler(resource)
    assert rendered is not None
    behavior = rendered["spec"]["behavior"]
    assert {policy["periodSeconds"] for policy in behavior["scaleUp"]["policies"]} == {period}
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == max(300, period)


@pytest.mark.parametrize(
    ("spec", "name", "target"),
    [
        ({}, "vllm:num_requests_waiting", "5"),
        ({"target": 2000}, "vllm:num_requests_waiting", "2k"),
        ({"metric": "RunningRequests"}, "vllm:num_requests_running", "64"),
        ({"metric": "KVCacheUsage"}, "vllm:kv_cache_usage_perc", "800m"),
        ({"metric": "KVCacheUsage", "target": 100}, "vllm:kv_cache_usage_perc", "1"),
        ({"metric": "KVCacheUsage", "target": 1}, "vllm:kv_cache_usage_perc", "10m"),
    ],
)
def test_a_metric_of_pods_is_compared_with_a_target_per_replica(spec: dict[str, Any], name: str, target: str) -> None:
    [metric] = autoscaler(**spec)["metrics"]
    assert metric["pods"]["metric"]["name"] == name
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": target}


def test_keda_asks_for_the_sum_of_the_replicas_and_no_answer_is_no_empty_queue() -> None:
    spec = autoscaler(keda=PROMETHEUS, metric="KVCacheUsage")
    [trigger] = spec["triggers"]
    assert trigger["metadata"] == {
        "serverAddress": "http://prometheus:9090",
        "query": 'sum(max by (pod) (vllm:kv_cache_usage_perc{namespace="default",name="llama"}))',
        "threshold": "0.8",
        "ignoreNullValues": "false",
    }
    assert (spec["minReplicaCount"], "cooldownPeriod" in spec) == (1, False)


def test_to_zero_a_signal_from_in_front_creates_the_first_replica_and_requests_in_progress_keep_the_last() -> None:
    spec = autoscaler(minReplicas=0, keda={**PROMETHEUS, "activationQuery": "sum(gateway_waiting)"})
    queries = {trigger["name"]: trigger["metadata"]["query"] for trigger in spec["triggers"]}
    assert queries == {
        "engines": 'sum(vllm:num_requests_waiting{namespace="default",name="llama"})',
        "running": 'sum(vllm:num_requests_running{namespace="default",name="llama"})',
        "activation": "sum(gateway_waiting)",
    }
    assert (spec["minReplicaCount"], spec["cooldownPeriod"]) == (0, 600)
    assert {trigger["metadata"]["ignoreNullValues"] for trigger in spec["triggers"]} == {"true"}, (
        "an engine that does not run has no metrics"
    )


@pytest.mark.parametrize("version", engine_metrics.VERSIONS)
def test_engines_show_the_metrics_by_which_they_are_scaled(version: str) -> None:
    shown = {series.partition("{")[0] for series, _ in engine_metrics.series(version)}
    assert set(load_engine_facts().metrics.values()) <= shown


LABELS = {"app": "chat", "tier": "gpu"}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "chat"}}, True),
        ({"matchLabels": {"app": "other"}}, False),
        ({"matchLabels": {"absent": "x"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["chat", "x"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["chat"]}]}, False),
        ({"matchExpressions": [{"key": "absent", "operator": "NotIn", "values": ["chat"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, False),
        ({"matchLabels": {"app": "chat"}, "matchExpressions": [{"key": "absent", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Like"}]}, False),
    ],
)
def test_a_selector_selects_what_kubernetes_selects(selector: dict[str, Any] | None, expected: bool) -> None:
    assert selects(selector, LABELS) is expected

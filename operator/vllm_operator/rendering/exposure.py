"""Render the objects around an engine: NetworkPolicy, HTTPRoute, InferencePool, PodDisruptionBudget, HorizontalPodAutoscaler, ScaledObject.

All have the name of the VLLMDeployment. An autoscaler sets `spec.replicas` of the VLLMDeployment through its scale subresource.

**Slow starts.** Requests keep waiting while new replicas start, so an autoscaler that looks only at them adds more and more replicas.
Therefore `scaleUp` allows one step per measured duration of a start: one replica, or half of the current number. The replicas of one step
serve before the next step. `scaleDown` waits equally long, because removing a replica that is still needed costs a start.
"""

from math import ceil
from typing import Any

from vllm_operator.api import labels
from vllm_operator.api.operation import AutoscalingSpec, GatewaySpec, InferencePoolSpec, KedaSpec, ScalingMetric
from vllm_operator.api.resource import VLLMDeployment, metadata_of, selector_of
from vllm_operator.caches.claims import storage_of
from vllm_operator.catalog.versions import load_engine_facts
from vllm_operator.rendering.container import PORT

POOL_GROUP = "inference.networking.k8s.io"
DEFAULT_TARGETS = {"WaitingRequests": 5, "RunningRequests": 64, "KVCacheUsage": 80}
"""Targets per replica. The last one is a percentage."""
UNKNOWN_START_SECONDS = 600
"""Period between two steps until a start has been measured."""
STEP_SECONDS = 30
"""Periods are rounded up to multiples of this, so that they do not change with each start."""
MAX_PERIOD_SECONDS = 1800
"""Maximum `periodSeconds` in the API."""
_NO_LIMIT = "1000000"
"""Threshold of a trigger that only decides whether a replica is needed."""
MIN_WINDOW_SECONDS = 300
"""Minimum time to wait before scaling down, the default of HorizontalPodAutoscalers."""


def render_exposure(resource: VLLMDeployment) -> list[dict[str, Any]]:
    """Render the objects that the spec requests."""
    gateway = resource.spec.gateway
    policy = [_network_policy(resource)] if resource.spec.network_policy is not None else []
    if gateway is None:
        return policy
    pool = [_inference_pool(resource, gateway.inference_pool)] if gateway.inference_pool is not None else []
    return [*policy, *pool, _route(resource, gateway)]


def _object(resource: VLLMDeployment, api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata_of(resource, resource.metadata.name), "spec": spec}


def _network_policy(resource: VLLMDeployment) -> dict[str, Any]:
    """Render the NetworkPolicy. It closes all other ports: ports between the processes of an engine are random, and stay inside the Pod."""
    peers = resource.spec.network_policy.ingress_from if resource.spec.network_policy is not None else None
    allowed: dict[str, Any] = {"ports": [{"port": PORT, "protocol": "TCP"}], **({"from": peers} if peers else {})}
    spec = {"podSelector": {"matchLabels": selector_of(resource)}, "policyTypes": ["Ingress"], "ingress": [allowed]}
    return _object(resource, "networking.k8s.io/v1", "NetworkPolicy", spec)


def _inference_pool(resource: VLLMDeployment, pool: InferencePoolSpec) -> dict[str, Any]:
    picker = pool.endpoint_picker
    reference: dict[str, Any] = {"name": picker.name, "port": {"number": picker.port}}
    if picker.failure_mode is not None:
        reference["failureMode"] = picker.failure_mode
    spec = {"selector": {"matchLabels": selector_of(resource)}, "targetPorts": [{"number": PORT}], "endpointPickerRef": reference}
    return _object(resource, f"{POOL_GROUP}/v1", "InferencePool", spec)


def _route(resource: VLLMDeployment, gateway: GatewaySpec) -> dict[str, Any]:
    name, service = resource.metadata.name, resource.spec.service
    backend: dict[str, Any] = {"name": name, "port": (service.port if service else None) or PORT}
    if gateway.inference_pool is not None:
        backend = {"group": POOL_GROUP, "kind": "InferencePool", "name": name}
    # A streamed response may take longer than the default timeout of a gateway. 0s means no timeout.
    rule = {"backendRefs": [backend], "timeouts": {"request": "0s", "backendRequest": "0s"}}
    spec = {
        "parentRefs": [reference.to_json() for reference in gateway.parent_refs],
        **({"hostnames": list(gateway.hostnames)} if gateway.hostnames else {}),
        "rules": [rule],
    }
    return _object(resource, "gateway.networking.k8s.io/v1", "HTTPRoute", spec)


def render_disruption_budget(resource: VLLMDeployment) -> dict[str, Any] | None:
    """Render the PodDisruptionBudget; None for a single replica, which it cannot protect.

    At most one replica is evicted at a time. Pods that are not ready can always be evicted: otherwise crashed engines would block node
    drains.
    """
    autoscaling = resource.spec.autoscaling
    if max(resource.spec.replicas, autoscaling.max_replicas if autoscaling is not None else 0) < 2:
        return None
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": selector_of(resource)}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    return _object(resource, "policy/v1", "PodDisruptionBudget", spec)


def render_autoscaler(resource: VLLMDeployment) -> dict[str, Any] | None:
    """Render the autoscaler; None if the spec requests none."""
    autoscaling = resource.spec.autoscaling
    if autoscaling is None:
        return None
    if autoscaling.keda is not None:
        return _scaled_object(resource, autoscaling, autoscaling.keda)
    metric = {"name": load_engine_facts().metrics[_metric(autoscaling)]}
    # the average of the Pods; starting Pods have no metrics and count as idle
    target = {"type": "AverageValue", "averageValue": _quantity(autoscaling)}
    spec = {
        "scaleTargetRef": _target(resource),
        "minReplicas": _min_replicas(autoscaling),
        "maxReplicas": autoscaling.max_replicas,
        "metrics": [{"type": "Pods", "pods": {"metric": metric, "target": target}}],
        "behavior": _behavior(resource),
    }
    return _object(resource, "autoscaling/v2", "HorizontalPodAutoscaler", spec)


def period_seconds(resource: VLLMDeployment) -> int:
    """Return the measured duration of a start of another replica, rounded up, within the limits of an autoscaler.

    Replicas that share a filled cache start warm. With other storage, each one may start cold.
    """
    cache = resource.status.cache
    cold, warm = (cache.cold_start_seconds, cache.warm_start_seconds) if cache is not None else (None, None)
    shared = storage_of(resource.spec.cache) == "SharedClaim"
    measured = (warm or cold) if shared else max(cold or 0, warm or 0)
    return min(MAX_PERIOD_SECONDS, STEP_SECONDS * ceil((measured or UNKNOWN_START_SECONDS) / STEP_SECONDS))


def _scaled_object(resource: VLLMDeployment, autoscaling: AutoscalingSpec, keda: KedaSpec) -> dict[str, Any]:
    to_zero = _min_replicas(autoscaling) == 0
    triggers = [_trigger("engines", keda, _engine_query(resource, autoscaling), _threshold(autoscaling), null_is_zero=to_zero)]
    if to_zero:
        running = load_engine_facts().metrics["RunningRequests"]
        # an engine without a queue may be in use: this keeps the last replica, and requests no second one
        triggers.append(_trigger("running", keda, f"sum({_series(resource, running)})", _NO_LIMIT, null_is_zero=True))
    if keda.activation_query is not None:
        # this only creates the first replica, which then reports how many are needed
        triggers.append(_trigger("activation", keda, keda.activation_query, _NO_LIMIT, null_is_zero=True))
    spec = {
        "scaleTargetRef": _target(resource),
        "minReplicaCount": _min_replicas(autoscaling),
        "maxReplicaCount": autoscaling.max_replicas,
        **({"cooldownPeriod": _window_seconds(resource)} if to_zero else {}),
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(resource)}},
        "triggers": triggers,
    }
    return _object(resource, "keda.sh/v1alpha1", "ScaledObject", spec)


def _trigger(name: str, keda: KedaSpec, query: str, threshold: str, *, null_is_zero: bool) -> dict[str, Any]:
    """Return a Prometheus trigger. Unless there may be no engine, a missing result is an error and not an empty queue."""
    metadata = {
        "serverAddress": keda.prometheus_address,
        "query": query,
        "threshold": threshold,
        "ignoreNullValues": "true" if null_is_zero else "false",
    }
    return {"type": "prometheus", "name": name, "metricType": "AverageValue", "metadata": metadata}


def _engine_query(resource: VLLMDeployment, autoscaling: AutoscalingSpec) -> str:
    """Return the query for the sum over the replicas, which KEDA divides by their number. The chart's PodMonitor sets the labels."""
    metric = _metric(autoscaling)
    series = _series(resource, load_engine_facts().metrics[metric])
    # data-parallel ranks share no KV cache
    return f"sum(max by (pod) ({series}))" if metric == "KVCacheUsage" else f"sum({series})"


def _series(resource: VLLMDeployment, name: str) -> str:
    return f'{name}{{namespace="{resource.metadata.namespace}",name="{resource.metadata.name}"}}'


def _behavior(resource: VLLMDeployment) -> dict[str, Any]:
    period = period_seconds(resource)
    policies = [{"type": kind, "value": value, "periodSeconds": period} for kind, value in (("Pods", 1), ("Percent", 50))]
    return {"scaleUp": {"policies": policies}, "scaleDown": {"stabilizationWindowSeconds": _window_seconds(resource)}}


def _window_seconds(resource: VLLMDeployment) -> int:
    return max(MIN_WINDOW_SECONDS, period_seconds(resource))


def _target(resource: VLLMDeployment) -> dict[str, str]:
    return {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "name": resource.metadata.name}


def _metric(autoscaling: AutoscalingSpec) -> ScalingMetric:
    return autoscaling.metric or "WaitingRequests"


def _target_value(autoscaling: AutoscalingSpec) -> int:
    return autoscaling.target or DEFAULT_TARGETS[_metric(autoscaling)]


def _min_replicas(autoscaling: AutoscalingSpec) -> int:
    return 1 if autoscaling.min_replicas is None else autoscaling.min_replicas


def _quantity(autoscaling: AutoscalingSpec) -> str:
    """Return the target in the canonical form of the API server: a number of requests, or a fraction of 1."""
    target = _target_value(autoscaling)
    if _metric(autoscaling) != "KVCacheUsage":
        return f"{target // 1000}k" if target % 1000 == 0 else str(target)
    return "1" if target == 100 else f"{10 * target}m"


def _threshold(autoscaling: AutoscalingSpec) -> str:
    target = _target_value(autoscaling)
    return str(target / 100) if _metric(autoscaling) == "KVCacheUsage" else str(target)

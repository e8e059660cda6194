"""Render the objects around an engine: NetworkPolicy, HTTPRoute, InferencePool, PodDisruptionBudget, HorizontalPodAutoscaler, ScaledObject.

All have the name of the VLLMDeployment. An autoscaler sets `spec.replicas` of the VLLMDeployment through its scale subresource.

**Slow starts.** Requests keep waiting while new replicas start, so an autoscaler that looks only at them adds more and more replicas.
Therefore `scaleUp` allows one step per measured duration of a start: one replica, or half of the current number. The replicas of one step
serve before the next step. `scaleDown` waits equally long, because removing a replica that is still needed costs a start.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from vllm_operator.api import labels
from vllm_operator.api.labels import COMPONENT_LABEL
from vllm_operator.api.operation import EndpointPicker, GatewaySpec, KedaSpec, ScalingMetric
from vllm_operator.api.resource import Role, VLLMDeployment, metadata_of, selector_of
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


def render_exposure(resource: VLLMDeployment, *, has_groups: bool = False) -> list[dict[str, Any]]:
    """Render the NetworkPolicy, InferencePool and HTTPRoute that the spec requests. `has_groups`: replicas have several Pods."""
    policy, gateway = resource.spec.network_policy, resource.spec.gateway
    pool = gateway.inference_pool if gateway is not None else None
    return [
        *([_network_policy(resource, policy.ingress_from, has_groups=has_groups)] if policy is not None else []),
        *([_inference_pool(resource, pool.endpoint_picker)] if pool is not None else []),
        *([_route(resource, gateway)] if gateway is not None else []),
    ]


def _object(resource: VLLMDeployment, api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata_of(resource, resource.metadata.name), "spec": spec}


def _network_policy(resource: VLLMDeployment, peers: Sequence[Mapping[str, Any]] | None, *, has_groups: bool) -> dict[str, Any]:
    """Render the NetworkPolicy. It closes all other ports: ports between the processes of an engine are random, and stay inside the Pod.

    Between the Pods of a group, all ports are open. A policy cannot name one group, so they are open between groups too.
    """
    allowed: dict[str, Any] = {"ports": [{"port": PORT, "protocol": "TCP"}], **({"from": peers} if peers else {})}
    selector = _selector(resource, has_groups=has_groups)
    between = [{"from": [{"podSelector": selector}]}] if has_groups else []
    spec = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": [allowed, *between]}
    return _object(resource, "networking.k8s.io/v1", "NetworkPolicy", spec)


def _inference_pool(resource: VLLMDeployment, picker: EndpointPicker) -> dict[str, Any]:
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
    spec = {
        "parentRefs": [reference.to_json() for reference in gateway.parent_refs],
        **({"hostnames": list(gateway.hostnames)} if gateway.hostnames else {}),
        # A streamed response may take longer than the default timeout of a gateway. 0s means no timeout.
        "rules": [{"backendRefs": [backend], "timeouts": {"request": "0s", "backendRequest": "0s"}}],
    }
    return _object(resource, "gateway.networking.k8s.io/v1", "HTTPRoute", spec)


def _selector(resource: VLLMDeployment, *, has_groups: bool) -> dict[str, Any]:
    labels = selector_of(resource)
    if not has_groups:
        return {"matchLabels": labels}
    roles = {"key": COMPONENT_LABEL, "operator": "In", "values": [Role.ENGINE.value, Role.FOLLOWER.value]}
    return {"matchLabels": {name: labels[name] for name in labels if name != COMPONENT_LABEL}, "matchExpressions": [roles]}


def render_disruption_budget(resource: VLLMDeployment, *, has_groups: bool = False) -> dict[str, Any] | None:
    """Render the PodDisruptionBudget; None for a single replica, which it cannot protect.

    At most one Pod is evicted at a time, and with it one replica: while the Pods of its group are created again, no other group loses one.
    Pods that are not ready can always be evicted: otherwise crashed engines would block node drains.
    """
    autoscaling = resource.spec.autoscaling
    if max(resource.spec.replicas, autoscaling.max_replicas if autoscaling is not None else 0) < 2:
        return None
    selector = _selector(resource, has_groups=has_groups)
    spec = {"maxUnavailable": 1, "selector": selector, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    return _object(resource, "policy/v1", "PodDisruptionBudget", spec)


def render_autoscaler(resource: VLLMDeployment) -> dict[str, Any] | None:
    """Render the HorizontalPodAutoscaler or ScaledObject; None if the spec requests none."""
    scaling = resource.spec.autoscaling
    if scaling is None:
        return None
    reference = {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "name": resource.metadata.name}
    minimum = 1 if scaling.min_replicas is None else scaling.min_replicas
    period = period_seconds(resource)
    window = max(MIN_WINDOW_SECONDS, period)
    policies = [{"type": kind, "value": value, "periodSeconds": period} for kind, value in (("Pods", 1), ("Percent", 50))]
    behavior = {"scaleUp": {"policies": policies}, "scaleDown": {"stabilizationWindowSeconds": window}}
    metric = scaling.metric or "WaitingRequests"
    target = scaling.target or DEFAULT_TARGETS[metric]
    if scaling.keda is not None:
        spec = {
            "scaleTargetRef": reference,
            "minReplicaCount": minimum,
            "maxReplicaCount": scaling.max_replicas,
            **({"cooldownPeriod": window} if minimum == 0 else {}),
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
            "triggers": _triggers(resource, scaling.keda, metric, target, to_zero=minimum == 0),
        }
        return _object(resource, "keda.sh/v1alpha1", "ScaledObject", spec)
    # the average of the Pods; starting Pods have no metrics and count as idle
    average = {"type": "AverageValue", "averageValue": _quantity(metric, target)}
    spec = {
        "scaleTargetRef": reference,
        "minReplicas": minimum,
        "maxReplicas": scaling.max_replicas,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": load_engine_facts().metrics[metric]}, "target": average}}],
        "behavior": behavior,
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


def _triggers(resource: VLLMDeployment, keda: KedaSpec, metric: ScalingMetric, target: int, *, to_zero: bool) -> list[dict[str, Any]]:
    """Return Prometheus triggers. KEDA divides the sum over the replicas by their number. The chart's PodMonitor sets the labels.

    Unless there may be no engine, a missing result is an error and not an empty queue.
    """

    def series(of: ScalingMetric) -> str:
        return f'{load_engine_facts().metrics[of]}{{namespace="{resource.metadata.namespace}",name="{resource.metadata.name}"}}'

    def trigger(name: str, query: str, threshold: str, *, may_be_missing: bool) -> dict[str, Any]:
        metadata = {"serverAddress": keda.prometheus_address, "query": query, "threshold": threshold}
        metadata["ignoreNullValues"] = "true" if may_be_missing else "false"
        return {"type": "prometheus", "name": name, "metricType": "AverageValue", "metadata": metadata}

    if metric == "KVCacheUsage":  # data-parallel ranks share no KV cache
        query, threshold = f"sum(max by (pod) ({series(metric)}))", str(target / 100)
    else:
        query, threshold = f"sum({series(metric)})", str(target)
    triggers = [trigger("engines", query, threshold, may_be_missing=to_zero)]
    if to_zero:
        # an engine without a queue may be in use: this keeps the last replica, and requests no second one
        triggers.append(trigger("running", f"sum({series('RunningRequests')})", _NO_LIMIT, may_be_missing=True))
    if keda.activation_query is not None:
        # this only creates the first replica, which then reports how many are needed
        triggers.append(trigger("activation", keda.activation_query, _NO_LIMIT, may_be_missing=True))
    return triggers


def _quantity(metric: ScalingMetric, target: int) -> str:
    """Return the target in the canonical form of the API server: a number of requests, or a fraction of 1."""
    if metric != "KVCacheUsage":
        return f"{target // 1000}k" if target % 1000 == 0 else str(target)
    return "1" if target == 100 else f"{10 * target}m"

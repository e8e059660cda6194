"""Render objects that expose an engine in addition to its Service: NetworkPolicy, HTTPRoute, InferencePool.

All have the name of the VLLMDeployment.
"""

from typing import Any

from vllm_operator.api.operation import GatewaySpec, InferencePoolSpec
from vllm_operator.api.resource import VLLMDeployment, metadata_of, selector_of
from vllm_operator.rendering.container import PORT

POOL_GROUP = "inference.networking.k8s.io"


def render_exposure(resource: VLLMDeployment) -> list[dict[str, Any]]:
    """Render the objects that the spec requests."""
    gateway = resource.spec.gateway
    policy = [_network_policy(resource)] if resource.spec.network_policy is not None else []
    if gateway is None:
        return policy
    pool = [_inference_pool(resource, gateway.inference_pool)] if gateway.inference_pool is not None else []
    return [*policy, *pool, _route(resource, gateway)]


def _network_policy(resource: VLLMDeployment) -> dict[str, Any]:
    """Render the NetworkPolicy. It closes all other ports: ports between the processes of an engine are random, and stay inside the Pod."""
    peers = resource.spec.network_policy.ingress_from if resource.spec.network_policy is not None else None
    allowed: dict[str, Any] = {"ports": [{"port": PORT, "protocol": "TCP"}], **({"from": peers} if peers else {})}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata_of(resource, resource.metadata.name),
        "spec": {"podSelector": {"matchLabels": selector_of(resource)}, "policyTypes": ["Ingress"], "ingress": [allowed]},
    }


def _inference_pool(resource: VLLMDeployment, pool: InferencePoolSpec) -> dict[str, Any]:
    picker = pool.endpoint_picker
    reference: dict[str, Any] = {"name": picker.name, "port": {"number": picker.port}}
    if picker.failure_mode is not None:
        reference["failureMode"] = picker.failure_mode.value
    return {
        "apiVersion": f"{POOL_GROUP}/v1",
        "kind": "InferencePool",
        "metadata": metadata_of(resource, resource.metadata.name),
        "spec": {
            "selector": {"matchLabels": selector_of(resource)},
            "targetPorts": [{"number": PORT}],
            "endpointPickerRef": reference,
        },
    }


def _route(resource: VLLMDeployment, gateway: GatewaySpec) -> dict[str, Any]:
    name, service = resource.metadata.name, resource.spec.service
    backend: dict[str, Any] = {"name": name, "port": (service.port if service else None) or PORT}
    if gateway.inference_pool is not None:
        backend = {"group": POOL_GROUP, "kind": "InferencePool", "name": name}
    rule = {
        "backendRefs": [backend],
        # A streamed response may take longer than the default timeout of a gateway. 0s means no timeout.
        "timeouts": {"request": "0s", "backendRequest": "0s"},
    }
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata_of(resource, name),
        "spec": {
            "parentRefs": [reference.to_json() for reference in gateway.parent_refs],
            **({"hostnames": list(gateway.hostnames)} if gateway.hostnames else {}),
            "rules": [rule],
        },
    }

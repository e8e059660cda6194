"""Apply the objects that expose an engine in addition to its Service: NetworkPolicy, HTTPRoute, InferencePool."""

from collections.abc import Collection

from vllm_operator.api import reading
from vllm_operator.api.operation import GatewayReference
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.controller.optional_objects import OptionalObjects, problem_of
from vllm_operator.kube.client import HTTP_ROUTE, INFERENCE_POOL, NETWORK_POLICY, Manifest
from vllm_operator.rendering.exposure import render_exposure
from vllm_operator.status.observation import NO_EXPOSURE, Exposure

_KINDS = (NETWORK_POLICY, HTTP_ROUTE, INFERENCE_POOL)


async def reconcile_exposure(objects: OptionalObjects, resource: VLLMDeployment, owner: Manifest) -> Exposure:
    """Apply the desired objects, and delete the objects that are no longer desired.

    Raises:
        ClusterError: The API server failed. A retry may help.
    """
    desired = {manifest["kind"]: manifest for manifest in render_exposure(resource)}
    problems = [problem for kind in _KINDS if kind.kind in desired and (problem := objects.disabled(kind)) is not None]
    route: Manifest | None = None
    for kind in _KINDS:
        applied = await objects.reconcile(kind, resource, owner, desired.get(kind.kind))
        problems += [problem_of(refusal) for refusal in applied.refusals]
        if kind == HTTP_ROUTE:
            route = next(iter(applied.children), None)
    if not desired:
        return NO_EXPOSURE
    accepted = route is not None and _is_accepted(route)
    references = resource.spec.gateway.parent_refs if resource.spec.gateway is not None else []
    return Exposure(tuple(problems), _url(route, references) if accepted else None, awaits_gateway=route is not None and not accepted)


def _is_accepted(route: Manifest) -> bool:
    parents = reading.objects(route, "status", "parents")
    conditions = [condition for parent in parents for condition in reading.objects(parent, "conditions")]
    return any((condition.get("type"), condition.get("status")) == ("Accepted", "True") for condition in conditions)


def _url(route: Manifest | None, references: Collection[GatewayReference]) -> str | None:
    """Return the URL of the first host. Only the Gateway knows whether it uses TLS; by convention, TLS listeners are called https."""
    hosts = reading.sequence(reading.mapping(route, "spec").get("hostnames")) if route is not None else ()
    host = next((host for host in hosts if isinstance(host, str) and not host.startswith("*")), None)
    secure = any("https" in (reference.section_name or "") for reference in references)
    return f"{'https' if secure else 'http'}://{host}" if host is not None else None

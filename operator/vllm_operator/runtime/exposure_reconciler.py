"""Apply what exposes an engine beside its Service: NetworkPolicy, HTTPRoute, InferencePool.

Few VLLMDeployments have these objects, so they are not watched: they are read in each reconciliation of an object that asks for them, and
once after each change of a spec, to delete those that are no longer desired. The status is written after that, so a reconciliation that
was interrupted looks again.
"""

from collections.abc import Callable, Collection

from vllm_operator.api.conditions import Reason
from vllm_operator.api.exposure import GatewayReference
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cluster.apply import Applied, Applier, Refusal
from vllm_operator.cluster.client import HTTP_ROUTE, INFERENCE_POOL, NETWORK_POLICY, ClusterClient, Forbidden, Kind, Manifest, NotFound
from vllm_operator.observation.observation import NO_EXPOSURE, Exposure, ExposureProblem
from vllm_operator.pods import reading
from vllm_operator.rendering.exposure import render_exposure

GATEWAY_KINDS = (HTTP_ROUTE, INFERENCE_POOL)
INTEGRATIONS = {"gateway": GATEWAY_KINDS}
"""Kinds that the operator may use only if its settings name the integration: they are not in every cluster, and each adds to what authors
of VLLMDeployments can do."""
_KINDS = (NETWORK_POLICY, *GATEWAY_KINDS)


class ExposureReconciler:
    """Applies these objects of VLLMDeployments."""

    def __init__(
        self, client: ClusterClient, *, integrations: Collection[str] = (), count: Callable[[str, str], None] = lambda verb, kind: None
    ) -> None:
        """`integrations` are the enabled ones; `count` is called with the verb and the kind of each write."""
        self._client = client
        self._applier = Applier(client, count=count)
        disabled = {kind for name, kinds in INTEGRATIONS.items() if name not in integrations for kind in kinds}
        self._kinds = tuple(kind for kind in _KINDS if kind not in disabled)

    async def reconcile(self, resource: VLLMDeployment, owner: Manifest) -> Exposure:
        """Apply what the spec asks for, and delete what it no longer asks for.

        Raises:
            ClusterError: The API server failed. A retry may help.
        """
        desired = {manifest["kind"]: manifest for manifest in render_exposure(resource)}
        problems = [
            ExposureProblem(Reason.INTEGRATION_DISABLED, kind.kind, "gateway")
            for kind in GATEWAY_KINDS
            if kind.kind in desired and kind not in self._kinds
        ]
        observed, generation = resource.status.observed_generation, resource.metadata.generation
        is_changed = observed is not None and observed > 0 and observed != generation
        route: Manifest | None = None
        for kind in self._kinds:
            if kind.kind not in desired and not is_changed:
                continue
            applied = await self._apply(kind, resource, owner, desired.get(kind.kind))
            problems += [_problem(refusal) for refusal in applied.refusals]
            if kind == HTTP_ROUTE:
                route = next(iter(applied.children), None)
        if not desired:
            return NO_EXPOSURE
        accepted = route is not None and _is_accepted(route)
        references = resource.spec.gateway.parent_refs if resource.spec.gateway is not None else []
        return Exposure(tuple(problems), _url(route, references) if accepted else None, awaits_gateway=route is not None and not accepted)

    async def _apply(self, kind: Kind, resource: VLLMDeployment, owner: Manifest, desired: Manifest | None) -> Applied:
        try:
            live = [await self._client.get(kind, resource.metadata.name, resource.metadata.namespace)]
        except (NotFound, Forbidden):
            live = []  # applying tells why
        applied = await self._applier.apply(owner, [desired] if desired is not None else [], live)
        if applied.failure is not None:
            raise applied.failure
        return applied


def _problem(refusal: Refusal) -> ExposureProblem:
    # Server-side apply creates what does not exist, so only the kind itself can be missing.
    missing = isinstance(refusal.error, NotFound)
    return ExposureProblem(Reason.KIND_NOT_INSTALLED if missing else Reason.APPLY_FAILED, refusal.kind, str(refusal.error))


def _is_accepted(route: Manifest) -> bool:
    """Whether a Gateway has accepted the route."""
    parents = reading.objects(route, "status", "parents")
    conditions = [condition for parent in parents for condition in reading.objects(parent, "conditions")]
    return any((condition.get("type"), condition.get("status")) == ("Accepted", "True") for condition in conditions)


def _url(route: Manifest | None, references: Collection[GatewayReference]) -> str | None:
    """The URL of the first host. Whether it has TLS is known only to the Gateway; listeners for it are called https by convention."""
    hosts = reading.sequence(reading.mapping(route, "spec").get("hostnames")) if route is not None else ()
    host = next((host for host in hosts if isinstance(host, str) and not host.startswith("*")), None)
    secure = any("https" in (reference.section_name or "") for reference in references)
    return f"{'https' if secure else 'http'}://{host}" if host is not None else None

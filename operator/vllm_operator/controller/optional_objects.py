"""Objects that a VLLMDeployment has only if its spec asks for them.

These are NetworkPolicy, HTTPRoute, InferencePool, PodDisruptionBudget and autoscalers. They are not watched, and most VLLMDeployments have
none. The operator looks for an undesired object only if it may exist (`created_objects`).
"""

import contextlib
from collections.abc import Callable, Collection, Sequence

from vllm_operator.api.conditions import Reason
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.controller.apply import Applied, Applier, Refusal
from vllm_operator.controller.created_objects import CreatedObjects
from vllm_operator.kube.client import HTTP_ROUTE, INFERENCE_POOL, SCALED_OBJECT, ClusterClient, Forbidden, Kind, Manifest, NotFound
from vllm_operator.status.observation import ObjectProblem

INTEGRATIONS = {"gateway": (HTTP_ROUTE, INFERENCE_POOL), "keda": (SCALED_OBJECT,)}
"""Kinds that the operator uses only if its settings name the integration: not every cluster has them, and each adds permissions that
authors of VLLMDeployments gain."""


class OptionalObjects:
    """Applies and deletes optional objects: at most one of each kind, with the name of the VLLMDeployment."""

    def __init__(
        self,
        client: ClusterClient,
        created: CreatedObjects,
        *,
        integrations: Collection[str] = (),
        count: Callable[[str, str], None] = lambda verb, kind: None,
    ) -> None:
        """Initialize. `integrations` are the enabled integrations; `count` is called with the verb and kind of each write."""
        self._client = client
        self._created = created
        self._applier = Applier(client, count=count)
        self._disabled = {kind: name for name, kinds in INTEGRATIONS.items() if name not in integrations for kind in kinds}

    async def reconcile(self, kind: Kind, resource: VLLMDeployment, owner: Manifest, desired: Manifest | None) -> Applied:
        """Apply the desired object of a kind, or delete it if none is desired.

        Raises:
            ClusterError: The API server failed. A retry may help.
        """
        key = (resource.metadata.namespace, resource.metadata.name)
        if kind in self._disabled or (desired is None and not await self._created.may_exist(kind, key)):
            return Applied()
        live = list[Manifest]()
        with contextlib.suppress(NotFound, Forbidden):  # if forbidden, applying reports it
            live = [await self._client.get(kind, resource.metadata.name, resource.metadata.namespace)]
        return await self.apply(kind, owner, desired, live)

    async def apply(self, kind: Kind, owner: Manifest, desired: Manifest | None, live: Sequence[Manifest]) -> Applied:
        """Apply the desired object, or delete the live one if none is desired. Raises ClusterError if a retry may help."""
        key = (owner["metadata"]["namespace"], owner["metadata"]["name"])
        if desired is not None:
            self._created.note(kind, key)
        applied = await self._applier.apply(owner, [desired] if desired is not None else [], live)
        if applied.failure is not None:
            raise applied.failure
        if desired is None:
            self._created.forget(kind, key)
        return applied

    def disabled(self, kind: Kind) -> ObjectProblem | None:
        """Return the problem if the settings do not allow a kind; None if they do."""
        integration = self._disabled.get(kind)
        return ObjectProblem(Reason.INTEGRATION_DISABLED, kind.kind, integration) if integration is not None else None


def problem_of(refusal: Refusal) -> ObjectProblem:
    """Return the problem for a refused object."""
    # Server-side apply creates missing objects, so only the kind itself can be missing.
    missing = isinstance(refusal.error, NotFound)
    return ObjectProblem(Reason.KIND_NOT_INSTALLED if missing else Reason.APPLY_FAILED, refusal.kind, str(refusal.error))

"""Apply objects that few VLLMDeployments have.

They are not watched: they are read in a reconciliation of an object that asks for them, and after a change of a spec, to delete those that
are no longer desired. The status is written after that, so a reconciliation that was interrupted looks again. What was not found is not
looked for again until it is desired, because nobody else creates an object that the operator owns.
"""

from collections.abc import Callable, Collection, Sequence

from vllm_operator.api.conditions import Reason
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cluster.apply import Applied, Applier, Refusal
from vllm_operator.cluster.client import HTTP_ROUTE, INFERENCE_POOL, SCALED_OBJECT, ClusterClient, Forbidden, Kind, Manifest, NotFound
from vllm_operator.cluster.recent import Recent
from vllm_operator.observation.observation import ObjectProblem

INTEGRATIONS = {"gateway": (HTTP_ROUTE, INFERENCE_POOL), "keda": (SCALED_OBJECT,)}
"""Kinds that the operator may use only if its settings name the integration: they are not in every cluster, and each adds to what authors
of VLLMDeployments can do."""
MAX_ABSENT = 20_000
"""VLLMDeployments of which it is remembered what they do not have."""


class OptionalObjects:
    """Applies and deletes such objects, one of each kind, with the name of the VLLMDeployment."""

    def __init__(
        self, client: ClusterClient, *, integrations: Collection[str] = (), count: Callable[[str, str], None] = lambda verb, kind: None
    ) -> None:
        """`integrations` are the enabled ones; `count` is called with the verb and the kind of each write."""
        self._client = client
        self._applier = Applier(client, count=count)
        self._absent: Recent[frozenset[str]] = Recent(MAX_ABSENT)  # kinds by uid of the VLLMDeployment
        self._disabled = {kind: name for name, kinds in INTEGRATIONS.items() if name not in integrations for kind in kinds}

    async def reconcile(self, kind: Kind, resource: VLLMDeployment, owner: Manifest, desired: Manifest | None) -> Applied:
        """Apply the desired object of a kind, or delete it if a changed spec no longer asks for it.

        Raises:
            ClusterError: The API server failed. A retry may help.
        """
        if kind in self._disabled:
            return Applied()
        uid = resource.metadata.uid
        absent = self._absent.get(uid) or frozenset()
        if desired is None:
            if is_new(resource):
                self._absent.put(uid, absent | {kind.kind})
            if is_new(resource) or not is_changed(resource) or kind.kind in absent:
                return Applied()
        live = list[Manifest]()
        try:
            live = [await self._client.get(kind, resource.metadata.name, resource.metadata.namespace)]
        except NotFound:
            if desired is None:
                self._absent.put(uid, absent | {kind.kind})
        except Forbidden:
            pass  # applying tells why
        return await self.apply(owner, desired, live)

    async def apply(self, owner: Manifest, desired: Manifest | None, live: Sequence[Manifest]) -> Applied:
        """Apply a desired object, or delete the live one if none is desired. Raises ClusterError if a retry may help."""
        if desired is not None:
            uid = str(owner["metadata"]["uid"])
            self._absent.put(uid, (self._absent.get(uid) or frozenset()) - {str(desired["kind"])})
        applied = await self._applier.apply(owner, [desired] if desired is not None else [], live)
        if applied.failure is not None:
            raise applied.failure
        return applied

    def disabled(self, kind: Kind) -> ObjectProblem | None:
        """The problem that the settings do not allow a kind; None if they do."""
        integration = self._disabled.get(kind)
        return ObjectProblem(Reason.INTEGRATION_DISABLED, kind.kind, integration) if integration is not None else None


def is_new(resource: VLLMDeployment) -> bool:
    """Whether the object has never had a status."""
    observed = resource.status.observed_generation
    return observed is None or observed <= 0


def is_changed(resource: VLLMDeployment) -> bool:
    """Whether the spec has changed since the last status."""
    return not is_new(resource) and resource.status.observed_generation != resource.metadata.generation


def problem_of(refusal: Refusal) -> ObjectProblem:
    """The problem that an object was refused."""
    # Server-side apply creates what does not exist, so only the kind itself can be missing.
    missing = isinstance(refusal.error, NotFound)
    return ObjectProblem(Reason.KIND_NOT_INSTALLED if missing else Reason.APPLY_FAILED, refusal.kind, str(refusal.error))

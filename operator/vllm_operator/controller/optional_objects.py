"""Objects that a VLLMDeployment has only if its spec asks for them.

These are NetworkPolicy, HTTPRoute, InferencePool, PodDisruptionBudget and autoscalers. They are not watched, and most VLLMDeployments have
none. Each has the name of its VLLMDeployment. The eviction API refuses Pods that two PodDisruptionBudgets select, and two autoscalers undo
each other's changes. So if somebody else has created one for the same Pods, the operator creates none.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from vllm_operator.api import labels, reading
from vllm_operator.api.conditions import Reason
from vllm_operator.api.resource import Role, VLLMDeployment, labels_of
from vllm_operator.controller.apply import Applier
from vllm_operator.controller.ownership import is_created_by_operator
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterClient, ClusterError, Forbidden, Key, Kind, Manifest, NotFound, Unavailable, watched_labels
from vllm_operator.kube.recent import Recent
from vllm_operator.pods.view import selects
from vllm_operator.rendering.exposure import render_autoscaler, render_disruption_budget, render_exposure
from vllm_operator.status.observation import Exposure, ObjectProblem

log = logging.getLogger(__name__)

INTEGRATIONS = {"gateway": (kube.HTTP_ROUTE, kube.INFERENCE_POOL), "keda": (kube.SCALED_OBJECT,)}
"""Kinds that the operator uses only if its settings name the integration: not every cluster has them, and each adds permissions that
authors of VLLMDeployments gain."""
METRICS_API = "/apis/custom.metrics.k8s.io"
"""Path of the API by which a HorizontalPodAutoscaler reads metrics of Pods. Every account may read it (system:discovery)."""
BUDGET_SECONDS = 300
"""Interval between reads of the PodDisruptionBudgets in a namespace. They are not watched: their status changes with each Pod."""
MAX_CHECKED = 20_000
"""Maximum number of VLLMDeployments whose last read is remembered."""


@dataclass(slots=True)
class CreatedObjects:
    """Tracks which VLLMDeployments have objects of kinds that are not watched.

    Such an object must be deleted when it is no longer desired, even after a failure, an invalid spec, a restart or an upgrade. So the
    objects of each kind are listed once, when that is first asked, and what is created from then on is remembered. No other process creates
    the operator's objects.
    """

    client: ClusterClient
    namespaces: Sequence[str] = ()
    """The namespaces to serve; all if empty."""
    _known: defaultdict[Kind, set[Key]] = field(default_factory=lambda: defaultdict(set))
    _listed: set[Kind] = field(default_factory=set)
    _listing: defaultdict[Kind, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def may_exist(self, kind: Kind, key: Key) -> bool:
        """Return whether a VLLMDeployment may have an object of a kind. If the list fails, the next call lists again."""
        async with self._listing[kind]:
            if kind not in self._listed:
                try:
                    await self._list(kind)
                    self._listed.add(kind)
                except ClusterError as error:
                    log.debug("%s cannot be listed: %s", kind.plural, error)
                    if isinstance(error, Forbidden | NotFound):  # until the operator or its ClusterRole is replaced
                        self._listed.add(kind)
        return key in self._known[kind]

    def note(self, kind: Kind, key: Key) -> None:
        """Record that an object is about to be created."""
        self._known[kind].add(key)

    def forget(self, kind: Kind, key: Key) -> None:
        """Record that an object was deleted."""
        self._known[kind].discard(key)

    async def _list(self, kind: Kind) -> None:
        for namespace in self.namespaces or (None,):
            async for page in self.client.pages(kind, namespace, labels=watched_labels(kind)):
                for item in page:
                    instance = reading.text(item, "metadata", "labels", labels.INSTANCE_LABEL)
                    self.note(kind, (reading.text(item, "metadata", "namespace"), instance))


class OptionalObjects:
    """Applies and deletes the optional objects of VLLMDeployments: at most one of each kind."""

    def __init__(self, applier: Applier, created: CreatedObjects, *, integrations: Collection[str], now: Callable[[], datetime]) -> None:
        self._client = applier.client
        self._created = created
        self._applier = applier
        self._disabled = {kind: name for name, kinds in INTEGRATIONS.items() if name not in integrations for kind in kinds}
        self._now = now
        # by uid of the VLLMDeployment: generation and time of the last read of the PodDisruptionBudgets, and the problems found
        self._budgets: Recent[tuple[int, datetime, list[ObjectProblem]]] = Recent(MAX_CHECKED)

    async def expose(self, resource: VLLMDeployment, owner: Manifest, *, has_groups: bool) -> Exposure:
        """Apply or delete the NetworkPolicy, the HTTPRoute and the InferencePool. Raises ClusterError."""
        desired = {manifest["kind"]: manifest for manifest in render_exposure(resource, has_groups=has_groups)}
        problems: list[ObjectProblem] = []
        await self._reconcile(kube.NETWORK_POLICY, owner, desired.get(kube.NETWORK_POLICY.kind), problems)
        route = await self._reconcile(kube.HTTP_ROUTE, owner, desired.get(kube.HTTP_ROUTE.kind), problems)
        await self._reconcile(kube.INFERENCE_POOL, owner, desired.get(kube.INFERENCE_POOL.kind), problems)
        if route is None:
            return Exposure(tuple(problems))
        parents = reading.objects(route, "status", "parents")
        is_accepted = any(reading.named(parent, "Accepted", "conditions").get("status") == "True" for parent in parents)
        return Exposure(tuple(problems), _url(route, resource) if is_accepted else None, awaits_gateway=not is_accepted)

    async def scale(self, resource: VLLMDeployment, owner: Manifest, *, has_groups: bool) -> tuple[ObjectProblem, ...]:
        """Apply or delete the PodDisruptionBudget and the autoscaler. Return why an object has no effect. Raises ClusterError."""
        return (*await self._protect(resource, owner, has_groups=has_groups), *await self._autoscale(resource, owner))

    async def _reconcile(self, kind: Kind, owner: Manifest, desired: Manifest | None, problems: list[ObjectProblem]) -> Manifest | None:
        """Apply and return the desired object of a kind, or delete it if none is desired. Add why it has no effect to the problems."""
        key = namespace, name = owner["metadata"]["namespace"], owner["metadata"]["name"]
        if kind in self._disabled and desired is not None:
            problems.append(ObjectProblem(Reason.INTEGRATION_DISABLED, kind.kind, self._disabled[kind]))
        if kind in self._disabled or (desired is None and not await self._created.may_exist(kind, key)):
            return None
        live = list[Manifest]()
        with contextlib.suppress(NotFound, Forbidden):  # if forbidden, applying reports it
            live = [await self._client.get(kind, name, namespace)]
        if desired is not None:
            self._created.note(kind, key)
        applied = await self._applier.apply(owner, [desired] if desired is not None else [], live)
        if applied.failure is not None:
            raise applied.failure
        if desired is None:
            self._created.forget(kind, key)
        for refusal in applied.refusals:
            # Server-side apply creates missing objects, so for NotFound the kind itself is missing.
            reason = Reason.KIND_NOT_INSTALLED if isinstance(refusal.error, NotFound) else Reason.APPLY_FAILED
            problems.append(ObjectProblem(reason, refusal.kind, str(refusal.error)))
        return next(iter(applied.children), None)

    async def _protect(self, resource: VLLMDeployment, owner: Manifest, *, has_groups: bool) -> list[ObjectProblem]:
        desired, metadata = render_disruption_budget(resource, has_groups=has_groups), resource.metadata
        problems: list[ObjectProblem] = []
        if desired is None:
            await self._reconcile(kube.DISRUPTION_BUDGET, owner, None, problems)
            return problems
        known = self._budgets.get(metadata.uid)
        if known is not None and known[0] == metadata.generation and self._now() < known[1] + timedelta(seconds=BUDGET_SECONDS):
            return known[2]
        try:
            is_covered = await self._is_covered(resource, owner)
        except Forbidden as error:
            problems.append(ObjectProblem(Reason.APPLY_FAILED, kube.DISRUPTION_BUDGET.kind, str(error)))
        else:
            await self._reconcile(kube.DISRUPTION_BUDGET, owner, None if is_covered else desired, problems)
        if not any(problem.reason == Reason.APPLY_FAILED for problem in problems):
            self._budgets.put(metadata.uid, (metadata.generation, self._now(), problems))
        return problems

    async def _is_covered(self, resource: VLLMDeployment, owner: Manifest) -> bool:
        """Return whether the PodDisruptionBudget of somebody else selects the Pods. Raises Forbidden."""
        namespace, name = resource.metadata.namespace, resource.metadata.name
        budgets = await self._client.find(kube.DISRUPTION_BUDGET, namespace)
        if any(budget["metadata"]["name"] == name for budget in budgets):
            self._created.note(kube.DISRUPTION_BUDGET, (namespace, name))  # it may have lost its labels
        others = (budget for budget in budgets if budget["metadata"]["name"] != name or not is_created_by_operator(budget, owner))
        pod_labels = {**reading.mapping(resource.spec.pod_template, "metadata", "labels"), **labels_of(resource, Role.ENGINE)}
        return any(selects(reading.mapping(budget, "spec").get("selector"), pod_labels) for budget in others)

    async def _autoscale(self, resource: VLLMDeployment, owner: Manifest) -> list[ObjectProblem]:
        desired = render_autoscaler(resource)
        problems: list[ObjectProblem] = []
        kinds = {kind.kind: kind for kind in (kube.AUTOSCALER, kube.SCALED_OBJECT)}
        kind = kinds.pop(desired["kind"]) if desired is not None else None
        for other in kinds.values():  # delete first: two autoscalers would conflict, and KEDA refuses to be the second
            await self._reconcile(other, owner, None, problems)
        if kind is None or desired is None:
            return problems
        if kind not in self._disabled and (problem := await self._find_obstacle(resource, owner, desired)) is not None:
            if problem.reason == Reason.AUTOSCALER_EXISTS:
                await self._reconcile(kind, owner, None, problems)
            return [problem]
        await self._reconcile(kind, owner, desired, problems)
        return problems

    async def _find_obstacle(self, resource: VLLMDeployment, owner: Manifest, desired: Manifest) -> ObjectProblem | None:
        """Return why an autoscaler cannot work: another one has the same target, or nothing serves its metrics."""
        try:
            autoscalers = await self._client.find(kube.AUTOSCALER, resource.metadata.namespace, cached=True)
        except Forbidden as error:
            return ObjectProblem(Reason.APPLY_FAILED, kube.AUTOSCALER.kind, str(error))
        kind, name = desired["kind"], resource.metadata.name
        own = [item for item in autoscalers if item["metadata"]["name"] == name and is_created_by_operator(item, owner)]
        if kube.SCALED_OBJECT not in self._disabled:
            own += [item for item in autoscalers if _is_of_keda(item, name)]
        targets = [(reading.mapping(item, "spec", "scaleTargetRef"), item) for item in autoscalers if item not in own]
        others = [item for target, item in targets if (target.get("kind"), target.get("name")) == (labels.KIND, name)]
        if others:
            return ObjectProblem(Reason.AUTOSCALER_EXISTS, kube.AUTOSCALER.kind, reading.text(others[0], "metadata", "name"))
        if kind != kube.AUTOSCALER.kind or own:
            return None
        try:
            await self._client.get_path(METRICS_API)
        except NotFound:
            return ObjectProblem(Reason.METRICS_API_MISSING, kind, METRICS_API.rpartition("/")[2])
        except (Forbidden, Unavailable):
            pass  # discovery may be forbidden or an adapter down; the HorizontalPodAutoscaler reports it
        return None


def _url(route: Manifest, resource: VLLMDeployment) -> str | None:
    """Return the URL of the first host. Only the Gateway knows whether it uses TLS; by convention, TLS listeners are called https."""
    hosts = reading.sequence(reading.mapping(route, "spec").get("hostnames"))
    host = next((host for host in hosts if isinstance(host, str) and not host.startswith("*")), None)
    references = resource.spec.gateway.parent_refs if resource.spec.gateway is not None else []
    secure = any("https" in (reference.section_name or "") for reference in references)
    return f"{'https' if secure else 'http'}://{host}" if host is not None else None


def _is_of_keda(autoscaler: Manifest, name: str) -> bool:
    """Return whether KEDA created a HorizontalPodAutoscaler for the ScaledObject with this name."""
    owners = reading.objects(autoscaler, "metadata", "ownerReferences")
    return any((owner.get("kind"), owner.get("name")) == (kube.SCALED_OBJECT.kind, name) for owner in owners)

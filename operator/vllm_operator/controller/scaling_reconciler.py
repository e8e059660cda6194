"""Apply the PodDisruptionBudget and the autoscaler of a VLLMDeployment.

The eviction API refuses Pods that two PodDisruptionBudgets select, and two autoscalers undo each other's changes. So if somebody else has
created one for the same Pods, the operator creates none.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api import labels, reading
from vllm_operator.api.conditions import Reason
from vllm_operator.api.resource import Role, VLLMDeployment, labels_of
from vllm_operator.controller.optional_objects import OptionalObjects, problem_of
from vllm_operator.controller.ownership import is_created_by_operator
from vllm_operator.kube.client import (
    AUTOSCALER,
    DISRUPTION_BUDGET,
    SCALED_OBJECT,
    ClusterClient,
    Forbidden,
    Manifest,
    NotFound,
    Unavailable,
)
from vllm_operator.kube.recent import Recent
from vllm_operator.pods.selection import selects
from vllm_operator.rendering.exposure import render_autoscaler, render_disruption_budget
from vllm_operator.status.observation import ObjectProblem

METRICS_API = "/apis/custom.metrics.k8s.io"
"""Path of the API by which a HorizontalPodAutoscaler reads metrics of Pods. Every account may read it (system:discovery)."""
BUDGET_SECONDS = 300
"""Interval between reads of the PodDisruptionBudgets in a namespace. They are not watched: their status changes with each Pod."""
MAX_CHECKED = 20_000
"""Maximum number of VLLMDeployments whose last read is remembered."""


@dataclass(frozen=True, slots=True)
class _Look:
    """The last read of the PodDisruptionBudgets: generation of the spec, time, and problems found."""

    generation: int
    time: datetime
    problems: tuple[ObjectProblem, ...]


class ScalingReconciler:
    """Applies the PodDisruptionBudget and the autoscaler."""

    def __init__(self, client: ClusterClient, objects: OptionalObjects, *, now: Callable[[], datetime]) -> None:
        self._client = client
        self._objects = objects
        self._now = now
        self._looks: Recent[_Look] = Recent(MAX_CHECKED)  # by uid of the VLLMDeployment

    async def reconcile(self, resource: VLLMDeployment, owner: Manifest) -> tuple[ObjectProblem, ...]:
        """Apply desired objects, and delete objects that are no longer desired. Return why an object has no effect.

        Raises:
            ClusterError: The API server failed. A retry may help.
        """
        return (*await self._protect(resource, owner), *await self._autoscale(resource, owner))

    async def _protect(self, resource: VLLMDeployment, owner: Manifest) -> tuple[ObjectProblem, ...]:
        desired, metadata = render_disruption_budget(resource), resource.metadata
        if desired is None:
            await self._objects.reconcile(DISRUPTION_BUDGET, resource, owner, None)
            return ()
        look = self._looks.get(metadata.uid)
        is_due = look is None or look.generation != metadata.generation or self._now() >= look.time + timedelta(seconds=BUDGET_SECONDS)
        if look is not None and not is_due:
            return look.problems
        problems = await self._apply_budget(resource, owner, desired)
        self._looks.put(metadata.uid, _Look(metadata.generation, self._now(), problems))
        return problems

    async def _apply_budget(self, resource: VLLMDeployment, owner: Manifest, desired: Manifest) -> tuple[ObjectProblem, ...]:
        try:
            budgets = await self._client.find(DISRUPTION_BUDGET, resource.metadata.namespace)
        except Forbidden as error:
            return (ObjectProblem(Reason.APPLY_FAILED, DISRUPTION_BUDGET.kind, str(error)),)
        live = [budget for budget in budgets if budget["metadata"]["name"] == resource.metadata.name]
        pod_labels = _pod_labels(resource)
        is_covered = any(
            selects(reading.mapping(budget, "spec").get("selector"), pod_labels)
            for budget in budgets
            if budget not in live or not is_created_by_operator(budget, owner)
        )
        applied = await self._objects.apply(DISRUPTION_BUDGET, owner, None if is_covered else desired, live)
        return tuple(problem_of(refusal) for refusal in applied.refusals)

    async def _autoscale(self, resource: VLLMDeployment, owner: Manifest) -> tuple[ObjectProblem, ...]:
        desired = render_autoscaler(resource)
        wanted = desired["kind"] if desired is not None else None
        # delete first: two autoscalers would conflict, and KEDA refuses to be the second
        for kind in (AUTOSCALER, SCALED_OBJECT):
            if kind.kind != wanted:
                await self._objects.reconcile(kind, resource, owner, None)
        if desired is None:
            return ()
        kind = AUTOSCALER if wanted == AUTOSCALER.kind else SCALED_OBJECT
        problem = self._objects.disabled(kind) or await self._find_obstacle(resource, owner, desired)
        if problem is not None:
            if problem.reason == Reason.AUTOSCALER_EXISTS:
                await self._objects.reconcile(kind, resource, owner, None)
            return (problem,)
        applied = await self._objects.reconcile(kind, resource, owner, desired)
        return tuple(problem_of(refusal) for refusal in applied.refusals)

    async def _find_obstacle(self, resource: VLLMDeployment, owner: Manifest, desired: Manifest) -> ObjectProblem | None:
        """Return why an autoscaler cannot work: another one has the same target, or nothing serves its metrics."""
        try:
            autoscalers = await self._client.find(AUTOSCALER, resource.metadata.namespace, cached=True)
        except Forbidden as error:
            return ObjectProblem(Reason.APPLY_FAILED, AUTOSCALER.kind, str(error))
        kind, name = desired["kind"], resource.metadata.name
        own = [item for item in autoscalers if item["metadata"]["name"] == name and is_created_by_operator(item, owner)]
        may_use_keda = self._objects.disabled(SCALED_OBJECT) is None
        own += [item for item in autoscalers if may_use_keda and _is_of_keda(item, name)]
        others = [item for item in autoscalers if item not in own and _targets(item, resource)]
        if others:
            return ObjectProblem(Reason.AUTOSCALER_EXISTS, AUTOSCALER.kind, reading.text(others[0], "metadata", "name"))
        if kind != AUTOSCALER.kind or own:
            return None
        try:
            await self._client.get_path(METRICS_API)
        except NotFound:
            return ObjectProblem(Reason.METRICS_API_MISSING, kind, METRICS_API.rpartition("/")[2])
        except (Forbidden, Unavailable):
            pass  # discovery may be forbidden or an adapter down; the HorizontalPodAutoscaler reports it
        return None


def _pod_labels(resource: VLLMDeployment) -> Mapping[str, Any]:
    return {**reading.mapping(resource.spec.pod_template, "metadata", "labels"), **labels_of(resource, Role.ENGINE)}


def _targets(autoscaler: Manifest, resource: VLLMDeployment) -> bool:
    target = reading.mapping(autoscaler, "spec", "scaleTargetRef")
    return (target.get("kind"), target.get("name")) == (labels.KIND, resource.metadata.name)


def _is_of_keda(autoscaler: Manifest, name: str) -> bool:
    """Return whether KEDA created a HorizontalPodAutoscaler for the ScaledObject with this name."""
    owners: Iterator[Mapping[str, Any]] = reading.objects(autoscaler, "metadata", "ownerReferences")
    return any((owner.get("kind"), owner.get("name")) == (SCALED_OBJECT.kind, name) for owner in owners)

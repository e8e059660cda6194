"""Outcomes of planning: most reconciliations find nothing changed that a plan depends on, and many objects have equal specs."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vllm_operator.api.labels import ALLOW_KNOWN_BAD_ANNOTATION, REPLAN_ANNOTATION
from vllm_operator.api.plan import Plan, PlannedPreset
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.loader import Catalog
from vllm_operator.planning.inventory.pools import Inventory
from vllm_operator.planning.model.facts import ModelFiles
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.planner import plan

MAX_OUTCOMES = 8192
"""Objects whose latest outcome is remembered. Each takes 2 KiB beside the pinned plan."""
MAX_SHARED = 8
"""Outcomes that are tried for other objects: those of the last different specs."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """An outcome, and what it was planned from. The generation stands for the spec of the object, without what a preset adds."""

    generation: int | None
    preset: tuple[PlannedPreset | None, str]
    annotations: Mapping[str, str]
    cache_generation: int
    pinned: Plan | None
    inventory: Inventory
    catalog: Catalog
    files: ModelFiles
    outcome: Outcome

    def answers(self, resource: VLLMDeployment, inventory: Inventory, catalog: Catalog, files: ModelFiles) -> bool:
        """Whether planning from these would lead to the same outcome."""
        same = self.inventory is inventory and self.catalog is catalog and self.files == files
        metadata = resource.metadata
        of_one = (self.generation, self.cache_generation) == (metadata.generation, _cache_generation(resource))
        of_preset = self.preset == (resource.preset, resource.preset_change)
        return same and of_one and of_preset and self.annotations == metadata.annotations and self.pinned == resource.pinned


@dataclass(frozen=True, slots=True)
class _Shared:
    """An outcome for all objects with an equal spec."""

    resource: VLLMDeployment
    inventory: Inventory
    catalog: Catalog
    files: ModelFiles
    outcome: Outcome

    def answers(self, resource: VLLMDeployment, inventory: Inventory, catalog: Catalog, files: ModelFiles) -> bool:
        """Whether planning another object from these would lead to the same outcome."""
        same = self.inventory is inventory and self.catalog is catalog and self.files == files
        return same and _plans_alike(self.resource, resource)


class PlanCache:
    """Plans, and remembers the latest outcome of each object, and the last ones of all."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._shared: deque[_Shared] = deque(maxlen=MAX_SHARED)

    def plan(self, resource: VLLMDeployment, inventory: Inventory, catalog: Catalog, files: ModelFiles) -> Outcome:
        """Plan one VLLMDeployment for these GPUs, with its pinned plan and the cache generation of its status.

        Args:
            resource: The VLLMDeployment.
            inventory: The GPUs of the cluster.
            catalog: What is known.
            files: What was read of the model's files.
        """
        uid = resource.metadata.uid
        entry = self._entries.get(uid)
        if entry is not None and entry.answers(resource, inventory, catalog, files):
            return entry.outcome
        generation = _cache_generation(resource)
        outcome = self._shared_outcome(resource, inventory, catalog, files)
        if outcome is None:
            outcome = plan(resource, inventory, catalog, pinned=resource.pinned, cache_generation=generation, files=files)
            if outcome.plan is not None:
                self._shared.append(_Shared(resource, inventory, catalog, files, outcome))
        if uid:
            outcome, metadata = _without_today(outcome), resource.metadata
            preset = (resource.preset, resource.preset_change)
            entry = _Entry(
                metadata.generation, preset, metadata.annotations, generation, resource.pinned, inventory, catalog, files, outcome
            )
            self._entries[uid] = entry
            self._entries.move_to_end(uid)
            if len(self._entries) > MAX_OUTCOMES:
                self._entries.popitem(last=False)
        return outcome

    def _shared_outcome(self, resource: VLLMDeployment, inventory: Inventory, catalog: Catalog, files: ModelFiles) -> Outcome | None:
        """The outcome of another object that is the same for this one. Only a refusal may name its object."""
        return next((entry.outcome for entry in reversed(self._shared) if entry.answers(resource, inventory, catalog, files)), None)


def _without_today(outcome: Outcome) -> Outcome:
    """Keep today's plan only if it is for another GPU, which is all that is read of it: it is as large as the pinned one."""
    plan, today = outcome.plan, outcome.today
    if plan is None or today is None or today.plan is None or today.plan.product != plan.product:
        return outcome
    return replace(outcome, today=replace(today, plan=plan))


def _plans_alike(old: VLLMDeployment, new: VLLMDeployment) -> bool:
    """Whether two VLLMDeployments have the same plan. Planning reads nothing else of them."""
    return _read_by_plans(old) == _read_by_plans(new) and old.pinned == new.pinned and old.spec == new.spec


def _read_by_plans(resource: VLLMDeployment) -> tuple[object, ...]:
    """What planning reads of an object beside its spec and the pinned plan."""
    metadata, summary = resource.metadata, resource.status.pinned_plan
    annotations = [metadata.annotations.get(name) for name in (REPLAN_ANNOTATION, ALLOW_KNOWN_BAD_ANNOTATION)]
    return (
        metadata.generation,
        resource.preset,
        resource.preset_change,
        *annotations,
        _cache_generation(resource),
        summary.measured if summary is not None else None,
    )


def _cache_generation(resource: VLLMDeployment) -> int:
    cache = resource.status.cache
    return (cache.generation or 0) if cache else 0

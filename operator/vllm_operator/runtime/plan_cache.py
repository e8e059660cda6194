"""The latest outcome of planning for each VLLMDeployment: most reconciliations find nothing changed that a plan depends on."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.loader import Catalog
from vllm_operator.planning.inventory.pools import Inventory
from vllm_operator.planning.model.facts import ModelFiles
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.planner import plan

MAX_OUTCOMES = 8192
"""Objects whose latest outcome is remembered. Each takes 2 KiB beside the pinned plan."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """An outcome, and what it was planned from. The generation stands for the spec."""

    generation: int | None
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
        return same and of_one and self.annotations == metadata.annotations and self.pinned == resource.pinned


class PlanCache:
    """Plans, and remembers the latest outcome of each object."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

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
        outcome = plan(resource, inventory, catalog, pinned=resource.pinned, cache_generation=generation, files=files)
        if uid:
            outcome, metadata = _without_today(outcome), resource.metadata
            entry = _Entry(metadata.generation, metadata.annotations, generation, resource.pinned, inventory, catalog, files, outcome)
            self._entries[uid] = entry
            self._entries.move_to_end(uid)
            if len(self._entries) > MAX_OUTCOMES:
                self._entries.popitem(last=False)
        return outcome


def _without_today(outcome: Outcome) -> Outcome:
    """Keep today's plan only if it is for another GPU, which is all that is read of it: it is as large as the pinned one."""
    plan, today = outcome.plan, outcome.today
    if plan is None or today is None or today.plan is None or today.plan.product != plan.product:
        return outcome
    return replace(outcome, today=replace(today, plan=plan))


def _cache_generation(resource: VLLMDeployment) -> int:
    cache = resource.status.cache
    return (cache.generation or 0) if cache else 0

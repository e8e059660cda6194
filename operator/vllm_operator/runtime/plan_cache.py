"""The latest outcome of planning for each VLLMDeployment: most reconciliations find nothing changed that a plan depends on."""

from collections import OrderedDict
from dataclasses import dataclass

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.loader import Catalog
from vllm_operator.planning.inventory.pools import Inventory
from vllm_operator.planning.model.facts import ModelFiles
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.planner import plan

MAX_OUTCOMES = 512
"""Objects whose latest outcome is remembered: those that change at the moment. Each takes up to 60 KiB."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """An outcome, and what it was planned from."""

    resource: VLLMDeployment
    inventory: Inventory
    catalog: Catalog
    files: ModelFiles
    outcome: Outcome

    def answers(self, resource: VLLMDeployment, inventory: Inventory, catalog: Catalog, files: ModelFiles) -> bool:
        """Whether planning from these would lead to the same outcome."""
        same = self.inventory is inventory and self.catalog is catalog and self.files == files
        return same and _plans_alike(self.resource, resource)


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
            self._entries[uid] = _Entry(resource, inventory, catalog, files, outcome)
            self._entries.move_to_end(uid)
            if len(self._entries) > MAX_OUTCOMES:
                self._entries.popitem(last=False)
        return outcome


def _plans_alike(old: VLLMDeployment, new: VLLMDeployment) -> bool:
    if old.metadata.generation != new.metadata.generation or old.metadata.annotations != new.metadata.annotations:
        return False
    return _cache_generation(old) == _cache_generation(new) and old.pinned == new.pinned and old.spec == new.spec


def _cache_generation(resource: VLLMDeployment) -> int:
    cache = resource.status.cache
    return (cache.generation or 0) if cache else 0

"""Count the devices that are free when a new plan is made."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from vllm_operator.api.labels import REPLAN_ANNOTATION
from vllm_operator.api.reading import text
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import AcceleratorPolicy
from vllm_operator.controller.inventory_reader import InventoryCache
from vllm_operator.inventory.devices import HeldDevices
from vllm_operator.inventory.pools import Inventory
from vllm_operator.kube.recent import Recent
from vllm_operator.planning.pinning import digest_of, needs_usage

MAX_BEGUN = 1024
"""Maximum number of objects whose first plan is remembered until it is pinned."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """Input of a plan that is not pinned yet. Planning again must give the same plan although other Pods come and go.

    `spec` is a digest of the spec with its preset, which may change without a new generation.
    """

    spec: str
    replan_token: str | None
    inventory: Inventory
    counted: Inventory


class FreeDevices:
    """Adds the devices in use to the inventory for plans that depend on it."""

    def __init__(self, inventories: InventoryCache[Inventory]) -> None:
        self._inventories = inventories
        self._begun: Recent[_Begun] = Recent(MAX_BEGUN)
        self._last: tuple[Inventory, HeldDevices | None, Inventory] | None = None

    async def count(
        self, resource: VLLMDeployment, inventory: Inventory, pods: Iterable[Mapping[str, Any]], *, listed_pools: int = 0
    ) -> Inventory:
        """Return the inventory with the devices in use, or the unchanged inventory if the plan does not depend on them.

        Args:
            resource: The VLLMDeployment to plan.
            inventory: The GPUs of the cluster.
            pods: Its Pods.
            listed_pools: Node pools in the administrator's ConfigMap.

        Raises:
            ClusterError: The Pods cannot be listed.
        """
        metadata = resource.metadata
        if not needs_usage(resource, inventory, listed_pools=listed_pools):
            self._begun.drop(metadata.uid)
            return inventory
        spec, token = digest_of(resource.spec), metadata.annotations.get(REPLAN_ANNOTATION)
        begun = self._begun.get(metadata.uid)
        if begun is not None and begun.inventory is inventory and (begun.spec, begun.replan_token) == (spec, token):
            return begun.counted
        policy = resource.spec.accelerator.policy if resource.spec.accelerator else None
        held = await self._inventories.held(insist=policy is AcceleratorPolicy.MOST_FREE)
        uids = {text(pod, "metadata", "uid") for pod in pods}
        counted = self._combined(inventory, held, (metadata.namespace, metadata.name), uids)
        self._begun.put(metadata.uid, _Begun(spec, token, inventory, counted))
        return counted

    def _combined(self, inventory: Inventory, held: HeldDevices | None, owner: tuple[str, str], pods: Set[str]) -> Inventory:
        """Return the inventory with the devices in use. Equal input gives the same object, because plans are cached by identity."""
        if held is not None and (owner in held.own or not pods.isdisjoint(held.claimed or ())):
            return replace(inventory, used=held.without(owner), allocated=held.claimed_by_others(pods))
        if self._last is None or self._last[0] is not inventory or self._last[1] is not held:
            counted = replace(inventory, used=held.all, allocated=held.claimed_by_others()) if held is not None else None
            self._last = inventory, held, counted or replace(inventory, hidden=True)
        return self._last[2]

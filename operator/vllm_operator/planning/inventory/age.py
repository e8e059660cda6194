"""How old the picture of the nodes may be from which one VLLMDeployment is planned."""

from collections.abc import Iterable, Mapping
from typing import Any

from vllm_operator.api.conditions import PLANNED, find_condition
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ConditionStatus
from vllm_operator.planning.spec_digest import is_in_force
from vllm_operator.pods.view import waits_for_node

NEW_PLAN_SECONDS = 1.0
"""A new plan is pinned: the inventory that it is made from may be this old at most."""
PENDING_SECONDS = 5.0
"""The same where no GPU was found, or a Pod waits for a node."""


def max_age_seconds(resource: VLLMDeployment, pods: Iterable[Mapping[str, Any]]) -> float | None:
    """How old the inventory may be, in seconds; None: as old as the cache keeps it.

    Args:
        resource: The VLLMDeployment, with the status that was last written.
        pods: Its Pods.
    """
    planned = find_condition(resource.status.conditions, PLANNED)
    done = planned is not None and planned.status is ConditionStatus.TRUE
    if resource.status.plan is not None and is_in_force(resource.status.plan, resource):
        return PENDING_SECONDS if not done or any(map(waits_for_node, pods)) else None
    tried = planned is not None and not done and planned.observed_generation == resource.metadata.generation
    return PENDING_SECONDS if tried else NEW_PLAN_SECONDS

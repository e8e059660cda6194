"""Which rollouts have begun, so that what a rollout begins with is reported once, and together.

All of it may be forgotten: then a status is written some seconds earlier.
"""

from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api.conditions import READY, find_condition
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ConditionStatus
from vllm_operator.cluster.recent import Recent
from vllm_operator.pods import reading

MAX_ROLLOUTS = 4096
RECENTLY = timedelta(seconds=120)
"""How long a rollout counts as recent. Even on a busy cluster, most steps of a rollout are over by then."""


class Rollouts:
    """The last rollout of each VLLMDeployment, by UID."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        """`now` is the clock."""
        self._now = now
        self._begun: Recent[int] = Recent(MAX_ROLLOUTS)  # the last generation whose rollout has begun
        self._awaited: Recent[int] = Recent(MAX_ROLLOUTS)  # the last generation of the Deployment that was awaited
        self._times: deque[datetime] = deque(maxlen=MAX_ROLLOUTS)

    def begin(self, resource: VLLMDeployment) -> bool:
        """Note that a new spec has changed the children. Return whether it is the first time for this spec.

        What its rollout begins with is reported with it.
        """
        uid, generation = resource.metadata.uid, resource.metadata.generation or 0
        if not resource.status.has_plan or generation == resource.status.observed_generation or self._has_begun(resource):
            return False
        self._begun.put(uid, generation)
        self._times.append(self._now())
        return True

    def await_controller(self, resource: VLLMDeployment, deployment: Mapping[str, Any] | None) -> bool:
        """Whether the controller has yet to see a change of the Deployment of a VLLMDeployment that is Ready. True once for each change.

        A change of an annotation, such as another plan for the same Pods, is a new generation as well. Until the controller has seen it,
        nobody knows whether Pods are replaced.
        """
        generation = reading.integer(deployment, "metadata", "generation") or 0
        ready = find_condition(resource.status.conditions, READY)
        if ready is None or ready.status is not ConditionStatus.TRUE or generation == self._awaited.get(resource.metadata.uid):
            return False
        if resource.status.observed_generation != resource.metadata.generation and self._has_begun(resource):
            return False
        seen = reading.integer(deployment, "status", "observedGeneration")
        if seen is None or seen >= generation:
            return False
        self._awaited.put(resource.metadata.uid, generation)
        return True

    def recent(self) -> int:
        """How many rollouts have begun recently."""
        limit = self._now() - RECENTLY
        while self._times and self._times[0] < limit:
            self._times.popleft()
        return len(self._times)

    def _has_begun(self, resource: VLLMDeployment) -> bool:
        """Whether an earlier reconciliation has begun the rollout of the current spec."""
        return self._begun.get(resource.metadata.uid) == (resource.metadata.generation or 0)

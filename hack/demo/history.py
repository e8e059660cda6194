"""What happened to each VLLMDeployment, from the changes that a watch delivers.

The demo looks at the cluster as a user would: at the objects, never into the operator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class History:
    """The latest state of one VLLMDeployment, and the states it went through. Times are seconds on the demo's clock."""

    name: str
    resource: Mapping[str, Any] = field(default_factory=dict)
    applied_at: float | None = None
    settled_at: float | None = None
    stages: list[str] = field(default_factory=list)
    progress: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def update(self, resource: Mapping[str, Any], now: float) -> None:
        self.resource = resource
        if self.applied_at is None:
            self.applied_at = now
        startup = self.status.get("startup") or {}
        stage = startup.get("stage")
        if stage and (not self.stages or self.stages[-1] != stage):
            self.stages.append(stage)
        if stage and startup.get("total"):
            steps = self.progress.setdefault(stage, [])
            step = (startup.get("completed", 0), startup["total"])
            if not steps or steps[-1] != step:
                steps.append(step)
        if self.settled_at is None and self.is_settled:
            self.settled_at = now

    @property
    def status(self) -> Mapping[str, Any]:
        return self.resource.get("status") or {}

    @property
    def is_settled(self) -> bool:
        """Whether the operator has seen it, and it serves, has crashed or cannot be planned: the demo need not wait for more."""
        return self.status.get("observedGeneration") == self.resource.get("metadata", {}).get("generation") and (
            self.condition("Ready").get("status") == "True"
            or self.condition("Crashed").get("status") == "True"
            or self.condition("Ready").get("reason") in ("NoMatchingGPU", "RolledBack")
        )

    def condition(self, type: str) -> Mapping[str, Any]:
        return next((c for c in self.status.get("conditions") or [] if c["type"] == type), {})

    def elapsed(self, now: float) -> float:
        return (now if self.settled_at is None else self.settled_at) - (now if self.applied_at is None else self.applied_at)

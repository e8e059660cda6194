"""Taints of nodes, and the tolerations for them.

Since Kubernetes 1.35 the message of the scheduler no longer names the untolerated taint.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.reading import mapping, read_text, sequence

GPU_TAINT = "nvidia.com/gpu"
"""Key of the taint of GPU nodes. Pods of a plan tolerate it."""
_KEEPS_OFF = ("NoSchedule", "NoExecute")
_MOST_TAINTS = 16
_OF_KUBERNETES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """A taint that keeps Pods off a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """`key=value:effect`, as in `kubectl describe node`."""
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"

    @property
    def is_passing(self) -> bool:
        """Whether Kubernetes sets the taint for a state of the node, and removes it again."""
        return self.key.startswith(_OF_KUBERNETES)

    @property
    def toleration(self) -> str:
        """The matching toleration, as YAML in one line."""
        match = f"operator: Equal, value: {self.value}" if self.value else "operator: Exists"
        return f"{{key: {self.key}, {match}, effect: {self.effect}}}"

    def is_tolerated(self, tolerations: Any) -> bool:
        """Return whether one of the tolerations of a Pod matches. Any value is valid input."""
        return any(self._matches(mapping(each)) for each in sequence(tolerations))

    def _matches(self, toleration: Mapping[str, Any]) -> bool:
        if (toleration.get("effect") or self.effect) != self.effect:
            return False
        operator = toleration.get("operator") or "Equal"
        if not toleration.get("key"):
            return bool(operator == "Exists")
        if toleration["key"] != self.key:
            return False
        return bool(operator != "Equal" or (toleration.get("value") or "") == self.value)


def read_taints(spec: Any) -> tuple[Taint, ...]:
    """Return the taints of a node that keep Pods off, sorted. Any value is valid input."""
    found = (mapping(entry) for entry in sequence(mapping(spec).get("taints")))
    return tuple(sorted(_taints(found))[:_MOST_TAINTS])


def _taints(entries: Iterable[Mapping[str, Any]]) -> Iterable[Taint]:
    for entry in entries:
        key, effect = read_text(entry.get("key")), read_text(entry.get("effect"))
        if key is not None and effect in _KEEPS_OFF:
            yield Taint(key[:253], (read_text(entry.get("value")) or "")[:63], effect)

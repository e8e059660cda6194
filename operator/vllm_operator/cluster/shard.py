"""Which namespaces one of several operators serves.

Each operator serves the namespaces with one value of a label, or those without the label. A namespace has one value, so operators with
the same label and different values never serve the same namespace. Namespaces are watched: a change of the label moves the namespace.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_operator.cluster.client import NAMESPACE, ClusterClient, Manifest

_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME}"
_FORM = re.compile(rf"(?P<absent>!)?(?P<label>{_KEY})(?(absent)|=(?P<value>({_NAME})?))")


@dataclass(frozen=True, slots=True)
class Shard:
    """The namespaces whose label has this value; None: those without the label."""

    label: str
    value: str | None

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read `label=value` or `!label`. Raises ValueError."""
        if (match := _FORM.fullmatch(text)) is None:
            raise ValueError(f"{text!r} is neither label=value nor !label")
        return cls(match["label"], match["value"])

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether a namespace with these labels belongs to it."""
        return labels.get(self.label) == self.value


class ServedNamespaces:
    """The names of the namespaces that belong to a shard. Until `load`, none does."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._names: frozenset[str] = frozenset()
        self.version = ""
        """The resourceVersion of the last list."""

    def serves(self, namespace: str) -> bool:
        """Whether a namespace belongs to the shard."""
        return namespace in self._names

    async def load(self, client: ClusterClient) -> frozenset[str]:
        """List all namespaces. Return those that have joined or left the shard. Raises ClusterError."""
        names: set[str] = set()
        async for page in client.pages(NAMESPACE):
            names.update(item["metadata"]["name"] for item in page.items if self._shard.has(item["metadata"].get("labels") or {}))
            self.version = page.version
        before, self._names = self._names, frozenset(names)
        return before ^ self._names

    def note(self, namespace: Manifest, *, deleted: bool) -> bool:
        """Take a watch event. Return whether the namespace has joined or left the shard."""
        name, labels = namespace["metadata"]["name"], namespace["metadata"].get("labels") or {}
        before = self._names
        self._names = before | {name} if self._shard.has(labels) and not deleted else before - {name}
        return self._names != before

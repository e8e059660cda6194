"""Where each backend works: on which GPUs, for which number formats, in which versions.

This is what the gates in vLLM's sources say. It is used to refuse a forced backend before a Pod starts, to tell
what works instead, and to check the rules. A backend without an entry is not known, and not refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_operator.catalog.resources import read_data
from vllm_operator.catalog.rule_matching import RuleInput, RuleMatch, parse_match


@dataclass(frozen=True, slots=True)
class Kernel:
    """A backend of a component, and the alternatives of which one must hold for it to work."""

    component: str
    backend: str
    works: tuple[RuleMatch, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Kernels:
    """All backends of which it is known where they work."""

    entries: tuple[Kernel, ...]

    def find(self, component: str, backend: str) -> Kernel | None:
        """The entry of a backend."""
        return next((kernel for kernel in self.entries if (kernel.component, kernel.backend) == (component, backend)), None)

    def working(self, component: str, rule_input: RuleInput, chosen: Mapping[str, str]) -> tuple[str, ...]:
        """The backends of a component that nothing known speaks against."""
        return tuple(
            kernel.backend
            for kernel in self.entries
            if kernel.component == component and any(condition.possible(rule_input, chosen) for condition in kernel.works)
        )


def load_kernels() -> Kernels:
    """Read what ships with the operator.

    Raises:
        ValueError: A condition cannot be read.
    """
    return Kernels(
        tuple(
            Kernel(entry["component"], entry["backend"], tuple(map(parse_match, entry["works"])), entry["source"])
            for entry in read_data("kernels.yaml")
        )
    )

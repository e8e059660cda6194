"""All that is known about how engines start and how they fail."""

from dataclasses import dataclass

from vllm_operator.catalog.signatures import Signature, load_signatures
from vllm_operator.catalog.stages import Stages, load_stages


@dataclass(frozen=True, slots=True, eq=False)
class StartupKnowledge:
    """What the lines of a start mean, and the crashes that are known by name. Compared by identity: there is one."""

    stages: Stages
    signatures: tuple[Signature, ...]


def load_startup() -> StartupKnowledge:
    """Read it from the package. Takes about 50 ms: keep the result."""
    return StartupKnowledge(stages=load_stages(), signatures=load_signatures())

"""All that is known about how engines start and how they fail."""

from dataclasses import dataclass
from functools import cache

from vllm_operator.catalog.signatures import Signature, load_signatures
from vllm_operator.catalog.stages import Stages, load_stages


@dataclass(frozen=True, slots=True, eq=False)
class StartupKnowledge:
    """What the lines of a start mean, and the crashes that are known by name. Compared by identity: there is one."""

    stages: Stages
    signatures: tuple[Signature, ...]


@cache
def load_startup() -> StartupKnowledge:
    """Return what ships with the package. It is read once, in about 50 ms, and never changes."""
    return StartupKnowledge(stages=load_stages(), signatures=load_signatures())

"""What vLLM's log calls a backend, and what we call it.

The log writes "TRT-LLM ragged DeepSeek", `AgRsAll2AllManager` or `FlashInferCutlassNvFp4LinearKernel`, otherwise in
each version. Only with one name for each backend can be told whether the engine took what was planned.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_operator.catalog.resources import read_data

Names = tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class LoggedNames:
    """Patterns of logged names by component, each with the backends that such a line can mean."""

    components: Mapping[str, Names]

    def meant(self, component: str, logged: str) -> tuple[str, ...]:
        """The backends, by our names, that a line of the log can mean; none if the name is not known."""
        bare = _bare(logged)
        return next((backends for pattern, backends in self.components.get(component, ()) if pattern.fullmatch(bare)), ())

    def agree(self, component: str, logged: str, planned: str) -> bool:
        """Whether the log names the backend that was planned, as far as names tell."""
        meant = self.meant(component, logged)
        return planned in meant if meant else _alike(logged, planned)


def load_logged_names() -> LoggedNames:
    """Read what ships with the operator."""
    return LoggedNames(
        {
            entry["component"]: tuple((re.compile(name["pattern"]), tuple(name["backends"])) for name in entry["names"])
            for entry in read_data("logged_names.yaml")
        }
    )


def _alike(one: str, other: str) -> bool:
    """Whether one name is a part of the other; only whether FlashInfer is named must be the same."""
    first, second = _bare(one), _bare(other)
    return (first in second or second in first) and ("flashinfer" in first) == ("flashinfer" in second)


def _bare(backend: str) -> str:
    return "".join(c for c in backend.casefold() if c.isascii() and c.isalnum())

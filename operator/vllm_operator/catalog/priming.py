"""When one Pod should fill an empty cache before the others start, unless the user decides it.

Two Pods that fill one empty cache at once usually both come up (measured with vLLM 0.20.1 and a Llama model), so this
is not done everywhere: only where the version is known to race, or where everybody compiling everything is a waste.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from vllm_operator.catalog.resources import read_data


@dataclass(frozen=True, slots=True)
class PrimingRule:
    """One reason to prime. `because` is a sentence for the user."""

    id: str
    versions: SpecifierSet
    backends: tuple[str, ...]
    one_node: bool
    because: str
    source: str

    def applies(self, *, version: str | None, backends: Collection[str], one_node: bool) -> bool:
        """Whether the rule applies. A version that is not known may be any."""
        if self.one_node and not one_node:
            return False
        if self.backends and not any(_plain(backend).startswith(self.backends) for backend in backends):
            return False
        try:
            return version is None or self.versions.contains(Version(version), prereleases=True)
        except InvalidVersion:
            return True


def load_priming_rules(data: Mapping[str, Any] | None = None) -> tuple[PrimingRule, ...]:
    """Read the rules, those that ship with the package if no data is given.

    Raises:
        ValueError: A rule is malformed.
    """
    return tuple(_read(entry) for entry in (read_data("priming.yaml") if data is None else data)["rules"])


def _read(entry: Mapping[str, Any]) -> PrimingRule:
    unknown = set(entry) - {"id", "versions", "backends", "oneNode", "because", "source"}
    if unknown:
        raise ValueError(f"priming rule {entry.get('id')!r}: unknown fields {sorted(unknown)}")
    return PrimingRule(
        id=entry["id"],
        versions=SpecifierSet(entry.get("versions", "")),
        backends=tuple(map(_plain, entry.get("backends", ()))),
        one_node=bool(entry.get("oneNode", False)),
        because=entry["because"],
        source=entry["source"],
    )


def _plain(backend: str) -> str:
    """VLLM writes one backend as DEEPGEMM, DEEP_GEMM and deep_gemm."""
    return backend.replace("_", "").upper()

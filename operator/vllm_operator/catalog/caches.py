"""The caches of an engine: what compiles, where it is kept, and which variables say where.

Measured on one H200 with a DeepSeek-V3-shaped model, a second start takes 392.6 s where two of these
folders survive, 117.9 s where `VLLM_CACHE_ROOT` does, and 34.9 s where all of them do, each time with
Python's bytecode at hand. A Llama of 1.1B takes 42 s without the bytecode, and 28 s with it. So every one of
them has a folder under `CACHE_ROOT`, and what has no variable is caught by HOME.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from vllm_operator.api.spec import Distribution
from vllm_operator.api.status import PlannedVariable
from vllm_operator.catalog.paths import CACHE_ROOT, WEIGHTS_ROOT
from vllm_operator.catalog.resources import read_data


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache.

    `directory` is the absolute path in the container and `default` where the engine would put it by itself.
    `variables` are set together and in this order. `versions` are the vLLM versions that read them.
    """

    name: str
    holds: str
    directory: str
    variables: tuple[PlannedVariable, ...]
    versions: SpecifierSet
    distributions: frozenset[Distribution]
    default: str
    source: str

    def is_used_by(self, version: Version | None, distribution: Distribution) -> bool:
        """Whether this build of vLLM reads the variables. Where the version is not known: they do no harm, so yes."""
        return distribution in self.distributions and (version is None or self.versions.contains(version, prereleases=True))


@dataclass(frozen=True, slots=True)
class Caches:
    """All caches, those of weights apart.

    `per_pod_allowed` are vLLM's variables that are no part of its own cache keys; `keyed_arguments` the flags that are none and
    should be.
    """

    compiled: tuple[Cache, ...]
    weights: Cache
    per_pod_allowed: frozenset[str] = frozenset()
    keyed_arguments: frozenset[str] = frozenset()

    def used_by(self, version: str | None, distribution: Distribution) -> tuple[Cache, ...]:
        """Return the caches of compiled artifacts that a build of vLLM uses.

        Args:
            version: vLLM version; None, or a text that is no version, stands for an unknown one.
            distribution: Build of vLLM.
        """
        known = _parse_version(version)
        return tuple(cache for cache in self.compiled if cache.is_used_by(known, distribution))

    def variables_of(self, version: str | None, distribution: Distribution) -> tuple[PlannedVariable, ...]:
        """Return the variables that put every cache of a build of vLLM, and its weights, on the volume."""
        used = (*self.used_by(version, distribution), self.weights)
        return tuple(variable for cache in used for variable in cache.variables)


def load_caches(data: Mapping[str, Any] | None = None) -> Caches:
    """Load the table of caches.

    Args:
        data: Content of the data file; the one that ships with the package if absent.

    Raises:
        ValueError: An entry is malformed, or two entries set the same variable.
    """
    table = read_data("caches.yaml") if data is None else data
    caches = Caches(
        compiled=tuple(_read_cache(entry, CACHE_ROOT) for entry in table["caches"]),
        weights=_read_cache({"name": "weights", "directory": ".", **table["weights"]}, WEIGHTS_ROOT),
        per_pod_allowed=frozenset(table.get("perPodValues", {}).get("allowed", ())),
        keyed_arguments=frozenset(entry["flag"] for entry in table.get("keyedArguments", ())),
    )
    _check_unique(caches)
    return caches


def _read_cache(entry: Mapping[str, Any], root: str) -> Cache:
    unknown = set(entry) - {"name", "holds", "directory", "variables", "versions", "distributions", "default", "source"}
    if unknown:
        raise ValueError(f"cache {entry.get('name')!r}: unknown fields {sorted(unknown)}")
    directory = root if entry["directory"] == "." else f"{root}/{entry['directory']}"
    return Cache(
        name=entry["name"],
        holds=entry["holds"],
        directory=directory,
        variables=tuple(_read_variable(name, value, directory, entry["holds"]) for name, value in entry["variables"].items()),
        versions=SpecifierSet(entry.get("versions", "")),
        distributions=frozenset(Distribution(name) for name in entry.get("distributions", Distribution)),
        default=entry["default"],
        source=entry["source"],
    )


def _read_variable(name: str, value: str | Mapping[str, str], directory: str, holds: str) -> PlannedVariable:
    text, reason = (value, f"Keeps {holds}.") if isinstance(value, str) else (value["value"], value["because"])
    return PlannedVariable(name=name, value=text.replace("{directory}", directory), reason=reason)


def _check_unique(caches: Caches) -> None:
    names = [variable.name for cache in (*caches.compiled, caches.weights) for variable in cache.variables]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"set by more than one cache: {repeated}")


def _parse_version(version: str | None) -> Version | None:
    try:
        return Version(version) if version else None
    except InvalidVersion:
        return None

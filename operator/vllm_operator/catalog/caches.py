"""The directories of an engine: fixed paths in its container, its caches with their variables, and rules for priming.

The paths are constants, because the keys of compiled artifacts contain absolute paths and the path of the model: a different path causes a
cold start. Caches differ in the mounted directory of the volume, never in the path.

Measured on one H200 with a DeepSeek-V3-shaped model, a second start takes 392.6 s if two of these directories survive, 117.9 s if
`VLLM_CACHE_ROOT` does, and 34.9 s if all of them do, each time with Python's bytecode present. A Llama of 1.1B takes 42 s without the
bytecode, and 28 s with it. So each of them has a directory under `CACHE_ROOT`, and HOME covers caches without a variable.

Two Pods that fill one empty cache at once usually both come up (measured with vLLM 0.20.1 and a Llama model). So priming is limited to
versions with a known race, and to cases in which repeated compilation in every Pod is a waste.
"""

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Annotated, ClassVar

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, model_validator

from vllm_operator.api.plan import PlannedVariable
from vllm_operator.api.spec import Distribution
from vllm_operator.catalog.entry import Entry, Sourced, Specifiers

CACHE_ROOT = "/cache"
"""Compiled files of an engine; also the home directory of its user."""
HANGS_ROOT = f"{CACHE_ROOT}/hangs"
"""Evidence of the last hangs of an engine."""
STACKS_ROOT = "/tmp/vllm-operator-stacks"
"""Stacks that an engine writes when it makes no progress."""
PACKED_ROOT = "/packed"
"""Packed caches, in the containers that pack and push them."""
WEIGHTS_ROOT = "/weights"
"""Weights downloaded from the model hub."""
WEIGHTS_SUBPATH = "models"
"""Directory of the volume that is mounted at `WEIGHTS_ROOT`, or the prefix of its name. Cache keys start with a version."""
MODEL_ROOT = "/models"
"""Root of the PersistentVolumeClaim of a `pvc://name/path` model, mounted read-only: the model is `/models/path`."""
ADAPTER_CLAIM_ROOT = "/adapters"
"""Root of the PersistentVolumeClaims of `pvc://name/path` adapters, mounted read-only: the adapter is `/adapters/name/path`."""
ADAPTER_TOKEN_ROOT = "/etc/vllm-operator/adapters"
"""Directory with a subdirectory, by adapter name, for each adapter with a separate token."""
TOKEN_ROOT = "/etc/vllm-operator/hub"
"""Directory of the token for the model hub, from the user's Secret."""
TOKEN_FILE = "token"
ARTIFACT_SECRET_ROOT = "/etc/vllm-operator/artifact"
"""Directory of the credentials for the registry with caches, from the user's Secret."""


def model_argument(uri: str) -> str:
    """Return the engine's model argument: a name on the hub, a path in the mounted PersistentVolumeClaim, or an object store URI."""
    scheme, _, rest = uri.partition("://")
    if scheme == "hf":
        return rest
    if scheme != "pvc":
        return uri
    path = rest.partition("/")[2].strip("/")
    return f"{MODEL_ROOT}/{path}" if path else MODEL_ROOT


class CacheVariable(Entry):
    """A variable that a cache needs; `{directory}` in its value stands for the directory of the cache."""

    value: str
    because: str = ""


_Variable = Annotated[CacheVariable, BeforeValidator(lambda written: {"value": written} if isinstance(written, str) else written)]


class Cache(Sourced):
    """One cache.

    `folder` is relative to the root of the caches, "." the root itself; `default` is the engine's default location. `versions` are the vLLM
    versions that read the variables. `is_published`: whether it is part of a published artifact.
    """

    root: ClassVar[str] = CACHE_ROOT

    name: str
    holds: str
    folder: str = Field(alias="directory")
    written: Mapping[str, _Variable] = Field(alias="variables")
    versions: Specifiers = SpecifierSet()
    distributions: frozenset[Distribution] = frozenset(Distribution)
    is_published: StrictBool = Field(True, alias="published")
    default: str

    @property
    def directory(self) -> str:
        """The absolute path in the container."""
        return self.root if self.folder == "." else f"{self.root}/{self.folder}"

    @cached_property
    def variables(self) -> tuple[PlannedVariable, ...]:
        """The variables, which are set together and in this order."""
        return tuple(
            PlannedVariable(
                name=name, value=each.value.replace("{directory}", self.directory), reason=each.because or f"Keeps {self.holds}."
            )
            for name, each in self.written.items()
        )


class WeightsCache(Cache):
    """The cache of downloaded weights."""

    root: ClassVar[str] = WEIGHTS_ROOT


class PerPodValues(Sourced):
    """vLLM's variables that are not part of its own cache keys, with its versions: their values may differ between Pods."""

    allowed: Mapping[str, Specifiers]

    def allows(self, variable: str, version: str | None) -> bool:
        """Return whether a value may differ. An unknown version matches all versions."""
        return variable in self.allowed and _contains(self.allowed[variable], version)


class PublishedCaches(Sourced):
    """The parts of the caches that are published as an artifact.

    `home_folders` are folders of the home directory, which do not belong to a cache with a variable. `excluded` are patterns of names of
    files and folders that are left out, and `whole` folders in which nothing is left out.
    """

    home_folders: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


class Caches(Entry):
    """All caches: the content of `caches.yaml`.

    `keyed_arguments` are flags that affect compilation, but are not part of vLLM's own cache keys, with the reason and its source.
    """

    compiled: tuple[Cache, ...] = Field(alias="caches")
    weights: WeightsCache
    per_pod_values: PerPodValues
    keyed_arguments: Mapping[str, str]
    artifact: PublishedCaches

    @model_validator(mode="after")
    def _check_unique(self) -> "Caches":
        names = [variable.name for cache in (*self.compiled, self.weights) for variable in cache.variables]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"set by more than one cache: {repeated}")
        return self

    def used_by(self, version: str | None, distribution: Distribution) -> tuple[Cache, ...]:
        """Return the caches of compiled artifacts that a build of vLLM uses: all of an unknown version, because variables do no harm."""
        return tuple(cache for cache in self.compiled if distribution in cache.distributions and _contains(cache.versions, version))

    def folders_of_artifact(self, version: str | None, distribution: Distribution) -> tuple[str, ...]:
        """Return the top folders of the cache directory that go into an artifact of a build of vLLM, sorted."""
        own = {cache.folder.partition("/")[0] for cache in self.used_by(version, distribution) if cache.is_published}
        return tuple(sorted(own.union(self.artifact.home_folders)))

    def variables_of(self, version: str | None, distribution: Distribution) -> tuple[PlannedVariable, ...]:
        """Return the variables that put the caches of a build of vLLM, and its weights, on the volume."""
        return tuple(variable for cache in (*self.used_by(version, distribution), self.weights) for variable in cache.variables)


def _plain(backend: str) -> str:
    """Return one spelling of a backend. vLLM writes DEEPGEMM, DEEP_GEMM and deep_gemm."""
    return backend.replace("_", "").upper()


class PrimingRule(Sourced):
    """A reason to prime, unless the user sets the mode. `because` is a sentence for the user."""

    id: str
    versions: Specifiers = SpecifierSet()
    backends: tuple[Annotated[str, AfterValidator(_plain)], ...] = ()
    one_node: StrictBool = False
    because: str

    def applies(self, *, version: str | None, backends: Collection[str], one_node: bool) -> bool:
        """Return whether the rule applies. An unknown version matches all versions."""
        if self.one_node and not one_node:
            return False
        if self.backends and not any(_plain(backend).startswith(self.backends) for backend in backends):
            return False
        return _contains(self.versions, version)


def _contains(specifiers: SpecifierSet, version: str | None) -> bool:
    """Return whether a version matches. None, or text that is no version, matches all."""
    try:
        return not version or specifiers.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True

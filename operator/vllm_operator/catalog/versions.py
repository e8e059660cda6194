"""Contents of each vLLM version: variables, flags, names of backends, and bundled packages.

`hack/ingest_vllm.py` writes one JSON file per version into `data/versions`, from the wheel itself. A version without a file uses the file
of the next lower version. A version older than all files has no table, and no version-specific setting may be used for it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any

from pydantic import BeforeValidator, StrictBool

from vllm_operator.api.operation import ScalingMetric
from vllm_operator.catalog.entry import Entry, Sourced, list_data, load_file, loader
from vllm_operator.catalog.notes import say

Release = tuple[int, int, int]

_VERSION = re.compile(r"^v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?")
_BUILD = re.compile(r"^v?[0-9]+\.[0-9]+(?:\.[0-9]+)?\.?(post|rc|dev|a|b)[0-9]")
_OPPOSITE = "--no-"


def parse_release(text: str) -> Release | None:
    """Return 0.20.1 from `v0.20.1.post1` or `0.20.1+cu129`; None if the text does not begin with a version."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def read_release(text: Any) -> Release:
    """Return the release in a text. Raises ValueError if it does not begin with a version."""
    release = parse_release(text) if isinstance(text, str) else None
    if release is None:
        raise ValueError(f"{text!r} is not a version; one looks like 0.20.0")
    return release


Since = Annotated[Release, BeforeValidator(read_release)]
"""The first version for which a fact holds."""


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable: its default in the source, and its allowed values if vLLM checks them."""

    default: str | None = None
    values: tuple[str, ...] = ()
    deprecated: bool = False


class Bundle(Entry):
    """Contents of the wheel: its CUDA version, pinned packages, a vendored DeepGEMM."""

    cuda: str | None = None
    torch: str | None = None
    flashinfer: str | None = None
    flashinfer_cubins: StrictBool = False
    deep_gemm: StrictBool = False


def _with_spellings(flags: Any) -> Any:
    """Return all spellings of flags as equal entries."""
    return frozenset(flags).union(*flags.values()) if isinstance(flags, dict) else flags


class VersionTable(Entry):
    """Contents of one version: a file in `data/versions`.

    `backends` holds the names that the version accepts, by kind: attention, mlaPrefill, moe, linear, all2all,
    kvCacheDtype. `configs` holds the fields of flags that take JSON, by the flag's name without dashes.
    """

    version: str
    bundle: Bundle
    backends: Mapping[str, tuple[str, ...]]
    configs: Mapping[str, tuple[str, ...]]
    flags: Annotated[frozenset[str], BeforeValidator(_with_spellings)]
    variables: Mapping[str, Variable]

    @cached_property
    def release(self) -> Release:
        """The version as comparable numbers."""
        return read_release(self.version)

    def knows_flag(self, flag: str) -> bool:
        """Return whether `vllm serve` of this version has the flag, also as `--no-x` or `--config.field`."""
        stem, _, field = normalize_flag(flag).partition(".")
        if field:
            fields = self.configs.get(stem.removeprefix("--"))
            return stem in self.flags and (fields is None or field.partition(".")[0] in fields)
        return stem in self.flags or (stem.startswith(_OPPOSITE) and "--" + stem.removeprefix(_OPPOSITE) in self.flags)

    def full_flag(self, flag: str) -> str:
        """Return the flag that an abbreviation stands for, as argparse reads it; the same text if it is known, ambiguous or unknown."""
        stem, dot, field = normalize_flag(flag).partition(".")
        if not stem.startswith("--") or self.knows_flag(stem):
            return stem + dot + field
        flags = (_OPPOSITE + each.removeprefix("--") for each in self.flags) if stem.startswith(_OPPOSITE) else self.flags
        meant = [each for each in flags if each.startswith(stem)]
        return (meant[0] if len(meant) == 1 else stem) + dot + field

    def knows_variable(self, name: str) -> bool:
        """Return whether this version reads the variable."""
        return name in self.variables


def normalize_flag(flag: str) -> str:
    """Return one spelling of a flag: `moe_backend`, `--moe_backend` and `--moe-backend` are equal. JSON fields keep their underscores."""
    stem, dot, field = flag.partition(".")
    short = stem.startswith("-") and not stem.startswith("--")
    return (stem if short else "--" + stem.lstrip("-").replace("_", "-")) + dot + field


@dataclass(frozen=True, slots=True)
class Resolution:
    """The table for a version, or None for one older than all, and a note for the user if the table is of another version."""

    table: VersionTable | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Versions:
    """The known versions, oldest first. A candidate and a post release count as their release, a development build as the one before.

    `build` is the table that was read from the image, and counts instead of the table of its version. Rules that depend on the version
    count it as the release that it resolves to, or that it is most like: forks often have versions such as 0.1.dev1.
    """

    tables: tuple[VersionTable, ...]
    build: VersionTable | None = None

    @property
    def newest(self) -> VersionTable:
        """The newest known version."""
        return self.tables[-1]

    def complete(self, version: str) -> str | None:
        """Return a version with all its numbers: for `0.33`, the newest known release of that minor; None if there is none."""
        if not re.fullmatch(r"v?\d{1,9}\.\d{1,9}", version):
            return version if parse_release(version) else None
        wanted = read_release(version)[:2]
        return next((known.version for known in reversed(self.tables) if known.release[:2] == wanted), None)

    @property
    def built(self) -> str | None:
        """The version of `build`, or of the release that it is most like if it numbers its versions otherwise; None without a build."""
        if self.build is None:
            return None
        names = self.build.flags | self.build.variables.keys()
        known = {table.version: table.flags | table.variables.keys() for table in self.tables}
        like = max(reversed(known), key=lambda version: len(names & known[version]) / len(names | known[version]))
        is_own = self.build.release[0] > self.newest.release[0] and like != self.newest.version  # of a fork
        return like if is_own or self.build.release < self.tables[0].release else self.build.version

    def resolve(self, version: str) -> Resolution:
        """Find the table for a version. Raises ValueError if the text does not begin with a version."""
        if self.build is None:
            return self._resolve(version)
        found = self._resolve(version).table if _BUILD.search(version) else None
        counted = found.version if found else version
        return Resolution(self.build.model_copy(update={"version": counted, "release": read_release(counted)}))

    def _resolve(self, version: str) -> Resolution:
        release, build = read_release(version), _BUILD.search(version)
        before = build is not None and build[1] == "dev"
        table = next(
            (known for known in reversed(self.tables) if known.release < release or (known.release == release and not before)), None
        )
        if table is None:
            note = say("version.oldest", version=version, oldest=self.tables[0].version)
        elif table.release == release and build is None:
            return Resolution(table)
        elif table is self.newest and build is None:
            note = say("version.newer", version=version, newest=table.version)
        else:
            lower = "" if build else ", the next lower version"
            note = f"vLLM {version} is not in the catalog. The operator treats it like {table.version}{lower}."
        return Resolution(table, note)


def build_versions(tables: Iterable[VersionTable]) -> Versions:
    """Put tables in order. Raises ValueError if there is no table, one has no version, or two have the same release."""
    ordered = tuple(sorted(tables, key=lambda table: table.release))
    if not ordered:
        raise ValueError("no vLLM version is known")
    if len({table.release for table in ordered}) != len(ordered):
        raise ValueError("two tables of the same vLLM version")
    return Versions(ordered)


class OtherProduct(Sourced):
    """Parts of the names of images whose tags are versions of a product with vLLM, and the version of vLLM, by how a tag begins."""

    images: tuple[str, ...]
    versions: Mapping[str, str]


class EngineFacts(Entry):
    """Facts about vLLM's server and command line that hold for several versions: the content of `engine.yaml`.

    `object_stores` has the first version that reads weights from an object store, by scheme; `other_products` the images whose tags are
    versions of another product; `guarded_paths` prefixes of the paths for which vLLM requires a key, by the first version;
    `containers` the `commands` and `images` by which a container with vLLM is known;
    `metrics` the names of the metrics by which replicas are scaled; `replacements` the successors of dropped variables and flags.
    """

    sources: Mapping[str, str]
    listens_while_draining_since: Since
    metrics: Mapping[ScalingMetric, str]
    guarded_paths: Mapping[Since, tuple[str, ...]]
    object_stores: Mapping[str, Since]
    other_products: tuple[OtherProduct, ...]
    containers: Mapping[str, tuple[str, ...]]
    replacements: Mapping[str, str]

    def paths_with_key(self, version: str | None) -> tuple[str, ...]:
        """Return the prefixes of the paths that a key protects in this version; those of the oldest version if it is unknown."""
        held = [paths for since, paths in self.guarded_paths.items() if _is_since(since, version)]
        return held[-1] if held else next(iter(self.guarded_paths.values()))

    def listens_while_draining(self, version: str | None) -> bool:
        """Return whether the HTTP server of this version accepts requests while the engine drains, only to abort them."""
        return _is_since(self.listens_while_draining_since, version)


def _is_since(since: Release, version: str | None) -> bool:
    release = parse_release(version or "")
    return release is not None and since <= release


load_engine_facts = loader(EngineFacts, "engine.yaml")
"""Reads the facts that ship with the operator."""


load_model_classes = loader(dict[str, Since], "model_classes.json")
"""Reads the first known version that has each class of models, by the name in `architectures` of config.json."""


@cache
def load_versions() -> Versions:
    """Return the tables that ship with the operator."""
    return build_versions(load_file(VersionTable, name) for name in list_data("versions"))

"""What each vLLM version knows: variables, flags, names of backends, and what its wheel bundles.

One JSON file per version in `data/versions`, written by `hack/ingest_vllm.py` from the wheel itself. A version
without a file uses the next lower one that has a file; one newer than all uses the newest; one older than all
has no table, and nothing version-specific may be emitted for it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from vllm_operator.catalog.resources import list_data, read_data

Release = tuple[int, int, int]

_VERSION = re.compile(r"^v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?")
_OPPOSITE = "--no-"


def parse_release(text: str) -> Release | None:
    """Read `0.20.1` out of `v0.20.1.post1` or `0.20.1+cu129`; None if the text does not begin with a version."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable: its default as written in the source, the values it accepts if it checks them."""

    default: str | None = None
    values: tuple[str, ...] = ()
    deprecated: bool = False


@dataclass(frozen=True, slots=True)
class Bundle:
    """What comes with the wheel: the CUDA it is built for, pinned packages, a vendored DeepGEMM."""

    cuda: str | None = None
    torch: str | None = None
    flashinfer: str | None = None
    flashinfer_cubins: bool = False
    deep_gemm: bool = False


@dataclass(frozen=True, slots=True)
class VersionTable:
    """What one version knows.

    `backends` holds the names that the version accepts, by kind: attention, mlaPrefill, moe, linear, all2all,
    kvCacheDtype. `configs` holds the fields of flags that take JSON, by the flag's name without dashes.
    """

    version: str
    release: Release
    bundle: Bundle
    backends: Mapping[str, tuple[str, ...]]
    configs: Mapping[str, tuple[str, ...]]
    flags: frozenset[str]
    variables: Mapping[str, Variable]

    def knows_flag(self, flag: str) -> bool:
        """Whether `vllm serve` of this version takes the flag, also as `--no-x` or `--config.field`."""
        stem, _, field = normalize_flag(flag).partition(".")
        if field:
            fields = self.configs.get(stem.removeprefix("--"))
            return stem in self.flags and (fields is None or field.partition(".")[0] in fields)
        return stem in self.flags or (stem.startswith(_OPPOSITE) and "--" + stem.removeprefix(_OPPOSITE) in self.flags)

    def knows_variable(self, name: str) -> bool:
        """Whether this version reads the variable."""
        return name in self.variables


def normalize_flag(flag: str) -> str:
    """`moe_backend`, `--moe_backend` and `--moe-backend` are one flag to vLLM; fields of JSON keep their underscores."""
    stem, dot, field = flag.partition(".")
    short = stem.startswith("-") and not stem.startswith("--")
    return (stem if short else "--" + stem.lstrip("-").replace("_", "-")) + dot + field


@dataclass(frozen=True, slots=True)
class Resolution:
    """Which table stands for a version, and what the user should know about that; no table for one older than all."""

    table: VersionTable | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Versions:
    """The known versions, oldest first."""

    tables: tuple[VersionTable, ...]

    @property
    def newest(self) -> VersionTable:
        """The newest known version."""
        return self.tables[-1]

    def resolve(self, version: str) -> Resolution:
        """Find the table for a version.

        Raises:
            ValueError: The text does not begin with a version.
        """
        release = parse_release(version)
        if release is None:
            raise ValueError(f"{version!r} is not a version")
        lower = [table for table in self.tables if table.release <= release]
        if not lower:
            return Resolution(
                None,
                f"vLLM {version} is older than {self.tables[0].version}, the oldest version that this operator knows: "
                "no backend is chosen and only settings that are safe everywhere are made.",
            )
        table = lower[-1]
        if table.release == release:
            return Resolution(table)
        if table is self.newest:
            return Resolution(
                table,
                f"vLLM {version} is newer than {table.version}, the newest version that this operator knows: "
                f"it is treated like {table.version}.",
            )
        return Resolution(table, f"vLLM {version} is not known to this operator: it is treated like {table.version}, the next lower one.")


def parse_table(data: Mapping[str, Any]) -> VersionTable:
    """Read the content of a version file.

    Raises:
        KeyError: A part is missing.
        ValueError: `version` is not a version.
    """
    release = parse_release(data["version"])
    if release is None:
        raise ValueError(f"{data['version']!r} is not a version")
    bundle = data["bundle"]
    return VersionTable(
        version=data["version"],
        release=release,
        bundle=Bundle(
            cuda=bundle.get("cuda"),
            torch=bundle.get("torch"),
            flashinfer=bundle.get("flashinfer"),
            flashinfer_cubins=bundle.get("flashinferCubins", False),
            deep_gemm=bundle.get("deepGemm", False),
        ),
        backends={kind: tuple(names) for kind, names in data["backends"].items()},
        configs={flag: tuple(fields) for flag, fields in data["configs"].items()},
        flags=frozenset(data["flags"]).union(*data["flags"].values()),
        variables={
            name: Variable(facts.get("default"), tuple(facts.get("values", ())), facts.get("deprecated", False))
            for name, facts in data["variables"].items()
        },
    )


def build_versions(tables: Iterable[VersionTable]) -> Versions:
    """Put tables in order.

    Raises:
        ValueError: There is none, or two are of the same release.
    """
    ordered = tuple(sorted(tables, key=lambda table: table.release))
    if not ordered:
        raise ValueError("no vLLM version is known")
    if len({table.release for table in ordered}) != len(ordered):
        raise ValueError("two tables of the same vLLM version")
    return Versions(ordered)


@cache
def load_replacements() -> Mapping[str, str]:
    """Read what to use instead of variables and flags that newer versions do not know any more."""
    replacements: Mapping[str, str] = read_data("replacements.yaml")["replacements"]
    return replacements


@cache
def load_versions() -> Versions:
    """Read the tables that ship with the operator."""
    return build_versions(parse_table(read_data(name)) for name in list_data("versions"))

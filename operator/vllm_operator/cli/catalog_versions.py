"""vLLM versions for `vllm-operator catalog versions`."""

from typing import Any

from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.versions import VersionTable, parse_release

HEADER = ("VERSION", "CUDA", "TORCH", "FLASHINFER", "DEEPGEMM", "FLAGS", "VARIABLES", "BACKENDS")


def entries(catalog: Catalog) -> dict[str, Any]:
    """Every version in short, the newest last."""
    return {table.version: _short(table) for table in catalog.versions.tables}


def row(name: str, entry: Any) -> tuple[str, ...]:
    """A version as a row."""
    bundle = entry["bundle"]
    return (
        name,
        bundle["cuda"] or "",
        bundle["torch"] or "",
        bundle["flashinfer"] or "",
        "vendored" if bundle["deepGemm"] else "",
        str(entry["flags"]),
        str(entry["variables"]),
        str(entry["backends"]),
    )


def find(catalog: Catalog, name: str) -> Any:
    """Everything about a version, and what it changed against the one before; None if the text is no version."""
    if parse_release(name) is None:
        return None
    resolution = catalog.versions.resolve(name)
    table = resolution.table
    if table is None:
        return {"version": name, "note": resolution.note}
    tables = catalog.versions.tables
    place = tables.index(table)
    return {
        "version": name,
        **({"note": resolution.note} if resolution.note else {}),
        "bundle": _bundle(table),
        **(_changes(tables[place - 1], table) if place else {}),
        "backends": {kind: list(names) for kind, names in table.backends.items()},
        "deprecatedVariables": sorted(name for name, variable in table.variables.items() if variable.deprecated),
        "flags": sorted(table.flags),
        "variables": {name: variable.default for name, variable in sorted(table.variables.items())},
    }


def _short(table: VersionTable) -> dict[str, Any]:
    return {
        "bundle": _bundle(table),
        "flags": len(table.flags),
        "variables": len(table.variables),
        "backends": sum(map(len, table.backends.values())),
    }


def _bundle(table: VersionTable) -> dict[str, Any]:
    bundle = table.bundle
    return {
        "cuda": bundle.cuda,
        "torch": bundle.torch,
        "flashinfer": bundle.flashinfer,
        "flashinferCubins": bundle.flashinfer_cubins,
        "deepGemm": bundle.deep_gemm,
    }


def _changes(before: VersionTable, after: VersionTable) -> dict[str, Any]:
    old = {f"{kind} {name}" for kind, names in before.backends.items() for name in names}
    new = {f"{kind} {name}" for kind, names in after.backends.items() for name in names}
    return {
        f"since{before.version}": {
            "newFlags": sorted(after.flags - before.flags),
            "goneFlags": sorted(before.flags - after.flags),
            "newVariables": sorted(after.variables.keys() - before.variables.keys()),
            "goneVariables": sorted(before.variables.keys() - after.variables.keys()),
            "newBackends": sorted(new - old),
            "goneBackends": sorted(old - new),
        }
    }

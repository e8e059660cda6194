"""Entries of the catalog for `vllm-operator catalog`: vLLM versions, GPUs, families of models, rules.

Each section has its entries as JSON, the row of an entry in the table, and a function that finds everything about one entry.
"""

from typing import Any

from vllm_operator.api.spec import ModelSpec
from vllm_operator.catalog.gpus import Architecture, Product, product_key
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.models import ModelFamily
from vllm_operator.catalog.resources import list_data, read_data
from vllm_operator.catalog.versions import VersionTable, parse_release
from vllm_operator.planning.model.facts import resolve_facts

VERSION_HEADER = ("VERSION", "CUDA", "TORCH", "FLASHINFER", "DEEPGEMM", "FLAGS", "VARIABLES", "BACKENDS")
GPU_HEADER = ("NAME", "GPU", "ARCHITECTURE", "MEMORY", "FP8", "FP4", "MIG", "CUDA FROM")
MODEL_HEADER = ("FAMILY", "ATTENTION", "EXPERTS", "ROUTING", "FORMAT", "SIZE", "NAMES LIKE")
RULE_HEADER = ("RULE", "OF", "COMPONENT", "KIND", "VERSIONS", "GPUS", "WHAT FOLLOWS")


def version_entries(catalog: Catalog) -> dict[str, Any]:
    """Return a summary of each version, the newest last."""
    return {table.version: _short(table) for table in catalog.versions.tables}


def version_row(name: str, entry: Any) -> tuple[str, ...]:
    """Return the row of a version."""
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


def version_find(catalog: Catalog, name: str) -> Any:
    """Return everything about a version, with the changes since the previous one; None if the name is no version."""
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


def gpu_entries(catalog: Catalog) -> dict[str, Any]:
    """Return each product, and each architecture without a known product, in the order in which the operator prefers them."""
    gpus = catalog.gpus
    found: dict[str, Any] = {}
    for architecture in gpus.architectures.values():
        products = [product for product in gpus.products.values() if product.architecture == architecture.name]
        for product in products:
            found[product.name] = _product(product, architecture)
        if not products:
            found[architecture.name] = _architecture(architecture)
    return found


def gpu_row(name: str, entry: Any) -> tuple[str, ...]:
    """Return the row of a product or architecture."""
    memory = entry.get("memoryMebibytes")
    return (
        name,
        entry.get("title", ""),
        f"{entry['architecture']} {entry['family']}",
        f"{memory} MiB" if memory else "",
        *("yes" if entry[ability] else "" for ability in ("fp8", "fp4", "mig")),
        entry["cuda"],
    )


def gpu_find(catalog: Catalog, name: str) -> Any:
    """Return everything about an architecture or product; None if there is none with this name."""
    gpus = catalog.gpus
    architecture = gpus.architectures.get(name)
    product = gpus.products.get(product_key(name))
    if architecture is not None:
        members = [product.name for product in gpus.products.values() if product.architecture == name]
        return {**_architecture(architecture), "products": members, "backends": _working_backends(catalog, name)}
    if product is None:
        return None
    return {**_product(product, gpus.architectures[product.architecture]), "backends": _working_backends(catalog, product.architecture)}


def _architecture(architecture: Architecture) -> dict[str, Any]:
    return {
        "architecture": architecture.name,
        "family": architecture.family,
        "fp8": architecture.fp8,
        "fp4": architecture.fp4,
        "mig": architecture.mig,
        "unifiedMemory": architecture.unified_memory,
        "cuda": ".".join(map(str, architecture.cuda)),
    }


def _product(product: Product, architecture: Architecture) -> dict[str, Any]:
    return {
        "product": product.name,
        "title": product.title,
        "memoryMebibytes": product.memory_mebibytes,
        "dataCenter": product.data_center,
        "host": product.host,
        **_architecture(architecture),
        **({} if product.mig is None else {"mig": product.mig}),
    }


def _working_backends(catalog: Catalog, architecture: str) -> dict[str, list[str]]:
    """Backends that work on an architecture with some model and version, by component."""
    found: dict[str, list[str]] = {}
    for kernel in catalog.rules.kernels.entries:
        if any(architecture in condition.members.get("architecture", (architecture,)) for condition in kernel.works):
            found.setdefault(kernel.component, []).append(kernel.backend)
    return found


def model_entries(catalog: Catalog) -> dict[str, Any]:
    """Return each family, in the order in which names are looked up."""
    return {family.name: _family(family) for family in catalog.models.families}


def model_row(name: str, entry: Any) -> tuple[str, ...]:
    """Return the row of a family."""
    experts, billions = entry["experts"], entry["billions"]
    return (
        name,
        entry["attention"] or "",
        "none" if experts == 0 else str(experts or ""),
        entry["routing"] or "",
        entry["quantization"] or "",
        f"{billions:g} B" if billions else "",
        " ".join(entry["patterns"]),
    )


def model_find(catalog: Catalog, name: str) -> Any:
    """Return everything about a family, or what the name of a model tells about it; None if nothing is known."""
    family = next((family for family in catalog.models.families if family.name == name), None)
    if family is not None:
        return _family(family)
    if catalog.models.find(name) is None:
        return None
    facts = resolve_facts(ModelSpec(uri=f"hf://{name}"), catalog.models) if name.count("/") == 1 else None
    if facts is None:
        return None
    known = {fact: getattr(facts, fact) for fact in facts.sources}
    return {"model": name, "family": facts.family, **{fact: _plain(value) for fact, value in known.items()}}


def _family(family: ModelFamily) -> dict[str, Any]:
    facts = family.facts
    return {
        "patterns": [pattern.pattern for pattern in family.patterns],
        "modelTypes": list(family.config_types),
        "attention": _plain(facts.attention),
        "experts": facts.experts,
        "quantization": _plain(facts.quantization),
        "routing": facts.routing,
        "routingGroups": facts.routing_groups,
        "hiddenSize": facts.hidden_size,
        "moeIntermediateSize": facts.moe_intermediate_size,
        "attentionHeads": facts.attention_heads,
        "mlaDims": list(facts.mla_dims) if facts.mla_dims else None,
        "billions": family.billions,
        "source": family.source,
    }


def _plain(value: Any) -> Any:
    """Convert a value for JSON and YAML."""
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, str) else value


def rule_entries(catalog: Catalog) -> dict[str, Any]:
    """Return each rule as written in its file, in order of precedence. The user's own rules are marked."""
    written = {rule["id"]: rule for name in list_data("rules") for rule in read_data(name)}
    written |= {name: {"of": "cluster", **rule} for name, rule in catalog.own_rules.items()}
    return {rule.id: written[rule.id] for rule in catalog.rules.rules if rule.id in written}


def rule_row(name: str, entry: Any) -> tuple[str, ...]:
    """Return the row of a rule."""
    when = entry.get("when", {})
    architectures = when.get("architectures", [])
    return (
        name,
        entry.get("of", "operator"),
        entry["component"],
        entry["kind"],
        when.get("versions", "all"),
        " ".join(architectures) if isinstance(architectures, list) else architectures,
        _effect(entry),
    )


def rule_find(catalog: Catalog, name: str) -> Any:
    """Return a rule as written in its file; None if there is none with this ID."""
    return rule_entries(catalog).get(name)


def _effect(entry: Any) -> str:
    parts = [entry["backend"]] if "backend" in entry else []
    parts += [f"{name}={value}" for name, value in entry.get("environment", {}).items()]
    parts += [name if value is None else f"{name} {value}" for name, value in entry.get("arguments", {}).items()]
    parts += [word for word in ("refuse", "warn") if word in entry]
    return ", ".join(parts)

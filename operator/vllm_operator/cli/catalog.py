"""`vllm-operator catalog`: the operator's knowledge about vLLM versions, GPUs, models and rules.

Without an ID, it prints a table of all entries; with an ID, all facts about one entry. Exit status: 0, or 2 if there is no such entry or
the user's rules cannot be read.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_camel

from vllm_operator.api.spec import ModelSpec
from vllm_operator.catalog.entry import list_data, read_data
from vllm_operator.catalog.gpus import Architecture, Product, product_key
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.models import ModelFamily
from vllm_operator.catalog.versions import VersionTable, parse_release
from vllm_operator.cli.documents import RULES_HELP, catalog_with, print_as
from vllm_operator.cli.inputs import InputError
from vllm_operator.cli.terminal import table
from vllm_operator.sizing.model_facts import resolve_facts
from vllm_operator.text.wording import listed, similar

FOUND_STATUS = 0
SUGGESTIONS = 8


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the catalog: its entries by ID, the columns of their table, and the function that finds one."""

    entries: Callable[[Catalog], Mapping[str, Any]]
    columns: Mapping[str, Callable[[Any], Any]]
    find: Callable[[Catalog, str], Any]
    hint: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("section", choices=tuple(SECTIONS), help="the part of the catalog")
    parser.add_argument("id", nargs="?", metavar="ID", help="show everything about this entry")
    parser.add_argument("--rules", metavar="FILE", help=RULES_HELP)
    parser.add_argument("-o", "--output", choices=("json", "yaml"), help="print it in this format")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a part of the catalog. Return the exit status."""
    section = SECTIONS[arguments.section]
    catalog = catalog_with(arguments.rules)
    if arguments.id is not None:
        found = section.find(catalog, arguments.id)
        if found is None:
            near = _similar(arguments.id, section.entries(catalog))
            hint = f"Did you mean {listed(near, 'or')}?" if near else section.hint
            raise InputError(f"the catalog has no entry {arguments.id}. {hint}")
        print_as(found, arguments.output or "yaml")
        return FOUND_STATUS
    entries = section.entries(catalog)
    if arguments.output:
        print_as(entries, arguments.output)
    else:
        rows = [(name, *(_cell(value(entry)) for value in section.columns.values())) for name, entry in entries.items()]
        print("\n".join(table(("NAME", *section.columns), rows)))
        print(f"\nCatalog {catalog.version}. For everything about one entry: vllm-operator catalog {arguments.section} ID")
    return FOUND_STATUS


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _similar(name: str, entries: Mapping[str, Any]) -> list[str]:
    """Return entries whose ID or patterns contain the name, or whose ID is similar."""
    sought = name.casefold()
    texts = {known: " ".join((known, *entry.get("patterns", ()))).casefold() for known, entry in entries.items()}
    containing = [known for known, text in texts.items() if len(sought) > 2 and sought in text]
    return containing[:SUGGESTIONS] or similar(name, entries, most=SUGGESTIONS)


def version_entries(catalog: Catalog) -> dict[str, Any]:
    """Return a summary of each version, oldest first."""
    return {
        table.version: {
            "bundle": _bundle(table),
            "flags": len(table.flags),
            "variables": len(table.variables),
            "backends": sum(map(len, table.backends.values())),
        }
        for table in catalog.versions.tables
    }


def version_find(catalog: Catalog, name: str) -> Any:
    """Return all facts about a version, with the changes since the previous one; None if there is no such version."""
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


def _bundle(table: VersionTable) -> dict[str, Any]:
    return _fields(table.bundle, "cuda", "torch", "flashinfer", "flashinfer_cubins", "deep_gemm")


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
    """Return each product, and each architecture without a known product, in the operator's order of preference."""
    gpus = catalog.gpus
    found: dict[str, Any] = {}
    for architecture in gpus.architectures.values():
        products = [product for product in gpus.products.values() if product.architecture == architecture.name]
        for product in products:
            found[product.name] = _product(product, architecture)
        if not products:
            found[architecture.name] = _architecture(architecture)
    return found


def gpu_find(catalog: Catalog, name: str) -> Any:
    """Return all facts about an architecture or product; None if there is none with this name."""
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
    abilities = _fields(architecture, "family", "fp8", "fp4", "mig", "unified_memory")
    return {"architecture": architecture.name, **abilities, "cuda": ".".join(map(str, architecture.cuda))}


def _product(product: Product, architecture: Architecture) -> dict[str, Any]:
    known = {"product": product.name, **_fields(product, "title", "memory_mebibytes", "data_center", "host"), **_architecture(architecture)}
    return known if product.mig is None else {**known, "mig": product.mig}


def _working_backends(catalog: Catalog, architecture: str) -> dict[str, list[str]]:
    """Return the backends that work on an architecture with some model and version, by component."""
    found: dict[str, list[str]] = {}
    for kernel in catalog.rules.kernels.entries:
        if any(architecture in condition.members.get("architecture", (architecture,)) for condition in kernel.works):
            found.setdefault(kernel.component, []).append(kernel.backend)
    return found


def model_entries(catalog: Catalog) -> dict[str, Any]:
    """Return each family, in the order of name lookups."""
    return {family.name: _family(family) for family in catalog.models.families}


def model_find(catalog: Catalog, name: str) -> Any:
    """Return all facts about a family, or the facts that a model's name implies; None if nothing is known."""
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
    sizes = ("routing_groups", "hidden_size", "moe_intermediate_size", "attention_heads", "mla_dims")
    return {
        "patterns": [pattern.pattern for pattern in family.patterns],
        "modelTypes": list(family.config_types),
        **_fields(family.facts, "attention", "experts", "quantization", "routing", *sizes),
        **_fields(family, "billions", "source"),
    }


def _fields(value: object, *names: str) -> dict[str, Any]:
    return {to_camel(name): _plain(getattr(value, name)) for name in names}


def _plain(value: Any) -> Any:
    return list(value) or None if isinstance(value, tuple) else str(value) if isinstance(value, str) else value


def rule_entries(catalog: Catalog) -> dict[str, Any]:
    """Return each rule as written in its file, in order of precedence. The user's rules are marked."""
    written = {rule["id"]: rule for name in list_data("rules") for rule in read_data(name)}
    written |= {name: {"of": "cluster", **rule} for name, rule in catalog.own_rules.items()}
    return {rule.id: written[rule.id] for rule in catalog.rules.rules if rule.id in written}


def _effect(entry: Any) -> str:
    parts = [entry["backend"]] if "backend" in entry else []
    parts += [f"{name}={value}" for name, value in entry.get("environment", {}).items()]
    parts += [name if value is None else f"{name} {value}" for name, value in entry.get("arguments", {}).items()]
    parts += [word for word in ("refuse", "warn") if word in entry]
    return ", ".join(parts)


SECTIONS = {
    "versions": Section(
        version_entries,
        {
            "CUDA": lambda entry: entry["bundle"]["cuda"],
            "TORCH": lambda entry: entry["bundle"]["torch"],
            "FLASHINFER": lambda entry: entry["bundle"]["flashinfer"],
            "DEEPGEMM": lambda entry: "vendored" if entry["bundle"]["deepGemm"] else "",
            "FLAGS": lambda entry: entry["flags"],
            "VARIABLES": lambda entry: entry["variables"],
            "BACKENDS": lambda entry: entry["backends"],
        },
        version_find,
        "Give a version, for example 0.20.1.",
    ),
    "gpus": Section(
        gpu_entries,
        {
            "GPU": lambda entry: entry.get("title"),
            "ARCHITECTURE": lambda entry: f"{entry['architecture']} {entry['family']}",
            "MEMORY": lambda entry: f"{entry['memoryMebibytes']} MiB" if entry.get("memoryMebibytes") else "",
            "FP8": lambda entry: entry["fp8"],
            "FP4": lambda entry: entry["fp4"],
            "MIG": lambda entry: bool(entry["mig"]),
            "CUDA FROM": lambda entry: entry["cuda"],
        },
        gpu_find,
        "Give an architecture (sm_90), or a product as in the node label nvidia.com/gpu.product.",
    ),
    "models": Section(
        model_entries,
        {
            "ATTENTION": lambda entry: entry["attention"],
            "EXPERTS": lambda entry: entry["experts"] or (None if entry["experts"] is None else "none"),
            "ROUTING": lambda entry: entry["routing"],
            "FORMAT": lambda entry: entry["quantization"],
            "SIZE": lambda entry: f"{entry['billions']:g} B" if entry["billions"] else "",
            "NAMES LIKE": lambda entry: entry["patterns"],
        },
        model_find,
        "Give a family, or a model such as deepseek-ai/DeepSeek-V3.2.",
    ),
    "rules": Section(
        rule_entries,
        {
            "OF": lambda entry: entry.get("of", "operator"),
            "COMPONENT": lambda entry: entry["component"],
            "KIND": lambda entry: entry["kind"],
            "VERSIONS": lambda entry: entry.get("when", {}).get("versions", "all"),
            "GPUS": lambda entry: entry.get("when", {}).get("architectures"),
            "WHAT FOLLOWS": lambda entry: _effect(entry),
        },
        lambda catalog, name: rule_entries(catalog).get(name),
        "Give the ID of a rule. Without an ID, this command lists all rules.",
    ),
}

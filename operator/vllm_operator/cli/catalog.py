"""`vllm-operator catalog`: the operator's knowledge about versions, GPUs, models, rules and crashes. Needs no cluster.

Without an ID, they list all entries; with an ID, they print everything about one entry. `ingest` prints the table of a build of vLLM that
is in no catalog. Exit status: 0, or 2 if there is no such entry or a file of the user cannot be read.
"""

import argparse
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_jsonable_python

from vllm_operator.api.spec import ModelSpec
from vllm_operator.catalog.builds import find_packed, read_table, unpack
from vllm_operator.catalog.entry import Entry, EntryError, list_data, read_data
from vllm_operator.catalog.gpus import product_key
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.startup import Change, Signature, StartupKnowledge, load_remedies, load_signature_samples
from vllm_operator.catalog.templates import fill_in, fill_in_exactly
from vllm_operator.catalog.versions import VersionTable, parse_release
from vllm_operator.cli.diagnose import known_crashes
from vllm_operator.cli.documents import catalog_with, texts_in
from vllm_operator.cli.inputs import InputError, print_as
from vllm_operator.cli.terminal import NARROW, table
from vllm_operator.sizing.model_facts import resolve_facts
from vllm_operator.text.wording import listed, similar

SUGGESTIONS = 8
INGEST, INGEST_SECONDS = "ingest", 300.0


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the catalog: its entries by ID, and how to find more than these by name. `columns.yaml` has its table."""

    entries: Callable[[Catalog, StartupKnowledge], Mapping[str, Any]]
    find: Callable[[Catalog, str], Any] | None = None


def show_catalog(arguments: argparse.Namespace) -> int:
    """Print a part of the catalog, or the table of a build. Return the exit status."""
    if arguments.section == INGEST:
        return _ingest(arguments.id or "")
    section, shown = SECTIONS[arguments.section], read_data("columns.yaml")[arguments.section]
    catalog = catalog_with(texts_in(arguments.rules))
    entries = section.entries(catalog, known_crashes(arguments.signatures))
    if arguments.id is not None:
        by_name = {name.casefold(): entry for name, entry in entries.items()}
        found = section.find(catalog, arguments.id) if section.find is not None else by_name.get(arguments.id.casefold())
        if found is None:
            near = _similar(arguments.id, entries)
            hint = f"Did you mean {listed(near, 'or')}?" if near else shown["hint"]
            raise InputError(f"the catalog has no entry {arguments.id}. {hint}")
        print_as(found, arguments.output or "yaml")
    elif arguments.output:
        print_as(entries, arguments.output)
    else:
        rows = [(name, *_cells(entry, shown["columns"])) for name, entry in entries.items()]
        print("\n".join(table(("NAME", *shown["columns"]), rows)))
        print(f"\nCatalog {catalog.version}. For everything about one entry: vllm-operator catalog {arguments.section} ID")
    return 0


def _ingest(path: str) -> int:
    """Print the table of a wheel or a folder. It is untrusted, so another process with limits reads it."""
    command = [sys.executable, "-P", "-B", "-m", "vllm_operator.tools", "read-build", path]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, encoding="ascii", timeout=INGEST_SECONDS, check=False)
        content = unpack(find_packed(done.stdout))
        read_table(content)
    except (EntryError, UnicodeError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{path or 'no file'} is no wheel of vLLM and no folder with it: {error}") from None
    print_as(content, "json")
    return 0


def _cells(entry: Mapping[str, Any], columns: Mapping[str, str]) -> Iterator[str]:
    from jinja2 import ChainableUndefined, Environment  # slow to import, and not always needed

    environment = Environment(undefined=ChainableUndefined)
    functions = {"effect": lambda: _effect(entry), "short": lambda text: textwrap.shorten(text, NARROW, placeholder=" ...")}
    for expression in columns.values():
        value = environment.compile_expression(expression)(functions, **entry)
        yield (
            ("yes" if value else "")
            if isinstance(value, bool)
            else " ".join(map(str, value))
            if isinstance(value, list)
            else ""
            if value is None
            else str(value)
        )


def _similar(name: str, entries: Mapping[str, Any]) -> list[str]:
    sought = name.casefold()
    texts = {known: " ".join((known, *entry.get("patterns", ()))).casefold() for known, entry in entries.items()}
    containing = [known for known, text in texts.items() if len(sought) > 2 and sought in text]
    return containing[:SUGGESTIONS] or similar(name, entries, most=SUGGESTIONS)


def _written(entry: Entry) -> dict[str, Any]:
    """Return an entry as in its file, without fields that are unknown."""
    return entry.model_dump(mode="json", by_alias=True, exclude_none=True)


def _versions(catalog: Catalog, _: StartupKnowledge) -> dict[str, Any]:
    return {
        table.version: {
            "bundle": _written(table.bundle),
            "flags": len(table.flags),
            "variables": len(table.variables),
            "backends": sum(map(len, table.backends.values())),
        }
        for table in catalog.versions.tables
    }


def _find_version(catalog: Catalog, name: str) -> Any:
    if parse_release(name) is None:
        return None
    resolution = catalog.versions.resolve(name)
    table, tables = resolution.table, catalog.versions.tables
    if table is None:
        return {"version": name, "note": resolution.note}
    place = tables.index(table)
    return {
        "version": name,
        **({"note": resolution.note} if resolution.note else {}),
        "bundle": _written(table.bundle),
        **({f"since{tables[place - 1].version}": _changes(tables[place - 1], table)} if place else {}),
        "backends": {kind: list(names) for kind, names in table.backends.items()},
        "deprecatedVariables": sorted(name for name, variable in table.variables.items() if variable.deprecated),
        "flags": sorted(table.flags),
        "variables": {name: variable.default for name, variable in sorted(table.variables.items())},
    }


def _changes(before: VersionTable, after: VersionTable) -> dict[str, Any]:
    old, new = (
        {
            "Flags": table.flags,
            "Variables": table.variables.keys(),
            "Backends": {f"{kind} {name}" for kind, names in table.backends.items() for name in names},
        }
        for table in (before, after)
    )
    return {
        f"{what}{kind}": sorted(one[kind] - other[kind]) for kind in new for what, one, other in (("new", new, old), ("gone", old, new))
    }


def _gpus(catalog: Catalog, _: StartupKnowledge) -> dict[str, Any]:
    """Return each product, and each architecture without a known product, in the operator's order of preference."""
    found: dict[str, Any] = {}
    for name, architecture in catalog.gpus.architectures.items():
        products = [product for product in catalog.gpus.products.values() if product.architecture == name]
        found |= {product.name: {**_written(architecture), **_written(product)} for product in products} or {name: _written(architecture)}
    return found


def _find_gpu(catalog: Catalog, name: str) -> Any:
    gpus = catalog.gpus
    architecture, product = gpus.architectures.get(name), gpus.products.get(product_key(name))
    if architecture is not None:
        members = [product.name for product in gpus.products.values() if product.architecture == name]
        return {**_written(architecture), "products": members, "backends": _working_backends(catalog, name)}
    if product is None:
        return None
    known = {**_written(gpus.architectures[product.architecture]), **_written(product)}
    return {**known, "backends": _working_backends(catalog, product.architecture)}


def _working_backends(catalog: Catalog, architecture: str) -> dict[str, list[str]]:
    """Return the backends that work on an architecture with some model and version, by component."""
    found: dict[str, list[str]] = {}
    for kernel in catalog.rules.kernels.entries:
        if any(architecture in condition.members.get("architecture", (architecture,)) for condition in kernel.works):
            found.setdefault(kernel.component.value, []).append(kernel.backend)
    return found


def _find_model(catalog: Catalog, name: str) -> Any:
    family = next((family for family in catalog.models.families if family.name == name), None)
    if family is not None:
        return _written(family)
    if catalog.models.find(name) is None or name.count("/") != 1:
        return None
    facts = resolve_facts(ModelSpec(uri=f"hf://{name}"), catalog.models)
    return {"model": name, "family": facts.family, **to_jsonable_python({fact: getattr(facts, fact) for fact in facts.sources})}


def _rules(catalog: Catalog, _: StartupKnowledge) -> dict[str, Any]:
    """Return each rule as written in its file, in order of precedence. The user's rules are marked."""
    written = {rule["id"]: rule for name in list_data("rules") for rule in read_data(name)}
    written |= {name: {"of": "cluster", **rule} for name, rule in catalog.custom_rules.items()}
    return {rule.id: written[rule.id] for rule in catalog.rules.rules if rule.id in written}


def _effect(entry: Any) -> str:
    parts = [entry["backend"]] if "backend" in entry else []
    parts += [f"{name}={value}" for name, value in entry.get("environment", {}).items()]
    parts += [name if value is None else f"{name} {value}" for name, value in entry.get("arguments", {}).items()]
    return ", ".join([*parts, *(word for word in ("refuse", "warn") if word in entry)])


SECTIONS = {
    "versions": Section(_versions, _find_version),
    "gpus": Section(_gpus, _find_gpu),
    "models": Section(lambda catalog, _: {family.name: _written(family) for family in catalog.models.families}, _find_model),
    "rules": Section(_rules),
    "signatures": Section(lambda _, knowledge: {each.signature.id: _signature(each) for each in examples(knowledge.signatures)}),
}


@dataclass(frozen=True, slots=True)
class Example:
    """A signature with its texts filled in from a recorded line. Without one, `line` is None and `captures` is empty."""

    signature: Signature
    cause: str
    remedy: str
    line: str | None = None
    captures: Mapping[str, str] = field(default_factory=dict)


def examples(signatures: Iterable[Signature]) -> list[Example]:
    """Return the signatures with texts filled in from the recorded line with the most captures."""
    samples, made = load_signature_samples(), []
    for signature in signatures:
        lines = [line for sample in samples if sample.signature == signature.id for line in sample.text.splitlines()]
        searched = ((line.strip(), re.search(pattern.regex, line)) for line in lines for pattern in signature.patterns)
        found = [(line, {name: value for name, value in match.groupdict().items() if value}) for line, match in searched if match]
        shown, known = max(found, key=lambda each: len(each[1]), default=(None, dict[str, str]()))
        cause, remedy = (fill_in(text, known.items()) for text in (signature.cause, signature.remedy))
        made.append(Example(signature, cause, remedy, shown, known))
    return made


def _signature(example: Example) -> dict[str, Any]:
    signature, remedy = example.signature, load_remedies().get(example.signature.id)
    changes = {
        name: [change_in_words(each, example.captures) for each in getattr(signature, name)] for name in ("arguments", "environment")
    }
    return {
        **signature.model_dump(mode="json", include={"severity", "versions", "architectures"}),
        "cause": example.cause,
        "remedy": example.remedy,
        **changes,
        "retryable": signature.retryable,
        "automatic": None if remedy is None else _written(remedy),
        "example": example.line,
        "patterns": [pattern.regex for pattern in signature.patterns],
        "references": list(signature.references),
    }


def change_in_words(change: Change, captures: Mapping[str, str] | None) -> str:
    """Return `--flag value`, `VARIABLE=value`, or the item to remove. With `captures`, the value is filled in."""
    known = f" (vLLM {change.versions})" if change.versions else ""
    if change.remove:
        return f"remove {change.name}{known}"
    if change.value is None:
        return f"{change.name}{known}"
    value = change.value if captures is None else fill_in_exactly(change.value, captures) or "<value>"
    return f"{change.name}{' ' if change.name.startswith('-') else '='}{value}{known}"

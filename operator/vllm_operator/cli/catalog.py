"""`vllm-operator catalog`: what the operator knows of vLLM versions, GPUs, models and rules.

Without an ID a table of all, with an ID everything about one. Exit status: 0, or 2 if nothing has that ID or the
rules of the cluster cannot be read.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from vllm_operator.catalog.loader import Catalog
from vllm_operator.cli import catalog_gpus, catalog_models, catalog_rules, catalog_versions
from vllm_operator.cli.documents import InputError
from vllm_operator.cli.tables import table
from vllm_operator.cli.user_rules import HELP as RULES_HELP
from vllm_operator.cli.user_rules import catalog_with

FOUND_STATUS, NOT_FOUND_STATUS = 0, 2


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the catalog: its entries by ID, as data for programs and in short for people."""

    summary: str
    entries: Callable[[Catalog], Mapping[str, Any]]
    header: tuple[str, ...]
    row: Callable[[str, Any], tuple[str, ...]]
    find: Callable[[Catalog, str], Any]
    hint: str


SECTIONS = {
    "versions": Section(
        "vLLM versions: what each bundles, its flags, variables and names of backends",
        catalog_versions.entries,
        catalog_versions.HEADER,
        catalog_versions.row,
        catalog_versions.find,
        "give a version, for example 0.20.1",
    ),
    "gpus": Section(
        "GPU architectures and products",
        catalog_gpus.entries,
        catalog_gpus.HEADER,
        catalog_gpus.row,
        catalog_gpus.find,
        "give an architecture (sm_90) or a product as in the label nvidia.com/gpu.product",
    ),
    "models": Section(
        "families of well-known models",
        catalog_models.entries,
        catalog_models.HEADER,
        catalog_models.row,
        catalog_models.find,
        "give a family, or a model such as deepseek-ai/DeepSeek-V3.2",
    ),
    "rules": Section(
        "the rules that backends are chosen by",
        catalog_rules.entries,
        catalog_rules.HEADER,
        catalog_rules.row,
        catalog_rules.find,
        "give the id of a rule, as the source of a backend in a plan",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("section", choices=tuple(SECTIONS), help="what to list")
    parser.add_argument("id", nargs="?", metavar="ID", help="show everything about this one")
    parser.add_argument("--rules", metavar="FILE", help=RULES_HELP)
    parser.add_argument("-o", "--output", choices=("json", "yaml"), help="print it for programs")


def run(arguments: argparse.Namespace) -> int:
    """Print a part of the catalog; return the exit status."""
    section = SECTIONS[arguments.section]
    try:
        catalog = catalog_with(arguments.rules)
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        return NOT_FOUND_STATUS
    if arguments.id is not None:
        found = section.find(catalog, arguments.id)
        if found is None:
            print(f"Error: nothing is known by the name {arguments.id}; {section.hint}", file=sys.stderr)
            return NOT_FOUND_STATUS
        _print(found, arguments.output or "yaml")
        return FOUND_STATUS
    entries = section.entries(catalog)
    if arguments.output:
        _print(entries, arguments.output)
    else:
        print("\n".join(table(section.header, [section.row(name, entry) for name, entry in entries.items()])))
        print(f"\nCatalog {catalog.version}. Everything about one: vllm-operator catalog {arguments.section} ID")
    return FOUND_STATUS


def _print(content: Any, form: str) -> None:
    if form == "json":
        print(json.dumps(content, indent=2))
    else:
        print(yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True), end="")

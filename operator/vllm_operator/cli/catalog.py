"""`vllm-operator catalog`: what the operator knows about vLLM versions, GPUs, models and rules.

Without an ID, a table of all entries; with an ID, everything about one. Exit status: 0, or 2 if there is no such entry or the user's rules
cannot be read.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from vllm_operator.catalog.loader import Catalog
from vllm_operator.cli import catalog_sections as sections
from vllm_operator.cli.documents import RULES_HELP, catalog_with
from vllm_operator.cli.tables import table
from vllm_operator.text.wording import listed

FOUND_STATUS, NOT_FOUND_STATUS = 0, 2
_SUGGESTIONS = 8


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the catalog: its entries by ID, their table, and how one of them is found."""

    summary: str
    entries: Callable[[Catalog], Mapping[str, Any]]
    header: tuple[str, ...]
    row: Callable[[str, Any], tuple[str, ...]]
    find: Callable[[Catalog, str], Any]
    hint: str


SECTIONS = {
    "versions": Section(
        "vLLM versions with their bundled libraries, flags, variables and backends",
        sections.version_entries,
        sections.VERSION_HEADER,
        sections.version_row,
        sections.version_find,
        "Give a version, for example 0.20.1.",
    ),
    "gpus": Section(
        "GPU architectures and products",
        sections.gpu_entries,
        sections.GPU_HEADER,
        sections.gpu_row,
        sections.gpu_find,
        "Give an architecture (sm_90), or a product as in the node label nvidia.com/gpu.product.",
    ),
    "models": Section(
        "families of well-known models",
        sections.model_entries,
        sections.MODEL_HEADER,
        sections.model_row,
        sections.model_find,
        "Give a family, or a model such as deepseek-ai/DeepSeek-V3.2.",
    ),
    "rules": Section(
        "rules that choose backends",
        sections.rule_entries,
        sections.RULE_HEADER,
        sections.rule_row,
        sections.rule_find,
        "Give the ID of a rule. Without an ID, this command lists all rules.",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "section", choices=tuple(SECTIONS), help="; ".join(f"{name}: {section.summary}" for name, section in SECTIONS.items())
    )
    parser.add_argument("id", nargs="?", metavar="ID", help="show everything about this entry")
    parser.add_argument("--rules", metavar="FILE", help=RULES_HELP)
    parser.add_argument("-o", "--output", choices=("json", "yaml"), help="print it in this format")


def run(arguments: argparse.Namespace) -> int:
    """Print a part of the catalog. Return the exit status."""
    section = SECTIONS[arguments.section]
    catalog = catalog_with(arguments.rules)
    if arguments.id is not None:
        found = section.find(catalog, arguments.id)
        if found is None:
            near = _similar(arguments.id, section.entries(catalog))
            hint = f"Did you mean {listed(near, 'or')}?" if near else section.hint
            print(f"Error: the catalog has no entry {arguments.id}. {hint}", file=sys.stderr)
            return NOT_FOUND_STATUS
        _print(found, arguments.output or "yaml")
        return FOUND_STATUS
    entries = section.entries(catalog)
    if arguments.output:
        _print(entries, arguments.output)
    else:
        print("\n".join(table(section.header, [section.row(name, entry) for name, entry in entries.items()])))
        print(f"\nCatalog {catalog.version}. For everything about one entry: vllm-operator catalog {arguments.section} ID")
    return FOUND_STATUS


def _similar(name: str, entries: Mapping[str, Any]) -> list[str]:
    """Entries whose ID or patterns contain the name, or whose ID is spelled similarly."""
    sought = name.casefold()
    texts = {known: " ".join((known, *_patterns(entry))).casefold() for known, entry in entries.items()}
    containing = [known for known, text in texts.items() if len(sought) > 2 and sought in text]
    return (containing or difflib.get_close_matches(name, entries, n=_SUGGESTIONS, cutoff=0.5))[:_SUGGESTIONS]


def _patterns(entry: Any) -> list[str]:
    return entry.get("patterns", []) if isinstance(entry, Mapping) else []


def _print(content: Any, form: str) -> None:
    if form == "json":
        print(json.dumps(content, indent=2))
    else:
        print(yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True), end="")

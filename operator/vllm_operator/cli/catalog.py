"""`vllm-operator catalog versions|gpus|models|rules`: what the operator knows. Needs no cluster."""

import argparse
import json
import sys
from collections.abc import Sequence

from vllm_operator.catalog.gpus import load_gpus
from vllm_operator.catalog.models import load_models
from vllm_operator.catalog.rules import load_rules
from vllm_operator.catalog.versions import load_versions

Row = dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("kind", choices=sorted(LISTS), help="what to list")
    parser.add_argument("-o", "--output", choices=("json",), help="print a JSON list instead of a table for people")


def run(arguments: argparse.Namespace) -> int:
    """Print the list; always 0."""
    rows = LISTS[arguments.kind]()
    try:
        print(json.dumps(rows) if arguments.output == "json" else table(rows))
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stderr.close()  # whoever read it has seen enough; Python would complain at exit
    return 0


def table(rows: Sequence[Row]) -> str:
    """Columns wide enough for their values, the last one as long as it is; headings in capitals, as kubectl does."""
    columns = list(rows[0])
    widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in columns}
    lines = [{column: column.upper() for column in columns}, *rows]
    return "\n".join("   ".join(line[column].ljust(widths[column]) for column in columns).rstrip() for line in lines)


def _versions() -> list[Row]:
    return [
        {
            "version": one.version,
            "cuda": one.bundle.cuda or "",
            "torch": one.bundle.torch or "",
            "flashinfer": one.bundle.flashinfer or "",
            "variables": str(len(one.variables)),
            "flags": str(len(one.flags)),
        }
        for one in load_versions().tables
    ]


def _gpus() -> list[Row]:
    return [
        {
            "product": one.name,
            "architecture": one.architecture,
            "memory": "" if one.memory_mebibytes is None else f"{one.memory_mebibytes} MiB",
            "title": one.title,
        }
        for one in load_gpus().products.values()
    ]


def _models() -> list[Row]:
    return [
        {
            "family": one.name,
            "attention": one.attention.value if one.attention else "",
            "experts": "" if one.experts is None else str(one.experts),
            "quantization": one.quantization.value if one.quantization else "",
            "names": " | ".join(pattern.pattern for pattern in one.patterns),
        }
        for one in load_models().families
    ]


def _rules() -> list[Row]:
    return [
        {
            "component": one.component.value,
            "kind": one.kind.value,
            "id": one.id,
            "backend": one.backend or "",
            "because": one.because,
        }
        for one in load_rules().rules
    ]


LISTS = {"versions": _versions, "gpus": _gpus, "models": _models, "rules": _rules}

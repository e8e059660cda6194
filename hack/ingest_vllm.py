"""Read a vLLM wheel and write what the operator must know of that version.

    python hack/ingest_vllm.py WHEEL... [--check]

A WHEEL (0.11 or newer) is a file from any package index, or a folder with what it holds. The result is a file of the catalog
(`catalog/data/versions`). The program for Pods (`tools/vllm_build.py`) reads it as text, so neither a GPU nor the wheel's dependencies are
needed. `--check` writes nothing and fails on a difference.
"""

import argparse
import ast
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_operator.tools.vllm_build import Sources, read_table

DATA = Path(__file__).resolve().parent.parent / "operator/vllm_operator/catalog/data/versions"


def add_classes(wheel: Path, version: str, known: dict[str, str]) -> dict[str, str]:
    """The first version that has each class of models, with the classes that are new in this wheel."""
    names = Sources(str(wheel)).find("vllm/model_executor/models/registry.py", classes_in) or set()
    return dict(sorted({**dict.fromkeys(names, version), **known}.items()))


def classes_in(source: ast.Module) -> set[str]:
    tables = [node for node in ast.walk(source) if isinstance(node, ast.Dict)]
    pairs = (pair for table in tables for pair in zip(table.keys, table.values, strict=True))
    return {str(key.value) for key, value in pairs if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple)}


def render(content: dict[str, Any]) -> str:
    """One line per variable and flag, so that a diff between versions can be read."""

    def block(value: Any) -> str:
        if not isinstance(value, dict) or not value:
            return json.dumps(value)
        lines = (f"    {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
        return "{\n" + ",\n".join(lines) + "\n  }"

    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {block(value)}" for key, value in content.items()) + "\n}\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Read vLLM wheels and write what the operator must know of each version.")
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    parser.add_argument("--check", action="store_true", help="compare with what is committed and write nothing")
    parser.add_argument("--output", type=Path, default=DATA, help="folder of the version files")
    arguments = parser.parse_args(argv)
    different = False
    for path in arguments.wheels:
        try:
            content = read_table(str(path))
        except ValueError as error:
            raise SystemExit(f"{path}: {error}") from None
        classes = arguments.output.parent / "model_classes.json"
        known = json.loads(classes.read_text()) if classes.exists() else {}
        found = add_classes(path, content["version"], known)
        target = arguments.output / f"{content['version']}.json"
        text = render(content)
        same = target.exists() and target.read_text() == text and found == known
        if arguments.check:
            different |= not same
            print(f"{target.name}: {'as committed' if same else 'differs from what is committed'}")
        else:
            target.write_text(text)
            classes.write_text(json.dumps(found, indent=0) + "\n")
            print(f"{target.name}: {len(content['variables'])} variables, {len(content['flags'])} flags")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

"""The answers of many versions as one table of the catalog. What is equal is written once, so that a version costs little."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Answers = Mapping[str, Mapping[str, Any]]
"""The answers on one architecture, by the name of the case; see `answers.Answer`."""
ERROR = re.compile(r"^(Attribute|Name|Type|Import|ModuleNotFound|NotImplemented|Lookup|Key|Assertion)Error")
ABSENT = re.compile(r"failed to import|was built without|None of the modules|object at 0x")
"""Refusals that come from the made-up machine and not from the selector: a package is known by its text only, or an extension
is not there. Such a backend is neither accepted nor refused, and which backend the selector takes is then unknown."""


def selectors_own(reason: str) -> str | None:
    """The parts of a reason that the selector gives, without those that come from the made-up machine; None if there are none."""
    if ERROR.match(reason):
        return None
    return "; ".join(part for part in reason.split("; ") if not ABSENT.search(part)) or None


def without_the_machine(refuses: Mapping[str, str]) -> dict[str, str]:
    """The refusals that the selector gives, with its own reasons."""
    return {name: own for name, text in sorted(refuses.items()) if (own := selectors_own(text))}


def merge(versions: Mapping[str, Mapping[str, Answers]]) -> dict[str, Any]:
    """Make one table of the answers by version and architecture."""
    reasons, answers, cases = Numbered(), Numbered(), Numbered()
    placed: dict[str, dict[str, int]] = {}
    for version in sorted(versions, key=release):
        placed[version] = {}
        for architecture, found in sorted(versions[version].items(), key=lambda item: int(item[0].removeprefix("sm_"))):
            table = {name: answers.number(_compact(answer, reasons)) for name, answer in sorted(found.items())}
            placed[version][architecture] = cases.number(table)
    return {"reasons": reasons.values, "answers": answers.values, "cases": cases.values, "versions": placed}


def expand(table: Mapping[str, Any]) -> dict[str, dict[str, Answers]]:
    """The answers by version and architecture, out of a table."""

    def answer(number: int) -> dict[str, Any]:
        compact: dict[str, Any] = table["answers"][number]
        texts = {"refuses": {name: table["reasons"][reason] for name, reason in compact["refuses"].items()}}
        return compact | texts | ({"raises": table["reasons"][compact["raises"]]} if "raises" in compact else {})

    cases = [{name: answer(number) for name, number in found.items()} for found in table["cases"]]
    return {version: {gpu: cases[place] for gpu, place in placed.items()} for version, placed in table["versions"].items()}


def write(table: Mapping[str, Any], path: Path) -> None:
    """Write one value a line, so that a new version is a small difference."""
    parts = []
    for key, value in table.items():
        if isinstance(value, list):
            lines = ",\n".join(f"    {json.dumps(item)}" for item in value)
            parts.append(f"  {json.dumps(key)}: [\n{lines}\n  ]")
        else:
            lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items())
            parts.append(f"  {json.dumps(key)}: {{\n{lines}\n  }}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _compact(answer: Mapping[str, Any], reasons: "Numbered") -> dict[str, Any]:
    refused = without_the_machine(answer["refuses"])
    raises = selectors_own(answer.get("raises") or "")
    ignores = answer.get("ignores")
    more = {"ignores": dict(sorted((ignores or {}).items())), "raises": None if raises is None else reasons.number(raises)}
    return {
        "takes": answer["takes"] if len(refused) == len(answer["refuses"]) or ignores is not None else None,
        "accepts": sorted(answer["accepts"]),
        "refuses": {name: reasons.number(text) for name, text in refused.items()},
        **{key: value for key, value in more.items() if value not in ({}, None)},
    }


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


class Numbered:
    """Values in the order in which they came, each once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:
        key = json.dumps(value, sort_keys=True)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]

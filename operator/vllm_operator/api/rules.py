"""CEL rules over several fields, from `rules.yaml`. The API server checks them before it stores an object."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml

DEFAULT_CACHE_SIZE = "20Gi"
"""Default size of the PersistentVolumeClaim of the caches."""


_LISTS_OF_FLAGS = {
    "arguments": ("args", "a.name.find('[A-Za-z].*')", ("",)),
    "words": ("extraArgs", "a.find('^--?[A-Za-z][A-Za-z0-9._-]*')", ("--", "-")),
}
"""Groups of rules that refuse flags with a field: the list, CEL for the flag in an entry, and what may precede its name."""


def find_rules(*groups: str) -> list[dict[str, str]]:
    """Return the rules of groups of `rules.yaml`: `rule` and `message`, and optionally `fieldPath`."""
    parts = {"{own_claims}": _read()["own_claims"], "{default_cache_size}": DEFAULT_CACHE_SIZE}
    found: list[dict[str, str]] = []
    for group in groups:
        found += [{field: _fill_in(text, parts) for field, text in sorted(rule.items())} for rule in _read()["rules"][group]]
        found += _about_owned_flags(*_LISTS_OF_FLAGS[group]) if group in _LISTS_OF_FLAGS else ()
    return found


def _fill_in(text: str, parts: Mapping[str, str]) -> str:
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


def owned_flags() -> Mapping[str, str]:
    """Return the flags for which the spec has a field, with what to use instead."""
    return {f"--{name}": owned["instead"] for owned in _read()["owned-flags"] for name in owned["names"]}


def _about_owned_flags(field: str, flag: str, dashes: tuple[str, ...]) -> Iterator[dict[str, str]]:
    for owned in _read()["owned-flags"]:
        names, instead = owned["names"], owned["instead"]
        listed = ", ".join(f"'{each}{name}'" for name in names for each in dashes)
        flags = " and ".join(f"--{name}" if len(name) > 2 else f"-{name}" for name in names)
        message = f"{flags} {'is' if len(names) == 1 else 'are'} not allowed in {field}; {instead}"
        yield {"message": message, "rule": f"self.all(a, !({flag}.replace('_', '-') in [{listed}]))"}


@cache
def _read() -> Mapping[str, Any]:
    text = resources.files("vllm_operator.api").joinpath("rules.yaml").read_text("utf-8")
    content: Mapping[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    return content

"""Rules for `vllm-operator catalog rules`: as they are written in the data files, in order of precedence."""

from typing import Any

from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.resources import list_data, read_data

CLUSTER = "cluster"
HEADER = ("RULE", "OF", "COMPONENT", "KIND", "VERSIONS", "GPUS", "WHAT FOLLOWS")


def entries(catalog: Catalog) -> dict[str, Any]:
    """Every rule as it is written, in order of precedence; those of the cluster's owner say so."""
    written = {rule["id"]: rule for name in list_data("rules") for rule in read_data(name)}
    written |= {name: {"of": CLUSTER, **rule} for name, rule in catalog.own_rules.items()}
    return {rule.id: written[rule.id] for rule in catalog.rules.rules if rule.id in written}


def row(name: str, entry: Any) -> tuple[str, ...]:
    """A rule as a row."""
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


def find(catalog: Catalog, name: str) -> Any:
    """A rule as it is written; None if there is none of this name."""
    return entries(catalog).get(name)


def _effect(entry: Any) -> str:
    parts = [entry["backend"]] if "backend" in entry else []
    parts += [f"{name}={value}" for name, value in entry.get("environment", {}).items()]
    parts += [name if value is None else f"{name} {value}" for name, value in entry.get("arguments", {}).items()]
    parts += [word for word in ("refuse", "warn") if word in entry]
    return ", ".join(parts)

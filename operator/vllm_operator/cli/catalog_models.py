"""Families of well-known models for `vllm-operator catalog models`."""

from typing import Any

from vllm_operator.api.spec import ModelSpec
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.models import ModelFamily
from vllm_operator.planning.facts import FACTS, resolve_facts

HEADER = ("FAMILY", "ATTENTION", "EXPERTS", "ROUTING", "FORMAT", "SIZE", "NAMES LIKE")


def entries(catalog: Catalog) -> dict[str, Any]:
    """Every family, in the order in which names are looked up."""
    return {family.name: _family(family) for family in catalog.models.families}


def row(name: str, entry: Any) -> tuple[str, ...]:
    """A family as a row."""
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


def find(catalog: Catalog, name: str) -> Any:
    """Everything about a family, or what is known of one model by its name; None if nothing is."""
    family = next((family for family in catalog.models.families if family.name == name), None)
    if family is not None:
        return _family(family)
    if catalog.models.find(name) is None:
        return None
    facts = resolve_facts(ModelSpec(uri=f"hf://{name}"), catalog.models) if name.count("/") == 1 else None
    if facts is None:
        return None
    known = {fact: getattr(facts, fact) for fact in (*FACTS, "weight_bytes") if getattr(facts, fact) is not None}
    return {"model": name, "family": facts.family, **{fact: _plain(value) for fact, value in known.items()}}


def _family(family: ModelFamily) -> dict[str, Any]:
    return {
        "patterns": [pattern.pattern for pattern in family.patterns],
        "modelTypes": list(family.config_types),
        "attention": _plain(family.attention),
        "experts": family.experts,
        "quantization": _plain(family.quantization),
        "routing": family.routing,
        "routingGroups": family.routing_groups,
        "hiddenSize": family.hidden_size,
        "moeIntermediateSize": family.moe_intermediate_size,
        "attentionHeads": family.attention_heads,
        "mlaDims": list(family.mla_dims) if family.mla_dims else None,
        "billions": family.billions,
        "source": family.source,
    }


def _plain(value: Any) -> Any:
    """A value that every format can write."""
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, str) else value

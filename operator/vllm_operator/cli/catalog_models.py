"""Families of well-known models for `vllm-operator catalog models`."""

from typing import Any

from vllm_operator.api.spec import ModelSpec
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.models import ModelFamily
from vllm_operator.planning.model.facts import resolve_facts

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
    known = {fact: getattr(facts, fact) for fact in facts.sources}
    return {"model": name, "family": facts.family, **{fact: _plain(value) for fact, value in known.items()}}


def _family(family: ModelFamily) -> dict[str, Any]:
    facts = family.facts
    return {
        "patterns": [pattern.pattern for pattern in family.patterns],
        "modelTypes": list(family.config_types),
        "attention": _plain(facts.attention),
        "experts": facts.experts,
        "quantization": _plain(facts.quantization),
        "routing": facts.routing,
        "routingGroups": facts.routing_groups,
        "hiddenSize": facts.hidden_size,
        "moeIntermediateSize": facts.moe_intermediate_size,
        "attentionHeads": facts.attention_heads,
        "mlaDims": list(facts.mla_dims) if facts.mla_dims else None,
        "billions": family.billions,
        "source": family.source,
    }


def _plain(value: Any) -> Any:
    """A value that every format can write."""
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, str) else value

"""What must be known of a model to choose kernels: given by the user, read from its config.json, or looked up.

Each fact is taken from the first of these that has it, and remembers which one that was:
`spec.model.facts`, the model's config.json, the table of well-known models. A fact that none has stays unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.spec import Attention, ModelSpec, Quantization
from vllm_operator.catalog.models import ModelFamily, Models
from vllm_operator.planning.model_config import ConfigFacts, read_config
from vllm_operator.planning.quantities import read_bytes

FROM_SPEC = "spec.model.facts"
FROM_CONFIG = "config.json"
FROM_TABLE = "table of well-known models"


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a model. None: unknown. `sources` says of each known fact where it is from."""

    family: str | None = None
    model_type: str | None = None
    attention: Attention | None = None
    experts: int | None = None
    quantization: Quantization | None = None
    routing: str | None = None
    routing_groups: int | None = None
    hidden_size: int | None = None
    moe_intermediate_size: int | None = None
    attention_heads: int | None = None
    mla_dims: tuple[int, int, int] | None = None
    weight_bytes: int | None = None
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def block_shape(self) -> tuple[int, int] | None:
        """Shape of the weight blocks that share a scale, where there is one."""
        return (128, 128) if self.quantization is Quantization.FP8_BLOCK else None

    def source(self, name: str) -> str | None:
        """Where a fact is from; None if it is not known."""
        return dict(self.sources).get(name)


def model_name(model: ModelSpec) -> str:
    """The part of the URI that names the model: `organisation/name`, or the last part of a path on a claim."""
    scheme, _, path = model.uri.partition("://")
    path = path.rstrip("/")
    return path if scheme == "hf" else path.rpartition("/")[2]


def resolve_facts(
    model: ModelSpec, models: Models, config: Mapping[str, Any] | None = None, *, remembered: ConfigFacts | None = None
) -> Facts:
    """Collect what is known of a model.

    Args:
        model: What the user says about it.
        models: The table of well-known models.
        config: The content of the model's config.json, if it was read.
        remembered: What an earlier reading of that file has told, where it was not read now.
    """
    name = model_name(model)
    read = read_config(config) if config else remembered or ConfigFacts()
    family = models.find(name) or (models.find_type(read.model_type) if read.model_type else None)
    given = model.facts.model_dump(exclude_none=True, exclude={"weight_size"}) if model.facts else {}
    known: dict[str, Any] = {}
    sources: list[tuple[str, str]] = []
    for fact in FACTS:
        layers = ((given.get(fact), FROM_SPEC), (getattr(read, fact, None), FROM_CONFIG), (_tabled(fact, name, family, models), FROM_TABLE))
        value, source = next(((value, source) for value, source in layers if value is not None), (None, ""))
        if value is not None:
            known[fact] = value
            sources.append((fact, source))
    if "routing" not in known and known.get("routing_groups"):
        known["routing"] = "DeepSeekV3"  # only this router has expert groups
        sources.append(("routing", dict(sources)["routing_groups"]))
    size = read_bytes(model.facts.weight_size) if model.facts and model.facts.weight_size else None
    estimated = None if size is not None else models.weight_bytes(name, family, known.get("quantization"))
    if size is not None or estimated is not None:
        sources.append(("weight_bytes", FROM_SPEC if size is not None else FROM_TABLE))
    return Facts(
        family=family.name if family else None,
        weight_bytes=size if size is not None else estimated,
        sources=tuple(sources),
        **known,
    )


FACTS = (
    "model_type",
    "attention",
    "experts",
    "quantization",
    "routing",
    "routing_groups",
    "hidden_size",
    "moe_intermediate_size",
    "attention_heads",
    "mla_dims",
)
"""Facts that more than one source may tell, by their names in `Facts`."""


def _tabled(fact: str, name: str, family: ModelFamily | None, models: Models) -> Any:
    if fact == "quantization":
        return models.quantization(name, family)
    return getattr(family, fact, None) if family else None

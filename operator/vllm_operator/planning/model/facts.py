"""What must be known of a model to choose kernels: given by the user, read from its files, or looked up.

Each fact is taken from the first of these that has it, and remembers which one that was: `spec.model.facts`, the
model's files (its config.json, the index of its weights), the table of well-known models. A fact that none has stays
unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_operator.api.spec import ModelFacts, ModelSpec
from vllm_operator.catalog.models import FACTS, NO_FACTS, Facts, ModelFamily, Models
from vllm_operator.planning.model.config import read_config
from vllm_operator.pods.quantities import read_bytes

FROM_SPEC = "spec.model.facts"
FROM_CONFIG = "config.json"
FROM_WEIGHTS = "weight files"
FROM_TABLE = "table of well-known models"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What was read of a model's files on the hub.

    Attributes:
        config: Content of its config.json; None if that was not read.
        weight_bytes: Size of its weight files, as their index or the hub tells it; None if that is not known.
        trouble: Why config.json could not be had, in one sentence, where that was tried.
        refused: The hub has answered, and what it has said will not change by itself: no such model, or not for this token.
    """

    config: Mapping[str, Any] | None = None
    weight_bytes: int | None = None
    trouble: str | None = None
    refused: bool = False


NO_FILES = ModelFiles()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedFacts(Facts):
    """Facts about one model. `sources` says of each known fact where it is from, `family` what the model was taken for."""

    family: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


def model_name(model: ModelSpec) -> str:
    """The part of the URI that names the model: `organisation/name`, or the last part of a path on a claim."""
    scheme, _, path = model.uri.partition("://")
    path = path.rstrip("/")
    return path if scheme == "hf" else path.rpartition("/")[2]


def resolve_facts(model: ModelSpec, models: Models, files: ModelFiles = NO_FILES, *, remembered: Facts | None = None) -> ResolvedFacts:
    """Collect what is known of a model.

    Args:
        model: What the user says about it.
        models: The table of well-known models.
        files: What was read of the model's files.
        remembered: What an earlier reading of the files has told, where they were not read now.
    """
    name = model_name(model)
    read = replace(read_config(files.config), weight_bytes=files.weight_bytes) if files.config else remembered or NO_FACTS
    family = models.find(name) or (models.find_type(read.model_type) if read.model_type else None)
    given = _given(model.facts)
    known: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for fact in FACTS:  # the size of the weights is the last: where it must be estimated, it follows from their format
        from_files = FROM_WEIGHTS if fact == "weight_bytes" else FROM_CONFIG
        tabled = _tabled(fact, name, family, models, known)
        layers = ((getattr(given, fact), FROM_SPEC), (getattr(read, fact), from_files), (tabled, FROM_TABLE))
        value, source = next(((value, source) for value, source in layers if value is not None), (None, ""))
        if value is not None:
            known[fact], sources[fact] = value, source
    if "routing" not in known and known.get("routing_groups"):
        known["routing"] = "DeepSeekV3"  # only this router has expert groups
        sources["routing"] = sources["routing_groups"]
    return ResolvedFacts(family=family.name if family else None, sources=sources, **known)


def _given(facts: ModelFacts | None) -> Facts:
    """The facts that the user gives."""
    if facts is None:
        return NO_FACTS
    return Facts(
        attention=facts.attention,
        experts=facts.experts,
        quantization=facts.quantization,
        routing_groups=facts.routing_groups,
        weight_bytes=read_bytes(facts.weight_size) if facts.weight_size else None,
    )


def _tabled(fact: str, name: str, family: ModelFamily | None, models: Models, known: Mapping[str, Any]) -> Any:
    """What the table of well-known models says, or its estimate."""
    match fact:
        case "quantization":
            return models.quantization(name, family)
        case "weight_bytes":
            return models.weight_bytes(name, family, known.get("quantization"))
        case _:
            return getattr(family.facts, fact) if family else None

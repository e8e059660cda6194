"""Model facts that affect the choice of backends.

Each fact comes from the first source that has it: `spec.model.facts`, the model's files (config.json and the index of the
weights), the table of well-known models. A fact without a source is unknown. The plan stores the facts with their sources,
so the operator asks the hub only for a new plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from vllm_operator.api.plan import ModelFact, Plan
from vllm_operator.api.reading import read_bytes, read_integer
from vllm_operator.api.spec import Attention, ModelFacts, ModelSpec, Quantization
from vllm_operator.catalog.models import FACTS, NO_FACTS, Facts, ModelFamily, Models
from vllm_operator.catalog.notes import Note
from vllm_operator.catalog.rules import Severity
from vllm_operator.sizing.model_config import read_config
from vllm_operator.sizing.tensors import TensorSizes
from vllm_operator.text.wording import listed

FROM_SPEC = "spec.model.facts"
FROM_CONFIG = "config.json"
FROM_WEIGHTS = "weight files"
FROM_TABLE = "table of well-known models"
VALUE_LIMIT = 128
"""Maximum characters of a fact in a plan."""


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """Files of a LoRA adapter on the hub.

    Attributes:
        config: Content of adapter_config.json; None if it was not read.
        trouble: Why it could not be read, as a sentence; None if it was read or not requested.
        refused: Whether the hub reported that the adapter does not exist, or that this token has no access to it.
    """

    config: Mapping[str, Any] | None = None
    trouble: str | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Files of a model on the hub.

    Attributes:
        config: Content of config.json; None if it was not read.
        weight_bytes: Size of the weight files in bytes, from their index or the hub; None if unknown.
        tensors: Tensor sizes from their headers; None if not all of them were read.
        trouble: Why config.json could not be read, as a sentence; None if it was read or not requested.
        refused: Whether the hub reported that the model does not exist, or that this token has no access to it.
        adapters: Files of the adapters of `spec.adapters`, by name.
    """

    config: Mapping[str, Any] | None = None
    weight_bytes: int | None = None
    trouble: str | None = None
    refused: bool = False
    tensors: TensorSizes | None = None
    adapters: Mapping[str, AdapterFiles] = field(default_factory=dict)


NO_FILES = ModelFiles()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedFacts(Facts):
    """Facts about one model. `sources` has the source of each known fact, `family` the entry in the table of well-known models."""

    family: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


def model_name(model: ModelSpec) -> str:
    """Return the model name in a URI: `organisation/name`, or the last part of a path on a PVC."""
    scheme, _, path = model.uri.partition("://")
    path = path.rstrip("/")
    return path if scheme == "hf" else path.rpartition("/")[2]


def resolve_facts(model: ModelSpec, models: Models, files: ModelFiles = NO_FILES, *, remembered: Facts | None = None) -> ResolvedFacts:
    """Collect the facts about a model.

    Args:
        model: The model in the spec.
        models: The table of well-known models.
        files: The model's files.
        remembered: Facts from an earlier reading of the files, for use if they were not read now.
    """
    name = model_name(model)
    read = replace(read_config(files.config), weight_bytes=files.weight_bytes) if files.config else remembered or NO_FACTS
    family = models.find(name) or (models.find_type(read.model_type) if read.model_type else None)
    given = _given(model.facts)
    known: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for fact in FACTS:  # the size of the weights comes last: an estimate of it needs the quantization
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
    match fact:
        case "quantization":
            return models.quantization(name, family)
        case "quantization_scheme":
            return models.quantization_scheme(name, known.get("quantization"))
        case "weight_bytes":
            return models.weight_bytes(name, family, known.get("quantization"))
        case _:
            return getattr(family.facts, fact) if family else None


def keep_facts(facts: ResolvedFacts) -> list[ModelFact]:
    """Return the known facts in the form of a plan."""
    kept = []
    for name, source in facts.sources.items():
        value = getattr(facts, name)
        if value is not None:
            kept.append(ModelFact(name=_spell(name), value=_text(value)[:VALUE_LIMIT], source=source))
    return kept


def recall_facts(plan: Plan) -> Facts:
    """Return the facts from the model's files in a plan. Unreadable values are unknown."""
    names = {_spell(name): name for name in FACTS}
    stored = {
        names[fact.name]: fact.value for fact in plan.model_facts if fact.source in (FROM_CONFIG, FROM_WEIGHTS) and fact.name in names
    }
    return Facts(**{name: _value(name, text) for name, text in stored.items()})


def notes_about(facts: Facts, files: ModelFiles) -> list[Note]:
    """Return notes about unknown facts, and about a hub that refuses the model."""
    unknown = [name for name in ("attention", "experts", "quantization") if getattr(facts, name) is None]
    severity = Severity.FAILURE if files.refused else Severity.INFO
    sentences = [files.trouble] if files.trouble is not None else []
    if files.trouble is not None and files.refused:
        sentences.append("The engine will probably get the same answer.")
    if unknown:
        verb = "is" if len(unknown) == 1 else "are"
        sentences.append(
            f"{listed(unknown, 'and').capitalize()} of the model {verb} unknown, so vLLM chooses the backends that depend on it."
        )
        sentences.append(f"Set {listed([f'spec.model.facts.{name}' for name in unknown], 'and')}.")
    elif not (files.refused and files.trouble):
        return []
    return [Note(severity, " ".join(sentences))]


def _spell(name: str) -> str:
    """Spell `attention_heads` as `attentionHeads`, like fields of the API."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value.value) if isinstance(value, Enum) else str(value)


def _value(name: str, text: str) -> Any:
    match name:
        case "attention":
            return Attention(text) if text in list(Attention) else None
        case "quantization":
            return Quantization(text) if text in list(Quantization) else None
        case "model_type" | "routing" | "quantization_scheme":
            return text
        case "attention_sinks" | "image_prefix":
            return text == "true"
        case "mla_dims":
            parts = [part for piece in text.split(",") if (part := read_integer(piece)) is not None]
            return tuple(parts) if len(parts) == 3 else None
        case _:
            return read_integer(text)

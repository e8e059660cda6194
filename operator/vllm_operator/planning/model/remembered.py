"""Facts about a model as a plan keeps them, and read back.

A plan in force is not made anew because the hub answers today or does not: what its files have told is in the
plan, so the operator asks the hub only when a new plan is due, and a restart asks nothing.
"""

from enum import Enum
from typing import Any

from vllm_operator.api.spec import Attention, Quantization
from vllm_operator.api.status import ModelFact, Plan
from vllm_operator.catalog.models import FACTS, Facts
from vllm_operator.planning.model.facts import FROM_CONFIG, FROM_WEIGHTS, ModelFiles, ResolvedFacts
from vllm_operator.pods.reading import read_integer

VALUE_LIMIT = 128


def keep_facts(facts: ResolvedFacts) -> list[ModelFact]:
    """The facts as a plan keeps them, each with its source."""
    kept = []
    for name, source in facts.sources.items():
        value = getattr(facts, name)
        if value is not None:
            kept.append(ModelFact(name=_spell(name), value=_text(value)[:VALUE_LIMIT], source=source))
    return kept


def recall_facts(plan: Plan) -> Facts:
    """What the files of the model had told when the plan was made; a value that cannot be read back is unknown."""
    names = {_spell(name): name for name in FACTS}
    told = {names[fact.name]: fact.value for fact in plan.model_facts if fact.source in (FROM_CONFIG, FROM_WEIGHTS) and fact.name in names}
    return Facts(**{name: _value(name, text) for name, text in told.items()})


def about_unknown_facts(facts: Facts, files: ModelFiles) -> list[str]:
    """Say what is not known of the model, and why where its files should have told; and that the hub refuses it, in any case."""
    trouble = files.trouble
    unknown = [name for name in ("attention", "experts", "quantization") if getattr(facts, name) is None]
    if not unknown:
        return [f"{trouble} The engine will probably meet the same."] if trouble is not None and files.refused else []
    given = ", ".join(f"spec.model.facts.{name}" for name in unknown)
    listed = " and ".join(filter(None, (", ".join(unknown[:-1]), unknown[-1])))
    verb = "is" if len(unknown) == 1 else "are"
    if trouble is not None:
        return [f"{trouble} So {listed} of the model {verb} not known; give {given}."]
    return [f"{listed.capitalize()} of the model {verb} not known, so the kernels that depend on that are left to vLLM; give {given}."]


def _spell(name: str) -> str:
    """`attention_heads` is attentionHeads, as all fields of the API are spelled."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value.value) if isinstance(value, Enum) else str(value)


def _value(name: str, text: str) -> Any:
    match name:
        case "attention":
            return Attention(text) if text in list(Attention) else None
        case "quantization":
            return Quantization(text) if text in list(Quantization) else None
        case "model_type" | "routing":
            return text
        case "mla_dims":
            parts = [part for piece in text.split(",") if (part := read_integer(piece)) is not None]
            return tuple(parts) if len(parts) == 3 else None
        case _:
            return read_integer(text)

"""Model facts that affect the choice of backends.

Each fact comes from the first source that has it: `spec.model.facts`, the model's files (config.json and the index of the
weights), the table of well-known models. A fact without a source is unknown. The plan stores the facts with their sources,
so the operator asks the hub only for a new plan.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from vllm_operator.api.plan import ModelFact, Plan
from vllm_operator.api.reading import mapping, read_bytes, read_integer, sequence, text
from vllm_operator.api.spec import Attention, ModelFacts, ModelSpec, Quantization
from vllm_operator.catalog.models import BLOCK, FACTS, NO_FACTS, Facts, ModelFamily, Models
from vllm_operator.catalog.notes import Note, Severity
from vllm_operator.sizing.formats import TensorSizes, load_names, read_format, read_quantization, requested_cache
from vllm_operator.sizing.model_shape import EXPERT_KEYS, ModelConfig, Shard, read_shape
from vllm_operator.text.wording import listed

FROM_SPEC = "spec.model.facts"
FROM_CONFIG = "config.json"
FROM_WEIGHTS = "weight files"
FROM_TABLE = "table of well-known models"
INTEGERS = ("gptq", "awq", "auto-round", "auto_gptq", "auto_awq")
IMAGE_PREFIX = ("bagel", "gemma3", "molmo2", "moondream3", "paligemma")  # vllm/config/model.py is_mm_prefix_lm (0.25.1, 0.33.0:358)
MIXED = "mixed"  # layers in several formats, of which the name of the model usually has that of the experts
MLA_KEYS = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
HYBRID_KEYS = ("hybrid_override_pattern", "layers_block_type", "full_attention_interval", "linear_key_head_dim", "mamba_num_heads")
VALUE_LIMIT = 128  # maximum characters of a fact in a plan


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Files of a model or of a LoRA adapter on the hub."""

    config: Mapping[str, Any] | None = None  # content of config.json or adapter_config.json; None if it was not read
    weight_bytes: int | None = None  # from the index of the weight files or the hub; None if unknown
    trouble: str | None = None  # why `config` could not be read, as a sentence; None if it was read or not requested
    refused: bool = False  # the hub reported that the model does not exist, or that this token has no access to it
    tensors: TensorSizes | None = None  # sizes from the headers of the weight files; None if not all were read
    adapters: Mapping[str, "ModelFiles"] = field(default_factory=dict)  # of `spec.adapters`, by name


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
    """Collect the facts about a model. `remembered` are facts from an earlier reading of the files, if they were not read now."""
    name = model_name(model)
    read = replace(read_config(files.config), weight_bytes=files.weight_bytes) if files.config else remembered or NO_FACTS
    named, typed = models.find(name), next((each for each in models.families if read.model_type in each.config_types), None)
    is_other = named is not None and named.config_types and read.model_type not in named.config_types
    ordered = (typed, named) if is_other else (named, typed)
    family = next((each for each in ordered if each is not None and not _is_contradicted(each, read)), None)
    given = model.facts or ModelFacts()
    known: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for fact in FACTS:  # the size of the weights comes last: an estimate of it needs the quantization
        from_files = FROM_WEIGHTS if fact == "weight_bytes" else FROM_CONFIG
        tabled = _tabled(fact, name, family, models, known, scheme=read.quantization_scheme)
        stated = read_bytes(given.weight_size) if fact == "weight_bytes" else getattr(given, fact, None)
        for value, source in ((stated, FROM_SPEC), (getattr(read, fact), from_files), (tabled, FROM_TABLE)):
            if value is not None:
                known[fact], sources[fact] = value, source
                break
    if "routing" not in known and known.get("routing_groups"):
        known["routing"] = "DeepSeekV3"  # only this router has expert groups
        sources["routing"] = sources["routing_groups"]
    return ResolvedFacts(family=family.name if family else None, sources=sources, **known)


def _is_contradicted(family: ModelFamily, read: Facts) -> bool:
    """Return whether the model has other sizes than all members of a family, whatever its name says."""
    sizes = ("experts", "hidden_size", "moe_intermediate_size", "attention_heads", "mla_dims")
    pairs = [(getattr(family.facts, name), getattr(read, name)) for name in sizes]
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def _tabled(fact: str, name: str, family: ModelFamily | None, models: Models, known: Mapping[str, Any], *, scheme: str | None) -> Any:
    match fact:
        case "quantization":
            return models.quantization(name, None if scheme else family) if scheme in (None, MIXED) else None
        case "quantization_scheme":
            return models.quantization_scheme(name, known.get("quantization"))
        case "weight_bytes":
            return models.weight_bytes(name, family, known.get("quantization"))
        case _:
            return getattr(family.facts, fact) if family else None


def keep_facts(facts: ResolvedFacts) -> list[ModelFact]:
    """Return the known facts in the form of a plan."""
    return [
        ModelFact(name=to_camel(name), value=_text(value)[:VALUE_LIMIT], source=source)
        for name, source in facts.sources.items()
        if (value := getattr(facts, name)) is not None
    ]


def recall_facts(plan: Plan) -> Facts:
    """Return the facts from the model's files in a plan. Unreadable values are unknown."""
    stored = ((_NAMES.get(fact.name), fact.value) for fact in plan.model_facts if fact.source in (FROM_CONFIG, FROM_WEIGHTS))
    return Facts(**{name: _value(name, text) for name, text in stored if name is not None})


_NAMES = {to_camel(name): name for name in FACTS}
_IN_WORDS = {"attention": "the kind of attention", "experts": "the number of experts", "quantization": "the quantization"}


def notes_about(facts: Facts, files: ModelFiles) -> list[Note]:
    """Return notes about unknown facts, and about a hub that refuses the model."""
    unknown = [name for name in ("attention", "experts", "quantization") if getattr(facts, name) is None]
    refused = files.refused and files.trouble is not None
    sentences = [files.trouble] if files.trouble is not None and (unknown or refused) else []
    if refused:
        sentences.append("The engine will probably get the same answer.")
    if unknown:
        what, verb = listed([_IN_WORDS[name] for name in unknown], "and"), "is" if len(unknown) == 1 else "are"
        sentences.append(f"{what[0].upper()}{what[1:]} {verb} unknown, so vLLM chooses the backends that depend on it.")
        sentences.append(f"Set {listed([f'spec.model.facts.{name}' for name in unknown], 'and')}.")
    return [Note(Severity.FAILURE if files.refused else Severity.INFO, " ".join(sentences))] if sentences else []


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value.value) if isinstance(value, Enum) else str(value)


def _value(name: str, text: str) -> Any:
    with suppress(ValidationError):
        return _reader(name).validate_python(text.split(",") if name == "mla_dims" else text)
    return None


@cache
def _reader(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(Facts)[name])


# Facts in a config.json, whose content never raises an error. A missing fact is unknown. Multimodal models keep the language model's
# configuration under `text_config`.
# Source of the rules: vllm/transformers_utils/model_arch_config_convertor.py and vllm/config/model.py, 0.33.0.


def read_config(config: Mapping[str, Any]) -> Facts:
    """Read the facts. Facts that are missing or invalid are None."""
    read = ModelConfig(config)
    heads, experts = read_integer(read.text.get("num_attention_heads")), read.first(*EXPERT_KEYS)
    groups = read.first("n_group")
    written = read_quantization(config)
    quantization, scheme = _read_format(read.text, written)
    unordered = written.get("desc_act") is not True or written.get("group_size") == -1  # with a single group, vLLM ignores the mark
    one_group = -1 if _of_first_group(written).get("strategy") == "channel" else None
    order = _of_first_group(written).get("actorder")
    group = read_integer(written.get("group_size")) or read_integer(_of_first_group(written).get("group_size")) or one_group
    is_integer = text(written, "quant_method") in INTEGERS or text(written, "format") == "pack-quantized"
    dims = tuple(size for key in MLA_KEYS if (size := read.first(key)) is not None)
    return Facts(
        model_type=text(read.text, "model_type") or None,
        model_class=next((name for name in sequence(config.get("architectures")) if isinstance(name, str)), None),
        attention=_attention(read, heads),
        experts=experts if experts is not None else (None if heads is None else 0),
        quantization=quantization,
        quantization_scheme=scheme,
        desc_act=not unordered if "gptq" in text(written, "quant_method") else order in ("group", "dynamic") or None,
        routing=_routing(read.text, groups) if experts else None,
        routing_groups=groups if groups is not None else (0 if experts else None),
        hidden_size=read.first("hidden_size"),
        moe_intermediate_size=read.first("moe_intermediate_size"),
        attention_heads=heads,
        mla_dims=dims if len(dims) == 3 else None,
        kv_cache=requested_cache(written),
        group_size=group if is_integer else None,
        dense_quantized=_has_quantized_layers(config) if written else None,
        value_head_size=None if read.first("kv_lora_rank") else read.first("v_head_dim"),
        image_prefix=True if config.get("model_type") in IMAGE_PREFIX or read.text.get("use_bidirectional_attention") == "vision" else None,
        windowed=True if read.layers_of("sliding_attention", "sliding_window") else None,
        dual_chunk=True if mapping(read.text, "dual_chunk_attention_config") else None,
        dtype=(text(read.text, "torch_dtype") or text(read.text, "dtype") or None) if written else None,
        bidirectional=True if read.text.get("is_causal") is False or read.flag("use_bidirectional_attention") else None,
        head_size=None if read.latent else read.head_dim or None,  # without a value in the file, vLLM divides the width
    )


def _has_quantized_layers(config: Mapping[str, Any]) -> bool | None:
    """Return whether some layers besides the experts are quantized; None if the layers are unknown."""
    shape = read_shape(config)
    if shape is None:
        return None
    form = read_format(config, shape)
    dense = (module for module in shape.modules if module.layers and module.linear and module.shard is not Shard.EXPERTS)
    return (
        None if form.assumed else any(form.bytes_of(module, shape.element_bytes) < module.total * shape.element_bytes for module in dense)
    )


def _attention(read: ModelConfig, heads: int | None) -> Attention | None:
    text = read.text
    if read.latent or text.get("compress_ratios"):
        return Attention.SPARSE_MLA if text.get("index_topk") or text.get("compress_ratios") else Attention.MLA
    layers = text.get("layer_types")
    linear = isinstance(layers, list) and any(kind in ("linear_attention", "mamba") for kind in layers)
    if linear or any(text.get(key) for key in HYBRID_KEYS):
        return Attention.HYBRID
    kv_heads = read_integer(text.get("num_key_value_heads"))
    if heads is None:
        return None
    return Attention.GQA if kv_heads is not None and kv_heads < heads else Attention.MHA


def _routing(config: Mapping[str, Any], groups: int | None) -> str | None:
    match config.get("scoring_func"):
        case "sigmoid" if groups:
            return "DeepSeekV3"
        case "sigmoid":
            return "MiniMax2" if config.get("topk_method") == "noaux_tc" or config.get("use_routing_bias") is True else None
        case "sqrtsoftplus":
            return "DeepSeekV4"
        case None | "softmax":
            given = config.get("norm_topk_prob")
            return "Renormalize" if given is True else "Default" if given is False else None
    return None


def _read_format(config: Mapping[str, Any], written: Mapping[str, Any]) -> tuple[Quantization | None, str | None]:
    """Return the number format of the weights, and their publishing format if that is not enough, as named in `hack/oracle/gemm.py`."""
    method, algorithm, blocks = text(written, "quant_method"), text(written, "quant_algo"), written.get("weight_block_size")
    names = load_names()
    if not written:
        return {"bfloat16": Quantization.BF16, "float16": Quantization.FP16}.get(text(config, "torch_dtype") or text(config, "dtype")), None
    if method == "fp8":
        form = Quantization.FP8_BLOCK if blocks == list(BLOCK) else Quantization.FP8
        scheme = None if blocks else {"static": "tensor", "dynamic": "token"}.get(text(written, "activation_scheme"))
        return Quantization.MXFP4 if config.get("expert_dtype") == "fp4" else form, scheme
    if method in INTEGERS:
        form = Quantization.INT4 if written.get("bits", 4) == 4 else Quantization.INT8
        if method == "gptq" and (written.get("sym") is False or written.get("bits", 4) not in (4, 8)):
            return form, "gptq-other"
        return form, "awq" if "awq" in method + text(written, "packing_format") else "gptq"
    if method == "compressed-tensors":
        packed, weights = text(written, "format"), _of_first_group(written)
        strategy = weights.get("strategy")
        if packed == "pack-quantized":
            if inputs := text(_of_first_group(written, "input_activations"), "type"):
                return Quantization.INT4, f"compressed-with-{inputs[:8]}"
            return (Quantization.INT4, "compressed") if weights.get("num_bits", 4) == 4 else (Quantization.INT8, "compressed-packed")
        if strategy == "block":
            return (Quantization.FP8_BLOCK, "compressed") if packed == "float-quantized" else (names.packed.get(packed), None)
        return names.packed.get(packed), "compressed-tensor" if packed == "float-quantized" and strategy == "tensor" else "compressed"
    form_of_name = names.quantizations.get(method) or names.quantizations.get(algorithm.lower())
    if form_of_name is None:
        quark = text(mapping(mapping(written, "global_quant_config"), "weight"), "dtype") if method == "quark" else ""
        return None, MIXED if algorithm == "MIXED_PRECISION" else "-".join(filter(None, (method, quark))) or None
    return form_of_name, method if method == "mxfp8" else "modelopt" if algorithm in ("FP8", "NVFP4", "MXFP8") else None


def _of_first_group(written: Mapping[str, Any], part: str = "weights") -> Mapping[str, Any]:
    """Return how compressed-tensors quantizes a part of the layers in the first group."""
    return mapping(next(iter(mapping(written, "config_groups").values()), None), part)

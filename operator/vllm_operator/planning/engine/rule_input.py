"""A deployment in the vocabulary of the rules, and its keys in the tables of vLLM's selectors.

The input of rules has the model, the GPU, the parallelism and the user's settings of the engine, as in `when`. Each key of a table (a case)
is a question to a selector: vllm/v1/attention/selector.py `AttentionSelectorConfig` and vllm/model_executor/layers/fused_moe/oracle
(0.33.0). `attention.py`, `prefill.py`, `moe.py` and `gemm.py` in `hack/oracle` generate the answers.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_operator.api.reading import read_integer
from vllm_operator.api.spec import Attention, Distribution, ParallelismSpec, Quantization, VLLMDeploymentSpec
from vllm_operator.catalog.backends import load_questions
from vllm_operator.catalog.memory import load_memory
from vllm_operator.catalog.models import FACTS
from vllm_operator.catalog.rule_matching import AUTOMATIC, KV_CACHE_FLAG, Component, Condition, RuleInput
from vllm_operator.catalog.versions import Release, load_model_classes
from vllm_operator.planning.engine.image import ResolvedVersion
from vllm_operator.planning.engine.overrides import read_overrides
from vllm_operator.sizing.model_facts import FROM_CONFIG, FROM_TABLE, ResolvedFacts

GIGABYTE = 10**9
DEEPSEEK_HEADS = (128, 64, 128)
COMPONENTS = {
    Attention.MHA: Component.ATTENTION,
    Attention.GQA: Component.ATTENTION,
    Attention.HYBRID: Component.ATTENTION,
    Attention.MLA: Component.MLA_DECODE,
    Attention.SPARSE_MLA: Component.SPARSE_ATTENTION,
}
DEEP_GEMM = ("VLLM_USE_DEEP_GEMM", "VLLM_MOE_USE_DEEP_GEMM")


def describe_rule_input(
    spec: VLLMDeploymentSpec,
    version: ResolvedVersion,
    facts: ResolvedFacts,
    architecture: str | None,
    *,
    mig_profile: str | None = None,
    claims: bool = False,
) -> RuleInput:
    """Describe a VLLMDeployment on GPUs of an architecture. `mig_profile` is that of the planned slices; default: that in the spec.

    `claims`: the GPUs are requested by DRA.
    """
    parallelism, accelerator = spec.parallelism or ParallelismSpec(), spec.accelerator
    overrides = read_overrides(spec).expanded(version.table)
    arguments = {name: value or "" for name, value in overrides.arguments.items()}
    if spec.adapters:
        arguments.setdefault("--enable-lora", "")
    data = _size(parallelism.data, arguments, "--data-parallel-size", "-dp")
    profile = mig_profile or (accelerator.mig.profile if accelerator and accelerator.mig else None)
    compute, gigabytes = re.match(r"(\d)g\.", profile or ""), re.search(r"\.(\d+)gb", profile or "")
    tensor = _size(parallelism.tensor, arguments, "--tensor-parallel-size", "-tp")
    release = version.table.release if version.table else (0, 0, 0)
    expert = parallelism.expert == "Enabled" or "--enable-expert-parallel" in arguments
    expert_tensor = 1 if expert else tensor * data  # vLLM also splits each expert over the GPUs of all data-parallel ranks
    known: dict[str, Any] = {name: getattr(facts, name) for name in (*FACTS, "family")}
    if facts.quantization in (None, Quantization.BF16, Quantization.FP16) and not facts.quantization_scheme:
        known |= load_questions().online.get(arguments.get("--quantization", ""), {})
    known["image_prefix"] = _image_prefix(facts, release)
    if release < load_memory().kv_cache.checkpoint_type_since:
        known["kv_cache"] = None
    known["dual_chunk"] = None if "--hf-overrides" in arguments else facts.dual_chunk
    if facts.bidirectional or facts.model_type in load_questions().encoder_models:
        known["attention"] = None  # rules and selectors' tables are about decoders
    since = load_model_classes().get(facts.model_class or "")
    return RuleInput(
        **known,
        release=release,
        class_since=since,
        newer_class=None if since is None or "--model-impl" in arguments else release < since,
        architecture=architecture,
        mixture_of_experts=None if facts.experts is None else facts.experts > 0,
        heads_per_rank=None if facts.attention_heads is None else facts.attention_heads // tensor,
        weight_gigabytes=_weight_gigabytes(facts),
        slice_compute=int(compute[1]) if compute else None,
        slice_gigabytes=float(gigabytes[1]) if gigabytes else None,
        deepseek_heads=None if facts.mla_dims is None else facts.mla_dims == DEEPSEEK_HEADS,
        unequal_heads=None if None in (facts.head_size, facts.value_head_size) else facts.head_size != facts.value_head_size,
        uneven_blocks=_uneven(facts.moe_intermediate_size, expert_tensor, facts.block_shape and facts.block_shape[0]),
        uneven_groups=_uneven(facts.moe_intermediate_size, expert_tensor, facts.group_size),
        uneven_heads=_uneven(facts.attention_heads, tensor),
        uneven_width=_uneven(facts.hidden_size, load_questions().width_of_exchange),
        uneven_experts=_uneven(facts.experts, tensor * data) if expert else False,
        optimize_for=(spec.backends and spec.backends.optimize_for) or "Throughput",
        distribution=version.distribution,
        allocation="DRA" if claims else "DevicePlugin",
        mig=bool(profile or (accelerator and accelerator.sliced)),
        tensor=tensor,
        pipeline=_size(parallelism.pipeline, arguments, "--pipeline-parallel-size", "-pp"),
        data=data,
        expert_tensor=expert_tensor,
        expert_parallel=expert,
        exchanges_tokens=expert and data > 1,
        environment={name: value for name, value in overrides.variables.items() if value is not None},
        arguments=arguments,
    )


def describe_shape(known: RuleInput) -> dict[str, Any]:
    """Return the condition of a rule for models of this shape and number format, on these GPUs and with this version."""
    names = "architecture attention quantization experts head_size heads_per_rank group_size tensor pipeline data"
    facts = {name: getattr(known, name) for name in (*names.split(), "expert_parallel", "distribution", "optimize_for")}
    when: dict[str, Any] = {Condition.model_fields[name].alias or name: value for name, value in facts.items() if value is not None}
    when["versions"] = f"=={'.'.join(map(str, known.release))}"
    if known.weight_gigabytes is not None:
        when["weightGigabytes"] = f">={known.weight_gigabytes * 0.9:.1f},<{known.weight_gigabytes * 1.1:.1f}"
    if cache := known.effective_arguments.get(KV_CACHE_FLAG):
        when["arguments"] = {KV_CACHE_FLAG: f"^{re.escape(cache)}$"}
    return when


def _size(given: int | None, arguments: dict[str, str], *flags: str) -> int:
    return next((size for flag in flags if (size := read_integer(arguments.get(flag)))), given or 1)


def _weight_gigabytes(facts: ResolvedFacts) -> float | None:
    """Return an upper bound of the size of the weights in GB; None if unknown."""
    if facts.weight_bytes is None:
        return None
    estimated = facts.sources.get("weight_bytes") == FROM_TABLE and facts.quantization not in (Quantization.BF16, Quantization.FP16)
    return facts.weight_bytes / GIGABYTE * (load_questions().quantized_margin if estimated else 1)


def _image_prefix(facts: ResolvedFacts, release: Release) -> bool | None:
    """Return whether this version of vLLM knows that attention to images is bidirectional."""
    known = load_questions()
    by_mark = facts.sources.get("image_prefix") == FROM_CONFIG and facts.model_type not in known.image_prefix_models
    late = by_mark and release < known.image_prefix_in_config_since
    return False if facts.image_prefix and (late or known.image_prefix_forgotten.contains(release)) else facts.image_prefix


def _uneven(number: int | None, ranks: int, unit: int | None = 1) -> bool | None:
    return None if number is None or unit is None else number % (ranks * unit) != 0


def attention_component(rule_input: RuleInput) -> Component:
    """Return the component of an attention backend that the user sets."""
    return COMPONENTS[Attention(rule_input.attention)] if rule_input.attention else Component.ATTENTION


def prefill_cases(rule_input: RuleInput) -> Sequence[str]:
    """Return the possible cases of the model's MLA prefill, the likeliest first; none if the table cannot answer."""
    if rule_input.attention != Attention.MLA or rule_input.distribution != Distribution.VLLM:
        return ()
    heads = load_questions().mla_heads if rule_input.mla_dims is None else (rule_input.mla_dims,)
    return [f"MLA/{'-'.join(map(str, each))}" for each in heads]


def attention_cases(component: Component, rule_input: RuleInput) -> Sequence[str]:
    """Return the possible cases of the model's layers, the likeliest first; none if the table cannot answer."""
    kind, known = Attention(rule_input.attention) if rule_input.attention else None, load_questions()
    if kind is None or attention_component(rule_input) is not component or rule_input.family in known.own_attention:
        return ()
    flags, given_flags = known.attention_flags, rule_input.arguments.items()
    unasked = any(value not in flags[name].get(component, ()) for name, value in given_flags if name in flags)
    if rule_input.distribution != Distribution.VLLM or unasked or rule_input.unequal_heads:
        return ()
    given = rule_input.effective_arguments.get(KV_CACHE_FLAG, AUTOMATIC)
    cache = AUTOMATIC if rule_input.model_class in known.cache_types_ignored else given
    if component is Component.ATTENTION:
        sizes, mark = known.head_sizes, "plain"
        if rule_input.attention_sinks:
            sizes, mark = known.head_sizes_with_sinks, "sinks"
        elif rule_input.image_prefix:
            sizes, mark = known.head_sizes_with_image_prefix, "prefix"
        return [f"Dense/{size}/{mark}/{cache}" for size in sizes if rule_input.head_size in (None, size)]
    if component is Component.SPARSE_ATTENTION and rule_input.family not in known.cache_types_as_given:
        # models replace these types before a selector is asked
        replaced = [types for since, types in known.sparse_cache_types.items() if since <= rule_input.release]
        cache = replaced[-1].get(cache, cache) if replaced else cache
    if component is Component.MLA_DECODE and rule_input.mla_dims in known.mla_heads[1:]:
        return [f"{kind.value}/{'-'.join(map(str, rule_input.mla_dims))}/plain/{cache}"]
    heads = rule_input.heads_per_rank
    counts = (128, 16) if heads is None else (16,) if heads <= known.few_heads else (128,)
    return [f"{kind.value}/{count}/plain/{cache}" for count in counts]


def moe_cases(rule_input: RuleInput, chosen: Mapping[str, str]) -> Sequence[str]:
    """Return the possible cases of the model's experts, the likeliest first; none if the table cannot answer."""
    known = load_questions()
    model = known.models.get(rule_input.family or "", rule_input.routing)
    setting, layout = _setting(rule_input), _layout(rule_input, chosen)
    unasked = rule_input.distribution != Distribution.VLLM or known.expert_flags & rule_input.arguments.keys()
    uneven = rule_input.uneven_blocks or rule_input.uneven_groups  # the tables are about experts that can be divided
    if not rule_input.mixture_of_experts or setting is None or layout is None or unasked or uneven:
        return ()
    if model not in {*known.routings, *known.models.values()}:
        return ()
    schemes = _schemes(rule_input, model)
    if any(model not in known.asked.get(scheme, (model,)) for scheme in schemes):
        return ()
    size = "-hidden" if (rule_input.hidden_size or 0) % known.hidden_block else ""  # an unknown size counts as usual
    return [f"{scheme}/{setting}/{layout}/{model}{size if scheme == 'NVFP4' else ''}" for scheme in schemes]


def _schemes(rule_input: RuleInput, model: str | None) -> Sequence[str]:
    known = load_questions()
    if rule_input.quantization == "MXFP4":
        return {"GptOss": ("MXFP4",), "DeepSeekV4": ("MXFP4DeepSeek",)}.get(model or "", ())
    if rule_input.quantization == "INT4" and rule_input.family in known.groups_of_32:
        return ("INT4Group32",)
    published = known.published.get(rule_input.quantization_scheme or "") if rule_input.quantization == "FP8" else None
    return published or known.expert_schemes.get(rule_input.quantization or "", ())


def _setting(rule_input: RuleInput) -> str | None:
    """Return the case for the DeepGEMM variables; None if other settings decide."""
    environment = rule_input.environment
    if load_questions().expert_variables & environment.keys():
        return None
    by_flag = rule_input.release >= load_questions().expert_flag_since
    if by_flag and any(name.startswith(load_questions().expert_pins) for name in environment):
        return None
    # before the flag existed, VLLM_MOE_USE_DEEP_GEMM pins a backend
    given = [name for name in DEEP_GEMM if name in environment and (by_flag or name == DEEP_GEMM[0])]
    if not given:
        return "Unset"
    value = environment[given[0]]
    return f"{given[0]}={value}" if len(given) == 1 and value in ("0", "1") else None


def _layout(rule_input: RuleInput, chosen: Mapping[str, str]) -> str | None:
    balances = "--enable-eplb" in rule_input.arguments
    if rule_input.exchanges_tokens:
        return None if balances else f"Exchange-{chosen.get(Component.ALL_TO_ALL, load_questions().exchange).lower()}"
    if rule_input.expert_parallel and rule_input.tensor > 1:
        return "Expert-EPLB" if balances else "Expert"
    parts = load_questions().many_parts
    many = str(parts) if rule_input.expert_tensor >= parts else ""
    return f"Data{many}" if rule_input.data > 1 else f"Tensor{many}"


def gemm_cases(rule_input: RuleInput) -> Sequence[str]:
    """Return the possible cases of the model's dense layers, the likeliest first; none if the table cannot answer."""
    questions = load_questions()
    others = (name for name, value in rule_input.arguments.items() if value not in questions.gemm_flags.get(name, {value}))
    unasked = any(others) or questions.gemm_variables & rule_input.environment.keys()
    if rule_input.quantization is None or rule_input.distribution != Distribution.VLLM or unasked:
        return ()
    quantization = Quantization(rule_input.quantization)
    if quantization is Quantization.FP8_BLOCK:
        if rule_input.quantization_scheme == "compressed" and rule_input.architecture in questions.gemm_blocks_apart:
            return ()
        return ("FP8Block/no-deep-gemm",) if rule_input.environment.get("VLLM_USE_DEEP_GEMM") == "0" else ("FP8Block",)
    known = rule_input.quantization_scheme
    if rule_input.group_size not in (None, *questions.gemm_groups):  # the tables are about the usual groups
        return ()
    if quantization is Quantization.MXFP4:  # the dense layers of gpt-oss and DeepSeek V4 have other formats
        return ("MXFP4/compressed",) if known == "compressed" else ()
    if known is not None and quantization is Quantization.INT8 and known in questions.gemm_weights_only:
        has_own_kernel = rule_input.architecture in questions.gemm_one_group_architectures
        if rule_input.group_size == -1 and rule_input.release < questions.gemm_one_group_before and has_own_kernel:
            return ()
        return (questions.gemm_weights_only[known],)
    schemes = questions.gemm_schemes.get(quantization, ())
    return [f"{quantization.value}/{scheme}" for scheme in schemes if known in (None, scheme)]

"""Every rule is reached by a spec that a user could write, on some version and GPU."""

from functools import cache
from itertools import product
from random import Random
from typing import Any

import pytest

from support.backends import decide, describe, knowledge
from support.product import ARCHITECTURES, GOALS, MODELS, SHAPES
from vllm_operator.catalog.rule_matching import Component, RuleInput
from vllm_operator.catalog.rules import Rule

VERSIONS, _, RULES = knowledge()

FIELDS = {
    Component.ATTENTION: "attention",
    Component.MLA_DECODE: "attention",
    Component.SPARSE_ATTENTION: "attention",
    Component.GEMM: "gemm",
    Component.MOE: "moe",
    Component.ALL_TO_ALL: "allToAll",
    Component.SAMPLER: "sampler",
}

VARIABLES: dict[str, dict[str, str]] = {
    "mig-uuid-visible-devices": {"CUDA_VISIBLE_DEVICES": "MIG-377e0049-554c-540b-93c6-d0976f8426cb"},
    "gpu-uuid-visible-devices": {"CUDA_VISIBLE_DEVICES": "GPU-7f57f032-34ab-a064-c37c-7a4f75601cc5"},
    "visible-devices-uuid-pinned": {"CUDA_VISIBLE_DEVICES": "MIG-377e0049-554c-540b-93c6-d0976f8426cb"},
    "nvidia-visible-devices": {"NVIDIA_VISIBLE_DEVICES": "all"},
    "port-of-a-service": {"VLLM_PORT": "tcp://10.96.0.10:8000"},
    "nvcc-not-on-path": {"PATH": "/usr/bin:/bin"},
    "library-path-replaced": {"LD_LIBRARY_PATH": "/opt/lib"},
    "standalone-compile-off": {"VLLM_DISABLE_COMPILE_CACHE": "1"},
    "flashinfer-jit-verbose": {"FLASHINFER_JIT_VERBOSE": "1"},
    "startup-plan-of-a-cold-start": {"VLLM_ENABLE_STARTUP_PLAN": "1"},
    "sparse-needs-deep-gemm": {"VLLM_USE_DEEP_GEMM": "0"},
    "sparse-without-deep-gemm": {"VLLM_USE_DEEP_GEMM": "0"},
    "moe-fp8-block-engine-0.11.0-without-deep-gemm": {"VLLM_USE_DEEP_GEMM": "0"},
    "moe-fp8-block-engine-0.11.0-without-deep-gemm-b200": {"VLLM_USE_DEEP_GEMM": "0"},
    "moe-fp8-block-blackwell-renormalize-wrong-without-deep-gemm": {"VLLM_USE_DEEP_GEMM": "0"},
    "gemm-deep-gemm-off-by-user": {"VLLM_USE_DEEP_GEMM": "0"},
    "gemm-deep-gemm-forced-by-variable": {"VLLM_USE_DEEP_GEMM": "1"},
    "gemm-deep-gemm-forced-by-variable-other-gpus": {"VLLM_USE_DEEP_GEMM": "1"},
    "gemm-deep-gemm-forced-by-variable-workstation": {"VLLM_USE_DEEP_GEMM": "1"},
    "gemm-nvfp4-variable-marlin-experts": {"VLLM_NVFP4_GEMM_BACKEND": "MARLIN"},
    "moe-flashinfer-variable-older-gpus": {"VLLM_USE_FLASHINFER_MOE_FP8": "1"},
    "moe-flashinfer-fp4-variable-older-gpus": {"VLLM_USE_FLASHINFER_MOE_FP4": "1"},
    "nvllm-cute-split-value": {"CUTE_WO_SPLIT": "3"},
}
FLAGS: dict[str, str | None] = {
    "--kv-cache-dtype": "fp8",
    "--block-size": "16",
    "--speculative-config": '{"method": "mtp", "num_speculative_tokens": 3}',
    "--enable-eplb": None,
    "--enable-dbo": None,
    "--enforce-eager": None,
    "--tq": None,
    "--debug": None,
    "--logprobs-mode": "processed_logprobs",
    "--gdn-prefill-backend": "aiter_flydsl",
    "--enable-elastic-ep": None,
    "--decode-context-parallel-size": "2",
    "--attention-config.indexer_kv_dtype": "mxfp4",
    "--attention-config.use_fp4_indexer_cache": "true",
    "--enable-lora": None,
}
OTHER_FLAGS: dict[str, dict[str, str | None]] = {
    "kv-cache-fp8-e5m2-fp8-weights": {"--kv-cache-dtype": "fp8_e5m2"},
    "sparse-engine-blackwell-nvfp4-cache": {"--kv-cache-dtype": "nvfp4_ds_mla"},
    "kv-cache-nvfp4-mla": {"--kv-cache-dtype": "nvfp4"},
    "kv-cache-nvfp4-other-gpus": {"--kv-cache-dtype": "nvfp4"},
    "kv-cache-nvfp4-other-gpus-0.33": {"--kv-cache-dtype": "nvfp4"},
    "kv-cache-fp8-sparse-hopper": {"--kv-cache-dtype": "fp8_e4m3"},
    "kv-cache-turboquant-ends": {"--kv-cache-dtype": "turboquant_k8v4"},
    "kv-cache-16-bits-of-a-quantized-checkpoint": {"--kv-cache-dtype": "float16"},
    "attention-engine-nvfp4-cache": {"--kv-cache-dtype": "nvfp4"},
    "attention-engine-turboquant-cache": {"--kv-cache-dtype": "turboquant_k8v4"},
    "attention-engine-cache-scaled-by-token": {"--kv-cache-dtype": "int8_per_token_head"},
    "nvllm-turboquant": {"--tq": None},
    "nvllm-turboquant-attention": {"--tq": None},
    "nvllm-cute-other-cache": {"--kv-cache-dtype": "auto"},
    "nvllm-cute-cache-forced": {"--kv-cache-dtype": "auto"},
    "sparse-cache-workstation-other-types": {"--kv-cache-dtype": "fp8_e5m2"},
    "sparse-cache-workstation-bfloat16": {"--kv-cache-dtype": "bfloat16"},
    "moe-nvfp4-per-token-needs-blackwell": {"--quantization": "nvfp4_per_token"},
    "fp8-per-channel-needs-ada": {"--quantization": "fp8_per_channel"},
    "quantization-of-a-newer-version": {"--quantization": "nvfp4_per_token"},
    "quantization-of-0.24": {"--quantization": "auto_awq"},
    "quantization-removed": {"--quantization": "gguf"},
}
FORCED = {
    "moe-uneven-blocks-forced": {"moe": "DEEPGEMM"},
    "kv-cache-fp8-flash-attn-mla": {"attention": "FLASH_ATTN_MLA"},
    "kv-cache-fp8-ampere-triton": {"attention": "TRITON_ATTN"},
    "speculative-decoding-other-mla": {"attention": "CUTLASS_MLA"},
    "moe-untuned-triton": {"moe": "TRITON"},
    "all-to-all-trtllm-all2allv": {"moe": "FLASHINFER_TRTLLM"},
    "all-to-all-nvlink-other-experts": {"moe": "MARLIN"},
    "all-to-all-own-exchange": {"moe": "flashinfer_moe_ep_cutedsl"},
    "moe-fp8-block-engine-batched": {"allToAll": "deepep_low_latency"},
    "moe-fp8-block-engine-blackwell-deepep": {"allToAll": "deepep_high_throughput"},
    "moe-nvfp4-engine-batched": {"allToAll": "deepep_low_latency"},
}
MORE_MODELS = {
    "MXFP8 experts": ("hf://someone/moe", {"attention": "GQA", "experts": 64, "quantization": "MXFP8"}),
    "NVFP4 Ampere": ("hf://someone/moe", {"attention": "GQA", "experts": 64, "quantization": "NVFP4"}),
    "other MLA heads": ("hf://zai-org/GLM-4.7-Flash", None),
    "FP8 experts": ("hf://someone/moe", {"attention": "GQA", "experts": 64, "quantization": "FP8"}),
    "FP8 experts, softmax": ("hf://RedHatAI/Mixtral-8x7B-Instruct-v0.1-FP8", None),
    "Qwen3.5 MoE NVFP4": ("hf://nvidia/Qwen3.5-122B-A10B-NVFP4", None),
    "MiniMax M3": ("hf://MiniMaxAI/MiniMax-M3", None),
    "Qwen3.5 FP8": ("hf://Qwen/Qwen3.5-27B-FP8", None),
    "Gemma 3 12B": ("hf://google/gemma-3-12b-it", None),
    "Gemma 4 MoE": ("hf://google/gemma-4-26B-A4B-it", None),
    "Nemotron 49B": ("hf://nvidia/Llama-3_3-Nemotron-Super-49B-v1", None),
    "Kimi BF16": ("hf://someone/dense", {"attention": "MLA", "experts": 0, "quantization": "BF16"}),
    "GPT 20B": ("hf://openai/gpt-oss-20b", None),
    "Qwen3.5 MoE BF16": ("hf://Qwen/Qwen3.5-122B-A10B", None),
    "Qwen3.5 MoE": ("hf://Qwen/Qwen3.5-122B-A10B-FP8", None),
    "large for nvLLM": ("hf://Qwen/Qwen3.5-100B-BF16", None),
}
MORE_SHAPES: dict[str, dict[str, Any]] = {
    "TP3": {"tensor": 3},
    "TP3 with experts apart": {"tensor": 3, "expert": "Enabled"},
    "DP2 with experts apart": {"data": 2, "expert": "Enabled"},
}
ALL_SHAPES = {**SHAPES, **MORE_SHAPES}
KINDS: dict[str, tuple[str, dict[str, Any] | None]] = {**{name: (uri, None) for name, uri in MODELS.items()}, **MORE_MODELS}


def settings_of(rule: Rule) -> dict[str, Any]:
    """The part of the spec that the rule's own condition asks the user for."""
    flags = OTHER_FLAGS.get(rule.id) or {flag: FLAGS[flag] for flag in rule.when.arguments}
    env = [{"name": name, "value": value} for name, value in VARIABLES.get(rule.id, {}).items()]
    backends = {FIELDS[Component(component)]: min(names) for component, names in rule.when.forced.items() if Component(component) in FIELDS}
    distribution = next(iter(sorted(rule.when.members.get("distribution", {"vLLM"}))))
    spec: dict[str, Any] = {
        "engine": {"args": [{"name": name, "value": value} for name, value in flags.items()], "env": env, "distribution": distribution},
        "backends": {**backends, **FORCED.get(rule.id, {})},
    }
    if rule.when.members.get("mig") or "slice_gigabytes" in rule.when.numbers:
        spec["accelerator"] = {"mig": {"profile": "1g.10gb"}}
    return spec


def witness(rule: Rule) -> str | None:
    """A case that the rule has a part in, in words; None if none was found."""
    spec = settings_of(rule)
    tables = [table for table in VERSIONS.tables if rule.when.versions.contains(table.release)]
    architectures = [name for name in ARCHITECTURES if name in rule.when.members.get("architecture", ARCHITECTURES)]
    goals = [goal for goal in GOALS if goal in rule.when.members.get("optimize_for", GOALS)]
    kinds = [
        kind
        for kind in KINDS
        if all(getattr(plain(kind), fact) in rule.when.members.get(fact, {getattr(plain(kind), fact)}) for fact in OF_MODEL)
    ]
    cases = list(product((tables[0], tables[-1]), architectures, goals, kinds, ALL_SHAPES))
    Random(rule.id).shuffle(cases)  # in order, a rule for the last architecture would be reached last
    for table, architecture, goal, kind, shape in cases:
        uri, facts = KINDS[kind]
        full = {**spec, "parallelism": ALL_SHAPES[shape], "facts": facts, "backends": {**spec["backends"], "optimizeFor": goal}}
        if rule.id in decide(uri, table.version, architecture, **full).rules:
            return f"{kind} on {architecture} with vLLM {table.version}, {shape}"
    return None


OF_MODEL = ("attention", "quantization", "family", "routing", "mixture_of_experts", "deepseek_heads")


@cache
def plain(kind: str) -> RuleInput:
    uri, facts = KINDS[kind]
    return describe(uri, VERSIONS.newest.version, None, facts=facts)[1]


OF_FILES = {
    "sparse-cache-of-a-checkpoint-hopper",
    "gptq-act-order",
    "moe-uneven-groups",
    "moe-uneven-groups-engine",
    "class-of-a-newer-version",
    "gemm-8-bits-one-group-engine",
    "gemm-small-groups-engine",
    "gemm-small-groups-engine-0.32",
    "gemm-small-groups-engine-hopper",
    "attention-engine-unequal-heads",
    "attention-engine-unequal-heads-0.24",
    "attention-engine-unequal-heads-other-gpus",
    "kv-cache-turboquant-two-head-sizes",
    "kv-cache-triton-two-head-sizes",
    "kv-cache-flash-two-head-sizes",
    "kv-cache-flash-two-head-sizes-e5m2",
    "kv-cache-turboquant-windows",
    "kv-cache-turboquant-every-layer-hybrid",
    "kv-cache-type-ignored",
    "class-without-adapters-until-0.28",
    "mxfp-needs-bfloat16",
    "models-not-in-float16",
    "class-without-pipelines",
    "sparse-engine-hopper-glm-5-next",
    "mamba-groups-until-0.15",
    "kv-cache-0.11.0-older-gpus",
    "class-needs-transformers-5",
    "flint-needs-flashinfer",
    "flint-needs-bfloat16",
    "flint-kv-cache",
    "attention-engine-0.11.0-other-heads",
    "attention-engine-granite-sinks",
    "attention-engine-granite-sinks-workstation",
    "sparse-engine-hy-4",
    "sparse-engine-hy-4-workstation",
    "sparse-cache-hy-4-workstation",
    "sparse-engine-blackwell-float16",
    "kv-cache-bfloat16-of-an-encoder",
    "sinks-of-unequal-heads-until-0.23",
    "scoring-function-of-dots-until-0.23",
    "integers-with-fp8-activations",
    "deprecated-format",
    "format-needs-ampere",
    "class-without-adapters",
    "modelopt-fp8-needs-ada-until-0.26",
    "modelopt-mixed-needs-ada-until-0.23",
    "quark-fp8-needs-ada",
    "moe-int8-weights-engine",
    "gemm-compressed-blocks-engine",
    "bitsandbytes-removed",
    "float32-on-turing-quantized",
    "gemm-integers-with-fp8-activations-engine",
    "class-removed-bamba",
    "gptq-without-marlin",
    "dual-chunk-attention",
    "class-removed-after-0.23",
    "class-removed-after-0.24",
    "class-removed-after-0.25",
    "class-removed-after-0.26",
    "class-removed-after-0.28",
}
"""Rules about a fact that only files have (test_kv_cache_types.py, test_plans_of_checkpoints.py)."""


@pytest.mark.parametrize("rule", [rule for rule in RULES.rules if rule.id not in OF_FILES], ids=lambda rule: rule.id)
def test_the_rule_has_a_part_in_some_case(rule: Rule) -> None:
    assert witness(rule), f"no case reaches {rule.id}: remove the rule, or add a case"


def test_the_tables_above_name_only_rules_that_exist() -> None:
    known = {rule.id for rule in RULES.rules}
    assert not {*VARIABLES, *OTHER_FLAGS, *FORCED} - known

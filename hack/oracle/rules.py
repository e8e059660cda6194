"""What the rules say about the questions that vLLM's selectors answered."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from oracle import attention, gemm
from oracle.finding import TREES, Difference, Kind
from oracle.tables import release as numbers
from oracle.trees import find
from vllm_operator.api.spec import Attention, Quantization
from vllm_operator.catalog.backends import SELECTOR_TABLES, load_questions
from vllm_operator.catalog.rule_matching import Component, RuleInput
from vllm_operator.catalog.rules import Rules, load_rules
from vllm_operator.catalog.versions import VersionTable, load_versions
from vllm_operator.planning.engine.backends import choose_backends
from vllm_operator.planning.engine.image import ResolvedVersion
from vllm_operator.planning.engine.rule_input import SPARSE_CACHE_AS_GIVEN

ATTENTIONS = {"Dense": Component.ATTENTION, "MLA": Component.MLA_DECODE, "SparseMLA": Component.SPARSE_ATTENTION}
LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "Tensor": {},
    "Tensor8": {"tensor": 8, "expert_tensor": 8},
    "Data": {"data": 2, "expert_tensor": 2},
    "Expert": {"tensor": 8, "expert_parallel": True},
}
"""Parallel layouts of experts that rules distinguish."""
QUANTIZATIONS = {"FP8Dynamic": ("FP8", "token"), "FP8Channel": ("FP8", "compressed"), "MXFP4DeepSeek": ("MXFP4", None)}
FAMILIES = {kind: family for family, kind in reversed(list(load_questions().models.items()))}
EXPERTS: Mapping[str, Any] = {"mixture_of_experts": True, "experts": 256, "routing_groups": 8}


def find_contradicted(component: str, table: Mapping[str, Any]) -> Iterator[Difference]:
    """Questions about which a rule names another default than the table."""
    versions = {each.version: each for each in load_versions().tables}
    rules = replace(load_rules(), selectors={})
    for version in sorted(table["versions"], key=numbers):
        for architecture in table["versions"][version]:
            for case, asked in _questions(component, versions[version], architecture):
                taken = _taken(component, table, version, architecture, case)
                said = _said(component, case, versions[version], asked, rules)
                if taken is not None and said and taken not in said:
                    detail = f"the rule says {' or '.join(said)}; the table {taken}"
                    yield Difference(Kind.RULE, component, version, architecture, case, detail)


def _taken(component: str, table: Mapping[str, Any], version: str, architecture: str, case: str) -> str | None:
    if component in TREES:
        answer = find(table, version, architecture, case)
        return None if answer is None else answer["takes"]
    number = table["cases"][table["versions"][version][architecture]].get(case)
    return None if number is None else table["answers"][number]["takes"]


def _said(component: str, case: str, version: VersionTable, asked: RuleInput, rules: Rules) -> tuple[str, ...]:
    """The default that the rules name, with its alternatives; nothing if they choose something else or are silent."""
    decision = choose_backends(ResolvedVersion(version.version, version, ""), asked, rules)
    wanted = ATTENTIONS[case.partition("/")[0]] if component == "attention" else Component.MOE if component == "moe" else None
    wanted = wanted or next(each for each, name in SELECTOR_TABLES.items() if name == component)
    for choice in decision.choices:
        if choice.component == wanted and choice.chosen_by == "Engine":
            return (choice.backend, *(choice.alternatives or ()))
    return ()


def _questions(component: str, version: VersionTable, architecture: str) -> Iterator[tuple[str, RuleInput]]:
    plain = RuleInput(release=version.release, architecture=architecture)
    yield from {"attention": _attention, "prefill": _prefill, "gemm": _gemm, "moe": _moe}[component](plain)


def _attention(plain: RuleInput) -> Iterator[tuple[str, RuleInput]]:
    dense = replace(
        plain, attention=Attention.GQA, attention_sinks=False, image_prefix=False, mixture_of_experts=False, quantization=Quantization.BF16
    )
    latent = replace(plain, quantization=Quantization.FP8_BLOCK, deepseek_heads=True, mla_dims=(128, 64, 128), **EXPERTS)
    sparse_cache = ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla") if plain.release >= SPARSE_CACHE_AS_GIVEN else ("auto", "fp8_ds_mla")
    for case in attention.all_cases():
        if case.cache not in (sparse_cache if case.kind == "SparseMLA" else ("auto", "fp8_e4m3")) or case.dims:
            continue
        if case.kind == "Dense":
            family = "gemma-3" if case.prefix else "gpt-oss" if case.sinks else None
            asked = replace(dense, head_size=case.head_size, image_prefix=case.prefix, attention_sinks=case.sinks, family=family)
        else:
            family = "deepseek-v3.2" if case.kind == "SparseMLA" else None
            asked = replace(latent, attention=Attention(case.kind), heads_per_rank=case.query_heads, family=family)
        yield case.name, replace(asked, arguments={} if case.cache == "auto" else {"--kv-cache-dtype": case.cache})


def _prefill(plain: RuleInput) -> Iterator[tuple[str, RuleInput]]:
    latent = replace(plain, attention=Attention.MLA, quantization=Quantization.BF16, heads_per_rank=16, **EXPERTS)
    yield "MLA/128-64-128", replace(latent, deepseek_heads=True, mla_dims=(128, 64, 128))
    yield "MLA/192-64-256", replace(latent, deepseek_heads=False, mla_dims=(192, 64, 256), family="glm-4-moe-lite")


def _gemm(plain: RuleInput) -> Iterator[tuple[str, RuleInput]]:
    dense = replace(plain, attention=Attention.GQA, head_size=128, mixture_of_experts=False)
    for name in gemm.FORMATS:
        quantization, _, published = name.partition("/")
        if published and quantization != "MXFP4":
            yield name, replace(dense, quantization=Quantization(quantization), quantization_scheme=published)
    block = replace(dense, quantization=Quantization.FP8_BLOCK)
    yield "FP8Block", block
    yield "FP8Block/no-deep-gemm", replace(block, environment={"VLLM_USE_DEEP_GEMM": "0"})


def _moe(plain: RuleInput) -> Iterator[tuple[str, RuleInput]]:
    common = ("DeepSeekV3", "MiniMax2", "Renormalize", "Llama4", "Qwen3.5", "Nemotron")
    models = {"MXFP4": ("GptOss",), "MXFP4DeepSeek": ("DeepSeekV4",), "FP8Block": (*common[:3], "DeepSeekV4"), "INT4": common[:3]}
    for scheme in ("BF16", "FP8Block", "FP8", "FP8Dynamic", "FP8Channel", "NVFP4", "MXFP4", "MXFP4DeepSeek", "MXFP8", "INT4"):
        quantization, published = QUANTIZATIONS.get(scheme, (scheme, "modelopt" if scheme == "FP8" else None))
        for model in models.get(scheme, common):
            for layout, sizes in LAYOUTS.items():
                kind = replace(plain, attention=Attention.GQA, head_size=128, hidden_size=4096, family=FAMILIES.get(model), routing=model)
                kind = replace(kind, quantization=Quantization(quantization), quantization_scheme=published, uneven_blocks=False, **EXPERTS)
                yield f"{scheme}/Unset/{layout}/{model}", replace(kind, **sizes)

"""The input of rules: model, GPU, parallelism and the user's settings of the engine, in the vocabulary of `when`."""

import re

from vllm_operator.api.reading import read_integer
from vllm_operator.api.spec import Allocation, OptimizeFor, ParallelismSpec, Quantization, Toggle, VLLMDeploymentSpec
from vllm_operator.catalog.rule_matching import RuleInput
from vllm_operator.planning.engine.overrides import read_overrides
from vllm_operator.planning.engine.version import ResolvedVersion
from vllm_operator.sizing.model_facts import FROM_TABLE, ResolvedFacts

GIGABYTE = 10**9
QUANTIZED_MARGIN = 1.18
"""Maximum ratio of actual to estimated size of quantized weights. The estimate from the number of parameters assumes that layers in 16
bits are quantized. Source: 80.6 GB measured, 68.4 GB estimated (NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4 on GB10, vLLM 0.19.2).
"""
WIDTH_OF_EXCHANGE = 128
"""Block size in which DeepEP quantizes tokens."""
DEEPSEEK_HEADS = (128, 64, 128)


def describe_rule_input(
    spec: VLLMDeploymentSpec, version: ResolvedVersion, facts: ResolvedFacts, architecture: str | None, *, mig_profile: str | None = None
) -> RuleInput:
    """Describe a VLLMDeployment in the vocabulary of the rules.

    Args:
        spec: The spec.
        version: The vLLM version.
        facts: Facts about the model.
        architecture: Architecture of the planned GPU, such as sm_90; None if unknown.
        mig_profile: Profile of the planned MIG slices. Default: the profile in the spec.
    """
    parallelism, accelerator = spec.parallelism or ParallelismSpec(), spec.accelerator
    environment, arguments = read_overrides(spec).known_values()
    if spec.adapters:
        arguments.setdefault("--enable-lora", "")
    data = _size(parallelism.data, arguments, "--data-parallel-size", "-dp")
    profile = mig_profile or (accelerator.mig.profile if accelerator and accelerator.mig else None)
    tensor = _size(parallelism.tensor, arguments, "--tensor-parallel-size", "-tp")
    expert = parallelism.expert is Toggle.ENABLED or "--enable-expert-parallel" in arguments
    return RuleInput(
        release=version.table.release if version.table else (0, 0, 0),
        architecture=architecture,
        attention=facts.attention,
        quantization=facts.quantization,
        family=facts.family,
        quantization_scheme=facts.quantization_scheme,
        routing=facts.routing,
        mixture_of_experts=None if facts.experts is None else facts.experts > 0,
        experts=facts.experts,
        routing_groups=facts.routing_groups,
        hidden_size=facts.hidden_size,
        heads_per_rank=None if facts.attention_heads is None else facts.attention_heads // tensor,
        weight_gigabytes=_weight_gigabytes(facts),
        slice_gigabytes=_slice_gigabytes(profile),
        deepseek_heads=None if facts.mla_dims is None else facts.mla_dims == DEEPSEEK_HEADS,
        mla_dims=facts.mla_dims,
        head_size=facts.head_size,
        attention_sinks=facts.attention_sinks,
        image_prefix=facts.image_prefix,
        uneven_blocks=_uneven_blocks(facts, 1 if expert else tensor * data),
        uneven_heads=_uneven(facts.attention_heads, tensor),
        uneven_width=_uneven(facts.hidden_size, WIDTH_OF_EXCHANGE),
        uneven_experts=_uneven(facts.experts, tensor * data) if expert else False,
        optimize_for=(spec.backends and spec.backends.optimize_for) or OptimizeFor.THROUGHPUT,
        distribution=version.distribution,
        allocation=(accelerator and accelerator.allocation) or Allocation.DEVICE_PLUGIN,
        mig=bool(profile or (accelerator and accelerator.sliced)),
        tensor=tensor,
        pipeline=_size(parallelism.pipeline, arguments, "--pipeline-parallel-size", "-pp"),
        data=data,
        # without expert parallelism, vLLM also splits each expert over the GPUs of all data-parallel ranks
        expert_tensor=1 if expert else tensor * data,
        expert_parallel=expert,
        exchanges_tokens=expert and data > 1,
        environment=environment,
        arguments=arguments,
    )


def _size(given: int | None, arguments: dict[str, str], *flags: str) -> int:
    """Return a parallel size: the user's flag, else the field, else 1."""
    for flag in flags:
        if size := read_integer(arguments.get(flag)):
            return size
    return given or 1


def _weight_gigabytes(facts: ResolvedFacts) -> float | None:
    """Return an upper bound of the size of the weights in GB; None if unknown."""
    if facts.weight_bytes is None:
        return None
    estimated = facts.sources.get("weight_bytes") == FROM_TABLE and facts.quantization not in (Quantization.BF16, Quantization.FP16)
    return facts.weight_bytes / GIGABYTE * (QUANTIZED_MARGIN if estimated else 1)


def _uneven_blocks(facts: ResolvedFacts, ranks: int) -> bool | None:
    """Return whether a rank's part of an expert is not a multiple of the scale blocks; None if unknown."""
    size, block = facts.moe_intermediate_size, facts.block_shape
    return None if size is None or block is None else size % (ranks * block[0]) != 0


def _uneven(number: int | None, ranks: int) -> bool | None:
    """Return whether a number cannot be divided evenly; None if it is unknown."""
    return None if number is None else number % ranks != 0


def _slice_gigabytes(profile: str | None) -> float | None:
    match = re.search(r"\.(\d+)gb", profile or "")
    return float(match[1]) if match else None

"""Which model runner of vLLM an engine has. V1 and V2 profile different memory."""

from collections.abc import Mapping

from vllm_operator.catalog.memory import MemoryFacts
from vllm_operator.catalog.versions import Release
from vllm_operator.planning.memory.layers import Cache, ModelShape

VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def read_runner(variables: Mapping[str, str | None]) -> bool | None:
    """Whether the environment asks for V2 or V1; None if it leaves this to vLLM, or the value is unknown."""
    return {"0": False, "1": True}.get((variables.get(VARIABLE) or "").strip())


def has_runner_v2(
    shape: ModelShape, quantized: bool, asked: bool | None, without_model: bool, facts: MemoryFacts, release: Release
) -> bool:
    """Whether the engine has model runner V2.

    Args:
        shape: The model.
        quantized: Its weights are quantized.
        asked: What the environment asks for; None for nothing.
        without_model: Drafts are proposed without a model (n-gram, suffix).
        facts: The rules.
        release: The vLLM version.
    """
    rules = [rule for rule in facts.model_runner_v2.rules if rule.since <= release]
    if not rules or asked is not None:
        return bool(asked)
    rule, experts = rules[-1], shape.experts > 0
    hybrid = any(each.kind is Cache.STATE for each in shape.cached)
    if without_model or (hybrid and not (rule.hybrid or rule.every)):
        return False
    listed = shape.architecture in rule.architectures and (rule.experts or not experts) and (rule.quantized or not quantized)
    return rule.every or listed or (rule.dense and not experts and not hybrid)


def steps_in_flight(v2: bool, pipeline: int, without_model: bool) -> int:
    """Steps that are scheduled at a time (vllm/config/vllm.py max_concurrent_batches, 0.26.0).

    Scheduling is asynchronous unless drafts are proposed without a model. V1 has no asynchronous scheduling with a pipeline.
    """
    if without_model:
        return pipeline
    return pipeline + 1 if v2 or pipeline == 1 else pipeline

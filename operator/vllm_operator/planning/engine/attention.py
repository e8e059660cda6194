"""The question to vLLM's attention selector that a deployment poses, named as the table of its answers names it.

Source: vllm/v1/attention/selector.py `AttentionSelectorConfig` (0.33.0). `hack/oracle/attention.py` asks these questions.
"""

from collections.abc import Sequence

from vllm_operator.api.spec import Attention, Distribution
from vllm_operator.catalog.rule_matching import Component, RuleInput

HEAD_SIZES = (128, 64, 80, 96, 112, 192, 256)
"""Head sizes of models without MLA, the most frequent first. The size is no fact that the operator knows."""
HEAD_SIZES_WITH_IMAGE_PREFIX = (256, 128)
FEW_HEADS = 16
"""Selectors of sparse MLA ask whether a GPU has at most so many query heads."""
FAMILIES_WITH_SINKS = frozenset({"gpt-oss", "gpt-oss-120b"})
FAMILIES_WITH_IMAGE_PREFIX = frozenset({"gemma-3-multimodal"})
"""Models whose images are attended to in both directions: `is_mm_prefix_lm` in vllm/config/model.py (0.13.0)."""
OTHER_QUESTIONS = frozenset(
    {"--block-size", "--decode-context-parallel-size", "-dcp", "--prefill-context-parallel-size", "--runner", "--convert", "--dtype"}
)
"""Flags that change the question in a way that was not asked."""
CACHE_TYPES = {"auto": "auto", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
COMPONENTS = {
    Attention.MHA: Component.ATTENTION,
    Attention.GQA: Component.ATTENTION,
    Attention.HYBRID: Component.ATTENTION,
    Attention.MLA: Component.MLA_DECODE,
    Attention.SPARSE_MLA: Component.SPARSE_ATTENTION,
}


def attention_component(rule_input: RuleInput) -> Component:
    """The component that an attention backend of the user is for."""
    return COMPONENTS[Attention(rule_input.attention)] if rule_input.attention else Component.ATTENTION


def attention_cases(component: Component, rule_input: RuleInput) -> Sequence[str]:
    """Name the cases that the model's layers may be, the likeliest first; none if the table cannot answer."""
    kind = Attention(rule_input.attention) if rule_input.attention else None
    cache = CACHE_TYPES.get(rule_input.arguments.get("--kv-cache-dtype", "auto"))
    other = rule_input.distribution != Distribution.VLLM or OTHER_QUESTIONS & rule_input.arguments.keys()
    if kind is None or attention_component(rule_input) is not component or cache is None or other:
        return ()
    if component is Component.ATTENTION:
        if rule_input.family in FAMILIES_WITH_SINKS:
            return (f"Dense/64/{cache}/sinks",)
        if rule_input.family in FAMILIES_WITH_IMAGE_PREFIX:
            return [f"Dense/{size}/{cache}/prefix" for size in HEAD_SIZES_WITH_IMAGE_PREFIX]
        return [f"Dense/{size}/{cache}" for size in HEAD_SIZES]
    if component is Component.SPARSE_ATTENTION and cache != "auto":
        cache = "fp8_ds_mla"
    heads = rule_input.heads_per_rank
    counts = (128, 16) if heads is None else (16,) if heads <= FEW_HEADS else (128,)
    return [f"{kind.value}/{count}/{cache}" for count in counts]

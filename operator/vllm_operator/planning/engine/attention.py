"""The question to vLLM's attention selector that a deployment poses, named as the table of its answers names it.

Source: vllm/v1/attention/selector.py `AttentionSelectorConfig` (0.33.0). `hack/oracle/attention.py` asks these questions.
"""

from collections.abc import Sequence

from vllm_operator.api.spec import Attention, Distribution
from vllm_operator.catalog.rule_matching import Component, RuleInput

HEAD_SIZES = (128, 64, 80, 96, 112, 192, 256)
"""Head sizes of models without MLA, the most frequent first."""
HEAD_SIZES_WITH_IMAGE_PREFIX = (256, 128)
HEAD_SIZES_WITH_SINKS = (64,)
MLA_HEADS = ((128, 64, 128), (192, 64, 256))
"""Sizes of the nope, rope and value heads of models with MLA, the most frequent first."""
FEW_HEADS = 16
"""Selectors of sparse MLA ask whether a GPU has at most so many query heads."""
OTHER_QUESTIONS = frozenset(
    {"--block-size", "--decode-context-parallel-size", "-dcp", "--prefill-context-parallel-size", "--runner", "--convert", "--dtype"}
)
"""Flags that change the question in a way that was not asked."""
OWN_ATTENTION = frozenset({"deepseek-v4"})
"""Families whose models choose a class of attention themselves (vllm/models/deepseek_v4/nvidia/model.py, 0.23.0:716)."""
CACHE_TYPES = {"auto": "auto", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "fp8_ds_mla": "fp8_ds_mla"}
SPARSE_CACHE_AS_GIVEN = (0, 18, 0)
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


def prefill_cases(rule_input: RuleInput) -> Sequence[str]:
    """Name the cases that the prefill of the model's MLA layers may be, the likeliest first; none if the table cannot answer."""
    if rule_input.attention != Attention.MLA or rule_input.distribution != Distribution.VLLM:
        return ()
    heads = MLA_HEADS if rule_input.mla_dims is None else (rule_input.mla_dims,)
    return [f"MLA/{'-'.join(map(str, each))}" for each in heads]


def attention_cases(component: Component, rule_input: RuleInput) -> Sequence[str]:
    """Name the cases that the model's layers may be, the likeliest first; none if the table cannot answer."""
    kind = Attention(rule_input.attention) if rule_input.attention else None
    cache = CACHE_TYPES.get(rule_input.arguments.get("--kv-cache-dtype", "auto"))
    unasked = rule_input.distribution != Distribution.VLLM or OTHER_QUESTIONS & rule_input.arguments.keys()
    if kind is None or attention_component(rule_input) is not component or cache is None or unasked:
        return ()
    if rule_input.family in OWN_ATTENTION:
        return ()
    if component is Component.ATTENTION:
        asked: tuple[int, ...] = HEAD_SIZES
        mark = ""
        if rule_input.attention_sinks:
            asked, mark = HEAD_SIZES_WITH_SINKS, "/sinks"
        elif rule_input.image_prefix:
            asked, mark = HEAD_SIZES_WITH_IMAGE_PREFIX, "/prefix"
        return [f"Dense/{size}/{cache}{mark}" for size in asked if rule_input.head_size in (None, size)]
    if component is Component.SPARSE_ATTENTION:
        cache = _sparse_cache(rule_input)
    count = rule_input.heads_per_rank
    counts = (128, 16) if count is None else (16,) if count <= FEW_HEADS else (128,)
    if component is Component.MLA_DECODE and rule_input.mla_dims in MLA_HEADS[1:]:
        return [f"{kind.value}/{'-'.join(map(str, rule_input.mla_dims))}/{cache}"]
    return [f"{kind.value}/{count}/{cache}" for count in counts]


def _sparse_cache(rule_input: RuleInput) -> str:
    """The type of the KV cache that the selector of sparse MLA is told: models before 0.18 replace `fp8` beforehand."""
    given = rule_input.arguments.get("--kv-cache-dtype", "auto")
    return given if given == "auto" or rule_input.release >= SPARSE_CACHE_AS_GIVEN else "fp8_ds_mla"

"""The question to vLLM's selector of experts that a deployment poses, named as the table of its answers names it.

Source: vllm/model_executor/layers/fused_moe/oracle (0.33.0). `hack/oracle/moe.py` asks these questions.
"""

from collections.abc import Mapping, Sequence

from vllm_operator.api.spec import Distribution
from vllm_operator.catalog.rule_matching import Component, RuleInput

SCHEMES = {
    "BF16": ("BF16",),
    "FP16": ("BF16",),
    "FP8Block": ("FP8Block",),
    "FP8": ("FP8", "FP8Dynamic", "FP8Channel"),
    "NVFP4": ("NVFP4",),
    "MXFP8": ("MXFP8",),
    "INT4": ("INT4", "INT4Group32"),
}
"""Formats of weights and activations that a model may have, the most frequent first. Whether INT8 is that of the activations too,
is not known."""
PUBLISHED = {
    "modelopt": ("FP8",),
    "tensor": ("FP8",),
    "token": ("FP8Dynamic",),
    "compressed": ("FP8Channel",),
}
"""The format of FP8 by the way in which it is published, where that is known."""
GROUPS_OF_32 = frozenset({"kimi-k2", "kimi-k2-thinking"})
MODELS = {
    "gpt-oss": "GptOss",
    "gpt-oss-120b": "GptOss",
    "nemotron-3-nano": "Nemotron",
    "nemotron-3-super": "Nemotron",
    "nemotron-h": "Nemotron",
    "qwen3.5-moe": "Qwen3.5",
    "deepseek-v4": "DeepSeekV4",
}
"""Families with a kind of their own; the others are named by their routing."""
_COMMON = frozenset({"DeepSeekV3", "MiniMax2", "Renormalize", "Qwen3.5"})
_GATED_OR_NOT = _COMMON | {"Llama4", "Nemotron"}
ASKED = {
    "BF16": _GATED_OR_NOT | {"GptOss"},
    "FP8Block": _COMMON | {"DeepSeekV4"},
    "FP8": _GATED_OR_NOT,
    "FP8Dynamic": _GATED_OR_NOT,
    "FP8Channel": _GATED_OR_NOT,
    "NVFP4": _GATED_OR_NOT | {"DeepSeekV4"},
    "MXFP8": _COMMON,
}
"""The kinds of models that selectors were asked about, by format; the selectors of other formats do not look at the model."""
ROUTINGS = frozenset({"DeepSeekV3", "DeepSeekV4", "MiniMax2", "Renormalize", "Llama4"})
MANY_PARTS = 8
"""vLLM before 0.15 asks whether an expert is split over so many GPUs."""
HIDDEN_BLOCK = 512
EXCHANGE = "allgather_reducescatter"
"""The default of `--all2all-backend`."""
DEEP_GEMM = ("VLLM_USE_DEEP_GEMM", "VLLM_MOE_USE_DEEP_GEMM")
OTHER_FLAGS = frozenset({"--enable-lora", "--prefill-context-parallel-size", "-pcp", "--quantization", "-q", "--enable-elastic-ep"})
OTHER_VARIABLES = frozenset(
    {"VLLM_BATCH_INVARIANT", "VLLM_TEST_FORCE_FP8_MARLIN", "VLLM_USE_FLASHINFER_MOE_INT4", "VLLM_HUMMING_MOE_GEMM_TYPE"}
)
"""Settings that change the question in a way that was not asked."""
WITH_FLAG = (0, 17, 0)
"""The first version with `--moe-backend`; before, variables pin a backend."""
PINNING = ("VLLM_USE_FLASHINFER_MOE_", "VLLM_FLASHINFER_MOE_BACKEND", "VLLM_MXFP4_USE_MARLIN")


def moe_cases(rule_input: RuleInput, chosen: Mapping[str, str]) -> Sequence[str]:
    """Name the cases that the model's experts may be, the likeliest first; none if the table cannot answer.

    Args:
        rule_input: The deployment.
        chosen: The backends chosen so far, by component.
    """
    model = MODELS.get(rule_input.family or "", rule_input.routing)
    setting, layout = _setting(rule_input), _layout(rule_input, chosen)
    if not rule_input.mixture_of_experts or model not in {*ROUTINGS, *MODELS.values()} or setting is None or layout is None:
        return ()
    if rule_input.distribution != Distribution.VLLM or OTHER_FLAGS & rule_input.arguments.keys():
        return ()
    schemes = _schemes(rule_input, model)
    if any(model not in ASKED.get(scheme, (model,)) for scheme in schemes):
        return ()
    return [f"{scheme}/{setting}/{layout}/{model}{_size(rule_input, scheme)}" for scheme in schemes]


def _schemes(rule_input: RuleInput, model: str | None) -> Sequence[str]:
    if rule_input.quantization == "MXFP4":
        return {"GptOss": ("MXFP4",), "DeepSeekV4": ("MXFP4DeepSeek",)}.get(model or "", ())
    if rule_input.quantization == "INT4" and rule_input.family in GROUPS_OF_32:
        return ("INT4Group32",)
    if rule_input.quantization == "FP8" and rule_input.quantization_scheme in PUBLISHED:
        return PUBLISHED[rule_input.quantization_scheme]
    return SCHEMES.get(rule_input.quantization or "", ())


def _setting(rule_input: RuleInput) -> str | None:
    """The variable that decides about DeepGEMM; None if others decide."""
    environment = rule_input.environment
    if OTHER_VARIABLES & environment.keys():
        return None
    by_flag = rule_input.release >= WITH_FLAG
    if by_flag and any(name.startswith(PINNING) for name in environment):
        return None
    # before there was a flag, VLLM_MOE_USE_DEEP_GEMM pins a backend
    given = [name for name in DEEP_GEMM if name in environment and (by_flag or name == DEEP_GEMM[0])]
    if not given:
        return "Unset"
    value = environment[given[0]]
    return f"{given[0]}={value}" if len(given) == 1 and value in ("0", "1") else None


def _layout(rule_input: RuleInput, chosen: Mapping[str, str]) -> str | None:
    balances = "--enable-eplb" in rule_input.arguments
    if rule_input.exchanges_tokens:
        return None if balances else f"Exchange-{chosen.get(Component.ALL_TO_ALL, EXCHANGE).lower()}"
    if rule_input.expert_parallel and rule_input.tensor > 1:
        return "Expert-EPLB" if balances else "Expert"
    many = str(MANY_PARTS) if rule_input.expert_tensor >= MANY_PARTS else ""
    return f"Data{many}" if rule_input.data > 1 else f"Tensor{many}"


def _size(rule_input: RuleInput, scheme: str) -> str:
    """The mark of a size that a selector asks for. An unknown size is taken to be a usual one."""
    unusual = scheme == "NVFP4" and rule_input.hidden_size is not None and rule_input.hidden_size % HIDDEN_BLOCK
    return "-hidden" if unusual else ""

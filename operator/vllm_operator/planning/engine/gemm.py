"""The question to vLLM's dense layers that a deployment poses, named as the table of their answers names it.

`hack/oracle/gemm.py` asks these questions.
"""

from collections.abc import Sequence

from vllm_operator.api.spec import Distribution, Quantization
from vllm_operator.catalog.rule_matching import RuleInput

SCHEMES = {
    Quantization.FP8: ("tensor", "modelopt", "compressed-tensor", "token", "compressed"),
    Quantization.NVFP4: ("modelopt", "compressed"),
    Quantization.MXFP8: ("modelopt", "mxfp8"),
    Quantization.INT8: ("compressed",),
    Quantization.INT4: ("compressed", "gptq", "awq"),
}
"""Ways in which a number format is published, the likeliest first."""
OTHER_QUESTIONS = frozenset({"--quantization", "-q", "--dtype", "--quantization-config", "--load-format"})
OTHER_VARIABLES = frozenset(
    {"VLLM_TEST_FORCE_FP8_MARLIN", "VLLM_BATCH_INVARIANT", "VLLM_DISABLED_KERNELS", "VLLM_USE_FBGEMM", "VLLM_USE_NVFP4_CT_EMULATIONS"}
)
"""Flags and variables that change the question in a way that was not asked."""


def gemm_cases(rule_input: RuleInput) -> Sequence[str]:
    """Name the cases that the model's dense layers may be, the likeliest first; none if the table cannot answer."""
    unasked = OTHER_QUESTIONS & rule_input.arguments.keys() or OTHER_VARIABLES & rule_input.environment.keys()
    if rule_input.quantization is None or rule_input.distribution != Distribution.VLLM or unasked:
        return ()
    quantization = Quantization(rule_input.quantization)
    if quantization is Quantization.FP8_BLOCK:
        return ("FP8Block/no-deep-gemm",) if rule_input.environment.get("VLLM_USE_DEEP_GEMM") == "0" else ("FP8Block",)
    known = rule_input.quantization_scheme
    if quantization is Quantization.MXFP4:  # the dense layers of gpt-oss and DeepSeek V4 have other formats
        return ("MXFP4/compressed",) if known == "compressed" else ()
    schemes = SCHEMES.get(quantization, ())
    return [f"{quantization.value}/{scheme}" for scheme in ((known,) if known in schemes else schemes)]

"""The question to vLLM's dense layers that a deployment poses, named as the table of their answers names it.

`hack/oracle/gemm.py` asks these questions.
"""

from collections.abc import Sequence

from vllm_operator.api.spec import Distribution, Quantization
from vllm_operator.catalog.rule_matching import RuleInput

SCHEMES = {
    Quantization.FP8: ("tensor", "modelopt", "compressed-tensor", "token", "compressed"),
    Quantization.NVFP4: ("modelopt", "compressed"),
    Quantization.INT8: ("compressed",),
    Quantization.INT4: ("compressed", "gptq", "awq"),
}
"""Ways in which a number format is published, the likeliest first."""
OTHER_QUESTIONS = frozenset({"--quantization", "-q", "--dtype", "--quantization-config", "--load-format"})
"""Flags that change the question in a way that was not asked."""


def gemm_cases(rule_input: RuleInput) -> Sequence[str]:
    """Name the cases that the model's dense layers may be, the likeliest first; none if the table cannot answer."""
    if rule_input.quantization is None or rule_input.distribution != Distribution.VLLM or OTHER_QUESTIONS & rule_input.arguments.keys():
        return ()
    quantization = Quantization(rule_input.quantization)
    if quantization is Quantization.FP8_BLOCK:
        return ("FP8Block/no-deep-gemm",) if rule_input.environment.get("VLLM_USE_DEEP_GEMM") == "0" else ("FP8Block",)
    schemes = SCHEMES.get(quantization, ())
    known = rule_input.quantization_scheme
    return [f"{quantization.value}/{scheme}" for scheme in ((known,) if known in schemes else schemes)]

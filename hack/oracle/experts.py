"""What is asked about experts: number formats, variables, parallel layouts, and kinds of models; and the names of the answers."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

RANKS = 8
"""GPUs over which experts, or the parts of an expert, are spread."""


@dataclass(frozen=True, slots=True)
class Model:
    """A kind of model, as its experts and its router are described to vLLM.

    Attributes:
        router: What the model passes to `create_fused_moe_router`.
        routing: How vLLM names the routing, where the model passes a function of its own.
        source: The file of the model, which may ask for router logits in FP32.
    """

    name: str
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    router: Mapping[str, Any] = field(default_factory=dict)
    routing: str | None = None
    activation: str = "silu"
    bias: bool = False
    swiglu_limit: float | None = None
    model_type: str | None = None
    source: str | None = None


GROUPED = {"use_grouped_topk": True, "num_expert_group": 8, "topk_group": 4, "scoring_func": "sigmoid"}
MODELS = (
    Model("DeepSeekV3", 7168, 2048, 256, 8, GROUPED | {"e_score_correction_bias": True}),
    Model("DeepSeekV4", 4096, 2048, 256, 6, {"scoring_func": "sqrtsoftplus", "e_score_correction_bias": True}, swiglu_limit=10.0),
    Model("MiniMax2", 3072, 1536, 256, 8, {"scoring_func": "sigmoid", "e_score_correction_bias": True}, source="minimax_m2"),
    Model("Renormalize", 4096, 1536, 128, 8),
    Model("Qwen3.5", 4096, 1024, 512, 10, model_type="qwen3_5_moe_text"),
    Model("Llama4", 5120, 8192, 128, 1, {"scoring_func": "sigmoid"}, routing="Llama4"),
    Model("Nemotron", 4096, 2048, 512, 22, GROUPED | {"num_expert_group": 1, "topk_group": 1, "e_score_correction_bias": True},
          activation="relu2_no_mul"),
    Model("GptOss", 2880, 2880, 128, 4, activation="swigluoai", bias=True),
)  # fmt: skip
"""The sizes are those of well-known models, or multiples of all that a selector asks for."""
UNUSUAL = tuple(replace(model, name=f"{model.name}-hidden", hidden=2688) for model in MODELS)
"""The same with a hidden size that is no multiple of 512, for which the selector of NVFP4 asks."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A number format of weights and activations, and the function of `fused_moe/oracle` that answers for it."""

    name: str
    selector: str
    models: tuple[str, ...]
    weight: str | None = None
    activation: str | None = None
    vllm_cutlass: bool = False


_FP8 = "fp8:select_fp8_moe_backend"
_COMMON = ("DeepSeekV3", "MiniMax2", "Renormalize", "Qwen3.5", "Llama4", "Nemotron")
SCHEMES = (
    Scheme("BF16", "unquantized:select_unquantized_moe_backend", (*_COMMON, "GptOss")),
    Scheme("FP8Block", _FP8, (*_COMMON[:4], "DeepSeekV4"), "kFp8Static128BlockSym", "kFp8Dynamic128Sym"),
    Scheme("FP8", _FP8, _COMMON, "kFp8StaticTensorSym", "kFp8StaticTensorSym"),
    Scheme("FP8Dynamic", _FP8, _COMMON, "kFp8StaticTensorSym", "kFp8DynamicTensorSym"),
    Scheme("FP8Channel", _FP8, _COMMON, "kFp8StaticChannelSym", "kFp8DynamicTokenSym", vllm_cutlass=True),
    Scheme("NVFP4", "nvfp4:select_nvfp4_moe_backend", (*_COMMON, "DeepSeekV4"), "kNvfp4Static", "kNvfp4Dynamic"),
    Scheme("MXFP4", "mxfp4:select_mxfp4_moe_backend", ("GptOss",)),
    Scheme("MXFP4DeepSeek", "mxfp4:select_deepseek_v4_mxfp4_moe_backend", ("DeepSeekV4",)),
    Scheme("MXFP8", "mxfp8:select_mxfp8_moe_backend", _COMMON[:4]),
    Scheme("INT8", "int8:select_int8_moe_backend", _COMMON[:4], "kInt8StaticChannelSym", "kInt8DynamicTokenSym"),
    Scheme("INT4", "int_wna16:select_wna16_moe_backend", _COMMON[:4], "kInt4Static"),
    Scheme("INT4Group32", "int_wna16:select_wna16_moe_backend", _COMMON[:4], "kInt4Static32"),
)
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "Unset": {},
    **{f"{name}={value}": {name: value} for name in ("VLLM_USE_DEEP_GEMM", "VLLM_MOE_USE_DEEP_GEMM") for value in ("0", "1")},
}
"""Variables that change the answer and are no pin."""
WITH_DEEP_GEMM = frozenset({"FP8Block", "MXFP4", "MXFP4DeepSeek", "MXFP8"})


@dataclass(frozen=True, slots=True)
class Case:
    """A layer of experts, as a selector sees it."""

    scheme: Scheme
    setting: str
    layout: str
    model: Model

    @property
    def name(self) -> str:
        """How a table names it; `planning` names its own questions in the same way."""
        return f"{self.scheme.name}/{self.setting}/{self.layout}/{self.model.name}"


VARIANTS = re.compile(r"^BATCHED_|_BATCHED$|_(MXFP4|NVFP4)(_(BF16|MXFP8|FP8|MXFP4))?$|_MXINT4$|_UNFUSED$|_AFP8$")


def canonical(backend: str) -> str:
    """The backend of which a vLLM name is a variant: for batches of tokens, or for a format of activations."""
    name = VARIANTS.sub("", backend.upper())
    return {"CUTLASS": "VLLM_CUTLASS", "DEEP_GEMM": "DEEPGEMM"}.get(name, name)


def all_cases(layouts: tuple[str, ...]) -> Iterator[Case]:
    """Every question, for the layouts that a version has."""
    for scheme in SCHEMES:
        for setting in SETTINGS if scheme.name in WITH_DEEP_GEMM else ("Unset",):
            for layout in layouts:
                for model in (*MODELS, *UNUSUAL) if scheme.name == "NVFP4" else MODELS:
                    if model.name.removesuffix("-hidden") in scheme.models:
                        yield Case(scheme, setting, layout, model)

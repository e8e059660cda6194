"""Which kernel vLLM takes for a dense layer, by number format, which it accepts, and why it refuses the others.

vLLM's own quantization configuration makes the layer's method, out of a `quantization_config` as config.json has it, and the
method creates the weights of a layer on a device without storage. Which kernel it took is then read from the method.
"""

import contextlib
import os
import re
import traceback
import typing
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import yaml

from oracle.answers import Answer, Asked, answer, attempt
from oracle.machine import cached_functions, forget

WIDTH = 4096
"""Inputs and outputs of the layer: a multiple of every block and tile."""
LAYER = "model.layers.0.mlp.down_proj"


_WRITTEN = yaml.safe_load(Path(__file__).with_name("models.yaml").read_text())["formats"]
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "FP8/tensor": _WRITTEN["fp8-tensor"],
    "FP8/token": _WRITTEN["fp8-token"],
    "FP8/modelopt": _WRITTEN["modelopt-fp8"],
    "FP8/compressed": _WRITTEN["fp8-compressed"],
    "FP8/compressed-tensor": _WRITTEN["fp8-tensor-compressed"],
    "FP8Block": _WRITTEN["fp8-block"],
    "NVFP4/modelopt": _WRITTEN["modelopt-nvfp4"] | {"quant_method": "modelopt_fp4"},
    "NVFP4/compressed": _WRITTEN["nvfp4-compressed"],
    "MXFP8/modelopt": _WRITTEN["modelopt-mxfp8"],
    "MXFP8/mxfp8": _WRITTEN["mxfp8"],
    "MXFP4/compressed": _WRITTEN["mxfp4-compressed"],
    "INT8/compressed": _WRITTEN["w8a8"],
    "INT4/compressed": _WRITTEN["w4a16"],
    "INT4/gptq": _WRITTEN["gptq"],
    "INT4/awq": _WRITTEN["awq"],
}
"""Number formats as they are published: by vLLM's FP8, by ModelOpt, by compressed-tensors, by GPTQ and AWQ."""
OVERRIDING = {"gptq": ("gptq_marlin", "auto_gptq"), "awq": ("awq_marlin", "auto_awq")}
"""Methods that take over what is written for another one, if they can."""
NO_DEEP_GEMM = {"VLLM_USE_DEEP_GEMM": "0"}
ELSEWHERE = frozenset({"auto", "aiter", "xpu", "xpu_woq", "zentorch", "rocm"})
"""Values of --linear-backend for other platforms."""
KERNELS = (
    *("FLASHINFER_DEEPGEMM", "FLASHINFER_CUTEDSL", "FLASHINFER_TRTLLM", "FLASHINFER_CUDNN", "FLASHINFER_B12X", "FLASHINFER"),
    *("DEEPGEMM", "B12X", "CUTLASS", "MARLIN", "HUMMING", "MACHETE", "ALLSPARK", "EXLLAMA", "CONCH", "BITBLAS", "FBGEMM", "EMULATION"),
    *("TRITON", "W8A8_BLOCK_FP8_MATMUL", "TORCH"),
)
"""Words in names of classes and functions. The first entry counts that fits: those of FlashInfer before others, general ones last."""
NAMES = {
    "DEEP_GEMM": "DEEPGEMM",
    "FLASHINFER_DEEPGEMM": "DEEPGEMM",  # FlashInfer's variant of it for few tokens
    "FLASHINFER": "FLASHINFER_CUTLASS",
    "W8A8_BLOCK_FP8_MATMUL": "TRITON",
}
"""Our names, where they are others."""
PREAMBLE = re.compile(r"^(\w+Error|AssertionError): |Failed to find a kernel that can implement the [\w -]+ linear layer\. Reasons:\s*")


class Selector:
    """vLLM's dense layers in this process; see `Machine.boot`."""

    def __init__(self) -> None:
        import torch
        from vllm.config.kernel import LinearBackend

        self._torch = torch
        self._caches: list[Any] = []
        self._flag = [value for value in typing.get_args(LinearBackend) if value not in ELSEWHERE]

    def import_backends(self) -> None:
        """Make each layer once, so that everything is imported."""
        for written in FORMATS.values():
            with contextlib.suppress(Exception):
                self._take(written, {})

    def answer_all(self) -> dict[str, Answer]:
        """Answer for every format, and for FP8 with blocks also without DeepGEMM."""
        self._caches = cached_functions()
        answers = {name: self._answer(written, {}) for name, written in FORMATS.items()}
        answers["FP8Block/no-deep-gemm"] = self._answer(FORMATS["FP8Block"], NO_DEEP_GEMM)
        return answers

    def _answer(self, written: Mapping[str, Any], environment: Mapping[str, str]) -> Answer:
        def ask(flag: str) -> Asked:
            return attempt(lambda: self._take(written, environment, flag), _reason)

        pins = {NAMES.get(flag.upper(), flag.upper()): ask(flag) for flag in self._flag}
        if pins["FLASHINFER_CUTLASS"][0] == "DEEPGEMM":  # FlashInfer's variant of it for few tokens is a part of that pin
            pins["FLASHINFER_CUTLASS"] = ("FLASHINFER_CUTLASS", None)
        return answer(ask("auto"), pins)

    def _take(self, written: Mapping[str, Any], environment: Mapping[str, str], backend: str = "auto") -> str:
        """Make the layer's method and its weights, and say which kernel it took."""
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.distributed import parallel_state
        from vllm.model_executor.layers.linear import LinearBase

        torch = self._torch
        config = VllmConfig()
        dtype = torch.bfloat16 if _capability() >= 80 else torch.float16
        text = SimpleNamespace(model_type="")
        known = SimpleNamespace(dtype=dtype, quantization_config=None, hf_config=SimpleNamespace(), hf_text_config=text)
        object.__setattr__(config, "model_config", known)
        if backend != "auto":
            config.kernel_config.linear_backend = backend
        forget(self._caches)
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        one_rank = patch.object(parallel_state, "_TP", SimpleNamespace(rank_in_group=0, world_size=1))  # which layers ask for
        try:
            with patch.dict(os.environ, environment), set_current_vllm_config(config), torch.device("meta"), one_rank:
                quantization = _quantization(written)
                if (needed := quantization.get_min_capability()) > _capability():
                    raise ValueError(
                        f"The quantization method {quantization.get_name()} is not supported for the current GPU. "
                        f"Minimum capability: {needed}. Current capability: {_capability()}."
                    )
                layer = LinearBase.__new__(LinearBase)
                torch.nn.Module.__init__(layer)
                layer.prefix, layer.bias, layer.has_bias, layer.tp_size, layer.tp_rank = LAYER, None, False, 1, 0
                layer.params_dtype = dtype
                layer.input_size = layer.output_size = layer.input_size_per_partition = layer.output_size_per_partition = WIDTH
                method = quantization.get_quant_method(layer, prefix=LAYER)
                layer.quant_method = method
                method.create_weights(layer, WIDTH, [WIDTH], WIDTH, WIDTH, dtype, weight_loader=lambda *args, **kwargs: None)
                return kernel_of(method, layer)
        finally:
            torch.set_default_dtype(default)


def kernel_of(method: Any, layer: Any) -> str:
    """Our name of the kernel that a method holds."""
    scheme = getattr(method, "scheme", None)
    inner = getattr(scheme, "linear_method", None)  # of AutoRound
    holders = [holder for holder in (method, scheme, inner, getattr(layer, "scheme", None), layer) if holder is not None]
    if any(getattr(holder, "use_marlin", False) for holder in holders):
        return "MARLIN"
    kinds = [type(value) for holder in holders for value in vars(holder).values()]
    kernel = next((kind for kind in kinds if ".kernels.linear" in kind.__module__), None)
    if kernel is None:
        raise NotImplementedError(f"which kernel {' with '.join(type(holder).__name__ for holder in holders)} took is not known")
    return _name(kernel.__name__)


def _quantization(written: Mapping[str, Any]) -> Any:
    """The configuration that vLLM makes of `quantization_config`: a method that overrides what is written comes first."""
    from vllm.model_executor.layers.quantization import get_quantization_config

    method = str(written["quant_method"])
    kinds = []
    for name in (*OVERRIDING.get(method, ()), method):
        with contextlib.suppress(ValueError):
            kinds.append((name, get_quantization_config(name)))
    overriding = (kind for name, kind in kinds if name != method and kind.override_quantization_method(dict(written), None) is not None)
    if not kinds:
        raise ValueError(f"Unknown quantization method: {method}.")  # as `ModelConfig` does
    found = next(overriding, kinds[-1][1])
    quantization = found.from_config(dict(written))
    quantization.packed_modules_mapping = {}
    return quantization


def _capability() -> int:
    from vllm.platforms import current_platform

    return int(current_platform.get_device_capability().to_int())


def _name(theirs: str) -> str:
    plain = theirs.lower().replace("_", "").replace("-", "")
    for words in KERNELS:
        if re.search(words.lower().replace("_", ".*"), plain):
            return NAMES.get(words, words)
    raise NotImplementedError(f"{theirs} is no kernel that is known")


def _reason(error: Exception) -> str:
    text = " ".join(" ".join(map(str, error.args)).split())
    kind = type(error).__name__
    if kind == "NotImplementedError" and "/vllm/" in traceback.extract_tb(error.__traceback__)[-1].filename:
        return text  # vLLM's own
    return (PREAMBLE.sub("", text) if kind in ("ValueError", "AssertionError", "RuntimeError") else f"{kind}: {text}")[:400]

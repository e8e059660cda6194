"""Which kernel vLLM takes for a dense layer, by number format, which it accepts, and why it refuses the others.

vLLM's own quantization configuration makes the layer's method, out of a `quantization_config` as config.json has it, and the
method creates the weights of a layer on a device without storage. Which kernel it took is then read from the method.
"""

import contextlib
import importlib
import inspect
import os
import re
import traceback
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from oracle.machine import cached_functions

WIDTH = 4096
"""Inputs and outputs of the layer: a multiple of every block and tile."""
LAYER = "model.layers.0.mlp.down_proj"


def _compressed(kind: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": {**scheme, "format": kind}}, "ignore": []}


def _scheme(
    bits: int, kind: str, strategy: str, *, dynamic: Any = False, symmetric: bool = True, group: int | None = None
) -> dict[str, Any]:
    scheme = {"num_bits": bits, "type": kind, "strategy": strategy, "dynamic": dynamic, "symmetric": symmetric}
    return scheme | ({"group_size": group} if group else {})


FORMATS: Mapping[str, Mapping[str, Any]] = {
    "FP8/tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "FP8/token": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "FP8/modelopt": {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": []}},
    "FP8/compressed": _compressed("float-quantized", _scheme(8, "float", "channel"), _scheme(8, "float", "token", dynamic=True)),
    "FP8/compressed-tensor": _compressed("float-quantized", _scheme(8, "float", "tensor"), _scheme(8, "float", "tensor")),
    "FP8Block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "NVFP4/modelopt": {
        "quant_method": "modelopt_fp4",
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "exclude_modules": [], "group_size": 16},
    },
    "NVFP4/compressed": _compressed(
        "nvfp4-pack-quantized",
        _scheme(4, "float", "tensor_group", group=16),
        _scheme(4, "float", "tensor_group", group=16, dynamic="local"),
    ),
    "MXFP8/modelopt": {
        "quant_method": "modelopt_mxfp8",
        "quantization": {"quant_algo": "MXFP8", "kv_cache_quant_algo": None, "exclude_modules": []},
    },
    "MXFP8/mxfp8": {"quant_method": "mxfp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32]},
    "MXFP4/compressed": _compressed("mxfp4-pack-quantized", _scheme(4, "float", "group", group=32), None),
    "INT8/compressed": _compressed("int-quantized", _scheme(8, "int", "channel"), _scheme(8, "int", "token", dynamic=True)),
    "INT4/compressed": _compressed("pack-quantized", _scheme(4, "int", "group", group=128), None),
    "INT4/gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "desc_act": False,
        "sym": True,
        "lm_head": False,
        "modules_in_block_to_quantize": [LAYER],
    },
    "INT4/awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
}
"""Number formats as they are published: by vLLM's FP8, by ModelOpt, by compressed-tensors, by GPTQ and AWQ."""
OVERRIDING = {"gptq": ("gptq_marlin", "auto_gptq"), "awq": ("awq_marlin", "auto_awq")}
"""Methods that take over what is written for another one, if they can."""
NO_DEEP_GEMM = {"VLLM_USE_DEEP_GEMM": "0"}
FP4_VARIABLE = "VLLM_NVFP4_GEMM_BACKEND"
FP4_BACKENDS = ("flashinfer-cutlass", "flashinfer-trtllm", "flashinfer-cudnn", "flashinfer-b12x", "cutlass", "marlin")
ELSEWHERE = frozenset({"auto", "aiter", "xpu", "xpu_woq", "zentorch", "rocm"})
"""Values of --linear-backend for other platforms."""
KERNELS = (
    (r"flashinfer.*deepgemm", "DEEPGEMM"),  # DeepGEMM, and FlashInfer's variant of it for few tokens
    (r"flashinfer.*cutedsl", "FLASHINFER_CUTEDSL"),
    (r"flashinfer.*trtllm", "FLASHINFER_TRTLLM"),
    (r"flashinfer.*cudnn", "FLASHINFER_CUDNN"),
    (r"flashinfer.*b12x", "FLASHINFER_B12X"),
    (r"flashinfer", "FLASHINFER_CUTLASS"),
    (r"deepgemm", "DEEPGEMM"),
    (r"b12x", "B12X"),
    (r"cutlass", "CUTLASS"),
    (r"marlin", "MARLIN"),
    (r"humming", "HUMMING"),
    (r"machete", "MACHETE"),
    (r"allspark", "ALLSPARK"),
    (r"exllama", "EXLLAMA"),
    (r"conch", "CONCH"),
    (r"bitblas", "BITBLAS"),
    (r"fbgemm", "FBGEMM"),
    (r"emulation", "EMULATION"),
    (r"triton|w8a8blockfp8matmul", "TRITON"),
    (r"torch", "TORCH"),
)
"""Our names for classes and functions, the first that is found."""
NAMES = {"DEEP_GEMM": "DEEPGEMM"}
PREAMBLE = re.compile(r"^(\w+Error|AssertionError): |Failed to find a kernel that can implement the [\w -]+ linear layer\. Reasons:\s*")


@dataclass(frozen=True, slots=True)
class Answer:
    """What vLLM says about one format.

    Attributes:
        takes: The backend that it takes by itself; None if it raises.
        accepts: The backends that it takes when it is asked for them.
        refuses: Those with which it raises, and why.
        ignores: Those in place of which it silently takes another, which is the value.
        raises: Why it raises by itself.
    """

    takes: str | None
    accepts: tuple[str, ...] = ()
    refuses: Mapping[str, str] = field(default_factory=dict)
    ignores: Mapping[str, str] = field(default_factory=dict)
    raises: str | None = None


class Selector:
    """vLLM's dense layers in this process; see `Machine.boot`."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._flag = _linear_backends()

    def import_backends(self) -> None:
        """Make each layer once, so that everything is imported."""
        for written in FORMATS.values():
            with contextlib.suppress(Exception):
                self._take(written)

    def answer_all(self) -> dict[str, Answer]:
        """Answer for every format, and for FP8 with blocks also without DeepGEMM."""
        self._caches = cached_functions()
        answers = {name: self._answer(name, written) for name, written in FORMATS.items()}
        answers["FP8Block/no-deep-gemm"] = self._answer("FP8Block", FORMATS["FP8Block"], NO_DEEP_GEMM)
        return answers

    def _answer(self, name: str, written: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Answer:
        environment = environment or {}
        try:
            takes, raises = self._take(written, environment), None
        except Exception as error:
            takes, raises = None, _reason(error)
        accepts, refuses, ignores = [], {}, {}
        for backend, flag, more in self._pins(name):
            try:
                taken = self._take(written, {**environment, **more}, flag)
            except Exception as error:
                refuses[backend] = _reason(error)
            else:
                if taken == backend or (flag == "flashinfer_cutlass" and taken == "DEEPGEMM"):
                    accepts.append(backend)
                else:
                    ignores[backend] = taken
        return Answer(takes, tuple(accepts), refuses, ignores, raises)

    def _pins(self, name: str) -> Iterator[tuple[str, str, Mapping[str, str]]]:
        """The backends that can be asked for, each with the value of --linear-backend and the variables."""
        import vllm.envs as envs

        for value in self._flag:
            yield NAMES.get(value.upper(), value.upper()), value, {}
        if name.startswith("NVFP4") and FP4_VARIABLE in envs.environment_variables:
            for value in FP4_BACKENDS:
                if value.replace("-", "_") not in self._flag:
                    yield value.upper().replace("-", "_"), "auto", {FP4_VARIABLE: value}
        elif self._flag:
            return
        elif name.startswith("NVFP4") and "VLLM_USE_TRTLLM_FP4_GEMM" in envs.environment_variables:
            yield "FLASHINFER_TRTLLM", "auto", {"VLLM_USE_TRTLLM_FP4_GEMM": "1"}
        elif name == "FP8Block":
            yield "DEEPGEMM", "auto", {}
            yield "CUTLASS", "auto", NO_DEEP_GEMM

    def _take(self, written: Mapping[str, Any], environment: Mapping[str, str] | None = None, backend: str = "auto") -> str:
        """Make the layer's method and its weights, and say which kernel it took."""
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.model_executor.layers.linear import LinearBase

        torch = self._torch
        config = VllmConfig()
        dtype = torch.bfloat16 if _capability() >= 80 else torch.float16
        object.__setattr__(
            config,
            "model_config",
            SimpleNamespace(
                dtype=dtype, quantization_config=None, hf_config=SimpleNamespace(), hf_text_config=SimpleNamespace(model_type="")
            ),
        )
        if backend != "auto":
            config.kernel_config.linear_backend = backend
        before = dict(os.environ)
        os.environ.update(environment or {})
        for function in getattr(self, "_caches", ()):
            function.cache_clear()
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with set_current_vllm_config(config), torch.device("meta"), _one_rank():
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
                return _kernel(method, layer)
        finally:
            torch.set_default_dtype(default)
            os.environ.clear()
            os.environ.update(before)


@contextlib.contextmanager
def _one_rank() -> Iterator[None]:
    """Tensor parallelism of one rank, which layers ask for."""
    import vllm.distributed.parallel_state as parallel

    before, parallel._TP = parallel._TP, SimpleNamespace(rank_in_group=0, world_size=1)
    try:
        yield
    finally:
        parallel._TP = before


def _kernel(method: Any, layer: Any) -> str:
    """Our name of the kernel that a method took: the kernel that it holds, or what the same method says before there were such."""
    holders = [holder for holder in (method, getattr(layer, "scheme", None), layer) if holder is not None]
    if any(getattr(holder, "use_marlin", False) for holder in holders):
        return "MARLIN"
    values = [value for holder in holders for value in vars(holder).values()]
    # 0.19 makes a kernel for FP8 with blocks too, and uses the operation
    for value in sorted(values, key=lambda value: type(value).__name__ != "W8A8BlockFp8LinearOp"):
        kind = type(value)
        if ".kernels.linear" in kind.__module__ or ".quantization.kernels" in kind.__module__:
            return _name(kind.__name__)
        if kind.__name__ == "Mxfp8LinearOp":
            return _name(str(value.backend.value))
        if kind.__name__ == "W8A8BlockFp8LinearOp":
            return _block_operation(value, layer)
        if kind.__name__ == "Fp8LinearOp":
            return _block_function(method, layer) if getattr(method, "block_quant", False) else _scaled_operation(value, layer)
    for holder in holders:
        name = type(holder).__name__
        if name in ("CompressedTensorsW8A16Fp8", "CompressedTensorsW4A16Fp4", "CompressedTensorsW4A16Mxfp4", "AWQMarlinLinearMethod"):
            return "MARLIN"
        if name in ("ModelOptNvFp4LinearMethod", "CompressedTensorsW4A4Fp4"):
            return _name(str(getattr(holder.backend, "value", holder.backend)))
    raise NotImplementedError(f"which kernel {' with '.join(type(holder).__name__ for holder in holders)} took is not known")


def _block_operation(operation: Any, layer: Any) -> str:
    """What `W8A8BlockFp8LinearOp.apply` calls (vllm/model_executor/layers/quantization/utils/fp8_utils.py, until 0.19)."""
    import torch
    import vllm.model_executor.layers.quantization.utils.fp8_utils as utils

    uses = utils.should_use_deepgemm_for_fp8_linear
    given = (torch.bfloat16, layer.weight, operation.is_deep_gemm_supported)
    if uses(*given[: len(inspect.signature(uses).parameters)]):
        return "DEEPGEMM"
    return _name(operation.w8a8_blockscale_op.__name__)


def _block_function(method: Any, layer: Any) -> str:
    """What `apply_w8a8_block_fp8_linear` calls (vllm/model_executor/layers/quantization/utils/fp8_utils.py, 0.11.0)."""
    import torch
    import vllm.model_executor.layers.quantization.utils.fp8_utils as utils

    if utils.should_use_deepgemm_for_fp8_linear(torch.bfloat16, layer.weight):
        return "DEEPGEMM"
    return _name(utils.dispatch_w8a8_blockscale_func(method.cutlass_block_fp8_supported, False).__name__)


def _scaled_operation(operation: Any, layer: Any) -> str:
    """What `Fp8LinearOp.apply` calls (vllm/model_executor/layers/quantization/utils/w8a8_utils.py, until 0.15)."""
    import vllm.model_executor.layers.quantization.utils.w8a8_utils as utils

    per_tensor_activations = operation.act_quant_static or operation.act_quant_group_shape.is_per_tensor()
    per_tensor_weights = getattr(layer, "weight_scale", None) is None or layer.weight_scale.numel() == 1
    dispatch = utils.dispatch_w8a8_scaled_mm
    return _name(dispatch(operation.preferred_backend, per_tensor_weights, per_tensor_activations).__name__)


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


def _linear_backends() -> list[str]:
    """The values of --linear-backend for this platform; none if this version does not have it."""
    from vllm.config import VllmConfig

    config = getattr(VllmConfig(), "kernel_config", None)
    if config is None or not hasattr(config, "linear_backend"):
        return []
    module = importlib.import_module("vllm.config.kernel")
    return [value for value in typing.get_args(module.LinearBackend) if value not in ELSEWHERE]


def _capability() -> int:
    from vllm.platforms import current_platform

    return int(current_platform.get_device_capability().to_int())


def _name(theirs: str) -> str:
    plain = theirs.lower().replace("_", "").replace("-", "")
    for pattern, name in KERNELS:
        if re.search(pattern, plain):
            return name
    raise NotImplementedError(f"{theirs} is no kernel that is known")


def _reason(error: Exception) -> str:
    text = " ".join(" ".join(map(str, error.args)).split())
    kind = type(error).__name__
    if kind == "NotImplementedError" and "/vllm/" in traceback.extract_tb(error.__traceback__)[-1].filename:
        return text  # vLLM's own
    return (PREAMBLE.sub("", text) if kind in ("ValueError", "AssertionError", "RuntimeError") else f"{kind}: {text}")[:400]

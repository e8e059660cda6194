"""A machine with GPUs that are made up, for vLLM in this process. Nothing of it can be undone: one process, one vLLM."""

import functools
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from oracle.text_packages import TextPackages

EXTENSIONS = (
    "vllm._C",
    "vllm._C_stable_libtorch",
    "vllm._moe_C",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
    "vllm._flashkda_C",
    "vllm._qutlass_C",
    "vllm._deepselect_C",
    "vllm._version",
    "vllm.cumem_allocator",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)
"""What a wheel holds besides Python; the images are built with all of it."""
IN_THE_IMAGE = (
    "deep_gemm",
    "xgrammar",
    "outlines",
    "outlines_core",
    "llguidance",
    "tilelang",
    "quack",
    "cv2",
    "numba",
    "torchvision",
    "cutlass",
)
"""Packages of the official images that the selectors import and do not ask anything."""
REQUIRED = {"humming-kernels": "humming", "tokenspeed-mla": "tokenspeed_mla"}
"""Packages that are in the image if the wheel requires them, with their modules."""
KERNELS = "vllm.vllm_flash_attn.cute"
"""Kernels in Python that a wheel may hold. Selectors ask only whether they can be imported."""
MEMORY = 140 * 2**30
"""Of a GPU, in bytes."""
GemmType = Enum("GemmType", {"INDEXED": "indexed", "GROUPED_CONTIGUOUS": "grouped_contiguous", "GROUPED_MASKED": "grouped_masked"})
"""Of Humming, of which only the names are known: the values that vLLM compares."""
CUDA = "13.0"
"""Of the image."""


PREDICATES: Mapping[str, Callable[[int], bool]] = {
    # csrc/quantization/w8a8/cutlass/scaled_mm_entry.cu, built for CUDA 12.8 and newer
    "cutlass_scaled_mm_supports_fp8": lambda asked: asked >= 89,
    "cutlass_scaled_mm_supports_block_fp8": lambda asked: asked >= 90,
    "cutlass_group_gemm_supported": lambda asked: 90 <= asked < 110,
    # csrc/quantization/fp4/nvfp4_scaled_mm_entry.cu
    "cutlass_scaled_mm_supports_fp4": lambda asked: 100 <= asked < 130,
    # csrc/sparse/cutlass/sparse_scaled_mm_entry.cu
    "cutlass_sparse_scaled_mm_supported": lambda asked: asked == 90,
}
"""Functions of vLLM's extensions that selectors ask, with what their C++ sources answer."""
CONSTANTS = {
    "CUTLASS_FP8_SUPPORTED": "cutlass_scaled_mm_supports_fp8",
    "CUTLASS_BLOCK_FP8_SUPPORTED": "cutlass_scaled_mm_supports_block_fp8",
}
"""What modules ask when they are imported (vllm/model_executor/layers/quantization/utils/w8a8_utils.py), by predicate."""


@dataclass(slots=True)
class Machine:
    """A machine with GPUs of one compute capability; see `become`."""

    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132

    def boot(self, vllm: Path, flashinfer: Path) -> None:
        """Make this process one that runs on such a machine, with the Python files of vLLM and FlashInfer out of folders."""
        os.environ |= {"VLLM_LOGGING_LEVEL": "CRITICAL", "VLLM_TARGET_DEVICE": "cuda", "VLLM_HAS_FLASHINFER_CUBIN": "1"}
        sys.path.insert(0, str(vllm))
        metadata = next(vllm.glob("*.dist-info/METADATA")).read_text()
        required = [module for package, module in REQUIRED.items() if f"Requires-Dist: {package}" in metadata]
        if (vllm / KERNELS.replace(".", "/")).is_dir():
            required.append(KERNELS)
        TextPackages(flashinfer, "flashinfer", (*EXTENSIONS, *IN_THE_IMAGE, *required)).install()
        self._make_up_cuda()
        _make_up_operators()
        self._make_up_platform()
        _answer_from_text(flashinfer)
        _make_up_humming()

    def become(self, capability: tuple[int, int], caches: Iterable[Any] | None = None) -> None:
        """Have other GPUs from now on, and forget what vLLM found out about those before; finding the `caches` takes long."""
        self.capability = capability
        forget(cached_functions() if caches is None else caches)
        modules = [module for name, module in sys.modules.items() if name.startswith("vllm")]
        for name, predicate in CONSTANTS.items():
            for module in modules:
                if name in vars(module):
                    setattr(module, name, PREDICATES[predicate](capability[0] * 10 + capability[1]))

    def _properties(self) -> SimpleNamespace:
        return SimpleNamespace(
            major=self.capability[0],
            minor=self.capability[1],
            name="NVIDIA",
            total_memory=MEMORY,
            multi_processor_count=self.multiprocessors,
            warp_size=32,
            max_threads_per_multi_processor=2048,
            shared_memory_per_block_optin=232448,
            is_integrated=0,
            L2_cache_size=50 * 2**20,
            gcnArchName="",
        )

    def _make_up_cuda(self) -> None:
        import torch
        from torch.overrides import TorchFunctionMode

        class NoDevice(TorchFunctionMode):  # type: ignore[misc]  # PyTorch is not in the environment of mypy
            """Makes tensors that belong on a GPU without storage."""

            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs = dict(kwargs or {})
                if "cuda" in str(kwargs.get("device")) or isinstance(kwargs.get("device"), int):
                    kwargs["device"] = "meta"
                return func(*args, **kwargs)

        answers: dict[str, Callable[[], Any]] = {
            "is_available": lambda: True,
            "device_count": lambda: 8,
            "current_device": lambda: 0,
            "get_device_capability": lambda: self.capability,
            "get_device_name": lambda: "NVIDIA",
            "get_device_properties": self._properties,
            "_lazy_init": lambda: None,
        }
        for name, answer in answers.items():
            setattr(torch.cuda, name, lambda *args, answer=answer, **kwargs: answer())
        torch.accelerator.current_device_index = lambda: 0
        torch.cuda.Stream = torch.cuda.Event = SimpleNamespace
        torch.version.cuda = CUDA
        self._make_up_triton()
        NoDevice().__enter__()  # until this process ends

    def _make_up_triton(self) -> None:
        from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found]
        from triton.runtime import driver  # type: ignore[import-not-found]

        shared = {"max_shared_mem": 232448, "multiprocessor_count": self.multiprocessors, "warpSize": 32}
        driver.set_active(
            SimpleNamespace(
                get_current_target=lambda: GPUTarget("cuda", self.capability[0] * 10 + self.capability[1], 32),
                get_current_device=lambda: 0,
                utils=SimpleNamespace(get_device_properties=lambda device: shared),
            )
        )

    def _make_up_platform(self) -> None:
        import vllm.platforms as platforms
        from vllm.platforms.cuda import CudaPlatformBase
        from vllm.platforms.interface import DeviceCapability

        answers: dict[str, Callable[[], Any]] = {
            "get_device_capability": lambda: DeviceCapability(*self.capability),
            "get_device_name": lambda: "NVIDIA",
            "get_device_total_memory": lambda: MEMORY,
            "device_count": lambda: 8,
            "num_compute_units": lambda: self.multiprocessors,
            "is_fully_connected": lambda: True,
            "log_warnings": lambda: None,
        }
        methods = {name: classmethod(lambda cls, *args, answer=answer, **kwargs: answer()) for name, answer in answers.items()}
        platforms._current_platform = type("MadeUpPlatform", (CudaPlatformBase,), methods)()


def cached_functions() -> list[Any]:
    """The functions of vLLM that keep what they found out."""
    return [one for one in gc.get_objects() if type(one) is functools._lru_cache_wrapper and one.__module__.startswith("vllm")]


def forget(functions: Iterable[Any]) -> None:
    for function in functions:
        function.cache_clear()


def _answer_from_text(flashinfer: Path) -> None:
    """Answer for the questions about FlashInfer that vLLM asks by calling, and not by looking for a name."""
    import vllm.utils.flashinfer as asked

    if hasattr(asked, "has_flashinfer_sm90_nope_mla"):  # whether BatchMLAPagedAttentionWrapper.run has this parameter
        has = any("ckv_scale_arr" in file.read_text() for file in (flashinfer / "flashinfer/mla").rglob("*.py"))
        asked.has_flashinfer_sm90_nope_mla = lambda: has


def _make_up_humming() -> None:
    if importlib.util.find_spec("vllm.utils.humming") is not None:
        humming: Any = importlib.import_module("vllm.utils.humming")
        humming.GemmType = GemmType


class Operator:
    """An operator of vLLM's extensions, which layers keep and do not call while they are made. None is there before `present` is set."""

    present = False

    def __getattr__(self, name: str) -> "Operator":
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def _make_up_operators() -> None:
    """Answer for the predicates of vLLM's extensions, and let models keep their other operators."""
    from torch import _ops

    look = _ops._OpNamespace.__getattr__

    def find(namespace: Any, name: str) -> Any:
        try:
            return look(namespace, name)
        except AttributeError:
            if name in PREDICATES:
                return PREDICATES[name]
            if Operator.present and namespace.name.startswith(("_C", "_moe_C", "_flashkda_C")) and not name.startswith("__"):
                return Operator()
            raise

    _ops._OpNamespace.__getattr__ = find

"""The caches of a start, what each costs, and how its files look.

Where a cache is follows from the variables that the real component reads, and from its default where none is set. This
is written down here a second time, from the components, on purpose: a test that took it from the operator's own table
would not notice what that table forgets.

Seconds are for a DeepSeek-V3-shaped FP8 model (4 layers) on one H200 with vLLM 0.20.1: 458.8 cold, 34.9 warm. Those of
FlashInfer, DeepGEMM and the compiled model are measured, the others are what is left, spread evenly.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WARM_SECONDS = 34.9


@dataclass(frozen=True)
class Cache:
    """One cache: `units` are compiled one after the other, each into a file of its own; `file` names it."""

    name: str
    seconds: float
    units: int
    variable: str
    below: str
    default: str
    file: str
    switch: str = ""

    def directory(self, environment: Mapping[str, str]) -> Path | None:
        """Where it is; None if it is switched off, and everything is compiled at each start."""
        if self.switch and environment.get(self.switch) != "1":
            return None
        root = environment.get(self.variable) or _default(self.default, environment)
        return Path(root) / self.below if self.below else Path(root)


def _default(text: str, environment: Mapping[str, str]) -> str:
    """A path that begins in the home, in vLLM's own folder or in the folder for temporary files."""
    home = environment.get("HOME", "/root")
    root = environment.get("VLLM_CACHE_ROOT") or f"{environment.get('XDG_CACHE_HOME') or home + '/.cache'}/vllm"
    begin, slash, rest = text.partition("/") if not text.startswith("/tmp") else ("/tmp", "/", text.removeprefix("/tmp/"))
    place = {"~": home, "$VLLM_CACHE_ROOT": root, "/tmp": environment.get("TMPDIR", "/tmp")}[begin]
    return place + slash + rest.replace("$USER", environment.get("USER", "root"))


CACHES = (
    Cache("torch.compile", 10.2, 2, "VLLM_CACHE_ROOT", "torch_compile_cache/eaa218e691/rank_0_0", "$VLLM_CACHE_ROOT", "model-{unit}"),
    Cache("model inspection", 3.0, 1, "VLLM_CACHE_ROOT", "modelinfos", "$VLLM_CACHE_ROOT", "deepseek_v2-{unit}.json"),
    Cache("FlashInfer", 66.2, 3, "FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer/0.6.8/90a/cached_ops", "~", "op{unit}/op{unit}.so"),
    Cache("DeepGEMM", 264.5, 40, "DG_JIT_CACHE_DIR", "cache", "$VLLM_CACHE_ROOT/deep_gemm", "kernel.gemm.{unit}/kernel.cubin"),
    Cache("TensorRT-LLM's DeepGEMM", 50.0, 5, "HOME", ".tensorrt_llm/cache", "~", "kernel{unit}.cubin"),
    Cache("Triton", 15.0, 5, "TRITON_CACHE_DIR", "", "~/.triton/cache", "{unit}/kernel.cubin"),
    Cache("Inductor", 3.0, 1, "TORCHINDUCTOR_CACHE_DIR", "", "/tmp/torchinductor_$USER", "{unit}.py"),
    Cache("C++ extensions", 3.0, 1, "TORCH_EXTENSIONS_DIR", "", "~/.cache/torch_extensions", "extension{unit}/extension.so"),
    Cache("CUDA driver", 2.0, 1, "CUDA_CACHE_PATH", "", "~/.nv/ComputeCache", "{unit}.bin"),
    Cache("CuTe DSL", 1.0, 1, "CUTE_DSL_CACHE_DIR", "", "/tmp/$USER/cutlass_python_cache", "{unit}.mlir"),
    Cache(
        "FlashAttention 4",
        1.0,
        1,
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR",
        "",
        "/tmp/$USER/flash_attention_cute_dsl_cache",
        "{unit}.o",
        switch="FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED",
    ),
    Cache("quack", 1.0, 1, "QUACK_CACHE_DIR", "", "/tmp/$USER/quack_cache", "{unit}.o"),
    Cache("TileLang", 1.0, 1, "TILELANG_CACHE_DIR", "", "~/.tilelang/cache", "{unit}/kernel.so"),
    Cache("Humming", 1.0, 1, "HUMMING_CACHE_DIR", "", "~/.humming/cache", "{unit}.cubin"),
    Cache("tvm-ffi", 1.0, 1, "TVM_FFI_CACHE_DIR", "", "~/.cache/tvm-ffi", "{unit}/module.so"),
    Cache("outlines", 1.0, 1, "OUTLINES_CACHE_DIR", "", "~/.cache/outlines", "cache{unit}.db"),
)

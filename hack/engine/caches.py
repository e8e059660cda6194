"""The caches of a start, what each costs, and how its files look.

Where a cache is follows from the variables that the real component reads, and from its default where none is set. This
is written down here a second time, from the components, on purpose: a test that took it from the operator's own table
would not notice what that table forgets.

Seconds are for a DeepSeek-V3-shaped FP8 model (4 layers) on one H200 with vLLM 0.20.1: 458.8 cold, 34.9 warm. Those of
FlashInfer, DeepGEMM and the compiled model are measured, the others are what is left, spread evenly. Both starts found
Python's bytecode beside the sources. What a container without it pays was measured with a Llama of 1.1B: 42.2 s, and 28.6 s with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WARM_SECONDS = 34.9


@dataclass(frozen=True)
class Cache:
    """One cache: `units` are compiled one after the other, each into a file of its own; `file` names it.

    It is paid for before the recorded line that holds `before`. `told` are words of the recorded lines that are printed
    only while it is built, none for the silent ones.
    """

    name: str
    seconds: float
    units: int
    variable: str
    default: str
    file: str
    before: str
    below: str = ""
    switch: str = ""
    told: tuple[str, ...] = ()

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


BYTECODE = "Python's bytecode"

# Places in the recording, in the order in which a start comes to them.
_IMPORTED = "non-default args"
_LOOKING_AT_THE_MODEL = "Resolved architecture"
_COMPILED = "torch.compile took"
_FIRST_RUN = "Using default MoE config"
_GRAPHS_PROFILED = "Estimated CUDA graph memory"
_TUNED = "Autotuning process starts"
_GRAPHS_CAPTURED = "Graph capturing finished"

# name, seconds, units, variable, default, file, before
CACHES = (
    # Python's default is beside the sources, which is as lost with the container as /tmp
    Cache(BYTECODE, 13.6, 17, "PYTHONPYCACHEPREFIX", "/tmp/site", "module{unit}.pyc", _IMPORTED),
    Cache(
        name="torch.compile",
        seconds=10.2,
        units=2,
        variable="VLLM_CACHE_ROOT",
        default="$VLLM_CACHE_ROOT",
        file="model-{unit}",
        before=_COMPILED,
        below="torch_compile_cache/eaa218e691/rank_0_0",
        told=("Cache the graph of compile range", "Compiling a graph for compile range", "saved AOT compiled function"),
    ),
    Cache(
        name="model inspection",
        seconds=3.0,
        units=1,
        variable="VLLM_CACHE_ROOT",
        default="$VLLM_CACHE_ROOT",
        file="deepseek_v2-{unit}.json",
        before=_LOOKING_AT_THE_MODEL,
        below="modelinfos",
    ),
    Cache(
        name="FlashInfer",
        seconds=66.2,
        units=3,
        variable="FLASHINFER_WORKSPACE_BASE",
        default="~",
        file="op{unit}/op{unit}.so",
        before=_GRAPHS_PROFILED,
        below=".cache/flashinfer/0.6.8/90a/cached_ops",
    ),
    Cache(
        name="DeepGEMM",
        seconds=264.5,
        units=40,
        variable="DG_JIT_CACHE_DIR",
        default="$VLLM_CACHE_ROOT/deep_gemm",
        file="kernel.gemm.{unit}/kernel.cubin",
        before=_TUNED,
        below="cache",
        told=("DeepGEMM warmup:",),
    ),
    Cache("TensorRT-LLM's DeepGEMM", 50.0, 5, "HOME", "~", "kernel{unit}.cubin", _GRAPHS_CAPTURED, below=".tensorrt_llm/cache"),
    Cache("Triton", 15.0, 5, "TRITON_CACHE_DIR", "~/.triton/cache", "{unit}/kernel.cubin", _FIRST_RUN),
    Cache("Inductor", 3.0, 1, "TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor_$USER", "{unit}.py", _FIRST_RUN),
    Cache("C++ extensions", 3.0, 1, "TORCH_EXTENSIONS_DIR", "~/.cache/torch_extensions", "extension{unit}/extension.so", _FIRST_RUN),
    Cache("CUDA driver", 2.0, 1, "CUDA_CACHE_PATH", "~/.nv/ComputeCache", "{unit}.bin", _FIRST_RUN),
    Cache("CuTe DSL", 1.0, 1, "CUTE_DSL_CACHE_DIR", "/tmp/$USER/cutlass_python_cache", "{unit}.mlir", _GRAPHS_PROFILED),
    Cache(
        name="FlashAttention 4",
        seconds=1.0,
        units=1,
        variable="FLASH_ATTENTION_CUTE_DSL_CACHE_DIR",
        default="/tmp/$USER/flash_attention_cute_dsl_cache",
        file="{unit}.o",
        before=_GRAPHS_PROFILED,
        switch="FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED",
    ),
    Cache("quack", 1.0, 1, "QUACK_CACHE_DIR", "/tmp/$USER/quack_cache", "{unit}.o", _GRAPHS_PROFILED),
    Cache("TileLang", 1.0, 1, "TILELANG_CACHE_DIR", "~/.tilelang/cache", "{unit}/kernel.so", _GRAPHS_PROFILED),
    Cache("Humming", 1.0, 1, "HUMMING_CACHE_DIR", "~/.humming/cache", "{unit}.cubin", _GRAPHS_PROFILED),
    Cache("tvm-ffi", 1.0, 1, "TVM_FFI_CACHE_DIR", "~/.cache/tvm-ffi", "{unit}/module.so", _GRAPHS_CAPTURED),
    Cache("outlines", 1.0, 1, "OUTLINES_CACHE_DIR", "~/.cache/outlines", "cache{unit}.db", _GRAPHS_CAPTURED),
)

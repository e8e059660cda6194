"""A wheel of a made-up version of vLLM: the few sources that `catalog ingest` reads."""

import zipfile
from pathlib import Path

VERSION = "0.40.0+cu141"
FILES = {
    "vllm/envs.py": """
import os
from helpers import env_with_choices, deprecated_env
environment_variables = {
    "VLLM_MAIN_CUDA_VERSION": lambda: os.getenv("VLLM_MAIN_CUDA_VERSION", "").lower() or "14.1",
    "VLLM_USE_SOMETHING": lambda: bool(int(os.getenv("VLLM_USE_SOMETHING", "1"))),
    "VLLM_KIND": env_with_choices("VLLM_KIND", None, ["fast", "slow"]),
    "VLLM_OLD": deprecated_env("VLLM_OLD", "v9", lambda: os.getenv("VLLM_OLD", "0")),
    "VLLM_PLAIN": lambda: os.environ.get("VLLM_PLAIN", None),
}
raise RuntimeError("a wheel is never imported")
""",
    "vllm/engine/arg_utils.py": """
class EngineArgs:
    def add_cli_args(parser):
        group.add_argument("--moe-backend", **kwargs["moe_backend"])
        group.add_argument("--quantization", "-q", **kwargs["quantization"])
        group.add_argument("--attention-config", "-ac", **kwargs["attention_config"])
""",
    "vllm/entrypoints/openai/cli_args.py": """
class BaseFrontendArgs:
    api_key: list[str] | None = None
class FrontendArgs(BaseFrontendArgs):
    port: int = 8000
""",
    "vllm/v1/attention/backends/registry.py": """
class AttentionBackendEnum(Enum):
    FLASH_ATTN = "vllm.a"
    ROCM_ATTN = "vllm.b"
    TRITON_MLA = "vllm.c"
""",
    "vllm/config/kernel.py": """
MoEBackend = Literal["auto", "triton", "aiter"]
class KernelConfig:
    moe_backend: MoEBackend = "auto"
""",
    "vllm/config/attention.py": """
class AttentionConfig:
    backend: str | None = None
    mla_prefill_backend: str | None = None
""",
    "vllm/config/parallel.py": 'All2AllBackend = Literal["naive", "pplx"]',
    "vllm/config/cache.py": 'CacheDType = Literal["auto", "fp8"]',
    "vllm/model_executor/models/registry.py": """
_TEXT_MODELS = {"NewForCausalLM": ("new", "NewForCausalLM")}
_GONE = {"OldForCausalLM": "0.39"}
""",
    "vllm/third_party/deep_gemm/__init__.py": "",
    "vllm-0.40.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.40.0+cu141\nRequires-Dist: torch==2.20.0\n"
    "Requires-Dist: flashinfer-python==0.9.0\nRequires-Dist: flashinfer-cubin==0.9.0\n",
}


def write_wheel(path: Path, version: str = VERSION) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text.replace(VERSION, version))
    return path

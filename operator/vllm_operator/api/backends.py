"""`spec.backends`: kernel backends of the engine."""

from enum import StrEnum

from pydantic import Field

from vllm_operator.api.base import Backend, Model


class OptimizeFor(StrEnum):
    """Optimization goal, for kernels that are faster either with few or with many concurrent requests."""

    THROUGHPUT = "Throughput"
    LATENCY = "Latency"


class BackendsSpec(Model):
    """Kernel backends. If a field is Auto or absent, the operator chooses the backend."""

    optimize_for: OptimizeFor | None = Field(
        default=None, description="Throughput (many concurrent requests) or Latency (few). Default: Throughput."
    )
    attention: Backend | None = Field(
        default=None, description="Auto, or an attention backend of vLLM, for example FLASHINFER_MLA. Default: Auto."
    )
    mla_prefill: Backend | None = Field(
        default=None, description="Auto, or a prefill backend for MLA models, for example TRTLLM_RAGGED. Default: Auto."
    )
    gemm: Backend | None = Field(
        default=None, description="Auto, or a backend for quantized dense layers, for example DEEPGEMM. Default: Auto."
    )
    moe: Backend | None = Field(
        default=None, description="Auto, or a backend for expert layers, for example FLASHINFER_CUTLASS or MARLIN. Default: Auto."
    )
    all_to_all: Backend | None = Field(
        default=None, description="Auto, or a communication backend for expert parallelism, for example deepep_low_latency. Default: Auto."
    )
    sampler: Backend | None = Field(default=None, description="Auto, FLASHINFER or NATIVE. Default: Auto.")

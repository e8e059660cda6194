"""What the log of one run of a container shows."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Stage(StrEnum):
    """Stages of a start, in order.

    SCHEDULING and IMAGE_PULL come from the status of the Pod, the others from the log. READY is what the log says ("Application startup
    complete."). Whether a Pod serves is decided by its readiness probe.
    """

    SCHEDULING = "Scheduling"
    IMAGE_PULL = "ImagePull"
    PROCESS_START = "ProcessStart"
    CONFIGURATION = "Configuration"
    DISTRIBUTED_INIT = "DistributedInit"
    WEIGHT_DOWNLOAD = "WeightDownload"
    WEIGHT_LOAD = "WeightLoad"
    TORCH_COMPILE = "TorchCompile"
    MEMORY_PROFILING = "MemoryProfiling"
    KERNEL_WARMUP = "KernelWarmup"
    AUTOTUNE = "Autotune"
    FLASHINFER_WARMUP = "FlashInferWarmup"
    CUDA_GRAPH_CAPTURE = "CUDAGraphCapture"
    SERVER_START = "ServerStart"
    READY = "Ready"


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a stage. `label` names what is counted."""

    completed: int
    total: int
    label: str
    eta_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash found in a log or in the status of a container.

    `line` is the line of the root cause, and `line_number` its number from 1 in this log. `captures` are the named groups of the pattern.
    All texts are bounded and contain no secrets or control characters.
    """

    signature: str
    cause: str
    remedy: str | None
    reference: str | None
    line: str
    line_number: int | None = None
    excerpt: str = ""
    captures: tuple[tuple[str, str], ...] = ()
    retryable: bool = False
    auto_safe: bool = False


class LogProblem(StrEnum):
    """Why nothing could be read of a log."""

    PENDING = "Pending"
    """It was not read yet."""
    FORBIDDEN = "Forbidden"
    """The operator has no permission."""
    GONE = "Gone"
    """The kubelet no longer has it."""
    UNREACHABLE = "Unreachable"
    """The API server or the kubelet did not deliver it."""
    SKIPPED = "Skipped"
    """Parts of it were not read, because it grew too fast."""


@dataclass(frozen=True, slots=True)
class UnreadLog:
    """A log of which nothing could be read. `detail`: the error in the words of the API server, untrusted."""

    problem: LogProblem
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CacheEvidence:
    """Numbers of cache entries that were loaded, built, and not loadable; and why the last one was not, in the engine's words."""

    hits: int = 0
    misses: int = 0
    load_failures: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """Memory of one GPU in GiB as the engine logs it, the tokens that its KV cache holds, and requests of the maximum length at a time.

    What the engine has not logged is None.
    """

    weights_gib: float | None = None
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    concurrency: float | None = None


@dataclass(frozen=True, slots=True)
class StartupState:
    """What the log of a run shows so far.

    `stage_since` and `last_line_at` are times of log lines (UTC). `silent_stage_inferred`: the engine probably does work that it does
    not log (FlashInfer JIT). `observed_backends`: pairs of a component and the backend that the log names. `entered`: stages in the
    order in which they were entered, with their times. `memory`: what the engine measured on its fullest GPU. `notices`: signatures of
    lines that matter but are no crash. `adapters`: LoRA adapters that were loaded. `is_final`: the process has ended and its log was
    read to the end. `cut_off_at`: line that says that a process failed, if such a log ends before the error. `skipped_seconds`: at least
    so many seconds of the log were not read, because it grew too fast.
    """

    stage: Stage = Stage.PROCESS_START
    progress: Progress | None = None
    detail: str | None = None
    stage_since: datetime | None = None
    started_at: datetime | None = None
    last_line_at: datetime | None = None
    silent_stage_inferred: bool = False
    engine_version: str | None = None
    crash: Crash | None = None
    cache: CacheEvidence = CacheEvidence()
    observed_backends: tuple[tuple[str, str], ...] = ()
    entered: tuple[tuple[Stage, datetime | None], ...] = ()
    lines: int = 0
    notices: tuple[str, ...] = ()
    memory: MeasuredMemory = MeasuredMemory()
    adapters: tuple[str, ...] = ()
    is_final: bool = False
    cut_off_at: int | None = None
    skipped_seconds: int = 0

    @property
    def has_start(self) -> bool:
        """Whether a line belongs to a start. If not, this is an excerpt, the end of a log, or the log of another program."""
        return self.stage is not Stage.PROCESS_START or self.engine_version is not None or bool(self.observed_backends)

"""What the log of one container run has told so far."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Stage(StrEnum):
    """Stages of a start, in order.

    SCHEDULING and IMAGE_PULL come from the Pod's status; everything from PROCESS_START on from the log.
    READY is what the log claims ("Application startup complete."); whether a Pod serves, its probe decides.
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
    """How far a stage is that counts. `label` is what the engine calls the thing being counted."""

    completed: int
    total: int
    label: str
    eta_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash as found in a log, or in the status of a container.

    `line` is the telling line (the root cause, not its echo), `line_number` counts from 1 in this run.
    `captures` are the named groups of the signature's pattern. All texts are free of secrets and control
    characters and bounded.
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


@dataclass(frozen=True, slots=True)
class CacheEvidence:
    """Counts of what the log says about caches: loaded from, built and stored, failed to load."""

    hits: int = 0
    misses: int = 0
    load_failures: int = 0


@dataclass(frozen=True, slots=True)
class StartupState:
    """What one container run has told so far.

    `stage_since` and `last_line_at` are the timestamps of the log lines (UTC); `silent_stage_inferred` is
    set while the engine is in work that it does not log (FlashInfer JIT), as far as can be inferred.
    `observed_backends` pairs a component with the backend that the log names. `entered` are the stages in the
    order in which they were entered, with their times. `notices` are signatures of lines that are worth knowing and no
    crash. `is_final`: the process has ended, and its log was read to the end. `cut_off_at` is the line which says that
    a process failed, where such a log ends before it says with what error.
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
    is_final: bool = False
    cut_off_at: int | None = None

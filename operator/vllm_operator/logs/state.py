"""The state of one run of a container, as its log shows it."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum


class Stage(StrEnum):
    """Stages of a start, in order. The first two come from the status of the Pod, the others from the log.

    READY means "Application startup complete." in the log. The readiness probe decides whether a Pod serves.
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
    """Progress of a stage. `label` names the counted items."""

    completed: int
    total: int
    label: str
    eta_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash found in a log or in the status of a container. All texts are bounded, without secrets or control characters."""

    signature: str
    cause: str
    remedy: str | None
    reference: str | None
    line: str  # of the root cause
    line_number: int | None = None  # from 1 in this log
    excerpt: str = ""
    captures: tuple[tuple[str, str], ...] = ()  # named groups of the pattern
    time: datetime | None = None  # of that line, if known
    family: str = ""  # for an error that matches no signature: the part of the engine that failed, an `id` of failures.yaml


class LogProblem(StrEnum):
    """Why a log could not be read."""

    PENDING = "Pending"  # it has not been read yet
    FORBIDDEN = "Forbidden"  # the operator lacks the permission
    GONE = "Gone"  # the kubelet has deleted it
    UNREACHABLE = "Unreachable"  # the kubelet does not answer
    SKIPPED = "Skipped"  # parts were skipped, because it grew too fast


@dataclass(frozen=True, slots=True)
class UnreadLog:
    """A log that could not be read. `detail`: the API server's error message, untrusted."""

    problem: LogProblem
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CacheEvidence:
    """Numbers of cache entries that were loaded, built, and not loadable; and the engine's reason for the last failed load."""

    hits: int = 0
    misses: int = 0
    load_failures: int = 0
    failure: str = ""

    @property
    def is_warm(self) -> bool:
        """Whether the start loaded everything."""
        return self.hits > 0 and self.misses == 0 and self.load_failures == 0

    @property
    def is_cold(self) -> bool:
        """Whether the start built everything."""
        return self.misses > 0 and self.hits == 0


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """Memory of one GPU in GiB, token capacity of its KV cache, and maximum concurrency at full context length, as logged; None if not."""

    weights_gib: float | None = None
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    concurrency: float | None = None


@dataclass(frozen=True, slots=True)
class Membership:
    """The place of the engine of this log among the nodes that one engine runs on, as logged; None if not."""

    node: int | None = None  # rank of the node, 0 for the leader
    nodes: int | None = None  # number of nodes
    timeout_seconds: int | None = None  # for which it waits for the other nodes
    is_waiting: bool = False  # it waits for the other nodes to connect
    is_stopping: bool = False  # it was told to stop, the leader after it was ready
    is_orphaned: bool = False  # its main process has ended, and was not told to stop
    is_unanswered: bool = False  # after it was ready, another process has not answered for a minute


@dataclass(frozen=True, slots=True)
class StartupState:
    """The state of a run according to its log so far. Times are those of log lines (UTC)."""

    stage: Stage = Stage.PROCESS_START
    is_stage_over: bool = False  # what follows has not logged anything yet
    progress: Progress | None = None
    stage_since: datetime | None = None
    started_at: datetime | None = None
    last_line_at: datetime | None = None
    silent_stage_inferred: bool = False  # the engine probably does work that it does not log (FlashInfer JIT)
    engine_version: str | None = None
    has_arguments: bool = False  # the log has the line with the arguments of the server
    crash: Crash | None = None
    cache: CacheEvidence = CacheEvidence()
    observed_backends: tuple[tuple[str, str], ...] = ()  # pairs of a component and the backend that the log names
    entered: tuple[tuple[Stage, datetime | None], ...] = ()  # stages in the order in which they were entered, with their times
    lines: int = 0
    notices: tuple[str, ...] = ()  # signatures of relevant lines that are no crash
    memory: MeasuredMemory = MeasuredMemory()  # the engine's measurements on its fullest GPU
    adapters: tuple[str, ...] = ()  # LoRA adapters that were loaded
    is_final: bool = False  # the process has ended and its log was read to the end
    cut_off_at: int | None = None  # line that reports a failed process, if the log ends before the error
    membership: Membership | None = None  # of an engine on several nodes
    obstacle: Crash | None = None  # what this engine reports while it waits for the other nodes
    skipped_seconds: int = 0  # minimum seconds of the log that were skipped, because it grew too fast

    @property
    def has_start(self) -> bool:
        """Whether a line belongs to a start. If not, this is an excerpt, the end of a log, or another program's log."""
        return bool(self.stage is not Stage.PROCESS_START or self.engine_version or self.has_arguments or self.observed_backends)


def is_same(old: StartupState, new: StartupState) -> bool:
    """Return whether two states differ at most in the number and time of their last line."""
    return replace(old, lines=0, last_line_at=None) == replace(new, lines=0, last_line_at=None)


def is_significant(old: StartupState, new: StartupState, step_percent: int) -> bool:
    """Return whether a change must be reported immediately. Progress alone must change by at least `step_percent` of its total."""
    if old.progress is not None and new.progress is not None and new.progress.total:
        change = abs(new.progress.completed - old.progress.completed) * 100
        is_only_progress = is_same(old, replace(new, progress=old.progress))
        return not is_only_progress or old.progress.total != new.progress.total or change >= step_percent * new.progress.total
    return not is_same(old, new)

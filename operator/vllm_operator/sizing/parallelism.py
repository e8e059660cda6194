"""Parallel sizes of one replica, and the number of GPUs that it needs."""

from dataclasses import dataclass

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.spec import AcceleratorSpec, ParallelismSpec, Toggle, VLLMDeploymentSpec
from vllm_operator.api.status import ConditionStatus
from vllm_operator.catalog.notes import Note
from vllm_operator.catalog.rules import Severity

COUNT_LIMIT = 64
"""Maximum number of GPUs of one replica. No machine has more."""


@dataclass(frozen=True, slots=True)
class ParallelShape:
    """Parallel sizes of one replica."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False

    def __str__(self) -> str:
        """Short form, such as `tp8` or `tp4-pp2-ep`. Sizes of 1 are omitted, except the tensor-parallel size."""
        sizes = [f"tp{self.tensor}", *(f"{name}{size}" for name, size in (("pp", self.pipeline), ("dp", self.data)) if size > 1)]
        return "-".join([*sizes, "ep"] if self.expert else sizes)


@dataclass(frozen=True, slots=True)
class Shape:
    """The parallel sizes and the number of GPUs (or MIG slices) of one replica."""

    parallel: ParallelShape
    count: int
    notes: tuple[Note, ...] = ()

    @property
    def shards(self) -> int:
        """Number of GPUs that one copy of the weights is spread over.

        Each data-parallel rank has a separate copy, except of the experts with expert parallelism.
        """
        spread = self.parallel.tensor * self.parallel.pipeline
        return spread * self.parallel.data if self.parallel.expert else spread


def resolve_shape(spec: VLLMDeploymentSpec) -> Shape | Verdict:
    """Return the parallel sizes and the number of GPUs, or a verdict if they contradict each other.

    If the user gives a number of GPUs and no tensor parallel size, the tensor parallel size is such that all GPUs are used.
    """
    given = spec.parallelism or ParallelismSpec()
    accelerator = spec.accelerator or AcceleratorSpec()
    pipeline, data = given.pipeline or 1, given.data or 1
    tensor = given.tensor
    notes: list[Note] = []
    if tensor is None:
        tensor = 1
        spare = (accelerator.count or 0) // (pipeline * data)
        if spare > 1 and not accelerator.sliced and spare * pipeline * data == accelerator.count:
            tensor = spare
            text = f"spec.parallelism.tensor is not set. The operator uses {tensor}, so that no GPU of spec.accelerator.count stays idle."
            notes.append(Note(Severity.INFO, text))
    needed = tensor * pipeline * data
    if accelerator.sliced and tensor * pipeline > 1:
        return _contradiction(
            "Tensor and pipeline parallelism do not work with MIG slices, which cannot access each other's memory. Set "
            "spec.parallelism.tensor and spec.parallelism.pipeline to 1 and raise spec.replicas, request a larger slice, or use whole GPUs."
        )
    if accelerator.count is not None and accelerator.count < needed:
        return _contradiction(
            f"spec.accelerator.count is {accelerator.count}, but spec.parallelism needs {needed} GPUs "
            f"(tensor {tensor} x pipeline {pipeline} x data {data}). Remove count, or lower the parallelism."
        )
    count = accelerator.count or needed
    if count > COUNT_LIMIT:
        return _contradiction(
            f"One replica would need {count} GPUs (tensor {tensor} x pipeline {pipeline} x data {data}). It runs in one Pod on one node, "
            f"with at most {COUNT_LIMIT} GPUs. Lower spec.parallelism. For more throughput, raise spec.replicas."
        )
    if count > needed:
        devices, more = ("GPUs", "parallelism") if not accelerator.sliced else ("MIG slices", "replicas")
        text = (
            f"spec.accelerator.count requests {count} {devices}, but each replica uses {needed}. {count - needed} "
            f"{'stays' if count - needed == 1 else 'stay'} idle. Remove count, or raise spec.{more}."
        )
        notes.append(Note(Severity.NO_EFFECT, text))
    parallel = ParallelShape(tensor=tensor, pipeline=pipeline, data=data, expert=given.expert is Toggle.ENABLED)
    return Shape(parallel, count, tuple(notes))


def _contradiction(message: str) -> Verdict:
    return Verdict(ConditionStatus.FALSE, Reason.INVALID_SPEC, message)

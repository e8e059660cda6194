"""How one replica is spread over its GPUs, and how many it needs."""

from dataclasses import dataclass

from vllm_operator.api.conditions import Reason
from vllm_operator.api.spec import AcceleratorSpec, ParallelismSpec, Toggle, VLLMDeploymentSpec
from vllm_operator.api.status import ConditionStatus
from vllm_operator.planning.outcome import Verdict

COUNT_LIMIT = 64
"""GPUs of one replica at most; no machine has more."""


@dataclass(frozen=True, slots=True)
class ParallelShape:
    """How one replica is spread over its GPUs."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False

    def __str__(self) -> str:
        """Short form, `tp8` or `tp4-pp2-ep`: sizes of one are left out, but for the tensor parallel size."""
        sizes = [f"tp{self.tensor}", *(f"{name}{size}" for name, size in (("pp", self.pipeline), ("dp", self.data)) if size > 1)]
        return "-".join([*sizes, "ep"] if self.expert else sizes)


@dataclass(frozen=True, slots=True)
class Shape:
    """The parallel sizes and the number of GPUs (or slices) of one replica."""

    parallel: ParallelShape
    count: int
    notes: tuple[str, ...] = ()

    @property
    def shards(self) -> int:
        """Number of GPUs that one copy of the weights is spread over, as far as it can be spread at all.

        Data-parallel ranks have a copy each, but for experts under expert parallelism.
        """
        spread = self.parallel.tensor * self.parallel.pipeline
        return spread * self.parallel.data if self.parallel.expert else spread


def resolve_shape(spec: VLLMDeploymentSpec) -> Shape | Verdict:
    """Work out the parallel sizes and the number of GPUs from each other.

    Where the user gives a number of GPUs and no tensor parallel size, all the GPUs are used: an engine with a
    tensor parallel size of one would leave the others idle.
    """
    given = spec.parallelism or ParallelismSpec()
    accelerator = spec.accelerator or AcceleratorSpec()
    pipeline, data = given.pipeline or 1, given.data or 1
    tensor, notes = given.tensor, []
    if tensor is None:
        tensor = 1
        spare = (accelerator.count or 0) // (pipeline * data)
        if spare > 1 and accelerator.mig is None and spare * pipeline * data == accelerator.count:
            tensor = spare
            notes.append(f"parallelism.tensor is not given: {tensor} is used, so that all {accelerator.count} GPUs of a replica work.")
    needed = tensor * pipeline * data
    if accelerator.mig is not None and tensor * pipeline > 1:
        return _contradiction(
            "Tensor and pipeline parallelism over MIG slices do not work: there is no peer-to-peer between slices. "
            "Set parallelism.tensor and parallelism.pipeline to 1 and raise replicas, take a larger slice, or use whole GPUs."
        )
    if accelerator.count is not None and accelerator.count < needed:
        return _contradiction(
            f"accelerator.count is {accelerator.count}, but parallelism needs {needed} GPUs "
            f"(tensor {tensor} x pipeline {pipeline} x data {data}). Leave count out, or lower the parallelism."
        )
    count = accelerator.count or needed
    if count > COUNT_LIMIT:
        return _contradiction(
            f"One replica would need {count} GPUs (tensor {tensor} x pipeline {pipeline} x data {data}), and runs in one Pod on one node: "
            f"at most {COUNT_LIMIT}. Lower the parallelism, and raise replicas for more throughput."
        )
    if count > needed:
        notes.append(
            f"accelerator.count asks for {count} GPUs, parallelism uses {needed}: {count - needed} stay idle. "
            "Leave count out, or raise the parallelism (with MIG slices: replicas)."
        )
    parallel = ParallelShape(tensor=tensor, pipeline=pipeline, data=data, expert=given.expert is Toggle.ENABLED)
    return Shape(parallel, count, tuple(notes))


def _contradiction(message: str) -> Verdict:
    return Verdict(ConditionStatus.FALSE, Reason.INVALID_SPEC, message)

"""The GPUs that are large enough, and the number of GPUs of a replica.

Each GPU of the cluster is judged with the estimate of `sizing`. Without a size in the spec, the smallest number of GPUs of one node that
fits the model with a useful context is chosen. Among GPUs that fit, the one with the least memory is chosen.

Each Pod of a GPU with time-slicing sees the memory of the whole GPU, and no mechanism limits it to its part
(https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-sharing.html). vLLM uses the fraction of the memory in
`--gpu-memory-utilization`, so the operator sets this flag to the part of one Pod. MPS limits the memory of each Pod; how vLLM sees this
limit is unknown, so such GPUs are used only if the spec names them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from vllm_operator.api.conditions import Verdict
from vllm_operator.api.plan import PlannedArgument
from vllm_operator.api.spec import Quantization, VLLMDeploymentSpec
from vllm_operator.catalog.gpus import GPUs, Images
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.memory import MemoryFacts, value_at
from vllm_operator.catalog.notes import Note
from vllm_operator.catalog.rules import Severity
from vllm_operator.catalog.versions import Release, parse_release
from vllm_operator.inventory.pools import Inventory, Pool
from vllm_operator.planning.engine.adapters import active_adapters, highest_rank
from vllm_operator.planning.engine.overrides import Overrides
from vllm_operator.planning.placement.targets import InUse, Request, Target, capacity_for, find_targets, in_use_of, with_count
from vllm_operator.sizing.engine import Options, read_flags, read_runner
from vllm_operator.sizing.estimate import Estimate, Prediction
from vllm_operator.sizing.formats import name_format
from vllm_operator.sizing.model_facts import FROM_SPEC, FROM_WEIGHTS, ModelFiles, ResolvedFacts, model_name
from vllm_operator.sizing.parallelism import ParallelShape, Shape, smallest_sizes
from vllm_operator.sizing.resolve import SizedModel, device_of, predict_model, resolve_model

FLAG = "--gpu-memory-utilization"
MIB_PER_GIB = 1024


def time_slice_utilization(pool: Pool, facts: MemoryFacts, release: Release) -> float | None:
    """Return the fraction of a GPU's memory for one engine, as the value of the flag; None if Pods do not share the GPU.

    The CUDA context of each engine lies outside of its budget.
    """
    if pool.time_slices is None:
        return None
    context = facts.context_gib * MIB_PER_GIB / pool.memory_mebibytes if pool.memory_mebibytes else 0.0
    part = min(value_at(facts.utilization, release) / pool.time_slices, 1 / pool.time_slices - context)
    return max(math.floor(part * 100) / 100, 0.01)


def time_slicing_arguments(pool: Pool, facts: MemoryFacts, version: str | None) -> list[PlannedArgument]:
    """Return the flag that limits an engine to its part of a GPU."""
    release = parse_release(version or "")
    part = time_slice_utilization(pool, facts, release) if release is not None else None
    if part is None:
        return []
    reason = f"{pool.time_slices} Pods share each GPU by time-slicing. This is the part of one of them."
    return [PlannedArgument(name=FLAG, value=f"{part:g}", reason=reason)]


def time_slicing_notes(target: Target) -> list[Note]:
    """Return a note that the memory of a shared GPU is not isolated, with the user's options."""
    pool = target.pool
    if not pool.shared:
        return []
    if pool.time_slices is not None:
        text = (
            f"Up to {pool.time_slices} Pods share each {target.title} by time-slicing, and nothing isolates their memory: each engine "
            f"must take only its part, which {FLAG} sets. If another Pod takes more than its own, the engine may not start, or run out of "
            "memory. To use only whole GPUs and MIG slices, set spec.accelerator.products to their products."
        )
    else:
        text = (
            f"Pods share each {target.title}, and how much of its memory is left for the engine is unknown. Set {FLAG} to the part "
            "that the engine may take."
        )
    return [Note(Severity.RISK, text)]


USEFUL_CONTEXT, LEAST_CONTEXT = 32_768, 4_096
"""Minimum tokens of a context that is shortened to fit. The smaller minimum applies only if no number of GPUs allows the larger one."""
ROUNDED_TO = 1024
SMALLER_FORMATS = (("fp8", "an FP8"), ("awq", "a 4-bit"))
NO_FP8 = ("sm_70", "sm_75")
"""Architectures without a kernel for weights in FP8."""

FORMATS = {
    Quantization.BF16: "bf16",
    Quantization.FP16: "fp16",
    Quantization.FP8: "fp8",
    Quantization.FP8_BLOCK: "fp8_block",
    Quantization.NVFP4: "nvfp4",
    Quantization.MXFP4: "mxfp4",
    Quantization.MXFP8: "mxfp8",
    Quantization.INT4: "awq",
    Quantization.INT8: "int8",
}
"""Formats of weights, by the name for `name_format`."""


class Headroom(IntEnum):
    """How well a model fits, the best first."""

    WHOLE = 0
    SHORTENED = 1
    FEW = 2
    """The engine starts, but its KV cache holds fewer requests than wanted."""
    SHORT = 3
    TIGHT = 4
    UNKNOWN = 5
    NONE = 6


@dataclass(frozen=True, slots=True)
class FitResult:
    """The expected fit of a model on a GPU.

    `length` is the context to set; None for the model's or user's value. `held`: number of requests of `Sizing.request_length` in the KV
    cache; None if the spec wants no number.
    """

    headroom: Headroom
    made: Estimate
    length: int | None = None
    held: float | None = None


UNKNOWN = FitResult(Headroom.UNKNOWN, Estimate(Prediction.UNKNOWN, ""))
"""The memory of the model is unknown."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """Common inputs of the estimates of one VLLMDeployment.

    Attributes:
        model: Known facts about the model; None if its sizes are unknown.
        options: The user's flags; None if one has an effect that is not modelled.
        release: The vLLM version.
        facts: The constants.
        gpus: The table of GPUs.
        images: The images of the catalog.
        concurrency: Number of concurrent requests that the KV cache should hold.
    """

    model: SizedModel | None
    options: Options | None
    release: Release
    facts: MemoryFacts
    gpus: GPUs
    images: Images
    concurrency: int = 1
    _weighed: dict[tuple[ParallelShape, str | None], float | None] = field(default_factory=dict, compare=False, repr=False)

    @property
    def certain(self) -> bool:
        """Whether a model that does not fit may be refused: its size comes from its files or the table, without assumptions."""
        if self.model is None or self.model.form.assumed:
            return False
        return self.model.checkpoint_bytes is not None or self.model.known is not None

    def judge(self, pool: Pool, parallel: ParallelShape) -> FitResult:
        """Estimate the model on one GPU of a pool."""
        options = self.options
        if self.model is None or options is None or (pool.mig_profile is not None and pool.memory_mebibytes is None):
            return UNKNOWN
        if pool.shared and options.utilization is None:
            part = time_slice_utilization(pool, self.facts, self.release)
            if part is None:
                return UNKNOWN
            options = replace(options, utilization=part)
        made = self._estimate(pool, parallel, options)
        if made.prediction is Prediction.STARTED:
            return self._with_requests(FitResult(Headroom.WHOLE, made), pool, parallel, options)
        length = (made.comfortable or 0) // ROUNDED_TO * ROUNDED_TO
        if options.max_length is None and made.prediction is not Prediction.UNKNOWN and length >= LEAST_CONTEXT:
            shorter = self._estimate(pool, parallel, replace(options, max_length=length))
            if shorter.prediction is Prediction.STARTED and length < USEFUL_CONTEXT:
                return FitResult(Headroom.SHORT, shorter, length)
            if shorter.prediction is Prediction.STARTED:
                return self._with_requests(FitResult(Headroom.SHORTENED, shorter, length), pool, parallel, options)
        headrooms = {Prediction.TIGHT: Headroom.TIGHT, Prediction.UNKNOWN: Headroom.UNKNOWN}
        return FitResult(headrooms.get(made.prediction, Headroom.NONE), made)

    @property
    def request_length(self) -> int:
        """Tokens of the counted requests: the context in the spec, or a useful part of the model's context."""
        own = self.model.shape.max_length if self.model is not None else None
        wanted = self.options.max_length if self.options is not None else None
        return wanted or min(own or USEFUL_CONTEXT, USEFUL_CONTEXT)

    def _with_requests(self, result: FitResult, pool: Pool, parallel: ParallelShape, options: Options) -> FitResult:
        """Add the number of requests in the KV cache, if the spec wants a number."""
        if self.concurrency <= 1:
            return result
        made = result.made
        if made.max_length != self.request_length:
            made = self._estimate(pool, parallel, replace(options, max_length=self.request_length))
        few = made.concurrency is not None and made.concurrency < self.concurrency
        return replace(result, headroom=Headroom.FEW if few else result.headroom, held=made.concurrency)

    def holds(self, pool: Pool) -> bool | None:
        """Return whether one GPU or MIG slice of a pool is sufficient; None if unknown."""
        headroom = self.judge(pool, ParallelShape()).headroom
        return None if headroom is Headroom.UNKNOWN else headroom <= Headroom.SHORT

    def shapes(self, most: int) -> list[Shape]:
        """Return the sizes to choose from, with at most this many GPUs of one node."""
        if self.model is None:
            return []
        return [Shape(parallel, parallel.tensor) for parallel in smallest_sizes(self.model.shape, self.model.form, most)]

    def smaller_format(self, pool: Pool, parallel: ParallelShape) -> str | None:
        """Return a format of the weights, with its article, in which the model would fit on these GPUs; None if there is none."""
        for label, name in SMALLER_FORMATS if self.model is not None else ():
            form = name_format(label, self.model.shape) if self.model is not None else None
            if self.model is None or form is None or form.size >= self.model.form.size or (label == "fp8" and pool.architecture in NO_FP8):
                continue
            other = replace(self, model=replace(self.model, form=form, label=label, checkpoint_bytes=None), _weighed={})
            if other.judge(pool, parallel).headroom <= Headroom.SHORT:
                return name
        return None

    def _estimate(self, pool: Pool, parallel: ParallelShape, options: Options) -> Estimate:
        assert self.model is not None  # checked in `judge`
        device = device_of(self.gpus.product(pool.product), pool.architecture, pool.memory_mebibytes, self.gpus, self.facts)
        key = (parallel, pool.architecture)
        made = predict_model(self.model, parallel, device, replace(options, weights_gib=self._weighed.get(key)), self.facts, self.release)
        self._weighed[key] = (made.weights or 0.0) + options.offload_gib  # equal on every GPU of an architecture
        return made

    def is_native(self, pool: Pool) -> bool:
        """Return whether a GPU computes in the format of the weights."""
        family, name = self.gpus.architectures.get(pool.architecture or ""), self.model.form.name if self.model else ""
        if family is None:
            return False
        return family.fp4 if "FP4" in name else family.fp8 if "FP8" in name else True


def resolve_sizing(
    spec: VLLMDeploymentSpec,
    overrides: Overrides,
    release: Release,
    facts: ResolvedFacts,
    files: ModelFiles,
    catalog: Catalog,
) -> Sizing:
    """Collect the inputs of the estimates for a spec.

    Args:
        spec: The spec of the VLLMDeployment.
        overrides: The flags and variables of the user.
        release: The vLLM version.
        facts: Known facts about the model.
        files: The model's files.
        catalog: The catalog.
    """
    arguments, read = overrides.arguments, read_flags(overrides.arguments)
    active, rank = active_adapters(spec), highest_rank(spec, files.adapters)
    asked = None if read is None else replace(read, runner_v2=read_runner(overrides.variables))
    if asked is not None and active:  # the flags for adapters come from spec.adapters
        asked = replace(asked, adapters=active, adapter_rank=rank)
    config, label = files.config, arguments.get("--quantization") or ""
    if not label and config is None and facts.quantization is not None:
        label = FORMATS[facts.quantization]
    given = facts.weight_bytes if facts.sources.get("weight_bytes") in (FROM_SPEC, FROM_WEIGHTS) else None
    size = None if "--quantization" in arguments else given
    name = model_name(spec.model)
    model = resolve_model(name, catalog.shapes, config=config, checkpoint_bytes=size, label=label, tensors=files.tensors)
    concurrency = (spec.sizing.concurrency if spec.sizing else None) or 1
    sizing = Sizing(model, asked, release, catalog.memory, catalog.gpus, catalog.images, concurrency)
    length = wanted_length(spec, sizing)
    if sizing.options is None or length is None or "--max-model-len" in arguments:
        return sizing
    return replace(sizing, options=replace(sizing.options, max_length=length))


def wanted_length(spec: VLLMDeploymentSpec, sizing: Sizing | None) -> int | None:
    """Return the context in the spec, limited to the model's context."""
    wanted = spec.sizing.context_length if spec.sizing else None
    own = sizing.model.shape.max_length if sizing is not None and sizing.model is not None else None
    return wanted if wanted is None or own is None else min(wanted, own)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GPU and a size."""

    shape: Shape
    target: Target
    result: FitResult


def find_candidates(
    request: Request, shapes: Iterable[Shape], sizing: Sizing, inventory: Inventory, *, in_use: int | None = None
) -> list[Candidate]:
    """Return judged candidates for each size and each GPU that can run it: for each size the GPUs in the order of `find_targets`.

    Args:
        request: Requirements of a replica, except the number of GPUs.
        shapes: Sizes in ascending order.
        sizing: The inputs of the estimates.
        inventory: The GPUs of the cluster.
        in_use: The number of GPUs in use. Larger sizes of a kind of GPU are omitted if a smaller one fits.
    """
    found: list[Candidate] = []
    done: set[Pool] = set()
    capacity, request = capacity_for(request, inventory), replace(request, weight_bytes=None)  # the estimate is more exact
    targets: tuple[Target, ...] | Verdict | None = None
    for shape in shapes:
        if targets is None:  # a GPU that can run a larger size can run the smallest
            targets = find_targets(replace(request, count=shape.count), inventory, sizing.gpus, sizing.images)
        if isinstance(targets, Verdict):
            break
        for each in targets:
            sliced = each.pool.mig_profile is not None and not request.accelerator.sliced
            alone = sliced or (each.pool.shared and shape.count != request.count)
            if each.pool.count < shape.count or each.pool in done or (alone and shape.count > 1):
                continue
            target = each if each.count == shape.count else with_count(each, shape.count, request, inventory, capacity)
            result = sizing.judge(target.pool, shape.parallel)
            found.append(Candidate(shape, target, result))
            if result.headroom <= Headroom.SHORTENED and shape.count >= (in_use or 1):
                done.add(target.pool)
    return found


def find_others(request: Request, sizing: Sizing, inventory: Inventory) -> list[Candidate]:
    """Return all sizes and GPUs of the cluster, including those that the spec does not allow."""
    unlimited = {"architectures": None, "products": None, "count": None, "mig": None, "uuids": None}
    accelerator = request.accelerator.model_copy(update=unlimited)
    whole = replace(request, accelerator=accelerator, preferred=None)
    return find_candidates(whole, sizing.shapes(most_gpus(inventory)), sizing, inventory)


def most_gpus(inventory: Inventory) -> int:
    """Return the largest number of whole GPUs on a node."""
    return max((pool.count for pool in inventory.pools if pool.mig_profile is None), default=1)


def choose(
    candidates: Sequence[Candidate],
    sizing: Sizing,
    preferred: InUse | None,
    preferred_count: int | None,
    *,
    ordered: bool,
) -> list[Candidate]:
    """Return the candidates of the size to use, the best GPU first.

    Args:
        candidates: All candidates: sizes in ascending order, and in each the GPUs in the order of `find_targets`.
        sizing: The inputs of the estimates.
        preferred: The GPU in use, which is kept if the model fits on it.
        preferred_count: The number of GPUs in use, which is kept too.
        ordered: Whether to keep the order, because the user gives one or the sizes are unknown.
    """
    own = in_use(candidates, preferred, preferred_count)
    for group in (own, candidates):
        for headrooms in ((Headroom.WHOLE, Headroom.SHORTENED), (Headroom.FEW,), (Headroom.SHORT,), (Headroom.TIGHT,), (Headroom.UNKNOWN,)):
            fitting = nearest([each for each in group if each.result.headroom in headrooms])
            if not fitting or (group is own and Headroom.UNKNOWN in headrooms):
                continue
            # No size holds as many requests as wanted, so use the one that holds the most.
            first = max(fitting, key=lambda each: each.result.held or 0) if Headroom.FEW in headrooms else fitting[0]
            same = [each for each in group if each.shape == first.shape]
            best = [each for each in same if each.result.headroom in headrooms]
            rest = [each for each in candidates if each.shape == first.shape and each not in best]
            if not ordered and Headroom.UNKNOWN not in headrooms:
                best.sort(key=lambda each: size_of(each, sizing))
            else:
                best.sort(key=lambda each: each.target.rank)
            return [*best, *rest]
    largest = candidates[-1].shape
    return [each for each in candidates if each.shape == largest]


def nearest(candidates: list[Candidate]) -> list[Candidate]:
    """Return the candidates with the best (lowest) rank."""
    lowest = min((each.target.rank for each in candidates), default=0)
    return [each for each in candidates if each.target.rank == lowest]


def in_use(candidates: Iterable[Candidate], preferred: InUse | None, preferred_count: int | None) -> list[Candidate]:
    """Return the GPUs in use, in the number in use."""
    own = (each for each in candidates if preferred == in_use_of(each.target.pool))
    return [each for each in own if each.shape.count == preferred_count]


def size_of(candidate: Candidate, sizing: Sizing) -> tuple[object, ...]:
    """Return the sort key of a GPU among candidates with an equal number of GPUs: the smallest first."""
    pool = candidate.target.pool
    family = sizing.gpus.architectures.get(pool.architecture or "")
    unified = family is None or family.unified_memory
    linked = has_nvlink(pool, sizing.gpus) == (candidate.shape.count > 1)  # a single GPU needs no NVLink and leaves it to others
    place = (unified, not sizing.is_native(pool), pool.memory_mebibytes or 0, not linked, not candidate.target.fit.clean)
    return (candidate.target.rank, *place, pool.provider is None)  # a new node is preferred to waiting for an equal GPU


def has_nvlink(pool: Pool, gpus: GPUs) -> bool:
    """Return whether NVLink joins the GPUs of a machine, according to their product. MIG slices have no links."""
    product = gpus.product(pool.product)
    return product is not None and product.links == "NVLink" and pool.mig_profile is None

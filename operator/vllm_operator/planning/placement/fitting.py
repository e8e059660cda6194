"""How well a model fits on a GPU: the estimate of `sizing`, with the context and the number of requests that the spec wants.

Each Pod of a GPU with time-slicing sees the memory of the whole GPU, and no mechanism limits it to its part
(https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-sharing.html). vLLM uses the fraction of the memory in
`--gpu-memory-utilization`, so the operator sets this flag to the part of one Pod. MPS limits the memory of each Pod; how vLLM sees this
limit is unknown, so such GPUs are used only if the spec names them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from vllm_operator.api.plan import PlannedArgument
from vllm_operator.api.spec import ModelSpec, Quantization, VLLMDeploymentSpec
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.memory import MemoryFacts, value_at
from vllm_operator.catalog.models import read_billions
from vllm_operator.catalog.versions import Release, parse_release
from vllm_operator.inventory.pools import Inventory, Pool
from vllm_operator.planning.engine.adapters import active_adapters, highest_rank
from vllm_operator.planning.engine.overrides import Overrides
from vllm_operator.sizing.engine import MIB_PER_GIB, Options, read_flags, read_limits, read_runner
from vllm_operator.sizing.estimate import Estimate, Prediction
from vllm_operator.sizing.formats import name_format
from vllm_operator.sizing.model_facts import FROM_SPEC, FROM_WEIGHTS, ModelFiles, ResolvedFacts, model_name
from vllm_operator.sizing.parallelism import MAX_NODES, TENSOR_SIZES, ParallelShape, Shape, sizes_over_nodes, smallest_sizes
from vllm_operator.sizing.resolve import SizedModel, device_of, predict_model, refuse_start, resolve_model

UTILIZATION_FLAG = "--gpu-memory-utilization"
USEFUL_CONTEXT, LEAST_CONTEXT = 32_768, 4_096
"""Minimum tokens of a context that is shortened to fit. The smaller minimum applies only if no number of GPUs allows the larger one."""
ROUNDED_TO = 1024
ROOM_FOR_WEIGHTS = 0.75  # maximum part of a GPU's memory for the weights of a model of otherwise unknown sizes
SMALLER_FORMATS = (("fp8", "an FP8"), ("awq", "a 4-bit"))
NO_FP8 = ("sm_70", "sm_75")
"""Architectures without a kernel for weights in FP8."""
FORMATS = {each: each.name.lower() for each in Quantization} | {Quantization.INT4: "awq"}
"""Formats of weights, by the name for `name_format`."""
SAME_SIZE = 0.15
"""Maximum relative difference of two sizes that count as equal. The volume has room for more."""


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
    """The expected fit. `length` is the context to set; `held` how many requests of `Sizing.request_length` the KV cache holds."""

    headroom: Headroom
    made: Estimate
    length: int | None = None
    held: float | None = None


UNKNOWN = FitResult(Headroom.UNKNOWN, Estimate(Prediction.UNKNOWN, ""))
"""The memory of the model is unknown."""


def longest_context(made: Estimate) -> int:
    """Return the longest context that fits, in tokens; 0 if it is too short to be useful."""
    length = (made.comfortable or 0) // ROUNDED_TO * ROUNDED_TO
    return length if length >= LEAST_CONTEXT else 0


@dataclass(frozen=True, slots=True)
class Sizing:
    """Common inputs of the estimates of one VLLMDeployment.

    `model` is None if its sizes are unknown. `options` are the user's flags; None if one has an effect that is not modelled.
    `concurrency` is the number of concurrent requests that the KV cache should hold. `is_read`: whether the model was looked up at all.
    `limits` are the flags that vLLM compares with the model's configuration; None if these change it.
    """

    model: SizedModel | None
    options: Options | None
    release: Release
    catalog: Catalog
    concurrency: int = 1
    is_read: bool = True
    limits: Options | None = None

    def refuse(self, parallel: ParallelShape, architecture: str | None = None) -> str | None:
        """Return `refuse_start` for the model; None if it is unknown."""
        if self.model is None or self.limits is None:
            return None
        return refuse_start(self.model, parallel, self.limits, self.release, architecture)

    def lacks_room(self, results: Sequence[FitResult]) -> bool:
        """Return whether the KV cache surely holds fewer requests than wanted in each of these fits."""
        held = [0.0 if each.headroom is Headroom.NONE else each.held for each in results]
        known = self.model is not None and not self.model.form.assumed
        return known and any(held) and all(each is not None and each < self.concurrency for each in held)

    @property
    def can_judge(self) -> bool:
        """Whether the memory of an engine can be estimated: the sizes of the model and the effects of all flags are known."""
        return self.model is not None and self.options is not None

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
            part = time_slice_utilization(pool, self.catalog.memory, self.release)
            if part is None:
                return UNKNOWN
            options = replace(options, utilization=part)
        made = self._estimate(pool, parallel, options)
        if made.prediction is Prediction.STARTED:
            return self._with_requests(FitResult(Headroom.WHOLE, made), pool, parallel, options)
        length = longest_context(made)
        if options.max_length is None and made.prediction is not Prediction.UNKNOWN and length:
            shorter = self._estimate(pool, parallel, replace(options, max_length=length))
            if shorter.prediction is Prediction.STARTED:
                headroom = Headroom.SHORT if length < USEFUL_CONTEXT else Headroom.SHORTENED
                return self._with_requests(FitResult(headroom, shorter, length), pool, parallel, options)
        if made.prediction is Prediction.TIGHT:
            return self._with_requests(FitResult(Headroom.TIGHT, made), pool, parallel, options)
        return FitResult(Headroom.UNKNOWN if made.prediction is Prediction.UNKNOWN else Headroom.NONE, made)

    @property
    def request_length(self) -> int:
        """Tokens of the counted requests: the context in the spec, or a useful part of the model's context."""
        own = self.model.shape.max_length if self.model is not None else None
        wanted = self.options.max_length if self.options is not None else None
        return wanted or min(own or USEFUL_CONTEXT, USEFUL_CONTEXT)

    def _with_requests(self, result: FitResult, pool: Pool, parallel: ParallelShape, options: Options) -> FitResult:
        if self.concurrency <= 1:
            return result
        made = result.made
        if made.max_length != self.request_length:
            made = self._estimate(pool, parallel, replace(options, max_length=self.request_length))
        few = made.concurrency is not None and made.concurrency < self.concurrency
        return replace(result, headroom=max(Headroom.FEW, result.headroom) if few else result.headroom, held=made.concurrency)

    def may_run(self, pool: Pool, parallel: ParallelShape) -> bool:
        """Return whether vLLM accepts this size and it fits, as far as that is known: only then is it suggested."""
        headroom = self.judge(pool, parallel).headroom
        return self.refuse(parallel, pool.architecture) is None and (headroom is Headroom.UNKNOWN or headroom <= Headroom.SHORT)

    def holds(self, pool: Pool) -> bool | None:
        """Return whether one GPU or MIG slice of a pool is sufficient; None if unknown."""
        headroom = self.judge(pool, ParallelShape()).headroom
        return None if headroom is Headroom.UNKNOWN else headroom <= Headroom.SHORT

    def shapes(self, inventory: Inventory, *, any_model: bool = False) -> list[Shape]:
        """Return the sizes to choose from, with whole GPUs of one node. For an unknown model, none, or with `any_model` the usual ones."""
        if self.model is None and not any_model:
            return []
        context = self.limits.context_parallel if self.limits is not None else 1
        most = max((pool.count for pool in inventory.pools if pool.mig_profile is None), default=1)
        if self.model is None:
            return [Shape(ParallelShape(tensor), tensor) for tensor in TENSOR_SIZES if tensor <= most]
        return [Shape(parallel, parallel.tensor) for parallel in smallest_sizes(self.model.shape, self.model.form, most, context)]

    def shapes_over_nodes(self, inventory: Inventory, nodes: int | None = None) -> list[Shape]:
        """Return the sizes with all GPUs of several nodes of a pool, in ascending order; with `nodes`, only of this number of nodes."""
        if self.model is None:
            return []
        counts = {pool.count for pool in inventory.pools if pool.mig_profile is None and pool.count in TENSOR_SIZES}
        numbers = range(2, MAX_NODES + 1) if nodes is None else [nodes]
        pairs = [(count, number) for count in counts for number in numbers]
        sizes = [(pair, sizes_over_nodes(self.model.shape, self.model.form, *pair)) for pair in pairs]
        found = [Shape(parallel, count, nodes=number) for (count, number), parallel in sizes if parallel is not None]
        return sorted(found, key=lambda each: (each.count * each.nodes, each.nodes))

    def context_that_fits(self, pool: Pool, parallel: ParallelShape) -> str | None:
        """Return with which context the model fits on these GPUs, as a clause: empty with all of it. None if it does not fit."""
        result = self.judge(pool, parallel)
        shorter = f", with a context of {result.length} tokens" if result.length is not None else ""
        return shorter if result.headroom <= Headroom.SHORT else None

    def smaller_format(self, pool: Pool, parallel: ParallelShape) -> tuple[str, str] | None:
        """Return a format of the weights in which the model fits on these GPUs, with its article, and `context_that_fits`; None if none."""
        if self.model is None:
            return None
        for label, name in SMALLER_FORMATS:
            form = name_format(label, self.model.shape)
            if form is None or form.size >= self.model.form.size or (label == "fp8" and pool.architecture in NO_FP8):
                continue
            smaller = replace(self, model=replace(self.model, form=form, label=label, checkpoint_bytes=None))
            if (context := smaller.context_that_fits(pool, parallel)) is not None:
                return name, context
        return None

    def _estimate(self, pool: Pool, parallel: ParallelShape, options: Options) -> Estimate:
        assert self.model is not None  # checked in `judge`
        gpus, facts = self.catalog.gpus, self.catalog.memory
        device = device_of(gpus.product(pool.product), pool.architecture, pool.memory_mebibytes, gpus, facts)
        return predict_model(self.model, parallel, device, options, facts, self.release)

    def is_native(self, pool: Pool) -> bool:
        """Return whether a GPU computes in the format of the weights."""
        family, name = self.catalog.gpus.architectures.get(pool.architecture or ""), self.model.form.name if self.model else ""
        if family is None:
            return False
        return family.fp4 if "FP4" in name else family.fp8 if "FP8" in name else True


def time_slice_utilization(pool: Pool, facts: MemoryFacts, release: Release) -> float | None:
    """Return an engine's part of a shared GPU's memory as a fraction, less its CUDA context; None without time-slicing."""
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
    return [PlannedArgument(name=UTILIZATION_FLAG, value=f"{part:g}", reason=reason)]


def resolve_sizing(
    spec: VLLMDeploymentSpec, overrides: Overrides, release: Release, facts: ResolvedFacts, files: ModelFiles, catalog: Catalog
) -> Sizing:
    """Collect the inputs of the estimates for a spec, the settings of the user, a vLLM version, and a model."""
    arguments, options = overrides.arguments, read_flags(overrides.arguments)
    active, rank = active_adapters(spec), highest_rank(spec, files.adapters)
    if options is not None:
        options = replace(options, runner_v2=read_runner(overrides.variables))
    if options is not None and active:  # the flags for adapters come from spec.adapters
        options = replace(options, adapters=active, adapter_rank=rank)
    label = arguments.get("--quantization") or _label(facts, files)
    stated = "--quantization" not in arguments and facts.sources.get("weight_bytes") in (FROM_SPEC, FROM_WEIGHTS)
    size, name = facts.weight_bytes if stated else None, model_name(spec.model)
    model = resolve_model(name, catalog.shapes, config=files.config, checkpoint_bytes=size, label=label, tensors=files.tensors)
    length = spec.sizing.context_length if spec.sizing else None
    if options is not None and length is not None and "--max-model-len" not in arguments:
        options = replace(options, max_length=length)
    concurrency = (spec.sizing.concurrency if spec.sizing else None) or 1
    return Sizing(model, options, release, catalog, concurrency, limits=read_limits(arguments, overrides.variables, length))


def weight_bytes_of(model: ModelSpec, facts: ResolvedFacts, files: ModelFiles, catalog: Catalog, sized: SizedModel | None) -> int | None:
    """Return the size of the weight files: from the spec or the files, else that of the estimates or by the name; None if unknown.

    The size by the number of parameters of the family counts if it is about equal, so that volumes keep their sizes. `sized` is the model
    of the estimates, if it is known in the format of its files.
    """
    known = facts.weight_bytes
    if facts.sources.get("weight_bytes") in (FROM_SPEC, FROM_WEIGHTS):
        return known
    if known is None and facts.quantization is None and (billions := read_billions(model_name(model))):
        known = int(billions * 2e9)  # 16 bits for each parameter: no usual format has more
    if sized is None:
        sized = resolve_model(model_name(model), catalog.shapes, config=files.config, label=_label(facts, files))
    if sized is None or (known is not None and abs(known - sized.file_bytes) <= SAME_SIZE * sized.file_bytes):
        return known
    return sized.file_bytes


def _label(facts: ResolvedFacts, files: ModelFiles) -> str:
    """Return the format of the weights by the facts, which counts only without a config.json."""
    return FORMATS[facts.quantization] if files.config is None and facts.quantization is not None else ""

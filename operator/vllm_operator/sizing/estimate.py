"""The estimate: whether an engine starts on a GPU, and the size of its KV cache.

    KV cache = utilization x total - weights - activation peak - outside of PyTorch - CUDA graphs

on the fullest GPU. The engine refuses to start if nothing is left, or if one request of the maximum length does not fit.
Source: vllm/v1/worker/gpu_worker.py determine_available_memory, 0.11.0 to 0.33.0.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from vllm_operator.api.plan import PlannedMemory
from vllm_operator.catalog.memory import MemoryFacts, value_at
from vllm_operator.catalog.versions import Release
from vllm_operator.sizing.formats import WeightFormat
from vllm_operator.sizing.kv_cache import CacheLayout, CacheOptions, find_cache_type, is_modelled, lay_out
from vllm_operator.sizing.model_shape import ModelShape
from vllm_operator.sizing.overhead import (
    GIB,
    Batch,
    Run,
    activation_bytes,
    default_batch,
    graph_bytes,
    has_runner_v2,
    has_shared_workspace,
    non_torch_bytes,
    reduction_bytes,
    steps_in_flight,
)
from vllm_operator.sizing.parallelism import ParallelShape
from vllm_operator.sizing.weights import adapter_bytes, buffer_bytes, eagle_bytes, stage_layers, weigh_stages

MIB_PER_GIB = 1024


class Prediction(StrEnum):
    """Predicted outcome of a start."""

    STARTED = "started"
    TIGHT = "tight"
    REFUSED = "refused"
    OUT_OF_MEMORY = "oom"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: memory that CUDA reports, in GiB; None if unknown. `unified`: host and GPU share it."""

    memory_gib: float | None
    architecture: str | None = None
    title: str = ""
    unified: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """Flags of the engine that affect memory. None is vLLM's default.

    `max_length` 0 is `--max-model-len auto`. `weights_gib` are the measured weights on one GPU, including adapters. `partition` are the
    layers of each pipeline stage (VLLM_PP_LAYER_PARTITION), `stage_gib` the memory of their GPUs if they differ. `runner_v2` is the value
    of VLLM_USE_V2_MODEL_RUNNER. `more_gib` is the memory, except weights and KV cache, that an earlier start used beyond the estimate.
    `adapters` is the number of LoRA adapters in a batch, with ranks up to `adapter_rank`. `fused_reduction` and `profiled_encoder` are
    false if flags turn fuse_allreduce_rms or the profiling of the encoder off.
    """

    utilization: float | None = None
    max_length: int | None = None
    sequences: int | None = None
    batched_tokens: int | None = None
    cache_dtype: str = "auto"
    eager: bool = False
    offload_gib: float = 0.0
    speculative: int = 0
    own_draft_layers: bool = False
    eagle: bool = False
    separate_draft_layers: int = 0
    vision: bool = True
    profiled_encoder: bool = True
    prefix_caching: bool | None = None
    context_parallel: int = 1
    block: int | None = None
    weights_gib: float | None = None
    checkpoint_bytes: int | None = None
    cache_bytes: int | None = None
    partition: tuple[int, ...] = ()
    stage_gib: tuple[float, ...] = ()
    runner_v2: bool | None = None
    adapters: int = 0
    adapter_rank: int = 0
    fused_reduction: bool = True

    @property
    def drafts_without_model(self) -> bool:
        """Whether drafts come from n-gram or suffix matching."""
        return self.speculative > 0 and not (self.own_draft_layers or self.eagle or self.separate_draft_layers)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The memory of the fullest GPU in GiB. None: unknown.

    Attributes:
        kv_cache: Memory for the KV cache; negative if the rest does not fit.
        kv_needed: Memory for one request of the maximum length.
        tokens: Tokens in the KV cache, as vLLM logs them.
        longest: The longest context that fits.
        comfortable: The longest context that leaves the margin free.
        concurrency: Requests of the maximum length at a time.
        limit: The deciding limit, as a sentence.
    """

    prediction: Prediction
    limit: str
    weights: float | None = None
    activation: float | None = None
    other: float | None = None
    graphs: float | None = None
    budget: float | None = None
    kv_cache: float | None = None
    kv_needed: float | None = None
    tokens: int | None = None
    longest: int | None = None
    max_length: int | None = None
    concurrency: float | None = None
    comfortable: int | None = None


def estimate(
    shape: ModelShape,
    form: WeightFormat,
    device: Device,
    parallel: ParallelShape,
    options: Options,
    facts: MemoryFacts,
    release: Release,
) -> Estimate:
    """Estimate the memory of an engine.

    Args:
        shape: The model.
        form: Bytes per element of its weights.
        device: The GPU. All GPUs of the engine are equal.
        parallel: The sizes of the engine.
        options: Its flags.
        facts: The constants.
        release: The vLLM version.
    """
    weights = _weights_by_stage(shape, form, device, parallel, options, facts, release)
    if device.memory_gib is None:
        return Estimate(Prediction.UNKNOWN, "The memory of the GPU is unknown.", weights=max(weights))
    usual = shape.usual_length if release >= facts.kv_cache.original_length_since else None
    max_length = options.max_length or usual or shape.max_length
    if max_length is None:
        return Estimate(Prediction.UNKNOWN, "The maximum context of the model is unknown. Give --max-model-len.", weights=max(weights))
    utilization = options.utilization if options.utilization is not None else value_at(facts.utilization, release)
    batch = _batch(shape, device, device.memory_gib, options, max_length, facts, release)
    if options.weights_gib is None:
        weights = [held + buffer_bytes(shape, batch.tokens) / GIB for held in weights]
    layers = stage_layers(shape.layers, parallel.pipeline, options.partition)
    memory = options.stage_gib if len(options.stage_gib) == parallel.pipeline else (device.memory_gib,) * parallel.pipeline
    v2 = has_runner_v2(shape, form.quantized, options.runner_v2, options.drafts_without_model, facts, release)
    counts_graphs = release >= (facts.model_runner_v2.graphs_counted_since if v2 else facts.graphs.counted_since)
    steps = steps_in_flight(v2, parallel.pipeline, options.drafts_without_model) if release >= facts.kv_cache.steps_in_flight_since else 1
    cache = _cache_options(shape, form, device, options, steps * batch.tokens, facts, release)
    found: list[tuple[float, int, _Parts]] = []
    for stage, total in enumerate(memory):
        run = Run(
            batch,
            max_length,
            eager=options.eager,
            speculative=options.speculative > 0,
            vision=options.vision and options.profiled_encoder,
            first=stage == 0,
            last=stage == parallel.pipeline - 1,
            v2=v2,
            shared=shape.experts > 0 and has_shared_workspace(form, device.architecture, facts, release),
            architecture=device.architecture,
            compiled=not options.eager and release >= facts.engine_v0.before,
            fused=options.fused_reduction,
        )
        activation = activation_bytes(shape, parallel, run, facts, release) / GIB
        other = (non_torch_bytes(parallel, total, device.unified, facts, release) + reduction_bytes(parallel, run, facts, release)) / GIB
        graphs = 0.0 if options.eager else graph_bytes(shape, layers[stage], run, facts, release) / GIB
        graphs *= 2 if options.adapters else 1  # with and without adapters (`cudagraph_specialize_lora`)
        counted = graphs if counts_graphs else 0.0
        available = utilization * total - weights[stage] - activation - other - counted
        if options.cache_bytes is not None:
            available = options.cache_bytes / GIB
        uncounted = 0.0
        if v2:
            uncounted = graphs - counted if release >= facts.graphs.counted_since else 0.0
            uncounted += max(activation_bytes(shape, parallel, replace(run, v2=False), facts, release) / GIB - activation, 0.0)
        parts = _Parts(weights[stage], activation, other, graphs, counted, uncounted, utilization * total, available, total, utilization)
        found.append((available, stage, parts))
    _, stage, parts = min(found, key=lambda each: each[0])
    if parallel.pipeline > 1 and shape.layers:
        cache = replace(cache, layers_share=max(layers[stage], 1) / shape.layers)
    layout = checked = lay_out(shape, parallel, cache, facts, release) if is_modelled(options.cache_dtype, facts) else None
    if layout is not None and facts.kv_cache.whole_model_checked_since <= release < facts.kv_cache.whole_model_checked_before:
        checked = lay_out(shape, parallel, replace(cache, layers_share=1.0), facts, release)
    return _judge(parts, layout, checked, shape, device, options, max_length, facts)


def _weights_by_stage(
    shape: ModelShape,
    form: WeightFormat,
    device: Device,
    parallel: ParallelShape,
    options: Options,
    facts: MemoryFacts,
    release: Release,
) -> list[float]:
    """Return the weights on a GPU of each pipeline stage, in GiB."""
    if options.weights_gib is not None:
        return [max(options.weights_gib - options.offload_gib, 0.0)] * parallel.pipeline
    made = weigh_stages(
        shape,
        form,
        parallel,
        facts,
        release,
        architecture=device.architecture,
        drafts=options.own_draft_layers,
        checkpoint=options.checkpoint_bytes,
        vision=options.vision,
        partition=options.partition,
    )
    if options.eagle:
        made[-1] += eagle_bytes(shape) / parallel.tensor
    adapters = adapter_bytes(shape, parallel, options.adapters, options.adapter_rank) / parallel.pipeline
    return [max((held + adapters) / GIB - options.offload_gib, 0.0) for held in made]


def _batch(
    shape: ModelShape, device: Device, total: float, options: Options, max_length: int, facts: MemoryFacts, release: Release
) -> Batch:
    """Return the tokens and requests of a step: the flags, or the version's defaults for the GPU."""
    usual = default_batch(facts, release, total, device.architecture, device.title)
    sequences = options.sequences or usual.sequences
    usual_tokens = usual.tokens
    if release < facts.engine_v0.before:
        known = facts.engine_v0
        divided = max_length > known.long_context and release >= known.long_context_tokens[0].since and not (shape.vision or shape.latent)
        usual_tokens = int(value_at(known.long_context_tokens, release)) if divided else max(usual.tokens, max_length)
    tokens = options.batched_tokens or min(max(usual_tokens, sequences if options.sequences else 0), sequences * max_length)
    return Batch(tokens, min(sequences, tokens))


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts of the memory in GiB.

    `counted` are the CUDA graphs that vLLM subtracts. `uncounted` are those that model runner V1 subtracts in addition and V2 does not.
    """

    weights: float
    activation: float
    other: float
    graphs: float
    counted: float
    uncounted: float
    budget: float
    available: float
    total: float
    utilization: float


def _cache_options(
    shape: ModelShape, form: WeightFormat, device: Device, options: Options, in_flight: int, facts: MemoryFacts, release: Release
) -> CacheOptions:
    rows = facts.kv_cache.compressed_rows
    row, alignment = rows.get(device.architecture or "", rows["default"])
    by_checkpoint = options.cache_dtype == "auto" and form.narrow_cache and release >= facts.kv_cache.checkpoint_type_since
    kept = find_cache_type("fp8" if by_checkpoint else options.cache_dtype, facts)
    blackwell = (device.architecture or "").startswith("sm_10")
    latent = 128 if blackwell and not shape.index_top else facts.kv_cache.latent_block
    return CacheOptions(
        element_bytes=shape.element_bytes if kept is None else kept.element,
        packed_latent=kept.packed if kept is not None and shape.index_top > 0 else 0,
        scale_bytes=0 if kept is None else kept.scales,
        wide_ends=0 if kept is None else kept.wide_ends,
        tokens_in_flight=in_flight,
        block=options.block or (latent if shape.latent else facts.kv_cache.block),
        speculative=options.speculative,
        draft_layers=1 if options.own_draft_layers or options.eagle else 0,
        separate_draft_layers=options.separate_draft_layers,
        prefix_caching=options.prefix_caching,
        context_parallel=options.context_parallel,
        compressed_row=row,
        alignment=alignment,
    )


def _judge(
    parts: _Parts,
    layout: CacheLayout | None,
    checked: CacheLayout | None,
    shape: ModelShape,
    device: Device,
    options: Options,
    max_length: int,
    facts: MemoryFacts,
) -> Estimate:
    """Compare the parts with the GPU. The limit with the least slack decides."""
    margin = max(facts.margin.gib, facts.margin.share * parts.total)
    free = parts.total - (facts.usable_memory.unified_host_gib if device.unified else facts.context_gib)
    needed = tokens = longest = concurrency = comfortable = None
    auto = options.max_length == 0
    memory = parts.available * GIB
    limits = [
        (free - parts.weights, Prediction.OUT_OF_MEMORY, f"The weights take {parts.weights:.1f} GiB of {parts.total:.1f} GiB."),
        (
            free - parts.weights - parts.activation - parts.other,
            Prediction.OUT_OF_MEMORY,
            f"Weights and activations take {parts.weights + parts.activation + parts.other:.1f} GiB of {parts.total:.1f} GiB.",
        ),
    ]
    if layout is not None and checked is not None:
        longest = checked.longest(memory, shape.max_length or max_length)
        comfortable = checked.longest((parts.available - parts.uncounted - margin) * GIB, shape.max_length or max_length)
        if auto:
            max_length = max(min(longest, max_length), 1)
        needed = checked.need(max_length) / GIB
        tokens, concurrency = layout.tokens(memory, max_length), layout.concurrency(memory, max_length)
        limits.append(
            (
                parts.available - (checked.need(1) / GIB if auto else needed),
                Prediction.REFUSED,
                f"A context of {max_length} tokens needs {needed:.2f} GiB of KV cache; {max(parts.available, 0):.2f} GiB are left."
                if parts.available > 0
                else "Nothing is left for the KV cache.",
            )
        )
    elif shape.has_cache:
        limits.append((parts.available, Prediction.REFUSED, "Nothing is left for the KV cache."))
    held = (parts.weights, parts.activation, parts.other, parts.graphs, parts.budget, parts.available)
    made = Estimate(Prediction.STARTED, "", *held, needed, tokens, longest, max_length, concurrency, comfortable)
    return _with_verdict(made, parts, limits, free, margin, device, layout is not None or not shape.has_cache)


def _with_verdict(
    made: Estimate,
    parts: _Parts,
    limits: list[tuple[float, Prediction, str]],
    free: float,
    margin: float,
    device: Device,
    complete: bool,
) -> Estimate:
    if parts.budget > free:
        text = f"--gpu-memory-utilization {parts.utilization:g} asks for {parts.budget:.1f} GiB; {free:.1f} GiB are free."
        unsure = margin if device.unified else 0.2
        return replace(made, prediction=Prediction.REFUSED if parts.budget > free + unsure else Prediction.TIGHT, limit=text)
    failed = next(((slack, verdict, text) for slack, verdict, text in limits if slack < -margin), None)
    if failed is not None:
        return replace(made, prediction=failed[1], limit=failed[2])
    slack, _, text = min(limits, key=lambda limit: limit[0])
    if slack < margin + parts.uncounted:  # features that flags do not show make vLLM fall back to V1
        return replace(made, prediction=Prediction.TIGHT, limit=text)
    if not complete:
        return replace(made, prediction=Prediction.UNKNOWN, limit="This kind of KV cache is not modelled.")
    if not parts.counted and parts.graphs and parts.budget + parts.graphs + parts.other > free + margin and not device.unified:
        text = "CUDA graphs are captured after the KV cache has taken its memory in this version."
        return replace(made, prediction=Prediction.TIGHT, limit=text)
    return replace(made, limit="")


def predict_memory(made: Estimate) -> PlannedMemory | None:
    """Return the prediction to store in the plan for comparison with the engine's measurements; None if there is none."""
    if made.weights is None or made.kv_cache is None:
        return None
    return PlannedMemory(
        weights_mebibytes=round(made.weights * MIB_PER_GIB),
        kv_cache_mebibytes=round(made.kv_cache * MIB_PER_GIB),
    )

"""The estimate: whether an engine starts on a GPU, and the size of its KV cache.

    KV cache = utilization x total - weights - activation peak - outside of PyTorch - CUDA graphs

on the fullest GPU. The engine refuses to start if nothing is left, or if one request of the maximum length does not fit.
Source: vllm/v1/worker/gpu_worker.py determine_available_memory, 0.11.0 to 0.33.0.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from vllm_operator.api.plan import EngineMemory
from vllm_operator.catalog.memory import value_at
from vllm_operator.sizing.engine import GIB, MIB_PER_GIB, Engine
from vllm_operator.sizing.kv_cache import CacheLayout, lay_out
from vllm_operator.sizing.overhead import Run, activation_bytes, choose_batch, graph_bytes, has_runner_v2, non_torch_bytes, steps_in_flight
from vllm_operator.sizing.weights import adapter_bytes, buffer_bytes, eagle_bytes, stage_layers, weigh_stages


class Prediction(StrEnum):
    """Predicted outcome of a start."""

    STARTED = "started"
    TIGHT = "tight"
    REFUSED = "refused"
    OUT_OF_MEMORY = "oom"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Estimate:
    """The memory of the fullest GPU in GiB. None: unknown."""

    prediction: Prediction
    limit: str  # the deciding one, as a sentence
    weights: float | None = None
    activation: float | None = None
    other: float | None = None
    graphs: float | None = None
    budget: float | None = None
    kv_cache: float | None = None  # negative if the rest does not fit
    kv_needed: float | None = None  # for one request of the maximum length
    tokens: int | None = None  # in the KV cache, as vLLM logs them
    longest: int | None = None  # longest context that fits
    max_length: int | None = None
    concurrency: float | None = None  # requests of the maximum length at a time
    comfortable: int | None = None  # longest context that leaves the margin free


@dataclass(frozen=True, slots=True)
class _Parts:
    stage: int
    weights: float
    activation: float
    other: float
    graphs: float
    counted: float  # CUDA graphs that vLLM subtracts
    uncounted: float  # what model runner V1 subtracts in addition, and V2 does not
    budget: float
    available: float
    total: float


def estimate(engine: Engine) -> Estimate:
    """Estimate the memory of an engine."""
    shape, parallel, options, facts, release = engine.shape, engine.parallel, engine.options, engine.facts.kv_cache, engine.release
    weights = _weights_by_stage(engine)
    if engine.device.memory_gib is None:
        return Estimate(Prediction.UNKNOWN, "The memory of the GPU is unknown.", weights=max(weights))
    usual = shape.usual_length if release >= facts.original_length_since else None
    max_length = options.max_length or usual or shape.max_length
    if max_length is None:
        return Estimate(Prediction.UNKNOWN, "The maximum context of the model is unknown. Give --max-model-len.", weights=max(weights))
    batch, v2 = choose_batch(engine, max_length), has_runner_v2(engine)
    if options.weights_gib is None:
        weights = [held + buffer_bytes(shape, batch.tokens) / GIB for held in weights]
    layers = stage_layers(shape.layers, parallel.pipeline, options.partition)
    memory = options.stage_gib if len(options.stage_gib) == parallel.pipeline else (engine.device.memory_gib,) * parallel.pipeline
    runs = [Run(batch, max_length, stage == 0, stage == parallel.pipeline - 1, v2) for stage in range(parallel.pipeline)]
    stages = zip(runs, weights, layers, memory, strict=True)
    parts = min((_add_up(engine, stage, *each) for stage, each in enumerate(stages)), key=lambda each: each.available)
    share = max(layers[parts.stage], 1) / shape.layers if parallel.pipeline > 1 else None
    in_flight = steps_in_flight(engine, v2=v2) * batch.tokens
    layout = checked = lay_out(engine, in_flight, share)
    if layout is not None and facts.whole_model_checked_since <= release < facts.whole_model_checked_before:
        checked = lay_out(engine, in_flight, 1.0)
    return _judge(engine, parts, layout, checked, max_length)


def _utilization(engine: Engine) -> float:
    own = engine.options.utilization
    return own if own is not None else value_at(engine.facts.utilization, engine.release)


def _weights_by_stage(engine: Engine) -> list[float]:
    options, parallel = engine.options, engine.parallel
    if options.weights_gib is not None:
        return [max(options.weights_gib - options.offload_gib, 0.0)] * parallel.pipeline
    made = weigh_stages(engine)
    if options.eagle:
        made[-1] += eagle_bytes(engine.shape, options.eagle) / parallel.tensor
    adapters = adapter_bytes(engine) / parallel.pipeline
    return [max((held + adapters) / GIB - options.offload_gib, 0.0) for held in made]


def _add_up(engine: Engine, stage: int, run: Run, weights: float, layers: int, total: float) -> _Parts:
    """Return the parts of the memory of a stage, whose GPU has `total` GiB."""
    facts, options, release = engine.facts, engine.options, engine.release
    activation = activation_bytes(engine, run) / GIB
    other = non_torch_bytes(engine, total) / GIB
    graphs = graph_bytes(engine, layers, run.batch) / GIB
    counted = graphs if release >= (facts.model_runner_v2.graphs_counted_since if run.v2 else facts.graphs.counted_since) else 0.0
    uncounted = 0.0
    if run.v2:
        uncounted = graphs - counted if release >= facts.graphs.counted_since else 0.0
        uncounted += max(activation_bytes(engine, replace(run, v2=False)) / GIB - activation, 0.0)
    budget = _utilization(engine) * total
    available = budget - weights - activation - other - counted if options.cache_bytes is None else options.cache_bytes / GIB
    return _Parts(stage, weights, activation, other, graphs, counted, uncounted, budget, available, total)


def _judge(engine: Engine, parts: _Parts, layout: CacheLayout | None, checked: CacheLayout | None, max_length: int) -> Estimate:
    """Compare the parts with the GPU. The limit with the least slack decides."""
    shape, facts = engine.shape, engine.facts
    margin = max(facts.margin.gib, facts.margin.share * parts.total)
    free = parts.total - (facts.usable_memory.unified_host_gib if engine.device.unified else facts.context_gib)
    needed = tokens = longest = concurrency = comfortable = None
    memory, held = parts.available * GIB, parts.weights + parts.activation + parts.other
    text = f"Weights and activations take {held:.1f} GiB per device of {parts.total:.1f} GiB."
    limits = [
        (free - parts.weights, Prediction.OUT_OF_MEMORY, f"The weights take {parts.weights:.1f} GiB per device of {parts.total:.1f} GiB."),
        (free - parts.weights - parts.activation - parts.other, Prediction.OUT_OF_MEMORY, text),
    ]
    nothing = "Nothing is left for the KV cache."
    if layout is not None and checked is not None:
        limit_of_context = max(shape.max_length or 0, max_length)
        longest = checked.longest(memory, limit_of_context)
        comfortable = checked.longest((parts.available - parts.uncounted - margin) * GIB, limit_of_context)
        auto = engine.options.max_length == 0
        max_length = max(min(longest, max_length), 1) if auto else max_length
        needed = checked.need(max_length) / GIB
        tokens, concurrency = layout.tokens(memory, max_length), layout.concurrency(memory, max_length)
        text = f"A context of {max_length} tokens needs {needed:.2f} GiB of KV cache; {parts.available:.2f} GiB are left."
        least = checked.need(1) / GIB if auto else needed
        limits.append((parts.available - least, Prediction.REFUSED, text if parts.available > 0 else nothing))
    elif shape.has_cache:
        limits.append((parts.available, Prediction.REFUSED, nothing))
    return Estimate(
        *_verdict(engine, parts, limits, free, margin, complete=layout is not None or not shape.has_cache),
        weights=parts.weights,
        activation=parts.activation,
        other=parts.other,
        graphs=parts.graphs,
        budget=parts.budget,
        kv_cache=parts.available,
        kv_needed=needed,
        tokens=tokens,
        longest=longest,
        max_length=max_length,
        concurrency=concurrency,
        comfortable=comfortable,
    )


def _verdict(
    engine: Engine, parts: _Parts, limits: list[tuple[float, Prediction, str]], free: float, margin: float, *, complete: bool
) -> tuple[Prediction, str]:
    """Return the outcome and the deciding limit. `complete`: the KV cache is modelled."""
    unified = engine.device.unified
    if parts.budget > free:
        text = f"--gpu-memory-utilization {_utilization(engine):g} asks for {parts.budget:.1f} GiB; {free:.1f} GiB are free."
        return Prediction.REFUSED if parts.budget > free + (margin if unified else 0.2) else Prediction.TIGHT, text
    failed = next(((verdict, text) for slack, verdict, text in limits if slack < -margin), None)
    if failed is not None:
        return failed
    slack, _, text = min(limits, key=lambda limit: limit[0])
    if slack < margin + parts.uncounted:  # features that flags do not show make vLLM fall back to V1
        return Prediction.TIGHT, text
    if not complete:
        return Prediction.UNKNOWN, "This kind of KV cache is not modelled."
    if not parts.counted and parts.graphs and parts.budget + parts.graphs + parts.other > free + margin and not unified:
        return Prediction.TIGHT, "CUDA graphs are captured after the KV cache has taken its memory in this version."
    return Prediction.STARTED, ""


def predict_memory(made: Estimate) -> EngineMemory | None:
    """Return the prediction to store in the plan for comparison with the engine's measurements; None if there is none."""
    if made.weights is None or made.kv_cache is None:
        return None
    return EngineMemory(weights_mebibytes=round(made.weights * MIB_PER_GIB), kv_cache_mebibytes=round(made.kv_cache * MIB_PER_GIB))

"""Memory of an engine except weights and KV cache: activations of the profiling run, CUDA graphs, NCCL, workspaces.

The constants and their sources are in `catalog/data/memory.yaml`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vllm_operator.catalog.memory import rules_at, value_at
from vllm_operator.sizing.engine import GIB, Engine
from vllm_operator.sizing.model_shape import Cache


class Batch(NamedTuple):
    """Tokens and requests of one step: `--max-num-batched-tokens`, `--max-num-seqs`."""

    tokens: int
    sequences: int


@dataclass(frozen=True, slots=True)
class Run:
    """The profiling run of the first, last or another pipeline stage. `v2`: with model runner V2."""

    batch: Batch
    max_length: int
    first: bool = True
    last: bool = True
    v2: bool = False


def choose_batch(engine: Engine, max_length: int) -> Batch:
    """Return the tokens and requests of a step: the flags, or the version's defaults for the GPU, whose memory must be known."""
    shape, options, release, known = engine.shape, engine.options, engine.release, engine.facts.engine_v0
    usual_tokens, usual_sequences = default_batch(engine)
    sequences = options.sequences or usual_sequences
    if release < known.before:
        divided = max_length > known.long_context and release >= known.long_context_tokens[0].since and not (shape.vision or shape.latent)
        usual_tokens = int(value_at(known.long_context_tokens, release)) if divided else max(usual_tokens, max_length)
    tokens = options.batched_tokens or min(max(usual_tokens, sequences if options.sequences else 0), sequences * max_length)
    return Batch(tokens, min(sequences, tokens))


def default_batch(engine: Engine) -> Batch:
    """Return vLLM's defaults for a GPU."""
    device, memory = engine.device, engine.device.memory_gib or 0.0
    fitting = (
        each
        for each in rules_at(engine.facts.batches, engine.release, device.architecture)
        if (each.before is None or engine.release < each.before)
        and memory >= each.memory_gib
        and (each.other_than or "-") not in device.title.upper()
    )
    chosen = next(fitting, engine.facts.batches[-1])
    return Batch(chosen.tokens, chosen.sequences)


def activation_bytes(engine: Engine, run: Run) -> float:
    """Return the peak of the profiling run on one GPU: persistent buffers plus the sampler, the forward pass or the encoder."""
    shape, tensor, options, known, tokens = engine.shape, engine.parallel.tensor, engine.options, engine.facts.activation, run.batch.tokens
    rows = known.sparse_rows * run.max_length / (4 if shape.compressed else 1) if shape.index_top else 0
    gathered, logits = rows * known.sparse_row_bytes, known.indexer_logits_gib * GIB if shape.index_top else 0.0
    peak = max(_forward_bytes(engine, run), known.recurrent_bytes * tokens * shape.recurrent_width / tensor)
    if has_shared_workspace(engine):  # one workspace for all layers and kinds of buffers
        peak, gathered, logits = peak + logits, max(gathered, _expert_bytes(engine, run)), 0.0
    if run.last:
        peak = max(peak, _sampler_bytes(engine, run))
    if run.v2 and run.first and not options.eager:  # torch.compile measures the kernel of the embedding
        peak = max(peak, 2 * shape.hidden * (shape.vocabulary / tensor + tokens))
    if shape.vision and options.vision and options.profiled_encoder and run.first:
        peak = max(peak, _encoder_bytes(engine, tokens))
    handed = 2 * 2 * tokens * shape.hidden if engine.parallel.pipeline > 1 else 0  # hidden states and residuals between stages
    return peak + gathered + logits + handed + known.libraries_gib * GIB


def has_shared_workspace(engine: Engine) -> bool:
    """Return whether the expert kernels for this format take their buffers from vLLM's persistent shared workspace."""
    form = engine.form
    name = "MXFP4Native" if form.name == "MXFP4" and not form.experts_only else form.name
    rules = rules_at(engine.facts.activation.expert_workspaces, engine.release, engine.device.architecture)
    named = [rule for rule in rules if name in rule.formats]
    return engine.shape.experts > 0 and bool(named) and named[-1].shared


def _expert_bytes(engine: Engine, run: Run) -> float:
    """Return the buffers of the experts' two products: tokens times experts rows each, as wide as the layer or the experts."""
    shape, known = engine.shape, engine.facts.activation
    width = shape.expert_width / (1 if engine.parallel.expert else engine.parallel.tensor)
    chunk = known.expert_chunk if engine.release < known.expert_chunk_before else run.batch.tokens
    tokens = min(run.batch.tokens, chunk)
    return 2 * tokens * shape.experts_per_token * (max(2 * width, shape.hidden) + max(width, shape.hidden))


def _sampler_bytes(engine: Engine, run: Run) -> float:
    """Return the logits and the sampler's copies, while the hidden states are alive."""
    shape, known, release = engine.shape, engine.facts.activation, engine.release
    rows = min(run.batch.sequences, run.batch.tokens)
    if run.v2 and release < known.sampler_v2_like_v1_since:
        factor = value_at(known.sampler_v2, release)
    else:
        factor = value_at(known.sampler, release) + (known.rejection_sampler if engine.options.speculative else 0)
        if release >= known.sampler_rows_since:  # one row for each of the GPU's processors
            factor += min(known.sampler_rows, rows) / max(rows, 1)
    return factor * rows * shape.vocabulary * 4 + 2 * shape.hidden * (run.batch.tokens + 2 * rows)


def _forward_bytes(engine: Engine, run: Run) -> float:
    shape, tensor, known, tokens = engine.shape, engine.parallel.tensor, engine.facts.activation, run.batch.tokens
    if shape.experts:
        wide = max(2 * shape.expert_width / tensor, shape.hidden) + shape.expert_width / tensor
        hidden = (6 + 2 * (shape.streams if shape.streams > 1 else 0)) * shape.hidden
        forward = known.forward * tokens * 2 * ((0 if has_shared_workspace(engine) else shape.experts_per_token * wide) + hidden)
    else:
        compiled = not engine.options.eager and engine.release >= engine.facts.engine_v0.before
        width = known.hidden_compiled if compiled else known.hidden_eager
        forward = tokens * 2 * (known.forward_dense * shape.intermediate / tensor + width * shape.hidden)
    if shape.compressed:  # queries, and outputs, which the kernel pads to at least 64 heads
        own = shape.heads / tensor
        padded = 2 * known.padded_heads * -(-own // known.padded_heads)
        forward = max(forward, tokens * 2 * ((padded + own) * shape.compressed.width + (2 + 2 * shape.streams) * shape.hidden))
    if shape.latent and not shape.index_top:  # keys and values of a long context, up to the maximum that MLA projects at a time
        context = max(min(8 * run.max_length, known.projected_tokens), run.batch.sequences * engine.facts.kv_cache.latent_block)
        projected = min(context, known.projected_tokens) * shape.projected / tensor
        forward = max(forward, 2 * (projected + 4 * tokens * shape.hidden))
    return forward


def _encoder_bytes(engine: Engine, tokens: int) -> float:
    """Return the encoder's peak with as many of its largest images as fit into the token budget, at least one."""
    known, shape = engine.facts.activation, engine.shape
    encoder = next(each for each in known.encoders if not each.names or any(name in shape.architecture for name in each.names))
    items = max(tokens // encoder.item_tokens, 1)
    factor = known.encoder_whole + (known.encoder_factor - known.encoder_whole) / engine.parallel.tensor
    return items * encoder.item_tokens * encoder.patches * (shape.vision_width or encoder.width) * 2 * factor


def graph_bytes(engine: Engine, layers: int, batch: Batch) -> float:
    """Return the memory of CUDA graphs on one GPU: piecewise graphs for all sizes, full graphs up to the request limit."""
    known, release, architecture = engine.facts.graphs, engine.release, engine.device.architecture or ""
    if engine.options.eager:
        return 0.0
    large = release >= known.large_architectures_since and architecture in known.large_architectures
    most = known.large if large else known.most
    largest = most if release < known.fewer_since else min(2 * batch.sequences, most)
    if release >= known.fewer_since and any(name in engine.shape.architecture for name in known.large_models):
        largest = min(known.large, batch.tokens)
    captured = _captured_sizes(largest) + _captured_sizes(min(batch.sequences, largest))
    each = known.gib_per_graph_and_layer.get(architecture, known.gib_per_graph_and_layer["default"])
    copies = 2 if engine.options.adapters else 1  # with and without adapters (`cudagraph_specialize_lora`)
    return (known.first_gib + each * captured * layers) * GIB * copies


def _captured_sizes(largest: int) -> int:
    """Return the number of batch sizes with a graph: 1, 2, 4, then every 8 up to 256, then every 16."""
    return sum(size <= largest for size in (1, 2, 4)) + min(largest, 256) // 8 + max(largest - 256, 0) // 16


def non_torch_bytes(engine: Engine, memory_gib: float) -> float:
    """Return the allocations outside of PyTorch on a GPU with this memory: NCCL buffers, the process itself, workspaces of libraries."""
    known, parallel, release = engine.facts.non_torch, engine.parallel, engine.release
    outside = engine.facts.context_gib if release < engine.facts.context_counted_before else 0.0
    if parallel.tensor == 1:
        outside += value_at(known.alone, release) if parallel.pipeline == 1 else -known.stages_less_gib
    outside += engine.facts.activation.unified_gib if engine.device.unified else 0.0
    if memory_gib < known.small_memory_gib:
        outside += known.small_gib
    else:
        nccl = _at(known.nccl_gib, parallel.tensor) if release < known.nccl_before else 0.0
        outside = outside + _at(known.gib, parallel.tensor) + nccl
    return outside * GIB + _reduction_bytes(engine)


def _reduction_bytes(engine: Engine) -> float:
    """Return the workspace, outside of PyTorch, of FlashInfer's kernel for all-reduce and norm."""
    known, parallel, options = engine.facts.non_torch.fused_reduction, engine.parallel, engine.options
    off = options.eager or not options.fused_reduction or engine.device.architecture not in known.architectures
    if off or engine.release < known.since or (engine.release < known.stages_since and (parallel.pipeline > 1 or parallel.data > 1)):
        return 0.0
    return known.gib.get(parallel.tensor, 0.0) * GIB


def _at(values: Mapping[int, float], size: int) -> float:
    known = [key for key in values if key <= size]
    return float(values[max(known)]) if known else 0.0


def has_runner_v2(engine: Engine) -> bool:
    """Return whether the engine has model runner V2, which profiles other memory than V1."""
    shape, options = engine.shape, engine.options
    rules = [rule for rule in engine.facts.model_runner_v2.rules if rule.since <= engine.release]
    if not rules or options.runner_v2 is not None:
        return bool(options.runner_v2)
    rule, experts = rules[-1], shape.experts > 0
    hybrid = any(each.kind is Cache.STATE for each in shape.cached)
    if options.drafts_without_model or (hybrid and not (rule.hybrid or rule.every)):
        return False
    listed = shape.architecture in rule.architectures and (rule.experts or not experts) and (rule.quantized or not engine.form.quantized)
    return rule.every or listed or (rule.dense and not experts and not hybrid)


def steps_in_flight(engine: Engine, *, v2: bool) -> int:
    """Return the number of steps that are scheduled concurrently (vllm/config/vllm.py max_concurrent_batches, 0.26.0)."""
    pipeline = engine.parallel.pipeline
    if engine.release < engine.facts.kv_cache.steps_in_flight_since:
        return 1
    # Asynchronous scheduling needs a model that proposes the drafts, and V1 does not have it with a pipeline.
    asynchronous = not engine.options.drafts_without_model and (v2 or pipeline == 1)
    return pipeline + 1 if asynchronous else pipeline

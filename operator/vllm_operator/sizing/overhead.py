"""Memory of an engine except weights and KV cache: activations of the profiling run, CUDA graphs, NCCL, workspaces.

The constants and their sources are in `catalog/data/memory.yaml`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_operator.catalog.memory import Encoder, MemoryFacts, value_at
from vllm_operator.catalog.versions import Release
from vllm_operator.sizing.formats import WeightFormat
from vllm_operator.sizing.model_shape import Cache, ModelShape
from vllm_operator.sizing.parallelism import ParallelShape

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens and requests of one step: `--max-num-batched-tokens`, `--max-num-seqs`."""

    tokens: int
    sequences: int


@dataclass(frozen=True, slots=True)
class Run:
    """Parameters of the engine's profiling run.

    Attributes:
        batch: Tokens and requests.
        max_length: Longest context in tokens.
        eager: Whether torch.compile and CUDA graphs are disabled.
        speculative: Whether a draft proposes tokens.
        vision: Whether the encoder for images is loaded.
        first, last: Whether this is the first or last stage of a pipeline.
        v2: Whether the engine has model runner V2.
        shared: Whether the expert kernels take their buffers from vLLM's persistent shared workspace.
        architecture: Architecture of the GPU.
        compiled: Whether torch.compile is enabled.
        fused: Whether all-reduce and norm are one kernel if the version does that by default.
    """

    batch: Batch
    max_length: int
    eager: bool = False
    speculative: bool = False
    vision: bool = True
    first: bool = True
    last: bool = True
    v2: bool = False
    shared: bool = False
    architecture: str | None = None
    compiled: bool = True
    fused: bool = True


def default_batch(facts: MemoryFacts, release: Release, memory_gib: float, architecture: str | None, product: str) -> Batch:
    """Return vLLM's defaults for a GPU."""
    for each in facts.batches:
        holds = each.since <= release and (each.before is None or release < each.before) and memory_gib >= each.memory_gib
        if holds and (not each.architectures or architecture in each.architectures) and (each.other_than or "-") not in product.upper():
            return Batch(each.tokens, each.sequences)
    last = facts.batches[-1]
    return Batch(last.tokens, last.sequences)


def activation_bytes(shape: ModelShape, parallel: ParallelShape, run: Run, facts: MemoryFacts, release: Release) -> float:
    """Return the peak of the profiling run on one GPU: persistent buffers plus the sampler, the forward pass or the encoder."""
    known, tokens = facts.activation, run.batch.tokens
    rows = known.sparse_rows * run.max_length / (4 if shape.compressed else 1) if shape.index_top else 0
    gathered, logits = rows * known.sparse_row_bytes, known.indexer_logits_gib * GIB if shape.index_top else 0.0
    peak = max(_forward_bytes(shape, parallel, run, facts), known.recurrent_bytes * tokens * shape.recurrent_width / parallel.tensor)
    if run.shared:  # one workspace for all layers and kinds of buffers
        peak, gathered, logits = peak + logits, max(gathered, _expert_bytes(shape, parallel, run, facts, release)), 0.0
    if run.last:
        peak = max(peak, _sampler_bytes(shape, run, facts, release))
    if run.v2 and run.first and not run.eager:  # torch.compile measures the kernel of the embedding
        peak = max(peak, 2 * shape.hidden * (shape.vocabulary / parallel.tensor + tokens))
    if shape.vision and run.vision and run.first:
        peak = max(peak, _encoder_bytes(shape, parallel, tokens, facts))
    handed = 2 * 2 * tokens * shape.hidden if parallel.pipeline > 1 else 0  # hidden states and residuals between stages
    return peak + gathered + logits + handed + known.libraries_gib * GIB


def has_shared_workspace(form: WeightFormat, architecture: str | None, facts: MemoryFacts, release: Release) -> bool:
    """Return whether the expert kernels for this format take their buffers from the shared workspace."""
    name = "MXFP4Native" if form.name == "MXFP4" and not form.experts_only else form.name
    rules = [
        rule
        for rule in facts.activation.expert_workspaces
        if rule.since <= release and name in rule.formats and (not rule.architectures or architecture in rule.architectures)
    ]
    return bool(rules) and rules[-1].shared


def _expert_bytes(shape: ModelShape, parallel: ParallelShape, run: Run, facts: MemoryFacts, release: Release) -> float:
    """Return the buffers of the experts' two products: tokens times experts rows each, as wide as the layer or the experts."""
    width = shape.expert_width / (1 if parallel.expert else parallel.tensor)
    chunk = facts.activation.expert_chunk if release < facts.activation.expert_chunk_before else run.batch.tokens
    tokens = min(run.batch.tokens, chunk)
    return 2 * tokens * shape.experts_per_token * (max(2 * width, shape.hidden) + max(width, shape.hidden))


def _sampler_bytes(shape: ModelShape, run: Run, facts: MemoryFacts, release: Release) -> float:
    """Return the logits and the sampler's copies, while the hidden states are alive."""
    known = facts.activation
    rows = min(run.batch.sequences, run.batch.tokens)
    hidden = 2 * shape.hidden * (run.batch.tokens + 2 * rows)
    if run.v2 and release < known.sampler_v2_like_v1_since:
        return value_at(known.sampler_v2, release) * rows * shape.vocabulary * 4 + hidden
    factor = value_at(known.sampler, release)
    factor += known.rejection_sampler if run.speculative else 0
    if release >= known.sampler_rows_since:  # one row for each of the GPU's processors
        factor += min(known.sampler_rows, rows) / max(rows, 1)
    return factor * rows * shape.vocabulary * 4 + hidden


def _forward_bytes(shape: ModelShape, parallel: ParallelShape, run: Run, facts: MemoryFacts) -> float:
    known = facts.activation
    if shape.experts:
        wide = max(2 * shape.expert_width / parallel.tensor, shape.hidden) + shape.expert_width / parallel.tensor
        hidden = (6 + 2 * (shape.streams if shape.streams > 1 else 0)) * shape.hidden
        forward = known.forward * run.batch.tokens * 2 * ((0 if run.shared else shape.experts_per_token * wide) + hidden)
    else:
        width = known.hidden_compiled if run.compiled and not run.eager else known.hidden_eager
        forward = run.batch.tokens * 2 * (known.forward_dense * shape.intermediate / parallel.tensor + width * shape.hidden)
    if shape.compressed:  # queries, and outputs, which the kernel pads to at least 64 heads
        own = shape.heads / parallel.tensor
        padded = 2 * known.padded_heads * -(-own // known.padded_heads)
        forward = max(forward, run.batch.tokens * 2 * ((padded + own) * shape.compressed.width + (2 + 2 * shape.streams) * shape.hidden))
    if shape.latent and not shape.index_top:  # keys and values of a long context, up to the maximum that MLA projects at a time
        context = max(min(8 * run.max_length, known.projected_tokens), run.batch.sequences * facts.kv_cache.latent_block)
        projected = min(context, known.projected_tokens) * shape.projected / parallel.tensor
        forward = max(forward, 2 * (projected + 4 * run.batch.tokens * shape.hidden))
    return forward


def _encoder_bytes(shape: ModelShape, parallel: ParallelShape, tokens: int, facts: MemoryFacts) -> float:
    """Return the encoder's peak with as many of its largest images as fit into the token budget, at least one."""
    known, encoder = facts.activation, _encoder(shape.architecture, facts.activation.encoders)
    items = max(tokens // encoder.item_tokens, 1)
    width = shape.vision_width or encoder.width
    factor = known.encoder_whole + (known.encoder_factor - known.encoder_whole) / parallel.tensor
    return items * encoder.item_tokens * encoder.patches * width * 2 * factor


def _encoder(architecture: str, encoders: tuple[Encoder, ...]) -> Encoder:
    return next(each for each in encoders if not each.names or any(name in architecture for name in each.names))


def graph_bytes(shape: ModelShape, layers: int, run: Run, facts: MemoryFacts, release: Release) -> float:
    """Return the memory of CUDA graphs on one GPU: piecewise graphs for all sizes, full graphs up to the request limit."""
    known, batch = facts.graphs, run.batch
    large = release >= known.large_architectures_since and run.architecture in known.large_architectures
    most = known.large if large else known.most
    largest = most if release < known.fewer_since else min(2 * batch.sequences, most)
    if release >= known.fewer_since and any(name in shape.architecture for name in known.large_models):
        largest = min(known.large, batch.tokens)
    captured = captured_sizes(largest) + captured_sizes(min(batch.sequences, largest))
    each = known.gib_per_graph_and_layer.get(run.architecture or "", known.gib_per_graph_and_layer["default"])
    return (known.first_gib + each * captured * layers) * GIB


def captured_sizes(largest: int) -> int:
    """Return the number of batch sizes with a graph: 1, 2, 4, then every 8 up to 256, then every 16."""
    return sum(size <= largest for size in (1, 2, 4)) + min(largest, 256) // 8 + max(largest - 256, 0) // 16


def non_torch_bytes(parallel: ParallelShape, memory_gib: float, unified: bool, facts: MemoryFacts, release: Release) -> float:
    """Return the allocations outside of PyTorch: library workspaces, NCCL buffers; with unified memory also the process itself."""
    known, size = facts.non_torch, parallel.tensor
    outside = facts.context_gib if release < facts.context_counted_before else 0.0
    if parallel.tensor == 1:
        outside += value_at(known.alone, release) if parallel.pipeline == 1 else -known.stages_less_gib
    outside += facts.activation.unified_gib if unified else 0.0
    if memory_gib < known.small_memory_gib:
        return (outside + known.small_gib) * GIB
    nccl = _at(known.nccl_gib, size) if release < known.nccl_before else 0.0
    return (outside + _at(known.gib, size) + nccl) * GIB


def reduction_bytes(parallel: ParallelShape, run: Run, facts: MemoryFacts, release: Release) -> float:
    """Return the workspace, outside of PyTorch, of FlashInfer's kernel for all-reduce and norm."""
    known = facts.non_torch.fused_reduction
    if release < known.since or run.eager or not run.fused or run.architecture not in known.architectures:
        return 0.0
    if release < known.stages_since and (parallel.pipeline > 1 or parallel.data > 1):
        return 0.0
    return known.gib.get(parallel.tensor, 0.0) * GIB


def _at(values: Mapping[int, float], size: int) -> float:
    """Return the value of the next smaller size."""
    known = [key for key in values if key <= size]
    return float(values[max(known)]) if known else 0.0


# The model runner of an engine. V1 and V2 profile different memory.

VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def read_runner(variables: Mapping[str, str | None]) -> bool | None:
    """Return whether the environment requests V2 (True) or V1 (False); None if vLLM decides, or the value is unknown."""
    return {"0": False, "1": True}.get((variables.get(VARIABLE) or "").strip())


def has_runner_v2(
    shape: ModelShape, quantized: bool, asked: bool | None, without_model: bool, facts: MemoryFacts, release: Release
) -> bool:
    """Return whether the engine has model runner V2.

    Args:
        shape: The model.
        quantized: Whether its weights are quantized.
        asked: The result of `read_runner`.
        without_model: Whether drafts are proposed without a model (n-gram, suffix).
        facts: The rules.
        release: The vLLM version.
    """
    rules = [rule for rule in facts.model_runner_v2.rules if rule.since <= release]
    if not rules or asked is not None:
        return bool(asked)
    rule, experts = rules[-1], shape.experts > 0
    hybrid = any(each.kind is Cache.STATE for each in shape.cached)
    if without_model or (hybrid and not (rule.hybrid or rule.every)):
        return False
    listed = shape.architecture in rule.architectures and (rule.experts or not experts) and (rule.quantized or not quantized)
    return rule.every or listed or (rule.dense and not experts and not hybrid)


def steps_in_flight(v2: bool, pipeline: int, without_model: bool) -> int:
    """Return the number of steps that are scheduled concurrently (vllm/config/vllm.py max_concurrent_batches, 0.26.0).

    Scheduling is asynchronous unless drafts are proposed without a model. V1 has no asynchronous scheduling with a pipeline.
    """
    if without_model:
        return pipeline
    return pipeline + 1 if v2 or pipeline == 1 else pipeline

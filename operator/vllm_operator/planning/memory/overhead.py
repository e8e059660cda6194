"""What an engine takes besides weights and KV cache: activations of the profiling run, CUDA graphs, NCCL, workspaces.

The constants and their sources are in `catalog/data/memory.yaml`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_operator.catalog.memory import MemoryFacts, value_at
from vllm_operator.catalog.versions import Release
from vllm_operator.planning.engine.shape import ParallelShape
from vllm_operator.planning.memory.layers import ModelShape

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens and requests of one step: `--max-num-batched-tokens`, `--max-num-seqs`."""

    tokens: int
    sequences: int


def default_batch(facts: MemoryFacts, release: Release, memory_gib: float, architecture: str | None, product: str) -> Batch:
    """Return vLLM's defaults for a GPU."""
    for each in facts.batches:
        fits = each.since <= release and memory_gib >= each.memory_gib
        if fits and (not each.architectures or architecture in each.architectures) and (each.other_than or "-") not in product.upper():
            return Batch(each.tokens, each.sequences)
    last = facts.batches[-1]
    return Batch(last.tokens, last.sequences)


def activation_bytes(
    shape: ModelShape,
    parallel: ParallelShape,
    batch: Batch,
    facts: MemoryFacts,
    release: Release,
    *,
    max_length: int,
    speculative: int = 0,
    vision: bool = True,
    unified: bool = False,
) -> float:
    """Return the peak of the profiling run on one GPU: the sampler or the forward pass, and what some models add."""
    known = facts.activation
    rows = min(batch.sequences, batch.tokens) * (1 + speculative)
    sampler = value_at(known.sampler, release) * rows * shape.vocabulary * 4
    if shape.experts:
        wide = max(2 * shape.expert_width / parallel.tensor, shape.hidden) + shape.expert_width / parallel.tensor
        forward = known.forward * batch.tokens * 2 * (shape.experts_per_token * wide + 6 * shape.hidden)
    else:
        forward = known.forward_dense * batch.tokens * 2 * (3 * shape.intermediate / parallel.tensor + 4 * shape.hidden)
    recurrent = known.recurrent_bytes * batch.tokens * shape.recurrent_width / parallel.tensor
    fixed = any(name in shape.architecture for name in known.fixed_vision)
    encoder = (known.fixed_vision_gib if fixed else known.vision_gib) * GIB / parallel.tensor if shape.vision and vision else 0.0
    extra = 0.0
    if shape.index_top:
        extra = known.sparse_rows * max_length / (4 if shape.compressed else 1) * known.sparse_row_bytes + known.indexer_logits_gib * GIB
    peak = max(sampler, forward, recurrent, encoder)
    if unified:
        peak = max(peak, known.unified_least_gib * GIB) + known.unified_gib * GIB
    return peak + extra


def graph_bytes(shape: ModelShape, batch: Batch, facts: MemoryFacts, release: Release) -> float:
    """Return the memory of CUDA graphs on one GPU."""
    known = facts.graphs
    largest = known.most if release < known.fewer_since else min(2 * batch.sequences, known.most)
    return max(known.least_gib, known.gib_per_size_and_layer * captured_sizes(largest) * shape.layers) * GIB


def captured_sizes(largest: int) -> int:
    """Number of batch sizes with a graph: 1, 2, 4, then every 8 up to 256, then every 16."""
    return 3 + min(largest, 256) // 8 + max(largest - 256, 0) // 16


def non_torch_bytes(parallel: ParallelShape, memory_gib: float, facts: MemoryFacts, release: Release) -> float:
    """Return what is allocated outside of PyTorch: the libraries' workspaces, NCCL's buffers."""
    known, size = facts.non_torch, parallel.tensor
    if memory_gib < known.small_memory_gib:
        return known.small_gib * GIB
    nccl = _at(known.nccl_gib, size) if release < known.nccl_before else 0.0
    return (_at(known.gib, size) + nccl) * GIB


def _at(values: Mapping[int, float], size: int) -> float:
    """The value of the next smaller size."""
    known = [key for key in values if key <= size]
    return float(values[max(known)]) if known else 0.0

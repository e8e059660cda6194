"""Facts about the GPU memory of a vLLM engine, by version: the content of `memory.yaml`."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from pydantic import StrictFloat, StrictInt

from vllm_operator.catalog.entry import Entry, Sourced, loader
from vllm_operator.catalog.versions import Release, Since

Number = StrictInt | StrictFloat


class Value(Entry):
    """A value that is valid since a version."""

    since: Since
    value: Number


def value_at(values: tuple[Value, ...], release: Release) -> float:
    """Return the value for a version; the oldest one for earlier versions."""
    held = [each.value for each in values if each.since <= release]
    return float(held[-1] if held else values[0].value)


class Rule(Entry):
    """A rule that is valid since a version, for some architectures of GPUs; for all of them if none is named."""

    since: Since
    architectures: tuple[str, ...] = ()


AnyRule = TypeVar("AnyRule", bound=Rule)


def rules_at(rules: Iterable[AnyRule], release: Release, architecture: str | None) -> list[AnyRule]:
    """Return the rules for a version and a GPU. The last one counts."""
    return [each for each in rules if each.since <= release and (not each.architectures or architecture in each.architectures)]


class Batch(Rule):
    """Defaults of `--max-num-batched-tokens` and `--max-num-seqs` for GPUs with at least `memory_gib`."""

    before: Since | None = None
    memory_gib: Number
    tokens: StrictInt
    sequences: StrictInt
    other_than: str | None = None


class EngineV0(Sourced):
    """Tokens of a step with the engine V0: the context length, or `long_context_tokens` if it is longer than `long_context`."""

    before: Since
    long_context: StrictInt
    long_context_tokens: tuple[Value, ...]


class UsableMemory(Sourced):
    """Memory that CUDA reports, derived from nvidia-smi's value. `unified_gib` is by the product's title.

    `unified_host_gib` is the unified memory that an idle host needs. `unified_names` are common names of machines with unified memory, with
    their architecture.
    """

    reserve_gib: Number
    reserve_share: Number
    unified_gib: Mapping[str, Number]
    unified_host_gib: Number
    unified_names: Mapping[str, str]
    common_words: frozenset[str]


class FusedReduction(Entry):
    """Workspace of the kernel that joins all-reduce and norm, in GiB by the tensor-parallel size, where vLLM uses it by default.

    Before `stages_since` vLLM uses it only without pipeline and data parallelism.
    """

    since: Since
    stages_since: Since
    architectures: tuple[str, ...]
    gib: Mapping[int, Number]


class NonTorch(Sourced):
    """Allocations outside of PyTorch in GiB, by the tensor-parallel size.

    `small_gib` is for GPUs with less than `small_memory_gib`, which have no links to each other. `nccl_gib` is counted in versions before
    `nccl_before`. `alone` is added for one GPU, where no NCCL loads the libraries before the first snapshot. With pipeline stages of one
    GPU, `stages_less_gib` is subtracted.
    """

    gib: Mapping[int, Number]
    small_memory_gib: Number
    small_gib: Number
    nccl_before: Since
    nccl_gib: Mapping[int, Number]
    alone: tuple[Value, ...]
    stages_less_gib: Number
    fused_reduction: FusedReduction


class Encoder(Entry):
    """An encoder for images, by words in the name of the architecture; the entry without names is the default.

    `item_tokens` are the tokens of the largest image, `patches` the patches of one token, `width` the size of a patch.
    """

    names: tuple[str, ...]
    item_tokens: StrictInt
    patches: Number
    width: StrictInt


class ExpertWorkspace(Rule):
    """Formats of experts by name, and whether their kernels on these GPUs take buffers from the shared workspace since a version."""

    formats: tuple[str, ...]
    shared: bool = True


class Activation(Sourced):
    """Parameters of the peak of the profiling run: sampler, forward pass, or encoder."""

    sampler: tuple[Value, ...]
    sampler_v2: tuple[Value, ...]
    sampler_v2_like_v1_since: Since
    sampler_rows: StrictInt
    sampler_rows_since: Since
    libraries_gib: Number
    expert_workspaces: tuple[ExpertWorkspace, ...]
    expert_chunk: StrictInt
    expert_chunk_before: Since
    rejection_sampler: Number
    forward: Number
    forward_dense: Number
    hidden_compiled: Number
    hidden_eager: Number
    projected_tokens: StrictInt
    padded_heads: StrictInt
    sparse_rows: StrictInt
    sparse_row_bytes: StrictInt
    indexer_logits_gib: Number
    encoder_factor: Number
    encoder_whole: Number
    encoders: tuple[Encoder, ...]
    recurrent_bytes: Number
    unified_gib: Number


class RunnerRule(Entry):
    """Models that have model runner V2 since a version: `architectures`, all `dense` ones, or `every` one.

    A model of `architectures` with experts, a quantized one, and a hybrid one count only if the field of that name is true.
    """

    since: Since
    architectures: tuple[str, ...] = ()
    experts: bool = True
    quantized: bool = True
    hybrid: bool = False
    dense: bool = False
    every: bool = False


class ModelRunner(Sourced):
    """Rules for model runner V2, and the version since which it counts CUDA graphs."""

    rules: tuple[RunnerRule, ...]
    graphs_counted_since: Since


class Graphs(Sourced):
    """CUDA graphs. `large` is the largest batch with a graph for `large_models` and `large_architectures`, `most` for all others.

    The first graph takes `first_gib`, each one `gib_per_graph_and_layer` for a layer, by architecture of the GPU.
    """

    counted_since: Since
    fewer_since: Since
    most: StrictInt
    large: StrictInt
    large_models: tuple[str, ...]
    large_architectures: tuple[str, ...]
    large_architectures_since: Since
    gib_per_graph_and_layer: Mapping[str, Number]
    first_gib: Number


class CacheType(Entry):
    """A type of the KV cache by the start of its name: bytes of an element, of scales per token and KV head, and of sparse MLA's token.

    With `wide_ends` this many layers at each end keep the model's type, except in hybrid models. Such types are for full attention only.
    """

    name: str
    element: Number
    scales: StrictInt = 0
    packed: StrictInt = 0
    wide_ends: StrictInt = 0


class CacheFacts(Sourced):
    """Rules for the KV cache."""

    block: StrictInt
    latent_block: StrictInt
    types: tuple[CacheType, ...]
    group_ratio: tuple[Value, ...]
    tokens_by_concurrency_since: Since
    state_prefix_caching_since: Since
    steps_in_flight_since: Since
    windows_since: Since
    original_length_since: Since
    whole_model_checked_since: Since
    whole_model_checked_before: Since
    chunks_since: Since
    checkpoint_type_since: Since
    compressed_rows: Mapping[str, tuple[StrictInt, StrictInt]]


class ExpertPadding(Rule):
    """Multiples to which a kernel pads MXFP4 experts. `scales`: whether the scales are padded too.

    `hidden_share` is the fraction of the weights whose hidden size is padded.
    """

    hidden: StrictInt
    hidden_share: Number = 1
    width: StrictInt
    scales: bool = True


class SectionPositions(Rule):
    """Factor between rotary table and context if positions have sections. `models` are words in the architecture."""

    models: tuple[str, ...] = ()
    factor: StrictInt


class WeightFacts(Sourced):
    """Rules for the weights on a GPU. `repacked_mib` is the padding per layer after repacking grouped weights."""

    vocabulary_multiple: StrictInt
    parallel_gib: Number
    repacked_mib: Number
    section_positions: tuple[SectionPositions, ...]
    expert_padding: tuple[ExpertPadding, ...]


class Margin(Sourced):
    """Distance from a limit at which a result is called tight: the larger of the two values."""

    gib: Number
    share: Number


class MemoryFacts(Entry):
    """Facts about the memory of an engine, except the model."""

    utilization: tuple[Value, ...]
    sources: Mapping[str, str]
    engine_v0: EngineV0
    batches: tuple[Batch, ...]
    usable_memory: UsableMemory
    context_gib: Number
    context_counted_before: Since
    non_torch: NonTorch
    activation: Activation
    model_runner_v2: ModelRunner
    graphs: Graphs
    kv_cache: CacheFacts
    weights: WeightFacts
    margin: Margin


load_memory = loader(MemoryFacts, "memory.yaml")
"""Reads the rules that ship with the operator."""

"""The KV cache: bytes of a block, blocks of a request, and capacity of a given memory.

It follows vLLM: layers with equal caches form a type; types are divided into groups with an equal number of layers; blocks of all groups
have the same size; a request takes blocks of each group.
Sources: vllm/v1/core/kv_cache_utils.py (0.11.0 to 0.25.1), vllm/v1/core/kv_cache_planning.py (0.33.0),
vllm/model_executor/models/config.py (0.19.0, hybrid block size).
"""

from dataclasses import dataclass, replace
from math import ceil

from vllm_operator.catalog.memory import CacheType, MemoryFacts, value_at
from vllm_operator.catalog.versions import Release
from vllm_operator.sizing.model_shape import Cache, CachedLayers, CompressedAttention, ModelShape
from vllm_operator.sizing.parallelism import ParallelShape

LONGEST = 1 << 27
"""Maximum context in tokens. Longer contexts are not considered."""


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Inputs of the KV cache layout in addition to the model.

    Attributes:
        element_bytes: Bytes of a key or value: 2, or 1 for FP8.
        packed_latent: Bytes of a token of sparse MLA in its packed form, which keeps a part in 16 bits; 0 without it.
        scale_bytes: Bytes of the scales of a token and KV head.
        tokens_in_flight: Tokens that are scheduled at a time: `--max-num-batched-tokens`, for each step since 0.26.0.
        block: Tokens of a block.
        speculative: Tokens that a draft proposes at a time; 0 without.
        draft_layers: Draft layers in the checkpoint, which are equal to the model's layers.
        separate_draft_layers: Layers of a separate draft model.
        prefix_caching: None for vLLM's default.
        context_parallel: `--decode-context-parallel-size`.
        layers_share: Fraction of the layers in the pipeline stage; None if the stages are equal.
        wide_ends: Number of first and last layers that keep the model's type.
        compressed_row: Bytes of one row of DeepSeek V4's cache in FP8, and the `alignment` of its pages.
    """

    element_bytes: float
    packed_latent: int
    tokens_in_flight: int
    block: int
    scale_bytes: int = 0
    speculative: int = 0
    draft_layers: int = 0
    separate_draft_layers: int = 0
    prefix_caching: bool | None = None
    context_parallel: int = 1
    layers_share: float | None = None
    wide_ends: int = 0
    compressed_row: int = 584
    alignment: int = 576


def find_cache_type(name: str, facts: MemoryFacts) -> CacheType | None:
    """Return the facts about a `--kv-cache-dtype`; None for the model's type (`auto`), and for a type that is not modelled."""
    return next((each for each in facts.kv_cache.types if name.lower().startswith(each.name)), None)


def is_modelled(name: str, facts: MemoryFacts) -> bool:
    """Return whether a `--kv-cache-dtype` is modelled."""
    return name.lower() == "auto" or find_cache_type(name, facts) is not None


@dataclass(frozen=True, slots=True)
class _Group:
    """Layers with one block table. `window` is the maximum of a request's kept tokens, None for all; `states` are blocks of a state.

    `page` is the size in bytes of its layers in a block if groups differ; 0 if they are equal.
    """

    layers: int
    block: int
    window: int | None = None
    states: int = 0
    chunk: bool = False
    page: int = 0

    def blocks(self, tokens: int, options: CacheOptions) -> int:
        """Return the blocks of a request with this many tokens."""
        if self.states:
            return self.states
        if self.window is None:
            return ceil(ceil(tokens / options.context_parallel) / self.block)
        if self.chunk:
            return ceil(min(self.window + options.tokens_in_flight, tokens) / self.block)
        return ceil(min(self.window - 1 + options.tokens_in_flight, tokens) / self.block) + 1


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The groups of a model's KV cache on one GPU, and the bytes of one block of each group.

    `needed_bytes` are the bytes of a block in vLLM's check whether one request fits, if they differ; else 0.
    """

    groups: tuple[_Group, ...]
    block_bytes: int
    options: CacheOptions
    counts_by_concurrency: bool
    needed_bytes: int = 0

    def need(self, tokens: int) -> int:
        """Return the bytes of one request with this many tokens."""
        return (self.needed_bytes or self.block_bytes) * sum(group.blocks(tokens, self.options) for group in self.groups)

    def concurrency(self, memory: float, tokens: int) -> float:
        """Return the number of concurrent requests with this many tokens."""
        wanted = self._blocks(tokens)
        return int(memory // self.block_bytes) / wanted if wanted and memory > 0 else 0.0

    def tokens(self, memory: float, longest: int) -> int:
        """Return the tokens that vLLM logs (`GPU KV cache size`). Up to 0.20.0, vLLM counted them per group."""
        blocks = int(memory // self.block_bytes) if memory > 0 else 0
        if self.counts_by_concurrency:
            wanted = self._blocks(longest)
            return int(blocks / wanted * longest) if wanted else 0
        return blocks // len(self.groups) * min(group.block for group in self.groups) * self.options.context_parallel

    def longest(self, memory: float, limit: int) -> int:
        """Return the longest context of one request, in tokens."""
        if memory < self.need(1):
            return 0
        low, high = 1, min(limit, LONGEST)
        if self.need(high) <= memory:
            return high
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.need(middle) <= memory else (low, middle - 1)
        return low

    def _blocks(self, tokens: int) -> int:
        """Return the blocks of a request. If groups differ, vLLM counts their bytes in blocks of the first one."""
        first = self.groups[0].page
        if first:
            return ceil(sum(group.blocks(tokens, self.options) * group.page for group in self.groups) / first)
        return sum(group.blocks(tokens, self.options) for group in self.groups)


def lay_out(shape: ModelShape, parallel: ParallelShape, options: CacheOptions, facts: MemoryFacts, release: Release) -> CacheLayout | None:
    """Return the layout of the KV cache on one GPU; None if some layers are unknown, or no layer has a cache."""
    if shape.compressed is not None:
        made: CacheLayout | None = None if options.wide_ends else _lay_out_compressed(shape.compressed, options)
    elif shape.cache_known and shape.cached:
        made = _lay_out_groups(shape, parallel, options, facts, release)
    else:
        made = None
    return made if made is not None and made.block_bytes > 0 else None


def _lay_out_groups(
    shape: ModelShape, parallel: ParallelShape, options: CacheOptions, facts: MemoryFacts, release: Release
) -> CacheLayout | None:
    types = _separate(shape.cached, facts, release)
    share = 1 / parallel.pipeline if options.layers_share is None else options.layers_share
    types = _with_draft(_per_stage(types, share), options)
    types = _with_wide_ends(types, 2 * options.wide_ends)
    state_pages = [_state_bytes(each, shape, parallel, options) for each in types if each.kind is Cache.STATE]
    attention = [each for each in types if each.kind is not Cache.STATE]
    if not attention or (options.wide_ends and any(each.kind is not Cache.FULL for each in attention)):
        return None  # a state has no tokens, and types with wide ends are for full attention
    block = options.block
    if state_pages:
        # The page of attention is raised above the state, then the state is padded to it.
        token = max(_token_bytes(each, shape, parallel, options, facts) for each in attention)
        if token <= 0:
            return None
        aligned = 64 if shape.latent else 16
        block = max(block, aligned * ceil(max(state_pages) / (aligned * token)))
    by_concurrency = release >= facts.kv_cache.tokens_by_concurrency_since
    if not state_pages and not options.separate_draft_layers and len({_span(each) for each in attention}) == 1:
        # One type, perhaps with pages of several sizes: one group.
        size = sum(each.count * ceil(block * _token_bytes(each, shape, parallel, options, facts)) for each in attention)
        first = attention[0]
        group = _Group(sum(each.count for each in attention), block, first.reach or None, chunk=first.kind is Cache.CHUNK)
        return CacheLayout((group,), size, options, by_concurrency)
    page = max(ceil(block * _token_bytes(each, shape, parallel, options, facts)) for each in attention)
    page = max(page, *state_pages) if state_pages else page
    size = _group_size([each.count for each in types], value_at(facts.kv_cache.group_ratio, release))
    groups: list[_Group] = []
    aligned_states = release >= facts.kv_cache.state_prefix_caching_since if options.prefix_caching is None else options.prefix_caching
    for each in types:
        number = ceil(each.count / size)
        if each.kind is Cache.STATE:
            states = (2 if aligned_states else 1) + options.speculative
            groups += [_Group(size, block, states=states)] * number
            continue
        own = ceil(block * _token_bytes(each, shape, parallel, options, facts))
        larger = block * (page // max(own, 1))  # smaller pages get more tokens; the remainder is padding
        groups += [_Group(size, larger, each.reach or None, chunk=each.kind is Cache.CHUNK)] * number
    return CacheLayout(tuple(groups), page * size, options, by_concurrency)


def _separate(cached: tuple[CachedLayers, ...], facts: MemoryFacts, release: Release) -> list[CachedLayers]:
    """Make layers with a window or chunk keep all tokens, in versions that treat them as full attention."""
    since = {Cache.WINDOW: facts.kv_cache.windows_since, Cache.CHUNK: facts.kv_cache.chunks_since}
    mixed = len({each.kind for each in cached}) > 1
    return [
        replace(each, kind=Cache.FULL, reach=0) if mixed and each.kind in since and release < since[each.kind] else each for each in cached
    ]


COMPRESSED_BLOCK, WINDOW_BLOCK = 256, 64
STATE_BLOCKS = {4: 4, 128: 8}


def _lay_out_compressed(model: CompressedAttention, options: CacheOptions) -> CacheLayout:
    """Return the layout of DeepSeek V4: full blocks of compressed tokens, windows, and states of the compressors.

    States are padded to the pages of the layers that compress four tokens. Source: vllm/models/deepseek_v4 (attention.py, compressor.py)
    and vllm/v1/core/kv_cache_utils.py _get_kv_cache_groups_uniform_groups, _get_kv_cache_config_packed and
    get_max_concurrency_for_kv_cache_config, 0.25.0.
    """

    def aligned(size: int) -> int:
        return -(-size // options.alignment) * options.alignment

    row = options.compressed_row if options.element_bytes <= 1 else 2 * model.width
    page = aligned(COMPRESSED_BLOCK // 4 * row)
    index_page = aligned(COMPRESSED_BLOCK // 4 * (model.index_width + 4))
    many_page = aligned(COMPRESSED_BLOCK // 128 * row)
    counts = [model.by_four, model.layers, model.by_four, model.by_many]
    size = min(range(counts[0], max(counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size))
    windows = ceil(model.layers / size)
    slots = max(model.by_four, ceil(model.layers / windows), model.by_many)
    shares = [len(range(start, model.layers, windows)) for start in range(windows)]
    many = [len(range(start, model.by_many, groups)) for groups in [ceil(model.by_many / size)] for start in range(groups)]
    groups = [
        _Group(size, COMPRESSED_BLOCK, page=model.by_four * (page + index_page) + model.by_many * many_page),
        *[_Group(size, WINDOW_BLOCK, model.window, page=share * page) for share in shares],
        _Group(size, STATE_BLOCKS[4], 2 * 4, page=model.by_four * (page + index_page)),
        *[_Group(size, STATE_BLOCKS[128], 128, page=share * page) for share in many],
    ]
    block_bytes = slots * page + model.by_four * index_page + model.by_many * many_page
    return CacheLayout(tuple(groups), block_bytes, options, True, slots * (page + index_page + many_page))


def _span(each: CachedLayers) -> tuple[bool, int]:
    """Return a key for the kept tokens. Types with equal keys keep the same tokens."""
    return each.kind is Cache.CHUNK, each.reach


def _per_stage(cached: list[CachedLayers], share: float) -> list[CachedLayers]:
    present = [each for each in cached if each.count > 0]
    return present if share == 1 else [replace(each, count=ceil(round(each.count * share, 6))) for each in present]


def _with_wide_ends(types: list[CachedLayers], wide: int) -> list[CachedLayers]:
    """Split full-attention layers into two types if some keep the model's type. Hybrid models have no such layers."""
    if not wide or any(each.kind is Cache.STATE for each in types):
        return types
    kept = [replace(each, count=min(wide, each.count), wide=True) for each in types[:1]]
    return [*kept, *[replace(each, count=each.count - wide) for each in types if each.count > wide]]


def _with_draft(types: list[CachedLayers], options: CacheOptions) -> list[CachedLayers]:
    full = next((at for at, each in enumerate(types) if each.kind in (Cache.FULL, Cache.LATENT)), None)
    if full is None or not (options.draft_layers or options.separate_draft_layers):
        return types
    if options.separate_draft_layers:
        return [*types, replace(types[full], count=options.separate_draft_layers)]
    return [replace(each, count=each.count + options.draft_layers) if at == full else each for at, each in enumerate(types)]


def _token_bytes(each: CachedLayers, shape: ModelShape, parallel: ParallelShape, options: CacheOptions, facts: MemoryFacts) -> float:
    if each.kind is Cache.LATENT:
        latent = options.packed_latent if options.packed_latent and each.index_bytes else each.width * options.element_bytes
        return float(latent + each.index_bytes * (each.index_share if each.index_bytes else 0))
    own = each.width * shape.element_bytes if each.wide else each.width * options.element_bytes + options.scale_bytes
    return max(each.kv_heads // parallel.tensor, 1) * own


def _state_bytes(each: CachedLayers, shape: ModelShape, parallel: ParallelShape, options: CacheOptions) -> int:
    rows = each.conv_kernel + options.speculative
    conv = each.conv // max(each.conv_kernel, 1) * rows * shape.element_bytes
    return ceil((conv + each.state * (shape.state_bytes or shape.element_bytes)) / parallel.tensor)


def _group_size(counts: list[int], ratio: float) -> int:
    """Return the group size: the smallest layer count, or the largest if padding costs less than `ratio`."""
    smallest, largest = min(counts), max(counts)
    return largest if largest < smallest * ratio else smallest

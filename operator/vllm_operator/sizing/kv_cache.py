"""The KV cache: bytes of a block, blocks of a request, and capacity of a given memory.

It follows vLLM: layers with equal caches form a type; types are divided into groups with an equal number of layers; blocks of all groups
have the same size; a request takes blocks of each group.
Sources: vllm/v1/core/kv_cache_utils.py (0.11.0 to 0.25.1), vllm/v1/core/kv_cache_planning.py (0.33.0),
vllm/model_executor/models/config.py (0.19.0, hybrid block size).
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from vllm_operator.catalog.memory import CacheType, value_at
from vllm_operator.sizing.engine import Engine
from vllm_operator.sizing.model_shape import Cache, CachedLayers, CompressedAttention

LONGEST = 1 << 27  # Maximum context in tokens. Longer contexts are not considered.


@dataclass(frozen=True, slots=True)
class _Group:
    layers: int
    block: int
    window: int | None = None  # maximum of a request's kept tokens; None for all
    states: int = 0  # blocks of a state
    chunk: bool = False
    page: int = 0  # bytes of its layers in a block if groups differ; 0 if they are equal


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The groups of a model's KV cache on one GPU."""

    groups: tuple[_Group, ...]
    block_bytes: int  # of one block of each group
    in_flight: int  # tokens scheduled at a time: `--max-num-batched-tokens`, for each step since 0.26.0
    context_parallel: int  # --decode-context-parallel-size
    counts_by_concurrency: bool
    needed_bytes: int = 0  # of a block in vLLM's check whether one request fits, if they differ; else 0

    def need(self, tokens: int) -> int:
        """Return the bytes of one request with this many tokens."""
        return (self.needed_bytes or self.block_bytes) * sum(self._blocks_of(group, tokens) for group in self.groups)

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
        return blocks // len(self.groups) * min(group.block for group in self.groups) * self.context_parallel

    def longest(self, memory: float, limit: int) -> int:
        """Return the longest context of one request, in tokens."""
        return bisect_right(range(1, min(limit, LONGEST) + 1), memory, key=self.need)

    def _blocks_of(self, group: _Group, tokens: int) -> int:
        if group.states:
            return group.states
        if group.window is None:
            return ceil(ceil(tokens / self.context_parallel) / group.block)
        if group.chunk:
            return ceil(min(group.window + self.in_flight, tokens) / group.block)
        return ceil(min(group.window - 1 + self.in_flight, tokens) / group.block) + 1

    def _blocks(self, tokens: int) -> int:
        """Return the blocks of a request. If groups differ, vLLM counts their bytes in blocks of the first one."""
        first = self.groups[0].page
        blocks = sum(self._blocks_of(group, tokens) * (group.page if first else 1) for group in self.groups)
        return ceil(blocks / first) if first else blocks


def lay_out(engine: Engine, in_flight: int, share: float | None = None) -> CacheLayout | None:
    """Return the layout on one GPU for this part of the layers (None: equal stages); None if there is no cache, or it is not modelled."""
    shape = engine.shape
    name, facts = engine.options.cache_dtype.lower(), engine.facts.kv_cache
    if name == "auto" and engine.form.narrow_cache and engine.release >= facts.checkpoint_type_since:
        name = "fp8"
    kept = next((each for each in facts.types if name.startswith(each.name)), None)
    if kept is None and name != "auto":
        return None  # a type that is not modelled
    builder = _Builder(engine, in_flight, kept)
    if shape.compressed is not None:
        made = None if builder.wide_ends else _lay_out_compressed(builder, shape.compressed, shape.layers)
    else:
        made = builder.lay_out(1 / engine.parallel.pipeline if share is None else share) if shape.cache_known and shape.cached else None
    return made if made is not None and made.block_bytes > 0 else None


class _Builder:
    """The layout of one engine's KV cache. `kept` are the facts about `--kv-cache-dtype`; None for the model's type."""

    def __init__(self, engine: Engine, in_flight: int, kept: CacheType | None) -> None:
        self.engine, self.in_flight = engine, in_flight
        shape, facts = engine.shape, engine.facts.kv_cache
        self.element_bytes = shape.element_bytes if kept is None else kept.element
        self.scale_bytes, self.wide_ends = (kept.scales, kept.wide_ends) if kept is not None else (0, 0)
        self.packed = kept.packed if kept is not None and shape.index_top > 0 else 0
        blackwell = (engine.device.architecture or "").startswith("sm_10")
        latent = 128 if blackwell and not shape.index_top else facts.latent_block
        self.block = engine.options.block or (latent if shape.latent else facts.block)

    def make(self, groups: Iterable[_Group], block_bytes: int, needed_bytes: int = 0) -> CacheLayout:
        by_concurrency = self.engine.release >= self.engine.facts.kv_cache.tokens_by_concurrency_since
        context = self.engine.options.context_parallel
        return CacheLayout(tuple(groups), block_bytes, self.in_flight, context, by_concurrency or bool(needed_bytes), needed_bytes)

    def lay_out(self, share: float) -> CacheLayout | None:
        """Return the layout for this fraction of the layers; None if the type of the cache does not suit the layers."""
        engine, options, facts = self.engine, self.engine.options, self.engine.facts.kv_cache
        types = self._types(share)
        state_pages = [self._state_bytes(each) for each in types if each.kind is Cache.STATE]
        attention = [each for each in types if each.kind is not Cache.STATE]
        if not attention or (self.wide_ends and any(each.kind is not Cache.FULL for each in attention)):
            return None  # a state has no tokens, and types with wide ends are for full attention
        block = self.block
        if state_pages:
            # The page of attention is raised above the state, then the state is padded to it.
            token = max(self._token_bytes(each) for each in attention)
            if token <= 0:
                return None
            aligned = 64 if engine.shape.latent else 16
            block = max(block, aligned * ceil(max(state_pages) / (aligned * token)))
        pages = [ceil(block * self._token_bytes(each)) for each in attention]
        if (
            not state_pages
            and not options.separate_draft_layers
            and len({(each.kind is Cache.CHUNK, each.reach) for each in attention}) == 1
        ):
            # One type, perhaps with pages of several sizes: one group.
            layers, first = sum(each.count for each in attention), attention[0]
            group = _Group(layers, block, first.reach or None, chunk=first.kind is Cache.CHUNK)
            return self.make([group], sum(each.count * page for each, page in zip(attention, pages, strict=True)))
        page = max(*pages, *state_pages, 0)
        smallest, largest = min(counts := [each.count for each in types]), max(counts)
        size = largest if largest < smallest * value_at(facts.group_ratio, engine.release) else smallest  # padding may cost less
        usual = engine.release >= facts.state_prefix_caching_since
        states = (2 if (usual if options.prefix_caching is None else options.prefix_caching) else 1) + options.speculative
        groups: list[_Group] = []
        for each in types:
            if each.kind is Cache.STATE:
                group = _Group(size, block, states=states)
            else:  # smaller pages get more tokens; the remainder is padding
                larger = block * (page // max(ceil(block * self._token_bytes(each)), 1))
                group = _Group(size, larger, each.reach or None, chunk=each.kind is Cache.CHUNK)
            groups += [group] * ceil(each.count / size)
        return self.make(groups, page * size)

    def _types(self, share: float) -> list[CachedLayers]:
        """Return the layers by type, with the layers of a draft, and without layers of other pipeline stages."""
        cached, options, facts = self.engine.shape.cached, self.engine.options, self.engine.facts.kv_cache
        since = {Cache.WINDOW: facts.windows_since, Cache.CHUNK: facts.chunks_since}
        mixed = len({each.kind for each in cached}) > 1
        types = [  # earlier versions treat layers with a window or chunk as full attention
            replace(each, kind=Cache.FULL, reach=0) if mixed and self.engine.release < since.get(each.kind, (0, 0, 0)) else each
            for each in cached
            if each.count > 0
        ]
        types = types if share == 1 else [replace(each, count=ceil(round(each.count * share, 6))) for each in types]
        own = 1 if options.own_draft_layers or options.eagle else 0
        full = next((at for at, each in enumerate(types) if each.kind in (Cache.FULL, Cache.LATENT)), None)
        if full is not None and options.separate_draft_layers:
            types.append(replace(types[full], count=options.separate_draft_layers))
        elif full is not None:
            types[full] = replace(types[full], count=types[full].count + own)
        wide = 2 * self.wide_ends
        if not wide or any(each.kind is Cache.STATE for each in types):
            return types  # hybrid models have no layers that keep the model's type
        kept = [replace(each, count=min(wide, each.count), wide=True) for each in types[:1]]
        return [*kept, *[replace(each, count=each.count - wide) for each in types if each.count > wide]]

    def _token_bytes(self, each: CachedLayers) -> float:
        if each.kind is Cache.LATENT:
            latent = self.packed if self.packed and each.index_bytes else each.width * self.element_bytes
            return float(latent + each.index_bytes * (each.index_share if each.index_bytes else 0))
        own = each.width * self.engine.shape.element_bytes if each.wide else each.width * self.element_bytes + self.scale_bytes
        return max(each.kv_heads // self.engine.parallel.tensor, 1) * own

    def _state_bytes(self, each: CachedLayers) -> int:
        shape = self.engine.shape
        rows = each.conv_kernel + self.engine.options.speculative
        conv = each.conv // max(each.conv_kernel, 1) * rows * shape.element_bytes
        return ceil((conv + each.state * (shape.state_bytes or shape.element_bytes)) / self.engine.parallel.tensor)


COMPRESSED_BLOCK, WINDOW_BLOCK = 256, 64
STATE_BLOCKS = {4: 4, 128: 8}


def _lay_out_compressed(builder: _Builder, model: CompressedAttention, layers: int) -> CacheLayout:
    """Return the layout of DeepSeek V4: full blocks of compressed tokens, windows, and states of the compressors.

    States are padded to the pages of the layers that compress four tokens. Source: vllm/models/deepseek_v4 (attention.py, compressor.py)
    and vllm/v1/core/kv_cache_utils.py _get_kv_cache_groups_uniform_groups, _get_kv_cache_config_packed and
    get_max_concurrency_for_kv_cache_config, 0.25.0.
    """
    rows = builder.engine.facts.kv_cache.compressed_rows
    narrow, alignment = rows.get(builder.engine.device.architecture or "", rows["default"])
    row = narrow if builder.element_bytes <= 1 else 2 * model.width
    sizes = (COMPRESSED_BLOCK // 4 * row, COMPRESSED_BLOCK // 4 * (model.index_width + 4), COMPRESSED_BLOCK // 128 * row)
    page, index_page, many_page = (-(-size // alignment) * alignment for size in sizes)
    counts = [model.by_four, layers, model.by_four, model.by_many]
    size = min(range(counts[0], max(counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size))
    windows = ceil(layers / size)
    slots = max(model.by_four, ceil(layers / windows), model.by_many)
    shares = [len(range(start, layers, windows)) for start in range(windows)]
    many = [len(range(start, model.by_many, groups)) for groups in [ceil(model.by_many / size)] for start in range(groups)]
    groups = [
        _Group(size, COMPRESSED_BLOCK, page=model.by_four * (page + index_page) + model.by_many * many_page),
        *[_Group(size, WINDOW_BLOCK, model.window, page=share * page) for share in shares],
        _Group(size, STATE_BLOCKS[4], 2 * 4, page=model.by_four * (page + index_page)),
        *[_Group(size, STATE_BLOCKS[128], 128, page=share * page) for share in many],
    ]
    return builder.make(
        groups, slots * page + model.by_four * index_page + model.by_many * many_page, slots * (page + index_page + many_page)
    )

"""Attention of DeepSeek V4: weights and tables by the compression of each layer.

Source: vllm/models/deepseek_v4 (attention.py, compressor.py, common/rope.py, nvidia/model.py), 0.25.0.
"""

from collections.abc import Mapping
from typing import Any

from vllm_operator.planning.memory.divided import ReadSize
from vllm_operator.planning.memory.layers import CompressedAttention, Module, Shard
from vllm_operator.pods.reading import read_integer

MOST_LAYERS, MOST_STREAMS = 4096, 64
DEFAULT_STREAMS, DEFAULT_WINDOW = 4, 128
BY_FOUR, BY_MANY = 4, 128
WIDE = 2
"""What has 32 bits counts as so many elements of 16."""


def _ratios(text: Mapping[str, Any], layers: int) -> list[int]:
    """The compression of each layer. The table of shapes has counts, config.json a list; counts have no order."""
    written = text.get("compress_ratios")
    if isinstance(written, list) and len(written) <= MOST_LAYERS:
        return [read_integer(ratio) or 0 for ratio in written[:layers]]
    if not isinstance(written, Mapping):
        return []
    counts = {read_integer(ratio) or 0: read_integer(count) or 0 for ratio, count in written.items()}
    known = [ratio for ratio in (BY_FOUR, BY_MANY) for _ in range(min(max(counts.get(ratio, 0), 0), MOST_LAYERS))]
    return [*[0] * max(layers - len(known), 0), *known][:layers]


def read_compression(text: Mapping[str, Any], size: ReadSize, layers: int) -> CompressedAttention | None:
    """Return the layers by compression; None if no layer compresses four tokens."""
    ratios = _ratios(text, layers)
    by_four, by_many = ratios.count(BY_FOUR), ratios.count(BY_MANY)
    if not by_four:
        return None
    window = size("sliding_window", default=DEFAULT_WINDOW)
    return CompressedAttention(by_four, by_many, layers, size("head_dim"), size("index_head_dim"), window)


def read_streams(compressed: CompressedAttention | None, size: ReadSize) -> int:
    """Return how many copies of the hidden state of a token there are between layers."""
    return min(size("hc_mult", default=DEFAULT_STREAMS if compressed else 1) or 1, MOST_STREAMS)


def compressed_rotary(compressed: CompressedAttention, size: ReadSize) -> int:
    """Return the elements of the rotary tables for one position. They have 32 bits, and layers without compression a table of their own."""
    tables = 2 if compressed.by_four + compressed.by_many < compressed.layers else 1
    return WIDE * tables * size("qk_rope_head_dim")


def compressed_modules(text: Mapping[str, Any], size: ReadSize, layers: int) -> list[Module]:
    """Return the weights of attention, and of what mixes the copies of the hidden state."""
    ratios, every = _ratios(text, layers), tuple(range(layers))
    four = tuple(layer for layer, ratio in enumerate(ratios) if ratio == BY_FOUR)
    many = tuple(layer for layer, ratio in enumerate(ratios) if ratio == BY_MANY)
    hidden, heads = size("hidden_size"), size("num_attention_heads")
    head_dim, query, rank = size("head_dim"), size("q_lora_rank"), size("o_lora_rank")
    index_heads, index_dim = size("index_n_heads"), size("index_head_dim")
    streams = read_streams(read_compression(text, size, layers), size)
    mixed = 2 * (2 + streams) * streams * streams * hidden if streams > 1 else 0
    return [
        Module("attn.wq_a", hidden * query, Shard.REPLICATED, every),
        Module("attn.wq_b", query * heads * head_dim, Shard.TENSOR, every),
        Module("attn.wkv", hidden * head_dim, Shard.REPLICATED, every),
        Module("attn.wo_a", heads * head_dim * rank, Shard.TENSOR, every),
        Module("attn.wo_b", size("o_groups") * rank * hidden, Shard.TENSOR, every),
        Module("hyper_connections", WIDE * mixed, Shard.REPLICATED, every, linear=False),
        # Keys, values and their weights; with a compression of four of two overlapping groups, and the same for the indexer.
        Module("attn.compressor", 4 * hidden * head_dim, Shard.REPLICATED, four, linear=False),
        Module("attn.compressor", 2 * hidden * head_dim, Shard.REPLICATED, many, linear=False),
        Module("attn.indexer.compressor", 4 * hidden * index_dim, Shard.REPLICATED, four, linear=False),
        Module("attn.indexer.weights_proj", hidden * index_heads, Shard.REPLICATED, four, linear=False),
        Module("attn.indexer", query * index_heads * index_dim, Shard.REPLICATED, four),
    ]

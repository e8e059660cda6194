"""The shape of a model from its config.json, by the rules of vLLM and Transformers.

The file is untrusted, so its content never raises an error. A model with missing or impossible sizes has no shape.
Sources: the models in vllm/model_executor/models and vllm/transformers_utils/model_arch_config_convertor.py (0.33.0).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import ceil
from typing import Any

from vllm_operator.api.reading import mapping, read_integer, sequence

# Parts of a model that use memory: its weights by module, and its layers with a cache.
#
# Sizes are numbers of elements. How many bytes an element takes, and on how many GPUs it is spread, is decided elsewhere.


class Shard(Enum):
    """Distribution of a module over the GPUs of one engine."""

    REPLICATED = "replicated"
    TENSOR = "tensor"
    KV_HEADS = "kv heads"
    """Over the tensor-parallel ranks, but at least one KV head on each."""
    VOCABULARY = "vocabulary"
    EXPERTS = "experts"


@dataclass(frozen=True, slots=True)
class Module:
    """Weights of one kind in a range of layers.

    Attributes:
        name: Path inside a layer, such as `self_attn.k_proj`, or of the module itself outside of layers (`lm_head`).
        elements: Elements in one layer; of all experts together.
        layers: The layers that have it; empty outside of layers.
        linear: Whether it may be quantized.
    """

    name: str
    elements: int
    shard: Shard
    layers: tuple[int, ...] = ()
    linear: bool = True

    @property
    def total(self) -> int:
        """Elements in the whole model."""
        return self.elements * (len(self.layers) if self.in_layers else 1)

    @property
    def in_layers(self) -> bool:
        """Whether layers have it."""
        return bool(self.layers)


class Cache(Enum):
    """The cache of a layer for each request."""

    FULL = "full attention"
    WINDOW = "sliding window"
    CHUNK = "chunked attention"
    LATENT = "latent (MLA)"
    STATE = "state (Mamba, linear attention)"


@dataclass(frozen=True, slots=True)
class CachedLayers:
    """Layers with equal caches.

    Attributes:
        kv_heads: KV heads in the whole model.
        width: Elements of key and value together, of one token and KV head; of one token for MLA.
        reach: Tokens of the window or chunk; 0 without one.
        index_bytes: Bytes per token of the indexer of sparse MLA; 0 without one.
        index_share: Fraction of the layers with a separate indexer.
        conv, state: Elements of one state in the whole model: of the convolution, which is also sharded, and of the recurrence.
        conv_kernel: Width of the convolution minus 1; `conv` has this many rows.
        wide: Whether keys and values have the model's type, regardless of the type of the KV cache.
    """

    kind: Cache
    count: int
    kv_heads: int = 0
    width: int = 0
    reach: int = 0
    index_bytes: int = 0
    index_share: float = 1.0
    conv: int = 0
    state: int = 0
    conv_kernel: int = 0
    wide: bool = False


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Attention of DeepSeek V4: every layer has a window, and most also compress 4 or 128 tokens into one.

    Attributes:
        by_four, by_many: Layers that compress 4 tokens (these have an indexer), and 128.
        layers: All layers.
        width: Elements of one token.
        index_width: The same of the indexer.
        window: Tokens of the window.
    """

    by_four: int
    by_many: int
    layers: int
    width: int
    index_width: int
    window: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Facts in a model's config.json about its memory.

    Attributes:
        vocabulary, hidden, layers, heads: Sizes.
        max_length: Longest context of the model in tokens; None if unknown.
        usual_length: vLLM's default context length if it is shorter (LongRoPE since 0.11.1).
        intermediate: Width of the dense MLP; 0 without one.
        experts, experts_per_token, expert_width: Sizes of the routed experts; 0 without.
        cached: The layers with a cache. Empty for a model without one.
        cache_known: Whether all layers with a cache are understood.
        compressed: Set for DeepSeek V4, which has no other cache.
        recurrent_width: Width of the recurrent layers; 0 without.
        rotary: Width of the rotary embedding of one head, of all tables together where layers have different ones.
        sections: Whether positions have a time, a height and a width, so that the rotary table is longer than the context.
        state_bytes: Bytes per element of a recurrent state; None for that of the model.
        vision: Whether the model has an encoder for images or similar input.
        vision_width: Size of a patch in it; 0 if unknown.
        latent: Whether attention is MLA.
        projected: Elements of one token that MLA projects from the latent vector: keys and values of all heads.
        streams: Copies of the hidden state of a token between layers (hyper connections).
        index_top: Tokens that sparse attention looks at; 0 without.
        draft_layers: Layers for speculative decoding in the checkpoint, loaded only if the engine speculates.
        heads_by_kind: Numbers of heads and groups, except attention heads, that vLLM divides by the tensor-parallel size.
        widths: Widths that are divided likewise, by the name of the module. Quantized ones must keep whole blocks.
    """

    architecture: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    max_length: int | None
    experts: int
    experts_per_token: int
    expert_width: int
    modules: tuple[Module, ...]
    drafts: tuple[Module, ...]
    cached: tuple[CachedLayers, ...]
    rotary: int
    usual_length: int | None = None
    compressed: CompressedAttention | None = None
    recurrent_width: int = 0
    cache_known: bool = True
    sections: bool = False
    state_bytes: int | None = None
    vision: bool = False
    vision_width: int = 0
    latent: bool = False
    projected: int = 0
    streams: int = 1
    index_top: int = 0
    element_bytes: int = 2
    heads_by_kind: tuple[tuple[str, int], ...] = ()
    widths: tuple[tuple[str, int], ...] = ()

    def __hash__(self) -> int:
        """Hash only the main sizes. Estimates are cached by shape."""
        return hash((self.architecture, self.hidden, self.layers, self.heads, self.vocabulary, self.max_length))

    @property
    def has_cache(self) -> bool:
        """Whether some layer has a KV cache or a state, even an unknown one."""
        return bool(self.cached) or self.compressed is not None or not self.cache_known

    @property
    def parameters(self) -> int:
        """Parameters, without those for speculative decoding."""
        return sum(module.total for module in self.modules)


# Sizes that vLLM divides by the tensor-parallel size, and refuses if it cannot: heads of recurrent layers, widths of dense modules.

EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
"""Keys of config.json for the number of routed experts."""


ReadSize = Callable[..., int]
"""Returns the first of these keys of config.json that is a size; 0 if none is."""


def heads_by_kind(size: ReadSize) -> tuple[tuple[str, int], ...]:
    """Return heads and groups of recurrent layers by name (mamba/mamba_mixer2.py, mamba/gdn/qwen_gdn_linear_attn.py, 0.33.0)."""
    heads = size("mamba_num_heads", "mamba_n_heads")
    groups = size("n_groups", "mamba_n_groups") if heads else 0
    known = (
        ("key heads of linear attention", size("linear_num_key_heads")),
        ("value heads of linear attention", size("linear_num_value_heads")),
        ("Mamba heads", heads),
        ("Mamba groups", groups if groups > 1 else 0),  # one group is on every GPU
    )
    return tuple((name, number) for name, number in known if number)


def divided_widths(size: ReadSize, architecture: str, kinds: tuple[str, ...], heads: int, head_dim: int) -> tuple[tuple[str, int], ...]:
    """Return the widths of dense modules by name.

    Args:
        size: Reads config.json.
        architecture: The model's class in lower case.
        kinds: The kind of each layer.
        heads: Attention heads.
        head_dim: Size of a head; 0 if the output of attention is not divided by heads.
    """
    experts, width = size(*EXPERT_KEYS), size("intermediate_size", "n_inner", "ffn_dim")
    dense = width
    if experts and "llama4" in architecture:
        dense = size("intermediate_size_mlp") or width
    elif experts and not size("first_k_dense_replace", "moe_layer_start_index") and "gemma4" not in architecture:
        dense = 0
    shared = size("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    shared = shared or (size("n_shared_experts", "num_shared_experts") * (size("moe_intermediate_size") or width) if experts else 0)
    mlp = "mixer" if any(kind in ("E", "-", "moe", "mlp") for kind in kinds) else "mlp"
    known = (
        ("self_attn.o_proj", heads * (size("v_head_dim") or head_dim) if head_dim else 0),
        (f"{mlp}.shared_experts", shared),
        (f"{mlp}.down_proj", dense),
    )
    return tuple((name, found) for name, found in known if found)


# Layers with a separate input embedding, and layers that read the keys and values of another layer (Gemma 4 E2B and E4B).
#
# Source: vllm/model_executor/models/gemma4.py, 0.20.0.


def per_layer_modules(size: ReadSize, layers: int, hidden: int) -> list[Module]:
    """Return the table of embeddings for all layers, its projection, and the two projections of each layer; nothing without them."""
    width = size("hidden_size_per_layer_input")
    if not width:
        return []
    vocabulary = size("vocab_size_per_layer_input", default=size("vocab_size"))
    every = tuple(range(layers))
    return [
        Module("embed_tokens_per_layer", vocabulary * layers * width, Shard.VOCABULARY, linear=False),
        Module("per_layer_model_projection", hidden * layers * width, Shard.TENSOR, linear=False),
        Module("per_layer_input_gate", 2 * hidden * width, Shard.REPLICATED, every),
    ]


def first_shared_layer(size: ReadSize, layers: int) -> int:
    """Return the first of the last layers, which store no keys and values; the number of layers without them."""
    shared = size("num_kv_shared_layers")
    return layers - shared if 0 < shared < layers else layers


def dense_modules(size: ReadSize, layers: int, elements: int, *, doubled: bool) -> list[Module]:
    """Return the MLPs; `doubled` if the MLPs of layers that share keys and values are twice as wide."""
    first = first_shared_layer(size, layers) if doubled else layers
    made = [Module("mlp.down_proj", elements, Shard.TENSOR, tuple(range(first)))]
    return made if first == layers else [*made, Module("mlp.down_proj", 2 * elements, Shard.TENSOR, tuple(range(first, layers)))]


# The tables of rotary embeddings, which vLLM computes for all positions of a model and keeps on every GPU.

TWO_TABLES = ("gemma3", "gemma4", "laguna")
"""Models whose layers with a window have a separate rotary embedding."""
MOST = 64
"""Maximum accepted scaling factor."""
MOST_SCALED, LONGEST = 1024, 1 << 30
"""Maximum accepted factor and original length of YaRN."""


WITH_SECTIONS = ("qwen2vl", "qwen25vl", "qwen25omni", "qwen3vl", "qwen3omni", "qwen35")
"""Models whose positions have a time, a height and a width (`mrope_section`), for files without this key."""


def has_sections(config: Mapping[str, Any], architecture: str) -> bool:
    """Return whether positions have sections for time, height and width. vLLM makes their tables longer than the context."""
    return bool(_parameters(config).get("mrope_section")) or any(name in architecture for name in WITH_SECTIONS)


def rotary_share(config: Mapping[str, Any]) -> float:
    """Return the fraction of a head that is rotated."""
    places = (config, _parameters(config), mapping(_parameters(config), "full_attention"))
    for value in (place.get("partial_rotary_factor") for place in places):
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
            return float(value)
    return 1.0


def rotary_width(config: Mapping[str, Any], architecture: str, width: int, second: int) -> int:
    """Return the elements of all tables for one position of the model's maximum length.

    Args:
        config: The language model's part of config.json; untrusted.
        architecture: The model's class in lower case.
        width: Elements of one position in the table of the layers with full attention.
        second: The same in the table of the other layers; 0 without such layers.
    """
    return width * _factor(config) + (second if any(name in architecture for name in TWO_TABLES) else 0)


def scaled_length(config: Mapping[str, Any], length: int) -> int:
    """Return the longest context that vLLM accepts: with YaRN the original length times its factor, else the length in the file.

    Linear and dynamic scaling multiply the length in the file, except for Gemma 3.
    Source: vllm/config/model.py _get_and_verify_max_len, 0.11.0 to 0.33.0.
    """
    written = _parameters(config)
    factor, kind = written.get("factor"), written.get("rope_type", written.get("type"))
    original = read_integer(written.get("original_max_position_embeddings")) if kind == "yarn" else length
    scaled = kind == "yarn" or (kind in ("linear", "dynamic") and "gemma3" not in str(config.get("model_type"))[:40])
    if not scaled or not original or not 0 < original < LONGEST:
        return length
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= MOST_SCALED:
        return length
    return int(original * factor)


def usual_length(config: Mapping[str, Any]) -> int | None:
    """Return vLLM's default context if it is not the longest one: with LongRoPE the length before scaling."""
    written = _parameters(config)
    original = read_integer(config.get("original_max_position_embeddings"))
    longer = written.get("rope_type", written.get("type")) in ("longrope", "su")
    return original if longer and original and 0 < original < LONGEST else None


def _factor(config: Mapping[str, Any]) -> int:
    """Return the factor by which linear scaling extends a table (rotary_embedding/linear_scaling_rope.py, 0.11.0 to 0.33.0)."""
    written = _parameters(config)
    scaling = mapping(written, "full_attention") or written
    factor = scaling.get("factor")
    if scaling.get("rope_type", scaling.get("type")) != "linear" or isinstance(factor, bool) or not isinstance(factor, int | float):
        return 1
    return ceil(factor) if 1 <= factor <= MOST else 1


def _parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(config, "rope_parameters") or mapping(config, "rope_scaling")


# Attention of DeepSeek V4: weights and tables by the compression of each layer.
#
# Source: vllm/models/deepseek_v4 (attention.py, compressor.py, common/rope.py, nvidia/model.py), 0.25.0.

MOST_STREAMS = 64
DEFAULT_STREAMS, DEFAULT_WINDOW = 4, 128
BY_FOUR, BY_MANY = 4, 128
WIDE = 2
"""Size of a 32-bit value in 16-bit elements."""


def _ratios(text: Mapping[str, Any], layers: int) -> list[int]:
    """Return the compression of each layer. The table of shapes has unordered counts, config.json a list."""
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
    """Return the number of copies of a token's hidden state between layers."""
    return min(size("hc_mult", default=DEFAULT_STREAMS if compressed else 1) or 1, MOST_STREAMS)


def compressed_rotary(compressed: CompressedAttention, size: ReadSize) -> int:
    """Return the elements of the rotary tables for one position. They have 32 bits; uncompressed layers have a separate table."""
    tables = 2 if compressed.by_four + compressed.by_many < compressed.layers else 1
    return WIDE * tables * size("qk_rope_head_dim")


def compressed_modules(text: Mapping[str, Any], size: ReadSize, layers: int) -> list[Module]:
    """Return the weights of attention, and of the modules that mix the copies of the hidden state."""
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
        # Keys, values and their weights; a compression of four has two overlapping groups. The indexer has the same modules.
        Module("attn.compressor", 4 * hidden * head_dim, Shard.REPLICATED, four, linear=False),
        Module("attn.compressor", 2 * hidden * head_dim, Shard.REPLICATED, many, linear=False),
        Module("attn.indexer.compressor", 4 * hidden * index_dim, Shard.REPLICATED, four, linear=False),
        Module("attn.indexer.weights_proj", hidden * index_heads, Shard.REPLICATED, four, linear=False),
        Module("attn.indexer", query * index_heads * index_dim, Shard.REPLICATED, four),
    ]


LARGEST = 1 << 40
"""Maximum of a size. Larger values are invalid. The limit keeps the arithmetic short."""
MOST_LAYERS, MOST_WIDTH = 4096, 1 << 16
CHUNKED_EVERY = 4
"""Llama 4: every fourth layer has full attention (no_rope_layer_interval)."""
INDEX_SCALE_BYTES = 4
LINEAR_KINDS = ("linear_attention", "mamba", "M")
FULL_KINDS = ("full_attention", "attention", "deepseek_sparse_attention", "*")
WINDOW_PATTERNS = {"gemma3": 6, "gemma2": 2, "cohere2": 4}
"""Period of layers with full attention if config.json does not state it (Transformers' defaults)."""


@dataclass(frozen=True, slots=True)
class _Config:
    """The language model's part of a config.json."""

    text: Mapping[str, Any]
    whole: Mapping[str, Any]

    def size(self, *keys: str, default: int = 0) -> int:
        """Return the first of these keys that has a size."""
        for key in keys:
            value = read_integer(self.text.get(key))
            if value is not None and 0 <= value < LARGEST:
                return value
        return default

    def flag(self, key: str) -> bool:
        """Return whether this key is true."""
        return self.text.get(key) is True


def read_shape(config: Mapping[str, Any]) -> ModelShape | None:
    """Read the shape; None if the sizes that every model has are missing."""
    nested = next((part for key in ("text_config", "llm_config", "language_config") if (part := mapping(config.get(key)))), {})
    read = _Config({**config, **nested}, config)
    kinds = _layer_kinds(read)
    layers, hidden = len(kinds), read.size("hidden_size", "n_embd", "d_model")
    heads, vocabulary = read.size("num_attention_heads", "n_head"), read.size("vocab_size")
    if not (0 < layers <= MOST_LAYERS and hidden and heads and vocabulary):
        return None
    architecture = _architecture(read)
    attention, cached, known = _attention(read, architecture, kinds, hidden, heads)
    blocks = _feed_forward(read, architecture, kinds, hidden)
    tied = read.flag("tie_word_embeddings") or (read.text.get("tie_word_embeddings") is None and "gemma" in architecture)
    if not (read.size("intermediate_size", "n_inner", "ffn_dim") or read.size(*EXPERT_KEYS)) or any("no_op" in kind for kind in kinds):
        return None  # layers of different widths, or a file of another kind
    ends = ("embed_tokens",) if tied else ("embed_tokens", "lm_head")
    outside = [Module(name, vocabulary * hidden, Shard.VOCABULARY, linear=False) for name in ends]
    positions = read.size("max_position_embeddings", "n_positions") if architecture.startswith(("opt", "gpt2")) else 0
    outside += [Module("embed_positions", positions * hidden, Shard.REPLICATED, linear=False)] if positions else []
    vision = _vision_elements(read)
    outside += [Module("vision_tower", vision, Shard.TENSOR, linear=False)] if vision else []
    outside += per_layer_modules(read.size, layers, hidden)
    latent = bool(read.size("kv_lora_rank"))
    head_dim = read.size("head_dim", default=hidden // heads)
    compressed = read_compression(read.text, read.size, layers)
    rotary = compressed_rotary(compressed, read.size) if compressed else read.size("qk_rope_head_dim") if latent else 0
    rotary = rotary or (0 if "nemotronh" in architecture else int(head_dim * rotary_share(read.text)))
    second = read.size("global_head_dim", default=head_dim) if len(set(kinds)) > 1 else 0
    return ModelShape(
        architecture=architecture,
        vocabulary=vocabulary,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=read.size("num_key_value_heads", default=heads) or heads,
        intermediate=read.size("intermediate_size", "n_inner", "ffn_dim"),
        max_length=scaled_length(read.text, read.size("max_position_embeddings", "n_positions", "max_sequence_length")) or None,
        usual_length=usual_length(read.text),
        experts=read.size(*EXPERT_KEYS),
        experts_per_token=read.size("num_experts_per_tok", "top_k_experts", "moe_topk", default=1),
        expert_width=(read.size("moe_latent_size") and read.size("moe_intermediate_size"))
        or read.size("moe_intermediate_size", "intermediate_size"),
        modules=(*outside, *attention, *blocks),
        drafts=_drafts(read, kinds, hidden, (*attention, *blocks)),
        cached=cached,
        compressed=compressed,
        recurrent_width=_recurrent_width(read),
        rotary=rotary_width(read.text, architecture, rotary, second),
        sections=has_sections(read.text, architecture),
        cache_known=known,
        state_bytes=_state_bytes(read),
        vision=bool(vision) or "vision_config" in config,
        vision_width=min(_Config(mapping(config.get("vision_config")), {}).size("hidden_size", "embed_dim"), MOST_WIDTH),
        latent=latent,
        projected=heads * (read.size("qk_nope_head_dim") + read.size("v_head_dim")) if latent else 0,
        streams=read_streams(compressed, read.size),
        index_top=read.size("index_topk"),
        heads_by_kind=heads_by_kind(read.size),
        widths=divided_widths(read.size, architecture, kinds, heads, 0 if compressed else head_dim),
        element_bytes=4 if (read.text.get("torch_dtype") or read.text.get("dtype")) == "float32" else 2,
    )


def _architecture(read: _Config) -> str:
    """Return the model's class, or its type, in lower case without separators."""
    names = read.whole.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else read.text.get("model_type")
    return re.sub(r"[_\-.]", "", name[:128].lower()) if isinstance(name, str) else ""


def _layer_kinds(read: _Config) -> tuple[str, ...]:
    """Return the kind of each layer in order; in any order if only counts per kind are known."""
    pattern = read.text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern and len(pattern) <= MOST_LAYERS:
        return tuple(pattern)
    for key in ("layers_block_type", "layer_types", "block_types"):
        written = read.text.get(key)
        if isinstance(written, list) and 0 < len(written) <= MOST_LAYERS and all(isinstance(kind, str) for kind in written):
            return tuple(written)
        if isinstance(written, Mapping) and written:
            counts = {str(kind): read_integer(count) or 0 for kind, count in written.items()}
            if 0 < sum(counts.values()) <= MOST_LAYERS and all(count >= 0 for count in counts.values()):
                return tuple(kind for kind, count in counts.items() for _ in range(count))
    layers = read.size("num_hidden_layers", "n_layer", "num_layers")
    if layers > MOST_LAYERS:
        return ()
    every = read.size("full_attention_interval")
    if every and read.size("linear_num_value_heads"):
        return tuple("full_attention" if (layer + 1) % every == 0 else "linear_attention" for layer in range(layers))
    windows = read.size("swa_layers") if read.size("sliding_window") else 0
    if windows:
        return ("sliding_attention",) * min(windows, layers) + ("full_attention",) * max(layers - windows, 0)
    if read.size("attention_chunk_size") and "llama4" in _architecture(read):
        return tuple("full_attention" if (layer + 1) % CHUNKED_EVERY == 0 else "chunked_attention" for layer in range(layers))
    return _window_kinds(read, layers)


def _window_kinds(read: _Config, layers: int) -> tuple[str, ...]:
    if not read.size("sliding_window") or read.text.get("use_sliding_window") is False:
        return ("full_attention",) * layers
    architecture = _architecture(read)
    written = read.text.get("hybrid_layer_pattern")  # MiMo: 1 is a window
    if isinstance(written, list) and len(written) == layers:
        return tuple("sliding_attention" if kind == 1 else "full_attention" for kind in written)
    every = read.size("sliding_window_pattern", "_sliding_window_pattern")
    every = every or next((every for name, every in WINDOW_PATTERNS.items() if name in architecture), 0)
    if every:
        return tuple("full_attention" if (layer + 1) % every == 0 else "sliding_attention" for layer in range(layers))
    whole = any(name in architecture for name in ("mistral", "mixtral", "phi3", "starcoder2"))
    return (("sliding_attention" if whole else "full_attention"),) * layers


def _attention(
    read: _Config, architecture: str, kinds: tuple[str, ...], hidden: int, heads: int
) -> tuple[list[Module], tuple[CachedLayers, ...], bool]:
    """Return the weights of attention, its caches, and whether all of them are understood."""
    head_dim = read.size("head_dim", default=hidden // heads) or hidden // heads
    kv_heads = read.size("num_key_value_heads", default=heads) or heads
    where = {kind: tuple(layer for layer, own in enumerate(kinds) if own == kind) for kind in dict.fromkeys(kinds)}
    modules: list[Module] = []
    cached: list[CachedLayers] = []
    known, first_shared = True, first_shared_layer(read.size, len(kinds))
    if read.text.get("compress_ratios"):
        return compressed_modules(read.text, read.size, len(kinds)), (), read_compression(read.text, read.size, len(kinds)) is not None
    if read.size("kv_lora_rank"):
        layers = tuple(layer for layer, kind in enumerate(kinds) if kind not in LINEAR_KINDS)
        latent, cache = _latent_attention(read, layers, hidden, heads)
        return latent, (cache,), len(layers) == len(kinds)
    for kind, layers in where.items():
        if kind in LINEAR_KINDS:
            weights, state = _recurrent(read, layers, hidden)
            modules += weights
            cached += [state] if state else []
            known = known and state is not None
        elif kind in FULL_KINDS or kind in ("sliding_attention", "chunked_attention", "sliding_window"):
            full = kind in FULL_KINDS
            own_dim = (read.size("global_head_dim") if full else 0) or head_dim
            own_heads = (read.size("num_global_key_value_heads") if full else 0) or kv_heads
            shared = full and read.flag("attention_k_eq_v")
            gate = 2 if read.flag("attn_output_gate") or "qwen3next" in architecture or "qwen35" in architecture else 1
            value_dim = read.size("v_head_dim") or own_dim
            for number, where_equal in _heads_by_layer(read, layers, heads).items():
                modules += [
                    Module("self_attn.q_proj", hidden * number * own_dim * gate, Shard.TENSOR, where_equal),
                    Module("self_attn.o_proj", hidden * number * value_dim, Shard.TENSOR, where_equal),
                ]
            modules += [
                Module("self_attn.k_proj", hidden * own_heads * own_dim, Shard.KV_HEADS, layers),
                Module("self_attn.v_proj", 0 if shared else hidden * own_heads * value_dim, Shard.KV_HEADS, layers),
                Module("norm", 2 * hidden, Shard.REPLICATED, layers, linear=False),
            ]
            if read.flag("qkv_bias") or read.flag("attention_bias") or "qwen2" in architecture:
                bias = (heads + 2 * own_heads) * own_dim
                modules.append(Module("self_attn.bias", bias, Shard.TENSOR, layers, linear=False))
            form = Cache.FULL if full else Cache.CHUNK if kind == "chunked_attention" else Cache.WINDOW
            reach = 0 if full else read.size("attention_chunk_size" if form is Cache.CHUNK else "sliding_window")
            keeping = sum(layer < first_shared for layer in layers)
            cached.append(CachedLayers(form if reach or full else Cache.FULL, keeping, own_heads, own_dim + value_dim, reach))
        elif kind not in ("moe", "mlp", "E", "-"):
            known = False
    ordered = not read.size("num_kv_shared_layers") or ("gemma4" in architecture and isinstance(read.text.get("layer_types"), list))
    return modules, tuple(each for each in cached if each.count or each.kind is Cache.STATE), known and ordered


def _heads_by_layer(read: _Config, layers: tuple[int, ...], heads: int) -> dict[int, tuple[int, ...]]:
    """Return the layers by their number of attention heads (Laguna states one for each layer)."""
    written = read.text.get("num_attention_heads_per_layer")
    if not isinstance(written, list) or not layers or len(written) <= max(layers):
        return {heads: layers}
    found: dict[int, list[int]] = {}
    for layer in layers:
        found.setdefault(read_integer(written[layer]) or heads, []).append(layer)
    return {number: tuple(own) for number, own in found.items() if 0 < number < MOST_WIDTH}


def _latent_attention(read: _Config, layers: tuple[int, ...], hidden: int, heads: int) -> tuple[list[Module], CachedLayers]:
    latent, rope = read.size("kv_lora_rank"), read.size("qk_rope_head_dim")
    nope, value, query = read.size("qk_nope_head_dim"), read.size("v_head_dim"), read.size("q_lora_rank")
    modules = [
        Module("self_attn.kv_a_proj_with_mqa", hidden * (latent + rope), Shard.REPLICATED, layers),
        Module("self_attn.kv_b_proj", latent * heads * (nope + value), Shard.TENSOR, layers),
        Module("self_attn.o_proj", heads * value * hidden, Shard.TENSOR, layers),
        Module("norm", 2 * hidden + latent + query, Shard.REPLICATED, layers, linear=False),
    ]
    if query:
        modules += [
            Module("self_attn.q_a_proj", hidden * query, Shard.REPLICATED, layers),
            Module("self_attn.q_b_proj", query * heads * (nope + rope), Shard.TENSOR, layers),
        ]
    else:
        modules.append(Module("self_attn.q_proj", hidden * heads * (nope + rope), Shard.TENSOR, layers))
    index_heads, index_dim = read.size("index_n_heads"), read.size("index_head_dim")
    every, offset = read.size("index_topk_freq", default=1) or 1, read.size("index_skip_topk_offset", default=2)
    own = tuple(layer for layer in layers if max(layer - offset + 1, 0) % every == 0)  # the others use the preceding one
    if index_heads and index_dim:
        modules += [
            Module("self_attn.indexer.wq_b", query * index_heads * index_dim, Shard.REPLICATED, own),
            Module("self_attn.indexer.wk", hidden * index_dim, Shard.REPLICATED, own),
            Module("self_attn.indexer.weights_proj", hidden * index_heads, Shard.REPLICATED, own, linear=False),
        ]
    index = index_dim + INDEX_SCALE_BYTES if index_dim else 0  # FP8 and one scale for each token
    share = len(own) / len(layers) if layers else 1.0
    return modules, CachedLayers(Cache.LATENT, len(layers), 1, latent + rope, index_bytes=index, index_share=share)


def _recurrent_width(read: _Config) -> int:
    gated = read.size("linear_num_value_heads") * read.size("linear_value_head_dim")
    return gated or read.size("mamba_num_heads", "mamba_n_heads") * read.size("mamba_head_dim", "mamba_d_head")


def _recurrent(read: _Config, layers: tuple[int, ...], hidden: int) -> tuple[list[Module], CachedLayers | None]:
    """Return weights and state of a request for a gated delta net (Qwen3-Next) or Mamba 2."""
    value_heads = read.size("linear_num_value_heads")
    if value_heads:
        key_width = read.size("linear_num_key_heads") * read.size("linear_key_head_dim")
        value_width = value_heads * read.size("linear_value_head_dim")
        kernel, conv = read.size("linear_conv_kernel_dim", default=4), 2 * key_width + value_width
        modules = [
            Module("linear_attn.in_proj_qkvz", hidden * 2 * (key_width + value_width), Shard.TENSOR, layers),
            Module("linear_attn.in_proj_ba", hidden * 2 * value_heads, Shard.TENSOR, layers, linear=False),
            Module("linear_attn.conv1d", conv * kernel, Shard.TENSOR, layers, linear=False),
            Module("linear_attn.out_proj", value_width * hidden, Shard.TENSOR, layers),
            Module("norm", 2 * hidden, Shard.REPLICATED, layers, linear=False),
        ]
        state = value_width * read.size("linear_key_head_dim")
    else:
        heads = read.size("mamba_num_heads", "mamba_n_heads")
        inner = heads * read.size("mamba_head_dim", "mamba_d_head")
        groups, width = read.size("n_groups", "mamba_n_groups", default=1), read.size("ssm_state_size", "mamba_d_state")
        kernel, conv = read.size("conv_kernel", "mamba_d_conv", default=4), inner + 2 * groups * width
        modules = [
            Module("mixer.in_proj", hidden * (inner + conv + heads), Shard.TENSOR, layers),
            Module("mixer.conv1d", conv * kernel, Shard.TENSOR, layers, linear=False),
            Module("mixer.out_proj", inner * hidden, Shard.TENSOR, layers),
            Module("norm", hidden + inner, Shard.REPLICATED, layers, linear=False),
        ]
        state = inner * width
    if not state or not conv:
        return [], None
    rows = max(kernel - 1, 1)
    return modules, CachedLayers(Cache.STATE, len(layers), conv=conv * rows, state=state, conv_kernel=rows)


def _feed_forward(read: _Config, architecture: str, kinds: tuple[str, ...], hidden: int) -> list[Module]:
    experts = read.size(*EXPERT_KEYS)
    nemotron = any(kind in ("E", "-", "moe", "mlp") for kind in kinds)
    if nemotron:
        return _nemotron_blocks(read, kinds, hidden, experts)
    layers = tuple(range(len(kinds)))
    width = read.size("intermediate_size", "n_inner", "ffn_dim")
    matrices = 2 if architecture.startswith(("opt", "gpt2", "gptneox", "falcon", "starcoder2")) else 3
    if not experts:
        return dense_modules(read.size, len(kinds), matrices * hidden * width, doubled=read.flag("use_double_wide_mlp"))
    dense = read.size("first_k_dense_replace", "moe_layer_start_index")
    step = read.size("interleave_moe_layer_step", "decoder_sparse_step", default=1) or 1
    named = frozenset(read_integer(layer) for layer in sequence(read.text.get("mlp_only_layers"))[:MOST_LAYERS])
    moe = tuple(layer for layer in layers if layer >= dense and (layer + 1) % step == 0 and layer not in named)
    rest = tuple(layer for layer in layers if layer not in frozenset(moe))
    own = read.size("moe_intermediate_size", default=width) or width
    shared = read.size("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    shared = shared or read.size("n_shared_experts", "num_shared_experts") * own
    if "llama4" in architecture:
        own, shared, width = width, width, read.size("intermediate_size_mlp", default=width)
    modules = [
        Module("mlp.experts", experts * 3 * hidden * own, Shard.EXPERTS, moe),
        Module("mlp.gate", hidden * experts, Shard.REPLICATED, moe, linear=False),
    ]
    if "gptoss" in architecture:
        modules.append(Module("mlp.experts.bias", experts * (2 * own + hidden), Shard.EXPERTS, moe, linear=False))
    if shared:
        modules.append(Module("mlp.shared_experts", 3 * hidden * shared, Shard.TENSOR, moe))
    if rest and width:
        modules.append(Module("mlp.down_proj", 3 * hidden * width, Shard.TENSOR, rest))
    if "gemma4" in architecture and width:
        modules.append(Module("mlp.down_proj", 3 * hidden * width, Shard.TENSOR, moe))
    return modules


def _nemotron_blocks(read: _Config, kinds: tuple[str, ...], hidden: int, experts: int) -> list[Module]:
    """Return layers that are attention, Mamba, or a feed-forward block without a gate (vllm/model_executor/models/nemotron_h.py)."""
    moe = tuple(layer for layer, kind in enumerate(kinds) if kind in ("E", "moe"))
    dense = tuple(layer for layer, kind in enumerate(kinds) if kind in ("-", "mlp"))
    latent = read.size("moe_latent_size")
    modules = []
    if dense:
        modules.append(Module("mixer.down_proj", 2 * hidden * read.size("intermediate_size"), Shard.TENSOR, dense))
    if moe and experts:
        width, shared = read.size("moe_intermediate_size"), read.size("moe_shared_expert_intermediate_size")
        modules += [
            Module("mixer.experts", experts * 2 * (latent or hidden) * width, Shard.EXPERTS, moe),
            Module("mixer.gate", hidden * experts, Shard.REPLICATED, moe, linear=False),
            Module("mixer.shared_experts", 2 * hidden * shared * read.size("n_shared_experts", default=1), Shard.TENSOR, moe),
            Module("mixer.latent_proj", 2 * hidden * latent, Shard.REPLICATED, moe),
        ]
    return modules


def _drafts(read: _Config, kinds: tuple[str, ...], hidden: int, blocks: tuple[Module, ...]) -> tuple[Module, ...]:
    """Return the layers for multi-token prediction: like the last layer (in Nemotron 3 the last of each kind), and a projection."""
    count = read.size("num_nextn_predict_layers", "mtp_num_hidden_layers")
    if not count or count > MOST_LAYERS or not blocks:
        return ()
    last = max((layer for module in blocks for layer in module.layers), default=0)
    like = {last}
    if "E" in kinds and "*" in kinds:
        like = {max(layer for layer, kind in enumerate(kinds) if kind == own) for own in ("*", "E")}
    own = tuple(last + 1 + number for number in range(count))
    made = [Module(each.name, each.elements, each.shard, own, each.linear) for each in blocks if not like.isdisjoint(each.layers)]
    return (*made, Module("eh_proj", 2 * hidden * hidden, Shard.REPLICATED, own, linear=False))


def _vision_elements(read: _Config) -> int:
    """Return the parameters of the image encoder: from its sizes, or from the table of well-known models."""
    stated = read.size("vision_params")
    if stated:
        return stated
    vision = _Config(mapping(read.whole.get("vision_config")), {})
    hidden = vision.size("hidden_size", "embed_dim")
    depth = vision.size("num_hidden_layers", "depth")
    width = vision.size("intermediate_size", default=4 * hidden)
    if not 0 < depth <= MOST_LAYERS or not hidden:
        return 0
    gated = "silu" in str(vision.text.get("hidden_act", ""))[:32]
    patch = vision.size("patch_size", default=14)
    out = vision.size("out_hidden_size")
    merged = hidden * vision.size("spatial_merge_size", default=1) ** 2
    merger = merged * merged + merged * out if out else 0
    return depth * (4 * hidden * hidden + (3 if gated else 2) * hidden * width) + 3 * hidden * patch * patch + merger


def _state_bytes(read: _Config) -> int | None:
    written = next((text for key in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype") if isinstance(text := read.text.get(key), str)), None)
    return None if written is None else 4 if written == "float32" else 2

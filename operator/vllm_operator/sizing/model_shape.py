"""The shape of a model from its config.json, by the rules of vLLM and Transformers.

The file is untrusted, so its content never raises an error. A model with missing or impossible sizes has no shape.
Sizes are numbers of elements. How many bytes an element takes, and on how many GPUs it is spread, is decided elsewhere.
Sources: the models in vllm/model_executor/models and vllm/transformers_utils/model_arch_config_convertor.py (0.33.0).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil
from typing import Any

from vllm_operator.api.reading import mapping, read_integer, sequence, text


class Shard(Enum):
    """Distribution of a module over the GPUs of one engine."""

    REPLICATED = "replicated"
    TENSOR = "tensor"
    KV_HEADS = "kv heads"  # over the tensor-parallel ranks, but at least one on each
    VOCABULARY = "vocabulary"
    EXPERTS = "experts"


@dataclass(frozen=True, slots=True)
class Module:
    """Weights of one kind."""

    name: str  # path inside a layer, such as `self_attn.k_proj`; outside of layers that of the module itself (`lm_head`)
    elements: int  # of one layer, and of all experts together
    shard: Shard
    layers: tuple[int, ...] = ()  # the layers that have it; empty outside of layers
    linear: bool = True  # whether it may be quantized
    width: int = 0  # side of a dense module that the tensor-parallel size must divide; 0 if that is not checked

    @property
    def total(self) -> int:
        """Elements in the whole model."""
        return self.elements * (len(self.layers) or 1)


class Cache(Enum):
    """The cache of a layer for each request."""

    FULL = "full attention"
    WINDOW = "sliding window"
    CHUNK = "chunked attention"
    LATENT = "latent (MLA)"
    STATE = "state (Mamba, linear attention)"


@dataclass(frozen=True, slots=True)
class CachedLayers:
    """Layers with equal caches."""

    kind: Cache
    count: int
    kv_heads: int = 0  # in the whole model
    width: int = 0  # elements of key and value together, of one token and KV head; of one token for MLA
    reach: int = 0  # tokens of the window or chunk; 0 without one
    index_bytes: int = 0  # per token, of the indexer of sparse MLA; 0 without one
    index_share: float = 1.0  # fraction of the layers with a separate indexer
    conv: int = 0  # elements in the whole model of the state of the convolution, which is also sharded
    state: int = 0  # elements in the whole model of the state of the recurrence
    conv_kernel: int = 0  # rows of `conv`: the width of the convolution minus 1
    wide: bool = False  # keys and values have the model's type, regardless of the type of the KV cache


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Attention of DeepSeek V4: every layer has a window, and most also compress 4 or 128 tokens into one."""

    by_four: int  # layers that compress 4 tokens; these have an indexer
    by_many: int  # layers that compress 128 tokens
    width: int  # elements of one token
    index_width: int  # the same of the indexer
    window: int  # in tokens


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Facts in a model's config.json about its memory. Sizes of what the model does not have are 0."""

    architecture: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int  # width of the dense MLP
    max_length: int | None  # longest context of the model in tokens; None if unknown
    experts: int
    experts_per_token: int
    expert_width: int  # of a routed expert
    modules: tuple[Module, ...]
    drafts: tuple[Module, ...]  # layers for speculative decoding in the checkpoint, loaded only if the engine speculates
    cached: tuple[CachedLayers, ...]  # the layers with a cache
    rotary: int  # width of the rotary embedding of one head, of all tables together where layers have different ones
    usual_length: int | None = None  # vLLM's default context length if it is shorter (LongRoPE since 0.11.1)
    compressed: CompressedAttention | None = None  # of DeepSeek V4, which has no other cache
    recurrent_width: int = 0  # of the recurrent layers
    cache_known: bool = True  # whether all layers with a cache are understood
    sections: bool = False  # positions have a time, a height and a width, so that the rotary table is longer than the context
    state_bytes: int | None = None  # per element of a recurrent state; None for that of the model
    vision: bool = False  # it has an encoder for images or similar input
    vision_width: int = 0  # elements of a patch in the encoder; 0 if unknown
    latent: bool = False  # attention is MLA
    projected: int = 0  # elements of one token that MLA projects from the latent vector: keys and values of all heads
    streams: int = 1  # copies of the hidden state of a token between layers (hyper connections)
    index_top: int = 0  # tokens that sparse attention looks at
    element_bytes: int = 2
    heads_by_kind: tuple[tuple[str, int], ...] = ()  # heads and groups, except attention heads, that the tensor-parallel size must divide

    @property
    def has_cache(self) -> bool:
        """Whether some layer has a KV cache or a state, even an unknown one."""
        return bool(self.cached) or self.compressed is not None or not self.cache_known

    @property
    def parameters(self) -> int:
        """Parameters, without those for speculative decoding."""
        return sum(module.total for module in self.modules)


LARGEST = 1 << 40  # Maximum of a size. Larger values are invalid. The limit keeps the arithmetic short.
MAX_LAYERS, MAX_WIDTH, MAX_STREAMS, LONGEST = 4096, 1 << 16, 64, 1 << 30
MAX_STRETCHED, MAX_SCALED = 64, 1024  # maximum accepted factors: of the rotary table with linear scaling, and of the context
NESTED = ("text_config", "llm_config", "language_config")  # keys of config.json under which multimodal models have the language model
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "max_seq_length", "seq_len")
"""Keys of config.json for the longest context. The smallest value counts, unless `model_max_length` states it (Command R)."""
EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
"""Keys of config.json for the number of routed experts."""
CHUNKED_EVERY = 4  # Llama 4: every fourth layer has full attention (no_rope_layer_interval)
INDEX_SCALE_BYTES = 4
LINEAR_KINDS = ("linear_attention", "mamba", "M")
FULL_KINDS = ("full_attention", "attention", "deepseek_sparse_attention", "*")
WINDOW_KINDS = ("sliding_attention", "chunked_attention", "sliding_window")
BLOCK_KINDS = ("E", "-", "moe", "mlp")  # layers of hybrid models that are only a feed-forward block
WINDOW_PATTERNS = {"gemma3": 6, "gemma2": 2, "cohere2": 4}
"""Period of layers with full attention if config.json does not state it (Transformers' defaults)."""
ONLY_WINDOWS = ("mistral", "mixtral", "phi3", "starcoder2")  # models whose layers all have the window of config.json
TWO_TABLES = ("gemma3", "gemma4", "laguna")  # models whose layers with a window have a separate rotary embedding
WITH_SECTIONS = ("qwen2vl", "qwen25vl", "qwen25omni", "qwen3vl", "qwen3omni", "qwen35")
"""Models whose positions have a time, a height and a width (`mrope_section`), for files without this key."""
UNGATED = ("opt", "gpt2", "gptneox", "falcon", "starcoder2")  # models whose MLP has two matrices instead of three
UNFOLDED = ("minicpm3",)
"""Values of `model_type` with the sizes of MLA whose keys and values vLLM caches for each head (models/minicpm3.py, 0.33.0)."""
BY_FOUR, BY_MANY = 4, 128
DEFAULT_STREAMS, DEFAULT_WINDOW = 4, 128
"""DeepSeek V4: tokens that a layer compresses into one, and defaults."""
WIDE = 2  # size of a 32-bit value in 16-bit elements


class ModelConfig:
    """The language model's part of a config.json, with the sizes that every part of a model depends on."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        nested = next((part for key in NESTED if (part := mapping(config, key))), {})
        self.whole, self.text = config, {**config, **nested}
        names = sequence(config.get("architectures"))
        name = names[0] if names and isinstance(names[0], str) else self.text.get("model_type")
        self.architecture = re.sub(r"[_\-.]", "", name[:128].lower()) if isinstance(name, str) else ""  # the class, or the type
        self.rope = mapping(self.text, "rope_parameters") or mapping(self.text, "rope_scaling")
        self.kinds = _layer_kinds(self)
        self.layers = len(self.kinds)
        self.hidden = self.size("hidden_size", "n_embd", "d_model")
        self.heads = self.size("num_attention_heads", "n_head")
        self.kv_heads = self.size("num_key_value_heads") or self.heads
        self.latent = 0 if self.text.get("model_type") in UNFOLDED else self.size("kv_lora_rank")
        whole = self.size("qk_nope_head_dim") + self.size("qk_rope_head_dim") if not self.latent else 0
        self.head_dim = self.size("head_dim") or whole or (self.hidden // self.heads if self.heads else 0)
        self.experts = self.size(*EXPERT_KEYS)
        self.width = self.size("intermediate_size", "n_inner", "ffn_dim")

    def first(self, *keys: str) -> int | None:
        """Return the first of these keys that has a size; None if none has."""
        values = (read_integer(self.text.get(key)) for key in keys)
        return next((value for value in values if value is not None and 0 <= value < LARGEST), None)

    def size(self, *keys: str, default: int = 0) -> int:
        """Return the first of these keys that has a size, or the default."""
        value = self.first(*keys)
        return default if value is None else value

    def flag(self, key: str) -> bool:
        """Return whether this key is true."""
        return self.text.get(key) is True

    def is_like(self, *names: str) -> bool:
        """Return whether the architecture contains one of these names."""
        return any(name in self.architecture for name in names)

    def layers_of(self, *kinds: str) -> tuple[int, ...]:
        """Return the layers of these kinds."""
        return tuple(layer for layer, kind in enumerate(self.kinds) if kind in kinds)


def read_shape(config: Mapping[str, Any]) -> ModelShape | None:
    """Read the shape; None if the sizes that every model has are missing."""
    read = ModelConfig(config)
    vocabulary = read.size("vocab_size")
    if not (0 < read.layers <= MAX_LAYERS and read.hidden and read.heads and vocabulary):
        return None
    if not (read.width or read.experts) or any("no_op" in kind for kind in read.kinds):
        return None  # layers of different widths, or a file of another kind
    compressed = _read_compression(read)
    attention, cached, known = _attention(read, compressed)
    blocks = (*attention, *_feed_forward(read))
    vision, vision_width = _read_encoder(read)
    max_length, usual_length = _read_lengths(read)
    state = text(read.text, "mamba_ssm_dtype") or text(read.text, "mamba_ssm_cache_dtype")
    return ModelShape(
        architecture=read.architecture,
        vocabulary=vocabulary,
        hidden=read.hidden,
        layers=read.layers,
        heads=read.heads,
        kv_heads=read.kv_heads,
        intermediate=read.width,
        max_length=max_length or None,
        usual_length=usual_length,
        experts=read.experts,
        experts_per_token=read.size("num_experts_per_tok", "top_k_experts", "moe_topk", default=1),
        expert_width=(read.size("moe_latent_size") and read.size("moe_intermediate_size"))
        or read.size("moe_intermediate_size", "intermediate_size"),
        modules=(*_outside_layers(read, vocabulary, vision), *blocks),
        drafts=_drafts(read, blocks),
        cached=cached,
        compressed=compressed,
        recurrent_width=read.size("linear_num_value_heads") * read.size("linear_value_head_dim")
        or read.size("mamba_num_heads", "mamba_n_heads") * read.size("mamba_head_dim", "mamba_d_head"),
        rotary=_rotary_width(read, compressed),
        sections=bool(read.rope.get("mrope_section")) or read.is_like(*WITH_SECTIONS),
        cache_known=known,
        state_bytes=(4 if state == "float32" else 2) if state else None,
        vision=bool(vision) or "vision_config" in config,
        vision_width=min(vision_width, MAX_WIDTH),
        latent=bool(read.latent),
        projected=read.heads * (read.size("qk_nope_head_dim") + read.size("v_head_dim")) if read.latent else 0,
        streams=_read_streams(read),
        index_top=read.size("index_topk"),
        heads_by_kind=_heads_by_kind(read),
        element_bytes=4 if (read.text.get("torch_dtype") or read.text.get("dtype")) == "float32" else 2,
    )


def _layer_kinds(read: ModelConfig) -> tuple[str, ...]:
    """Return the kind of each layer in order; in any order if only counts per kind are known."""
    pattern = read.text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern and len(pattern) <= MAX_LAYERS:
        return tuple(pattern)
    for key in ("layers_block_type", "layer_types", "block_types"):
        written = read.text.get(key)
        if isinstance(written, list) and 0 < len(written) <= MAX_LAYERS and all(isinstance(kind, str) for kind in written):
            return tuple(written)
        if isinstance(written, Mapping) and written:
            counts = {str(kind): read_integer(count) or 0 for kind, count in written.items()}
            if 0 < sum(counts.values()) <= MAX_LAYERS and all(count >= 0 for count in counts.values()):
                return tuple(kind for kind, count in counts.items() for _ in range(count))
    layers, window = read.size("num_hidden_layers", "n_layer", "num_layers"), read.size("sliding_window")
    if layers > MAX_LAYERS:
        return ()
    every = read.size("full_attention_interval")
    if every and read.size("linear_num_value_heads"):
        return _alternating(layers, every, "linear_attention")
    windows = read.size("swa_layers") if window else 0
    if windows:
        return ("sliding_attention",) * min(windows, layers) + ("full_attention",) * max(layers - windows, 0)
    if read.size("attention_chunk_size") and read.is_like("llama4"):
        return _alternating(layers, CHUNKED_EVERY, "chunked_attention")
    if not window or read.text.get("use_sliding_window") is False:
        return ("full_attention",) * layers
    listed = read.text.get("hybrid_layer_pattern")  # MiMo: 1 is a window
    if isinstance(listed, list) and len(listed) == layers:
        return tuple("sliding_attention" if kind == 1 else "full_attention" for kind in listed)
    every = read.size("sliding_window_pattern", "_sliding_window_pattern")
    every = every or next((every for name, every in WINDOW_PATTERNS.items() if read.is_like(name)), 0)
    if every:
        return _alternating(layers, every, "sliding_attention")
    return ("sliding_attention" if read.is_like(*ONLY_WINDOWS) else "full_attention",) * layers


def _alternating(layers: int, every: int, other: str) -> tuple[str, ...]:
    return tuple("full_attention" if (layer + 1) % every == 0 else other for layer in range(layers))


def _outside_layers(read: ModelConfig, vocabulary: int, vision: int) -> list[Module]:
    tied = read.flag("tie_word_embeddings") or (read.text.get("tie_word_embeddings") is None and "gemma" in read.architecture)
    positions = read.size("max_position_embeddings", "n_positions") if read.architecture.startswith(("opt", "gpt2")) else 0
    width = read.size("hidden_size_per_layer_input")
    own_vocabulary = read.size("vocab_size_per_layer_input", default=vocabulary)
    found = [
        Module("embed_tokens", vocabulary * read.hidden, Shard.VOCABULARY, linear=False),
        Module("lm_head", 0 if tied else vocabulary * read.hidden, Shard.VOCABULARY, linear=False),
        Module("embed_positions", positions * read.hidden, Shard.REPLICATED, linear=False),
        Module("vision_tower", vision, Shard.TENSOR, linear=False),
        # Gemma 4 E2B and E4B: embeddings for all layers, their projection, and two projections of each layer (gemma4.py, 0.20.0)
        Module("embed_tokens_per_layer", own_vocabulary * read.layers * width, Shard.VOCABULARY, linear=False),
        Module("per_layer_model_projection", read.hidden * read.layers * width, Shard.TENSOR, linear=False),
        Module("per_layer_input_gate", 2 * read.hidden * width, Shard.REPLICATED, tuple(range(read.layers))),
    ]
    return [module for module in found if module.elements]


def _heads_by_kind(read: ModelConfig) -> tuple[tuple[str, int], ...]:
    """Return heads and groups of recurrent layers by name (mamba/mamba_mixer2.py, mamba/gdn/qwen_gdn_linear_attn.py, 0.33.0)."""
    heads = read.size("mamba_num_heads", "mamba_n_heads")
    groups = read.size("n_groups", "mamba_n_groups") if heads else 0
    known = (
        ("key heads of linear attention", read.size("linear_num_key_heads")),
        ("value heads of linear attention", read.size("linear_num_value_heads")),
        ("Mamba heads", heads),
        ("Mamba groups", groups if groups > 1 else 0),  # one group is on every GPU
    )
    return tuple((name, number) for name, number in known if number)


# The context, and the tables of rotary embeddings, which vLLM computes for all positions of a model and keeps on every GPU.


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _factor(scaling: Mapping[str, Any], most: int, *kinds: str) -> float | None:
    """Return the factor of a scaling of one of these kinds; None for another kind, or an implausible factor."""
    factor = _number(scaling.get("factor")) if scaling.get("rope_type", scaling.get("type")) in kinds else None
    return factor if factor is not None and 1 <= factor <= most else None


def _read_lengths(read: ModelConfig) -> tuple[int, int | None]:
    """Return the longest context that vLLM accepts, and the default one if it is shorter: with LongRoPE the length before scaling."""
    # YaRN multiplies the original length with its factor, linear and dynamic scaling the length in the file, except for Gemma 3.
    # Source: vllm/config/model.py _get_and_verify_max_len, 0.11.0 to 0.33.0.
    stated = [size for key in LENGTH_KEYS if (size := read.size(key))]
    length = read.size("model_max_length") or min(stated, default=0)
    yarn = _factor(read.rope, MAX_SCALED, "yarn")
    original = read_integer(read.rope.get("original_max_position_embeddings")) if yarn else length
    scaled = yarn if yarn or "gemma3" in str(read.text.get("model_type"))[:40] else _factor(read.rope, MAX_SCALED, "linear", "dynamic")
    longest = int(original * scaled) if scaled and original and 0 < original < LONGEST else length
    before = read_integer(read.text.get("original_max_position_embeddings"))
    longer = read.rope.get("rope_type", read.rope.get("type")) in ("longrope", "su")
    return longest, before if longer and before and 0 < before < LONGEST else None


def _rotary_width(read: ModelConfig, compressed: CompressedAttention | None) -> int:
    """Return the elements of all tables for one position of the model's maximum length."""
    # The tables of DeepSeek V4 have 32 bits, and its uncompressed layers have a separate table. Linear scaling extends a table
    # (rotary_embedding/linear_scaling_rope.py, 0.11.0 to 0.33.0).
    width = read.size("qk_rope_head_dim") if read.latent or compressed else 0
    if compressed:
        width *= WIDE * (2 if compressed.by_four + compressed.by_many < read.layers else 1)
    if not width and "nemotronh" not in read.architecture:
        places = (read.text, read.rope, mapping(read.rope, "full_attention"))
        shares = (share for place in places if (share := _number(place.get("partial_rotary_factor"))) is not None and 0 < share <= 1)
        width = int(read.head_dim * next(shares, 1.0))
    stretched = _factor(mapping(read.rope, "full_attention") or read.rope, MAX_STRETCHED, "linear") or 1
    second = read.size("global_head_dim", default=read.head_dim) if len(set(read.kinds)) > 1 and read.is_like(*TWO_TABLES) else 0
    return width * ceil(stretched) + second


# Attention: weights and caches by the kind of layer.


def _attention(read: ModelConfig, compressed: CompressedAttention | None) -> tuple[list[Module], tuple[CachedLayers, ...], bool]:
    """Return the weights of attention, its caches, and whether all of them are understood."""
    if read.text.get("compress_ratios"):
        return _compressed_modules(read), (), compressed is not None
    if read.latent:
        layers = tuple(layer for layer, kind in enumerate(read.kinds) if kind not in LINEAR_KINDS)
        latent, cache = _latent_attention(read, layers)
        return latent, (cache,), len(layers) == read.layers
    modules: list[Module] = []
    cached: list[CachedLayers] = []
    # Gemma 4 E2B and E4B: the last layers read the keys and values of another layer. Elsewhere the order of the kinds is unknown.
    known = not read.size("num_kv_shared_layers") or ("gemma4" in read.architecture and isinstance(read.text.get("layer_types"), list))
    for kind in dict.fromkeys(read.kinds):
        layers = read.layers_of(kind)
        if kind in LINEAR_KINDS:
            weights, state = _recurrent(read, layers)
            known = known and state is not None
        elif kind in FULL_KINDS or kind in WINDOW_KINDS:
            weights, state = _attention_of(read, kind, layers)
        else:
            weights, state = [], None
            known = known and kind in BLOCK_KINDS
        modules += weights
        cached += [state] if state and (state.count or state.kind is Cache.STATE) else []
    return modules, tuple(cached), known


def _attention_of(read: ModelConfig, kind: str, layers: tuple[int, ...]) -> tuple[list[Module], CachedLayers]:
    full, hidden = kind in FULL_KINDS, read.hidden
    dim = (read.size("global_head_dim") if full else 0) or read.head_dim
    kv_heads = (read.size("num_global_key_value_heads") if full else 0) or read.kv_heads
    value_dim = read.size("v_head_dim") or dim
    shared = full and read.flag("attention_k_eq_v")
    gate = 2 if read.flag("attn_output_gate") or read.is_like("qwen3next", "qwen35") else 1
    usual = read.heads * (read.size("v_head_dim") or read.head_dim)
    modules = []
    for heads, own in _heads_by_layer(read, layers).items():
        modules += [
            Module("self_attn.q_proj", hidden * heads * dim * gate, Shard.TENSOR, own),
            Module("self_attn.o_proj", hidden * heads * value_dim, Shard.TENSOR, own, width=usual),
        ]
    modules += [
        Module("self_attn.k_proj", hidden * kv_heads * dim, Shard.KV_HEADS, layers),
        Module("self_attn.v_proj", 0 if shared else hidden * kv_heads * value_dim, Shard.KV_HEADS, layers),
        Module("norm", 2 * hidden, Shard.REPLICATED, layers, linear=False),
    ]
    if read.flag("qkv_bias") or read.flag("attention_bias") or read.is_like("qwen2"):
        modules.append(Module("self_attn.bias", (read.heads + 2 * kv_heads) * dim, Shard.TENSOR, layers, linear=False))
    form = Cache.FULL if full else Cache.CHUNK if kind == "chunked_attention" else Cache.WINDOW
    reach = 0 if full else read.size("attention_chunk_size" if form is Cache.CHUNK else "sliding_window")
    keeping = sum(layer < _first_shared_layer(read) for layer in layers)
    return modules, CachedLayers(form if reach or full else Cache.FULL, keeping, kv_heads, dim + value_dim, reach)


def _first_shared_layer(read: ModelConfig) -> int:
    """Return the first of the last layers, which store no keys and values; the number of layers without them."""
    shared = read.size("num_kv_shared_layers")
    return read.layers - shared if 0 < shared < read.layers else read.layers


def _heads_by_layer(read: ModelConfig, layers: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """Return the layers by their number of attention heads (Laguna states one for each layer)."""
    written = read.text.get("num_attention_heads_per_layer")
    if not isinstance(written, list) or not layers or len(written) <= max(layers):
        return {read.heads: layers}
    found: dict[int, list[int]] = {}
    for layer in layers:
        found.setdefault(read_integer(written[layer]) or read.heads, []).append(layer)
    return {number: tuple(own) for number, own in found.items() if 0 < number < MAX_WIDTH}


def _latent_attention(read: ModelConfig, layers: tuple[int, ...]) -> tuple[list[Module], CachedLayers]:
    hidden, heads, latent = read.hidden, read.heads, read.latent
    rope, query, value = read.size("qk_rope_head_dim"), read.size("q_lora_rank"), read.size("v_head_dim")
    nope = read.size("qk_nope_head_dim")
    modules = [
        Module("self_attn.kv_a_proj_with_mqa", hidden * (latent + rope), Shard.REPLICATED, layers),
        Module("self_attn.kv_b_proj", latent * heads * (nope + value), Shard.TENSOR, layers),
        Module("self_attn.o_proj", heads * value * hidden, Shard.TENSOR, layers, width=heads * (value or read.head_dim)),
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


def _recurrent(read: ModelConfig, layers: tuple[int, ...]) -> tuple[list[Module], CachedLayers | None]:
    hidden, value_heads = read.hidden, read.size("linear_num_value_heads")
    if value_heads:
        width, inner = read.size("linear_key_head_dim"), value_heads * read.size("linear_value_head_dim")
        key_width = read.size("linear_num_key_heads") * width
        kernel, conv, norm = read.size("linear_conv_kernel_dim", default=4), 2 * key_width + inner, 2 * hidden
        name, modules = "linear_attn", [Module("linear_attn.in_proj_qkvz", hidden * 2 * (key_width + inner), Shard.TENSOR, layers)]
        modules.append(Module("linear_attn.in_proj_ba", hidden * 2 * value_heads, Shard.TENSOR, layers, linear=False))
    else:
        heads, width = read.size("mamba_num_heads", "mamba_n_heads"), read.size("ssm_state_size", "mamba_d_state")
        inner, groups = heads * read.size("mamba_head_dim", "mamba_d_head"), read.size("n_groups", "mamba_n_groups", default=1)
        kernel, conv, norm = read.size("conv_kernel", "mamba_d_conv", default=4), inner + 2 * groups * width, hidden + inner
        name, modules = "mixer", [Module("mixer.in_proj", hidden * (inner + conv + heads), Shard.TENSOR, layers)]
    if not inner * width or not conv:
        return [], None
    modules += [
        Module(f"{name}.conv1d", conv * kernel, Shard.TENSOR, layers, linear=False),
        Module(f"{name}.out_proj", inner * hidden, Shard.TENSOR, layers),
        Module("norm", norm, Shard.REPLICATED, layers, linear=False),
    ]
    rows = max(kernel - 1, 1)
    return modules, CachedLayers(Cache.STATE, len(layers), conv=conv * rows, state=inner * width, conv_kernel=rows)


# Attention of DeepSeek V4: vllm/models/deepseek_v4 (attention.py, compressor.py, common/rope.py, nvidia/model.py), 0.25.0.


def _ratios(read: ModelConfig) -> list[int]:
    """Return the compression of each layer. The table of shapes has unordered counts, config.json a list."""
    written = read.text.get("compress_ratios")
    if isinstance(written, list) and len(written) <= MAX_LAYERS:
        return [read_integer(ratio) or 0 for ratio in written[: read.layers]]
    counts = {read_integer(ratio) or 0: read_integer(count) or 0 for ratio, count in mapping(written).items()}
    known = [ratio for ratio in (BY_FOUR, BY_MANY) for _ in range(min(max(counts.get(ratio, 0), 0), MAX_LAYERS))]
    return [*[0] * max(read.layers - len(known), 0), *known][: read.layers]


def _read_compression(read: ModelConfig) -> CompressedAttention | None:
    """Return the layers by compression; None if no layer compresses four tokens."""
    ratios = _ratios(read)
    by_four, by_many = ratios.count(BY_FOUR), ratios.count(BY_MANY)
    if not by_four:
        return None
    window = read.size("sliding_window", default=DEFAULT_WINDOW)
    return CompressedAttention(by_four, by_many, read.size("head_dim"), read.size("index_head_dim"), window)


def _read_streams(read: ModelConfig) -> int:
    return min(read.size("hc_mult", default=DEFAULT_STREAMS if BY_FOUR in _ratios(read) else 1) or 1, MAX_STREAMS)


def _compressed_modules(read: ModelConfig) -> list[Module]:
    """Return the weights of attention, and of the modules that mix the copies of the hidden state."""
    ratios, every = _ratios(read), tuple(range(read.layers))
    four, many = (tuple(layer for layer, own in enumerate(ratios) if own == ratio) for ratio in (BY_FOUR, BY_MANY))
    hidden, heads = read.hidden, read.heads
    head_dim, query, rank = read.size("head_dim"), read.size("q_lora_rank"), read.size("o_lora_rank")
    index_heads, index_dim = read.size("index_n_heads"), read.size("index_head_dim")
    streams = _read_streams(read)
    mixed = 2 * (2 + streams) * streams * streams * hidden if streams > 1 else 0
    return [
        Module("attn.wq_a", hidden * query, Shard.REPLICATED, every),
        Module("attn.wq_b", query * heads * head_dim, Shard.TENSOR, every),
        Module("attn.wkv", hidden * head_dim, Shard.REPLICATED, every),
        Module("attn.wo_a", heads * head_dim * rank, Shard.TENSOR, every),
        Module("attn.wo_b", read.size("o_groups") * rank * hidden, Shard.TENSOR, every),
        Module("hyper_connections", WIDE * mixed, Shard.REPLICATED, every, linear=False),
        # Keys, values and their weights; a compression of four has two overlapping groups. The indexer has the same modules.
        Module("attn.compressor", 4 * hidden * head_dim, Shard.REPLICATED, four, linear=False),
        Module("attn.compressor", 2 * hidden * head_dim, Shard.REPLICATED, many, linear=False),
        Module("attn.indexer.compressor", 4 * hidden * index_dim, Shard.REPLICATED, four, linear=False),
        Module("attn.indexer.weights_proj", hidden * index_heads, Shard.REPLICATED, four, linear=False),
        Module("attn.indexer", query * index_heads * index_dim, Shard.REPLICATED, four),
    ]


# Feed-forward blocks, layers for speculative decoding, and the encoder.


def _feed_forward(read: ModelConfig) -> list[Module]:
    if any(kind in BLOCK_KINDS for kind in read.kinds):
        return _nemotron_blocks(read)
    hidden, experts, width, every = read.hidden, read.experts, read.width, tuple(range(read.layers))
    if not experts:
        elements = (2 if read.architecture.startswith(UNGATED) else 3) * hidden * width
        first = _first_shared_layer(read) if read.flag("use_double_wide_mlp") else read.layers
        made = [Module("mlp.down_proj", elements, Shard.TENSOR, every[:first], width=width)]
        return made if first == read.layers else [*made, Module("mlp.down_proj", 2 * elements, Shard.TENSOR, every[first:], width=width)]
    dense = read.size("first_k_dense_replace", "moe_layer_start_index")
    step = read.size("interleave_moe_layer_step", "decoder_sparse_step", default=1) or 1
    named = frozenset(read_integer(layer) for layer in sequence(read.text.get("mlp_only_layers"))[:MAX_LAYERS])
    moe = tuple(layer for layer in every if layer >= dense and (layer + 1) % step == 0 and layer not in named)
    rest = tuple(layer for layer in every if layer not in frozenset(moe))
    own = read.size("moe_intermediate_size", default=width) or width
    shared = read.size("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    shared = shared or read.size("n_shared_experts", "num_shared_experts") * own
    if read.is_like("llama4"):
        own, shared, width = width, width, read.size("intermediate_size_mlp", default=width)
    modules = [
        Module("mlp.experts", experts * 3 * hidden * own, Shard.EXPERTS, moe),
        Module("mlp.gate", hidden * experts, Shard.REPLICATED, moe, linear=False),
    ]
    if read.is_like("gptoss"):
        modules.append(Module("mlp.experts.bias", experts * (2 * own + hidden), Shard.EXPERTS, moe, linear=False))
    if shared:
        modules.append(Module("mlp.shared_experts", 3 * hidden * shared, Shard.TENSOR, moe, width=shared))
    if rest and width:
        modules.append(Module("mlp.down_proj", 3 * hidden * width, Shard.TENSOR, rest, width=width))
    if read.is_like("gemma4") and width:
        modules.append(Module("mlp.down_proj", 3 * hidden * width, Shard.TENSOR, moe, width=width))
    return modules


def _nemotron_blocks(read: ModelConfig) -> list[Module]:
    """Return layers that are attention, Mamba, or a feed-forward block without a gate (vllm/model_executor/models/nemotron_h.py)."""
    moe, dense, hidden = read.layers_of("E", "moe"), read.layers_of("-", "mlp"), read.hidden
    latent, width = read.size("moe_latent_size"), read.size("intermediate_size")
    modules = []
    if dense:
        modules.append(Module("mixer.down_proj", 2 * hidden * width, Shard.TENSOR, dense, width=0 if read.experts else width))
    if moe and read.experts:
        own, shared = read.size("moe_intermediate_size"), read.size("moe_shared_expert_intermediate_size")
        elements = 2 * hidden * shared * read.size("n_shared_experts", default=1)
        modules += [
            Module("mixer.experts", read.experts * 2 * (latent or hidden) * own, Shard.EXPERTS, moe),
            Module("mixer.gate", hidden * read.experts, Shard.REPLICATED, moe, linear=False),
            Module("mixer.shared_experts", elements, Shard.TENSOR, moe, width=shared),
            Module("mixer.latent_proj", 2 * hidden * latent, Shard.REPLICATED, moe),
        ]
    return modules


def _drafts(read: ModelConfig, blocks: tuple[Module, ...]) -> tuple[Module, ...]:
    """Return the layers for multi-token prediction: like the last layer (in Nemotron 3 the last of each kind), and a projection."""
    count = read.size("num_nextn_predict_layers", "mtp_num_hidden_layers")
    if not count or count > MAX_LAYERS or not blocks:
        return ()
    last = max((layer for module in blocks for layer in module.layers), default=0)
    like = {last}
    if "E" in read.kinds and "*" in read.kinds:
        like = {read.layers_of(kind)[-1] for kind in ("*", "E")}
    own = tuple(last + 1 + number for number in range(count))
    made = [replace(each, layers=own) for each in blocks if not like.isdisjoint(each.layers)]
    return (*made, Module("eh_proj", 2 * read.hidden * read.hidden, Shard.REPLICATED, own, linear=False))


def _read_encoder(read: ModelConfig) -> tuple[int, int]:
    """Return the parameters of the image encoder, from its sizes or from the table of well-known models, and its width."""
    vision = ModelConfig(mapping(read.whole.get("vision_config")))
    hidden, depth = vision.size("hidden_size", "embed_dim"), vision.size("num_hidden_layers", "depth")
    width, stated = vision.size("intermediate_size", default=4 * hidden), read.size("vision_params")
    if stated or not 0 < depth <= MAX_LAYERS or not hidden:
        return stated, hidden
    gated = "silu" in str(vision.text.get("hidden_act", ""))[:32]
    patch = vision.size("patch_size", default=14)
    out = vision.size("out_hidden_size")
    merged = hidden * vision.size("spatial_merge_size", default=1) ** 2
    merger = merged * merged + merged * out if out else 0
    return depth * (4 * hidden * hidden + (3 if gated else 2) * hidden * width) + 3 * hidden * patch * patch + merger, hidden

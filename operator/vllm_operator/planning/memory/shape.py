"""The shape of a model from its config.json, by the rules of vLLM and Transformers.

No content of the file raises an error: it is untrusted. A model whose sizes are missing or impossible has no shape.
Sources: the models in vllm/model_executor/models and vllm/transformers_utils/model_arch_config_convertor.py (0.33.0).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.planning.memory.compressed import compressed_modules, compressed_rotary, read_compression, read_streams
from vllm_operator.planning.memory.divided import EXPERT_KEYS, divided_widths, heads_by_kind
from vllm_operator.planning.memory.layers import Cache, CachedLayers, ModelShape, Module, Shard
from vllm_operator.planning.memory.per_layer import dense_modules, first_shared_layer, per_layer_modules
from vllm_operator.planning.memory.rotary import has_sections, rotary_share, rotary_width, scaled_length, usual_length
from vllm_operator.pods.reading import mapping, read_integer, sequence

LARGEST = 1 << 40
"""Sizes above this are not sizes. It keeps the arithmetic short."""
MOST_LAYERS, MOST_WIDTH = 4096, 1 << 16
CHUNKED_EVERY = 4
"""Llama 4: every fourth layer has full attention (no_rope_layer_interval)."""
INDEX_SCALE_BYTES = 4
LINEAR_KINDS = ("linear_attention", "mamba", "M")
FULL_KINDS = ("full_attention", "attention", "deepseek_sparse_attention", "*")
WINDOW_PATTERNS = {"gemma3": 6, "gemma2": 2, "cohere2": 4}
"""One layer in so many has full attention, where config.json does not say it (Transformers' defaults)."""


@dataclass(frozen=True, slots=True)
class _Config:
    """The language model's part of a config.json."""

    text: Mapping[str, Any]
    whole: Mapping[str, Any]

    def size(self, *keys: str, default: int = 0) -> int:
        """The first of these keys that has a size."""
        for key in keys:
            value = read_integer(self.text.get(key))
            if value is not None and 0 <= value < LARGEST:
                return value
        return default

    def flag(self, key: str) -> bool:
        """Whether this key is true."""
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
    """The name of the model's class, or of its type, in lower case without separators."""
    names = read.whole.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else read.text.get("model_type")
    return re.sub(r"[_\-.]", "", name[:128].lower()) if isinstance(name, str) else ""


def _layer_kinds(read: _Config) -> tuple[str, ...]:
    """The kind of each layer in order; where only counts per kind are known, in any order."""
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
    """Kinds of layers by the model's own rule for sliding windows."""
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
    """Weights of attention, its caches, and whether all of them are understood."""
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
    """The layers by their number of attention heads (Laguna states one for each layer)."""
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
    own = tuple(layer for layer in layers if max(layer - offset + 1, 0) % every == 0)  # the others use the one before
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
    """Gated delta net (Qwen3-Next) or Mamba 2: weights, and the state of one request."""
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
    """Weights of MLPs and experts."""
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
    """Layers that are attention, Mamba, or a feed-forward block without a gate (vllm/model_executor/models/nemotron_h.py)."""
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
    """Layers for multi-token prediction: like the last layer (in Nemotron 3 the last of each kind), and a projection."""
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
    """Parameters of the encoder for images: from its sizes, or as the table of well-known models has them."""
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

"""The parts of a model that take memory: its weights by module, and its layers with a cache.

Sizes are numbers of elements. How many bytes an element takes, and on how many GPUs it is spread, is decided elsewhere.
"""

from dataclasses import dataclass
from enum import Enum


class Shard(Enum):
    """How a module is spread over the GPUs of one engine."""

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
        linear: It may be quantized.
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
    """What a layer keeps for each request."""

    FULL = "full attention"
    WINDOW = "sliding window"
    CHUNK = "chunked attention"
    LATENT = "latent (MLA)"
    STATE = "state (Mamba, linear attention)"


@dataclass(frozen=True, slots=True)
class CachedLayers:
    """Layers that keep the same for a request.

    Attributes:
        kv_heads: KV heads in the whole model.
        width: Elements of key and value together, of one token and KV head; of one token for MLA.
        reach: Tokens of the window or of the chunk; 0 without.
        index_bytes: Bytes per token of the indexer of sparse MLA; 0 without.
        index_share: The part of the layers that have an indexer of their own.
        conv, state: Elements of one state in the whole model: of the convolution, which is also sharded, and of the recurrence.
        conv_kernel: Width of the convolution minus 1; `conv` has this many rows.
        wide: Keys and values have the type of the model, whatever the type of the KV cache.
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
    """What a model's config.json says about its memory.

    Attributes:
        vocabulary, hidden, layers, heads: Sizes.
        max_length: Longest context of the model in tokens; None if unknown.
        usual_length: What vLLM takes by default, if it is less (LongRoPE since 0.11.1).
        intermediate: Width of the dense MLP; 0 without one.
        experts, experts_per_token, expert_width: Of the routed experts; 0 without.
        cached: The layers with a cache. Empty for a model without one.
        cache_known: The cache layers are all understood.
        compressed: Set for DeepSeek V4, which has no other cache.
        recurrent_width: Width of the recurrent layers; 0 without.
        rotary: Width of the rotary embedding of one head, of all tables together where layers have different ones.
        sections: Positions have a time, a height and a width, so the rotary table is longer than the context.
        state_bytes: Bytes per element of a recurrent state; None for that of the model.
        vision: The model has an encoder for images or the like.
        vision_width: Size of a patch in it; 0 if unknown.
        latent: MLA.
        projected: Elements of one token that MLA projects from the latent vector: keys and values of all heads.
        streams: Copies of the hidden state of a token between layers (hyper connections).
        index_top: Tokens that sparse attention looks at; 0 without.
        draft_layers: Layers for speculative decoding in the checkpoint, loaded only if the engine speculates.
        heads_by_kind: Numbers of heads and groups besides those of attention that vLLM divides by the tensor-parallel size.
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
        """By the main sizes only: estimates are kept by shape."""
        return hash((self.architecture, self.hidden, self.layers, self.heads, self.vocabulary, self.max_length))

    @property
    def has_cache(self) -> bool:
        """Whether some layer has a KV cache or a state, also one that is not understood."""
        return bool(self.cached) or self.compressed is not None or not self.cache_known

    @property
    def parameters(self) -> int:
        """Parameters, without those for speculative decoding."""
        return sum(module.total for module in self.modules)

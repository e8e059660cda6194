"""Layers with an input embedding of their own, and layers that read the keys and values of another layer (Gemma 4 E2B and E4B).

Source: vllm/model_executor/models/gemma4.py, 0.20.0.
"""

from vllm_operator.planning.memory.divided import ReadSize
from vllm_operator.planning.memory.layers import Module, Shard


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
    """Return the first of the last layers, which keep no keys and values; the number of layers without them."""
    shared = size("num_kv_shared_layers")
    return layers - shared if 0 < shared < layers else layers


def dense_modules(size: ReadSize, layers: int, elements: int, *, doubled: bool) -> list[Module]:
    """Return the MLPs; `doubled` if those of layers that share keys and values are twice as wide."""
    first = first_shared_layer(size, layers) if doubled else layers
    made = [Module("mlp.down_proj", elements, Shard.TENSOR, tuple(range(first)))]
    return made if first == layers else [*made, Module("mlp.down_proj", 2 * elements, Shard.TENSOR, tuple(range(first, layers)))]

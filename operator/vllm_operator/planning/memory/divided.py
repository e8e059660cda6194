"""What vLLM divides by the tensor-parallel size, and refuses if it cannot: heads of recurrent layers, widths of dense modules."""

from collections.abc import Callable

EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
"""Keys of config.json that have the number of routed experts."""


ReadSize = Callable[..., int]
"""Returns the first of these keys of config.json that has a size; 0 if none has."""


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

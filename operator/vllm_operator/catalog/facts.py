"""What can be known of a model, as far as the choice of kernels and GPUs depends on it."""

from dataclasses import dataclass

from vllm_operator.api.spec import Attention, Quantization

BLOCK = (128, 128)
"""Rows and columns of the weight blocks that share a scale in the format FP8Block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a model. None: unknown.

    Attributes:
        model_type: As in config.json.
        attention: How it attends.
        experts: Routed experts of a layer; 0 for a dense model.
        quantization: Number format of the weights.
        routing: vLLM's name of the way the router picks experts.
        routing_groups: Groups of experts; 0 if the router knows none.
        hidden_size: Width of a layer.
        moe_intermediate_size: Width of one expert.
        attention_heads: Query heads of a layer.
        mla_dims: Sizes of the nope, rope and value heads.
        weight_bytes: Size of all weights.
    """

    model_type: str | None = None
    attention: Attention | None = None
    experts: int | None = None
    quantization: Quantization | None = None
    routing: str | None = None
    routing_groups: int | None = None
    hidden_size: int | None = None
    moe_intermediate_size: int | None = None
    attention_heads: int | None = None
    mla_dims: tuple[int, int, int] | None = None
    weight_bytes: int | None = None

    @property
    def block_shape(self) -> tuple[int, int] | None:
        """Shape of the weight blocks that share a scale, where there is one."""
        return BLOCK if self.quantization is Quantization.FP8_BLOCK else None


NO_FACTS = Facts()
FACTS: tuple[str, ...] = tuple(Facts.__dataclass_fields__)
"""Names of all facts."""

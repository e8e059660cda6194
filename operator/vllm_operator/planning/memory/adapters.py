"""The memory of LoRA adapters: vLLM sets aside two matrices for each linear layer and each adapter that a batch may use.

For a layer with `in` inputs and `out` outputs these have `rank * in` and `rank * out` elements, in the type of the model. With tensor
parallelism the side that the layer splits is split too, the other one is on each GPU. For experts there is a pair for each of them.
Sources: vllm/lora/layers (column_parallel_linear.py, row_parallel_linear.py, fused_moe.py `create_lora_weights`), 0.20.1.
"""

from vllm_operator.planning.engine.shape import ParallelShape
from vllm_operator.planning.memory.layers import ModelShape, Shard

MATRICES = {"down_proj": 3, "shared_experts": 3, "experts": 3}
"""Modules of a shape that stand for several layers: the two projections up and that down."""


def adapter_bytes(shape: ModelShape, parallel: ParallelShape, slots: int, rank: int) -> float:
    """Return the bytes on one GPU for this many adapters of a batch.

    It is an upper bound: it takes each linear layer for one that vLLM can adapt, and each to have the hidden size on one side.
    """
    if not slots or not shape.hidden:
        return 0.0
    elements = 0.0
    for module in shape.modules:
        if not (module.linear and module.in_layers):
            continue
        matrices = MATRICES.get(module.name.rpartition(".")[2], 1)
        kept = matrices * shape.hidden * (shape.experts if module.shard is Shard.EXPERTS else 1)
        split = module.elements / shape.hidden / (1 if module.shard is Shard.REPLICATED else parallel.tensor)
        elements += (kept + split) * len(module.layers)
    return elements * rank * slots * shape.element_bytes

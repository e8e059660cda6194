"""Sizes of an engine that a model allows: vLLM refuses to divide some models by some numbers of GPUs.

Sources: vllm/config/model.py verify_with_parallel_config; vllm/model_executor/layers/linear.py, mamba/mamba_mixer2.py;
quantization/utils/fp8_utils.py validate_fp8_block_shape (blocks), marlin_utils.py verify_marlin_supports_shape (groups), 0.33.0.
"""

from vllm_operator.planning.engine.shape import ParallelShape
from vllm_operator.planning.memory.layers import ModelShape
from vllm_operator.planning.memory.quantization import WeightFormat

TENSOR_SIZES = (1, 2, 4, 8)
"""Tensor-parallel sizes to choose from: GPUs of one node."""


def allowed(shape: ModelShape, form: WeightFormat, parallel: ParallelShape, context: int = 1) -> str | None:
    """Return None if vLLM accepts the sizes, else why it does not. `context` is --decode-context-parallel-size."""
    tensor = parallel.tensor
    if parallel.expert and not shape.experts:
        return "It has no experts to spread. Remove expert parallelism."
    if shape.heads % tensor:
        return f"{shape.heads} attention heads cannot be divided by {tensor}."
    if not shape.latent and max(shape.kv_heads, tensor) % min(shape.kv_heads, tensor):
        return f"{shape.kv_heads} KV heads cannot be divided by {tensor}."
    if parallel.pipeline > shape.layers:
        return f"{shape.layers} layers cannot be spread over {parallel.pipeline} stages."
    for name, size in shape.heads_by_kind:
        if size % tensor:
            return f"{size} {name} cannot be divided by {tensor}."
    if shape.experts and not parallel.expert:
        if shape.expert_width % tensor:
            return f"Experts of width {shape.expert_width} cannot be divided by {tensor}. Use expert parallelism."
        if form.blocks and shape.expert_width // tensor % form.blocks and tensor > 1:
            return f"Experts of width {shape.expert_width} divided by {tensor} are no multiple of {form.blocks}. Use expert parallelism."
    return (_refused_context(shape, tensor, context) if context > 1 else None) or _refused_width(shape, form, tensor)


def _refused_context(shape: ModelShape, tensor: int, context: int) -> str | None:
    """Why the KV cache cannot be divided by tokens."""
    most = tensor if shape.latent or shape.compressed else tensor // max(shape.kv_heads, 1)
    queries = shape.heads // max(shape.kv_heads, 1)
    if tensor % context:
        return f"{tensor} tensor-parallel ranks cannot be divided by --decode-context-parallel-size {context}."
    if context > most:
        needed = context * shape.kv_heads
        return f"--decode-context-parallel-size {context} needs {needed} tensor-parallel ranks for {shape.kv_heads} KV heads."
    if most < tensor and queries % context:
        return f"{queries} heads for each KV head cannot be divided by --decode-context-parallel-size {context}."
    return None


def _refused_width(shape: ModelShape, form: WeightFormat, tensor: int) -> str | None:
    """Why a dense module cannot be divided; None if all can."""
    modules = {module.name: module for module in shape.modules}
    for name, width in shape.widths if tensor > 1 else ():
        if width % tensor:
            return f"The width of {name}, {width}, cannot be divided by {tensor}."
        module, multiple = modules.get(name), form.blocks or form.group
        quantized = module is not None and form.bytes_of(module, shape.element_bytes) < module.total * shape.element_bytes
        if quantized and multiple and width // tensor % multiple:
            return f"The width of {name}, {width}, divided by {tensor} is no multiple of {multiple}, which have a common scale."
    return None


def smallest_sizes(shape: ModelShape, form: WeightFormat, most: int) -> list[ParallelShape]:
    """Return the sizes within one node with up to this many GPUs, smallest first. Expert parallelism only where it is needed."""
    found = []
    for tensor in TENSOR_SIZES:
        if tensor > most:
            break
        for parallel in (ParallelShape(tensor), ParallelShape(tensor, expert=True)):
            if allowed(shape, form, parallel) is None and (not parallel.expert or (shape.experts and tensor > 1)):
                found.append(parallel)
                break
    return found

"""Parallel sizes of one replica, the number of GPUs that it needs, and the sizes that a model allows."""

from dataclasses import dataclass

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.spec import AcceleratorSpec, ParallelismSpec, VLLMDeploymentSpec
from vllm_operator.api.status import ConditionStatus
from vllm_operator.catalog.memory import load_memory
from vllm_operator.catalog.notes import Note, note, say
from vllm_operator.catalog.versions import Release
from vllm_operator.sizing.formats import WeightFormat
from vllm_operator.sizing.model_shape import ModelShape

COUNT_LIMIT = 64  # Maximum number of GPUs of one Pod. No machine has more.
MAX_NODES = 8
"""Maximum number of nodes of a replica that the operator chooses by itself."""


@dataclass(frozen=True, slots=True)
class ParallelShape:
    """Parallel sizes of one replica."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False

    def __str__(self) -> str:
        """Short form, such as `tp8` or `tp4-pp2-ep`. Sizes of 1 are omitted, except the tensor-parallel size."""
        sizes = [f"tp{self.tensor}", *(f"{name}{size}" for name, size in (("pp", self.pipeline), ("dp", self.data)) if size > 1)]
        return "-".join([*sizes, "ep"] if self.expert else sizes)


@dataclass(frozen=True, slots=True)
class Shape:
    """The parallel sizes of one replica, the number of GPUs (or MIG slices) of each of its Pods, and the number of its Pods."""

    parallel: ParallelShape
    count: int
    notes: tuple[Note, ...] = ()
    nodes: int = 1

    def __str__(self) -> str:
        """Short form for cache keys, such as `tp8-pp2-n2`: kernels that exchange data differ if they do it between nodes."""
        return f"{self.parallel}-n{self.nodes}" if self.nodes > 1 else str(self.parallel)

    @property
    def shards(self) -> int:
        """Number of GPUs that one copy of the weights is spread over; each data-parallel rank has a copy, except of spread experts."""
        spread = self.parallel.tensor * self.parallel.pipeline
        return spread * self.parallel.data if self.parallel.expert else spread


def resolve_shape(spec: VLLMDeploymentSpec) -> Shape | Verdict:
    """Return the parallel sizes and the number of GPUs, or a verdict if they contradict each other. Without sizes, all GPUs are used."""
    given = spec.parallelism or ParallelismSpec()
    accelerator = spec.accelerator or AcceleratorSpec()
    nodes = given.nodes or 1
    data = given.data or 1
    tensor, pipeline = given.tensor or 1, given.pipeline or (nodes if data == 1 else 1)
    notes: list[Note] = []
    spare = (accelerator.count or 0) // (pipeline * data)
    if given.tensor is None and spare > 1 and not accelerator.sliced and spare * pipeline * data == accelerator.count:
        tensor = spare
        notes.append(note("sizes.tensor", tensor=tensor))
    needed = tensor * pipeline * data
    if accelerator.sliced and tensor * pipeline > 1:
        return _contradiction(say("sizes.slices"))
    if accelerator.count is not None and accelerator.count < needed:
        text = say("sizes.count", count=accelerator.count, needed=needed, tensor=tensor, pipeline=pipeline, data=data)
        return _contradiction(text)
    count = accelerator.count or needed
    # vllm/engine/arg_utils.py create_engine_config (0.33.0): the number of ranks must be a multiple of --nnodes
    if needed % nodes or count % nodes:
        uneven, field = count if count % nodes else needed, "pipeline" if data == 1 else "data"
        return _contradiction(say("sizes.nodes", gpus=uneven, nodes=nodes, field=field))
    count, needed, copy = count // nodes, needed // nodes, tensor * pipeline
    # vllm/config/parallel.py nnodes_within_dp (0.33.0); earlier versions fail later
    if needed % copy and copy % needed:
        return _contradiction(say("sizes.ranks", data=data, nodes=nodes, needed=needed, copy=copy, tensor=tensor, pipeline=pipeline))
    if count > COUNT_LIMIT:
        return _contradiction(say("sizes.pod", count=count, tensor=tensor, pipeline=pipeline, data=data, nodes=nodes, limit=COUNT_LIMIT))
    if count > needed:
        devices, more = ("GPUs", "parallelism") if not accelerator.sliced else ("MIG slices", "replicas")
        idle = f"{count - needed} {'stays' if count - needed == 1 else 'stay'}"
        notes.append(note("sizes.idle", count=count, devices=devices, needed=needed, idle=idle, more=more))
    parallel = ParallelShape(tensor=tensor, pipeline=pipeline, data=data, expert=given.expert == "Enabled")
    return Shape(parallel, count, tuple(notes), nodes)


def _contradiction(message: str) -> Verdict:
    return Verdict(ConditionStatus.FALSE, Reason.INVALID_SPEC, message)


# Parallel sizes that a model allows: vLLM refuses to divide some models by some numbers of GPUs.
#
# Sources: vllm/config/model.py verify_with_parallel_config; vllm/model_executor/layers/linear.py, mamba/mamba_mixer2.py;
# quantization/utils/fp8_utils.py validate_fp8_block_shape (blocks), marlin_utils.py verify_marlin_supports_shape (groups);
# vocab_parallel_embedding.py; fused_moe/config.py FusedMoEParallelConfig.make, which also splits experts over data-parallel ranks, 0.33.0.

TENSOR_SIZES = (1, 2, 4, 8)  # tensor-parallel sizes to choose from, limited to the GPUs of one node


def divides_blocks(release: Release, architecture: str | None) -> bool:
    """Return whether vLLM divides the blocks of FP8 scales, so that experts need not be multiples of them."""
    # vllm/model_executor/layers/fused_moe/oracle/fp8.py resolve_fp8_moe_weight_block_shape (0.29.0)
    return release >= (0, 29, 0) and (architecture or "").startswith(("sm_89", "sm_90", "sm_100", "sm_103", "sm_12"))


def allowed(shape: ModelShape, form: WeightFormat, parallel: ParallelShape, context: int = 1, *, divides: bool = False) -> str | None:
    """Return why vLLM refuses the sizes, or None. `context`: --decode-context-parallel-size; `divides`: whether it `divides_blocks`."""
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
        parts = tensor * parallel.data
        if shape.expert_width % parts:
            return f"Experts of width {shape.expert_width} cannot be divided by {parts}. Use expert parallelism."
        if form.blocks and not divides and shape.expert_width // parts % form.blocks and parts > 1:
            return f"Experts of width {shape.expert_width} divided by {parts} are no multiple of {form.blocks}. Use expert parallelism."
    return (_refused_context(shape, tensor, context) if context > 1 else None) or _refused_width(shape, form, tensor)


def _refused_context(shape: ModelShape, tensor: int, context: int) -> str | None:
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
    for module in shape.modules if tensor > 1 else ():
        name, width, multiple = module.name, module.width, form.blocks or form.group
        if width % tensor:
            return f"The width of {name}, {width}, cannot be divided by {tensor}."
        quantized = form.bytes_of(module, shape.element_bytes) < module.total * shape.element_bytes
        if width and multiple and width // tensor % multiple and quantized:
            return f"The width of {name}, {width}, divided by {tensor} is no multiple of {multiple}, which have a common scale."
    padded = load_memory().weights.vocabulary_multiple
    vocabulary = -(-shape.vocabulary // padded) * padded
    return f"A vocabulary of {vocabulary} tokens cannot be divided by {tensor}." if vocabulary % tensor else None


def smallest_sizes(shape: ModelShape, form: WeightFormat, most: int, context: int = 1) -> list[ParallelShape]:
    """Return the sizes within one node with at most this many GPUs, smallest first. Expert parallelism is used only if needed.

    `context` is --decode-context-parallel-size.
    """
    found = []
    for tensor in (size for size in TENSOR_SIZES if size <= most):
        sizes = (ParallelShape(tensor), ParallelShape(tensor, expert=True))
        found += [each for each in sizes[: 2 if shape.experts and tensor > 1 else 1] if allowed(shape, form, each, context) is None][:1]
    return found


def sizes_over_nodes(shape: ModelShape, form: WeightFormat, per_node: int, nodes: int) -> ParallelShape | None:
    """Return the size with all GPUs of several nodes: tensor parallelism within, pipeline parallelism between them. None if refused.

    Between the stages of a pipeline, little is sent. Tensor parallelism exchanges the results of each layer.
    """
    sizes = (ParallelShape(per_node, nodes), *([ParallelShape(per_node, nodes, expert=True)] if shape.experts else []))
    return next((each for each in sizes if allowed(shape, form, each) is None), None)

"""The weights on one GPU: sharded, replicated, padded and omitted modules.

Sources: vllm/model_executor/layers (linear.py, vocab_parallel_embedding.py, fused_moe, mla.py), 0.33.0.
"""

from bisect import bisect_right
from itertools import accumulate
from math import log

from vllm_operator.catalog.memory import rules_at
from vllm_operator.sizing.engine import GIB, Engine
from vllm_operator.sizing.model_shape import ModelShape, Module, Shard

MIB = 1 << 20
INDEX_BYTES = 4
EAGLE_WIDTH, EAGLE_VOCABULARY = 4, 32_000
ENCODER = "vision_tower"
MAX_RATIO = 1.25  # Maximum ratio of checkpoint to module sizes. A larger checkpoint contains weights that are not loaded.
VALUE_SHARE = 16 / 17  # fraction of MXFP4 weights that is values: 32 values of 4 bits share a scale of 8 bits
MATRICES = {"down_proj": 3, "shared_experts": 3, "experts": 3}
"""Modules of a shape that consist of several layers: two projections up and one down."""


def weigh(engine: Engine) -> float:
    """Return the bytes of the weights of the model on the fullest GPU."""
    return max(weigh_stages(engine))


def weigh_stages(engine: Engine) -> list[float]:
    """Return the bytes of the weights of the model on a GPU of each pipeline stage."""
    shape, form, parallel, facts, options = engine.shape, engine.form, engine.parallel, engine.facts.weights, engine.options
    wide = shape.element_bytes
    loaded = [(module, form.bytes_of(module, wide)) for module in shape.modules if options.vision or module.name != ENCODER]
    loaded += [(module, form.draft_bytes_of(module, wide)) for module in shape.drafts] if options.own_draft_layers else []
    tied = not any(module.name == "lm_head" for module in shape.modules)
    factor, experts = _correction(engine), _expert_padding(engine)
    layers = stage_layers(shape.layers, parallel.pipeline, options.partition)
    ends = list(accumulate(layers))
    stages = [0.0] * parallel.pipeline
    for module, size in loaded:
        held = size * factor * _share(module, engine)
        if module.shard is Shard.EXPERTS:
            held *= experts
        if module.name == "self_attn.kv_b_proj" and size < module.total * wide:
            held += module.total * wide / parallel.tensor  # MLA computes with a 16-bit copy of quantized weights
        if module.layers and parallel.pipeline > 1:
            for layer in module.layers:
                stages[min(bisect_right(ends, layer), parallel.pipeline - 1)] += held / len(module.layers)
        elif module.name == "lm_head":
            stages[-1] += held
        else:
            stages[0] += held
            if module.name == "embed_tokens" and parallel.pipeline > 1 and tied:
                stages[-1] += held
    rules = rules_at(facts.section_positions, engine.release, None)
    factors = [rule.factor for rule in rules if not rule.models or any(name in shape.architecture for name in rule.models)]
    positions = (shape.max_length or 0) * (factors[-1] if shape.sections and factors else 1)
    extra = positions * shape.rotary * wide + (facts.parallel_gib * GIB if parallel.tensor > 1 else 0)
    repacked = facts.repacked_mib * MIB if form.group else 0
    return [held + extra + repacked * own for held, own in zip(stages, layers, strict=True)]


def buffer_bytes(shape: ModelShape, tokens: int) -> int:
    """Return the bytes of buffers for a step with this many tokens, which the model allocates with its weights.

    Sparse MLA stores the indexes of selected tokens (topk_indices_buffer in vllm/model_executor/models/deepseek_v2.py, 0.19.0). DeepSeek V4
    stores its hidden states for a draft, even without one (_mtp_hidden_buffer in vllm/models/deepseek_v4/nvidia/model.py, 0.25.0).
    """
    hidden = shape.streams * shape.hidden * shape.element_bytes if shape.compressed is not None else 0
    return tokens * (shape.index_top * INDEX_BYTES + hidden)


def eagle_bytes(shape: ModelShape, layers: int) -> int:
    """Return the bytes of a usual EAGLE 3 draft: dense layers as wide as the model, a projection of three hidden states, 32000 tokens.

    Source: vllm/model_executor/models/llama_eagle3.py, 0.20.0; the embedding is that of the model.
    """
    width = shape.intermediate or EAGLE_WIDTH * shape.hidden
    return 2 * shape.hidden * (3 * shape.hidden + EAGLE_VOCABULARY + layers * (4 * shape.hidden + 3 * width))


def stage_layers(layers: int, stages: int, partition: tuple[int, ...]) -> list[int]:
    """Return the layers of each pipeline stage, divided like in vLLM (vllm/distributed/utils.py get_pp_indices, 0.12.0)."""
    if len(partition) == stages and sum(partition) == layers:
        return list(partition)
    made = [layers // stages] * stages
    for stage in range(layers % stages):
        made[-min(stage + 2, stages)] += 1
    return made


def _correction(engine: Engine) -> float:
    """Return the ratio of the checkpoint's size to its modules' size by config.json.

    A checkpoint may lack the layers of a draft or the encoder, so the nearest match counts. A ratio of two means a second copy of the
    weights (gpt-oss, Mistral), or 32 bits for weights that are loaded with 16. Other larger ratios say nothing about the loaded weights.
    """
    shape, form, checkpoint = engine.shape, engine.form, engine.options.checkpoint_bytes
    if checkpoint is None or checkpoint <= 0 or form.measured:
        return 1.0
    wide = shape.element_bytes
    language = sum(form.bytes_of(module, wide) for module in shape.modules if module.name != ENCODER)
    encoder = sum(form.bytes_of(module, wide) for module in shape.modules if module.name == ENCODER)
    drafts = sum(form.draft_bytes_of(module, wide) for module in shape.drafts)
    contents = (language + encoder + drafts, language + encoder, language + drafts, language)
    factor = min((checkpoint / held for held in contents), key=lambda ratio: abs(log(ratio))) if language > 0 else 1.0
    copies = factor if factor <= MAX_RATIO else factor / 2
    return copies if factor <= MAX_RATIO or 1 / MAX_RATIO <= copies <= MAX_RATIO else 1.0


def _share(module: Module, engine: Engine) -> float:
    """Return the fraction of a module on one GPU of a pipeline stage, more than 1 / size if it is replicated or padded."""
    shape, parallel = engine.shape, engine.parallel
    match module.shard:
        case Shard.REPLICATED:
            return 1.0
        case Shard.KV_HEADS:
            return max(shape.kv_heads // parallel.tensor, 1) / shape.kv_heads
        case Shard.VOCABULARY:
            return _round_up(shape.vocabulary, engine.facts.weights.vocabulary_multiple) / shape.vocabulary / parallel.tensor
        case Shard.EXPERTS if parallel.expert:
            return -(-shape.experts // (parallel.tensor * parallel.data)) / shape.experts
        case _:
            return 1.0 / parallel.tensor


def _expert_padding(engine: Engine) -> float:
    """Return the factor by which the kernel enlarges MXFP4 experts."""
    shape, form = engine.shape, engine.form
    rules = rules_at(engine.facts.weights.expert_padding, engine.release, engine.device.architecture)
    if form.name != "MXFP4" or not form.experts_only or not shape.expert_width or not rules:
        return 1.0
    own = shape.expert_width / (1 if engine.parallel.expert else engine.parallel.tensor)
    wider = _round_up(shape.hidden, rules[-1].hidden) / shape.hidden - 1
    padded = (1 + rules[-1].hidden_share * wider) * _round_up(own, rules[-1].width) / own
    return padded if rules[-1].scales else (VALUE_SHARE * padded + 1.0 - VALUE_SHARE)


def _round_up(size: float, multiple: int) -> int:
    return -int(-size // multiple) * multiple


def adapter_bytes(engine: Engine) -> float:
    """Return the bytes of LoRA adapters on one GPU: two matrices for each linear layer and each adapter that a batch may use.

    These have `rank` times the inputs and `rank` times the outputs, in the type of the model. Tensor parallelism splits the side that the
    layer splits. Experts have a pair each. This is an upper bound: vLLM may not adapt every linear layer. It assumes the hidden size on one
    side. Sources: vllm/lora/layers (column_parallel_linear.py, row_parallel_linear.py, fused_moe.py `create_lora_weights`), 0.20.1.
    """
    shape, options, elements = engine.shape, engine.options, 0.0
    for module in shape.modules if options.adapters else ():
        if module.linear and module.layers:
            matrices = MATRICES.get(module.name.rpartition(".")[2], 1)
            kept = matrices * shape.hidden * (shape.experts if module.shard is Shard.EXPERTS else 1)
            split = module.elements / shape.hidden / (1 if module.shard is Shard.REPLICATED else engine.parallel.tensor)
            elements += (kept + split) * len(module.layers)
    return elements * options.adapter_rank * options.adapters * shape.element_bytes

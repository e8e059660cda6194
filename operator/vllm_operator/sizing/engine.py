"""The engine whose memory is estimated: model, GPU, parallel sizes, and the flags of `vllm serve` that affect memory."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.reading import mapping
from vllm_operator.catalog.memory import MemoryFacts
from vllm_operator.catalog.versions import Release
from vllm_operator.sizing.formats import WeightFormat
from vllm_operator.sizing.model_shape import ModelShape
from vllm_operator.sizing.parallelism import ParallelShape

GIB, MIB_PER_GIB = 1 << 30, 1024
SAME_WEIGHTS = ("auto", "hf", "safetensors", "fastsafetensors", "runai_streamer", "runai_streamer_sharded")  # values of --load-format
UNREADABLE = ("--hf-overrides", "--load-format", "--kv-cache-dtype-skip-layers", "--num-gpu-blocks-override")
"""Flags whose effect on memory is not modelled. With one of them, the size is unknown."""
RESIZING_FLAGS = ("--quantization", "--cpu-offload-gb", "--hf-overrides", "--load-format")
"""Flags that make the weights on the GPU differ in size from the files."""
SIZES = {
    "sequences": "--max-num-seqs",
    "batched_tokens": "--max-num-batched-tokens",
    "block": "--block-size",
    "context_parallel": "--decode-context-parallel-size",
    "cache_bytes": "--kv-cache-memory-bytes",
}
NUMBERS = {"utilization": "--gpu-memory-utilization", "offload_gib": "--cpu-offload-gb"}
ADAPTERS = {"adapters": ("--max-loras", "1"), "adapter_rank": ("--max-lora-rank", "16")}
"""Flags of --enable-lora with their defaults (vllm/config/lora.py, 0.11.0 to 0.33.0)."""
MODALITIES = ("image", "video")  # inputs that need the encoder
PREFIX_CACHING = {"--no-enable-prefix-caching": False, "--disable-prefix-caching": False, "--enable-prefix-caching": True}
FUSED = "--compilation-config.pass_config.fuse_allreduce_rms"
UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
LARGEST = 1 << 40
BLOCK_DRAFT_TOKENS, BLOCK_DRAFT_LAYERS = 15, 8
"""A DFlash draft proposes a block of 16 tokens, the first of which is known, and has 8 layers (z-lab/*-DFlash config.json)."""
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
CONFIGURING = ("--hf-overrides", "--hf-config-path", "--rope-scaling")  # flags that change the model's configuration


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: memory that CUDA reports, in GiB; None if unknown. `unified`: host and GPU share it."""

    memory_gib: float | None
    architecture: str | None = None
    title: str = ""
    unified: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """Flags of the engine that affect memory. None is vLLM's default."""

    utilization: float | None = None
    max_length: int | None = None  # 0 is `--max-model-len auto`
    sequences: int | None = None
    batched_tokens: int | None = None
    cache_dtype: str = "auto"
    eager: bool = False
    offload_gib: float = 0.0
    speculative: int = 0  # tokens that a draft proposes at a time
    own_draft_layers: bool = False
    eagle: int = 0  # dense layers of a draft whose weights are in another repository
    separate_draft_layers: int = 0
    vision: bool = True
    profiled_encoder: bool = True  # false with --skip-mm-profiling
    prefix_caching: bool | None = None
    context_parallel: int = 1
    block: int | None = None
    weights_gib: float | None = None  # measured weights on one GPU, including adapters
    checkpoint_bytes: int | None = None
    cache_bytes: int | None = None
    partition: tuple[int, ...] = ()  # layers of each pipeline stage (VLLM_PP_LAYER_PARTITION)
    stage_gib: tuple[float, ...] = ()  # memory of the GPU of each pipeline stage, if they differ
    runner_v2: bool | None = None  # VLLM_USE_V2_MODEL_RUNNER
    adapters: int = 0  # LoRA adapters in a batch
    adapter_rank: int = 0  # their highest rank
    fused_reduction: bool = True  # false if flags turn fuse_allreduce_rms off
    allows_longer: bool = False  # VLLM_ALLOW_LONG_MAX_MODEL_LEN, or flags that change the model's configuration

    @property
    def drafts_without_model(self) -> bool:
        """Whether drafts come from n-gram or suffix matching."""
        return self.speculative > 0 and not (self.own_draft_layers or self.eagle or self.separate_draft_layers)


@dataclass(frozen=True, slots=True)
class Engine:
    """All inputs of an estimate. All GPUs of the engine are equal. `release` is the vLLM version, whose rules are in `facts`."""

    shape: ModelShape
    form: WeightFormat
    device: Device
    parallel: ParallelShape
    options: Options
    facts: MemoryFacts
    release: Release


def read_flags(arguments: Mapping[str, str | None]) -> Options | None:
    """Read the flags; None if a flag has an effect that is not modelled, or an unreadable value."""
    if any(name in arguments and arguments[name] not in SAME_WEIGHTS for name in UNREADABLE):
        return None
    known: dict[str, Any] = {name: read_size(arguments[flag]) for name, flag in SIZES.items() if flag in arguments}
    known |= {name: _number(arguments[flag]) for name, flag in NUMBERS.items() if flag in arguments}
    if "--enable-lora" in arguments:
        known |= {name: read_size(arguments.get(flag, usual)) for name, (flag, usual) in ADAPTERS.items()}
    length = arguments.get("--max-model-len")
    if length is not None:
        known["max_length"] = 0 if length in ("auto", "-1") else read_size(length)
    compiled = mapping(_read_json(arguments.get("--compilation-config")), "pass_config")
    speculative = _speculative(arguments.get("--speculative-config")) if "--speculative-config" in arguments else {}
    if speculative is None or None in known.values():
        return None
    return Options(
        **known,
        cache_dtype=(arguments.get("--kv-cache-dtype") or "auto")[:40],
        eager="--enforce-eager" in arguments,
        **speculative,
        vision="--language-model-only" not in arguments and not _is_text_only(arguments),
        profiled_encoder="--skip-mm-profiling" not in arguments,
        prefix_caching=next((cached for flag, cached in PREFIX_CACHING.items() if flag in arguments), None),
        fused_reduction=(arguments.get(FUSED) or "").lower() != "false" and compiled.get("fuse_allreduce_rms") is not False,
    )


def read_offload(arguments: Mapping[str, str | None]) -> float:
    """Return the weights in host memory per GPU, in GiB; 0 if the flag is absent or unreadable."""
    return _number(arguments.get("--cpu-offload-gb")) or 0.0


def read_runner(variables: Mapping[str, str | None]) -> bool | None:
    """Return whether the environment requests model runner V2 (True) or V1 (False); None if vLLM decides, or the value is unknown."""
    return {"0": False, "1": True}.get((variables.get(RUNNER) or "").strip())


def read_limits(arguments: Mapping[str, str | None], variables: Mapping[str, str | None], length: int | None) -> Options | None:
    """Return the flags that vLLM compares with the model's configuration; None if they change it. `length`: the context without a flag."""
    if any(flag.partition(".")[0] in CONFIGURING for flag in arguments):
        return None
    return Options(
        max_length=read_size(arguments["--max-model-len"]) if "--max-model-len" in arguments else length,
        context_parallel=read_size(arguments.get(SIZES["context_parallel"])) or 1,
        allows_longer=LONGER in variables and (variables[LONGER] or "1").strip().lower() in ("1", "true"),  # unknown counts as true
    )


def read_size(value: str | None) -> int | None:
    """Return a number of tokens in vLLM's notation: 32768, 32k, 32K, 1.5k."""
    found = re.fullmatch(r"([0-9]{1,13}(?:\.[0-9]{1,3})?)([kmgKMG]?)", value or "")
    size = int(float(found[1]) * UNITS[found[2]]) if found else 0
    return size if 0 < size < LARGEST else None


def _number(value: str | None) -> float | None:
    found = re.fullmatch(r"[0-9]{0,6}(?:\.[0-9]{1,9})?", value or "")
    return float(value) if found and value and value != "." else None


def _read_json(value: str | None) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(value or "{}"))
    except (ValueError, RecursionError):
        return {}


def _is_text_only(arguments: Mapping[str, str | None]) -> bool:
    """Return whether images and videos are disabled. vLLM does not load the encoder then."""
    flag = "--limit-mm-per-prompt"
    dotted = {kind: arguments[name] for kind in MODALITIES if (name := f"{flag}.{kind}") in arguments}
    limits = {**_read_json(arguments.get(flag)), **dotted}
    return all(str(limits.get(kind)) == "0" for kind in MODALITIES)


def _speculative(value: str | None) -> dict[str, Any] | None:
    """Return the options for a draft; None for a separate model of unknown size. Without a method, the name of the draft has it."""
    written = _read_json(value)
    method, model, tokens = (written.get(key) for key in ("method", "model", "num_speculative_tokens"))
    name = (method if isinstance(method, str) else model if isinstance(model, str) else "")[:200].lower()
    block = "dflash" in name
    tokens = (BLOCK_DRAFT_TOKENS if block else 1) if tokens is None else tokens
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 < tokens < 100:
        return None
    if name in ("ngram", "suffix"):
        return {"speculative": tokens}
    if block or "eagle" in name:
        layers = BLOCK_DRAFT_LAYERS if block else 1
        return {"speculative": tokens, "eagle": layers, "separate_draft_layers": layers if block else 0}
    own = model is None and any(each in name for each in ("mtp", "nextn", "dspark"))
    return {"speculative": tokens, "own_draft_layers": True} if own else None

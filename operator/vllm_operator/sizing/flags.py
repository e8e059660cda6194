"""The user's flags of `vllm serve` that affect memory."""

import json
import re
from collections.abc import Mapping

from vllm_operator.api.reading import mapping
from vllm_operator.sizing.estimate import Options

UNREADABLE = ("--hf-overrides", "--load-format", "--kv-cache-dtype-skip-layers", "--num-gpu-blocks-override")
"""Flags whose effect on memory is not modelled. With one of them, the size is unknown."""
USUAL_ADAPTERS, USUAL_RANK = "1", "16"
"""Defaults of --max-loras and --max-lora-rank (vllm/config/lora.py, 0.11.0 to 0.33.0)."""
MODALITIES = ("image", "video")
"""Inputs that need the encoder."""
FUSED = "--compilation-config.pass_config.fuse_allreduce_rms"
RESIZING_FLAGS = ("--quantization", "--cpu-offload-gb", "--hf-overrides", "--load-format")
"""Flags that make the weights on the GPU differ in size from the files."""
UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
LARGEST = 1 << 40


def read_flags(arguments: Mapping[str, str | None]) -> Options | None:
    """Read the flags; None if a flag has an effect that is not modelled, or an unreadable value."""
    if any(name in arguments for name in UNREADABLE):
        return None
    length = arguments.get("--max-model-len")
    automatic = length in ("auto", "-1")
    sizes = {
        name: read_size(arguments[flag])
        for name, flag in (
            ("sequences", "--max-num-seqs"),
            ("batched_tokens", "--max-num-batched-tokens"),
            ("block", "--block-size"),
            ("context_parallel", "--decode-context-parallel-size"),
            ("cache_bytes", "--kv-cache-memory-bytes"),
        )
        if flag in arguments
    }
    if "--enable-lora" in arguments:
        sizes["adapters"] = read_size(arguments.get("--max-loras", USUAL_ADAPTERS))
        sizes["adapter_rank"] = read_size(arguments.get("--max-lora-rank", USUAL_RANK))
    numbers = {
        name: _number(arguments[flag])
        for name, flag in (("utilization", "--gpu-memory-utilization"), ("offload_gib", "--cpu-offload-gb"))
        if flag in arguments
    }
    given = None if automatic or "--max-model-len" not in arguments else read_size(length)
    speculative = _speculative(arguments.get("--speculative-config")) if "--speculative-config" in arguments else (0, False)
    known = {**sizes, **numbers}
    if speculative is None or None in known.values() or (length is not None and not automatic and given is None):
        return None
    return Options(
        utilization=numbers.get("utilization"),
        max_length=0 if automatic else given,
        sequences=sizes.get("sequences"),
        batched_tokens=sizes.get("batched_tokens"),
        cache_dtype=(arguments.get("--kv-cache-dtype") or "auto")[:40],
        eager="--enforce-eager" in arguments,
        offload_gib=numbers.get("offload_gib") or 0.0,
        speculative=speculative[0],
        own_draft_layers=speculative[1],
        vision="--language-model-only" not in arguments and not _is_text_only(arguments),
        profiled_encoder="--skip-mm-profiling" not in arguments,
        prefix_caching=False if "--no-enable-prefix-caching" in arguments else True if "--enable-prefix-caching" in arguments else None,
        context_parallel=sizes.get("context_parallel") or 1,
        block=sizes.get("block"),
        cache_bytes=sizes.get("cache_bytes"),
        fused_reduction=_has_fused_reduction(arguments),
        adapters=sizes.get("adapters") or 0,
        adapter_rank=sizes.get("adapter_rank") or 0,
    )


def read_offload(arguments: Mapping[str, str | None]) -> float:
    """Return the weights in host memory per GPU, in GiB; 0 if the flag is absent or unreadable."""
    return _number(arguments.get("--cpu-offload-gb")) or 0.0


def _has_fused_reduction(arguments: Mapping[str, str | None]) -> bool:
    """Return whether all-reduce and norm may be one kernel; False if the user disables it."""
    if (arguments.get(FUSED) or "").lower() == "false":
        return False
    try:
        written = json.loads(arguments.get("--compilation-config") or "{}")
    except (ValueError, RecursionError):
        return True
    return mapping(written, "pass_config").get("fuse_allreduce_rms") is not False


def _is_text_only(arguments: Mapping[str, str | None]) -> bool:
    """Return whether images and videos are disabled. vLLM does not load the encoder then."""
    flag = "--limit-mm-per-prompt"
    try:
        limits = mapping(json.loads(arguments.get(flag) or "{}"))
    except (ValueError, RecursionError):
        return False
    dotted = {kind: arguments[name] for kind in MODALITIES if (name := f"{flag}.{kind}") in arguments}
    return all(str({**limits, **dotted}.get(kind)) == "0" for kind in MODALITIES)


def read_size(value: str | None) -> int | None:
    """Return a number of tokens in vLLM's notation: 32768, 32k, 32K, 1.5k."""
    found = re.fullmatch(r"([0-9]{1,13}(?:\.[0-9]{1,3})?)([kmgKMG]?)", value or "")
    size = int(float(found[1]) * UNITS[found[2]]) if found else 0
    return size if 0 < size < LARGEST else None


def _number(value: str | None) -> float | None:
    found = re.fullmatch(r"[0-9]{0,6}(?:\.[0-9]{1,9})?", value or "")
    return float(value) if found and value and value != "." else None


def _speculative(value: str | None) -> tuple[int, bool] | None:
    """Return the tokens of a draft, and whether its layers are in the checkpoint; None for a separate model, whose size is unknown."""
    try:
        written = json.loads(value or "")
    except (ValueError, RecursionError):
        return None
    if not isinstance(written, dict):
        return None
    method, tokens = written.get("method"), written.get("num_speculative_tokens", 1)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 < tokens < 100:
        return None
    if method in ("ngram", "suffix"):
        return tokens, False
    return (tokens, True) if isinstance(method, str) and "mtp" in method and "model" not in written else None

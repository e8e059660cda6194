"""The sizes of a checkpoint's tensors, from the headers of its safetensors files.

A header lists the tensors of a file with types and sizes. They give the bytes of the weights of each layer, independent of config.json. A
file begins with the length of its header in 8 bytes, then comes a JSON object:
`{"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {...}}`.
Source: https://github.com/huggingface/safetensors#format. Headers are untrusted: unreadable entries are ignored.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from vllm_operator.api.reading import mapping, read_integer, sequence

LENGTH_BYTES = 8
HEADER_LIMIT = 2 * 1024 * 1024
"""Maximum bytes of a header. A file with 5 GB has a header of up to some hundred KB, even with thousands of experts."""
TENSORS_LIMIT, NAME_LIMIT, SIZE_LIMIT = 100_000, 300, 1 << 46
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.([0-9]{1,3})\.(.+)$")
ENCODER_NAMES = re.compile(r"(?:^|\.)(?:vision|visual|audio|multi_modal|multimodal|mm_|patch_merger|pre_mm|image)")
DRAFT_NAMES = re.compile(r"(?:^|\.)(?:mtp|nextn|eagle|draft)")
ENDS = dict.fromkeys(("embed_tokens", "wte", "embeddings", "embed", "tok_embeddings"), "embed_tokens")
ENDS |= dict.fromkeys(("lm_head", "head", "output"), "lm_head")
NOT_LINEAR = ("norm", "compressor", "weights_proj", "g_idx")
"""Parts of names of tensors that are small, are not loaded, or are counted separately."""
ALIASES = {
    "block_sparse_moe": "mlp",
    "ffn": "mlp",
    "feed_forward": "mlp",
    "attn": "self_attn",
    "shared_expert": "shared_experts",
    "router": "gate",
}
"""Aliases of modules, with the name in this package."""
FAMILIES = frozenset({"self_attn", "linear_attn", "mixer", "mlp", "experts", "shared_experts"})


TensorSizes = Counter[tuple[str, int]]
"""Bytes of the tensors of a checkpoint by family of modules (such as `self_attn`, `experts`) and layer; others have the layer OUTSIDE."""
OUTSIDE, DRAFTS, ENCODER = -1, "drafts", "vision_tower"


def header_length(beginning: bytes) -> int | None:
    """Return the length of the header from the first 8 bytes of a file; None if it is implausible."""
    length = int.from_bytes(beginning[:LENGTH_BYTES], "little") if len(beginning) >= LENGTH_BYTES else 0
    return length if 2 <= length <= HEADER_LIMIT else None


def read_header(header: bytes) -> dict[str, int] | None:
    """Return the bytes of each tensor in the engine, by name; None if this is no header. 32-bit weights are loaded with 16 bits."""
    try:
        content = json.loads(header)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or len(content) > TENSORS_LIMIT:
        return None
    found = {}
    for name, about in content.items():
        offsets = sequence(mapping(about).get("data_offsets"))
        if len(name) <= NAME_LIMIT and len(offsets) == 2:
            begin, end = (read_integer(offset) for offset in offsets)
            if begin is not None and end is not None and 0 <= begin <= end < SIZE_LIMIT:
                found[name] = (end - begin) // (2 if about.get("dtype") == "F32" and name.endswith("weight") else 1)
    return found


def add_up(tensors: Mapping[str, int]) -> TensorSizes:
    """Return the sums of the tensors of one file."""
    sizes: TensorSizes = Counter()
    for name, size in tensors.items():
        layer = LAYER.search(name)
        if ENCODER_NAMES.search(name):
            sizes[ENCODER, OUTSIDE] += size
        elif DRAFT_NAMES.search(name):
            sizes[DRAFTS, OUTSIDE] += size
        elif layer is not None:
            if (family := _family_of_tensor(layer[2])) in FAMILIES:
                sizes[family, int(layer[1])] += size
        elif end := next((ENDS[part] for part in name.split(".") if part in ENDS), ""):
            sizes[end, OUTSIDE] += size
    return sizes


@lru_cache(maxsize=1024)
def _family_of_tensor(path: str) -> str:
    """Return the family of a tensor inside a layer; empty for norms, biases and the router, which always have 16 bits or more."""
    parts = path.split(".")
    if any(word in path for word in NOT_LINEAR) or path.endswith("bias") or parts[-2:-1] in (["gate"], ["router"], ["shared_expert_gate"]):
        return ""
    own = [part for part in parts[:-1] if not part.isdigit()] or parts
    return find_family(".".join(own), is_expert="experts" in own)


@lru_cache(maxsize=1024)
def find_family(path: str, *, is_expert: bool) -> str:
    """Return the family of a module by its path inside a layer: `experts`, `shared_experts`, else the first part, such as `mlp`."""
    parts = [ALIASES.get(part, part) for part in path.split(".")]
    if "shared_experts" in parts:
        return "shared_experts"
    return "experts" if is_expert else parts[0]

"""Cases: engines, for example measured ones, whose memory is estimated from a line of JSON.

A line is untrusted. An unreadable field is unknown; a case without the input of the estimate has the outcome `unknown`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm_operator.api.reading import mapping, read_integer, text
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.catalog.memory import MemoryFacts
from vllm_operator.catalog.models import KnownShapes
from vllm_operator.catalog.versions import Release, parse_release
from vllm_operator.sizing import engine, resolve
from vllm_operator.sizing.estimate import Estimate, Prediction
from vllm_operator.sizing.formats import load_names, name_format
from vllm_operator.sizing.parallelism import ParallelShape

OLDEST_TYPICAL, NEWEST = (0, 11, 0), (0, 33, 0)
"""Range of versions in which the rules changed. Without a version, the smaller KV cache of both ends counts."""
MAIN = frozenset({"main", "nightly", "latest", "master", "head"})
UNTAGGED = (0, 2, 0)  # a build of a clone without tags has the version 0.1.dev1
IMAGES = 20  # `25.09` is the year and month of an NVIDIA image, not a version of vLLM
COMMITS = re.compile(r"(rc[0-9]{1,3})?\.?dev([0-9]{1,6})")
NEARER_COMMITS = 300  # about half of the commits between two minor releases of vLLM
FLAG = re.compile(r"(--[a-z][a-z0-9-]{1,60}(?:\.[a-z_]{1,40}){0,2})(?:[= ]([^\s,;-][^\s,;]{0,200}))?")
RUNNER_VALUE = re.compile(engine.RUNNER + r"=([01])")


def read_releases(version: str) -> tuple[Release, ...]:
    """Return the release whose rules apply; two if the version is unknown.

    `0.19.2rc1.dev134` is the main branch, 134 commits after 0.19.2rc0 was tagged there. It counts as the previous release or the next minor
    one, whichever is nearer. `0.20.1.dev0`, without a candidate, is a build of the previous release.
    """
    release = parse_release(version.strip())
    if release is None or release < UNTAGGED or release[0] >= IMAGES:
        return (NEWEST,) if version.strip().lower() in MAIN else (OLDEST_TYPICAL, NEWEST)
    major, minor, patch = release
    found = COMMITS.search(version)
    if found is None or patch == 0:
        return (release,)
    return ((major, minor + 1, 0),) if found[1] and int(found[2]) > NEARER_COMMITS else ((major, minor, patch - 1),)


def read_cache_type(written: str) -> str:
    """Return the `--kv-cache-dtype`; `auto` if none is given."""
    name = written.strip().lower()[:40]
    return "auto" if name in load_names().no_name or name == "none" else name


MAX_GPUS = 4096
SIZE_LIMIT = 1 << 40
DRAFT_TOKENS = 1
PARTITION = re.compile(r"VLLM_PP_LAYER_PARTITION=([0-9]{1,4}(?:,[0-9]{1,4}){1,63})")  # layers of each pipeline stage, in the note of a case
HOSTED = ("on the host", "host memory", "offload")  # words in a format or note that mean that a part is in host memory


def read_options(line: Mapping[str, Any]) -> engine.Options:
    """Return the flags and variables of vLLM in the note of a case, and those that have fields of their own, without unreadable ones."""
    spec, note = text(line, "spec").lower()[:200], text(line, "note")[:500]
    flags = engine.read_flags({name: value or None for name, value in FLAG.findall(note)}) or engine.Options()
    runner, partition = RUNNER_VALUE.search(note), PARTITION.search(note)
    tokens = re.search(r"[0-9]{1,3}", spec.replace("eagle3", "").replace("eagle2", ""))
    block = "dflash" in spec
    length = line.get("max_model_len")
    return replace(
        flags,
        utilization=_number(line.get("gpu_memory_utilization"), 1.0) or flags.utilization,
        max_length=0 if length in ("auto", -1, "-1") else _size(length) or engine.read_size(text(length).strip()) or flags.max_length,
        sequences=_size(line.get("max_num_seqs")) or flags.sequences,
        batched_tokens=_size(line.get("max_num_batched_tokens")) or flags.batched_tokens,
        cache_dtype=read_cache_type(text(line, "kv_cache_dtype")),
        eager=line.get("enforce_eager") is True or flags.eager,
        offload_gib=_number(line.get("cpu_offload_gb"), 1 << 20) or 0.0,
        speculative=int(tokens[0]) if tokens else (0 if not spec else engine.BLOCK_DRAFT_TOKENS if block else DRAFT_TOKENS),
        own_draft_layers="mtp" in spec or "nextn" in spec,
        eagle=1 if "eagle" in spec else 0,
        separate_draft_layers=engine.BLOCK_DRAFT_LAYERS if block else 0,
        context_parallel=_size(line.get("dcp")) or 1,
        block=_size(line.get("block_size")) or flags.block,
        checkpoint_bytes=read_integer(line.get("checkpoint_bytes")) or None,
        fused_reduction=line.get("fuse_allreduce_rms") is not False and flags.fused_reduction,
        partition=tuple(min(int(layers), MAX_GPUS) for layers in partition[1].split(",")) if partition else (),
        runner_v2=engine.read_runner({engine.RUNNER: runner[1]}) if runner else None,
        allows_longer=any(name in note for name in (*engine.CONFIGURING, f"{engine.LONGER}=1")),
    )


def predict(line: Mapping[str, Any], shapes: KnownShapes, gpus: GPUs, facts: MemoryFacts) -> Estimate:
    """Estimate a case. Its measurements are the result, so they are never read."""
    name, label, options = text(line, "model")[:200], text(line, "quantization")[:200], read_options(line)
    config = mapping(line, "config") or None
    model = resolve.resolve_model(name, shapes, config=config, checkpoint_bytes=options.checkpoint_bytes, label=label)
    if model is not None and model.label and not model.form.quantized and name_format(model.label, model.shape) is None:
        return Estimate(Prediction.UNKNOWN, f"The format {model.label} is unknown. Give the model's config.json.")
    if model is None:
        return Estimate(Prediction.UNKNOWN, f"The sizes of the model {name or '(no name)'} are unknown. Give its config.json.")
    if not options.offload_gib and any(word in f"{label} {text(line, 'note')[:500]}".lower() for word in HOSTED):
        return Estimate(Prediction.UNKNOWN, "A part is in the host's memory; how much is unknown.")
    tensor, pipeline, data = (min(max(read_integer(line.get(key)) or 1, 1), MAX_GPUS) for key in ("tp", "pp", "dp"))
    parallel = ParallelShape(tensor, pipeline, data, line.get("ep") is True)
    releases = read_releases(text(line, "vllm_version"))
    gpu, memory_gib = text(line, "gpu")[:200], _number(line.get("gpu_memory_gib"), 1 << 20)
    device = _device(gpu, memory_gib, gpus, facts)
    options = replace(options, stage_gib=_stage_memory(gpu, memory_gib, pipeline, gpus, facts))
    release, architecture = max(releases), device.architecture
    if refused := resolve.refuse_start(model, parallel, replace(options, max_length=None), release, architecture):
        return Estimate(Prediction.REFUSED, refused)
    made = [resolve.predict_model(model, parallel, device, options, facts, release) for release in releases]
    fullest = min(made, key=lambda each: each.kv_cache if each.kv_cache is not None else 0.0)
    if refused := resolve.refuse_start(model, parallel, options, release, architecture):
        return replace(fullest, prediction=Prediction.REFUSED, limit=refused)
    if fullest.prediction is Prediction.REFUSED and options.max_length is None and fullest.longest:
        limit = f"{fullest.limit} The case does not state its length: up to {fullest.longest} tokens fit."
        return replace(fullest, prediction=Prediction.TIGHT, limit=limit)
    return fullest


def read_name(line: Mapping[str, Any]) -> str:
    """Return the name of a case: its `id`, a text or a number."""
    number = None if isinstance(line.get("id"), str | bool) else read_integer(line.get("id"))
    return str(number) if number is not None else text(line, "id")[:200]


def as_line(name: str, made: Estimate) -> dict[str, Any]:
    """Return the prediction as a line of JSON. Unknown figures are null."""
    return {
        "id": name,
        "weightsGiB": None if made.weights is None else round(made.weights, 3),
        "kvCacheGiB": None if made.kv_cache is None else round(made.kv_cache, 3),
        "kvCacheTokens": made.tokens,
        "maxConcurrency": None if made.concurrency is None else round(made.concurrency, 2),
        "outcome": made.prediction.value,
        "limit": made.limit,
    }


def _device(name: str, memory_gib: float | None, gpus: GPUs, facts: MemoryFacts) -> engine.Device:
    product = resolve.smallest_named(name, gpus)
    named = (known for word, known in facts.usable_memory.unified_names.items() if word in name.lower())
    architecture = product.architecture if product else next(named, None)
    if product is None and architecture is not None:  # a machine, such as DGX Spark, by its GPU
        product = next((each for each in gpus.products_by_name.values() if each.architecture == architecture), None)
    device = resolve.device_of(product, architecture, resolve.stated_mebibytes(name, product), gpus, facts)
    return device if memory_gib is None else replace(device, memory_gib=memory_gib, title=name)


def _stage_memory(name: str, memory_gib: float | None, pipeline: int, gpus: GPUs, facts: MemoryFacts) -> tuple[float, ...]:
    """Return the GPU memory of each pipeline stage if a case names different GPUs (`RTX 5070 Ti + RTX 5090`)."""
    names = name.split("+")
    if len(names) < 2 or len(names) != pipeline:
        return ()
    found = [resolve.find_product(name.strip(), gpus) for name in names]
    memory = [resolve.device_of(product, product.architecture, None, gpus, facts).memory_gib if product else None for product in found]
    known = [each for own in memory if (each := own if own is not None else memory_gib) is not None]
    return tuple(known) if len(known) == len(names) else ()


def _size(value: Any) -> int | None:
    size = read_integer(value)
    return size if size is not None and 0 < size < SIZE_LIMIT else None


def _number(value: Any, limit: float) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= limit else None

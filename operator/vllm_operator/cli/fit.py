"""`vllm-operator fit`: whether a model fits on a GPU, on how many, and with which context length. Needs no cluster.

With `--cases`, it estimates one engine for each line of a file in the format of docs/sizing-cases.jsonl.

Exit status: 0 for a result, 1 if the model fits on none of the GPUs, 2 invalid input.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vllm_operator.api.spec import EngineSpec, ModelSpec, ParallelismSpec, Quantization, VLLMDeploymentSpec
from vllm_operator.catalog.gpus import GPUs, Product, load_gpus
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.memory import MemoryFacts, load_memory
from vllm_operator.catalog.models import KnownShapes, load_shapes
from vllm_operator.catalog.notes import say
from vllm_operator.catalog.versions import Release, parse_release
from vllm_operator.cli.documents import catalog_with, read_model_files
from vllm_operator.cli.inputs import STANDARD_INPUT, InputError, print_as, read_input
from vllm_operator.cli.terminal import table, wrap
from vllm_operator.planning.engine.backends import choose_backends
from vllm_operator.planning.engine.image import ALLOW_ANYWAY, ResolvedVersion, resolve_version
from vllm_operator.planning.engine.rule_input import describe_rule_input
from vllm_operator.sizing.cases import as_line, predict, read_name
from vllm_operator.sizing.engine import Options, read_size
from vllm_operator.sizing.estimate import Estimate, Prediction
from vllm_operator.sizing.formats import name_format
from vllm_operator.sizing.model_facts import FROM_TABLE, ModelFiles, model_name, resolve_facts
from vllm_operator.sizing.parallelism import MAX_NODES, ParallelShape, sizes_over_nodes, smallest_sizes
from vllm_operator.sizing.resolve import SizedModel, device_of, find_product, predict_model, refuse_start, resolve_model, stated_mebibytes

DOES_NOT_FIT_STATUS = 1
LINE_LIMIT = 4 * 1024 * 1024
"""Maximum characters of a line of cases."""
MAX_GPUS = 8
HEADER = ("GPU", "count", "fits", "weights", "activation", "graphs", "KV cache", "KV tokens", "longest", "concurrency", "limit")
FORMATS = "bf16, fp8, fp8_block, nvfp4, mxfp4, mxfp8, int8, awq or gptq"
LEAST_CONTEXT = 4096  # of a GPU that is suggested, in tokens
LEAST_BITS = 6  # of each weight, above which a quantized checkpoint is suggested
FIT_WORDS = {Prediction.STARTED: "yes", Prediction.TIGHT: "tight", Prediction.UNKNOWN: "unknown"}
Refuse = Callable[[str | None, ParallelShape], str]
"""Returns why no engine starts on GPUs of an architecture in these sizes; empty if no reason is known."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One GPU product and one size. `has_concurrency`: as many as desired fit. `refusal`: why no engine starts on such a GPU."""

    product: Product
    parallel: ParallelShape
    made: Estimate
    has_concurrency: bool
    refusal: str = ""

    @property
    def fits(self) -> bool:
        """Whether it starts, and serves as many requests at a time as desired."""
        return self.made.prediction is Prediction.STARTED and self.has_concurrency


def run(arguments: argparse.Namespace) -> int:
    """Print the estimates. Return the exit status."""
    if arguments.cases is None:
        return _run_model(arguments)
    lines = sys.stdin if arguments.cases == STANDARD_INPUT else read_input(arguments.cases).decode("utf-8", "replace").split("\n")
    for made in estimate_lines(lines, load_predictor()):
        print(json.dumps(made, ensure_ascii=False))
    return 0


def load_predictor() -> Callable[[Mapping[str, Any]], Estimate]:
    """Return the function that estimates a case with the catalog."""
    return partial(predict, shapes=load_shapes(), gpus=load_gpus(), facts=load_memory())


def estimate_lines(lines: Iterable[str], estimate: Callable[[Mapping[str, Any]], Estimate]) -> Iterator[dict[str, Any]]:
    """Estimate each line. An unreadable line gets the outcome `unknown` with the reason; empty lines are skipped."""
    for number, line in enumerate(lines, 1):
        try:
            if len(line) > LINE_LIMIT:
                raise ValueError(f"it is longer than {LINE_LIMIT} characters")
            written = json.loads(line) if line.strip() else None
            if isinstance(written, dict):
                yield as_line(read_name(written), estimate(written))
            elif line.strip():
                raise ValueError("it is not a JSON object")
        except (ValueError, RecursionError) as error:
            why = "lists are nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
            yield as_line("", Estimate(Prediction.UNKNOWN, f"Line {number} cannot be read: {why}."))


def _run_model(arguments: argparse.Namespace) -> int:
    if arguments.model is None:
        raise InputError("give a model, such as Qwen/Qwen3-32B, or a file with --cases")
    length = read_size(arguments.context)
    if arguments.context is not None and length is None:
        raise InputError(f"--context must be a positive number of tokens, such as 32768, 128k or 1M, not {arguments.context}")
    for name in ("max_num_seqs", "max_num_batched_tokens", "checkpoint_bytes", "concurrency", "gpu_memory_utilization"):
        if (value := getattr(arguments, name)) is not None and not 0 < value < 1 << 50:
            raise InputError(f"--{name.replace('_', '-')} must be a positive number, not {value}")
    catalog = catalog_with({}, arguments.version_table)
    version = catalog.versions.complete(arguments.version or catalog.versions.built or catalog.versions.newest.version)
    release = parse_release(version or "")
    if version is None or release is None:
        raise InputError(say("version.incomplete", version=arguments.version, newest=catalog.versions.newest.version))
    name = _full_name(arguments.model, catalog.shapes)
    files = read_model_files(arguments.model_config) if arguments.model_config is not None else ModelFiles()
    model = _model(name, arguments, files, catalog.shapes)
    refuse = _find_refusals(name, version, model.form.name, files, catalog)
    options = Options(
        utilization=arguments.gpu_memory_utilization,
        max_length=length,
        sequences=arguments.max_num_seqs,
        batched_tokens=arguments.max_num_batched_tokens,
        cache_dtype=arguments.kv_cache_dtype,
        eager=arguments.enforce_eager,
    )
    rows: list[_Row] = []
    for product in _products(arguments.gpu, catalog.gpus, catalog.memory):
        own = _rows(product, model, options, arguments.concurrency, release, refuse, catalog)
        rows += own if arguments.gpu else [next((row for row in own if row.fits), own[-1])] if own else []
    if arguments.output:
        print_as(_as_json(name, version, model, rows), arguments.output)
    else:
        _write_page(name, version, model, rows, options, arguments)
    return 0 if any(row.fits for row in rows) else DOES_NOT_FIT_STATUS


def _rows(
    product: Product, model: SizedModel, options: Options, wanted: float, release: Release, refuse: Refuse, catalog: Catalog
) -> list[_Row]:
    device = device_of(product, product.architecture, None, catalog.gpus, catalog.memory)
    found: list[_Row] = []
    most = min(product.per_node, MAX_GPUS) if product.links == "NVLink" else 1
    over_nodes = [sizes_over_nodes(model.shape, model.form, most, nodes) for nodes in range(2, MAX_NODES + 1) if most > 1]
    alone = smallest_sizes(model.shape, model.form, 1 if device.unified else MAX_GPUS)
    for parallel in (*alone, *filter(None, over_nodes)):
        if parallel.pipeline > 1 and any(row.fits or (row.made.comfortable or 0) >= LEAST_CONTEXT for row in found):
            break  # several nodes only for a model that fits on none
        made = predict_model(model, parallel, device, options, catalog.memory, release)
        made = replace(made, kv_cache=None if made.kv_cache is None else max(made.kv_cache, 0.0))
        refusal = refuse_start(model, parallel, options, release, product.architecture) or refuse(product.architecture, parallel)
        limit = "" if parallel.tensor <= product.per_node else say("fit.per-node", most=product.per_node, title=product.title)
        if limit := refusal or limit:
            made = replace(made, prediction=Prediction.REFUSED, limit=limit)
        found.append(_Row(product, parallel, made, (made.concurrency or 0.0) >= wanted, refusal))
    return found


def _full_name(written: str, shapes: KnownShapes) -> str:
    """Return `organisation/name` for a URI, for this form, or for a name that the table has; otherwise the last part of the URI."""
    name = model_name(ModelSpec.model_construct(uri=written)) if "://" in written else written.strip("/")
    known = shapes.find(name) if "/" not in name else None
    return name if known is None else f"{known.name.rpartition('/')[0]}/{name}"


def _model(name: str, arguments: argparse.Namespace, files: ModelFiles, shapes: KnownShapes) -> SizedModel:
    model = resolve_model(
        name,
        shapes,
        config=files.config,
        checkpoint_bytes=arguments.checkpoint_bytes or files.weight_bytes,
        label=arguments.quantization,
        tensors=files.tensors,
    )
    if model is None:
        raise InputError(f"the sizes of the model {name} are unknown. Download its config.json and give it with --model-config FILE")
    if arguments.quantization and name_format(arguments.quantization, model.shape) is None:
        raise InputError(f"{arguments.quantization} is not a format of weights; use {FORMATS}")
    return model


def _products(names: Sequence[str], gpus: GPUs, facts: MemoryFacts) -> list[Product]:
    """Return the GPUs to estimate; by default all products with known memory, each title once."""
    if not names:
        titles = {product.title: product for product in gpus.products_by_name.values()}
        return [each for each in titles.values() if device_of(each, each.architecture, None, gpus, facts).memory_gib is not None]
    found = []
    for name in names:
        product = find_product(name, gpus)
        if product is None:
            raise InputError(f"the catalog has no GPU {name}. `vllm-operator catalog gpus` lists them")
        stated = stated_mebibytes(name, product)  # such as an RTX 4090 with 48 GB
        found.append(product if stated is None else product.model_copy(update={"title": name, "memory_mebibytes": stated}))
    return found


def _write_page(name: str, version: str, model: SizedModel, rows: Sequence[_Row], options: Options, arguments: argparse.Namespace) -> None:
    shape = model.shape
    length = options.max_length or shape.max_length
    print(f"{name}: {shape.parameters / 1e9:.1f} B parameters, weights in {model.form.name}, vLLM {version}")
    source = f"the {FROM_TABLE}" if model.source == FROM_TABLE else model.source
    print(f"Sizes are from {source}. Context {length} tokens, {arguments.concurrency:g} at a time. Memory of each GPU in GiB.\n")
    print("\n".join(table(HEADER, [_cells(row, arguments.concurrency) for row in rows])))
    refused = refuse_start(model, ParallelShape(), options, parse_release(version) or (0, 0, 0))
    paragraphs = [refused] if refused is not None else []
    if model.form.assumed:
        paragraphs.append("Which weights are quantized is an assumption. Give the checkpoint's config.json with --model-config FILE.")
    for refusal in dict.fromkeys(row.refusal for row in rows if row.refusal and row.refusal not in paragraphs):
        titles = dict.fromkeys(row.product.title for row in rows if row.refusal == refusal)
        paragraphs.append(f"{', '.join(titles)}: {refusal}")
    if refused is None and not any(row.fits for row in rows):
        paragraphs.append(_advice(rows, model, length, named=bool(arguments.gpu)))
    for paragraph in paragraphs:
        print("\n" + "\n".join(wrap(paragraph, "")))


def _advice(rows: Sequence[_Row], model: SizedModel, length: int | None, *, named: bool) -> str:
    possible = [row for row in rows if not row.refusal]
    if not possible:
        return "See other GPUs without --gpu." if named else "No GPU of the catalog can run it."
    shorter = max(possible, key=lambda row: row.made.comfortable or 0, default=None)
    more = ", or see larger GPUs without --gpu" if named else ""
    if shorter is not None and LEAST_CONTEXT <= (shorter.made.comfortable or 0) < (length or 0):
        return f"{_count(shorter.parallel)} {shorter.product.title} have room for --context {shorter.made.comfortable}. Use it{more}."
    if any(row.made.prediction is Prediction.STARTED for row in possible):
        return f"Lower --concurrency or --context, set --kv-cache-dtype fp8{more}."
    bits = 8 * model.file_bytes / model.shape.parameters
    if bits < LEAST_BITS:
        return f"Its weights already have {bits:.1f} bits. Use a smaller model{more}."
    smaller = "fp8, awq or nvfp4" if bits > 1.5 * 8 else "awq or nvfp4"
    return f"Use a quantized checkpoint, if there is one (--quantization {smaller}){more}."


def _cells(row: _Row, wanted: float) -> tuple[str, ...]:
    made = row.made
    verdict, limit = FIT_WORDS.get(made.prediction, "no"), made.limit
    if made.prediction is Prediction.STARTED and not row.has_concurrency:
        verdict, limit = "no", f"The KV cache holds {made.concurrency or 0:.1f} of {wanted:g} requests."
    if row.refusal:
        limit = "vLLM does not start: see below."
    memory = ("" if value is None else f"{value:.1f}" for value in (made.weights, made.activation, made.graphs, made.kv_cache))
    tokens = ("" if value is None else f"{value}" for value in (made.tokens, made.longest))
    count = f"{_count(row.parallel)}{' (expert parallel)' if row.parallel.expert else ''}"
    return row.product.title, count, verdict, *memory, *tokens, "" if made.concurrency is None else f"{made.concurrency:.1f}", limit


def _count(parallel: ParallelShape) -> str:
    return f"{parallel.pipeline} nodes x {parallel.tensor}" if parallel.pipeline > 1 else str(parallel.tensor)


def _as_json(name: str, version: str, model: SizedModel, rows: Sequence[_Row]) -> dict[str, Any]:
    return {
        "model": name,
        "version": version,
        "source": model.source,
        "format": model.form.name,
        "parameters": model.shape.parameters,
        "sizes": [
            {
                "gpu": row.product.name,
                "count": row.parallel.tensor * row.parallel.pipeline,
                **({"nodes": row.parallel.pipeline} if row.parallel.pipeline > 1 else {}),
                "expertParallel": row.parallel.expert,
                "fits": row.fits,
                **{key: value for key, value in as_line("", row.made).items() if key != "id"},
                "activationGiB": row.made.activation,
                "graphsGiB": row.made.graphs,
                "longestContext": row.made.longest,
            }
            for row in rows
        ],
    }


def _find_refusals(name: str, version: str, form: str, files: ModelFiles, catalog: Catalog) -> Refuse:
    """Return a function that applies the rules about a model with the name `organisation/name` to a known version of vLLM."""
    try:
        uri = f"hf://{name}" if "/" in name else f"pvc://models/{name}"
        spec = VLLMDeploymentSpec(model=ModelSpec(uri=uri), engine=EngineSpec(version=version))
        resolved = resolve_version(spec.engine, catalog.versions)
    except ValueError:
        resolved = None
    if not isinstance(resolved, ResolvedVersion):
        return lambda architecture, parallel: ""
    facts = resolve_facts(spec.model, catalog.models, files)
    if form in set(Quantization):
        facts = replace(facts, quantization=Quantization(form))

    def refuse(architecture: str | None, parallel: ParallelShape) -> str:
        expert = "Enabled" if parallel.expert else None
        sized = spec.model_copy(update={"parallelism": ParallelismSpec(tensor=parallel.tensor, pipeline=parallel.pipeline, expert=expert)})
        decision = choose_backends(resolved, describe_rule_input(sized, resolved, facts, architecture), catalog.rules, model=name)
        return (decision.refusal or "").removesuffix(ALLOW_ANYWAY).strip()

    return refuse

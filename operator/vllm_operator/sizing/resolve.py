"""Models, GPUs and parallel sizes for an estimate.

The shape of a model and the format of its weights come from the first source that has them: config.json and the index of the safetensors,
then the table of well-known models. Facts without a source are unknown.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any

from vllm_operator.catalog.gpus import GPUs, Product
from vllm_operator.catalog.memory import MemoryFacts, load_memory
from vllm_operator.catalog.models import KnownShape, KnownShapes
from vllm_operator.catalog.notes import say
from vllm_operator.catalog.versions import Release
from vllm_operator.sizing import formats
from vllm_operator.sizing.engine import GIB, MIB_PER_GIB, Device, Engine, Options
from vllm_operator.sizing.estimate import Estimate, estimate
from vllm_operator.sizing.model_facts import FROM_CONFIG, FROM_TABLE
from vllm_operator.sizing.model_shape import ModelShape, read_shape
from vllm_operator.sizing.parallelism import ParallelShape, allowed, divides_blocks
from vllm_operator.sizing.weights import weigh
from vllm_operator.text.wording import listed

MAX_SHOWN = 8  # tensor-parallel sizes in a message, unless the refused one is larger
STATED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4})?) gib loaded")  # loaded size in a format label, such as `4-bit (19.78 GiB loaded)`
_known_shape = lru_cache(maxsize=256)(lambda table, name: read_shape(table.find(name).config))  # of an entry of the table


@dataclass(frozen=True, slots=True)
class SizedModel:
    """Known facts about the memory of a model."""

    shape: ModelShape
    form: formats.WeightFormat
    source: str  # of the sizes
    known: KnownShape | None = None  # its entry in the table of well-known models
    label: str = ""  # name of the format, if given
    checkpoint_bytes: int | None = None  # size of all tensors; None if unknown
    name: str = ""
    exact: bool = True  # whether the sizes are those of this model, not of one with a similar name

    @property
    def file_bytes(self) -> int:
        """Size of the weight files, with layers for multi-token prediction: the known size, else that of all tensors."""
        if self.checkpoint_bytes is not None:
            return self.checkpoint_bytes
        shape, form = self.shape, self.form
        held = sum(form.bytes_of(module, shape.element_bytes) for module in shape.modules)
        return int(held + sum(form.draft_bytes_of(module, shape.element_bytes) for module in shape.drafts))

    def measured_weights(self, parallel: ParallelShape, expected: float) -> float | None:
        """Return the weights on one GPU in GiB from a start-up log, for a format whose layers are unknown; None without one.

        `expected` is the estimate for one GPU without parallelism, divided by that for these sizes.
        """
        stated = STATED.search(self.label.lower()[:200])
        if stated:
            return float(stated[1])
        for loaded in self.known.loaded if self.known is not None and self.form.assumed and parallel.pipeline == 1 else ():
            if loaded.format == self.label and (loaded.tensor, loaded.expert) == (parallel.tensor, parallel.expert):
                return float(loaded.gib)
            if loaded.format == self.label and loaded.tensor == 1 and not parallel.expert and expected > 0:
                return float(loaded.gib) / expected
        return None


def resolve_model(
    name: str,
    table: KnownShapes,
    *,
    config: Mapping[str, Any] | None = None,
    checkpoint_bytes: int | None = None,
    label: str = "",
    tensors: formats.TensorSizes | None = None,
) -> SizedModel | None:
    """Return the known facts about the model `organisation/name`; None if its sizes are unknown.

    `config`, `checkpoint_bytes` and `tensors` are from its files, if they were read. `label` is the name of a format, such as `fp8_block`;
    empty for the format in config.json. With a label the tensors are ignored.
    """
    known, wanted = table.find(name), label
    shape, source, used = read_shape(config) if config is not None else None, FROM_CONFIG, config
    if shape is None and known is not None:
        shape, source, used = _known_shape(table, known.name), FROM_TABLE, known.config
    if shape is None or used is None:
        return None
    own = formats.read_format(used, shape)
    names = formats.load_names()
    if label.strip().lower() in (names.no_name | names.of_checkpoint if own.quantized else names.no_name):
        label = ""
    if not label and config is None and known is not None:
        label = formats.find_format(name, known.name if own.quantized else "")
    named = formats.name_format(label, shape) if label else None
    form = named if named is not None else own
    if named is not None and own.quantized and own.name == named.name:
        form = own  # config.json also lists modules that are not quantized
    if checkpoint_bytes is None and known is not None and known.checkpoint_gib and form.name == own.name:
        # A suffix such as `-0731` is a later state of the same checkpoint.
        is_same = re.fullmatch(re.escape(known.name) + r"(-[0-9]{4})?", name, re.IGNORECASE) is not None
        checkpoint_bytes = int(known.checkpoint_gib * GIB) if is_same else None
    if named is not None and form.name != own.name:
        checkpoint_bytes = None
    if config is not None and tensors is not None and not wanted:
        form = formats.measure_format(form, shape, tensors) or form
    return SizedModel(shape, form, source, known, label, checkpoint_bytes, name, exact=source == FROM_CONFIG or table.has(name))


def predict_model(
    model: SizedModel, parallel: ParallelShape, device: Device, options: Options, facts: MemoryFacts, release: Release
) -> Estimate:
    """Estimate an engine of a resolved model. Use measured weights if the format of its modules is unknown."""
    options = replace(options, checkpoint_bytes=model.checkpoint_bytes)
    if options.weights_gib is None and (model.form.assumed or "loaded" in model.label.lower()):
        one, own = (
            weigh(Engine(model.shape, model.form, Device(None), sizes, Options(), facts, release)) for sizes in (ParallelShape(), parallel)
        )
        options = replace(options, weights_gib=model.measured_weights(parallel, one / own if own > 0 else 0.0))
    return estimate(Engine(model.shape, model.form, device, parallel, options, facts, release))


def refuse_start(
    model: SizedModel, parallel: ParallelShape, options: Options, release: Release, architecture: str | None = None
) -> str | None:
    """Return why vLLM surely refuses these sizes or this context for a model, on GPUs of any memory, and what to do; None if it does not.

    Without an `architecture`, sizes that vLLM accepts on some GPU are not refused. The context of a model of which only a similar one is
    known is not refused. Source of the context: vllm/config/model.py _get_and_verify_max_len (0.11.0 to 0.33.0).
    """
    shape, own, asked = model.shape, model.shape.max_length, options.max_length
    form = replace(model.form, group=0) if model.label else model.form  # a name does not say how large the groups are
    divides = divides_blocks(release, architecture or "sm_90")

    def why(sizes: ParallelShape) -> str | None:
        return allowed(shape, form, sizes, options.context_parallel, divides=divides)

    if (reason := why(parallel)) is not None:
        possible = (tensor for tensor in range(1, max(parallel.tensor, MAX_SHOWN) + 1) if why(replace(parallel, tensor=tensor)) is None)
        sizes = listed([str(tensor) for tensor in possible], "or")
        instead = say("size.possible", sizes=sizes) if sizes else ""
        return say("size.indivisible", name=model.name or "the model", reason=reason, instead=instead)
    if own is None or asked is None or asked <= own or options.allows_longer or not model.exact:
        return None
    return say("size.longer-than-model", asked=asked, name=model.name or "the model", own=own)


# GPUs in the estimate: memory that CUDA reports, architecture, unified memory.

LABEL_LIMIT = 120
SAME_MEMORY = 0.1  # maximum relative difference at which a stated size counts as the nominal size of the product
SIZE = re.compile(r"(?<![a-z0-9.-])([0-9]{1,4}) ?(?:gb|gib|(?<=[0-9]{2})g)(?![a-z0-9])|-([0-9]{2,3})gb(?![a-z0-9])")
COUNT = re.compile(r"^\W*[0-9]{1,3}(?: *[x*\u00d7] *| +(?=[a-z]))(?![0-9]+gb)|[ (]+[x*\u00d7] *[0-9]{1,3}\W*$|\([0-9]{1,3} *[x*\u00d7]\)")
JOINED = re.compile(r"\b(rtx|[0-9]{4})(?=[0-9d])([0-9]{4}|d\b)")


def device_of(product: Product | None, architecture: str | None, memory_mebibytes: int | None, gpus: GPUs, facts: MemoryFacts) -> Device:
    """Return a GPU of the cluster. `memory_mebibytes` is from the node label; None for the product's memory."""
    known = facts.usable_memory
    title = product.title if product else ""
    family = gpus.architectures.get(architecture or "")
    if family is not None and family.unified_memory:
        stated = known.unified_gib.get(title)
        return Device(float(stated) if stated is not None else None, architecture, title, unified=True)
    mebibytes = memory_mebibytes or (product.memory_mebibytes if product else None)
    reported = mebibytes / MIB_PER_GIB if mebibytes is not None else None
    usable = None if reported is None else max(reported - known.reserve_gib - known.reserve_share * reported, 0.0)
    return Device(usable, architecture, title)


def find_product(name: str, gpus: GPUs) -> Product | None:
    """Return the GPU for a name: a label value, a title, or the notation of people and logs, such as `8x H100` or `RTX 5090`."""
    exact = gpus.product(name)
    if exact is not None:
        return exact
    words, sizes = _words(name)
    found = [
        ((len(words & own), len(sizes & own_sizes), -len(own ^ words)), product)
        for product in (*gpus.products_by_name.values(), *gpus.cards)
        for own, own_sizes in (_words(product.title), _words(product.name))
        if words and own and (words <= own or own <= words)
    ]
    return max(found, key=itemgetter(0))[1] if found else None


def stated_mebibytes(name: str, product: Product | None) -> int | None:
    """Return the memory in a name, such as `24 GB class`; None without one, or if it is the product's nominal size."""
    _, sizes = _words(name)
    if len(sizes) != 1 or (product is not None and sizes <= _words(product.name)[1]):
        return None
    stated = int(next(iter(sizes)).removesuffix("gb")) * MIB_PER_GIB
    known = product.memory_mebibytes if product is not None else None
    return None if known is not None and abs(stated - known) < SAME_MEMORY * known else stated


def smallest_named(name: str, gpus: GPUs) -> Product | None:
    """Return the GPU for a name; of several (`RTX 5070 Ti + RTX 5090`) the one with the least memory, None if one is unknown."""
    found = [find_product(each, gpus) for each in name[:LABEL_LIMIT].split("+")]
    known = [product for product in found if product is not None]
    return min(known, key=lambda product: product.memory_mebibytes or 0) if len(known) == len(found) else None


@lru_cache(maxsize=512)
def _words(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words that distinguish products, and the memory sizes."""
    text = SIZE.sub(lambda found: f" {found[1] or found[2]}gb ", name[:LABEL_LIMIT].lower())
    text = COUNT.sub(" ", JOINED.sub(r"\1 \2", text))
    words = frozenset(re.findall(r"[a-z0-9]+", text)) - load_memory().usable_memory.common_words
    sizes = frozenset(word for word in words if re.fullmatch(r"[0-9]+gb", word))
    return words - sizes, sizes

"""Facts about models, and a table of well-known model families, found by the name of a repository.

An entry contains the common facts of a family. The number format is read from the name (`-FP8`, `-NVFP4`, `-AWQ`), because a family is
published in several formats. The number of parameters is in the entry, or is read from the name (`-70B-`).

`shapes.json` has one entry a line. `config` has the keys of the published config.json that decide about memory; `vision_params` and
`swa_layers` are derived. An entry that is not `verified` was entered by hand, or copied from a model with equal sizes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, PlainValidator, StrictBool, StrictFloat, StrictInt

from vllm_operator.api.spec import Attention, Quantization
from vllm_operator.catalog.entry import Entry, load_file, read_text

BLOCK = (128, 128)
"""Rows and columns of the weight blocks that share a scale in the format FP8Block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a model. None: unknown. `experts` and `routing_groups` are 0 if there are none.

    `model_class` is the first of `architectures` in config.json.
    `quantization_scheme` is the publishing format, if vLLM distinguishes it: the tool's name, or the unit that shares a scale. `routing` is
    how the router selects experts, by vLLM's name. `mla_dims` are the sizes of the nope, rope and value heads; `head_size` is for models
    without MLA. `desc_act`: weights in GPTQ are ordered by activation across groups. `kv_cache` is what the checkpoint requests, as in
    `--kv-cache-dtype`. `image_prefix`: attention to images is bidirectional, `is_mm_prefix_lm` in vllm/config/model.py (0.13.0).
    `group_size` is the number of weights that share a scale. `dense_quantized`: some layers besides the experts are quantized, not only
    experts. `value_head_size` is for models without MLA. `bidirectional`: tokens attend to later ones, as in encoders. `windowed`: some
    layers have a sliding window. `dual_chunk`: config.json asks for dual chunk attention. `dtype` is that of quantized models, by its name
    in PyTorch. `weight_bytes` is the size of all weights.
    """

    model_type: str | None = None
    model_class: str | None = None
    attention: Attention | None = None
    experts: int | None = None
    quantization: Quantization | None = None
    quantization_scheme: str | None = None
    routing: str | None = None
    routing_groups: int | None = None
    hidden_size: int | None = None
    moe_intermediate_size: int | None = None
    attention_heads: int | None = None
    mla_dims: tuple[int, int, int] | None = None
    head_size: int | None = None
    attention_sinks: bool | None = None
    desc_act: bool | None = None
    image_prefix: bool | None = None
    kv_cache: str | None = None
    group_size: int | None = None
    dense_quantized: bool | None = None
    value_head_size: int | None = None
    bidirectional: bool | None = None
    windowed: bool | None = None
    dual_chunk: bool | None = None
    dtype: str | None = None
    weight_bytes: int | None = None

    @property
    def block_shape(self) -> tuple[int, int] | None:
        """Shape of the weight blocks that share a scale; None without such blocks."""
        return BLOCK if self.quantization is Quantization.FP8_BLOCK else None


NO_FACTS = Facts()
FACTS: tuple[str, ...] = tuple(Facts.__dataclass_fields__)
"""Names of all facts."""

_PARAMETERS = re.compile(r"(?<![a-z0-9.])(?:(\d{1,3})x)?(\d{1,4}(?:\.\d{1,3})?)([bt])(?![a-z0-9])", re.IGNORECASE)
_SMALLER = re.compile(r"[-_.](flash|air|lite|mini|nano|small|tiny|micro)(?![a-z])", re.IGNORECASE)

_NamePattern = Annotated[re.Pattern[str], PlainValidator(lambda value: re.compile(read_text(value, "llama-?3"), re.IGNORECASE))]
"""A regular expression for the name of a repository, ignoring case."""


class ModelFamily(Entry):
    """Common facts of a family.

    `quantization` is the number format of the original repositories. `fp8` is the format that "FP8" in a repository name means for this
    family. `config_types` are its values of `model_type` in config.json. `billions` is the number of parameters. The other fields are as in
    `Facts`.
    """

    name: str
    patterns: tuple[_NamePattern, ...] = ()
    config_types: tuple[str, ...] = ()
    attention: Attention | None = None
    experts: StrictInt | None = None
    quantization: Quantization | None = None
    fp8: Quantization = Quantization.FP8
    routing: str | None = None
    routing_groups: StrictInt | None = None
    hidden_size: StrictInt | None = None
    moe_intermediate_size: StrictInt | None = None
    attention_heads: StrictInt | None = None
    mla_dims: tuple[int, int, int] | None = None
    head_size: StrictInt | None = None
    attention_sinks: bool | None = None
    image_prefix: bool | None = None
    billions: StrictInt | StrictFloat | None = None
    source: str = ""

    def has(self, repository: str) -> bool:
        """Return whether a repository's name is that of a member. Of families of one size, a later version or a smaller model is none."""
        found = next((match for pattern in self.patterns if (match := pattern.search(repository))), None)
        if found is None or not (self.billions or self.hidden_size):
            return found is not None
        rest = repository[found.end() :]
        return not (_SMALLER.search(rest) or (found[0][-1:].isdigit() and re.match(r"\.?[0-9]", rest)))

    @cached_property
    def facts(self) -> Facts:
        """The common facts of all members."""
        return Facts(**{name: getattr(self, name) for name in FACTS if name in type(self).model_fields})


class NumberFormat(Entry):
    """A number format: its pattern in repository names, and the bytes per weight."""

    quantization: Quantization
    pattern: _NamePattern | None = None
    bytes_per_weight: StrictFloat


class Scheme(Entry):
    """A publishing format of number formats, as named in repository names."""

    scheme: str
    quantizations: tuple[Quantization, ...]
    pattern: _NamePattern


class Models(Entry):
    """The known families in order of precedence, the number formats and their schemes: the content of `models.yaml`."""

    formats: tuple[NumberFormat, ...]
    schemes: tuple[Scheme, ...] = ()
    families: tuple[ModelFamily, ...]

    def find(self, repository: str) -> ModelFamily | None:
        """Find the family of `organisation/name`, or of the last part of a path."""
        return next((family for family in self.families if family.has(repository)), None)

    def quantization(self, repository: str, family: ModelFamily | None) -> Quantization | None:
        """Read the number format from the repository's name; the family's own format if the name has none."""
        for number_format in self.formats:
            if number_format.pattern and number_format.pattern.search(repository):
                return family.fp8 if family and number_format.quantization is Quantization.FP8 else number_format.quantization
        return family.facts.quantization if family else None

    def quantization_scheme(self, repository: str, quantization: Quantization | None) -> str | None:
        """Return the publishing format of the number format in the repository's name."""
        return next((one.scheme for one in self.schemes if quantization in one.quantizations and one.pattern.search(repository)), None)

    def weight_bytes(self, repository: str, family: ModelFamily | None, quantization: Quantization | None) -> int | None:
        """Estimate the size of all weights from the number of parameters and the number format."""
        billions = family.billions if family and family.billions else read_billions(repository)
        size = next((f.bytes_per_weight for f in self.formats if f.quantization is quantization), None)
        return int(billions * 1e9 * size) if billions and size else None


def read_billions(repository: str) -> float | None:
    """Read the number of parameters, in billions, from a name such as `Llama-3.1-70B-Instruct`, `Mixtral-8x7B` or `Ring-1T`."""
    match = _PARAMETERS.search(repository)
    return float(match[2]) * int(match[1] or 1) * (1000 if match[3] in "tT" else 1) if match else None


_FORMATS = (
    r"\d{4}|fp8|nvfp4|fp4|mxfp4|awq|gptq|int[48]|w4a16|w8a8|bf16|dynamic"
    r"|quantized(\.w[48]a(8|16))?|[48]bit|bnb|unsloth|autoround|qat|gguf|i?q\d(_[a-z0-9]{1,3}){1,2}"
)
FORMAT = re.compile(rf"(-({_FORMATS}))+$", re.IGNORECASE)
"""Suffixes of a model name for the same model at another date or in another format."""
VARIANT = re.compile(rf"(-({_FORMATS}|instruct|base|chat|it|thinking|hf))+", re.IGNORECASE)
"""Suffixes of a model name that do not change the shape: dates, formats, the kind of training."""


class LoadedWeights(Entry):
    """Weights on one GPU from a start-up log. `format` is as in a case for `vllm-operator fit --cases`."""

    format: str
    tensor: StrictInt
    gib: StrictFloat | StrictInt
    expert: StrictBool = False


class KnownShape(Entry):
    """One model. `aliases` are models with an equal config.json, `checkpoint_gib` is the size of its repository."""

    name: str
    aliases: tuple[str, ...] = Field(default=())
    config: Mapping[str, Any]
    source: str
    verified: StrictBool
    checkpoint_gib: StrictFloat | StrictInt | None = None
    loaded: tuple[LoadedWeights, ...] = Field(default=())


@dataclass(frozen=True, eq=False)
class KnownShapes:
    """The table of shapes, by name."""

    entries: tuple[KnownShape, ...]

    @cached_property
    def _by_name(self) -> Mapping[str, KnownShape]:
        found: dict[str, KnownShape] = {}
        for entry in self.entries:
            found[entry.name.lower()] = entry
            if not entry.name.startswith("test/"):  # a checkpoint of this project's tests, with a common name
                for name in (entry.name.rpartition("/")[2], *entry.aliases):
                    found.setdefault(name.lower(), entry)
        return found

    @cached_property
    def _starts(self) -> tuple[tuple[str, str], ...]:
        """Prefixes of variant names with their entry: the entry's name, and the name without its variant suffix."""
        found: dict[tuple[str, str], None] = {}
        for known in self._by_name:
            if "/" not in known:
                variant = VARIANT.search(known)
                base = VARIANT.sub("", known) if variant and known.endswith(variant[0]) else known
                found |= {(known, known): None, (base, known): None}
        return tuple(found)

    def has(self, name: str) -> bool:
        """Return whether the table has a model itself, of any organisation and in any format, so that its context is known."""
        last = name.strip().lower().rpartition("/")[2]
        return last in self._by_name or FORMAT.sub("", last) in self._by_name

    def find(self, name: str) -> KnownShape | None:
        """Return the entry of a model, of any organisation, or of a variant with an equal shape, such as `-AWQ` or `-0528`."""
        sought = name.strip().lower()
        last = sought.rpartition("/")[2]
        for known in (sought, last):
            if known in self._by_name:
                return self._by_name[known]
        variants = [
            (start == known, len(known), known)  # an entry of another format only if the model itself has none
            for start, known in self._starts
            if last.startswith(start) and (last == start or VARIANT.fullmatch(last[len(start) :]))
        ]
        return self._by_name[max(variants, key=lambda each: each[:2])[2]] if variants else None


def load_shapes() -> KnownShapes:
    """Read the table that ships with the operator."""
    return KnownShapes(load_file(tuple[KnownShape, ...], "shapes.json"))

"""Facts about well-known models, found by the name of their repository.

An entry describes a family: what all its members share, and which number formats its repositories come in.
The format is read from the name (`-FP8`, `-NVFP4`, `-AWQ`), because one family is published in many; the
number of parameters is fixed by the entry or read from the name (`-70B-`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from vllm_operator.api.spec import Attention, Quantization
from vllm_operator.catalog.facts import NO_FACTS, Facts
from vllm_operator.catalog.resources import read_data

_BILLIONS = re.compile(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d{1,3})?)b(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """What the members of a family share.

    `facts` are those that hold for each of them; the number format is the one of the family's own repositories.
    `fp8` is what "FP8" in a repository name means here. `config_types` are the values of `model_type` in config.json
    that lead to this family. `billions` is the number of parameters.
    """

    name: str
    patterns: tuple[re.Pattern[str], ...]
    config_types: tuple[str, ...] = ()
    facts: Facts = NO_FACTS
    fp8: Quantization = Quantization.FP8
    billions: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A number format as repositories are named after it, and the bytes that one weight takes in it."""

    quantization: Quantization
    pattern: re.Pattern[str] | None
    bytes_per_weight: float


@dataclass(frozen=True, slots=True)
class Models:
    """The known families in order of precedence, and the number formats."""

    families: tuple[ModelFamily, ...]
    formats: tuple[NumberFormat, ...]

    def find(self, repository: str) -> ModelFamily | None:
        """Find the family of `organisation/name`, or of the last part of a path."""
        return next((family for family in self.families if any(p.search(repository) for p in family.patterns)), None)

    def find_type(self, model_type: str) -> ModelFamily | None:
        """Find the family of a `model_type` of config.json."""
        return next((family for family in self.families if model_type in family.config_types), None)

    def quantization(self, repository: str, family: ModelFamily | None) -> Quantization | None:
        """Read the number format from the repository's name; the family's own format if the name tells none."""
        for number_format in self.formats:
            if number_format.pattern and number_format.pattern.search(repository):
                is_fp8 = number_format.quantization is Quantization.FP8
                return family.fp8 if is_fp8 and family else number_format.quantization
        return family.facts.quantization if family else None

    def weight_bytes(self, repository: str, family: ModelFamily | None, quantization: Quantization | None) -> int | None:
        """Estimate the size of all weights from the number of parameters and the number format."""
        billions = family.billions if family and family.billions else read_billions(repository)
        size = next((f.bytes_per_weight for f in self.formats if f.quantization is quantization), None)
        return int(billions * 1e9 * size) if billions and size else None


def read_billions(repository: str) -> float | None:
    """Read the number of parameters, in billions, from a name such as `Llama-3.1-70B-Instruct`."""
    match = _BILLIONS.search(repository)
    return float(match[1]) if match else None


def _family(data: Mapping[str, Any]) -> ModelFamily:
    dims = data.get("mlaDims")
    return ModelFamily(
        name=data["name"],
        patterns=tuple(re.compile(pattern, re.IGNORECASE) for pattern in data.get("patterns", ())),
        config_types=tuple(data.get("configTypes", ())),
        facts=Facts(
            attention=Attention(data["attention"]) if "attention" in data else None,
            experts=data.get("experts"),
            quantization=Quantization(data["quantization"]) if "quantization" in data else None,
            routing=data.get("routing"),
            routing_groups=data.get("routingGroups"),
            hidden_size=data.get("hiddenSize"),
            moe_intermediate_size=data.get("moeIntermediateSize"),
            attention_heads=data.get("attentionHeads"),
            mla_dims=(dims[0], dims[1], dims[2]) if dims else None,
        ),
        fp8=Quantization(data.get("fp8", Quantization.FP8)),
        billions=data.get("billions"),
        source=data.get("source", ""),
    )


def parse_models(data: Mapping[str, Sequence[Mapping[str, Any]]]) -> Models:
    """Read the content of `models.yaml`.

    Raises:
        KeyError: A required part is missing.
        ValueError: A fact has a value that does not exist.
    """
    formats = tuple(
        NumberFormat(
            Quantization(entry["quantization"]),
            re.compile(entry["pattern"], re.IGNORECASE) if "pattern" in entry else None,
            entry["bytesPerWeight"],
        )
        for entry in data["formats"]
    )
    return Models(tuple(_family(entry) for entry in data["families"]), formats)


@cache
def load_models() -> Models:
    """Read the families that ship with the operator."""
    return parse_models(read_data("models.yaml"))

"""What is known of the images that the vLLM project publishes: the CUDA toolkit inside, and which drivers run it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet

from vllm_operator.catalog.gpus import Version, parse_version
from vllm_operator.catalog.resources import read_data


@dataclass(frozen=True, slots=True)
class Variant:
    """An image that is published beside the default one: for which versions, its tag's suffix, its CUDA version."""

    when: SpecifierSet
    suffix: str
    cuda: Version


@dataclass(frozen=True, slots=True)
class Images:
    """Everything that is known of images.

    `drivers` maps a CUDA major to the first driver branch that runs it. `compatibility_variable` makes the engine
    load the forward compatibility package that is in the image.
    """

    repository: str
    variants: tuple[Variant, ...]
    host_architectures: tuple[str, ...]
    drivers: Mapping[int, int]
    compatibility_variable: str

    def variants_of(self, version: str) -> tuple[Variant, ...]:
        """Return the images of a vLLM version beside the default one."""
        return tuple(variant for variant in self.variants if variant.when.contains(version, prereleases=True))

    def is_official(self, image: str) -> bool:
        """True for an image of the vLLM project, also from a mirror that kept its name."""
        return re.search(r"(^|/)vllm-openai([:@]|$)", image) is not None


def cuda_of_tag(image: str) -> Version | None:
    """Return the CUDA version that an image's tag names (`v0.24.0-cu129`), or None."""
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    match = re.search(r"(?:^|[-_.+])cu(?:da)?-?([0-9]{2})\.?([0-9])(?:[-_.]|$)", tag)
    return (int(match[1]), int(match[2])) if match else None


def load_images(data: Mapping[str, Any] | None = None) -> Images:
    """Read the table of images; `data` is the parsed file, the one in the package if absent."""
    table = read_data("images.yaml") if data is None else data
    return Images(
        repository=table["repository"],
        variants=tuple(Variant(SpecifierSet(entry["when"]), entry["suffix"], parse_version(entry["cuda"])) for entry in table["variants"]),
        host_architectures=tuple(table["hostArchitectures"]),
        drivers={entry["cuda"]: entry["driver"] for entry in table["drivers"]},
        compatibility_variable=table["compatibility"]["variable"],
    )

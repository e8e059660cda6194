"""The images that the vLLM project publishes: the CUDA toolkit inside, and which drivers run it."""

import re
from collections.abc import Mapping

from vllm_operator.catalog.entry import Entry, Specifiers, load_file
from vllm_operator.catalog.gpus import NumericVersion, Version


class Variant(Entry):
    """An image that is published beside the default one: for which vLLM versions, its tag's suffix, its CUDA version."""

    when: Specifiers
    suffix: str
    cuda: NumericVersion


class Compatibility(Entry):
    """The variable that makes the engine load the forward compatibility package in the image."""

    variable: str
    source: str


class Images(Entry):
    """Everything that is known about images: the content of `images.yaml`.

    `drivers` maps a CUDA major to the first driver branch that runs it.
    """

    repository: str
    variants: tuple[Variant, ...]
    variants_source: str
    host_architectures: tuple[str, ...]
    drivers: Mapping[int, int]
    drivers_source: str
    compatibility: Compatibility

    def variants_of(self, version: str) -> tuple[Variant, ...]:
        """Return the images of a vLLM version besides the default one."""
        return tuple(variant for variant in self.variants if variant.when.contains(version, prereleases=True))

    def is_official(self, image: str) -> bool:
        """True for an image of the vLLM project, also from a mirror that kept its name."""
        return re.search(r"(^|/)vllm-openai([:@]|$)", image) is not None


def cuda_of_tag(image: str) -> Version | None:
    """Return the CUDA version that an image's tag names (`v0.24.0-cu129`), or None."""
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    match = re.search(r"(?:^|[-_.+])cu(?:da)?-?([0-9]{2})\.?([0-9])(?:[-_.]|$)", tag)
    return (int(match[1]), int(match[2])) if match else None


def load_images() -> Images:
    """Read the table of images that ships with the operator."""
    return load_file(Images, "images.yaml")

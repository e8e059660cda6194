"""Everything that is known, in one object."""

from dataclasses import dataclass

from vllm_operator import __version__
from vllm_operator.catalog.caches import Caches, load_caches
from vllm_operator.catalog.gpus import GPUs, load_gpus
from vllm_operator.catalog.images import Images, load_images
from vllm_operator.catalog.models import Models, load_models
from vllm_operator.catalog.priming import PrimingRule, load_priming_rules
from vllm_operator.catalog.resources import data_digest
from vllm_operator.catalog.rules import Rules, load_rules
from vllm_operator.catalog.versions import Versions, load_versions


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is known of GPUs, images, vLLM versions, models, caches and the choice of backends.

    `version` is that of the package with a digest of the data: equal versions decide alike.
    """

    version: str
    gpus: GPUs
    images: Images
    versions: Versions
    rules: Rules
    models: Models
    caches: Caches
    priming: tuple[PrimingRule, ...] = ()


def load_catalog() -> Catalog:
    """Read the catalog that ships with the operator. Takes some tenths of a second: keep the result."""
    return Catalog(
        version=f"{__version__}+{data_digest()[:8]}",
        gpus=load_gpus(),
        images=load_images(),
        versions=load_versions(),
        rules=load_rules(),
        models=load_models(),
        caches=load_caches(),
        priming=load_priming_rules(),
    )

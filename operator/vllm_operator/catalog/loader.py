"""The catalog: all knowledge in one object."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from vllm_operator import __version__
from vllm_operator.catalog.caches import Caches, PrimingRule
from vllm_operator.catalog.entry import data_digest, load_file
from vllm_operator.catalog.gpus import GPUs, Images, InstanceType, load_gpus
from vllm_operator.catalog.memory import MemoryFacts, load_memory
from vllm_operator.catalog.models import KnownShapes, Models, load_shapes
from vllm_operator.catalog.rules import Rule, Rules, load_rules
from vllm_operator.catalog.versions import Versions, load_versions


@dataclass(frozen=True, slots=True)
class Catalog:
    """Knowledge about GPUs, images, vLLM versions, models and their memory, caches and the choice of backends.

    `version` is the version of the package with a digest of the data, and another digest of the rules of the cluster's administrator:
    equal versions make equal decisions. `custom_rules` are these rules by id, as written. `instance_types` are also the administrator's.
    `measured` are the rules of races of one VLLMDeployment, the newest first; `may_race`, whether plans name rivals for one.
    """

    version: str
    gpus: GPUs
    images: Images
    versions: Versions
    rules: Rules
    models: Models
    caches: Caches
    memory: MemoryFacts
    shapes: KnownShapes
    priming: tuple[PrimingRule, ...] = ()
    custom_rules: Mapping[str, Any] = field(default_factory=dict)
    instance_types: tuple[InstanceType, ...] = ()
    measured: tuple[Rule, ...] = ()
    may_race: bool = False


@cache
def load_catalog() -> Catalog:
    """Return the catalog that ships with the operator. It is read once and immutable."""
    return Catalog(
        version=f"{__version__}+{data_digest()[:8]}",
        gpus=load_gpus(),
        images=load_file(Images, "images.yaml"),
        versions=load_versions(),
        rules=load_rules(),
        models=load_file(Models, "models.yaml"),
        caches=load_file(Caches, "caches.yaml"),
        memory=load_memory(),
        shapes=load_shapes(),
        priming=load_file(tuple[PrimingRule, ...], "priming.yaml", "rules"),
    )

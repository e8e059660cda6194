"""Everything that is known, in one object."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from vllm_operator import __version__
from vllm_operator.catalog.caches import Caches, PrimingRule, load_caches, load_priming_rules
from vllm_operator.catalog.gpus import GPUs, load_gpus
from vllm_operator.catalog.images import Images, load_images
from vllm_operator.catalog.models import Models, load_models
from vllm_operator.catalog.resources import data_digest
from vllm_operator.catalog.rules import Rules, load_rules
from vllm_operator.catalog.user_rules import UserRules, add_user_rules
from vllm_operator.catalog.user_texts import read_documents
from vllm_operator.catalog.versions import Versions, load_replacements, load_versions


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is known about GPUs, images, vLLM versions, models, caches and the choice of backends.

    `version` is the version of the package with a digest of the data, and another digest of the rules of the cluster's owner:
    equal versions make equal decisions. `own_rules` are these rules by id, as they were written. `replacements` say what to use
    instead of variables and flags that newer versions no longer know.
    """

    version: str
    gpus: GPUs
    images: Images
    versions: Versions
    rules: Rules
    models: Models
    caches: Caches
    priming: tuple[PrimingRule, ...] = ()
    replacements: Mapping[str, str] = field(default_factory=dict)
    own_rules: Mapping[str, Any] = field(default_factory=dict)


@cache
def load_catalog() -> Catalog:
    """Return the catalog that ships with the operator. It is read once, in about a tenth of a second, and never changes."""
    return Catalog(
        version=f"{__version__}+{data_digest()[:8]}",
        gpus=load_gpus(),
        images=load_images(),
        versions=load_versions(),
        rules=load_rules(),
        models=load_models(),
        caches=load_caches(),
        priming=load_priming_rules(),
        replacements=load_replacements(),
    )


def with_user_rules(catalog: Catalog, texts: Mapping[str, str]) -> tuple[Catalog, UserRules]:
    """Add the rules of the cluster's owner to a catalog.

    Args:
        catalog: What ships with the operator.
        texts: YAML texts by name, each a list of rules. Invalid ones are left out and reported.
    """
    documents, unreadable = read_documents(texts, "rules")
    read = add_user_rules(catalog.rules, documents, catalog.versions)
    read = replace(read, problems=(*unreadable, *read.problems))
    if not read.added:
        return catalog, read
    digest = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:8]
    return replace(catalog, version=f"{catalog.version}.{digest}", rules=read.rules, own_rules=read.written), read

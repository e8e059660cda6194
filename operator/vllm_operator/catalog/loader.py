"""The catalog: everything that is known, in one object, and the rules that the owner of the cluster adds.

User-defined rules have the same form as ours. They come before our rules of the same kind: their choice beats our choices, but not our
quirks. An invalid rule is left out and reported. It never affects the others or the operator.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from vllm_operator import __version__
from vllm_operator.catalog.caches import Caches, PrimingRule, load_caches, load_priming_rules
from vllm_operator.catalog.entry import parse_entry
from vllm_operator.catalog.gpus import GPUs, load_gpus
from vllm_operator.catalog.images import Images, load_images
from vllm_operator.catalog.instance_types import InstanceType
from vllm_operator.catalog.memory import MemoryFacts, load_memory
from vllm_operator.catalog.models import Models, load_models
from vllm_operator.catalog.resources import EntryError, data_digest, without_collecting
from vllm_operator.catalog.rules import Rule, Rules, build_rules, find_conflicts, load_rules
from vllm_operator.catalog.shapes import KnownShapes, load_shapes
from vllm_operator.catalog.user_texts import collect, compile_linear, read_documents
from vllm_operator.catalog.versions import Versions, load_replacements, load_versions

USER_PRIORITY = 1000
"""Added to the priority of a user's rule, so that it beats ours of the same kind."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is known about GPUs, images, vLLM versions, models and their memory, caches and the choice of backends.

    `version` is the version of the package with a digest of the data, and another digest of the rules of the cluster's owner:
    equal versions make equal decisions. `own_rules` are these rules by id, as they were written. `replacements` say what to use
    instead of variables and flags that newer versions no longer know. `instance_types` are those of the cluster's owner.
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
    replacements: Mapping[str, str] = field(default_factory=dict)
    own_rules: Mapping[str, Any] = field(default_factory=dict)
    instance_types: tuple[InstanceType, ...] = ()


@cache
@without_collecting()
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
        memory=load_memory(),
        shapes=load_shapes(),
        priming=load_priming_rules(),
        replacements=load_replacements(),
    )


@dataclass(frozen=True, slots=True)
class UserRules:
    """All rules, with the valid ones of the user.

    `added` has the ids of these, and `written` their YAML values by id. `problems` has a sentence about each invalid one.
    """

    rules: Rules
    added: tuple[str, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def add_user_rules(rules: Rules, documents: Iterable[Any], versions: Versions | None = None) -> UserRules:
    """Add user-defined rules to those that ship with the operator.

    Args:
        rules: The rules that ship with the operator.
        documents: The user-defined rules, as values of YAML.
        versions: The known versions. A rule may set only what all versions that it applies to have.
    """

    def read(document: Any, before: Sequence[Rule]) -> Rule:
        rule = parse_entry(Rule, document, compile_pattern=compile_linear)
        _check_settings(rule, versions)
        rule = rule.model_copy(update={"priority": rule.priority + USER_PRIORITY})
        if conflict := next((found for other in before for found in find_conflicts([other, rule])), None):
            raise EntryError(conflict)
        return rule

    collected = collect(
        documents,
        "rule",
        read,
        taken={rule.id for rule in rules.rules},
        count_expressions=lambda rule: len(rule.when.environment) + len(rule.when.arguments),
    )
    everything = (
        build_rules([*collected.entries, *rules.rules], rules.invocations, rules.kernels, rules.selectors) if collected.entries else rules
    )
    return UserRules(everything, tuple(collected.written), collected.written, collected.problems)


def _check_settings(rule: Rule, versions: Versions | None) -> None:
    for table in versions.tables if versions else ():
        if not rule.when.versions.contains(table.release):
            continue
        unknown = [flag for flag in rule.arguments if not table.knows_flag(flag)]
        unknown += [name for name in rule.environment if name.startswith("VLLM_") and not table.knows_variable(name)]
        if unknown:
            raise EntryError(f"vLLM {table.version} does not have {', '.join(unknown)[:200]}; limit the rule with when.versions")


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

"""The page that `vllm-operator plan` prints for people."""

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from vllm_operator.api.plan import ChosenBy, ModelFact, NodeRequirement, Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.loader import Catalog
from vllm_operator.cli.tables import table, wrap
from vllm_operator.planning.inventory.node_labels import SLICES
from vllm_operator.planning.inventory.pools import Inventory
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.placement.shortage import kinds_of_nodes
from vllm_operator.text.wording import listed

CHOSEN_BY = {ChosenBy.USER: "user", ChosenBy.RULE: "rule", ChosenBy.ENGINE: "vLLM default"}
_LABEL_WIDTH = 19


def write_page(
    out: TextIO,
    resource: VLLMDeployment,
    outcome: Outcome,
    inventory: Inventory,
    catalog: Catalog,
    manifests: Sequence[Mapping[str, Any]],
) -> None:
    """Write the plan with its reasons, or why there is none."""
    lines = [f"{resource.metadata.namespace}/{resource.metadata.name}: {resource.spec.model.uri}", ""]
    if outcome.refusal is not None:
        lines += [f"Not planned: {outcome.refusal.reason}", *wrap(outcome.refusal.message, "  ")]
    if outcome.plan is not None:
        lines += plan_lines(outcome.plan, catalog)
        lines += _section("Manifests", [f"{manifest['kind']} {manifest['metadata']['name']}" for manifest in manifests])
    lines += _section("Nodes", kinds_of_nodes(inventory.pools, catalog.gpus))
    lines += _section("Invalid node labels", list(inventory.notes))
    out.write("\n".join(lines).rstrip() + "\n")


def plan_lines(made: Plan, catalog: Catalog) -> list[str]:
    """The part of the page that is about the plan."""
    rows = [
        ("GPU", f"{made.count} x {catalog.gpus.title(made.product, made.architecture)}{_memory(made)} as {made.resource}"),
        ("Engine", f"{made.distribution.value} {made.engine_version or '(unknown version)'}, image {made.image}"),
        ("Node requirements", "; ".join(map(_requirement, made.node_requirements)) or "none"),
        ("Cache key", made.cache_key),
        ("Catalog", made.catalog_version),
    ]
    lines = [line for name, value in rows for line in _labelled(name, value)]
    lines += _section("Notes", made.notes)
    lines += [""]
    lines += _backends(made)
    lines += _section("Model facts", [f"{fact.name} = {_shown(fact)}  ({fact.source})" for fact in made.model_facts])
    lines += _section("Flags", [_setting(a.name, a.value, " ", a.reason) for a in made.args])
    kept = {variable.name for entry in (*catalog.caches.compiled, catalog.caches.weights) for variable in entry.variables}
    lines += _section("Variables", [_setting(v.name, v.value, "=", v.reason) for v in made.env if v.name not in kept])
    keeping = ", ".join(f"{v.name}={v.value}" for v in made.env if v.name in kept)
    lines += _section("Variables for caches and weights", [keeping] if keeping else [])
    lines += _section("Inputs of the cache key", [_setting(part.name, part.value, " = ", part.reason) for part in made.cache_key_parts])
    return lines


def _backends(made: Plan) -> list[str]:
    if not made.backends:
        return ["Backends: vLLM chooses all of them."]
    head, *rows = table(
        ("COMPONENT", "BACKEND", "CHOSEN BY"),
        [
            (choice.component, " or ".join([choice.backend, *(choice.alternatives or ())]), CHOSEN_BY[choice.chosen_by])
            for choice in made.backends
        ],
    )
    lines = [head]
    for row, choice in zip(rows, made.backends, strict=True):
        lines += [row, *wrap(choice.reason, "    ")]
        lines += wrap(f"Source: {choice.source}", "    ") if choice.source else []
    return lines


def _shown(fact: ModelFact) -> str:
    """The value of a fact, with sizes in gigabytes."""
    return f"{int(fact.value) / 1e9:.3g} GB" if fact.name == "weightBytes" and fact.value.isdecimal() else fact.value


def _section(title: str, entries: Sequence[str]) -> list[str]:
    if not entries:
        return []
    return ["", f"{title}:", *(line for entry in entries for line in wrap(entry, "  "))]


def _setting(name: str, value: str | None, sign: str, reason: str | None) -> str:
    shown = name if value is None else f"{name}{sign}{value}"
    return f"{shown}  ({reason.rstrip('.')})" if reason else shown


def _labelled(name: str, value: str) -> list[str]:
    return wrap(value, " " * _LABEL_WIDTH, first=f"{name}:".ljust(_LABEL_WIDTH))


def _memory(made: Plan) -> str:
    return f", {made.memory_mebibytes} MiB each," if made.memory_mebibytes else ""


def _requirement(requirement: NodeRequirement) -> str:
    match requirement.operator:
        case "DoesNotExist":
            return "not partitioned with MIG" if requirement.key == SLICES else f"no {requirement.key}"
        case "Exists":
            return requirement.key
        case operator:
            return f"{requirement.key} {'not ' if operator == 'NotIn' else ''}{listed(requirement.values or (), 'or')}"

"""The pages of `vllm-operator plan`: a plan with its reasons, or with `--diff` the differences of a new plan."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from vllm_operator.api.labels import CONTAINER, REPLAN_ANNOTATION
from vllm_operator.api.plan import ChosenBy, ModelFact, NodeRequirement, Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.loader import Catalog
from vllm_operator.cli.terminal import table, wrap
from vllm_operator.inventory.node_labels import SLICES
from vllm_operator.inventory.pools import Inventory
from vllm_operator.planning.outcome import Difference, Outcome, compare, refusal_of
from vllm_operator.planning.pinning import is_in_force
from vllm_operator.planning.placement.shortage import kinds_of_nodes
from vllm_operator.text.wording import listed

CHOSEN_BY = {ChosenBy.USER: "user", ChosenBy.RULE: "rule", ChosenBy.ENGINE: "vLLM default"}
_LABEL_WIDTH = 19
_NO_NODES = (
    "No nodes were given, so the plan does not know the GPUs of the cluster. Add --nodes FILE (kubectl get nodes -o yaml > FILE), or read "
    "everything from the cluster with --live."
)


def write_page(
    out: TextIO,
    resource: VLLMDeployment,
    outcome: Outcome,
    inventory: Inventory,
    catalog: Catalog,
    manifests: Sequence[Mapping[str, Any]],
    *,
    nodes_given: bool = True,
) -> None:
    """Write the plan with its reasons, or the reason why there is none. `nodes_given`: whether the nodes of a cluster were read."""
    lines = [f"{resource.metadata.namespace}/{resource.metadata.name}: {resource.spec.model.uri}", ""]
    if not nodes_given:
        lines += [*wrap(_NO_NODES, ""), ""]
    if outcome.refusal is not None:
        lines += [f"Not planned: {outcome.refusal.reason}", *wrap(outcome.refusal.message, "  ")]
    if outcome.plan is not None:
        lines += plan_lines(outcome.plan, catalog)
        lines += _command(manifests)
        lines += _section("Manifests", [f"{manifest['kind']} {manifest['metadata']['name']}" for manifest in manifests])
    lines += _section("Nodes", kinds_of_nodes(inventory.pools, catalog.gpus))
    lines += _section("Invalid node labels", list(inventory.notes))
    out.write("\n".join(lines).rstrip() + "\n")


def plan_lines(made: Plan, catalog: Catalog) -> list[str]:
    """Return the part of the page about the plan."""
    rows = [
        ("GPU", f"{made.count} x {_device(made, catalog)}{_memory(made)} as {made.resource}"),
        ("Engine", f"{made.distribution.value} {made.engine_version or '(unknown version)'}, image {made.image}"),
        ("Node requirements", "; ".join(map(_requirement, made.node_requirements)) or "none"),
        ("Cache key", made.cache_key),
        ("Catalog", made.catalog_version),
    ]
    lines = [line for name, value in rows for line in _labelled(name, value)]
    if made.preset is not None:
        lines += _section(f"From {made.preset}", made.preset.fields or ["nothing: the VLLMDeployment sets all of it itself"])
    lines += _section("GPUs compared", [f"{each.gpu}: {each.verdict}" for each in made.candidates or ()])
    lines += _section("Notes", made.notes)
    lines += [""]
    lines += _backends(made)
    lines += _section("Model facts", [f"{fact.name} = {_shown(fact)}  ({fact.source})" for fact in made.model_facts])
    lines += _section("Flags", [_setting(a.name, a.text, " ", a.reason) for a in made.args])
    kept = {variable.name for entry in (*catalog.caches.compiled, catalog.caches.weights) for variable in entry.variables}
    lines += _section("Variables", [_setting(v.name, v.value, "=", v.reason) for v in made.env if v.name not in kept])
    keeping = ", ".join(f"{v.name}={v.value}" for v in made.env if v.name in kept)
    lines += _section("Variables for caches and weights", [keeping] if keeping else [])
    lines += _section("Inputs of the cache key", [_setting(part.name, part.value, " = ", part.reason) for part in made.cache_key_parts])
    return lines


def _command(manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the engine's command line, one flag per line, ready to be pasted into a shell."""
    pods = [manifest["spec"]["template"]["spec"] for manifest in manifests if manifest["kind"] == "Deployment"]
    engines = (each for pod in pods for each in pod["containers"] if each["name"] == CONTAINER)
    engine: Mapping[str, Any] = next(engines, {})
    lines: list[str] = []
    for word in engine.get("args") or ():
        if str(word).startswith("-") or not lines:
            lines.append(shlex.quote(str(word)))
        else:
            lines[-1] += f" {shlex.quote(str(word))}"
    command = shlex.join(map(str, engine.get("command") or ()))
    return ["", "Command:", "  " + " \\\n    ".join([command, *lines])] if command else []


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
    """Return the value of a fact, with sizes in gigabytes."""
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


def _device(made: Plan, catalog: Catalog) -> str:
    title = catalog.gpus.title(made.product, made.architecture)
    name = f"MIG slice {made.mig_profile} of {title}" if made.mig_profile else title
    return f"{name}, shared by {made.time_slices} Pods" if made.time_slices else name


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


def differences_of(pinned: Plan, fresh: Outcome) -> list[Difference]:
    """Return the differences between the plan in force and a new plan; none if there is no new plan."""
    return compare(pinned, fresh.plan) if fresh.plan else []


def write_difference_page(out: TextIO, resource: VLLMDeployment, pinned: Plan, fresh: Outcome, today: str) -> None:
    """Write the differences between the plan in force and a new plan. `today` is the current version of the catalog."""
    lines = [f"{resource.metadata.namespace}/{resource.metadata.name}: {resource.spec.model.uri}", ""]
    lines += wrap(
        f"Plan for generation {pinned.observed_generation}, made with catalog {pinned.catalog_version}. Current catalog: {today}.", ""
    )
    if fresh.plan is None:
        lines += ["", *wrap(refusal_of(fresh), ""), *wrap("The plan in force stays. Running Pods are not affected.", "")]
    else:
        differences = differences_of(pinned, fresh)
        lines += ["", "A new plan would differ:" if differences else "A new plan would be the same.", *difference_lines(differences)]
        lines += _new_notes(pinned, fresh.plan)
        lines += _advice(resource, pinned, fresh)
    out.write("\n".join(lines).rstrip() + "\n")


def differences_as_json(pinned: Plan, fresh: Outcome, today: str) -> dict[str, Any]:
    """Return the differences as JSON."""
    return {
        "catalogVersion": pinned.catalog_version,
        "todaysCatalogVersion": today,
        "refusal": None if fresh.plan else refusal_of(fresh),
        "differences": [
            {
                "subject": difference.subject,
                "inForce": difference.before,
                "today": difference.after,
                "reasonInForce": difference.before_reason,
                "reasonToday": difference.after_reason,
            }
            for difference in differences_of(pinned, fresh)
        ],
    }


def difference_lines(differences: Sequence[Difference], before: str = "in force", after: str = "new") -> list[str]:
    """Return lines about the differences between two plans. `before` and `after` name the plans."""
    lines = []
    for difference in differences:
        lines += [
            "",
            f"  {difference.subject.removeprefix('The ')}",
            *_side(before, difference.before, difference.before_reason),
            *_side(after, difference.after, difference.after_reason),
        ]
    return lines


def _side(when: str, value: str | None, reason: str | None) -> list[str]:
    shown = "not set" if value is None else value or "set"
    return [*wrap(shown, " " * 16, first=f"    {when}:".ljust(16)), *(wrap(reason, " " * 16) if reason else [])]


def _new_notes(pinned: Plan, fresh: Plan) -> list[str]:
    new = [note for note in fresh.notes if note not in pinned.notes]
    return ["", "New notes:", *(line for note in new for line in wrap(note, "  "))] if new else []


def _advice(resource: VLLMDeployment, pinned: Plan, fresh: Outcome) -> list[str]:
    if not is_in_force(pinned, resource):
        return ["", *wrap("The spec has changed or a new plan was requested since. The operator applies the new plan.", "")]
    if not differences_of(pinned, fresh):
        return []
    name, namespace = resource.metadata.name, resource.metadata.namespace
    return [
        "",
        *wrap("The plan in force stays until the spec changes. To apply the new plan now, which restarts the Pods:", ""),
        f"  kubectl annotate vllm {name} -n {namespace} --overwrite {REPLAN_ANNOTATION}=$(date +%s)",
    ]

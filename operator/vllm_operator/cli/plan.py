"""`vllm-operator plan`: the plan for a VLLMDeployment, with its reasons.

Exit status: 0 planned, 1 refused (the reason is printed), 2 invalid input. With `--diff`, like `diff`: 0 no difference, 1 a difference, 2
the comparison failed.
"""

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from vllm_operator.api import reading
from vllm_operator.api.conditions import PLAN_DRIFTED, VALID_SPEC, Reason, Verdict, find_condition
from vllm_operator.api.labels import CONTAINER, REPLAN_ANNOTATION, ROLLBACK_ANNOTATION
from vllm_operator.api.plan import ModelFact, NodeRequirement, Plan
from vllm_operator.api.reading import Manifest
from vllm_operator.api.resource import VLLMDeployment, is_workload, template_spec
from vllm_operator.api.spec import PRESET_PLURALS
from vllm_operator.caches.race import with_results
from vllm_operator.catalog.loader import Catalog
from vllm_operator.cli import documents
from vllm_operator.cli.inputs import STANDARD_INPUT, InputError, invalid, print_as
from vllm_operator.cli.terminal import section, table, wrap
from vllm_operator.inventory.devices import read_used
from vllm_operator.inventory.node_labels import SLICES
from vllm_operator.inventory.nodes import read_inventory
from vllm_operator.inventory.pools import Inventory
from vllm_operator.planning.outcome import Difference, Outcome, compare, refusal_of
from vllm_operator.planning.pinning import is_in_force
from vllm_operator.planning.placement.shortage import kinds_of_nodes
from vllm_operator.planning.planner import plan
from vllm_operator.planning.presets import missing_preset, with_current_preset
from vllm_operator.planning.validation import violations
from vllm_operator.rendering.exposure import render_autoscaler, render_disruption_budget, render_exposure
from vllm_operator.rendering.image_reading import find_build_record, image_to_read, read_build_record
from vllm_operator.rendering.manifests import render
from vllm_operator.rendering.revision import RevisionError, is_revision_of, number_of, read_revision
from vllm_operator.sizing.model_facts import ModelFiles
from vllm_operator.text.wording import listed

REFUSED_STATUS, DIFFERENT_STATUS = 1, 1
NEWEST = 0
"""Represents the number of the newest revision."""
CHOSEN_BY = {"User": "user", "Rule": "rule", "Engine": "vLLM default"}
_LABEL_WIDTH = 19
_NEXT_LINE = " \\\n    "
_IN_FORCE = {"subject": "subject", "inForce": "before", "today": "after", "reasonInForce": "before_reason", "reasonToday": "after_reason"}
"""Members of a difference from the current plan in JSON, with the fields of `Difference`."""
_CHANGED = {"subject": "subject", "before": "before", "after": "after", "reason": "after_reason"}
"""Members of a difference from the previous revision, with the fields."""
_NO_NODES = (
    "No nodes were given, so the plan does not know the GPUs of the cluster. Add --nodes FILE (kubectl get nodes -o yaml > FILE), or give "
    "a NAME without -f to read everything from the cluster."
)


def run(arguments: argparse.Namespace) -> int:
    """Print a plan or the differences to it. Return the exit status."""
    if arguments.revision is not None:
        return _show_revision(arguments)
    texts = documents.texts_in(arguments.rules, arguments.instance_types)
    found = _read_files(arguments) if arguments.filename else _read_live(arguments)
    catalog = documents.catalog_with({**found.texts, **texts}, arguments.version_table)
    files = documents.read_model_files(arguments.model_config) if arguments.model_config else ModelFiles()
    resource = documents.parse_deployment(found.resource)
    merged = merge_preset_of(resource, found.objects)
    if isinstance(merged, VLLMDeployment):
        resource = merged
    if arguments.diff:
        resource = with_pinned_plan(resource, found.objects)
        if resource.pinned is None:
            raise InputError(f"the VLLMDeployment {documents.name_of(found.resource)} has no current plan to compare with")
    image = None if arguments.version_table else image_to_read(resource, catalog.versions)
    if image is not None and (record := find_build_record(resource, image, found.objects)) is not None:
        catalog = replace(catalog, versions=replace(catalog.versions, build=read_build_record(image, record).table))
    catalog = with_results(catalog, resource, revisions_of(resource, found.objects))
    inventory = _inventory(resource, found, catalog)
    if isinstance(merged, Verdict):
        outcome = Outcome(VALID_SPEC, merged, None)
    else:
        pinned = resource.pinned  # the difference is to the plan that the annotation `replan` would lead to
        generation = pinned.cache_generation if pinned else None
        outcome = plan(resource, inventory, catalog, pinned=pinned, cache_generation=generation, files=files, chooses_gpu_again=True)
    if resource.pinned is not None:
        return _diff(resource, resource.pinned, outcome.fresh or outcome, catalog.version, arguments.output)
    if arguments.output:
        made, manifests = (outcome.plan.to_json(), _objects(resource, outcome.plan)) if outcome.plan else (None, [])
        print_as({"plan": made, "result": result_of(outcome), "manifests": manifests}, arguments.output)
    else:
        given = not arguments.filename or arguments.nodes is not None
        _print(_plan_page(resource, outcome, inventory, catalog, nodes_given=given))
    return 0 if outcome.plan else REFUSED_STATUS


def _show_revision(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        raise InputError("--revision needs the name of a VLLMDeployment: plan NAME --revision N")
    if arguments.filename:
        manifest, objects = documents.read_deployment(arguments.filename, arguments.name)
    else:
        from vllm_operator.cli.live import read_with_revisions  # imported only here, because the Kubernetes client is slow to import

        manifest, objects = read_with_revisions(arguments)
    resource = documents.parse_deployment(manifest)
    revision, before = _find_revision(resource, objects, arguments.revision)
    made = plan_in(resource, revision)
    why = list(causes(before, made)) if before is not None else []
    differences = compare(before, made) if before is not None else []
    if arguments.output:
        print_as({"plan": made.to_json(), "causes": why, "differences": _as_json(differences, _CHANGED)}, arguments.output)
        return 0
    state = "current" if resource.status.revision == reading.text(revision, "metadata", "name") else "earlier"
    title = f"{resource.metadata.namespace}/{resource.metadata.name}, revision {number_of(revision)}, {state}"
    lines = [title, "", *_plan_lines(made, documents.catalog_with(documents.texts_in(arguments.rules)))]
    if before is not None:
        lines += ["", "Changes since the previous revision:", *(line for cause in why for line in wrap(cause, "  "))]
        lines += difference_lines(differences, "before", "after") or ["  The GPU, the image, the backends and the settings stay the same."]
    _print(lines)
    return 0


def _diff(resource: VLLMDeployment, pinned: Plan, fresh: Outcome, today: str, form: str | None) -> int:
    differences = compare(pinned, fresh.plan) if fresh.plan else []
    if form:
        refusal = None if fresh.plan else refusal_of(fresh)
        versions = {"catalogVersion": pinned.catalog_version, "todaysCatalogVersion": today}
        print_as({**versions, "refusal": refusal, "differences": _as_json(differences, _IN_FORCE)}, form)
    else:
        _print(_difference_page(resource, pinned, fresh, today, differences))
    return 0 if fresh.plan and not differences else DIFFERENT_STATUS


def _print(lines: Sequence[str]) -> None:
    print("\n".join(lines).rstrip())


def result_of(outcome: Outcome) -> dict[str, str]:
    """Return reason and message: of the plan, or why there is none."""
    verdict = outcome.refusal or outcome.planned
    return {"reason": verdict.reason, "message": verdict.message}


def _read_live(arguments: argparse.Namespace) -> documents.ClusterObjects:
    from vllm_operator.cli.live import read_live  # imported only here, because the Kubernetes client is slow to import

    if arguments.name is None:
        raise InputError("no VLLMDeployment was given. Name one of the cluster (plan NAME -n NAMESPACE), or give a file (-f FILE)")
    return read_live(arguments)


def _read_files(arguments: argparse.Namespace) -> documents.ClusterObjects:
    paths: list[str] = arguments.filename
    if [*paths, arguments.nodes].count(STANDARD_INPUT) > 1:
        raise InputError("only one of -f and --nodes can be standard input")
    manifest, objects = documents.read_deployment(paths, arguments.name)
    nodes = documents.read_objects(arguments.nodes) if arguments.nodes else []
    presets = documents.of_kind(objects, *PRESET_PLURALS)
    for each in (manifest, *presets):
        if problems := violations(each):
            raise invalid(f"{', '.join(paths)}: the {each['kind']} {documents.name_of(each)} is", problems)
    return documents.ClusterObjects(
        manifest, [*nodes, *documents.of_kind(objects, "ControllerRevision"), *presets], documents.of_kind(nodes, "Pod") or None
    )


def _inventory(resource: VLLMDeployment, found: documents.ClusterObjects, catalog: Catalog) -> Inventory:
    nodes, slices, pools, claims = (
        documents.of_kind(found.objects, kind) for kind in ("Node", "ResourceSlice", "NodePool", "ResourceClaim")
    )
    inventory = read_inventory(nodes, slices, catalog.gpus, node_pools=pools)
    if found.pods is None and not claims:
        return inventory
    held = read_used(found.pods or (), claims or None)
    used = held.without((resource.metadata.namespace, resource.metadata.name)) if found.pods is not None else None
    return replace(inventory, used=used, allocated=held.claimed_by_others(), read_at=datetime.now(UTC))


def merge_preset_of(resource: VLLMDeployment, objects: Sequence[Manifest]) -> VLLMDeployment | Verdict:
    """Merge the preset that an object names, found among `objects`, into its spec; or return a verdict why that is impossible."""
    reference, namespace = resource.spec.preset_ref, resource.metadata.namespace
    if reference is None:
        return resource
    presets = {
        reading.text(each, "metadata", "name"): reading.mapping(each, "spec")
        for each in objects
        if each.get("kind") == reference.kind
        and (reference.kind != "VLLMPreset" or (reading.text(each, "metadata", "namespace") or "default") == namespace)
    }
    if reference.name not in presets:
        return missing_preset(reference, namespace, presets)
    return with_current_preset(resource, reference, presets[reference.name])


def revisions_of(resource: VLLMDeployment, objects: Sequence[Manifest]) -> list[Manifest]:
    """Return the revisions among these objects that the VLLMDeployment controls, oldest first."""
    own = (entry for entry in objects if entry.get("kind") == "ControllerRevision" and is_revision_of(resource, entry))
    return sorted(own, key=lambda entry: (number_of(entry), reading.text(entry, "metadata", "creationTimestamp")))


def plan_in(resource: VLLMDeployment, revision: Manifest) -> Plan:
    """Return the plan in a revision. Raises InputError."""
    try:
        return read_revision(resource, revision)
    except RevisionError as error:
        raise InputError(str(error)) from error


def _find_revision(resource: VLLMDeployment, objects: Sequence[Manifest], number: int) -> tuple[Manifest, Plan | None]:
    """Return a revision by its number or `NEWEST`, and the plan of the revision before it, if that can be read."""
    revisions = revisions_of(resource, objects)
    for previous, revision in zip((None, *revisions), revisions, strict=False):
        if number_of(revision) == number or (number == NEWEST and revision is revisions[-1]):
            with suppress(RevisionError):
                return revision, None if previous is None else read_revision(resource, previous)
            return revision, None
    known = ", ".join(str(number_of(entry)) for entry in revisions) or "none"
    raise InputError(f"{resource.metadata.name} has no revision{f' {number}' if number != NEWEST else ''}; it has {known}")


def with_pinned_plan(resource: VLLMDeployment, objects: Sequence[Manifest]) -> VLLMDeployment:
    """Return the object with the plan in the revision that its status names. Raises InputError if that is missing or cannot be read."""
    name = resource.status.revision
    if name is None:
        return resource
    found = [entry for entry in revisions_of(resource, objects) if reading.text(entry, "metadata", "name") == name]
    if not found:
        raise InputError(f"ControllerRevision {name}, which contains the plan of {resource.metadata.name}, is missing")
    return resource.with_pinned(plan_in(resource, found[0]))


def causes(before: Plan, made: Plan) -> Iterator[str]:
    """Yield why a plan was made after another one, as sentences."""
    if made.chosen_again is not None:
        yield made.chosen_again
    if made.replan_token not in (None, before.replan_token):
        yield "A new plan was requested."
    if made.spec_digest != before.spec_digest:
        yield f"The spec changed (generation {before.observed_generation} to {made.observed_generation})."
    if won := [it.backend for it in made.backends if it not in before.backends and (it.source or "").startswith("race-")]:
        yield f"Measured as the fastest backend (spec.backends.tuning): {', '.join(won)}."
    if made.catalog_version != before.catalog_version:
        yield f"Made with catalog {made.catalog_version}, the plan before it with {before.catalog_version}."
    parts, parts_before = ({part.name: part.value for part in each.cache_key_parts} for each in (made, before))
    if parts.get("generation") != parts_before.get("generation"):
        yield "The cache directory was damaged and replaced."
    elif made.cache_key != before.cache_key:
        changed = ", ".join(sorted(name for name in parts.keys() | parts_before.keys() if parts.get(name) != parts_before.get(name)))
        yield f"The cache directory changed because of: {changed or 'the digest of the image'}."


def _plan_page(resource: VLLMDeployment, outcome: Outcome, inventory: Inventory, catalog: Catalog, *, nodes_given: bool) -> list[str]:
    lines = [_title(resource), "", *([] if nodes_given else [*wrap(_NO_NODES, ""), ""])]
    if outcome.refusal is not None:
        lines += [f"Not planned: {outcome.refusal.reason}", *wrap(outcome.refusal.message, "  ")]
    if outcome.plan is not None:
        manifests = _objects(resource, outcome.plan)
        lines += [*_plan_lines(outcome.plan, catalog), *_command(manifests)]
        lines += section("Manifests", [f"{manifest['kind']} {manifest['metadata']['name']}" for manifest in manifests])
    lines += section("Nodes", kinds_of_nodes(inventory.pools, catalog.gpus))
    return lines + section("Invalid node labels", list(inventory.notes))


def _objects(resource: VLLMDeployment, made: Plan) -> list[Manifest]:
    """Return the objects of a plan and the optional ones that the spec asks for, as if the cluster had none that conflict."""
    has_groups = made.nodes is not None
    scaling = (render_disruption_budget(resource, has_groups=has_groups), render_autoscaler(resource))
    return [*render(resource, made), *render_exposure(resource, has_groups=has_groups), *(each for each in scaling if each is not None)]


def _title(resource: VLLMDeployment) -> str:
    return f"{resource.metadata.namespace}/{resource.metadata.name}: {resource.spec.model.uri}"


def _plan_lines(made: Plan, catalog: Catalog) -> list[str]:
    rows = {
        "GPU": f"{made.count} x {_device(made, catalog)} as {made.resource}{f', on each of {made.nodes} nodes' if made.nodes else ''}",
        "Engine": f"{made.distribution.value} {made.engine_version or '(unknown version)'}, image {made.image}",
        "Node requirements": "; ".join(map(_requirement, made.node_requirements)) or "none",
        "Cache key": made.cache_key,
        "Catalog": made.catalog_version,
    }
    lines = [line for name, value in rows.items() for line in wrap(value, " " * _LABEL_WIDTH, first=f"{name}:".ljust(_LABEL_WIDTH))]
    if made.preset is not None:
        lines += section(f"From {made.preset}", made.preset.fields or ["nothing: the VLLMDeployment sets all of it itself"])
    kept = {variable.name for entry in (*catalog.caches.compiled, catalog.caches.weights) for variable in entry.variables}
    keeping = ", ".join(f"{v.name}={v.value}" for v in made.env if v.name in kept)
    lines += section("GPUs compared", [f"{each.gpu}: {each.verdict}" for each in made.candidates or ()])
    lines += section("Notes", made.notes)
    lines += ["", *_backends(made)]
    lines += section("Model facts", [f"{fact.name} = {_shown(fact)}  ({fact.source})" for fact in made.model_facts])
    lines += section("Flags", [_setting(a.name, a.text, " ", a.reason) for a in made.args])
    lines += section("Variables", [_setting(v.name, v.value, "=", v.reason) for v in made.env if v.name not in kept])
    lines += section("Variables for caches and weights", [keeping] if keeping else [])
    return lines + section(
        "Inputs of the cache key", [_setting(part.name, part.value, " = ", part.reason) for part in made.cache_key_parts]
    )


def _device(made: Plan, catalog: Catalog) -> str:
    name = catalog.gpus.title(made.product, made.architecture, made.mig_profile)
    shared = f", shared by {made.time_slices} Pods" if made.time_slices else ""
    return name + shared + (f", {made.memory_mebibytes} MiB each," if made.memory_mebibytes else "")


def _requirement(requirement: NodeRequirement) -> str:
    match requirement.operator:
        case "DoesNotExist":
            return "not partitioned with MIG" if requirement.key == SLICES else f"no {requirement.key}"
        case "Exists":
            return requirement.key
        case operator:
            return f"{requirement.key} {'not ' if operator == 'NotIn' else ''}{listed(requirement.values or (), 'or')}"


def _backends(made: Plan) -> list[str]:
    if not made.backends:
        return ["Backends: vLLM chooses all of them."]
    cells = [(each.component, " or ".join([each.backend, *(each.alternatives or ())]), CHOSEN_BY[each.chosen_by]) for each in made.backends]
    head, *rows = table(("COMPONENT", "BACKEND", "CHOSEN BY"), cells)
    lines = [head]
    for row, choice in zip(rows, made.backends, strict=True):
        lines += [row, *wrap(choice.reason, "    "), *(wrap(f"Source: {choice.source}", "    ") if choice.source else [])]
    return lines


def _shown(fact: ModelFact) -> str:
    return f"{int(fact.value) / 1e9:.3g} GB" if fact.name == "weightBytes" and fact.value.isdecimal() else fact.value


def _setting(name: str, value: str | None, sign: str, reason: str | None) -> str:
    shown = name if value is None else f"{name}{sign}{value}"
    return f"{shown}  ({reason.rstrip('.')})" if reason else shown


def _command(manifests: Sequence[Manifest]) -> list[str]:
    """Return the engine's command line, one flag per line, ready to be pasted into a shell."""
    pods = [template_spec(manifest) for manifest in manifests if is_workload(manifest)]
    engine: Manifest = next((each for pod in pods for each in pod["containers"] if each["name"] == CONTAINER), {})
    words = enumerate(map(str, engine.get("args") or ()))
    lines = [f"{_NEXT_LINE if word.startswith('-') or number == 0 else ' '}{shlex.quote(word)}" for number, word in words]
    command = shlex.join(map(str, engine.get("command") or ()))
    return ["", "Command:", "".join(["  ", command, *lines])] if command else []


def _difference_page(resource: VLLMDeployment, pinned: Plan, fresh: Outcome, today: str, differences: Sequence[Difference]) -> list[str]:
    made = f"Plan for generation {pinned.observed_generation}, made with catalog {pinned.catalog_version}. Current catalog: {today}."
    lines = [_title(resource), "", *wrap(made, "")]
    if fresh.plan is None:
        return [*lines, "", *wrap(refusal_of(fresh), ""), *wrap("The current plan stays. Running Pods are not affected.", "")]
    lines += ["", "A new plan would differ:" if differences else "A new plan would be the same.", *difference_lines(differences)]
    lines += section("New notes", [note for note in fresh.plan.notes if note not in pinned.notes])
    drifted = find_condition(resource.status.conditions, PLAN_DRIFTED)
    if drifted is not None and drifted.reason == Reason.ROLLED_BACK:
        lines += ["", *wrap(f"Rolled back: the new plan applies without the annotation {ROLLBACK_ANNOTATION}.", "")]
    elif not is_in_force(pinned, resource):
        lines += ["", *wrap("The spec has changed or a new plan was requested since. The operator applies the new plan.", "")]
    elif differences:
        name, namespace = resource.metadata.name, resource.metadata.namespace
        lines += ["", *wrap("The current plan stays until the spec changes. To apply the new plan now, which restarts the Pods:", "")]
        lines += [f"  kubectl annotate vllm {name} -n {namespace} --overwrite {REPLAN_ANNOTATION}=$(date +%s)"]
    return lines


def _as_json(differences: Sequence[Difference], members: Mapping[str, str]) -> list[dict[str, str | None]]:
    return [{name: getattr(each, field) for name, field in members.items()} for each in differences]


def difference_lines(differences: Sequence[Difference], before: str = "current", after: str = "new") -> list[str]:
    """Return differences between two plans as lines. `before` and `after` name the plans."""
    lines = []
    for each in differences:
        lines += ["", f"  {each.subject.removeprefix('The ')}"]
        for when, value, reason in ((before, each.before, each.before_reason), (after, each.after, each.after_reason)):
            shown = "not set" if value is None else value or "set"
            lines += wrap(shown, " " * 16, first=f"    {when}:".ljust(16))
            lines += wrap(reason, " " * 16) if reason else []
    return lines

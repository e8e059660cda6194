"""`vllm-operator plan`: the plan for a VLLMDeployment, with its reasons.

The objects come from files, without a cluster, or with `--live` from the cluster. `--diff` compares with the plan in force, from its
ControllerRevision. `--revision` shows the plan of a revision.

Exit status: 0 planned, 1 refused (the reason is printed), 2 invalid input. With `--diff`, like `diff`: 0 no difference, 1 a difference, 2
the comparison failed.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import ACCEPTED, PLANNED, VALID_SPEC, Verdict
from vllm_operator.api.labels import KIND
from vllm_operator.api.operation import PresetKind
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cli.documents import (
    RULES_HELP,
    catalog_with,
    catalog_with_texts,
    name_of,
    parse_deployment,
    print_as,
    read_model_files,
    read_objects,
    texts_in,
)
from vllm_operator.cli.inputs import STANDARD_INPUT, InputError
from vllm_operator.cli.plan_pages import (
    difference_lines,
    differences_as_json,
    differences_of,
    plan_lines,
    write_difference_page,
    write_page,
)
from vllm_operator.cli.revisions import NEWEST, causes, find_revision, read_with_revisions, with_pinned_plan
from vllm_operator.cli.terminal import wrap
from vllm_operator.inventory.devices import read_held
from vllm_operator.inventory.nodes import read_inventory
from vllm_operator.planning.outcome import Outcome, compare
from vllm_operator.planning.planner import plan
from vllm_operator.planning.presets import missing_preset, with_current_preset
from vllm_operator.planning.validation import violations
from vllm_operator.rendering.manifests import render
from vllm_operator.sizing.model_facts import ModelFiles

if TYPE_CHECKING:
    from vllm_operator.cli.live import LiveCluster

PLANNED_STATUS, REFUSED_STATUS = 0, 1
SAME_STATUS, DIFFERENT_STATUS = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "-f",
        "--filename",
        metavar="FILE",
        action="append",
        help="file with the VLLMDeployment (- is standard input). Repeat it for a file with its preset",
    )
    parser.add_argument(
        "--nodes",
        metavar="FILE",
        help="file with the nodes of the cluster, from `kubectl get nodes -o yaml`; to take into account which GPUs are free, `kubectl get "
        "nodes,pods -A -o yaml`; with dynamic resource allocation, `kubectl get nodes,resourceslices,resourceclaims -A -o yaml`; with "
        "Karpenter, `kubectl get nodes,nodepools -o yaml`",
    )
    parser.add_argument(
        "--model-config",
        metavar="FILE",
        help="config.json of the model, or its folder. The operator reads it from the hub, this command does not",
    )
    parser.add_argument("--rules", metavar="FILE", help=RULES_HELP)
    parser.add_argument(
        "--instance-types", metavar="FILE", help="file with the ConfigMap of node pools that a cluster autoscaler would add nodes to"
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the VLLMDeployment (with --live, or if FILE has several)")
    parser.add_argument(
        "--live",
        action="store_true",
        help="read the VLLMDeployment and what its plan depends on from the cluster: nodes, Pods with GPUs, ResourceSlices, Karpenter's "
        "NodePools, and the ConfigMaps that the operator uses",
    )
    parser.add_argument("-n", "--namespace", default="default", help="namespace of the VLLMDeployment for --live (default: default)")
    parser.add_argument("--diff", action="store_true", help="compare a new plan with the plan in force")
    parser.add_argument(
        "--revision",
        type=int,
        nargs="?",
        const=NEWEST,
        metavar="N",
        help="show the plan of revision N (default: the newest) and what changed with it, from the cluster or from FILE",
    )
    parser.add_argument("-o", "--output", choices=("json", "yaml"), help="print the plan, its conditions and the manifests in this format")


def run(arguments: argparse.Namespace) -> int:
    """Print a plan or the differences to it. Return the exit status."""
    if arguments.revision is not None:
        return _show_revision(arguments)
    name = arguments.name
    texts = texts_in(arguments.rules, arguments.instance_types)
    if arguments.live:
        live = _read_live(arguments.namespace, name)
        manifest, nodes, pods = live.resource, live.objects, live.pods
        texts = {**live.texts, **texts}
    else:
        manifest, nodes = _read_files(arguments, name)
        pods = _of_kind(nodes, "Pod") or None
    catalog = catalog_with_texts(texts)
    files = read_model_files(arguments.model_config) if arguments.model_config else ModelFiles()
    resource = parse_deployment(manifest)
    merged = merge_preset_of(resource, nodes)
    if isinstance(merged, VLLMDeployment):
        resource = merged
    if arguments.diff:
        resource = with_pinned_plan(resource, nodes)
        if resource.pinned is None:
            raise InputError(f"the VLLMDeployment {name_of(manifest)} has no pinned plan to compare with")
    node_pools = _of_kind(nodes, "NodePool")
    inventory = read_inventory(_of_kind(nodes, "Node"), _of_kind(nodes, "ResourceSlice"), catalog.gpus, node_pools=node_pools)
    claims = _of_kind(nodes, "ResourceClaim") or None
    if pods is not None or claims is not None:
        held = read_held(pods or (), claims)
        used = held.without((resource.metadata.namespace, resource.metadata.name)) if pods is not None else None
        inventory = replace(inventory, used=used, allocated=held.claimed_by_others())
    if isinstance(merged, Verdict):
        outcome = Outcome(VALID_SPEC, merged, None)
    else:
        generation = (resource.status.cache.generation or 0) if resource.pinned and resource.status.cache else 0
        outcome = plan(resource, inventory, catalog, pinned=resource.pinned, cache_generation=generation, files=files)
    if resource.pinned is not None:
        return _diff(resource, resource.pinned, outcome.today or outcome, catalog.version, arguments.output)
    manifests = render(resource, outcome.plan) if outcome.plan else []
    if arguments.output:
        print_as(
            {"plan": _plan_as_status(outcome.plan), "conditions": conditions_of(outcome), "manifests": list(manifests)}, arguments.output
        )
    else:
        write_page(sys.stdout, resource, outcome, inventory, catalog, manifests, nodes_given=arguments.live or arguments.nodes is not None)
    return PLANNED_STATUS if outcome.plan else REFUSED_STATUS


def _show_revision(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        raise InputError("--revision needs the name of a VLLMDeployment: plan NAME --revision N")
    if len(arguments.filename or ()) > 1:
        raise InputError("--revision reads one file")
    path = arguments.filename[0] if arguments.filename else None
    resource, revisions = read_with_revisions(arguments.name, namespace=arguments.namespace, path=path)
    revision, before = find_revision(resource, revisions, arguments.revision)
    assert revision.plan is not None  # find_revision raises if it is None
    why = list(causes(before, revision.plan)) if before is not None else []
    differences = compare(before, revision.plan) if before is not None else []
    if arguments.output:
        found = [{"subject": each.subject, "before": each.before, "after": each.after, "reason": each.after_reason} for each in differences]
        print_as({"plan": revision.plan.to_json(), "causes": why, "differences": found}, arguments.output)
        return PLANNED_STATUS
    pinned = resource.status.pinned_plan
    state = "in force" if pinned is not None and pinned.revision == revision.name else "not in force"
    title = f"{resource.metadata.namespace}/{resource.metadata.name}, revision {revision.number}, {state}"
    lines = [title, "", *plan_lines(revision.plan, catalog_with(arguments.rules))]
    if before is not None:
        lines += ["", "Changes since the previous revision:", *(line for cause in why for line in wrap(cause, "  "))]
        lines += difference_lines(differences, "before", "after") or ["  The GPU, the image, the backends and the settings stay the same."]
    print("\n".join(lines))
    return PLANNED_STATUS


def _diff(resource: VLLMDeployment, pinned: Plan, fresh: Outcome, today: str, form: str | None) -> int:
    """Print the differences between the plan in force and a new plan. `today` is the current version of the catalog."""
    if form:
        print_as(differences_as_json(pinned, fresh, today), form)
    else:
        write_difference_page(sys.stdout, resource, pinned, fresh, today)
    return SAME_STATUS if fresh.plan and not differences_of(pinned, fresh) else DIFFERENT_STATUS


def _read_live(namespace: str, name: str | None) -> "LiveCluster":
    from vllm_operator.cli.live import read_live  # imported only here, because the Kubernetes client is slow to import

    if name is None:
        raise InputError("--live needs the name of a VLLMDeployment: plan --live -n NAMESPACE NAME")
    return read_live(namespace, name)


def _read_files(arguments: argparse.Namespace, name: str | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if arguments.filename is None:
        raise InputError("no VLLMDeployment was given. Read it from a file (-f FILE) or from the cluster (--live NAME)")
    paths: list[str] = arguments.filename
    if [*paths, arguments.nodes].count(STANDARD_INPUT) > 1:
        raise InputError("only one of -f and --nodes can be standard input")
    objects, path = [entry for each in paths for entry in read_objects(each)], ", ".join(paths)
    manifest = _one_deployment(objects, path, name)
    nodes = read_objects(arguments.nodes) if arguments.nodes else []
    presets = [entry for kind in PresetKind for entry in _of_kind(objects, kind)]
    for each in (manifest, *presets):
        _check(each, path)
    return manifest, [*nodes, *_of_kind(objects, "ControllerRevision"), *presets]


def _one_deployment(given: Sequence[dict[str, Any]], path: str, name: str | None) -> dict[str, Any]:
    objects = _of_kind(given, KIND)
    names = [name_of(entry) for entry in objects]
    if name is not None:
        objects = [entry for entry in objects if name_of(entry) == name]
    if len(objects) == 1:
        return objects[0]
    if not names:
        raise InputError(f"{path} contains no {KIND}")
    listed = ", ".join(names)
    if name is not None:
        raise InputError(f"{path} contains {'several' if objects else 'no'} {KIND}s with the name {name}, only {listed}")
    raise InputError(f"{path} contains {len(names)} objects of kind {KIND} ({listed}). Add the name of one of them")


def _check(manifest: Mapping[str, Any], path: str) -> None:
    problems = violations(manifest)
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise InputError(f"{path}: the {manifest['kind']} {name_of(manifest)} is invalid:\n{listed}")


def _of_kind(objects: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [entry for entry in objects if entry.get("kind") == kind]


def _plan_as_status(made: Plan | None) -> dict[str, Any] | None:
    return made.to_json() if made else None


def conditions_of(outcome: Outcome) -> list[dict[str, str]]:
    """Return the conditions Accepted and Planned as in the status."""
    verdicts = ((ACCEPTED, outcome.accepted), (PLANNED, outcome.planned))
    return [
        {"type": name, "status": verdict.status.value, "reason": verdict.reason, "message": verdict.message} for name, verdict in verdicts
    ]


def merge_preset_of(resource: VLLMDeployment, objects: Sequence[Mapping[str, Any]]) -> VLLMDeployment | Verdict:
    """Merge the preset that an object names, found among `objects`, into its spec; or return a verdict why that is impossible."""
    reference, namespace = resource.spec.preset_ref, resource.metadata.namespace
    if reference is None:
        return resource
    presets = {
        reading.text(each, "metadata", "name"): reading.mapping(each, "spec")
        for each in objects
        if each.get("kind") == reference.kind
        and (reference.kind is not PresetKind.VLLM_PRESET or (reading.text(each, "metadata", "namespace") or "default") == namespace)
    }
    if reference.name not in presets:
        return missing_preset(reference, namespace, presets)
    return with_current_preset(resource, reference, presets[reference.name])

"""`vllm-operator plan`: what would be planned for a VLLMDeployment, and why, without a cluster.

Exit status: 0 planned, 1 refused (the reason is printed), 2 the input cannot be used.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from vllm_operator.api.conditions import ACCEPTED, PLANNED, Reason
from vllm_operator.api.labels import KIND
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ConditionStatus, Plan
from vllm_operator.api.validation import violations
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.cli.documents import STANDARD_INPUT, InputError, read_objects
from vllm_operator.cli.plan_page import write_page
from vllm_operator.planning.inventory import read_inventory
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.planner import plan
from vllm_operator.rendering.manifests import render

PLANNED_STATUS, REFUSED_STATUS, BAD_INPUT_STATUS = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-f", "--filename", required=True, metavar="FILE", help="file with the VLLMDeployment; - is standard input")
    parser.add_argument(
        "--nodes",
        metavar="FILE",
        help="file with the nodes of the cluster, as `kubectl get nodes -o yaml` writes it; "
        "may hold ResourceSlices too (`kubectl get nodes,resourceslices -o yaml`)",
    )
    parser.add_argument("--name", help="which VLLMDeployment, where the file holds several")
    parser.add_argument("-o", "--output", choices=("json", "yaml"), help="print plan, conditions and manifests for programs")


def run(arguments: argparse.Namespace) -> int:
    """Plan; return the exit status."""
    try:
        manifest = _one_deployment(arguments.filename, arguments.name)
        if arguments.nodes == STANDARD_INPUT == arguments.filename:
            raise InputError("only one of -f and --nodes can be standard input")
        nodes = read_objects(arguments.nodes) if arguments.nodes else []
        _check(manifest, arguments.filename)
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        return BAD_INPUT_STATUS
    resource = VLLMDeployment.parse(manifest)
    catalog = load_catalog()
    inventory = read_inventory(_of_kind(nodes, "Node"), _of_kind(nodes, "ResourceSlice"), catalog.gpus)
    outcome = plan(resource, inventory, catalog)
    manifests = render(resource, outcome.plan) if outcome.plan else []
    if arguments.output:
        _print_for_programs(outcome, manifests, arguments.output)
    else:
        write_page(sys.stdout, resource, outcome, inventory, catalog, manifests)
    return PLANNED_STATUS if outcome.plan else REFUSED_STATUS


def _one_deployment(path: str, name: str | None) -> dict[str, Any]:
    objects = _of_kind(read_objects(path), KIND)
    names = [_name(entry) for entry in objects]
    if name is not None:
        objects = [entry for entry in objects if _name(entry) == name]
    if len(objects) == 1:
        return objects[0]
    if not names:
        raise InputError(f"{path} holds no {KIND}")
    listed = ", ".join(names)
    if name is not None:
        raise InputError(f"{path} holds {'several' if objects else 'no'} {KIND} called {name}; there is {listed}")
    raise InputError(f"{path} holds {len(names)} objects of kind {KIND} ({listed}); say which one with --name")


def _check(manifest: Mapping[str, Any], path: str) -> None:
    problems = violations(manifest)
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise InputError(f"{path}: the VLLMDeployment {_name(manifest)} is not valid:\n{listed}")


def _of_kind(objects: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [entry for entry in objects if entry.get("kind") == kind]


def _name(manifest: Mapping[str, Any]) -> str:
    metadata = manifest.get("metadata")
    return str(metadata.get("name", "without a name")) if isinstance(metadata, Mapping) else "without a name"


def _print_for_programs(outcome: Outcome, manifests: Sequence[Mapping[str, Any]], form: str) -> None:
    content = {"plan": _plan_as_status(outcome.plan), "conditions": conditions_of(outcome), "manifests": list(manifests)}
    if form == "json":
        print(json.dumps(content, indent=2))
    else:
        print(yaml.safe_dump(content, sort_keys=False, width=140, allow_unicode=True), end="")


def _plan_as_status(made: Plan | None) -> dict[str, Any] | None:
    return made.to_json() if made else None


def conditions_of(outcome: Outcome) -> list[dict[str, str]]:
    """Return the two conditions that planning decides, as in the status."""
    verdicts = ((ACCEPTED, outcome.accepted), (PLANNED, outcome.planned))
    return [
        {"type": name, "status": verdict.status.value, "reason": verdict.reason, "message": verdict.message} for name, verdict in verdicts
    ]


def refusal_of(outcome: Outcome) -> str:
    """Return the message of the verdict that ended the planning."""
    if outcome.accepted.status is not ConditionStatus.TRUE or outcome.planned.reason == Reason.NOT_ACCEPTED:
        return outcome.accepted.message
    return outcome.planned.message

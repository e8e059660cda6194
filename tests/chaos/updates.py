"""That the last update of each spec is applied, and that its plan is kept: the Deployment is what a fresh plan of this spec asks for."""

from collections.abc import Sequence
from typing import Any

from support.cluster import Manifest
from support.plans import known
from vllm_operator.api.reading import read_quantity
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cli.inputs import InputError
from vllm_operator.cli.plan import with_pinned_plan
from vllm_operator.inventory.nodes import read_inventory
from vllm_operator.planning.planner import plan
from vllm_operator.rendering.manifests import render
from vllm_operator.status.remedies import carried_out

COMPARED = ("Deployment", "Service")


def lost_plan(manifest: Manifest, objects: Sequence[Manifest]) -> list[str]:
    """Says whether the plan that a VLLMDeployment names can be found among these objects."""
    try:
        with_pinned_plan(VLLMDeployment.parse(manifest), objects)
    except InputError as error:
        return [f"the current plan is lost: {error}"]
    return []


def lost_updates(manifest: Manifest, nodes: Sequence[Manifest], live: Sequence[Manifest]) -> list[str]:
    """Says which children of a VLLMDeployment are not as its present spec asks for.

    Args:
        manifest: The VLLMDeployment; only the remedies in force and the quarantined caches are taken from its status.
        nodes: All nodes.
        live: The Deployments and Services of the namespace.
    """
    catalog = known()
    resource = VLLMDeployment.parse(manifest)
    quarantined = {entry.key for entry in (resource.status.cache.quarantined if resource.status.cache else None) or ()}
    fresh = VLLMDeployment.parse({**manifest, "status": {**manifest.get("status", {}), "plan": None}})
    inventory = read_inventory(nodes, (), catalog.gpus)
    outcomes = (plan(fresh, inventory, catalog, cache_generation=generation) for generation in range(len(quarantined) + 1))
    outcome = next(each for each in outcomes if each.plan is None or each.plan.cache_key not in quarantined)
    name = resource.metadata.name
    if outcome.plan is None:
        return [f"{name} cannot be planned: {outcome.planned.message}"]
    found = {(child["kind"], child["metadata"]["name"]): child for child in live}
    lost = []
    for wanted in render(*carried_out(fresh, outcome.plan)):
        if wanted["kind"] not in COMPARED:
            continue
        child = found.get((wanted["kind"], wanted["metadata"]["name"]))
        where = _difference(wanted["spec"], child["spec"]) if child else ()
        if where is not None:
            lost.append(f"{wanted['kind']} {wanted['metadata']['name']} is not as the spec asks for: {'.'.join(where) or 'it is missing'}")
    return lost


def _difference(wanted: Any, live: Any, path: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """Where a value is not as wanted; None if it is, but for what the API server and others have added."""
    parts: list[tuple[str, Any, Any]]
    if isinstance(wanted, dict):
        live = live if isinstance(live, dict) else {}
        parts = [(key, value, live.get(key)) for key, value in wanted.items()]
    elif isinstance(wanted, list) and wanted and all(isinstance(item, dict) and "name" in item for item in wanted):
        by_name = {item.get("name"): item for item in live or ()}
        parts = [(item["name"], item, by_name.get(item["name"])) for item in wanted]
    elif isinstance(wanted, list):
        if len(wanted) != len(live or ()):
            return path
        parts = [(str(index), a, b) for index, (a, b) in enumerate(zip(wanted, live or (), strict=True))]
    else:
        quantity = read_quantity(wanted)
        return None if wanted == live or not (wanted or live) or (quantity is not None and quantity == read_quantity(live)) else path
    found = (_difference(value, present, (*path, name)) for name, value, present in parts)
    return next((where for where in found if where is not None), None)

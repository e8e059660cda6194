"""`kubectl vllm gpus`: the GPUs and MIG slices of the cluster, how many are free, and the users of the others.

Exit status: 0, or 2 if the nodes cannot be read.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllm_operator.api.reading import text
from vllm_operator.catalog.entry import load_file
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.cli.live import find_if_there, with_client
from vllm_operator.cli.terminal import Line, Span, Style, grid, labelled, line, screen_width, show
from vllm_operator.controller.inventory_reader import has_gpu_sign
from vllm_operator.inventory.devices import deployment_of, has_ended, requested_devices
from vllm_operator.inventory.nodes import read_inventory
from vllm_operator.inventory.pools import Inventory, Pool
from vllm_operator.kube.client import NODE, POD, RESOURCE_SLICE, ClusterClient, Forbidden
from vllm_operator.text.wording import clean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: the command takes none."""
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the devices. Return the exit status."""
    show(with_client("list of nodes", _page))
    return 0


async def _page(client: ClusterClient) -> list[Line]:
    gpus = load_file(GPUs, "gpus.yaml")
    nodes = [node for node in await client.find(NODE, cached=True) if has_gpu_sign(node)]
    inventory = read_inventory(nodes, await find_if_there(client, RESOURCE_SLICE, cached=True), gpus)
    try:
        pods: Sequence[Mapping[str, Any]] | None = await client.find(POD, cached=True)
    except Forbidden:
        pods = None
    return gpus_page(inventory, pods, gpus, width=screen_width())


HEADER = ("NODE", "GPU", "SLICE", "MEMORY", "TOTAL", "USED", "FREE", "USED BY")
_NAMES_SHOWN = 4
_NO_PODS = "Your account may not list the Pods of all namespaces, so it is unknown which devices are free."
_CLAIMS = "Devices for ResourceClaims: it is not known which of them are free."
_NONE = "Kubernetes knows of no NVIDIA GPU in the cluster. Install the NVIDIA GPU Operator, or its device plugin and GPU Feature Discovery."

Holders = Mapping[tuple[str, str], Mapping[str, int]]
"""Devices by node and extended resource, and then by user."""


def gpus_page(inventory: Inventory, pods: Iterable[Mapping[str, Any]] | None, gpus: GPUs, *, width: int) -> list[Line]:
    """Return the page. `pods` are all Pods, or None if they cannot be listed. Lines below the table have at most `width` characters."""
    if not inventory.pools:
        return labelled("", _NONE, label_width=0, width=width)
    all_pods = None if pods is None else [pod for pod in pods if not has_ended(pod)]
    holders = None if all_pods is None else holders_of(all_pods)
    entries = sorted(((node, pool) for pool in inventory.pools for node in pool.nodes), key=lambda each: (each[0], each[1].resource))
    lines = grid(HEADER, [_row(node, pool, holders, gpus) for node, pool in entries])
    lines += [(), *_totals(entries, holders, gpus)]
    notes = [_NO_PODS] if holders is None else []
    notes += [_CLAIMS] if any(pool.claims for pool in inventory.pools) else []
    notes += [f"Unavailable: {_shortened(pool.nodes)} ({' and '.join(pool.problems)})." for pool in inventory.pools if pool.problems]
    for pod in all_pods or ():
        if not text(pod, "spec", "nodeName") and (requested := requested_devices(pod)):
            asked = ", ".join(f"{amount} {resource}" for resource, amount in requested.items())
            notes.append(f"Waiting for a node: {_user(pod)} ({asked}).")
    for note in (*notes, *inventory.notes):
        lines += labelled("", note, style=Style.YELLOW, label_width=0, width=width)
    return lines


def holders_of(pods: Iterable[Mapping[str, Any]]) -> Holders:
    """Return the users of each node's devices: a VLLMDeployment by its name, any other user by the name of the Pod."""
    found: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for pod in pods:
        if node := text(pod, "spec", "nodeName"):
            for resource, amount in requested_devices(pod).items():
                found[node, resource][_user(pod)] += amount
    return found


def _user(pod: Mapping[str, Any]) -> str:
    deployment = deployment_of(pod)
    return clean("/".join(deployment) if deployment else f"Pod {text(pod, 'metadata', 'namespace')}/{text(pod, 'metadata', 'name')}")


def _row(node: str, pool: Pool, holders: Holders | None, gpus: GPUs) -> Sequence[Span]:
    users = {} if holders is None or pool.claims else holders.get((node, pool.resource), {})
    used = sum(users.values())
    is_known = holders is not None and not pool.claims
    free = max(0, pool.count - used)
    return (
        Span(node, Style.RED if pool.problems else ""),
        Span(_title(pool, gpus)),
        Span(pool.mig_profile or ""),
        Span(f"{pool.memory_mebibytes / 1024:.0f} GiB" if pool.memory_mebibytes else ""),
        Span(str(pool.count)),
        Span(str(used) if is_known else "?"),
        Span(str(free) if is_known else "?", (Style.GREEN if free else Style.RED) if is_known else Style.DIM),
        Span(_shortened([f"{name} {amount}" for name, amount in sorted(users.items(), key=lambda each: (-each[1], each[0]))]), Style.DIM),
    )


def _title(pool: Pool, gpus: GPUs) -> str:
    return gpus.title(pool.product, pool.architecture) + (", shared between Pods" if pool.shared else "")


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join([*names[:_NAMES_SHOWN], *([f"{more} more"] if more > 0 else ())])


def _totals(entries: Iterable[tuple[str, Pool]], holders: Holders | None, gpus: GPUs) -> list[Line]:
    free, total = Counter[str](), Counter[str]()
    for node, pool in entries:
        if not pool.claims and not pool.problems:
            kind = _title(pool, gpus) + (f", {pool.mig_profile}" if pool.mig_profile else "")
            free[kind] += max(0, pool.count - sum((holders or {}).get((node, pool.resource), {}).values()))
            total[kind] += pool.count
    return [
        line(Span(kind, Style.BOLD), f": {total[kind]}" if holders is None else f": {free[kind]} of {total[kind]} free")
        for kind in sorted(total)
    ]

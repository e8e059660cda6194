"""`kubectl vllm gpus`: the GPUs and MIG slices of the cluster, how many are free, and the users of the others.

Exit status: 0, or 2 if the nodes cannot be read.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_operator.api.plan import gpu_name
from vllm_operator.api.reading import named, text
from vllm_operator.catalog.gpus import GPUs, load_gpus
from vllm_operator.cli.inputs import print_as
from vllm_operator.cli.live import find_if_there, with_client
from vllm_operator.cli.terminal import Line, Span, Style, grid, labelled, line, screen_width, show
from vllm_operator.controller.inventory_reader import has_gpu_sign
from vllm_operator.inventory.devices import deployment_of, read_claims, requested_devices
from vllm_operator.inventory.nodes import read_inventory
from vllm_operator.inventory.pools import Inventory
from vllm_operator.kube.client import NODE, POD, RESOURCE_CLAIM, RESOURCE_SLICE, ClusterClient, Forbidden
from vllm_operator.pods.view import is_over
from vllm_operator.text.wording import clean, few

Pods = Sequence[Mapping[str, Any]]
Claimed = Mapping[str, frozenset[str]] | None
"""Devices of ResourceClaims by the uid of the Pod; None if the claims cannot be listed."""


def run(arguments: argparse.Namespace) -> int:
    """Print the devices. Return the exit status."""
    inventory, pods, gpus, claimed = with_client(arguments, "list of nodes", _read)
    if arguments.output in ("json", "yaml"):
        waiting = [{"user": user, "devices": list(map(dict, asked))} for user, asked in waiting_of(pods or ()).items()]
        print_as({"devices": rows_of(inventory, pods, gpus, claimed), "waiting": waiting}, arguments.output)
    else:
        show(gpus_page(inventory, pods, gpus, claimed, width=screen_width(), shown=None if arguments.output else NAMES_SHOWN))
    return 0


async def _read(client: ClusterClient) -> tuple[Inventory, Pods | None, GPUs, Claimed]:
    gpus = load_gpus()
    slices = await find_if_there(client, RESOURCE_SLICE, cached=True)
    published = {text(each, "spec", "nodeName") for each in slices}
    nodes = [node for node in await client.find(NODE, cached=True) if has_gpu_sign(node) or text(node, "metadata", "name") in published]
    inventory = read_inventory(nodes, slices, gpus)
    try:
        pods = await client.find(POD, cached=True)
        return inventory, pods, gpus, read_claims(await client.find(RESOURCE_CLAIM, cached=True)) if slices else None
    except Forbidden:
        return inventory, None, gpus, None


HEADER = ("NODE", "GPU", "SLICE", "MEMORY", "TOTAL", "USED", "FREE", "USED BY")
NAMES_SHOWN = 4
_NO_PODS = "You have no permission to list the Pods of all namespaces, so it is unknown which devices are free."
_CLAIMS = "You have no permission to list the ResourceClaims of all namespaces, so it is unknown how many of those marked ? are free."
_NONE = "Kubernetes knows of no NVIDIA GPU in the cluster. Install the NVIDIA GPU Operator, or its device plugin and GPU Feature Discovery."
_WAYS = {"it is cordoned": "Ask who did it, and why. If it is healthy: `kubectl uncordon", "it is not ready": "See `kubectl describe node"}
"""Why a node is unavailable, with what to do, before its name."""


def gpus_page(
    inventory: Inventory, pods: Pods | None, gpus: GPUs, claimed: Claimed = None, *, width: int, shown: int | None = NAMES_SHOWN
) -> list[Line]:
    """Return the page. `pods` are all Pods, or None if they cannot be listed.

    Lines below the table have at most `width` characters. `shown` is the maximum number of names in a list; None for all.
    """
    if not inventory.pools:
        return labelled("", _NONE, label_width=0, width=width)
    rows = rows_of(inventory, pods, gpus, claimed)
    lines = [*grid(HEADER, [_cells(row, shown) for row in rows]), (), *_totals(rows)]
    notes = [_NO_PODS] if pods is None else []
    notes += [_CLAIMS] if pods is not None and claimed is None and any(pool.claims for pool in inventory.pools) else []
    for pool in (pool for pool in inventory.pools if pool.problems):
        way = next((f" {way} {pool.nodes[0]}`." for problem, way in _WAYS.items() if problem in pool.problems), "")
        notes.append(f"Unavailable: {few(pool.nodes, shown)} ({' and '.join(pool.problems)}).{way}")
    for user, asked in waiting_of(pods or ()).items():
        needed = ", ".join(f"{amount} {resource}" for resource, amount in sum(asked, Counter[str]()).items())
        notes.append(f"Waiting for a node: {user} ({f'{len(asked)} Pods, ' if len(asked) > 1 else ''}{needed}).")
    for note in (*notes, *inventory.notes):
        lines += labelled("", note, style=Style.YELLOW, label_width=0, width=width)
    return lines


def rows_of(inventory: Inventory, pods: Pods | None, gpus: GPUs, claimed: Claimed = None) -> list[dict[str, Any]]:
    """Return one row for each kind of device on a node. `used`, `free` and `usedBy` are None if unknown.

    `usedBy` has the number by user: a VLLMDeployment by its name, any other user by the name of the Pod. On an unavailable node, no device
    is free.
    """
    holders, users_of = defaultdict[tuple[str, str], Counter[str]](Counter), dict[str, str]()
    for pod in pods or ():
        for resource, amount in _requested(pod).items():
            holders[text(pod, "spec", "nodeName"), resource][_user(pod)] += amount
        for device in (claimed or {}).get(text(pod, "metadata", "uid"), ()):
            users_of[device] = _user(pod)
    users_of |= {device: "a ResourceClaim" for devices in (claimed or {}).values() for device in devices if device not in users_of}
    rows = []
    places = [(node, pool) for pool in inventory.pools for node in pool.nodes]
    for node, pool in sorted(places, key=lambda each: (each[0], each[1].resource)):
        found = holders[node, pool.resource]
        if pool.claims:
            found = Counter(users_of[device] for place, device in pool.devices if place == node and device in users_of)
        is_unknown = pods is None or (pool.claims and claimed is None)
        users = None if is_unknown else dict(sorted(found.items(), key=lambda it: (-it[1], it[0])))
        used = None if users is None else sum(users.values())
        rows.append(
            {
                "node": node,
                "gpu": gpus.title(pool.product, pool.architecture) + (", shares of a GPU" if pool.shared else ""),
                "migProfile": pool.mig_profile,
                "memoryMebibytes": pool.memory_mebibytes,
                "resource": pool.resource,
                "claims": pool.claims,
                "total": pool.count,
                "used": used,
                "free": None if used is None else 0 if pool.problems else max(0, pool.count - used),
                "unavailable": list(pool.problems),
                "usedBy": users,
            }
        )
    return rows


def waiting_of(pods: Pods) -> Mapping[str, Sequence[Counter[str]]]:
    """Return the devices of each Pod without a node, by user, without Pods that wait for a PersistentVolumeClaim."""
    found: defaultdict[str, list[Counter[str]]] = defaultdict(list)
    for pod in pods:
        why = text(named(pod, "PodScheduled", "status", "conditions"), "message").lower()
        if not text(pod, "spec", "nodeName") and "persistentvolumeclaim" not in why and (requested := _requested(pod)):
            found[_user(pod)].append(requested)
    return found


def _requested(pod: Mapping[str, Any]) -> Counter[str]:
    return Counter() if is_over(pod) else Counter(requested_devices(pod))


def _user(pod: Mapping[str, Any]) -> str:
    deployment = deployment_of(pod)
    return clean("/".join(deployment) if deployment else f"Pod {text(pod, 'metadata', 'namespace')}/{text(pod, 'metadata', 'name')}")


def _cells(row: Mapping[str, Any], shown: int | None) -> Sequence[Span]:
    free = row["free"]
    return (
        Span(row["node"], Style.RED if row["unavailable"] else ""),
        Span(row["gpu"]),
        Span(row["migProfile"] or ""),
        Span(f"{row['memoryMebibytes'] / 1024:.0f} GiB" if row["memoryMebibytes"] else ""),
        Span(str(row["total"])),
        Span("?" if row["used"] is None else str(row["used"])),
        Span("?" if free is None else str(free), Style.DIM if free is None else Style.GREEN if free else Style.RED),
        Span(few([f"{name} ({amount})" for name, amount in (row["usedBy"] or {}).items()], shown), Style.DIM),
    )


def _totals(rows: Sequence[Mapping[str, Any]]) -> list[Line]:
    found: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    plugged = {row["node"] for row in rows if not row["claims"]}  # a device plugin and ResourceSlices may offer the same GPUs
    for row in rows:
        if not (row["claims"] and row["node"] in plugged):
            found[gpu_name(row["gpu"], row["migProfile"])].append(row)
    lines = []
    for kind, same in sorted(found.items()):
        total, lost = sum(row["total"] for row in same), sum(row["total"] for row in same if row["unavailable"])
        free = "" if any(row["free"] is None for row in same) else f"{sum(row['free'] for row in same)} of "
        known = " free" if free else ", unknown how many are free"
        lines.append(line(Span(kind, Style.BOLD), f": {free}{total}{known}{f', {lost} unavailable' if lost else ''}"))
    return lines

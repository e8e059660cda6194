"""The message if no GPU fits: the request, the GPUs of the cluster, the user's options."""

import difflib
from collections.abc import Sequence

from vllm_operator.api.labels import ARCHITECTURE_LABEL
from vllm_operator.api.plan import gpu_name
from vllm_operator.api.spec import AcceleratorSpec
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.catalog.notes import say
from vllm_operator.inventory.pools import Inventory, Pool
from vllm_operator.planning.placement.targets import Obstacle, Rejection, Request
from vllm_operator.sizing.parallelism import ParallelShape
from vllm_operator.text.wording import count as counted
from vllm_operator.text.wording import few, listed

KINDS_LIMIT, NAMES_LIMIT = 6, 3
"""Maximum number of kinds of nodes, and of UUIDs or labels, in a message."""


def explain(request: Request, inventory: Inventory, rejections: Sequence[Rejection], gpus: GPUs) -> str:
    """Return the message. It names the smallest of several MIG slices that are large enough."""
    count = request.count
    if not rejections:
        return say("shortage.no-gpu", asked=_asked(request, gpus))

    def suffices(rejection: Rejection) -> bool | None:
        return request.sizing.holds(rejection.pool) if rejection.obstacle in (Obstacle.SLICED, Obstacle.PROFILE) else None

    def nearness(rejection: Rejection) -> tuple[object, ...]:
        pool, enough = rejection.pool, suffices(rejection) is True
        return (rejection.nearness, enough, -(pool.memory_mebibytes or 0) if enough else 0, pool.count, pool.nodes)

    nearest = max(rejections, key=nearness)
    kinds = kinds_of_nodes([rejection.pool for rejection in rejections], gpus, nearest.pool)
    more = len(kinds) - KINDS_LIMIT
    there = "; ".join([*kinds[:KINDS_LIMIT], *([f"{more} more kinds of nodes"] if more > 0 else ())])
    if nearest.fit is not None:
        return f"No node can run the image: {nearest.fit.problem}. {nearest.fit.remedy} The cluster has {there}."
    asked = _asked(request, gpus, whole=nearest.obstacle is Obstacle.SLICED)
    if nearest.obstacle is Obstacle.NODES:
        return say("remedy.nodes", asked=asked, there=there)
    remedy = say("remedy.no-slice-is-enough") if suffices(nearest) is False else _remedy(nearest, request, rejections, gpus)
    unread = f" {inventory.notes[0]}." if inventory.notes else ""
    return f"Each replica needs {asked}, and no node has {'one' if count == 1 else 'them'}. The cluster has {there}. {remedy}{unread}"


def kinds_of_nodes(pools: Sequence[Pool], gpus: GPUs, nearest: Pool | None = None) -> list[str]:
    """Return kinds such as "2 nodes with 8x NVIDIA H100 80GB (sm_90)": that of `nearest`, then the most frequent ones."""
    devices: dict[tuple[tuple[str, ...], str, bool], list[str]] = {}
    for pool in sorted(pools, key=lambda pool: (pool.nodes, pool.resource)):
        amount, kind = f"{pool.count}x " if pool.count else "", f"{gpus.title(pool.product, pool.architecture)}{_remarks(pool)}"
        devices.setdefault((pool.nodes, kind, pool.mig_profile is not None), []).append(f"{amount}{pool.mig_profile or ''}")
    nodes: dict[str, set[str]] = {}
    for (names, kind, sliced), amounts in devices.items():
        nodes.setdefault(gpu_name(kind, " + ".join(amounts), 2) if sliced else f"{amounts[0]}{kind}", set()).update(names)
    mine = set(nearest.nodes) if nearest else set()
    ordered = sorted(nodes.items(), key=lambda item: (not mine & item[1], -len(item[1]), item[0]))
    return [f"{counted(len(names), 'node')} with {kind}" for kind, names in ordered]


def _remarks(pool: Pool) -> str:
    text = " shared between Pods" if pool.shared else ""
    text += " for ResourceClaims" if pool.claims else ""
    text += f" that {pool.provider} would add" if pool.provider else ""
    return text + (f", unavailable ({' and '.join(pool.problems)})" if pool.problems else "")


def _asked(request: Request, gpus: GPUs, *, whole: bool = False) -> str:
    wanted, count = request.accelerator, request.count
    if wanted.sliced:
        asked = counted(count, "MIG slice") + (f" {wanted.mig.profile}" if wanted.mig and wanted.mig.profile else "")
    else:
        asked = counted(count, "whole GPU" if whole or wanted.sliced is False or count > 1 else "GPU")
    if wanted.architectures:
        names = [f"{name} ({known.family})" if (known := gpus.architectures.get(name)) else name for name in wanted.architectures]
        asked += f" of architecture {' or '.join(names)}"
    if wanted.products:
        asked += f" of product {' or '.join(wanted.products)}"
    if uuids := wanted.uuids or (wanted.mig and wanted.mig.uuids):
        asked += f" with UUID {few(uuids, NAMES_LIMIT)}"
    if wanted.claims:
        asked += " for dynamic resource allocation"
    labels = [f"{key}={value}" for key, value in sorted(request.selector.items())]
    return asked + (f" on nodes with labels {few(labels, NAMES_LIMIT)}" if labels else "")


def _alternatives(rejections: Sequence[Rejection], wanted: AcceleratorSpec, count: int, gpus: GPUs) -> list[str]:
    found = {
        pool.architecture
        for rejection in rejections
        if (pool := rejection.pool).architecture is not None
        and rejection.obstacle is Obstacle.ARCHITECTURE
        and pool.count >= count
        and not (pool.problems or pool.shared)
        and (not wanted.sliced if pool.mig_profile is None else count == 1 if wanted.sliced is None else wanted.sliced)
    }
    return sorted(found, key=lambda name: (gpus.rank(name), name))


_MISSPELLED = 0.9
"""Minimum likeness of a misspelled product and the right one. That of NVIDIA-GB200 and NVIDIA-GB10, which are nothing alike, is 0.87."""


def _products(rejections: Sequence[Rejection], wanted: AcceleratorSpec, count: int) -> str:

    def likeness(name: str) -> float:
        one, others = name.lower(), [other.lower() for other in wanted.products or [""]]
        found = max(difflib.SequenceMatcher(None, one, other).ratio() + (other in one) for other in others)
        return found if found >= _MISSPELLED else 0

    pools = [it.pool for it in rejections if it.obstacle is Obstacle.PRODUCT and it.pool.product]
    memory = {pool.product or "": pool.memory_mebibytes or 0 for pool in pools if pool.count >= count or likeness(pool.product or "")}
    ordered = sorted(memory, key=lambda name: (-likeness(name), -memory[name], name))[:4]
    return f" to what nodes have (label nvidia.com/gpu.product: {', '.join(ordered)})" if ordered else ""


_MOST_IN_A_NODE = 8
"""GPUs in the largest common servers (HGX H100 to B300)."""


def _ways_with_fewer(request: Request, pool: Pool) -> str:
    """Return what may be done if a node has fewer GPUs than a replica needs. A number is named only if the model can run with it."""
    count, sliced, sizing = request.count, request.accelerator.sliced, request.sizing

    def may_run(tensor: int, nodes: int = 1) -> bool:
        return any(sizing.may_run(pool, ParallelShape(tensor, nodes, expert=expert)) for expert in (False, True))

    fewer, devices = next(filter(may_run, range(pool.count, 0, -1)), None), "MIG slices" if sliced else "GPUs"
    ways = [say("remedy.count-lower", available=fewer, devices=devices)] if fewer is not None else []
    nodes, is_of_a_node = -(-count // max(pool.count, 1)), not sliced and count > _MOST_IN_A_NODE
    if not is_of_a_node:
        ways.append(say("remedy.count", count=count, devices=devices))
    elif count % nodes == 0 and nodes <= len(pool.nodes) and may_run(count // nodes, nodes):
        ways.append(say("remedy.count-nodes", nodes=nodes))
    text = ", or ".join(ways or ["use larger GPUs"])
    return f"{say('remedy.count-of-a-node') if is_of_a_node else ''}{text[0].upper()}{text[1:]}."


def _remedy(nearest: Rejection, request: Request, rejections: Sequence[Rejection], gpus: GPUs) -> str:  # noqa: C901 - one case for each obstacle
    pool, wanted, count = nearest.pool, request.accelerator, request.count
    match nearest.obstacle:
        case Obstacle.SELECTOR:
            return say("remedy.selector")
        case Obstacle.ARCHITECTURE:
            alternatives = listed(_alternatives(rejections, wanted, count, gpus), "or")
            asked = listed(wanted.architectures or [], "or")
            return say("remedy.architecture", alternatives=alternatives, asked=asked) if alternatives else f"Add nodes with {asked} GPUs."
        case Obstacle.UNKNOWN:
            return say("remedy.unknown", label=ARCHITECTURE_LABEL, example=(wanted.architectures or ["sm_90"])[0])
        case Obstacle.PRODUCT:
            return f"Correct spec.accelerator.products{_products(rejections, wanted, count)}, or remove it."
        case Obstacle.ALLOCATION:
            field = "allocation" if wanted.allocation == "DRA" else "uuids" if wanted.uuids else "mig.uuids"
            return say("remedy.allocation-dra", field=f"spec.accelerator.{field}") if wanted.claims else say("remedy.allocation")
        case Obstacle.SLICED if count > 1:
            return say("remedy.sliced-several", count=count)
        case Obstacle.SLICED:
            return say("remedy.sliced-excluded") if wanted.mig is not None else say("remedy.sliced", profile=pool.mig_profile)
        case Obstacle.NOT_SLICED:
            whole = (each.pool for each in rejections if each.obstacle is Obstacle.NOT_SLICED)
            may_be_sliced = any(gpus.supports_mig(pool.product, pool.architecture) is not False for pool in whole)
            return say("remedy.not-sliced") if may_be_sliced else say("remedy.no-mig")
        case Obstacle.PROFILE:
            return say("remedy.profile", profile=pool.mig_profile)
        case Obstacle.UUID:
            return say("remedy.uuid") if wanted.uuids else say("remedy.mig-uuid")
        case Obstacle.SHARED if count > 1 and pool.time_slices is not None:
            return say("remedy.shared-several", count=count)
        case Obstacle.SHARED if pool.product is None:
            return say("remedy.shared-unknown")
        case Obstacle.SHARED:  # the product must be named with the suffix
            profile = f"-MIG-{pool.mig_profile}" if pool.mig_profile else ""
            return say("remedy.shared", product=f"{pool.product}{profile}-SHARED")
        case Obstacle.HOST:
            return say("remedy.host", host=pool.host)
        case Obstacle.COUNT:
            return _ways_with_fewer(request, pool)
        case _:
            return say("remedy.problem")

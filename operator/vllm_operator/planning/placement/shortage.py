"""Saying why no GPU fits: what was asked for, what there is, what can be done."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from vllm_operator.api.labels import ARCHITECTURE_LABEL
from vllm_operator.api.spec import AcceleratorSpec, Allocation
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.planning.inventory.pools import Inventory, Pool

KINDS_LIMIT = 6
"""Kinds of nodes listed in a message; a person does not read more."""
PRODUCTS_LIMIT = 4
"""Products named in a message: the one that was meant is among the most similar."""


class Obstacle(IntEnum):
    """What stands between a request and a pool; the higher, the nearer the pool comes."""

    ARCHITECTURE = 0
    UNKNOWN = 1
    PRODUCT = 2
    ALLOCATION = 3
    NOT_SLICED = 4
    SLICED = 5
    PROFILE = 6
    UUID = 7
    SHARED = 8
    HOST = 9
    COUNT = 10
    PROBLEM = 11
    SELECTOR = 12
    IMAGE = 13


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a pool does not serve a request. `remedy` is set where the obstacle alone does not tell it."""

    pool: Pool
    obstacle: Obstacle
    detail: str = ""
    remedy: str | None = None


def explain(
    wanted: AcceleratorSpec,
    count: int,
    selector: Mapping[str, str],
    inventory: Inventory,
    rejections: Sequence[Rejection],
    gpus: GPUs,
) -> str:
    """Say what was asked for, what there is, and what can be done about it."""
    asked = _asked(wanted, count, gpus) + _with_labels(selector)
    if not rejections:
        return _no_gpu_at_all(asked)
    nearest = max(rejections, key=lambda rejection: (rejection.obstacle, rejection.pool.count, rejection.pool.nodes))
    there = describe([rejection.pool for rejection in rejections], gpus, nearest.pool)
    if nearest.obstacle is Obstacle.IMAGE:
        return f"No node can run the image: {nearest.detail}. {nearest.remedy} There is: {there}."
    remedy = _remedy(nearest, wanted, count, _alternatives(rejections, wanted, count, gpus), rejections)
    unread = f" {inventory.notes[0]}." if inventory.notes else ""
    return f"No node offers {asked}. There is: {there}. {remedy}{unread}"


def describe(pools: Sequence[Pool], gpus: GPUs, nearest: Pool | None = None) -> str:
    """List kinds of nodes in one sentence, a bounded number of them."""
    kinds = kinds_of_nodes(pools, gpus, nearest)
    more = len(kinds) - KINDS_LIMIT
    return ", ".join([*kinds[:KINDS_LIMIT], *([f"{more} more kinds of nodes"] if more > 0 else ())])


def kinds_of_nodes(pools: Sequence[Pool], gpus: GPUs, nearest: Pool | None = None) -> list[str]:
    """Name kinds of nodes: "2 nodes with 8x NVIDIA H100 80GB (sm_90)".

    The kind of `nearest` comes first, then the most frequent. All slices of a node are one kind.
    """
    nodes: dict[str, set[str]] = {}
    for names, kinds in _by_nodes(pools, gpus).items():
        for kind in kinds:
            nodes.setdefault(kind, set()).update(names)
    mine = set(nearest.nodes) if nearest else set()
    ordered = sorted(nodes.items(), key=lambda item: (not mine & item[1], -len(item[1]), item[0]))
    return [f"{_nodes(len(names))} with {kind}" for kind, names in ordered]


def _by_nodes(pools: Sequence[Pool], gpus: GPUs) -> dict[tuple[str, ...], list[str]]:
    """What the same nodes offer, with all their slices of one GPU in one text."""
    found: dict[tuple[str, ...], dict[tuple[str, bool, str], list[str]]] = {}
    for pool in sorted(pools, key=lambda pool: (pool.nodes, pool.resource)):
        sliced = pool.mig_profile is not None
        kind = (gpus.title(pool.product, pool.architecture), sliced, _remarks(pool))
        amount = f"{pool.count}x " if pool.count else ""
        found.setdefault(pool.nodes, {}).setdefault(kind, []).append(f"{amount}{pool.mig_profile}" if sliced else amount)
    return {names: [_kind(*kind, amounts) for kind, amounts in kinds.items()] for names, kinds in found.items()}


def _kind(title: str, sliced: bool, remarks: str, amounts: Sequence[str]) -> str:
    return f"{' + '.join(amounts)} MIG slices of {title}{remarks}" if sliced else f"{amounts[0]}{title}{remarks}"


def _remarks(pool: Pool) -> str:
    text = " shared between Pods" if pool.shared else ""
    text += " for resource claims" if pool.claims else ""
    return text + (f" not usable now ({'; '.join(pool.problems)})" if pool.problems else "")


def _asked(wanted: AcceleratorSpec, count: int, gpus: GPUs) -> str:
    if wanted.mig is not None:
        profile = f" {wanted.mig.profile}" if wanted.mig.profile else ""
        what = f"{count} MIG slice{'s' if count > 1 else ''}{profile}"
    else:
        what = f"{count} whole GPU{'s' if count > 1 else ''}"
    if wanted.architectures:
        names = [f"{name} ({known.family})" if (known := gpus.architectures.get(name)) else name for name in wanted.architectures]
        what += f" of architecture {' or '.join(names)}"
    if wanted.products:
        what += f" of product {' or '.join(wanted.products)}"
    if uuids := wanted.uuids or (wanted.mig and wanted.mig.uuids):
        what += f" with UUID {', '.join(uuids[:3])}{', ...' if len(uuids) > 3 else ''}"
    if wanted.allocation is Allocation.DRA:
        what += " by dynamic resource allocation"
    return what + (" on one node" if count > 1 else "")


def _with_labels(selector: Mapping[str, str]) -> str:
    pairs = [f"{key}={value}" for key, value in sorted(selector.items())]
    return f", on nodes with {', '.join(pairs[:3])}{', ...' if len(pairs) > 3 else ''}" if pairs else ""


def _no_gpu_at_all(asked: str) -> str:
    return (
        f"No node has an NVIDIA GPU that Kubernetes knows of, so none offers {asked}. Add GPU nodes, or install the NVIDIA GPU operator "
        "(or the device plugin and GPU Feature Discovery) on nodes that have GPUs; planning is tried again by itself."
    )


def _alternatives(rejections: Sequence[Rejection], wanted: AcceleratorSpec, count: int, gpus: GPUs) -> list[str]:
    """Architectures that would serve if they were asked for, the most capable first."""
    found = {
        pool.architecture
        for rejection in rejections
        if (pool := rejection.pool).architecture is not None
        and rejection.obstacle is Obstacle.ARCHITECTURE
        and pool.count >= count
        and not (pool.problems or pool.shared)
        and (pool.mig_profile is not None) is (wanted.mig is not None)
    }
    return sorted(found, key=lambda name: (gpus.rank(name), name))


def _products(rejections: Sequence[Rejection], wanted: AcceleratorSpec) -> str:
    """The products that nodes have, those that are most like the ones asked for first."""
    names = {name for it in rejections if it.obstacle is Obstacle.PRODUCT and (name := it.pool.product)}
    alike = {name: max(_likeness(name, other) for other in wanted.products or [""]) for name in names}
    ordered = sorted(names, key=lambda name: (-alike[name], name))[:PRODUCTS_LIMIT]
    return f" to what nodes have (label nvidia.com/gpu.product: {', '.join(ordered)})" if ordered else ""


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio() + (other.lower() in one.lower())


def _remedy(nearest: Rejection, wanted: AcceleratorSpec, count: int, alternatives: Sequence[str], rejections: Sequence[Rejection]) -> str:
    pool = nearest.pool
    match nearest.obstacle:
        case Obstacle.SELECTOR:
            return "Nodes that would do lack the labels of spec.podTemplate.spec.nodeSelector: correct them, or leave them out."
        case Obstacle.ARCHITECTURE:
            if not alternatives:
                return "Add nodes with such GPUs."
            return f"Add {_either(alternatives)} to spec.accelerator.architectures, leave the field out, or add nodes with such GPUs."
        case Obstacle.UNKNOWN:
            return (
                f"If the GPUs of unknown architecture are what you want, run GPU Feature Discovery or set the label "
                f"{ARCHITECTURE_LABEL} (for example {(wanted.architectures or ['sm_90'])[0]}) on their nodes."
            )
        case Obstacle.PRODUCT:
            return f"Correct spec.accelerator.products{_products(rejections, wanted)}, or leave it out."
        case Obstacle.ALLOCATION if wanted.allocation is Allocation.DRA:
            return "Install NVIDIA's DRA driver with GPU support, or use allocation: DevicePlugin."
        case Obstacle.ALLOCATION:
            return "These can be had with allocation: DRA only; or run the NVIDIA device plugin."
        case Obstacle.SLICED:
            return f"Ask for a slice (spec.accelerator.mig.profile: {pool.mig_profile}), or turn MIG off on a node."
        case Obstacle.NOT_SLICED:
            return "Leave spec.accelerator.mig out to use whole GPUs, or turn MIG on (node label nvidia.com/mig.config)."
        case Obstacle.PROFILE:
            return f"Ask for a slice that there is (spec.accelerator.mig.profile: {pool.mig_profile}), or change the MIG layout of a node."
        case Obstacle.UUID if wanted.uuids:
            return (
                "No ResourceSlice lists all these UUIDs for nodes of one kind. Compare them with `nvidia-smi -L`, or leave "
                "spec.accelerator.uuids out and pick the node with spec.podTemplate.spec.nodeSelector."
            )
        case Obstacle.UUID:
            return "No ResourceSlice lists these UUIDs for one node; they change when MIG is configured anew. Ask for the profile instead."
        case Obstacle.SHARED:
            return (
                "A GPU shared in time gives each Pod only a part of its memory and no warning. To use it all the same, name the product "
                "with its suffix in spec.accelerator.products, for example NVIDIA-L40S-SHARED."
            )
        case Obstacle.HOST:
            return f"The image has no build for the CPU architecture {pool.host}; use one that has."
        case Obstacle.COUNT:
            return f"Lower spec.accelerator.count or the parallel sizes to {pool.count}, or add nodes with {count} GPUs each."
        case _:
            return "Wait until the node can be used again, or add nodes; planning is tried again by itself."


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"

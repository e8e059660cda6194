"""The message if no GPU fits: the request, the GPUs of the cluster, the user's options."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from vllm_operator.api.labels import ARCHITECTURE_LABEL
from vllm_operator.api.spec import AcceleratorSpec, Allocation
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.inventory.pools import Inventory, Pool
from vllm_operator.text.wording import listed

KINDS_LIMIT = 6
"""Maximum number of kinds of nodes in a message."""
PRODUCTS_LIMIT = 4
"""Maximum number of products in a message, the most similar ones first."""

_NO_SLICE_IS_ENOUGH = "None of the MIG slices is large enough for the model. Change the MIG layout of a node, or disable MIG on it."


class Obstacle(IntEnum):
    """Why a pool does not match a request. The higher the value, the nearer the pool is to a match."""

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
    """A rejected pool. `detail` and `remedy` are for obstacles of the image."""

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
    large_enough: Callable[[Pool], bool | None] | None = None,
) -> str:
    """Return the message. It names the smallest of several MIG slices that are large enough."""
    if not rejections:
        return _no_gpu_at_all(_asked(wanted, count, gpus) + _with_labels(selector))

    def nearness(rejection: Rejection) -> tuple[object, ...]:
        pool = rejection.pool
        enough = rejection.obstacle in (Obstacle.SLICED, Obstacle.PROFILE) and large_enough is not None and large_enough(pool) is True
        return (rejection.obstacle, enough, -(pool.memory_mebibytes or 0) if enough else 0, pool.count, pool.nodes)

    nearest = max(rejections, key=nearness)
    asked = _asked(wanted, count, gpus, whole=nearest.obstacle is Obstacle.SLICED) + _with_labels(selector)
    there = describe([rejection.pool for rejection in rejections], gpus, nearest.pool)
    if nearest.obstacle is Obstacle.IMAGE:
        return f"No node can run the image: {nearest.detail}. {nearest.remedy} The cluster has {there}."
    remedy = _remedy(nearest, wanted, count, rejections, gpus)
    if nearest.obstacle in (Obstacle.SLICED, Obstacle.PROFILE) and large_enough is not None and large_enough(nearest.pool) is False:
        remedy = _NO_SLICE_IS_ENOUGH
    unread = f" {inventory.notes[0]}." if inventory.notes else ""
    return f"Each replica needs {asked}, and no node has {'one' if count == 1 else 'them'}. The cluster has {there}. {remedy}{unread}"


def why_rejected(rejection: Rejection) -> str:
    """Return in a few words why a pool was rejected."""
    pool = rejection.pool
    match rejection.obstacle:
        case Obstacle.ARCHITECTURE:
            return "not in spec.accelerator.architectures"
        case Obstacle.UNKNOWN:
            return "its architecture is unknown"
        case Obstacle.PRODUCT:
            return "not in spec.accelerator.products"
        case Obstacle.ALLOCATION:
            return f"only for allocation {'DRA' if pool.claims else 'DevicePlugin'}"
        case Obstacle.NOT_SLICED:
            return "a whole GPU, not a MIG slice"
        case Obstacle.SLICED:
            return "a MIG slice, not a whole GPU"
        case Obstacle.PROFILE:
            return "another MIG profile than spec.accelerator.mig.profile"
        case Obstacle.UUID:
            return "does not have the UUIDs in the spec"
        case Obstacle.SHARED:
            return "shared between Pods"
        case Obstacle.HOST:
            return f"the image is not built for {pool.host}"
        case Obstacle.COUNT:
            return f"a node has only {pool.count}"
        case Obstacle.SELECTOR:
            return "its nodes do not have the labels in spec.podTemplate.spec.nodeSelector"
        case _:
            return rejection.detail


def describe(pools: Sequence[Pool], gpus: GPUs, nearest: Pool | None = None) -> str:
    """List kinds of nodes, at most `KINDS_LIMIT`."""
    kinds = kinds_of_nodes(pools, gpus, nearest)
    more = len(kinds) - KINDS_LIMIT
    return "; ".join([*kinds[:KINDS_LIMIT], *([f"{more} more kinds of nodes"] if more > 0 else ())])


def kinds_of_nodes(pools: Sequence[Pool], gpus: GPUs, nearest: Pool | None = None) -> list[str]:
    """Return kinds of nodes, such as "2 nodes with 8x NVIDIA H100 80GB (sm_90)".

    The kind of `nearest` comes first, then the most frequent ones. All MIG slices of a node are one kind.
    """
    nodes: dict[str, set[str]] = {}
    for names, kinds in _by_nodes(pools, gpus).items():
        for kind in kinds:
            nodes.setdefault(kind, set()).update(names)
    mine = set(nearest.nodes) if nearest else set()
    ordered = sorted(nodes.items(), key=lambda item: (not mine & item[1], -len(item[1]), item[0]))
    return [f"{_nodes(len(names))} with {kind}" for kind, names in ordered]


def _by_nodes(pools: Sequence[Pool], gpus: GPUs) -> dict[tuple[str, ...], list[str]]:
    """Return the kinds of devices by nodes. All MIG slices of one GPU on a node are one kind."""
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
    text += " for ResourceClaims" if pool.claims else ""
    text += f" that {pool.provider} would add" if pool.provider else ""
    return text + (f", unavailable ({' and '.join(pool.problems)})" if pool.problems else "")


def _asked(wanted: AcceleratorSpec, count: int, gpus: GPUs, *, whole: bool = False) -> str:
    if wanted.sliced:
        profile = f" {wanted.mig.profile}" if wanted.mig and wanted.mig.profile else ""
        what = f"{count} MIG slice{'s' if count > 1 else ''}{profile}"
    else:
        what = f"{count} {'whole ' if whole or wanted.sliced is False or count > 1 else ''}GPU{'s' if count > 1 else ''}"
    if wanted.architectures:
        names = [f"{name} ({known.family})" if (known := gpus.architectures.get(name)) else name for name in wanted.architectures]
        what += f" of architecture {' or '.join(names)}"
    if wanted.products:
        what += f" of product {' or '.join(wanted.products)}"
    if uuids := wanted.uuids or (wanted.mig and wanted.mig.uuids):
        what += f" with UUID {', '.join(uuids[:3])}{', ...' if len(uuids) > 3 else ''}"
    if wanted.allocation is Allocation.DRA:
        what += " for dynamic resource allocation"
    return what


def _with_labels(selector: Mapping[str, str]) -> str:
    pairs = [f"{key}={value}" for key, value in sorted(selector.items())]
    return f" on nodes with labels {', '.join(pairs[:3])}{', ...' if len(pairs) > 3 else ''}" if pairs else ""


def _no_gpu_at_all(asked: str) -> str:
    return (
        f"Each replica needs {asked}, and Kubernetes knows of no NVIDIA GPU in the cluster. Add GPU nodes, or install the NVIDIA GPU "
        "Operator (or its device plugin and GPU Feature Discovery) on nodes with GPUs. The operator tries again automatically."
    )


def _alternatives(rejections: Sequence[Rejection], wanted: AcceleratorSpec, count: int, gpus: GPUs) -> list[str]:
    """Return the architectures that would match the request, the most capable first."""
    found = {
        pool.architecture
        for rejection in rejections
        if (pool := rejection.pool).architecture is not None
        and rejection.obstacle is Obstacle.ARCHITECTURE
        and pool.count >= count
        and not (pool.problems or pool.shared)
        and _may_serve(pool, wanted, count)
    }
    return sorted(found, key=lambda name: (gpus.rank(name), name))


def _may_serve(pool: Pool, wanted: AcceleratorSpec, count: int) -> bool:
    """Return whether the request allows the pool's devices: whole GPUs or MIG slices."""
    if pool.mig_profile is None:
        return not wanted.sliced
    return count == 1 if wanted.sliced is None else wanted.sliced


def _products(rejections: Sequence[Rejection], wanted: AcceleratorSpec) -> str:
    """Return the products of the nodes, the most similar to the requested ones first."""
    names = {name for it in rejections if it.obstacle is Obstacle.PRODUCT and (name := it.pool.product)}
    alike = {name: max(_likeness(name, other) for other in wanted.products or [""]) for name in names}
    ordered = sorted(names, key=lambda name: (-alike[name], name))[:PRODUCTS_LIMIT]
    return f" to what nodes have (label nvidia.com/gpu.product: {', '.join(ordered)})" if ordered else ""


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio() + (other.lower() in one.lower())


def _remedy(nearest: Rejection, wanted: AcceleratorSpec, count: int, rejections: Sequence[Rejection], gpus: GPUs) -> str:  # noqa: C901 - one case for each obstacle
    pool = nearest.pool
    match nearest.obstacle:
        case Obstacle.SELECTOR:
            return "Nodes with such GPUs do not have the labels in spec.podTemplate.spec.nodeSelector. Correct or remove them."
        case Obstacle.ARCHITECTURE:
            alternatives = _alternatives(rejections, wanted, count, gpus)
            if not alternatives:
                return "Add nodes with such GPUs."
            return f"Add {listed(alternatives, 'or')} to spec.accelerator.architectures, remove that field, or add nodes with such GPUs."
        case Obstacle.UNKNOWN:
            return (
                "To use the GPUs of unknown architecture, install GPU Feature Discovery, or set the label "
                f"{ARCHITECTURE_LABEL} (for example {(wanted.architectures or ['sm_90'])[0]}) on their nodes."
            )
        case Obstacle.PRODUCT:
            return f"Correct spec.accelerator.products{_products(rejections, wanted)}, or remove it."
        case Obstacle.ALLOCATION if wanted.allocation is Allocation.DRA:
            return "Install the NVIDIA DRA driver with GPU support, or set spec.accelerator.allocation to DevicePlugin."
        case Obstacle.ALLOCATION:
            return "Set spec.accelerator.allocation to DRA, or install the NVIDIA device plugin."
        case Obstacle.SLICED if count > 1:
            return f"A replica on {count} GPUs cannot use MIG slices. Disable MIG on a node, or add nodes with whole GPUs."
        case Obstacle.SLICED if wanted.mig is not None:
            return "Remove spec.accelerator.mig to use MIG slices too, or disable MIG on a node."
        case Obstacle.SLICED:
            return f"Request a MIG slice (spec.accelerator.mig.profile: {pool.mig_profile}), or disable MIG on a node."
        case Obstacle.NOT_SLICED if not _could_be_sliced(rejections, gpus):
            return "These GPUs do not support MIG. Remove spec.accelerator.mig to use whole GPUs, or add nodes with GPUs that do."
        case Obstacle.NOT_SLICED:
            return "Remove spec.accelerator.mig to use whole GPUs, or enable MIG on a node (node label nvidia.com/mig.config)."
        case Obstacle.PROFILE:
            return f"Set spec.accelerator.mig.profile to one that nodes have ({pool.mig_profile}), or change the MIG layout of a node."
        case Obstacle.UUID if wanted.uuids:
            return (
                "No ResourceSlice lists all these UUIDs for nodes of one kind. Compare them with `nvidia-smi -L`, or remove "
                "spec.accelerator.uuids and select the node with spec.podTemplate.spec.nodeSelector."
            )
        case Obstacle.UUID:
            return "No ResourceSlice lists these UUIDs for one node. They change with the MIG layout. Use the profile instead."
        case Obstacle.SHARED if count > 1 and pool.time_slices is not None:
            return (
                "Pods share these GPUs by time-slicing, and a replica could get the same one several times. Disable sharing on a node, or "
                f"add nodes with {count} whole GPUs."
            )
        case Obstacle.SHARED:
            return f"With a GPU that Pods share, each Pod gets an unknown part of the memory. {_share(pool)}"
        case Obstacle.HOST:
            return f"The image is not built for the CPU architecture {pool.host}. Use an image that is."
        case Obstacle.COUNT:
            devices = "MIG slices" if wanted.sliced else "GPUs"
            return f"Lower spec.parallelism or spec.accelerator.count to {pool.count} {devices}, or add nodes with {count} {devices}."
        case _:
            return "Make a node available again, or add nodes. The operator tries again automatically."


def _could_be_sliced(rejections: Sequence[Rejection], gpus: GPUs) -> bool:
    pools = [rejection.pool for rejection in rejections if rejection.obstacle is Obstacle.NOT_SLICED]
    return any(gpus.supports_mig(pool.product, pool.architecture) is not False for pool in pools)


def _share(pool: Pool) -> str:
    """Return how to accept a shared GPU. Its product must be named with the suffix."""
    if pool.product is None:
        return "Disable sharing on a node, or add nodes."
    profile = f"-MIG-{pool.mig_profile}" if pool.mig_profile else ""
    return f"To use it anyway, set spec.accelerator.products to [{pool.product}{profile}-SHARED]."


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"

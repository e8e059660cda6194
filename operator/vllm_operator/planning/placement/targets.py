"""The GPUs that can run a replica, in a fixed order, and the reason for each of the others.

Pools whose nodes the node affinity of a plan cannot tell apart count together as free devices. Nodes with a taint that the Pod does not
tolerate have no free devices for it.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from vllm_operator.api.labels import ARCHITECTURE_LABEL, HOSTNAME_LABEL
from vllm_operator.api.plan import NodeRequirement
from vllm_operator.api.reading import MEBIBYTE
from vllm_operator.api.spec import AcceleratorSpec
from vllm_operator.catalog.gpus import GPUs, product_key
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.notes import Note, note
from vllm_operator.inventory.node_labels import SLICES, split_product
from vllm_operator.inventory.nodes import HOST_LABEL
from vllm_operator.inventory.pools import GPU_TAINT, Inventory, Pool, Source
from vllm_operator.planning.engine.image import ImageFit, ImageOption, fit_image, show_version
from vllm_operator.planning.placement.fitting import FitResult, Headroom, Sizing
from vllm_operator.sizing.parallelism import Shape
from vllm_operator.text.wording import few

DEFAULT_TOLERATIONS: tuple[Mapping[str, Any], ...] = ({"key": GPU_TAINT, "operator": "Exists"},)
"""Tolerations of every Pod of a plan: clouds taint their GPU nodes with this key and different values."""
Alike = tuple[str, tuple[tuple[str, str], ...], str | None, bool]
"""What a Pod can ask for: resource, labels of nodes, MIG profile, and whether Pods share the devices."""


class Obstacle(StrEnum):
    """Why a pool does not match a request, in words. The later in this list, the nearer the pool is to a match."""

    ARCHITECTURE = "not in spec.accelerator.architectures"
    UNKNOWN = "its architecture is unknown"
    PRODUCT = "not in spec.accelerator.products"
    ALLOCATION = "only for allocation {allocation}"
    NOT_SLICED = "a whole GPU, not a MIG slice"
    SLICED = "a MIG slice, not a whole GPU"
    PROFILE = "another MIG profile than spec.accelerator.mig.profile"
    UUID = "does not have the UUIDs in the spec"
    SHARED = "shared between Pods"
    HOST = "the image is not built for {pool.host}"
    COUNT = "a node has only {pool.count}"
    PROBLEM = "{problems}"
    SELECTOR = "its nodes do not have the labels in spec.podTemplate.spec.nodeSelector"
    IMAGE = "{fit.problem}"
    NODES = "fewer nodes than a replica needs"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejected pool. `fit` is the best image for it, if no other obstacle comes first."""

    pool: Pool
    obstacle: Obstacle
    fit: ImageFit | None = None

    @property
    def nearness(self) -> int:
        """How near the pool is to a match."""
        return list(Obstacle).index(self.obstacle)

    @property
    def text(self) -> str:
        """Why the pool was rejected, in a few words."""
        allocation, problems = "DRA" if self.pool.claims else "DevicePlugin", "; ".join(self.pool.problems)
        return self.obstacle.format(pool=self.pool, fit=self.fit, allocation=allocation, problems=problems)


class GPUIdentity(NamedTuple):
    """What makes a GPU another one for a plan. `is_shared`: by several Pods."""

    architecture: str | None
    product: str | None
    mig_profile: str | None
    is_shared: bool


class Rank(IntEnum):
    """When a GPU on which the model fits is used. The lowest rank is preferred."""

    FREE = 0
    """Enough devices are free for all replicas, or the free devices are unknown."""
    PARTLY = 1
    """Devices are free for some replicas. Where an autoscaler may add nodes, such a GPU counts as WAITING."""
    WAITING = 2
    """A Pod would wait: no devices are free, or a node must be added."""
    SHARED = 3
    """Several Pods share each GPU, and nothing isolates their memory."""
    TOO_SMALL = 4


WAITS = (Rank.PARTLY, Rank.WAITING)
GIBIBYTE = 1024 * MEBIBYTE
NAMES_LIMIT = 64
"""Maximum number of values of a node requirement."""


@dataclass(frozen=True, slots=True)
class Request:
    """Requirements of a replica for its node.

    `count` is the number of devices of one replica. `options` are possible images, the preferred one first, with their
    `host_architectures` (empty if unknown). `forced`: whether the user allows an image that is known to be incompatible with the driver.
    `compatible`: whether this vLLM version can load the forward compatibility package. The GPU in use (`preferred`) is kept if it fits, so
    that unrelated changes of the spec do not move the replicas. `weight_bytes` is the size of the weights on each device; None if unknown,
    or if `sizing` is more exact. They may take the part `room` of the memory. `selector` are labels of nodes. Any value is valid in
    `tolerations`.
    """

    accelerator: AcceleratorSpec
    count: int
    options: tuple[ImageOption, ...]
    host_architectures: tuple[str, ...]
    sizing: Sizing
    forced: bool = False
    compatible: bool = False
    preferred: GPUIdentity | None = None
    weight_bytes: int | None = None
    selector: Mapping[str, str] = field(default_factory=dict)
    replicas: int = 1
    tolerations: tuple[Any, ...] = ()
    room: float = 1.0

    def allows_slice(self, pool: Pool) -> bool:
        """Return whether a replica may run on the MIG slices of a pool. Slices cannot access each other's memory."""
        sliced, products = self.accelerator.sliced, self.accelerator.products
        if sliced is not None:
            return sliced
        return self.count == 1 and (not products or any(split_product(name)[1] == pool.mig_profile for name in products))

    def allows_sharing(self, pool: Pool) -> bool:
        """Return whether a replica may run on shared GPUs: on one GPU with a known part, or on GPUs that the spec names."""
        products = self.accelerator.products
        if products:
            return any(split_product(name)[2] for name in products)
        return pool.time_slices is not None and self.count == 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """GPUs of a pool for a replica of one size. `free`: number of replicas that fit on the free devices; None if unknown."""

    pool: Pool
    shape: Shape
    fit: ImageFit
    title: str
    rank: Rank
    free: int | None
    result: FitResult


def find_candidates(
    request: Request, shapes: Sequence[Shape], inventory: Inventory, catalog: Catalog, *, in_use: int | None = None
) -> tuple[list[Candidate], list[Rejection]]:
    """Return the GPUs that can run a replica: for each size in their order, the best first. Return also the rejected pools.

    `shapes` are in ascending order; a GPU that can run a larger one can run the smallest. Larger sizes of a kind of GPU are omitted if a
    smaller one fits. `in_use` is the number of GPUs in use.
    """
    accepted, rejections = _sort_out(replace(request, count=min(shape.count for shape in shapes)), inventory, catalog)
    ordered = sorted(accepted, key=lambda each: _order(each[0], each[1], request, catalog.gpus))
    found: list[Candidate] = []
    done: set[Pool] = set()
    free = _free_devices(request, inventory)
    for shape, (pool, fit) in itertools.product(shapes, ordered):
        sliced = pool.mig_profile is not None and not request.accelerator.sliced
        alone = sliced or (pool.shared and shape.count != request.count)
        if pool.count < shape.count or pool in done or (alone and shape.count > 1):
            continue
        if shape.nodes > 1 and pool.provider is None and len(pool.nodes) < shape.nodes:
            rejections.append(Rejection(pool, Obstacle.NODES))
            continue
        replicas, title = _replicas(pool, shape, free, inventory), catalog.gpus.title(pool.product, pool.architecture)
        result = request.sizing.judge(pool, shape.parallel)
        held = request.weight_bytes and request.weight_bytes * shapes[0].shards // shape.shards
        rank = _rank(pool, replicas, replace(request, weight_bytes=held), inventory)
        found.append(Candidate(pool, shape, fit, title, rank, replicas, result))
        if result.headroom <= Headroom.SHORTENED and shape.count >= (in_use or 1):
            done.add(pool)
    return found, rejections


def find_others(request: Request, inventory: Inventory, catalog: Catalog) -> list[Candidate]:
    """Return all sizes and GPUs of the cluster, including those that the spec does not allow."""
    unlimited = {"architectures": None, "products": None, "count": None, "mig": None, "uuids": None}
    accelerator = request.accelerator.model_copy(update=unlimited)
    shapes = request.sizing.shapes(inventory)
    return find_candidates(replace(request, accelerator=accelerator, preferred=None), shapes, inventory, catalog)[0] if shapes else []


def _free_devices(request: Request, inventory: Inventory) -> Mapping[Alike, Mapping[str, int]]:
    """Return the devices of each node that are free for the Pods of a request, grouped by what a Pod can ask for."""
    tolerated = [*DEFAULT_TOLERATIONS, *request.tolerations]
    closed = {taints for taints in set(inventory.taints.values()) if not all(taint.is_tolerated(tolerated) for taint in taints)}
    found: dict[Alike, dict[str, int]] = {}
    for pool in inventory.pools:
        if pool.provider is not None or pool.problems or not _is_requestable(pool, request.accelerator):
            continue
        taken = Counter(node for node, device in pool.devices if device in (inventory.allocated or ()))
        free = found.setdefault(_alike(pool), {})
        for node in pool.nodes:
            if inventory.taints.get(node) not in closed and inventory.has_labels(node, request.selector):
                in_use = taken[node] if pool.claims else (inventory.used or {}).get((node, pool.resource), 0)
                free[node] = max(pool.count - in_use, 0)
    return found


def _replicas(pool: Pool, shape: Shape, free: Mapping[Alike, Mapping[str, int]], inventory: Inventory) -> int | None:
    if pool.provider is not None:
        return 0
    if (inventory.allocated if pool.claims else inventory.used) is None:
        return None
    pods = [devices // shape.count for devices in free.get(_alike(pool), {}).values()]
    # each Pod of a replica is on a node of its own
    return next(most for most in range(sum(pods) // shape.nodes, -1, -1) if sum(min(each, most) for each in pods) >= most * shape.nodes)


def _alike(pool: Pool) -> Alike:
    claimed = (("product", pool.product or ""), ("architecture", pool.architecture or "")) if pool.claims else ()
    return pool.resource, (*pool.labels, *claimed), pool.mig_profile, pool.shared


def _sort_out(request: Request, inventory: Inventory, catalog: Catalog) -> tuple[list[tuple[Pool, ImageFit]], list[Rejection]]:
    candidates: list[tuple[Pool, ImageFit]] = []
    rejections: list[Rejection] = []
    for whole in inventory.pools:
        nodes = tuple(node for node in whole.nodes if inventory.has_labels(node, request.selector))
        pool = replace(whole, nodes=nodes) if nodes else whole
        if (obstacle := _obstacle(pool, request, inventory)) is not None:
            rejections.append(Rejection(pool, obstacle))
            continue
        fit = fit_image(request.options, pool, catalog, forced=request.forced, compatible=request.compatible)
        if fit.problem is not None:
            rejections.append(Rejection(pool, Obstacle.IMAGE, fit))
        else:
            candidates.append((pool, fit))
    return candidates, rejections


def may_run_on(pool: Pool, wanted: AcceleratorSpec) -> bool:
    """Return whether the lists of architectures and products in a spec allow a pool."""
    is_listed = not wanted.architectures or pool.architecture in wanted.architectures
    return is_listed and _product_place(pool, wanted.products) is not None


def _obstacle(pool: Pool, request: Request, inventory: Inventory) -> Obstacle | None:
    """Return why a pool cannot serve the request, apart from the image. Later checks mean that the pool is nearer to the request."""
    wanted = request.accelerator
    profile, uuids = wanted.mig.profile if wanted.mig else None, wanted.uuids or (wanted.mig and wanted.mig.uuids) or ()
    unlisted = Obstacle.ARCHITECTURE if pool.architecture else Obstacle.UNKNOWN
    checks = (
        (not wanted.architectures or pool.architecture in wanted.architectures, unlisted),
        (_product_place(pool, wanted.products) is not None, Obstacle.PRODUCT),
        (_is_requestable(pool, wanted), Obstacle.ALLOCATION),
        (pool.mig_profile is None or request.allows_slice(pool), Obstacle.SLICED),
        (pool.mig_profile is not None or not wanted.sliced, Obstacle.NOT_SLICED),
        (not profile or _profile_key(profile) == _profile_key(pool.mig_profile or ""), Obstacle.PROFILE),
        (set(uuids) <= set(pool.uuids), Obstacle.UUID),
        (not pool.shared or request.allows_sharing(pool), Obstacle.SHARED),
        (not request.host_architectures or pool.host in (None, *request.host_architectures), Obstacle.HOST),
        (pool.count >= request.count or (pool.problems and pool.count == 0), Obstacle.COUNT),
        (not pool.problems, Obstacle.PROBLEM),
        (any(inventory.has_labels(node, request.selector) for node in pool.nodes), Obstacle.SELECTOR),
    )
    return next((obstacle for passed, obstacle in checks if not passed), None)


def _is_requestable(pool: Pool, wanted: AcceleratorSpec) -> bool:
    """Return whether devices of a pool are requested as the spec wants. Without a wish, a node with a device plugin gets no claims."""
    return not (pool.claims and pool.has_plugin) if wanted.claims is None else pool.claims == wanted.claims


def _order(pool: Pool, fit: ImageFit, request: Request, gpus: GPUs) -> tuple[object, ...]:
    """Return the sort key of a pool, so that the same request in the same cluster always gets the same GPU."""
    wanted, other = request.accelerator, request.preferred != identity_of(pool)
    architectures = wanted.architectures or []
    return (
        _is_too_small(pool, request),
        pool.provider is not None and other,  # nodes that exist, and the GPU in use, before those that would be added
        architectures.index(pool.architecture) if pool.architecture in architectures else 0,
        _product_place(pool, wanted.products) or 0,
        request.preferred is not None and other,
        pool.provider is not None,
        pool.shared,
        pool.mig_profile is not None,
        pool.source is Source.UNKNOWN,
        gpus.rank(pool.architecture),  # the most capable first
        not fit.clean,  # a driver that runs the image without restrictions
        -(pool.memory_mebibytes or 0),
        pool.claims,
        -len(pool.nodes),
        pool.nodes,
        pool.resource,
        (pool.product or "", pool.mig_profile or "", pool.memory_mebibytes or 0, pool.count),
    )


def _rank(pool: Pool, free: int | None, request: Request, inventory: Inventory) -> Rank:
    """Return the rank of a pool. Whole GPUs precede slices that the spec does not request and whose free capacity is unknown."""
    if _is_too_small(pool, request):
        return Rank.TOO_SMALL
    if pool.shared:
        return Rank.SHARED
    if free is None and (pool.mig_profile is None or request.accelerator.sliced is not None):
        return Rank.FREE
    if free is None:
        free = 0 if inventory.hidden else pool.count * len(pool.nodes)
    return rank_by_free(free, request.replicas, inventory)


def rank_by_free(free: int, replicas: int, inventory: Inventory) -> Rank:
    """Return the rank of GPUs of which so many replicas can be free."""
    if free >= max(replicas, 1):
        return Rank.FREE
    return Rank.PARTLY if free and all(pool.provider is None for pool in inventory.pools) else Rank.WAITING


def free_for(gpu: GPUIdentity, shape: Shape, request: Request, inventory: Inventory) -> int | None:
    """Return for how many replicas of this size these GPUs are free, whatever the spec allows; None if unknown."""
    free = _free_devices(request, inventory)
    pools = (pool for pool in inventory.pools if identity_of(pool) == gpu and pool.provider is None and not pool.problems)
    found = [_replicas(pool, shape, free, inventory) for pool in pools]
    return None if None in found else max((each or 0 for each in found), default=0)


def identity_of(pool: Pool) -> GPUIdentity:
    """Return the identity of the GPUs of a pool."""
    return GPUIdentity(pool.architecture, pool.product, pool.mig_profile, pool.shared)


def _product_place(pool: Pool, products: Sequence[str] | None) -> int | None:
    """Return the index of a pool's product in the user's list. A name with a suffix for MIG slices or sharing matches only these."""
    if not products:
        return 0
    for place, name in enumerate(products):
        base, profile, shared = split_product(name)
        same = pool.product is not None and product_key(base) == product_key(pool.product)
        if same and (profile is None or profile == pool.mig_profile) and (not shared or pool.shared):
            return place
    return None


def _profile_key(profile: str) -> str:
    """Return a normalized MIG profile: labels cannot contain `+`, so `1g.10gb+me` is `1g.10gb.me` there."""
    return profile.lower().replace("+", ".")


def node_requirements(pool: Pool, inventory: Inventory, fit: ImageFit) -> list[NodeRequirement]:
    """Return the node affinity for the pool, from labels of its nodes."""
    requirements = [NodeRequirement(key=HOST_LABEL, operator="In", values=[pool.host])] if pool.host else []
    requirements += [NodeRequirement(key=key, operator="In", values=[value]) for key, value in pool.labels]
    if pool.claims and not pool.has_plugin and (others := _claimable_beside_plugin(pool, inventory)):
        requirements.append(NodeRequirement(key=HOSTNAME_LABEL, operator="NotIn", values=others))
    if pool.mig_profile is None and not pool.claims:
        # With the MIG strategy `single`, a slice has the resource name of a whole GPU.
        requirements.append(NodeRequirement(key=SLICES, operator="DoesNotExist"))
    # The labels may also match nodes whose driver does not support the CUDA major of the image.
    siblings = (other for other in inventory.pools if other.resource == pool.resource and other.labels == pool.labels)
    older = fit.option.cuda is not None and any(other.cuda is not None and other.cuda[0] < fit.option.cuda[0] for other in siblings)
    if pool.upgrade_label and pool.cuda and older:
        requirements.append(NodeRequirement(key=pool.upgrade_label, operator="In", values=[str(pool.cuda[0])]))
    return requirements


def _claimable_beside_plugin(pool: Pool, inventory: Inventory) -> list[str]:
    """Return nodes that a claim for these devices could get, and whose device plugin does not know of claims, by hostname."""
    nodes = {node for other in inventory.pools if other.has_plugin and _alike(other) == _alike(pool) for node in other.nodes}
    return sorted(inventory.labels.get(node, {}).get(HOSTNAME_LABEL, node) for node in nodes)[:NAMES_LIMIT]


def _is_too_small(pool: Pool, request: Request) -> bool:
    known = request.weight_bytes is not None and pool.memory_mebibytes is not None
    return known and (request.weight_bytes or 0) > (pool.memory_mebibytes or 0) * MEBIBYTE * request.room


def notes_about_gpu(pool: Pool, fit: ImageFit, request: Request, inventory: Inventory) -> list[Note]:
    """Return notes about unknown facts of the GPU, and about weights that are too large for it."""
    notes: list[Note] = []
    if _is_too_small(pool, replace(request, room=1.0)):
        device = "MIG slice" if pool.mig_profile else "GPU"
        larger = "Use a larger MIG slice, whole GPUs" if pool.mig_profile else "Raise spec.parallelism.tensor, use larger GPUs"
        needed, memory = (request.weight_bytes or 0) / GIBIBYTE, (pool.memory_mebibytes or 0) / 1024
        notes.append(note("gpu.too-small", needed=needed, device=device, memory=memory, larger=larger))
    if pool.architecture is None:
        notes.append(note("gpu.unknown", label=ARCHITECTURE_LABEL))
    elif pool.source is Source.RESOURCE_SLICE and not pool.claims and not pool.labels:
        shared = any(other.resource == pool.resource and other.architecture != pool.architecture for other in inventory.pools)
        notes += [note("gpu.no-label")] if shared else []
    exists = pool.provider is None and pool.architecture is not None
    if exists and pool.cuda is None and pool.driver is None and fit.option.cuda is not None:
        notes.append(note("gpu.unknown-driver", image=fit.option.image, cuda=show_version(fit.option.cuda)))
    return notes


def notes_about_claims(pool: Pool, wanted: AcceleratorSpec) -> list[Note]:
    """Return why the GPUs are requested by DRA, if the spec leaves that to the operator."""
    if not pool.claims or wanted.claims is not None:
        return []
    nodes = f"nodes {few(pool.nodes, 3)} have" if len(pool.nodes) > 1 else f"node {pool.nodes[0]} has"
    return [note("gpu.claims", nodes=nodes)]

"""The choice of GPU for the replicas.

Pools that cannot serve the request are rejected, each with a reason. The others are ordered by these criteria, so that the
same request in the same cluster always gets the same GPU:

1. GPUs that are known to be too small for the weights come last
2. nodes that exist, and the GPU in use, before those that would be provisioned
3. the user's order of architectures, then of products
4. the GPU in use, if there is one and it still fits
5. whole GPUs before MIG slices
6. known GPUs before unknown ones
7. the order of architectures in the catalog, with the most capable first
8. a driver that runs the image without restrictions
9. more memory, then more nodes, then the names

The node affinity uses labels of the chosen nodes.

Pools whose nodes the node affinity of a plan cannot tell apart count together as free devices. Nodes with a taint that the Pod does not
tolerate have no free devices for it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.labels import ARCHITECTURE_LABEL
from vllm_operator.api.plan import NodeRequirement
from vllm_operator.api.reading import MEBIBYTE
from vllm_operator.api.spec import AcceleratorSpec, Allocation
from vllm_operator.api.status import ConditionStatus
from vllm_operator.catalog.gpus import GPUs, product_key
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.notes import Note, note
from vllm_operator.inventory.node_labels import SLICES, split_product
from vllm_operator.inventory.pools import GPU_TAINT, Inventory, Pool, Source
from vllm_operator.planning.engine.image import ImageFit, ImageOption, fit_image, show_version
from vllm_operator.planning.placement.shortage import Obstacle, Rejection, explain

DEFAULT_TOLERATIONS: tuple[Mapping[str, Any], ...] = ({"key": GPU_TAINT, "operator": "Exists"},)
"""Tolerations of every Pod of a plan: clouds taint their GPU nodes with this key and different values."""
Alike = tuple[str, tuple[tuple[str, str], ...], str | None, bool]


@dataclass(frozen=True, slots=True)
class Capacity:
    """Free devices of each node, grouped by node affinity and requests of a Pod; empty if unknown."""

    known: bool = False
    known_claims: bool = False
    by_kind: Mapping[Alike, Mapping[str, int]] = field(default_factory=dict)

    def replicas(self, pool: Pool, count: int) -> int | None:
        """Return how many replicas with `count` devices fit on the free devices; None if unknown."""
        if pool.provider is not None:
            return 0
        if not (self.known_claims if pool.claims else self.known):
            return None
        return sum(free // max(count, 1) for free in self.by_kind.get(_kind(pool), {}).values())


def _kind(pool: Pool) -> Alike:
    claimed = (("product", pool.product or ""), ("architecture", pool.architecture or "")) if pool.claims else ()
    return pool.resource, (*pool.labels, *claimed), pool.mig_profile, pool.shared


InUse = tuple[str | None, str | None, str | None, bool]
"""Architecture, product and MIG profile of the GPU in use, and whether Pods share it."""


class Rank(IntEnum):
    """When a GPU on which the model fits is used. The lowest rank is preferred."""

    FREE = 0
    """Enough devices are free for all replicas, or the free devices are unknown."""
    WAITING = 1
    """A Pod would wait: too few devices are free, or a node must be added."""
    SHARED = 2
    """Several Pods share each GPU, and nothing isolates their memory."""
    TOO_SMALL = 3


HOST_LABEL = "kubernetes.io/arch"
GIBIBYTE = 1024 * MEBIBYTE


@dataclass(frozen=True, slots=True)
class Request:
    """Requirements of a replica for its node.

    `count` is the number of devices of one replica. `options` are possible images, the preferred one first, with their
    `host_architectures` (empty if unknown). `forced`: whether the user allows an image that is known to be incompatible with the driver.
    `compatible`: whether this vLLM version can load the forward compatibility package. The GPU in use (`preferred`) is kept if it fits, so
    that unrelated changes of the spec do not move the replicas. `weight_bytes` is the size of the weights on each device; None if unknown.
    `selector` are the labels that the user requires on the nodes. `large_enough` returns whether one device of a pool is large enough for
    the model; None if unknown. Any value is valid in `tolerations`.
    """

    accelerator: AcceleratorSpec
    count: int
    options: tuple[ImageOption, ...]
    host_architectures: tuple[str, ...]
    forced: bool = False
    compatible: bool = False
    preferred: InUse | None = None
    weight_bytes: int | None = None
    selector: Mapping[str, str] = field(default_factory=dict)
    large_enough: Callable[[Pool], bool | None] | None = None
    replicas: int = 1
    tolerations: tuple[Any, ...] = ()

    @property
    def claims(self) -> bool:
        """Whether devices are requested with a ResourceClaim."""
        return self.accelerator.allocation is Allocation.DRA

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
class Target:
    """The chosen GPUs. `free`: number of replicas that fit on the free devices; None if unknown."""

    pool: Pool
    count: int
    fit: ImageFit
    requirements: tuple[NodeRequirement, ...]
    title: str
    notes: tuple[Note, ...]
    rank: Rank = Rank.FREE
    free: int | None = None

    @property
    def architecture(self) -> str | None:
        """Such as `sm_90`; None if unknown."""
        return self.pool.architecture


def find_targets(request: Request, inventory: Inventory, catalog: Catalog) -> tuple[Target, ...] | Verdict:
    """Return the pools that can run a replica, the best first; or a verdict with the reason and the user's options."""
    candidates, rejections = _sort_out(request, inventory, catalog)
    if not candidates:
        message = explain(request.accelerator, request.count, request.selector, inventory, rejections, catalog.gpus, request.large_enough)
        return Verdict(ConditionStatus.FALSE, Reason.NO_MATCHING_GPU, message)
    ordered = sorted(candidates, key=lambda candidate: _order(candidate[0], candidate[1], request, catalog.gpus))
    capacity = find_capacity(request, inventory)
    return tuple(_target(pool, fit, request, inventory, catalog.gpus, capacity) for pool, fit in ordered)


def find_capacity(request: Request, inventory: Inventory) -> Capacity:
    """Return the free devices for the Pods of a request."""
    used, allocated = inventory.used, inventory.allocated
    if used is None and allocated is None:
        return Capacity()
    tolerated = [*DEFAULT_TOLERATIONS, *request.tolerations]
    closed = {node for node, taints in inventory.taints.items() if not all(taint.is_tolerated(tolerated) for taint in taints)}
    found: dict[Alike, dict[str, int]] = {}
    for pool in inventory.pools:
        if pool.provider is not None or pool.problems:
            continue
        taken = Counter(node for node, device in pool.devices if device in allocated) if pool.claims and allocated else Counter[str]()
        free = found.setdefault(_kind(pool), {})
        for node in pool.nodes:
            if node not in closed and inventory.has_labels(node, request.selector):
                in_use = taken[node] if pool.claims else (used or {}).get((node, pool.resource), 0)
                free[node] = max(pool.count - in_use, 0)
    return Capacity(used is not None, allocated is not None, found)


def with_count(target: Target, count: int, request: Request, inventory: Inventory, capacity: Capacity) -> Target:
    """Return the target with `count` devices per replica, and the free capacity for them."""
    free = capacity.replicas(target.pool, count)
    return replace(target, count=count, free=free, rank=_rank(target.pool, free, request, inventory))


def find_rejections(request: Request, inventory: Inventory, catalog: Catalog) -> list[Rejection]:
    """Return the pools that cannot run a replica, each with the reason."""
    return _sort_out(request, inventory, catalog)[1]


def _sort_out(request: Request, inventory: Inventory, catalog: Catalog) -> tuple[list[tuple[Pool, ImageFit]], list[Rejection]]:
    candidates: list[tuple[Pool, ImageFit]] = []
    rejections: list[Rejection] = []
    for whole in inventory.pools:
        nodes = tuple(node for node in whole.nodes if inventory.has_labels(node, request.selector))
        pool = replace(whole, nodes=nodes) if nodes else whole
        obstacle = _obstacle(pool, request)
        if obstacle is None and not nodes:
            obstacle = Obstacle.SELECTOR
        if obstacle is not None:
            rejections.append(Rejection(pool, obstacle, "; ".join(pool.problems) if obstacle is Obstacle.PROBLEM else ""))
            continue
        fit = fit_image(request.options, pool, catalog, forced=request.forced, compatible=request.compatible)
        if fit.problem is not None:
            rejections.append(Rejection(pool, Obstacle.IMAGE, fit.problem, fit.remedy))
        else:
            candidates.append((pool, fit))
    return candidates, rejections


def _target(pool: Pool, fit: ImageFit, request: Request, inventory: Inventory, gpus: GPUs, capacity: Capacity) -> Target:
    free = capacity.replicas(pool, request.count)
    return Target(
        pool=pool,
        count=request.count,
        fit=fit,
        requirements=_requirements(pool, inventory, fit),
        title=gpus.title(pool.product, pool.architecture),
        notes=_notes(pool, fit, request, inventory),
        rank=_rank(pool, free, request, inventory),
        free=free,
    )


def may_run_on(pool: Pool, wanted: AcceleratorSpec) -> bool:
    """Return whether the lists of architectures and products in a spec allow a pool."""
    if wanted.architectures and pool.architecture not in wanted.architectures:
        return False
    return not wanted.products or _product_place(pool, wanted.products) is not None


def _obstacle(pool: Pool, request: Request) -> Obstacle | None:
    """Return why a pool cannot serve the request, apart from the image. Later checks mean that the pool is nearer to the request."""
    wanted = request.accelerator
    profile, uuids = wanted.mig.profile if wanted.mig else None, wanted.uuids or (wanted.mig and wanted.mig.uuids) or ()
    named = _product_place(pool, wanted.products) is not None if wanted.products else True
    checks = (
        (
            not wanted.architectures or pool.architecture in wanted.architectures,
            Obstacle.ARCHITECTURE if pool.architecture else Obstacle.UNKNOWN,
        ),
        (named, Obstacle.PRODUCT),
        (pool.claims == request.claims, Obstacle.ALLOCATION),
        (pool.mig_profile is None or request.allows_slice(pool), Obstacle.SLICED),
        (pool.mig_profile is not None or not wanted.sliced, Obstacle.NOT_SLICED),
        (not profile or _profile_key(profile) == _profile_key(pool.mig_profile or ""), Obstacle.PROFILE),
        (set(uuids) <= set(pool.uuids), Obstacle.UUID),
        (not pool.shared or request.allows_sharing(pool), Obstacle.SHARED),
        (not request.host_architectures or pool.host in (None, *request.host_architectures), Obstacle.HOST),
        (pool.count >= request.count or (pool.problems and pool.count == 0), Obstacle.COUNT),
        (not pool.problems, Obstacle.PROBLEM),
    )
    return next((obstacle for passed, obstacle in checks if not passed), None)


def _order(pool: Pool, fit: ImageFit, request: Request, gpus: GPUs) -> tuple[object, ...]:
    wanted = request.accelerator
    architectures = wanted.architectures or []
    return (
        _is_too_small(pool, request),
        pool.provider is not None and request.preferred != in_use_of(pool),
        architectures.index(pool.architecture) if pool.architecture in architectures else 0,
        (_product_place(pool, wanted.products) or 0) if wanted.products else 0,
        request.preferred is not None and request.preferred != in_use_of(pool),
        pool.provider is not None,
        pool.shared,
        pool.mig_profile is not None,
        pool.source is Source.UNKNOWN,
        gpus.rank(pool.architecture),
        not fit.clean,
        -(pool.memory_mebibytes or 0),
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
    return Rank.WAITING if free < max(request.replicas, 1) else Rank.FREE


def in_use_of(pool: Pool) -> InUse:
    """Return the identity of the GPU in use."""
    return pool.architecture, pool.product, pool.mig_profile, pool.shared


def _product_place(pool: Pool, products: Sequence[str]) -> int | None:
    """Return the index of a pool's product in the user's list. A name with a suffix for MIG slices or sharing matches only these."""
    for place, name in enumerate(products):
        base, profile, shared = split_product(name)
        same = pool.product is not None and product_key(base) == product_key(pool.product)
        if same and (profile is None or profile == pool.mig_profile) and (not shared or pool.shared):
            return place
    return None


def _profile_key(profile: str) -> str:
    """Return a normalized MIG profile: labels cannot contain `+`, so `1g.10gb+me` is `1g.10gb.me` there."""
    return profile.lower().replace("+", ".")


def _requirements(pool: Pool, inventory: Inventory, fit: ImageFit) -> tuple[NodeRequirement, ...]:
    """Return the node affinity for the pool, from labels of its nodes."""
    requirements = [NodeRequirement(key=HOST_LABEL, operator="In", values=[pool.host])] if pool.host else []
    requirements += [NodeRequirement(key=key, operator="In", values=[value]) for key, value in pool.labels]
    if pool.mig_profile is None and not pool.claims:
        # With the MIG strategy `single`, a slice has the resource name of a whole GPU.
        requirements.append(NodeRequirement(key=SLICES, operator="DoesNotExist"))
    # The labels may also match nodes whose driver does not support the CUDA major of the image.
    siblings = (other for other in inventory.pools if other.resource == pool.resource and other.labels == pool.labels)
    older = fit.option.cuda is not None and any(other.cuda is not None and other.cuda[0] < fit.option.cuda[0] for other in siblings)
    if pool.upgrade_label and pool.cuda and older:
        requirements.append(NodeRequirement(key=pool.upgrade_label, operator="In", values=[str(pool.cuda[0])]))
    return tuple(requirements)


def _is_too_small(pool: Pool, request: Request) -> bool:
    known = request.weight_bytes is not None and pool.memory_mebibytes is not None
    return known and (request.weight_bytes or 0) > (pool.memory_mebibytes or 0) * MEBIBYTE


def _notes(pool: Pool, fit: ImageFit, request: Request, inventory: Inventory) -> tuple[Note, ...]:
    notes: list[Note] = []
    if _is_too_small(pool, request):
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
    return tuple(notes)

"""Which GPUs a replica runs on.

Pools that cannot serve the request are left out, each with the reason; the others are put in this order, so that the
same request and the same cluster always give the same answer:

1. GPUs with room for the weights, where both sizes are known
2. the user's order of architectures, then of products
3. the GPU in use, if there is one and it still fits
4. GPUs that are known before GPUs of which nothing is known
5. the order of architectures in the catalog, the most capable first
6. a driver that runs the image without reservations
7. more memory, more nodes, then names

The node affinity uses labels that the chosen nodes really have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllm_operator.api.conditions import Reason
from vllm_operator.api.spec import AcceleratorSpec, Allocation
from vllm_operator.api.status import ConditionStatus, NodeRequirement
from vllm_operator.catalog.gpus import GPUs, product_key
from vllm_operator.catalog.images import Images
from vllm_operator.planning.inventory.node_labels import SLICES, split_product
from vllm_operator.planning.inventory.pools import Inventory, Pool, Source
from vllm_operator.planning.outcome import Verdict
from vllm_operator.planning.placement.image import Fit, ImageOption, fit_image
from vllm_operator.planning.placement.shortage import Obstacle, Rejection, explain
from vllm_operator.pods.quantities import MEBIBYTE

HOST_LABEL = "kubernetes.io/arch"
GIBIBYTE = 1024 * MEBIBYTE


@dataclass(frozen=True, slots=True)
class Request:
    """What a replica needs of its node.

    `host_architectures` are those that the image is built for, empty if that is not known. `forced`: the user insists
    on an image that is known not to suit the driver. `compatible`: the engine's version can load the forward
    compatibility package. `preferred` are architecture and product of the GPU in use: kept where they fit, so that a
    change of the spec that has nothing to do with GPUs does not move the replicas. `weight_bytes` is the size of the
    weights that each device has to hold, None if it is not known. `selector` are labels that the user wants on the
    node.
    """

    accelerator: AcceleratorSpec
    count: int
    options: tuple[ImageOption, ...]
    host_architectures: tuple[str, ...]
    forced: bool = False
    compatible: bool = False
    preferred: tuple[str | None, str | None] | None = None
    weight_bytes: int | None = None
    selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def claims(self) -> bool:
        """True if devices are asked for with a ResourceClaim."""
        return self.accelerator.allocation is Allocation.DRA

    @property
    def mig(self) -> bool:
        """True if slices are asked for."""
        return self.accelerator.mig is not None


@dataclass(frozen=True, slots=True)
class Target:
    """The GPUs chosen. `resource` is an extended resource, or a device class where `claims` is set."""

    pool: Pool
    resource: str
    claims: bool
    count: int
    fit: Fit
    requirements: tuple[NodeRequirement, ...]
    title: str
    notes: tuple[str, ...]

    @property
    def architecture(self) -> str | None:
        """`sm_90`, or None if nothing tells."""
        return self.pool.architecture


def find_targets(request: Request, inventory: Inventory, gpus: GPUs, images: Images) -> tuple[Target, ...] | Verdict:
    """Find the pools that a replica can run on, the best first, or say why there is none and what can be done."""
    candidates: list[tuple[Pool, Fit]] = []
    rejections: list[Rejection] = []
    for whole in inventory.pools:
        pool = _selected(whole, request.selector, inventory)
        if pool is None:
            rejections.append(_reject(whole, request) or Rejection(whole, Obstacle.SELECTOR))
            continue
        rejection = _reject(pool, request)
        if rejection is not None:
            rejections.append(rejection)
            continue
        fit = fit_image(request.options, pool, gpus, images, forced=request.forced, compatible=request.compatible)
        if fit.problem is not None:
            rejections.append(Rejection(pool, Obstacle.IMAGE, fit.problem, fit.remedy))
            continue
        candidates.append((pool, fit))
    if not candidates:
        message = explain(request.accelerator, request.count, request.selector, inventory, rejections, gpus)
        return Verdict(ConditionStatus.FALSE, Reason.NO_MATCHING_GPU, message)
    ordered = sorted(candidates, key=lambda candidate: _order(candidate[0], candidate[1], request, gpus))
    return tuple(_target(pool, fit, request, inventory, gpus) for pool, fit in ordered)


def _target(pool: Pool, fit: Fit, request: Request, inventory: Inventory, gpus: GPUs) -> Target:
    return Target(
        pool=pool,
        resource=pool.resource,
        claims=pool.claims,
        count=request.count,
        fit=fit,
        requirements=_requirements(pool, request, inventory, fit),
        title=gpus.title(pool.product, pool.architecture),
        notes=_notes(pool, fit, request, inventory),
    )


def _selected(pool: Pool, selector: Mapping[str, str], inventory: Inventory) -> Pool | None:
    """The pool with only those nodes that have the labels of the selector; None if no node has."""
    if not selector:
        return pool
    nodes = tuple(node for node in pool.nodes if selector.items() <= inventory.labels.get(node, {}).items())
    return replace(pool, nodes=nodes) if nodes else None


def _reject(pool: Pool, request: Request) -> Rejection | None:
    """Say why a pool cannot serve the request, whatever the image; the later in this order, the nearer it comes."""
    wanted = request.accelerator
    if wanted.architectures and pool.architecture not in wanted.architectures:
        return Rejection(pool, Obstacle.UNKNOWN if pool.architecture is None else Obstacle.ARCHITECTURE)
    if wanted.products and _product_place(pool, wanted.products) is None:
        return Rejection(pool, Obstacle.PRODUCT)
    if pool.claims != request.claims:
        return Rejection(pool, Obstacle.ALLOCATION)
    if request.mig != (pool.mig_profile is not None):
        return Rejection(pool, Obstacle.SLICED if pool.mig_profile else Obstacle.NOT_SLICED)
    if wanted.mig is not None and wanted.mig.profile and _profile_key(wanted.mig.profile) != _profile_key(pool.mig_profile or ""):
        return Rejection(pool, Obstacle.PROFILE)
    if not set(wanted.uuids or (wanted.mig and wanted.mig.uuids) or ()) <= set(pool.uuids):
        return Rejection(pool, Obstacle.UUID)
    if pool.shared and not any(split_product(name)[2] for name in wanted.products or ()):
        return Rejection(pool, Obstacle.SHARED)
    if request.host_architectures and pool.host is not None and pool.host not in request.host_architectures:
        return Rejection(pool, Obstacle.HOST)
    if pool.count < request.count and not (pool.problems and pool.count == 0):
        return Rejection(pool, Obstacle.COUNT)
    if pool.problems:
        return Rejection(pool, Obstacle.PROBLEM, "; ".join(pool.problems))
    return None


def _order(pool: Pool, fit: Fit, request: Request, gpus: GPUs) -> tuple[object, ...]:
    wanted = request.accelerator
    architectures = wanted.architectures or []
    return (
        _is_too_small(pool, request),
        architectures.index(pool.architecture) if pool.architecture in architectures else 0,
        (_product_place(pool, wanted.products) or 0) if wanted.products else 0,
        request.preferred is not None and request.preferred != (pool.architecture, pool.product),
        pool.source is Source.UNKNOWN,
        gpus.rank(pool.architecture),
        not fit.clean,
        -(pool.memory_mebibytes or 0),
        -len(pool.nodes),
        pool.nodes,
        pool.resource,
        repr(pool),
    )


def _product_place(pool: Pool, products: Sequence[str]) -> int | None:
    """Place of a pool's product in the user's list; a name with a suffix for slices or sharing means just these."""
    for place, name in enumerate(products):
        base, profile, shared = split_product(name)
        same = pool.product is not None and product_key(base) == product_key(pool.product)
        if same and (profile is None or profile == pool.mig_profile) and (not shared or pool.shared):
            return place
    return None


def _profile_key(profile: str) -> str:
    """MIG profiles compare without regard to how a label has to write `+` (`1g.10gb+me` is `1g.10gb.me`)."""
    return profile.lower().replace("+", ".")


def _requirements(pool: Pool, request: Request, inventory: Inventory, fit: Fit) -> tuple[NodeRequirement, ...]:
    """Where the Pods may run, as narrow as the choice was and with labels that are there."""
    requirements = [NodeRequirement(key=HOST_LABEL, operator="In", values=[pool.host])] if pool.host else []
    requirements += [NodeRequirement(key=key, operator="In", values=[value]) for key, value in pool.labels]
    if not request.mig and not pool.claims:
        # With the strategy `single` a slice has the resource name of a whole GPU.
        requirements.append(NodeRequirement(key=SLICES, operator="DoesNotExist"))
    if pool.upgrade_label and pool.cuda and _has_older_siblings(pool, inventory, fit):
        requirements.append(NodeRequirement(key=pool.upgrade_label, operator="In", values=[str(pool.cuda[0])]))
    return tuple(requirements)


def _has_older_siblings(pool: Pool, inventory: Inventory, fit: Fit) -> bool:
    """True if the labels pick other nodes too, whose driver does not run the image's CUDA major."""
    siblings = (other for other in inventory.pools if other.resource == pool.resource and other.labels == pool.labels)
    major = fit.option.cuda[0] if fit.option.cuda else None
    return major is not None and any(other.cuda is not None and other.cuda[0] < major for other in siblings)


def _is_too_small(pool: Pool, request: Request) -> bool:
    known = request.weight_bytes is not None and pool.memory_mebibytes is not None
    return known and (request.weight_bytes or 0) > (pool.memory_mebibytes or 0) * MEBIBYTE


def _notes(pool: Pool, fit: Fit, request: Request, inventory: Inventory) -> tuple[str, ...]:
    notes: list[str] = []
    if _is_too_small(pool, request):
        larger = "Use a larger slice, whole GPUs" if pool.mig_profile else "Raise parallelism.tensor, use larger GPUs"
        notes.append(
            f"The weights take about {(request.weight_bytes or 0) / GIBIBYTE:.0f} GiB of each device, which has "
            f"{(pool.memory_mebibytes or 0) / 1024:.0f} GiB: expect the engine to run out of memory. {larger} or a model "
            "with smaller numbers; if the size is not right, give spec.model.facts.weightSize."
        )
    if pool.architecture is None:
        notes.append(
            "No label tells what the GPUs are, so the choice of kernels is left to vLLM. Run GPU Feature Discovery, "
            "or set the label vllm-operator.dev/gpu-architecture (for example sm_90) on the nodes."
        )
    elif pool.source is Source.RESOURCE_SLICE and not pool.claims and not pool.labels and _others(pool, inventory):
        notes.append(
            "No label tells the chosen nodes from others, so Pods may land on another GPU. "
            "Use allocation: DRA, or run GPU Feature Discovery."
        )
    if pool.architecture is not None and pool.cuda is None and pool.driver is None and fit.option.cuda is not None:
        cuda = ".".join(str(part) for part in fit.option.cuda)
        notes.append(f"The nodes do not tell the version of their GPU driver; {fit.option.image} needs one that runs CUDA {cuda}.")
    return tuple(notes)


def _others(pool: Pool, inventory: Inventory) -> bool:
    return any(other.resource == pool.resource and other.architecture != pool.architecture for other in inventory.pools)

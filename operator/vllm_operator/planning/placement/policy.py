"""The policy for GPUs: the order of GPUs on which the model fits, and reasons for and against each."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllm_operator.api.plan import GPUCandidate, gpu_name
from vllm_operator.api.spec import AcceleratorSpec
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.inventory.pools import Pool
from vllm_operator.planning.placement.fitting import Headroom, Sizing
from vllm_operator.planning.placement.targets import WAITS, Candidate, GPUIdentity, Rank, Rejection, identity_of
from vllm_operator.text.wording import count as counted

CANDIDATES_LIMIT = 16
"""Maximum number of kinds of GPUs in a plan."""
TEXT_LIMIT = 200
"""Maximum characters of a reason."""
USEFUL = ((Headroom.WHOLE, Headroom.SHORTENED), (Headroom.FEW,), (Headroom.SHORT,), (Headroom.TIGHT,), (Headroom.UNKNOWN,))
"""Groups of fit, the best first. A candidate precedes all candidates of a later group."""
Kind = tuple[str, str | None, str, bool]
"""Kind of GPU for users: title, MIG profile, resource, and whether Pods share it."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Inputs of the order of GPUs. `accelerator` is that of the spec; its policy is None if there is none."""

    accelerator: AcceleratorSpec
    replicas: int
    gpus: GPUs
    sizing: Sizing

    def key(self, each: Candidate) -> tuple[object, ...]:
        """Return the sort key of a GPU in the policy, apart from memory."""
        match self.accelerator.policy:
            case "MostCapable":
                return (self.gpus.rank(each.pool.architecture), -(each.pool.memory_mebibytes or 0), each.shape.count)
            case "MostFree":
                return (each.free is None, -(each.free or 0))
            case _:
                return ()

    def order(self, found: Iterable[Candidate], preferred: GPUIdentity | None, *, smallest: bool = False) -> list[Candidate]:
        """Order GPUs for an unknown model: the GPU in use first, MIG slices last, and with `smallest`, fewer and smaller ones first."""

        def place(each: Candidate) -> tuple[object, ...]:
            other = preferred is not None and preferred != identity_of(each.pool)
            size = (each.shape.count, self.size_of(each)) if smallest and not self.keeps_order else ()
            return (each.rank, other, each.pool.mig_profile is not None, self.key(each), size)

        return sorted(found, key=place)

    def choose(self, found: Sequence[Candidate], preferred: GPUIdentity | None, count: int | None) -> list[Candidate]:
        """Choose a size from `find_candidates`; return its GPUs, the best first. The GPU in use and its `count` stay if the model fits."""
        kept = [each for each in found if identity_of(each.pool) == preferred and each.shape.count == count]
        own = [each for each in kept if each.result.headroom <= Headroom.TIGHT]
        for group, headrooms in itertools.product((own, found), USEFUL):
            if fitting := [each for each in group if each.result.headroom in headrooms]:
                best = self._best(fitting, few=Headroom.FEW in headrooms)
                return [*best, *(each for each in found if each.shape == best[0].shape and each not in best)]
        return [each for each in found if each.shape == found[-1].shape]

    def _best(self, fitting: Sequence[Candidate], *, few: bool) -> list[Candidate]:
        """Return the candidates of the best size, the best GPU first. With `few`, none holds as many requests as wanted."""

        def held(each: Candidate) -> float:
            return (each.result.held or 0) if few else 0

        if self.accelerator.policy in (None, "SmallestThatFits"):
            lowest = min(each.rank for each in fitting)
            first = max((each for each in fitting if each.rank == lowest), key=held)
            same = [each for each in fitting if each.shape == first.shape]
            by_rank = self.keeps_order or first.result.headroom is Headroom.UNKNOWN
            return sorted(same, key=lambda each: (each.rank,) if by_rank else self.size_of(each))
        smallest: dict[Kind, Candidate] = {}  # of each kind; a kind with more GPUs may rank above one with fewer
        for each in fitting:
            if held(each) > held(smallest.setdefault(kind_of(each), each)):
                smallest[kind_of(each)] = each
        # existing GPUs first; if the policy sees no difference, the smallest GPU
        ranked = sorted(smallest.values(), key=lambda each: (each.rank, self.key(each), each.shape.count, self.size_of(each)))
        return [each for each in ranked if each.shape == ranked[0].shape]

    def preferred_order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the GPUs on which the model fits in the order if all were free, the best first."""
        if self.keeps_order:
            return list(candidates)
        return sorted(candidates, key=lambda each: (self.key(each), each.shape.count, self.size_of(each)[1:]))

    @property
    def keeps_order(self) -> bool:
        """Whether GPUs keep the order of `find_candidates`: the spec lists several without a policy."""
        listed = any(len(given or ()) > 1 for given in (self.accelerator.architectures, self.accelerator.products))
        return listed and self.accelerator.policy is None

    def size_of(self, each: Candidate) -> tuple[object, ...]:
        """Return the sort key of a GPU among candidates with an equal number of GPUs: the smallest first."""
        pool, family, product = each.pool, self.gpus.architectures.get(each.pool.architecture or ""), self.gpus.product(each.pool.product)
        unified = family is None or family.unified_memory
        has_nvlink = product is not None and product.links == "NVLink" and pool.mig_profile is None  # MIG slices have no links
        linked = has_nvlink == (each.shape.count > 1)  # a single GPU needs no NVLink and leaves it to others
        place = (unified, not self.sizing.is_native(pool), pool.memory_mebibytes or 0, not linked, not each.fit.clean)
        return (each.rank, *place, pool.provider is None)  # a new node is preferred to waiting for an equal GPU

    def why(self, each: Candidate, chosen: Candidate) -> str:
        """Return why a GPU is chosen or not."""
        limit, about = each.result.made.limit, list[str]()
        if self.accelerator.policy == "MostFree" and each.pool.provider is None:
            about.append("it is unknown what is free" if each.free is None else f"free for {counted(each.free, 'replica')}")
        if each.pool.provider:
            about.append(f"{each.pool.provider} would add a node")
        also, busy = "".join(f"; {text}" for text in about), self._when_busy(each)
        if each is chosen:
            return f"chosen{also}"
        match each.result.headroom:
            case Headroom.NONE:
                return f"does not fit: {limit}"
            case Headroom.UNKNOWN if each.rank is Rank.TOO_SMALL:
                return f"too small for the weights{also}"
            case Headroom.UNKNOWN:
                return f"unknown whether the model fits{busy}{also}"
            case Headroom.TIGHT:
                return f"may not fit: {limit}"
            case Headroom.SHORT:
                return f"fits only a context of {each.result.length} tokens{also}"
            case Headroom.FEW:
                return f"holds only {each.result.held or 0:.1f} of the requests wanted{also}"
            case _ if busy or about:
                return f"fits{busy}{also}"
            case _ if each.shape.count > chosen.shape.count:
                return f"fits on {each.shape.count}"
            case _:
                return f"fits, but {self._disadvantage(each, chosen)}"

    def _disadvantage(self, each: Candidate, chosen: Candidate) -> str:
        pool, family = each.pool, self.gpus.architectures.get(each.pool.architecture or "")
        if pool.shared:
            return "nothing isolates the memory of the Pods that share it"
        if family is not None and family.unified_memory:
            return "shares its memory with the CPU"
        if self.accelerator.policy == "MostCapable":
            return "is less capable"
        if self.sizing.is_native(chosen.pool) and not self.sizing.is_native(pool):
            return "does not compute in the format of the weights"
        if (pool.memory_mebibytes or 0) > (chosen.pool.memory_mebibytes or 0):
            return "is larger than needed"
        return "comes later in the order of GPUs"

    def _when_busy(self, each: Candidate) -> str:
        """Return that too few GPUs are free, as the continuation of a verdict; empty if enough are free, or if unknown."""
        if each.rank not in WAITS or each.pool.provider is not None:
            return ""
        if not each.free:
            return ", but none was free" if each.free == 0 else ", but too few were free for all replicas"
        return f", but was free for only {each.free} of {max(self.replicas, 1)} replicas"


def kind_of(each: Candidate) -> Kind:
    """Return the kind of a GPU for users."""
    return each.title, each.pool.mig_profile, each.pool.resource, each.pool.shared


def free_products(candidates: Iterable[Candidate], *, but: Iterable[Candidate]) -> tuple[str, ...]:
    """Return the products on which the model fits and of which enough are free for a replica, without the kinds in `but`."""
    known = set(map(kind_of, but))
    fitting = (each for each in candidates if each.free and each.result.headroom <= Headroom.SHORT and kind_of(each) not in known)
    return tuple(dict.fromkeys(label for each in fitting if (label := product_label(each.pool)) is not None))


def product_label(pool: Pool) -> str | None:
    """Return the name of a GPU or MIG slice for `spec.accelerator.products`; None if it has none."""
    return f"{pool.product}-MIG-{pool.mig_profile}" if pool.product and pool.mig_profile else pool.product


def describe_candidates(
    chosen: Candidate, found: Sequence[Candidate], rejections: Iterable[Rejection], ranking: Ranking
) -> list[GPUCandidate]:
    """List each kind of GPU once: the chosen kind, the kinds that fit, the kinds that do not fit, the kinds that are not allowed."""
    by_kind = {kind_of(chosen): chosen}
    for each in sorted(found, key=_nearness):
        by_kind.setdefault(kind_of(each), each)

    def place(each: Candidate) -> tuple[object, ...]:
        return each is not chosen, group_of(each.result.headroom), each.rank, ranking.key(each), each.shape.count

    listed: dict[tuple[str, str], GPUCandidate] = {}
    for each in sorted(by_kind.values(), key=place):
        gpu, verdict = f"{each.shape.count} x {pool_name(each.title, each.pool)}"[:TEXT_LIMIT], ranking.why(each, chosen)[:TEXT_LIMIT]
        listed[gpu, verdict] = GPUCandidate(gpu=gpu, count=each.shape.count, verdict=verdict)
    names = {pool_name(each.title, each.pool) for each in by_kind.values()}
    for rejection in sorted(rejections, key=lambda each: (-each.nearness, each.pool.nodes, each.pool.resource)):
        gpu = pool_name(ranking.gpus.title(rejection.pool.product, rejection.pool.architecture), rejection.pool)
        if gpu not in names:
            names.add(gpu)
            verdict = rejection.text[:TEXT_LIMIT]
            listed[gpu, verdict] = GPUCandidate(gpu=gpu[:TEXT_LIMIT], verdict=verdict)
    return list(listed.values())[:CANDIDATES_LIMIT] if len(listed) > 1 else []


def _nearness(each: Candidate) -> tuple[int, int, int]:
    """Return the sort key within one kind of GPU: the smallest size that fits first; if none fits, the largest."""
    headroom, count = each.result.headroom, each.shape.count
    return group_of(headroom), each.rank, -count if headroom is Headroom.NONE else count


def group_of(headroom: Headroom) -> int:
    """Return the index of a fit in `USEFUL`; its length if the model does not fit."""
    return next((place for place, headrooms in enumerate(USEFUL) if headroom in headrooms), len(USEFUL))


def pool_name(title: str, pool: Pool, number: int = 1) -> str:
    """Return the name of a GPU, MIG slice or shared GPU in messages."""
    name = gpu_name(title, pool.mig_profile, number)
    pods = f"{pool.time_slices} Pods" if pool.time_slices else "Pods"
    return f"{name}, shared by {pods}" if pool.shared else name

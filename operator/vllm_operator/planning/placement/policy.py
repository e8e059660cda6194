"""The policy for GPUs: the order of GPUs on which the model fits, and reasons for and against each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllm_operator.api.plan import GPUCandidate
from vllm_operator.api.spec import AcceleratorPolicy, AcceleratorSpec
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.inventory.pools import Pool
from vllm_operator.planning.placement.fitting import Candidate, Headroom, Sizing
from vllm_operator.planning.placement.shortage import Rejection, why_rejected
from vllm_operator.planning.placement.targets import InUse, Rank, Target, in_use_of
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

    @property
    def policy(self) -> AcceleratorPolicy | None:
        """The policy of the spec."""
        return self.accelerator.policy

    def key(self, target: Target, count: int) -> tuple[object, ...]:
        """Return the sort key of a GPU in the policy, apart from memory."""
        pool = target.pool
        match self.policy:
            case AcceleratorPolicy.MOST_CAPABLE:
                return (self.gpus.rank(pool.architecture), -(pool.memory_mebibytes or 0), count)
            case AcceleratorPolicy.MOST_FREE:
                return (target.free is None, -(target.free or 0))
            case _:
                return ()

    def order(self, targets: Iterable[Target], preferred: InUse | None) -> tuple[Target, ...]:
        """Order GPUs for a model of unknown size: the GPU in use first, MIG slices last."""

        def place(target: Target) -> tuple[object, ...]:
            other = preferred is not None and preferred != in_use_of(target.pool)
            return (target.rank, other, target.pool.mig_profile is not None, self.key(target, target.count))

        return tuple(sorted(targets, key=place))

    def choose(self, found: Sequence[Candidate], sizing: Sizing, preferred: InUse | None, count: int | None) -> list[Candidate]:
        """Return the candidates of the size to use, the best GPU first.

        `found` are all candidates: sizes in ascending order, and in each the GPUs in the order of `find_targets`. The GPU in use
        (`preferred`) and its `count` stay if the model fits on it.
        """
        own = [each for each in found if in_use_of(each.target.pool) == preferred and each.shape.count == count]
        if self.policy not in (None, AcceleratorPolicy.SMALLEST_THAT_FITS):
            return self._choose_by_policy([each for each in own if each.result.headroom <= Headroom.TIGHT] or found, sizing)
        for group in (own, found):
            for headrooms in USEFUL:
                fitting = [each for each in group if each.result.headroom in headrooms]
                if fitting and not (group is own and Headroom.UNKNOWN in headrooms):
                    return self._choose_smallest(fitting, found, sizing, few=Headroom.FEW in headrooms)
        return _largest(found)

    def _choose_smallest(self, fitting: Sequence[Candidate], found: Sequence[Candidate], sizing: Sizing, *, few: bool) -> list[Candidate]:
        """Choose the first size. If no size holds as many requests as wanted (`few`), choose the one that holds the most."""
        lowest = min(each.target.rank for each in fitting)
        nearest = [each for each in fitting if each.target.rank == lowest]
        first = max(nearest, key=lambda each: each.result.held or 0) if few else nearest[0]
        best = [each for each in fitting if each.shape == first.shape]
        if self.keeps_order(sizing) or first.result.headroom is Headroom.UNKNOWN:
            best.sort(key=lambda each: each.target.rank)
        else:
            best.sort(key=lambda each: size_of(each, sizing))
        return [*best, *(each for each in found if each.shape == first.shape and each not in best)]

    def _choose_by_policy(self, candidates: Sequence[Candidate], sizing: Sizing) -> list[Candidate]:
        """Compare the smallest size that fits of each kind of GPU. A candidate with more GPUs may rank above one with fewer."""
        for headrooms in USEFUL:
            smallest: dict[Kind, Candidate] = {}
            for each in candidates:
                kind = kind_of(each.target)
                if each.result.headroom not in headrooms:
                    continue
                if kind not in smallest or (Headroom.FEW in headrooms and (each.result.held or 0) > (smallest[kind].result.held or 0)):
                    smallest[kind] = each
            if smallest:
                ranked = sorted(smallest.values(), key=lambda each: self._place(each, sizing))
                same = [each for each in ranked if each.shape == ranked[0].shape]
                return [*same, *(each for each in candidates if each.shape == ranked[0].shape and each not in same)]
        return _largest(candidates)

    def _place(self, candidate: Candidate, sizing: Sizing) -> tuple[object, ...]:
        """Return the sort key of a candidate that fits: existing GPUs first; if the policy sees no difference, the smallest GPU."""
        count, target = candidate.shape.count, candidate.target
        return (target.rank, self.key(target, count), count, size_of(candidate, sizing))

    def about(self, target: Target) -> str:
        """Return how many replicas fit on the free devices, if the policy compares that; otherwise an empty text."""
        if self.policy is not AcceleratorPolicy.MOST_FREE or target.pool.provider is not None:
            return ""
        return "it is unknown what is free" if target.free is None else f"room for {counted(target.free, 'replica')}"

    def preferred_order(self, candidates: Sequence[Candidate], sizing: Sizing) -> list[Candidate]:
        """Return the GPUs on which the model fits in the order if all were free, the best first."""
        if self.keeps_order(sizing):
            return list(candidates)
        return sorted(candidates, key=lambda each: (self.key(each.target, each.shape.count), each.shape.count, size_of(each, sizing)[1:]))

    def keeps_order(self, sizing: Sizing) -> bool:
        """Return whether GPUs keep the order of `find_targets`: their memory is unknown, or the spec lists several without a policy."""
        listed = any(len(given or ()) > 1 for given in (self.accelerator.architectures, self.accelerator.products))
        return sizing.options is None or (listed and self.policy is None)


def _largest(candidates: Sequence[Candidate]) -> list[Candidate]:
    return [each for each in candidates if each.shape == candidates[-1].shape]


def size_of(candidate: Candidate, sizing: Sizing) -> tuple[object, ...]:
    """Return the sort key of a GPU among candidates with an equal number of GPUs: the smallest first."""
    pool = candidate.target.pool
    family, product = sizing.catalog.gpus.architectures.get(pool.architecture or ""), sizing.catalog.gpus.product(pool.product)
    unified = family is None or family.unified_memory
    has_nvlink = product is not None and product.links == "NVLink" and pool.mig_profile is None  # MIG slices have no links
    linked = has_nvlink == (candidate.shape.count > 1)  # a single GPU needs no NVLink and leaves it to others
    place = (unified, not sizing.is_native(pool), pool.memory_mebibytes or 0, not linked, not candidate.target.fit.clean)
    return (candidate.target.rank, *place, pool.provider is None)  # a new node is preferred to waiting for an equal GPU


def kind_of(target: Target) -> Kind:
    """Return the kind of a GPU for users."""
    return target.title, target.pool.mig_profile, target.pool.resource, target.pool.shared


def describe_candidates(
    chosen: Target,
    best: Sequence[Candidate],
    found: Sequence[Candidate],
    rejections: Iterable[Rejection],
    sizing: Sizing | None,
    ranking: Ranking,
) -> list[GPUCandidate]:
    """List each kind of GPU once: the chosen kind, the kinds that fit, the kinds that do not fit, the kinds that are not allowed."""
    by_kind: dict[Kind, Candidate] = {}
    for each in sorted([*best, *found], key=_nearness):
        by_kind.setdefault(kind_of(each.target), each)
    mine = next((each for each in best if each.target == chosen), None)
    if mine is not None:
        by_kind[kind_of(chosen)] = mine
    names = {gpu_name(each.target) for each in by_kind.values()}
    by_kind.pop(kind_of(chosen), None)

    def place(each: Candidate) -> tuple[object, ...]:
        return group_of(each.result.headroom), each.target.rank, ranking.key(each.target, each.shape.count), each.shape.count

    entries = [_entry(each, mine, sizing, ranking) for each in (*((mine,) if mine else ()), *sorted(by_kind.values(), key=place))]
    listed = list({(entry.gpu, entry.verdict): entry for entry in entries}.values())
    for rejection in sorted(rejections, key=lambda each: (-each.obstacle, each.pool.nodes, each.pool.resource)):
        gpu = _name(ranking.gpus.title(rejection.pool.product, rejection.pool.architecture), rejection.pool)
        if gpu not in names:
            names.add(gpu)
            listed.append(GPUCandidate(gpu=gpu[:TEXT_LIMIT], verdict=why_rejected(rejection)[:TEXT_LIMIT]))
    return listed[:CANDIDATES_LIMIT] if len(listed) > 1 else []


def _nearness(candidate: Candidate) -> tuple[int, int, int]:
    """Return the sort key within one kind of GPU: the smallest size that fits first; if none fits, the largest."""
    headroom, count = candidate.result.headroom, candidate.shape.count
    return group_of(headroom), candidate.target.rank, -count if headroom is Headroom.NONE else count


def group_of(headroom: Headroom) -> int:
    """Return the index of a fit in `USEFUL`; its length if the model does not fit."""
    return next((place for place, headrooms in enumerate(USEFUL) if headroom in headrooms), len(USEFUL))


def gpu_name(target: Target) -> str:
    """Return the name of a GPU, MIG slice or shared GPU in messages."""
    return _name(target.title, target.pool)


def _name(title: str, pool: Pool) -> str:
    name = f"{pool.mig_profile} of {title}" if pool.mig_profile else title
    pods = f"{pool.time_slices} Pods" if pool.time_slices else "Pods"
    return f"{name}, shared by {pods}" if pool.shared else name


def _entry(each: Candidate, chosen: Candidate | None, sizing: Sizing | None, ranking: Ranking) -> GPUCandidate:
    count, verdict = each.shape.count, _why(each, chosen, sizing, ranking)
    return GPUCandidate(gpu=f"{count} x {gpu_name(each.target)}"[:TEXT_LIMIT], count=count, verdict=verdict[:TEXT_LIMIT])


def _why(each: Candidate, chosen: Candidate | None, sizing: Sizing | None, ranking: Ranking) -> str:
    """Return why a GPU is chosen or not."""
    made, provider = each.result.made, each.target.pool.provider
    about = "; ".join(filter(None, (ranking.about(each.target), f"{provider} would add a node" if provider else "")))
    also, busy = f"; {about}" if about else "", _when_busy(each.target, ranking)
    if each is chosen:
        return f"chosen{also}"
    match each.result.headroom:
        case Headroom.NONE:
            return f"does not fit: {made.limit}"
        case Headroom.UNKNOWN:
            return f"unknown whether the model fits{busy}{also}"
        case Headroom.TIGHT:
            return f"may not fit: {made.limit}"
        case Headroom.SHORT:
            return f"fits only a context of {each.result.length} tokens{also}"
        case Headroom.FEW:
            return f"holds only {each.result.held or 0:.1f} of the requests wanted{also}"
        case _ if busy or about:
            return f"fits{busy}{also}"
        case _:
            return f"fits, but {_disadvantage(each, chosen, sizing, ranking)}"


def _disadvantage(each: Candidate, chosen: Candidate | None, sizing: Sizing | None, ranking: Ranking) -> str:
    """Return why the chosen GPU is better than a free one on which the model fits."""
    pool, family = each.target.pool, ranking.gpus.architectures.get(each.target.architecture or "")
    if chosen is not None and each.shape.count > chosen.shape.count:
        return "more of them are needed"
    if pool.shared:
        return "nothing isolates the memory of the Pods that share it"
    if family is not None and family.unified_memory:
        return "shares its memory with the CPU"
    if ranking.policy is AcceleratorPolicy.MOST_CAPABLE:
        return "is less capable"
    if chosen is not None and sizing is not None and sizing.is_native(chosen.target.pool) and not sizing.is_native(pool):
        return "does not compute in the format of the weights"
    if chosen is not None and (pool.memory_mebibytes or 0) > (chosen.target.pool.memory_mebibytes or 0):
        return "is larger than needed"
    return "comes later in the order of GPUs"


def _when_busy(target: Target, ranking: Ranking) -> str:
    """Return that too few GPUs are free, as the continuation of a verdict; empty if enough are free, or if unknown."""
    if target.rank is not Rank.WAITING or target.pool.provider is not None:
        return ""
    if not target.free:
        return ", but none is free" if target.free == 0 else ", but too few are free for all replicas"
    return f", but there is room for only {target.free} of {max(ranking.replicas, 1)} replicas"

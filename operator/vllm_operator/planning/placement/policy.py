"""The policy for GPUs: the order of GPUs on which the model fits, and reasons for and against each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllm_operator.api.plan import GPUCandidate
from vllm_operator.api.spec import AcceleratorPolicy, AcceleratorSpec, VLLMDeploymentSpec
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.catalog.loader import Catalog
from vllm_operator.inventory.pools import Pool
from vllm_operator.planning.placement.fitting import Candidate, Headroom, Sizing, choose, in_use, size_of
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

    @property
    def compares_sizes(self) -> bool:
        """Whether a candidate with more GPUs may rank above one with fewer."""
        return self.policy not in (None, AcceleratorPolicy.SMALLEST_THAT_FITS)

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

    def choose(self, candidates: Sequence[Candidate], sizing: Sizing) -> list[Candidate]:
        """Return the candidates of the size to use, the best GPU first. The smallest size that fits is compared for each kind of GPU."""
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
        largest = candidates[-1].shape
        return [each for each in candidates if each.shape == largest]

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
        if keeps_order(self, sizing):
            return list(candidates)
        return sorted(candidates, key=lambda each: (self.key(each.target, each.shape.count), each.shape.count, size_of(each, sizing)[1:]))


def rank_for(spec: VLLMDeploymentSpec, catalog: Catalog) -> Ranking:
    """Return the ranking for a spec."""
    return Ranking(spec.accelerator or AcceleratorSpec(), spec.replicas, catalog.gpus)


def choose_candidates(
    found: Sequence[Candidate],
    sizing: Sizing,
    ranking: Ranking,
    preferred: InUse | None,
    count: int | None,
) -> list[Candidate]:
    """Return the candidates of the size to use, the best GPU first.

    Args:
        found: All candidates: sizes in ascending order, and in each the GPUs in the order of `find_targets`.
        sizing: The inputs of the estimates.
        ranking: The order of the policy.
        preferred: The GPU in use, which stays if the model fits on it.
        count: The number of GPUs in use, which stays too.
    """
    if ranking.compares_sizes:
        own = [each for each in in_use(found, preferred, count) if each.result.headroom <= Headroom.TIGHT]
        return ranking.choose(own or found, sizing)
    return choose(found, sizing, preferred, count, ordered=keeps_order(ranking, sizing))


def keeps_order(ranking: Ranking, sizing: Sizing) -> bool:
    """Return whether GPUs keep the order of `find_targets`: their memory is unknown, or the spec lists several without a policy."""
    accelerator = ranking.accelerator
    listed = any(len(given or ()) > 1 for given in (accelerator.architectures, accelerator.products))
    return sizing.options is None or (listed and ranking.policy is None)


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
    others = sorted(
        (each for kind, each in by_kind.items() if kind != kind_of(chosen)),
        key=lambda each: (
            group_of(each.result.headroom),
            each.target.rank,
            ranking.key(each.target, each.shape.count),
            each.shape.count,
        ),
    )
    ordered = [*([mine] if mine is not None else ()), *others]
    entries = (_entry(each.target, each.shape.count, _why(each, mine, sizing, ranking)) for each in ordered)
    listed = list({(entry.gpu, entry.verdict): entry for entry in entries}.values())
    names = {gpu_name(each.target) for each in by_kind.values()}
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


def _entry(target: Target, count: int, verdict: str) -> GPUCandidate:
    return GPUCandidate(gpu=f"{count} x {gpu_name(target)}"[:TEXT_LIMIT], count=count, verdict=verdict[:TEXT_LIMIT])


def gpu_name(target: Target) -> str:
    """Return the name of a GPU, MIG slice or shared GPU in messages."""
    return _name(target.title, target.pool)


def _name(title: str, pool: Pool) -> str:
    name = f"{pool.mig_profile} of {title}" if pool.mig_profile else title
    if not pool.shared:
        return name
    return f"{name}, shared by {pool.time_slices} Pods" if pool.time_slices else f"{name}, shared by Pods"


def _why(each: Candidate, chosen: Candidate | None, sizing: Sizing | None, ranking: Ranking) -> str:
    made, headroom = each.result.made, each.result.headroom
    provider = each.target.pool.provider
    about = "; ".join(filter(None, (ranking.about(each.target), f"{provider} would add a node" if provider else "")))
    also = f"; {about}" if about else ""
    if each is chosen:
        return f"chosen{also}"
    if headroom is Headroom.NONE:
        return f"does not fit: {made.limit}"
    if headroom is Headroom.UNKNOWN:
        return f"unknown whether the model fits{_when_busy(each.target, ranking)}{also}"
    if headroom is Headroom.TIGHT:
        return f"may not fit: {made.limit}"
    if headroom is Headroom.SHORT:
        return f"fits only a context of {each.result.length} tokens{also}"
    if headroom is Headroom.FEW:
        return f"holds only {each.result.held or 0:.1f} of the requests wanted{also}"
    if busy := _when_busy(each.target, ranking):
        return f"fits{busy}{also}"
    if about:
        return f"fits{also}"
    if chosen is not None and each.shape.count > chosen.shape.count:
        return "fits, but more of them are needed"
    family = ranking.gpus.architectures.get(each.target.architecture or "")
    if each.target.pool.shared:
        return "fits, but nothing isolates the memory of the Pods that share it"
    if family is not None and family.unified_memory:
        return "fits, but shares its memory with the CPU"
    if ranking.policy is AcceleratorPolicy.MOST_CAPABLE:
        return "fits, but is less capable"
    if chosen is not None and sizing is not None and sizing.is_native(chosen.target.pool) and not sizing.is_native(each.target.pool):
        return "fits, but does not compute in the format of the weights"
    if chosen is not None and (each.target.pool.memory_mebibytes or 0) > (chosen.target.pool.memory_mebibytes or 0):
        return "fits, but is larger than needed"
    return "fits, but comes later in the order of GPUs"


def _when_busy(target: Target, ranking: Ranking) -> str:
    """Return that too few GPUs are free, as the continuation of a verdict; empty if enough are free, or if unknown."""
    if target.rank is not Rank.WAITING or target.pool.provider is not None:
        return ""
    if not target.free:
        return ", but none is free" if target.free == 0 else ", but too few are free for all replicas"
    return f", but there is room for only {target.free} of {max(ranking.replicas, 1)} replicas"

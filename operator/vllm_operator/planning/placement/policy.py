"""The policy for GPUs: in which order those are taken on which the model fits, and what is said about the others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllm_operator.api.plan import GPUCandidate
from vllm_operator.api.spec import AcceleratorPolicy, AcceleratorSpec
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.catalog.prices import Prices
from vllm_operator.catalog.rules import Severity
from vllm_operator.planning.inventory.pools import Inventory, Pool
from vllm_operator.planning.notes import Note
from vllm_operator.planning.placement.shortage import Rejection, why_rejected
from vllm_operator.planning.placement.sizing import Candidate, Room, Sizing, choose, in_use, size_of
from vllm_operator.planning.placement.target import InUse, Target, in_use_of
from vllm_operator.text.wording import count as counted

CANDIDATES_LIMIT = 16
"""Kinds of GPUs that a plan lists."""
TEXT_LIMIT = 200
"""Characters of a reason."""
USEFUL = ((Room.WHOLE, Room.SHORTENED), (Room.FEW,), (Room.SHORT,), (Room.TIGHT,), (Room.UNKNOWN,))
"""How well a model may fit, the best first. A candidate comes before all candidates of a later group."""
Kind = tuple[str, str | None, str]
"""GPUs that are alike: title, MIG profile and resource."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What the order of GPUs depends on. `policy` is None if the spec has none."""

    policy: AcceleratorPolicy | None
    gpus: GPUs
    prices: Prices
    inventory: Inventory

    @property
    def compares_sizes(self) -> bool:
        """Whether a GPU of which more are needed may come before one of which fewer are."""
        return self.policy not in (None, AcceleratorPolicy.SMALLEST_THAT_FITS)

    def price(self, pool: Pool, count: int) -> float | None:
        """The price of a replica per hour; None if unknown."""
        one = self.prices.of(pool.product, pool.mig_profile)
        return None if one is None else one * count

    def free(self, pool: Pool, count: int) -> int | None:
        """How many replicas the free devices of a pool hold; None if it is unknown what is free."""
        return self.inventory.free(pool, count)

    def key(self, target: Target, count: int) -> tuple[object, ...]:
        """The place of a GPU in the order of the policy, apart from what its memory decides."""
        pool = target.pool
        match self.policy:
            case AcceleratorPolicy.MOST_CAPABLE:
                return (self.gpus.rank(pool.architecture), -(pool.memory_mebibytes or 0), count)
            case AcceleratorPolicy.LEAST_COST:
                price = self.price(pool, count)
                return (price is None, price or 0.0)
            case AcceleratorPolicy.MOST_FREE:
                free = self.free(pool, count)
                return (free is None, -(free or 0))
            case _:
                return ()

    def order(self, targets: Iterable[Target], preferred: InUse | None) -> tuple[Target, ...]:
        """Order GPUs for a model of unknown size: the one in use first, and MIG slices last."""

        def place(target: Target) -> tuple[object, ...]:
            other = preferred is not None and preferred != in_use_of(target.pool)
            return (target.rank, other, target.pool.mig_profile is not None, self.key(target, target.count))

        return tuple(sorted(targets, key=place))

    def choose(self, candidates: Sequence[Candidate], sizing: Sizing) -> list[Candidate]:
        """Return the candidates of the size to use, the best GPU first. Of each kind of GPU the smallest size that fits is compared."""
        for rooms in USEFUL:
            smallest: dict[Kind, Candidate] = {}
            for each in candidates:
                kind = kind_of(each.target)
                if each.judgement.room not in rooms:
                    continue
                if kind not in smallest or (Room.FEW in rooms and (each.judgement.held or 0) > (smallest[kind].judgement.held or 0)):
                    smallest[kind] = each
            if smallest:
                ranked = sorted(smallest.values(), key=lambda each: self._place(each, sizing))
                same = [each for each in ranked if each.shape == ranked[0].shape]
                return [*same, *(each for each in candidates if each.shape == ranked[0].shape and each not in same)]
        largest = candidates[-1].shape
        return [each for each in candidates if each.shape == largest]

    def _place(self, candidate: Candidate, sizing: Sizing) -> tuple[object, ...]:
        """The place of a candidate that fits: GPUs that are there first; where the policy sees no difference, the smallest."""
        count, target = candidate.shape.count, candidate.target
        return (target.rank, self.key(target, count), count, size_of(candidate, sizing))

    def about(self, target: Target, count: int) -> str:
        """What the policy says about a GPU; empty without a policy."""
        match self.policy:
            case AcceleratorPolicy.LEAST_COST:
                price = self.price(target.pool, count)
                return "no price is known" if price is None else f"{price:.2f} per hour"
            case AcceleratorPolicy.MOST_FREE if target.pool.provider is None:
                free = self.free(target.pool, count)
                return "it is unknown what is free" if free is None else f"room for {counted(free, 'replica')}"
            case _:
                return ""

    def notes(self, chosen: Target) -> list[Note]:
        """What the user should know about the policy."""
        pool, text = chosen.pool, ""
        if self.policy is AcceleratorPolicy.LEAST_COST and self.price(pool, 1) is None:
            name = f"{pool.product}-MIG-{pool.mig_profile}" if pool.mig_profile else pool.product or "its product"
            text = (
                "spec.accelerator.policy is LeastCost, but no GPU on which the model fits has a price, so the smallest is used. Add "
                f"{name} to the ConfigMap with prices."
            )
        if self.policy is AcceleratorPolicy.MOST_FREE and self.free(pool, chosen.count) is None:
            text = (
                "spec.accelerator.policy is MostFree, but it is unknown which GPUs are free: the operator may not list the Pods of all "
                "namespaces, or the GPUs are for ResourceClaims. The smallest GPU that fits is used."
            )
        return [Note(Severity.RISK, text)] if text else []


def choose_candidates(
    found: Sequence[Candidate],
    sizing: Sizing,
    ranking: Ranking,
    accelerator: AcceleratorSpec,
    preferred: InUse | None,
    count: int | None,
) -> list[Candidate]:
    """Return the candidates of the size to use, the best GPU first.

    Args:
        found: All candidates: sizes in ascending order, and in each the GPUs in the order of `find_targets`.
        sizing: How they were judged.
        ranking: The order of the policy.
        accelerator: The GPUs in the spec.
        preferred: The GPU in use, which stays if the model fits on it.
        count: The number of GPUs in use, which stays too.
    """
    if ranking.compares_sizes:
        own = [each for each in in_use(found, preferred, count) if each.judgement.room <= Room.TIGHT]
        return ranking.choose(own or found, sizing)
    listed = any(len(given or ()) > 1 for given in (accelerator.architectures, accelerator.products))
    ordered = sizing.options is None or (listed and ranking.policy is None)
    return choose(found, sizing, preferred, count, ordered=ordered)


def kind_of(target: Target) -> Kind:
    """GPUs that are alike for a user."""
    return target.title, target.pool.mig_profile, target.pool.resource


def describe_candidates(
    chosen: Target, best: Sequence[Candidate], found: Sequence[Candidate], rejections: Iterable[Rejection], ranking: Ranking
) -> list[GPUCandidate]:
    """List each kind of GPU once: the chosen one, those on which the model fits, those on which it does not, those that are not allowed."""
    by_kind: dict[Kind, Candidate] = {}
    for each in sorted([*best, *found], key=_nearness):
        by_kind.setdefault(kind_of(each.target), each)
    mine = next((each for each in best if each.target == chosen), None)
    if mine is not None:
        by_kind[kind_of(chosen)] = mine
    others = sorted(
        (each for kind, each in by_kind.items() if kind != kind_of(chosen)),
        key=lambda each: (
            _group(each.judgement.room),
            each.target.rank,
            ranking.key(each.target, each.shape.count),
            each.shape.count,
        ),
    )
    entries = (_entry(each.target, each.shape.count, _why(each, mine, ranking)) for each in ([mine] if mine is not None else []) + others)
    listed = list({(entry.gpu, entry.verdict): entry for entry in entries}.values())
    names = {_name(each.target.title, each.target.pool) for each in by_kind.values()}
    for rejection in sorted(rejections, key=lambda each: (-each.obstacle, each.pool.nodes, each.pool.resource)):
        gpu = _name(ranking.gpus.title(rejection.pool.product, rejection.pool.architecture), rejection.pool)
        if gpu not in names:
            names.add(gpu)
            listed.append(GPUCandidate(gpu=gpu[:TEXT_LIMIT], verdict=why_rejected(rejection)[:TEXT_LIMIT]))
    return listed[:CANDIDATES_LIMIT] if len(listed) > 1 else []


def _nearness(candidate: Candidate) -> tuple[int, int, int]:
    """Of one kind of GPU, the smallest size that fits comes first; if none fits, the largest."""
    room, count = candidate.judgement.room, candidate.shape.count
    return _group(room), candidate.target.rank, -count if room is Room.NONE else count


def _group(room: Room) -> int:
    return next((place for place, rooms in enumerate(USEFUL) if room in rooms), len(USEFUL))


def _entry(target: Target, count: int, verdict: str) -> GPUCandidate:
    return GPUCandidate(gpu=f"{count} x {_name(target.title, target.pool)}"[:TEXT_LIMIT], count=count, verdict=verdict[:TEXT_LIMIT])


def _name(title: str, pool: Pool) -> str:
    return f"{pool.mig_profile} of {title}" if pool.mig_profile else title


def _why(each: Candidate, chosen: Candidate | None, ranking: Ranking) -> str:
    """Why a GPU was chosen, or why not."""
    made, room = each.judgement.made, each.judgement.room
    provider = each.target.pool.provider
    about = "; ".join(filter(None, (ranking.about(each.target, each.shape.count), f"{provider} would add a node" if provider else "")))
    also = f"; {about}" if about else ""
    if each is chosen:
        return f"chosen{also}"
    if room is Room.NONE:
        return f"does not fit: {made.limit}"
    if room is Room.UNKNOWN:
        return f"unknown whether the model fits{also}"
    if room is Room.TIGHT:
        return f"may not fit: {made.limit}"
    if room is Room.SHORT:
        return f"fits only a context of {each.judgement.length} tokens{also}"
    if room is Room.FEW:
        return f"holds only {each.judgement.held or 0:.1f} of the requests wanted{also}"
    if each.target.rank == 1:
        return f"fits, but too few are free for all replicas{also}"
    if about:
        return f"fits{also}"
    if chosen is not None and each.shape.count > chosen.shape.count:
        return "fits, but more of them are needed"
    family = ranking.gpus.architectures.get(each.target.architecture or "")
    if family is not None and family.unified_memory:
        return "fits, but shares its memory with the CPU"
    if chosen is not None and (each.target.pool.memory_mebibytes or 0) > (chosen.target.pool.memory_mebibytes or 0):
        return "fits, but is larger than needed"
    return "fits, but comes later in the order of GPUs"

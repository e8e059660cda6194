"""What a plan says about the choice of its GPU: which GPUs were free, what is unknown, and that Pods share the GPU."""

from collections.abc import Sequence

from vllm_operator.api.spec import AcceleratorPolicy
from vllm_operator.catalog.rules import Severity
from vllm_operator.planning.inventory.pools import Pool
from vllm_operator.planning.notes import Note
from vllm_operator.planning.placement.policy import Ranking, gpu_name, group_of, kind_of
from vllm_operator.planning.placement.shares import notes_about_sharing
from vllm_operator.planning.placement.sizing import Candidate, Room, Sizing
from vllm_operator.planning.placement.target import Rank
from vllm_operator.text.wording import count as counted


def notes_about_choice(
    chosen: Candidate, compared: Sequence[Candidate], sizing: Sizing | None, ranking: Ranking, name: str, *, kept: bool
) -> list[Note]:
    """Return what the user should know about the choice.

    Args:
        chosen: The GPU of the plan.
        compared: All GPUs and sizes that were judged.
        sizing: How they were judged; None if they were not.
        ranking: The order of the GPUs.
        name: Name of the model.
        kept: The GPU was in use before.
    """
    notes = _about_policy(chosen, ranking)
    if not kept:
        notes += _about_capacity(chosen, compared, sizing, ranking)
    if sizing is not None and sizing.model is None and len({kind_of(each.target) for each in compared}) > 1:
        text = (
            f"The sizes of {name} are unknown, so the operator cannot tell on which GPUs it fits, and takes the first in its order. To "
            "choose other GPUs, set spec.accelerator.products and spec.accelerator.count."
        )
        notes.append(Note(Severity.INFO, text))
    return notes + notes_about_sharing(chosen.target)


def _about_policy(chosen: Candidate, ranking: Ranking) -> list[Note]:
    """That the policy could not decide."""
    if ranking.policy is not AcceleratorPolicy.MOST_FREE or chosen.target.free is not None:
        return []
    unknown = chosen.judgement.room is Room.UNKNOWN
    instead = "The first in the order of GPUs is used" if unknown else "The smallest GPU that fits is used"
    text = (
        "spec.accelerator.policy is MostFree, but it is unknown which GPUs are free: the Pods (with dynamic resource allocation, the "
        "ResourceClaims) of all namespaces could not be listed. `vllm-operator plan --nodes` reads them from the file. "
        f"{instead}."
    )
    return [Note(Severity.RISK, text)]


def _about_capacity(chosen: Candidate, compared: Sequence[Candidate], sizing: Sizing | None, ranking: Ranking) -> list[Note]:
    """That other GPUs were not free, or that Pods must wait for these."""
    target, replicas = chosen.target, max(ranking.replicas, 1)
    if target.rank is Rank.WAITING and target.pool.provider is None and target.free is not None:
        return [Note(Severity.RISK, _waiting(chosen, compared, replicas))]
    first = _passed_over(chosen, compared, sizing, ranking)
    if first is None:
        return []
    name, product = gpu_name(first.target), _product(first.target.pool)
    if target.pool.provider is not None:
        text = f"When this plan was made, {_shortage(first, replicas)}, so it is for a node that {target.pool.provider} would add."
    else:
        room = f", which had room for {counted(target.free, 'replica')}" if target.free is not None else ""
        text = f"{name} comes first, but when this plan was made, {_shortage(first, replicas)}. So it uses {gpu_name(target)}{room}."
        if product is not None:
            text += f" To wait for {name} instead, set spec.accelerator.products to [{product}]."
    return [Note(Severity.INFO, text)]


def _waiting(chosen: Candidate, compared: Sequence[Candidate], replicas: int) -> str:
    """That Pods wait for a GPU, and what the user can do."""
    some = "Some Pods wait" if chosen.target.free else "Pods wait"
    fitting = (each for each in compared if group_of(each.judgement.room) == group_of(chosen.judgement.room))
    added = next((pool for each in fitting if (pool := each.target.pool).provider is not None and pool.product is not None), None)
    text = (
        f"When this plan was made, {_shortage(chosen, replicas)}, and neither was another GPU on which the model fits. {some} until there "
        "are enough. Add nodes, or scale down what uses these GPUs"
    )
    if added is None:
        return f"{text}."
    return f"{text}, or set spec.accelerator.products to [{added.product}], of which {added.provider} would add a node."


def _passed_over(chosen: Candidate, compared: Sequence[Candidate], sizing: Sizing | None, ranking: Ranking) -> Candidate | None:
    """The GPU that would have been chosen if it were free; None if this is the chosen one, or if the sizes are unknown."""
    if sizing is None or chosen.judgement.room is Room.UNKNOWN:
        return None
    places = {id(each): place for place, each in enumerate(ranking.preferred_order(compared, sizing))}
    mine = next((places[id(each)] for each in compared if each.target == chosen.target and each.shape == chosen.shape), 0)
    busy = [
        each
        for each in compared
        if each.target.rank is Rank.WAITING
        and each.target.pool.provider is None
        and each.target.free is not None
        and group_of(each.judgement.room) == group_of(chosen.judgement.room)
        and (places[id(each)] < mine or (chosen.target.pool.provider is not None and kind_of(each.target) == kind_of(chosen.target)))
    ]
    return min(busy, key=lambda each: places[id(each)], default=None)


def _shortage(candidate: Candidate, replicas: int) -> str:
    """How many replicas the free devices hold, as a clause."""
    target = candidate.target
    count, free = target.count, target.free or 0
    if free:
        return f"{gpu_name(target)} had room for only {free} of {replicas} replicas"
    if count > 1:
        return f"no node had {count} free {gpu_name(target)}"
    return f"no {gpu_name(target)} was free"


def _product(pool: Pool) -> str | None:
    """The value of spec.accelerator.products that means these GPUs, and no others."""
    if pool.product is None:
        return None
    return f"{pool.product}-MIG-{pool.mig_profile}" if pool.mig_profile else pool.product

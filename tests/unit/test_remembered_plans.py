"""What the operator keeps in memory of the plans of all objects."""

from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.runtime.plan_revisions import PlanRevisions


async def test_remembered_plans_share_memory_and_a_changed_copy_of_one_leaves_the_others_alone() -> None:
    bench = Bench()
    await Fleet(bench).serve()
    plan = bench.plan()
    revisions = PlanRevisions(bench.cluster, count=lambda verb, kind: None)
    first, second = (revisions._with_shared_parts(plan.model_copy()) for _ in range(2))
    assert first.model_fields_set is second.model_fields_set
    assert first == second == plan
    unset = next(name for name in type(plan).model_fields if name not in plan.model_fields_set)
    changed = first.model_copy(update={unset: None})
    assert unset in changed.model_fields_set
    assert first == second == plan
    assert second.model_dump(exclude_unset=True) == plan.model_dump(exclude_unset=True)

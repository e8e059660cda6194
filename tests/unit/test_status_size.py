"""A status stays small, whatever the plan: it is written often, and a person reads it."""

import json
from pathlib import Path

import pytest
import yaml

from support import observations as o
from support.describe import describe
from vllm_operator.api.plan import Plan
from vllm_operator.logs.state import CacheEvidence, Stage, StartupState
from vllm_operator.status.report import report

CASES = Path(__file__).parent.parent / "golden" / "cases"
PLANS = {
    path.parent.name: content["plan"]
    for path in sorted(CASES.glob("*/plan.yaml"))
    if (content := yaml.safe_load(path.read_text("utf-8")))["plan"]
}
SAME_EVERYWHERE = {
    "catalogVersion": "0.1.0",
    "cacheKey": "v0.20.1-sm90-h200-tp8-a99b68c0",
    "toolsImage": "registry.example/vllm-operator:1",
}
LINES = 45
"""Lines of `kubectl describe` above the events, at most, without those of the spec."""
BYTES = 4096
"""Of a status as JSON, while the engine serves."""


@pytest.mark.parametrize("name", PLANS)
def test_the_summary_of_a_plan_and_the_whole_status_are_small(name: str) -> None:
    plan = Plan.model_validate({**SAME_EVERYWHERE, **PLANS[name]})
    seen = tuple((choice.component, f"SOME_{choice.backend}") for choice in plan.backends[:1])
    entered = tuple((stage, o.at(31 * number)) for number, stage in enumerate(Stage))
    state = StartupState(stage=Stage.READY, stage_since=o.at(0), cache=CacheEvidence(misses=3), observed_backends=seen, entered=entered)
    observation = o.observe(o.ready_pod(since=0, ready=500), states={("vllm-a-x1", 0): state}, outcome=o.outcome(plan=plan), now=o.at(501))
    status = report(observation).status
    assert status.cache is not None
    assert len((page := describe(status, spec={})).splitlines()) <= LINES, page
    assert len(json.dumps(status.to_json())) <= BYTES

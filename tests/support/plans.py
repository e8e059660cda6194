"""Planning in one call, for tests."""

from collections.abc import Mapping
from typing import Any

from support.gpus import inventory_of
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.loader import Catalog, load_catalog
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.planner import plan


def known() -> Catalog:
    return load_catalog()


def deployment(
    uri: str = "hf://meta-llama/Llama-3.1-8B-Instruct",
    *,
    annotations: Mapping[str, str] | None = None,
    generation: int = 1,
    model: Mapping[str, Any] | None = None,
    **spec: Any,
) -> VLLMDeployment:
    """A VLLMDeployment on vLLM 0.20.1, with these fields of the spec."""
    content = {"engine": {"version": "0.20.1"}, **spec, "model": {"uri": uri, **(model or {})}}
    metadata = {"name": "demo", "generation": generation, "annotations": dict(annotations or {})}
    return VLLMDeployment.parse({"metadata": metadata, "spec": content})


def planned(
    resource: VLLMDeployment, *nodes: dict[str, Any], slices: tuple[dict[str, Any], ...] = (), pinned: Plan | None = None, **options: Any
) -> Outcome:
    return plan(resource, inventory_of(*nodes, slices=slices), known(), pinned=pinned, **options)


def made(resource: VLLMDeployment, *nodes: dict[str, Any], **options: Any) -> Plan:
    """The plan; an assertion fails if there is none."""
    outcome = planned(resource, *nodes, **options)
    assert outcome.plan is not None, (outcome.accepted.message, outcome.planned.message)
    return outcome.plan


def refusal(resource: VLLMDeployment, *nodes: dict[str, Any], **options: Any) -> tuple[str, str]:
    """Reason and message of what stands against a plan."""
    outcome = planned(resource, *nodes, **options)
    assert outcome.plan is None
    assert str(outcome.planned.status) == "False"
    verdict = outcome.accepted if str(outcome.accepted.status) == "False" else outcome.planned
    return verdict.reason, verdict.message

"""What a status says about the plan and the caches, wherever it says it."""

from collections.abc import Callable
from typing import Any

from vllm_operator.api.conditions import FALSE, PLAN_DRIFTED, READY, REFUSALS, TRUE, UNKNOWN, Verdict, find_condition, without_link
from vllm_operator.api.reading import Manifest
from vllm_operator.api.status import VLLMDeploymentStatus


def plan_verdict(status: VLLMDeploymentStatus | Manifest) -> Verdict:
    """Why there is no plan (False), how it differs from a new one or what it is (True); Unknown before it is made."""
    status = _parsed(status)
    ready, drifted = (find_condition(status.conditions, type) for type in (READY, PLAN_DRIFTED))
    if ready is not None and ready.reason in REFUSALS:
        return Verdict(FALSE, ready.reason, without_link(ready.message))
    if drifted is not None:
        return Verdict(TRUE, drifted.reason, without_link(drifted.message))
    return Verdict(TRUE, "Planned", status.plan or "") if status.revision is not None else Verdict(UNKNOWN, "", "")


def cache_verdict(status: VLLMDeploymentStatus | Manifest) -> Verdict:
    """Reason and message about the caches; empty if nothing is said about them."""
    status = _parsed(status)
    cache, ready = status.cache, find_condition(status.conditions, READY)
    if cache is None:
        return Verdict(UNKNOWN, "", "")
    said = without_link(ready.message) if ready is not None and ready.reason == cache.reason else ""
    return Verdict(FALSE if cache.reason else TRUE, cache.reason or "", cache.message or said)


def has_plan(status: str = "True", reason: str = "") -> Callable[[Manifest], bool]:
    """A predicate for `wait_for`: the verdict about the plan is this one."""

    def check(resource: Manifest) -> bool:
        found = plan_verdict(resource)
        return found.status == status and reason in ("", found.reason)

    return check


def has_cache(reason: str) -> Callable[[Manifest], bool]:
    """A predicate for `wait_for`: the caches have this reason."""
    return lambda resource: cache_verdict(resource).reason == reason


def _parsed(status: VLLMDeploymentStatus | Manifest) -> VLLMDeploymentStatus:
    if isinstance(status, VLLMDeploymentStatus):
        return status
    content: Any = status.get("status") or {}
    return VLLMDeploymentStatus.model_validate(content)

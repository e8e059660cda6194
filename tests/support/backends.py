"""Choosing backends in one call, for tables of tests."""

from functools import cache
from typing import Any

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.catalog.models import Models, load_models
from vllm_operator.catalog.rules import Rules, load_rules
from vllm_operator.catalog.versions import Versions, load_versions
from vllm_operator.planning.backends import BackendDecision, choose_backends
from vllm_operator.planning.facts import resolve_facts
from vllm_operator.planning.outcome import Verdict
from vllm_operator.planning.situation import describe_situation
from vllm_operator.planning.version import resolve_version


@cache
def knowledge() -> tuple[Versions, Models, Rules]:
    """What ships with the operator, read once."""
    return load_versions(), load_models(), load_rules()


def decide(
    uri: str,
    version: str,
    architecture: str | None,
    *,
    engine: dict[str, Any] | None = None,
    allow_known_bad: bool = False,
    facts: dict[str, Any] | None = None,
    **spec: Any,
) -> BackendDecision:
    """Choose the backends for a model on a GPU with a version of vLLM; the rest is as in a spec."""
    versions, models, rules = knowledge()
    model = {"uri": uri} if facts is None else {"uri": uri, "facts": facts}
    parsed = VLLMDeploymentSpec.model_validate({"model": model, "engine": {**(engine or {}), "version": version}, **spec})
    resolved = resolve_version(parsed.engine, versions)
    assert not isinstance(resolved, Verdict)
    known = resolve_facts(parsed.model, models)
    situation = describe_situation(parsed, resolved, known, architecture)
    return choose_backends(resolved, situation, rules, parsed.backends, allow_known_bad=allow_known_bad)

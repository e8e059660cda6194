"""Choosing backends in one call, for tables of tests."""

from typing import Any

from vllm_operator.api.spec import BackendsSpec, VLLMDeploymentSpec
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.models import Models
from vllm_operator.catalog.notes import order
from vllm_operator.catalog.rule_matching import RuleInput
from vllm_operator.catalog.rules import Rules, load_rules
from vllm_operator.catalog.versions import Versions, load_versions
from vllm_operator.planning.engine.backends import BackendDecision, choose_backends
from vllm_operator.planning.engine.image import ResolvedVersion, resolve_version
from vllm_operator.planning.engine.rule_input import describe_rule_input
from vllm_operator.sizing.model_facts import resolve_facts


def knowledge() -> tuple[Versions, Models, Rules]:
    """What ships with the operator."""
    return load_versions(), load_catalog().models, load_rules()


def describe(
    uri: str,
    version: str,
    architecture: str | None,
    *,
    engine: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    **spec: Any,
) -> tuple[ResolvedVersion, RuleInput, BackendsSpec | None]:
    """Describe a model on a GPU with a version of vLLM in the terms of the rules; the rest is as in a spec."""
    versions, models, _ = knowledge()
    model = {"uri": uri} if facts is None else {"uri": uri, "facts": facts}
    parsed = VLLMDeploymentSpec.model_validate({"model": model, "engine": {**(engine or {}), "version": version}, **spec})
    resolved = resolve_version(parsed.engine, versions)
    assert isinstance(resolved, ResolvedVersion)
    return resolved, describe_rule_input(parsed, resolved, resolve_facts(parsed.model, models), architecture), parsed.backends


def decide(uri: str, version: str, architecture: str | None, *, allow_unsupported: bool = False, **spec: Any) -> BackendDecision:
    """Choose the backends for a model on a GPU with a version of vLLM; the rest is as in a spec."""
    resolved, situation, backends = describe(uri, version, architecture, **spec)
    model = uri.rpartition("/")[2]
    return choose_backends(resolved, situation, knowledge()[2], backends, model=model, allow_unsupported=allow_unsupported)


def chosen(decision: BackendDecision) -> dict[str, tuple[str, str]]:
    """The backend of each component, and who chose it."""
    return {choice.component: (choice.backend, choice.chosen_by) for choice in decision.choices}


def emitted(decision: BackendDecision) -> dict[str, str | None]:
    """The variables and flags that are set."""
    variables = {variable.name: variable.value for variable in decision.env}
    return {**variables, **{argument.name: argument.value for argument in decision.args}}


def notes_of(decision: BackendDecision) -> list[str]:
    """The texts of the notes, the most severe first."""
    return order(decision.notes)

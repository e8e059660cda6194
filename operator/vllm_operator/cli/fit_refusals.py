"""What the rules of the catalog refuse on a GPU, for `vllm-operator fit`: memory alone does not decide whether an engine starts."""

from collections.abc import Callable
from dataclasses import replace

from vllm_operator.api.spec import EngineSpec, ModelSpec, ParallelismSpec, Quantization, Toggle, VLLMDeploymentSpec
from vllm_operator.catalog.loader import Catalog
from vllm_operator.planning.engine.backends import ALLOW_ANYWAY, choose_backends
from vllm_operator.planning.engine.rule_input import describe_rule_input
from vllm_operator.planning.engine.shape import ParallelShape
from vllm_operator.planning.engine.version import ResolvedVersion, resolve_version
from vllm_operator.planning.model.facts import ModelFiles, resolve_facts

Refuse = Callable[[str | None, ParallelShape], str]
"""Returns why no engine starts on GPUs of an architecture in these sizes; empty if nothing is known against it."""


def find_refusals(name: str, version: str, form: str, files: ModelFiles, catalog: Catalog) -> Refuse:
    """Return what the rules say about a model.

    Args:
        name: `organisation/name`. Of other names the rules say nothing.
        version: The vLLM version. Of one that the catalog does not know the rules say nothing.
        form: The format of the weights by name.
        files: What was read from the model's files.
        catalog: The catalog.
    """
    try:
        spec = VLLMDeploymentSpec(model=ModelSpec(uri=f"hf://{name}"), engine=EngineSpec(version=version))
    except ValueError:
        return lambda architecture, parallel: ""
    resolved = resolve_version(spec.engine, catalog.versions)
    if not isinstance(resolved, ResolvedVersion):
        return lambda architecture, parallel: ""
    facts = resolve_facts(spec.model, catalog.models, files)
    if form in set(Quantization):
        facts = replace(facts, quantization=Quantization(form))

    def refuse(architecture: str | None, parallel: ParallelShape) -> str:
        expert = Toggle.ENABLED if parallel.expert else None
        sized = spec.model_copy(update={"parallelism": ParallelismSpec(tensor=parallel.tensor, expert=expert)})
        decision = choose_backends(resolved, describe_rule_input(sized, resolved, facts, architecture), catalog.rules, model=name)
        return decision.refusal.message.removesuffix(ALLOW_ANYWAY).strip() if decision.refusal is not None else ""

    return refuse

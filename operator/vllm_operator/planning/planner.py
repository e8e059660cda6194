"""From a VLLMDeployment and the GPUs of the cluster to a plan, or to the reason why there is none.

The steps: the vLLM version, the parallel sizes, the facts about the model, the GPU with the image that suits its
driver, the backends, the caches; then what the user sets himself replaces what was planned. Each step may end the
planning with a verdict. Equal input gives an equal plan.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_operator.api.conditions import Reason
from vllm_operator.api.labels import ALLOW_KNOWN_BAD_ANNOTATION, REPLAN_ANNOTATION
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import AcceleratorSpec, ModelSpec
from vllm_operator.api.status import ChosenBy, ConditionStatus, Plan, PlannedArgument, PlannedVariable
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.paths import MODEL_ROOT
from vllm_operator.planning.backends import BackendDecision, choose_backends
from vllm_operator.planning.cache import CachePlan, plan_cache
from vllm_operator.planning.facts import Facts, resolve_facts
from vllm_operator.planning.image import image_options
from vllm_operator.planning.outcome import Outcome, Verdict
from vllm_operator.planning.overrides import Overrides, check_names, drop_overridden, read_overrides
from vllm_operator.planning.pinning import is_in_force, keep_plan
from vllm_operator.planning.pod_template import PodTemplateError, check_pod_template, run_as_user
from vllm_operator.planning.pools import Inventory, Pool
from vllm_operator.planning.shape import Shape, resolve_shape
from vllm_operator.planning.situation import describe_situation
from vllm_operator.planning.target import Request, Target, choose_target
from vllm_operator.planning.version import ResolvedVersion, resolve_version

PORT = 8000
"""Port on which the engine listens; its probes and the Service expect it there."""
TEXT_LIMIT, NOTES_LIMIT, ENV_LIMIT, ARGS_LIMIT = 1024, 32, 128, 64
"""Bounds of a plan in the status."""
RESIZING_FLAGS = ("--quantization", "--cpu-offload-gb", "--hf-overrides", "--load-format")
"""Flags with which the weights on the GPU have another size than the files."""
ACCEPTED = Verdict(ConditionStatus.TRUE, Reason.VALID, "The spec can be understood.")


def plan(
    resource: VLLMDeployment,
    inventory: Inventory,
    catalog: Catalog,
    *,
    pinned: Plan | None = None,
    cache_generation: int = 0,
    model_config: Mapping[str, Any] | None = None,
) -> Outcome:
    """Plan one VLLMDeployment.

    Args:
        resource: The VLLMDeployment.
        inventory: The GPUs of the cluster.
        catalog: What is known.
        pinned: The plan in its status. It is returned as it is while the spec does not change and no new plan is
            asked for; with a changed spec its GPU is kept where that still fits.
        cache_generation: Raised each time a damaged cache was left behind.
        model_config: The content of the model's config.json, if it was read.
    """
    planner = _Planner(resource, inventory, catalog, pinned, cache_generation, model_config)
    fresh = planner.outcome()
    if pinned is None or not is_in_force(pinned, resource):
        return fresh
    kept = _with_generation(pinned, resource, catalog, cache_generation)
    return keep_plan(kept, fresh, _summary_of(kept, catalog))


@dataclass(frozen=True, slots=True)
class _Planner:
    """The arguments of `plan`, and the steps."""

    resource: VLLMDeployment
    inventory: Inventory
    catalog: Catalog
    pinned: Plan | None
    cache_generation: int
    model_config: Mapping[str, Any] | None

    def outcome(self) -> Outcome:
        """Plan anew."""
        spec = self.resource.spec
        try:
            check_pod_template(spec.pod_template)
        except PodTemplateError as error:
            return _not_accepted(Verdict(ConditionStatus.FALSE, Reason.INVALID_SPEC, f"{error}."))
        version = resolve_version(spec.engine, self.catalog.versions)
        if isinstance(version, Verdict):
            return _not_accepted(version)
        shape = resolve_shape(spec)
        if isinstance(shape, Verdict):
            return _not_accepted(shape)
        overrides = read_overrides(spec)
        facts = resolve_facts(spec.model, self.catalog.models, self.model_config)
        request = self._request(version, shape, facts, overrides)
        target = choose_target(request, self.inventory, self.catalog.gpus, self.catalog.images)
        if isinstance(target, Verdict):
            return Outcome(ACCEPTED, target, None)
        decision = self._decide(version, shape, facts, target)
        if decision.refusal is not None:
            return _not_accepted(decision.refusal)
        made = self._assemble(version, shape, target, decision, overrides)
        reason = Reason.RESOLVED if made.architecture else Reason.GPU_UNKNOWN
        return Outcome(ACCEPTED, Verdict(ConditionStatus.TRUE, reason, _summary_of(made, self.catalog)), made)

    def _insists(self) -> bool:
        return self.resource.metadata.annotations.get(ALLOW_KNOWN_BAD_ANNOTATION) == "true"

    def _request(self, version: ResolvedVersion, shape: Shape, facts: Facts, overrides: Overrides) -> Request:
        spec, images = self.resource.spec, self.catalog.images
        variable = images.compatibility_variable
        resized = any(flag in overrides.arguments for flag in RESIZING_FLAGS)
        return Request(
            accelerator=spec.accelerator or AcceleratorSpec(),
            count=shape.count,
            options=image_options(spec.engine, version, images),
            host_architectures=images.host_architectures if images.is_official(version.image) else (),
            forced=self._insists() or overrides.variables.get(variable) == "1",
            compatible=version.table is not None and version.table.knows_variable(variable),
            preferred=(self.pinned.architecture, self.pinned.product) if self._keeps_gpu() and self.pinned else None,
            weight_bytes=None if facts.weight_bytes is None or resized else facts.weight_bytes // shape.shards,
        )

    def _keeps_gpu(self) -> bool:
        token = self.resource.metadata.annotations.get(REPLAN_ANNOTATION)
        return self.pinned is not None and self.pinned.replan_token == token

    def _decide(self, version: ResolvedVersion, shape: Shape, facts: Facts, target: Target) -> BackendDecision:
        spec, parallel = self.resource.spec, shape.parallel
        situation = replace(
            describe_situation(spec, version, facts, target.architecture),
            tensor=parallel.tensor,
            pipeline=parallel.pipeline,
            data=parallel.data,
        )
        return choose_backends(version, situation, self.catalog.rules, spec.backends, allow_known_bad=self._insists())

    def _assemble(self, version: ResolvedVersion, shape: Shape, target: Target, decision: BackendDecision, overrides: Overrides) -> Plan:
        cache = self._cache(version, shape, target)
        env = _distinct([*decision.env, *_compatibility(target, self.catalog), *cache.env])
        args = [*self._arguments(version, shape, target), *decision.args]
        env, args, overridden = drop_overridden(env, args, overrides)
        # The more likely it is that somebody has to do something, the further to the front.
        notes = [
            *target.notes,
            *decision.notes,
            *check_names(overrides, version.table),
            *overridden,
            *shape.notes,
            *version.notes,
        ]
        return Plan(
            observed_generation=self.resource.metadata.generation,
            catalog_version=self.catalog.version,
            replan_token=self.resource.metadata.annotations.get(REPLAN_ANNOTATION),
            model=model_argument(self.resource.spec.model),
            image=target.fit.option.image,
            engine_version=version.version,
            distribution=version.distribution,
            architecture=target.architecture,
            product=target.pool.product,
            memory_mebibytes=target.pool.memory_mebibytes,
            resource=target.resource,
            count=target.count,
            node_requirements=list(target.requirements),
            cache_key=cache.key,
            cache_key_parts=list(cache.parts),
            backends=list(decision.choices),
            env=env[:ENV_LIMIT],
            args=args[:ARGS_LIMIT],
            notes=[note[:TEXT_LIMIT] for note in dict.fromkeys(notes)][:NOTES_LIMIT],
        )

    def _cache(self, version: ResolvedVersion, shape: Shape, target: Target) -> CachePlan:
        return plan_cache(
            self.catalog.caches,
            version=version.version,
            distribution=version.distribution,
            image=target.fit.option.image,
            architecture=target.architecture,
            product=target.pool.product,
            mig_profile=target.pool.mig_profile,
            parallel=shape.parallel,
            user=run_as_user(self.resource.spec.pod_template),
            generation=self.cache_generation,
        )

    def _arguments(self, version: ResolvedVersion, shape: Shape, target: Target) -> list[PlannedArgument]:
        """Flags that follow from the spec alone; one that this version does not know is left out."""
        model, parallel = self.resource.spec.model, shape.parallel
        wanted = [
            ("--port", str(PORT), "The probes and the Service expect the engine there."),
            ("--served-model-name", served_name(model), "Name that clients use."),
            ("--revision", model.revision, "From spec.model.revision."),
            ("--tensor-parallel-size", str(parallel.tensor) if parallel.tensor > 1 else None, "GPUs that share each layer."),
            ("--pipeline-parallel-size", str(parallel.pipeline) if parallel.pipeline > 1 else None, "Groups of layers."),
            ("--data-parallel-size", str(parallel.data) if parallel.data > 1 else None, "Copies of the model in one Pod."),
        ]
        args = [PlannedArgument(name=name, value=value, reason=reason) for name, value, reason in wanted if value is not None]
        if parallel.expert:
            args.append(PlannedArgument(name="--enable-expert-parallel", reason="From spec.parallelism.expert."))
        args += slice_arguments(target.pool, self.catalog.gpus)
        return [arg for arg in args if version.table is None or version.table.knows_flag(arg.name)]


def model_argument(model: ModelSpec) -> str:
    """Return the model as the engine takes it: a name on the hub, or the path where the claim is mounted."""
    scheme, _, rest = model.uri.partition("://")
    if scheme == "hf":
        return rest
    path = rest.partition("/")[2].strip("/")
    return f"{MODEL_ROOT}/{path}" if path else MODEL_ROOT


def served_name(model: ModelSpec) -> str | None:
    """Return the name to serve under, None where the engine's own choice is right."""
    if model.served_name is not None:
        return model.served_name
    scheme, _, rest = model.uri.partition("://")
    return None if scheme == "hf" else rest.rstrip("/")


def slice_arguments(pool: Pool, gpus: GPUs) -> list[PlannedArgument]:
    """Return the flags that a slice needs, because the engine takes it for the whole GPU when it picks its defaults."""
    if pool.mig_profile is None or pool.memory_mebibytes is None or pool.memory_mebibytes >= gpus.slices.large_memory_mebibytes:
        return []
    return [PlannedArgument(name=name, value=value, reason=gpus.slices.because) for name, value in gpus.slices.arguments]


def _compatibility(target: Target, catalog: Catalog) -> list[PlannedVariable]:
    if not target.fit.compatibility:
        return []
    reason = "The driver of the nodes is older than the CUDA of the image."
    return [PlannedVariable(name=catalog.images.compatibility_variable, value="1", reason=reason)]


def _distinct(variables: Iterable[PlannedVariable]) -> list[PlannedVariable]:
    """Keep the first of each name."""
    first: dict[str, PlannedVariable] = {}
    for variable in variables:
        first.setdefault(variable.name, variable)
    return list(first.values())


def _not_accepted(verdict: Verdict) -> Outcome:
    planned = Verdict(ConditionStatus.FALSE, Reason.NOT_ACCEPTED, f"Nothing is planned because the spec is not accepted: {verdict.message}")
    return Outcome(verdict, planned, None)


def _with_generation(pinned: Plan, resource: VLLMDeployment, catalog: Catalog, generation: int) -> Plan:
    """The pinned plan with the cache of this generation: a damaged cache is left behind without planning anew."""
    parts = {part.name: part.value for part in pinned.cache_key_parts}
    shape = resolve_shape(resource.spec)
    if parts.get("generation") in (None, str(generation)) or isinstance(shape, Verdict):
        return pinned
    cache = plan_cache(
        catalog.caches,
        version=pinned.engine_version,
        distribution=pinned.distribution,
        image=pinned.image,
        architecture=pinned.architecture,
        product=pinned.product,
        mig_profile=None if parts.get("migProfile") in (None, "none") else parts["migProfile"],
        parallel=shape.parallel,
        user=run_as_user(resource.spec.pod_template),
        generation=generation,
    )
    return pinned.model_copy(update={"cache_key": cache.key, "cache_key_parts": list(cache.parts)})


def _summary_of(made: Plan, catalog: Catalog) -> str:
    """What was decided, for the condition."""
    parts = {part.name: part.value for part in made.cache_key_parts}
    profile = parts.get("migProfile", "none")
    what = f"{made.count} GPU" if profile == "none" else f"{made.count} MIG slice"
    what += ("" if made.count == 1 else "s") + ("" if profile == "none" else f" {profile}")
    where = catalog.gpus.title(made.product, made.architecture)
    engine = f"{made.distribution.value} {made.engine_version}" if made.engine_version else made.distribution.value
    chosen = [f"{c.component} {c.backend}" for c in made.backends if c.chosen_by is not ChosenBy.ENGINE]
    expected = [f"{c.component} {c.backend}" for c in made.backends if c.chosen_by is ChosenBy.ENGINE]
    kernels = ", ".join(chosen)
    if expected:
        kernels += f"{'; ' if chosen else ''}{', '.join(expected)} by vLLM's own choice"
    note = f" Note: {made.notes[0]}" if made.notes else ""
    more = f" ({len(made.notes) - 1} more in status.plan.notes)" if len(made.notes) > 1 else ""
    return f"Planned for {where}, {what} per replica, {engine}: {kernels or 'kernels are left to vLLM'}.{note}{more}"

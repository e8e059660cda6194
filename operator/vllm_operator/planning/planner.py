"""The planner: from a VLLMDeployment and the GPUs of the cluster to a plan, or the reason why there is none.

The steps are the vLLM version, the parallel sizes, the facts about the model, the GPU and the image that suits its driver, the
backends, and the caches. Then the settings of the user override the plan. Each step may end planning with a verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_operator.api.conditions import FALSE, TRUE, VALID_SPEC, Reason, Verdict
from vllm_operator.api.labels import ALLOW_UNSUPPORTED_ANNOTATION, REPLAN_ANNOTATION
from vllm_operator.api.plan import GPUCandidate, Plan
from vllm_operator.api.reading import read_integer
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import AcceleratorSpec, EngineSpec, ParallelismSpec
from vllm_operator.caches.artifacts import plan_artifact
from vllm_operator.caches.claims import about_unknown_size, plan_weights
from vllm_operator.caches.key import keyed_arguments, per_pod_notes, with_cache_key
from vllm_operator.catalog.caches import model_argument
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.models import Facts
from vllm_operator.catalog.notes import Note, Severity, order, say
from vllm_operator.catalog.versions import parse_release
from vllm_operator.inventory.nodes import read_instance_pools
from vllm_operator.inventory.pools import Inventory
from vllm_operator.planning import pinning
from vllm_operator.planning.engine import image, overrides, serving
from vllm_operator.planning.engine.adapters import check_adapters, plan_adapters
from vllm_operator.planning.engine.backends import BackendDecision, choose_backends
from vllm_operator.planning.engine.rule_input import describe_rule_input
from vllm_operator.planning.outcome import FreeGPUs, Outcome, not_accepted, summarize
from vllm_operator.planning.placement import explanations, fitting, groups, targets
from vllm_operator.planning.placement.policy import Ranking, describe_candidates, free_products, kind_of, pool_name
from vllm_operator.planning.placement.shortage import explain
from vllm_operator.planning.placement.targets import Candidate, Rank, Rejection, Request
from vllm_operator.planning.pod_template import SpecError, check_containers, check_pod_template, run_as_user, tolerations_of
from vllm_operator.pods.tools import TOOLS_IMAGE
from vllm_operator.sizing import model_facts
from vllm_operator.sizing.engine import GIB, MIB_PER_GIB, RESIZING_FLAGS, read_offload
from vllm_operator.sizing.estimate import predict_memory
from vllm_operator.sizing.model_facts import ModelFiles, ResolvedFacts
from vllm_operator.sizing.parallelism import Shape, resolve_shape

TEXT_LIMIT, NOTES_LIMIT, ENV_LIMIT, ARGS_LIMIT = 1024, 32, 128, 64  # limits of a plan


def plan(
    resource: VLLMDeployment,
    inventory: Inventory | Verdict,
    catalog: Catalog,
    *,
    pinned: Plan | None = None,
    cache_generation: int | None = None,
    files: ModelFiles = model_facts.NO_FILES,
    tools_image: str = TOOLS_IMAGE,
    standing: pinning.Standing = pinning.Standing.SETTLED,
    chooses_gpu_again: bool = False,
) -> Outcome:
    """Plan one VLLMDeployment.

    `inventory` has the GPUs of the cluster, or why they are unknown; the current plan does not need them. `pinned` is the current plan
    until the spec changes or a new plan is requested, which keeps its GPU if that still fits. Without `cache_generation`, the plan in force
    keeps its generation. `tools_image` is the operator's image, with its programs for Pods. If the Pods of a plan in force have no node
    (`standing`), it is compared with what is free. With `chooses_gpu_again` (the command `plan`), the GPU is chosen as for a new request.
    """
    in_force = pinning.is_in_force(pinned, resource)
    digest, moved = pinning.digest_of_spec(resource.spec), overrides.translate(resource)
    current = pinned.cache_generation if pinned is not None and in_force else 0
    generation = current if cache_generation is None else cache_generation
    kept = pinning.with_cache_generation(pinned, moved.resource, generation) if pinned is not None and in_force else None
    if kept is not None and resource.rolled_back_to is not None:
        return pinning.outcome_of_rollback(kept, resource.rolled_back_to, catalog.gpus, by_operator=resource.is_rolled_back_by_operator)
    if isinstance(inventory, Verdict):
        fresh = Outcome(VALID_SPEC, inventory, None)
    else:
        inventory = inventory.with_templates(read_instance_pools(catalog.instance_types, catalog.gpus))
        steps = _FreshPlan(
            resource=moved.resource,
            translation=moved,
            inventory=inventory,
            catalog=catalog,
            pinned=pinned,
            in_force=in_force,
            digest=digest,
            cache_generation=generation,
            files=files,
            tools_image=tools_image,
        )
        if in_force and chooses_gpu_again and inventory.used is not None and steps.knows_sizes:
            steps = replace(steps, again=True)
        if pinned is not None and in_force and standing in pinning.NEEDS_ROOM and (inventory.used is not None or inventory.hidden):
            fresh = steps.compared_with_free(pinned, is_open=standing is pinning.Standing.OPEN)
            if fresh.plan is not None and fresh.plan.chosen_again is not None:
                return fresh
        else:
            fresh = steps.outcome()
    if kept is None:
        return fresh
    return pinning.keep_plan(kept, fresh, catalog.gpus, resource.preset_change, is_preset_gone=resource.is_preset_gone)


@dataclass(frozen=True, slots=True)
class _Premises:
    """What is known before a GPU is chosen."""

    overrides: overrides.Overrides
    version: image.ResolvedVersion
    shape: Shape
    facts: ResolvedFacts
    sizing: fitting.Sizing
    weight_bytes: int | None
    """Size of the weight files; None if unknown."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """GPUs to choose from, the best first, among all `compared`; the context `length` to set; whether the operator chose the size."""

    premises: _Premises
    candidates: Sequence[Candidate]
    compared: Sequence[Candidate]
    rejections: Sequence[Rejection]
    length: int | None
    sized: bool = False


_Choice = tuple[_Chosen, Candidate, BackendDecision, Sequence[Note]]
"""Everything that a new plan is assembled from: the GPUs, the chosen one, its backends, and notes about names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FreshPlan:
    """The arguments of `plan`, and the steps to a new plan."""

    resource: VLLMDeployment
    translation: overrides.Translation
    inventory: Inventory
    catalog: Catalog
    pinned: Plan | None
    in_force: bool
    digest: str
    cache_generation: int
    files: ModelFiles
    tools_image: str
    again: bool = False
    """Whether to choose the GPU again, by what is free, although a plan is in force."""

    @property
    def _keeps_gpu(self) -> bool:
        return self.in_force and not self.again

    def outcome(self) -> Outcome:
        """Return the outcome of a new plan."""
        choice = self._choose()
        return choice if isinstance(choice, Outcome) else self._outcome_of(choice)

    def compared_with_free(self, pinned: Plan, *, is_open: bool) -> Outcome:
        """Return a new plan for another GPU if only that is free, and otherwise one that keeps the GPU. An open plan is to be replaced."""
        anew = replace(self, again=True)
        choice, inventory = anew._choose() if self.knows_sizes else None, self.inventory
        if choice is None or isinstance(choice, Outcome):
            return self.outcome()
        chosen, target, *_ = choice
        request, gpu = self._request(chosen.premises), pinning.gpu_in_use(pinned)
        size = Shape(chosen.premises.shape.parallel, pinned.count, nodes=pinned.nodes or 1)
        free = targets.free_for(gpu, size, request, inventory)
        if free is None:
            return self.outcome()
        rank = targets.rank_by_free(free, self.resource.spec.replicas, inventory)
        is_limited = rank is not Rank.FREE and request.accelerator.is_limited
        found = targets.find_others(request, inventory.with_own_in_use(), self.catalog) if is_limited else ()  # old Pods may serve there
        others = free_products(found, but=chosen.compared)
        is_better = bool(target.free) and target.rank < rank
        around = FreeGPUs(free, others, is_open, is_better)
        if not is_better and (targets.identity_of(target.pool), target.shape.count) != (gpu, pinned.count):
            return replace(self.outcome(), free=around)
        if not (is_better and is_open):
            return replace(anew._outcome_of(choice), free=around)
        before, when = self.catalog.gpus.title(pinned.product, pinned.architecture, pinned.mig_profile), explanations.time_of(inventory)
        enough, after = "enough" if target.rank is Rank.FREE else "some", pool_name(target.title, target.pool)
        return anew._outcome_of(choice, say("choice.again", before=before, when=when, enough=enough, after=after))

    @property
    def knows_sizes(self) -> bool:
        """Whether a new plan knows as much about the model as the pinned one, which may have read its files."""
        from_files = (model_facts.FROM_CONFIG, model_facts.FROM_WEIGHTS)
        known = self.pinned.model_facts if self.pinned is not None else ()
        return self.files.config is not None or all(fact.source not in from_files for fact in known)

    def _choose(self) -> Outcome | _Choice:
        """Choose GPU, size and backends, or return the outcome with the reason why no plan is possible."""
        try:
            premises = self._premises()
        except SpecError as error:
            premises = Verdict(FALSE, Reason.INVALID_SPEC, f"{error}.")
        if isinstance(premises, Verdict):
            return not_accepted(premises)
        refused = None if self._allows_unsupported else premises.sizing.refuse(self._shapes(premises)[0].parallel)
        if refused is not None:
            return not_accepted(Verdict(FALSE, Reason.UNSUPPORTED, f"{refused} {image.ALLOW_ANYWAY}"))
        chosen = self._sized(premises)
        if isinstance(chosen, Verdict):
            return Outcome(VALID_SPEC, chosen, None)
        premises = chosen.premises
        target, decision = self._best(premises, chosen.candidates)
        stored = plan_weights(self.resource, premises.weight_bytes)
        problem = groups.refuse_group(self.resource, target, premises.version, premises.overrides, stored, experts=premises.facts.experts)
        if problem is not None and not self._allows_unsupported:
            return not_accepted(Verdict(FALSE, Reason.UNSUPPORTED, problem))
        if decision.refusal is not None:
            return not_accepted(Verdict(FALSE, Reason.UNSUPPORTED, decision.refusal))
        about_names, refusal = overrides.check_names(premises.overrides, premises.version, self.catalog)
        if refusal is not None and not self._allows_unsupported:
            return not_accepted(Verdict(FALSE, Reason.UNSUPPORTED, f"{refusal} {image.ALLOW_ANYWAY}"))
        return chosen, target, decision, about_names

    def _outcome_of(self, choice: _Choice, chosen_again: str | None = None) -> Outcome:
        made = self._assemble(choice).model_copy(update={"chosen_again": chosen_again})
        reason = Reason.PLANNED if made.architecture else Reason.GPU_UNKNOWN
        return Outcome(VALID_SPEC, Verdict(TRUE, reason, summarize(made, self.catalog.gpus)), made, rivals=choice[2].rivals)

    def _premises(self) -> _Premises | Verdict:
        spec = self.resource.spec
        check_pod_template(spec.pod_template)
        check_containers(spec.pod_template)
        check_adapters(spec)
        given = overrides.read_overrides(spec)
        engine, forced = (spec.engine or EngineSpec()).model_copy(update={"image": given.image}), self._allows_unsupported
        version = image.resolve_version(engine, self.catalog.versions)
        images, resources = self.catalog.images, given.resources
        version = image.check_image(given.image, spec.model, version, images, resources=resources, forced=forced)
        if isinstance(version, Verdict):
            return version
        given = given.expanded(version.table)
        shape = resolve_shape(spec)
        if isinstance(shape, Verdict):
            return shape
        facts = model_facts.resolve_facts(spec.model, self.catalog.models, self.files, remembered=self._remembered())
        sizing, release = fitting.Sizing(None, None, (0, 0, 0), self.catalog, is_read=False), parse_release(version.version)
        if self._keeps_gpu and self.pinned is not None:  # the current plan keeps its size
            shape = pinning.pinned_shape(shape, self.pinned, spec)
        elif release is not None and not given.replaces_arguments:
            sizing = fitting.resolve_sizing(spec, given, release, facts, self.files, self.catalog)
        in_own_format = sizing.model if "--quantization" not in given.arguments else None
        weight_bytes = fitting.weight_bytes_of(spec.model, facts, self.files, self.catalog, in_own_format)
        return _Premises(given, version, shape, facts, sizing, weight_bytes)

    def _sized(self, premises: _Premises) -> _Chosen | Verdict:
        """Return the GPUs that fit, the best first, and the size for the best one; a verdict if none fits."""
        spec, sizing, request, ranking = self.resource.spec, premises.sizing, self._request(premises), self._ranking(premises)
        count, shapes = self._preferred.count if self._preferred is not None else None, self._shapes(premises)
        found, rejections = targets.find_candidates(request, shapes, self.inventory, self.catalog, in_use=count)
        if not found:
            message = explain(replace(request, count=shapes[0].count), self.inventory, rejections, self.catalog.gpus)
            return Verdict(FALSE, Reason.NO_MATCHING_GPU, message)
        if self._keeps_gpu:
            lengths = [each.value for each in (self.pinned.args if self.pinned else ()) if each.name == "--max-model-len"]
            return _Chosen(premises, found, (), (), read_integer(lengths[0]) or None if lengths else None)
        length = spec.sizing.context_length if spec.sizing else None
        if not sizing.can_judge:
            best = self._guessed(request, found, ranking)
            if isinstance(best, Verdict):
                return best
            sized = best[0].shape != premises.shape
            return _Chosen(replace(premises, shape=best[0].shape), best, found, rejections, length, sized)
        found = self._over_nodes(premises, request, found) or found
        best = ranking.choose(found, request.preferred, count)
        if all(each.result.headroom is fitting.Headroom.NONE for each in found) and sizing.certain and not self._allows_unsupported:
            others = targets.find_others(request, self.inventory, self.catalog)
            message = f"{explanations.explain_shortage(self.resource, best[0], sizing, others)} {image.ALLOW_ANYWAY}"
            return Verdict(FALSE, Reason.DOES_NOT_FIT, message)
        if sizing.lacks_room([each.result for each in found]) and not self._allows_unsupported:
            most = max(found, key=lambda each: (each.result.held or 0.0, -each.shape.count))
            others = targets.find_others(request, self.inventory, self.catalog)
            message = f"{explanations.explain_concurrency(self.resource, most, sizing, others)} {image.ALLOW_ANYWAY}"
            return Verdict(FALSE, Reason.DOES_NOT_FIT, message)
        sized = self._may_choose_size and best[0].shape != premises.shape
        return _Chosen(replace(premises, shape=best[0].shape), best, found, rejections, length, sized)

    def _over_nodes(self, premises: _Premises, request: Request, found: Sequence[Candidate]) -> list[Candidate]:
        """Return the GPUs of several nodes on which a model fits that surely fits on no single one; none if that is not allowed.

        Only GPUs with NVLink: a step on many GPUs without it takes long. The spec may ask for others.
        """
        is_too_large = premises.sizing.certain and all(each.result.headroom is fitting.Headroom.NONE for each in found)
        if not is_too_large or not self._may_choose_size or self._nodes is not None or self._allows_unsupported:
            return []
        shapes = premises.sizing.shapes_over_nodes(self.inventory)
        others = targets.find_candidates(request, shapes, self.inventory, self.catalog)[0] if shapes else []
        able = (each for each in others if each.result.headroom <= fitting.Headroom.SHORT)
        products = {name: self.catalog.gpus.product(name) for name in {each.pool.product for each in others}}
        return [each for each in able if (product := products[each.pool.product]) is not None and product.links == "NVLink"]

    @property
    def _nodes(self) -> int | None:
        return self.resource.spec.parallelism.nodes if self.resource.spec.parallelism is not None else None

    @property
    def _may_choose_size(self) -> bool:
        """Whether the spec leaves the number of GPUs open."""
        spec, accelerator = self.resource.spec, self.resource.spec.accelerator or AcceleratorSpec()
        fixed = (spec.parallelism is not None and spec.parallelism.sets_sizes) or accelerator.count is not None
        return not (fixed or accelerator.sliced or accelerator.uuids)

    def _shapes(self, premises: _Premises) -> list[Shape]:
        """Return the sizes to choose from, in ascending order. For an unknown model of known weight, they are any that models can have."""
        if self._may_choose_size and (self._nodes or 1) > 1:
            return premises.sizing.shapes_over_nodes(self.inventory, self._nodes) or [premises.shape]
        known = premises.sizing.is_read and premises.weight_bytes is not None
        return (premises.sizing.shapes(self.inventory, any_model=known) if self._may_choose_size else []) or [premises.shape]

    def _guessed(self, request: Request, found: Sequence[Candidate], ranking: Ranking) -> Sequence[Candidate] | Verdict:
        """Return the GPUs for an unknown model, the best first: the smallest for the weights, else those in the spec or in use."""
        asked, weights, name = request.accelerator, request.weight_bytes, explanations.short_name(self.resource)
        decided = asked.products or asked.architectures or asked.policy or request.preferred or len({kind_of(each) for each in found}) == 1
        if weights is None and not decided and ranking.sizing.is_read:
            return Verdict(FALSE, Reason.MODEL_SIZE_UNKNOWN, say("size.unknown", name=name))
        ordered = ranking.order(found, request.preferred, smallest=weights is not None)
        is_new = ranking.sizing.is_read and ranking.sizing.model is None
        if weights is not None and self._may_choose_size and ordered[0].rank is Rank.TOO_SMALL and is_new:
            ordered.sort(key=lambda each: -(each.pool.memory_mebibytes or 0) * each.shape.count)
            held, memory = weights / GIB, (ordered[0].pool.memory_mebibytes or 0) * ordered[0].shape.count / MIB_PER_GIB
            if held > memory and not self._allows_unsupported:
                devices = explanations.devices(ordered[0])
                return Verdict(FALSE, Reason.DOES_NOT_FIT, say("size.weights", name=name, held=held, devices=devices, memory=memory))
        return [each for each in ordered if each.shape == ordered[0].shape]

    def _ranking(self, premises: _Premises) -> Ranking:
        spec = self.resource.spec
        return Ranking(spec.accelerator or AcceleratorSpec(), spec.replicas, self.catalog.gpus, premises.sizing)

    def _remembered(self) -> Facts | None:
        """Return the facts in the current plan, if it is for the same files."""
        pinned, model = self.pinned, self.resource.spec.model
        if pinned is None or pinned.model != model_argument(model.uri):
            return None
        return model_facts.recall_facts(pinned) if self.in_force or model.revision is None else None

    @property
    def _allows_unsupported(self) -> bool:
        return self.resource.metadata.annotations.get(ALLOW_UNSUPPORTED_ANNOTATION) == "true"

    def _request(self, premises: _Premises) -> Request:
        spec, images, version = self.resource.spec, self.catalog.images, premises.version
        variable = images.compatibility_variable
        chooses = self._may_choose_size and not self._keeps_gpu
        resized = not chooses and any(flag in premises.overrides.arguments for flag in RESIZING_FLAGS)
        weight_bytes = premises.facts.weight_bytes if self._keeps_gpu else premises.weight_bytes
        return Request(
            accelerator=spec.accelerator or AcceleratorSpec(),
            count=premises.shape.count,
            replicas=spec.replicas,
            options=image.image_options(premises.overrides.image, version, images),
            host_architectures=images.host_architectures if images.is_official(version.image) else (),
            sizing=premises.sizing,
            forced=self._allows_unsupported or premises.overrides.variables.get(variable) == "1",
            compatible=version.table is not None and version.table.knows_variable(variable),
            preferred=pinning.gpu_in_use(self._preferred) if self._preferred is not None else None,
            selector=premises.overrides.node_selector,
            weight_bytes=None if weight_bytes is None or resized or premises.sizing.can_judge else weight_bytes // premises.shape.shards,
            tolerations=tolerations_of(spec.pod_template),
            room=fitting.ROOM_FOR_WEIGHTS if chooses else 1.0,
        )

    @property
    def _preferred(self) -> Plan | None:
        """The current plan, if its GPU is preferred: what the spec says about the choice is unchanged, and no new plan is requested."""
        pinned, spec = self.pinned, self.resource.spec
        now = spec.sizing, spec.accelerator.policy if spec.accelerator else None
        if pinned is None or self.again or pinning.is_replan_requested(self.resource, pinned.replan_token):
            return None
        return pinned if (pinned.sizing, pinned.policy) == now else None

    def _best(self, premises: _Premises, candidates: Sequence[Candidate]) -> tuple[Candidate, BackendDecision]:
        first, best = candidates[0], self._decide(premises, candidates[0])
        seen = {(first.pool.architecture, first.pool.mig_profile)}
        for each in candidates[1:] if best.refusal else ():
            if each.pool.architecture is None or (kind := (each.pool.architecture, each.pool.mig_profile)) in seen:
                continue
            seen.add(kind)
            decision = self._decide(premises, each)
            if decision.refusal is None:
                text = f"{first.title} comes first in the order of GPUs, but cannot be used: {best.refusal}"
                return each, replace(decision, notes=(Note(Severity.INFO, text), *decision.notes))
        return first, best

    def _decide(self, premises: _Premises, target: Candidate) -> BackendDecision:
        spec, version, facts, pool = self.resource.spec, premises.version, premises.facts, target.pool
        known, forced, pins, parallel = self.catalog, self._allows_unsupported, spec.backends, premises.shape.parallel
        sizes: dict[str, object] = {"tensor": parallel.tensor, "pipeline": parallel.pipeline, "data": parallel.data}
        if parallel.expert:
            sizes["expert"] = "Enabled"
        sized = spec.model_copy(update={"parallelism": (spec.parallelism or ParallelismSpec()).model_copy(update=sizes)})
        given = describe_rule_input(sized, version, facts, pool.architecture, mig_profile=pool.mig_profile, claims=pool.claims)
        model = model_facts.model_name(spec.model).rpartition("/")[2][: explanations.MODEL_NAME_LIMIT] or "The model"
        return choose_backends(
            version, given, known.rules, pins, model=model, allow_unsupported=forced, measured=known.measured, with_rivals=known.may_race
        )

    def _assemble(self, choice: _Choice) -> Plan:
        chosen, target, decision, about_names = choice
        premises = chosen.premises
        resource, version, facts = self.resource, premises.version, premises.facts
        length = target.result.length or chosen.length
        ranking, name = self._ranking(premises), explanations.short_name(resource)
        weight_bytes = premises.weight_bytes
        weights = plan_weights(resource, weight_bytes)
        nodes = target.shape.nodes if target.shape.nodes > 1 else None
        deadline = serving.plan_deadline(resource.spec, weight_bytes, self.pinned if self.in_force else None, nodes=nodes)
        compatibility = image.compatibility_variables(target.fit, self.catalog.images)
        of_caches = self.catalog.caches.variables_of(version.version, version.distribution)
        of_start = [*serving.plan_patience(deadline, version.table), serving.STACKS]
        of_start += groups.group_variables(resource.spec) if nodes else []
        own = serving.engine_arguments(resource.spec, version, premises.shape.parallel, chosen=chosen.sized, length=length)
        drain = serving.plan_drain(resource.spec, premises.overrides, version)
        adapters = plan_adapters(resource.spec, self.files.adapters, version.table, self.pinned if self.in_force else None)
        shared = fitting.time_slicing_arguments(target.pool, self.catalog.memory, version.version)
        between = groups.group_arguments(deadline, version, data=premises.shape.parallel.data) if nodes else []
        args = overrides.keep_first([*own, *between, *shared, *adapters.arguments, *drain.arguments, *decision.args])
        env = overrides.keep_first([*decision.env, *compatibility, *of_caches, *of_start])
        env, args, overridden = overrides.drop_overridden(env, args, premises.overrides)
        per_pod = per_pod_notes((resource.spec.engine and resource.spec.engine.env) or (), self.catalog.caches, version.version)
        about_choice, listed = [], list[GPUCandidate]()
        if not self._keeps_gpu:
            kept = self._preferred is not None and pinning.gpu_in_use(self._preferred) == targets.identity_of(target.pool)
            when = "" if kept else explanations.time_of(self.inventory)
            about_choice = explanations.notes_about_choice(target, chosen.compared, ranking, name, weight_bytes, when=when)
            listed = describe_candidates(target, [*chosen.candidates, *chosen.compared], chosen.rejections, ranking)
        notes = [
            *targets.notes_about_gpu(target.pool, target.fit, self._request(premises), self.inventory),
            *decision.notes,
            *about_names,
            *adapters.notes,
            *drain.notes,
            *serving.access_notes(resource.spec, premises.overrides, version.version),
            *per_pod,
            *explanations.notes_about_size(target, premises.sizing, name, sized=chosen.sized),
            *groups.notes_about_nodes(resource.spec, target, premises.sizing),
            *about_choice,
            *premises.shape.notes,
            *version.notes,
            *model_facts.notes_about(facts, self.files),
            *self.translation.notes,
            *overridden,
            *targets.notes_about_claims(target.pool, ranking.accelerator),
            *about_unknown_size(resource, weights, weight_bytes),
            *((target.fit.note,) if target.fit.note else ()),  # nearly every plan has it, and nothing is to be done about it
        ]
        made = Plan(
            observed_generation=resource.metadata.generation,
            spec_digest=self.digest,
            catalog_version=self.catalog.version,
            replan_token=resource.metadata.annotations.get(REPLAN_ANNOTATION),
            preset=resource.preset,
            model=model_argument(resource.spec.model.uri),
            image=target.fit.option.image,
            tools_image=self.tools_image,
            engine_version=version.version,
            distribution=version.distribution,
            architecture=target.pool.architecture,
            product=target.pool.product,
            memory_mebibytes=target.pool.memory_mebibytes,
            resource=target.pool.resource,
            count=target.shape.count,
            nodes=nodes,
            uuids=list(self.translation.uuids) or None,
            node_requirements=targets.node_requirements(target.pool, self.inventory, target.fit),
            cache_key="",
            cache_artifact=plan_artifact(resource, version.version, version.distribution, self.catalog.caches),
            drain_seconds=drain.seconds,
            endpoint_seconds=drain.endpoint_seconds,
            on_hang=(resource.spec.remediation and resource.spec.remediation.on_hang) or "Restart",
            deadline_seconds=deadline,
            requests=serving.plan_requests(target.shape.count, read_offload(premises.overrides.arguments), resource.spec.pod_template),
            weights=weights,
            resource_per_node=self.inventory.most_per_node(target.pool),
            provisioner=target.pool.provider,
            time_slices=target.pool.time_slices,
            sizing=resource.spec.sizing,
            policy=ranking.accelerator.policy,
            candidates=listed or None,
            memory=predict_memory(target.result.made),
            model_facts=model_facts.keep_facts(facts),
            awaits_facts=(self.files.trouble is not None and not self.files.refused and self._remembered() is None) or None,
            backends=list(decision.choices),
            env=env[:ENV_LIMIT],
            args=args[:ARGS_LIMIT],
            notes=[text[:TEXT_LIMIT] for text in order(notes)][:NOTES_LIMIT],
        )
        return with_cache_key(
            made,
            parallel=str(premises.shape),
            mig_profile=target.pool.mig_profile,
            user=run_as_user(resource.spec.pod_template),
            arguments=keyed_arguments(premises.overrides.arguments, self.catalog.caches),
            generation=self.cache_generation,
        )

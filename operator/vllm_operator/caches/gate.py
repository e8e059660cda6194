"""The gate before a rollout (`spec.rollout.gate: Measure`): the new plan runs beside the current one and must not be worse.

A primer runs the new plan and the current plan in turns, each on the GPU of its plan, with the same load. A container in its Pod measures
the engine (`tools.measure`). Each run is recorded on the ControllerRevision of the new plan before the next one begins, so the operator may
end at any time. The serving replicas are never measured, and the rollout is held until the comparison is over (`measurement`).

Without a GPU for the primer, and if the current plan cannot be measured, the rollout begins without a comparison, and its record says why.
If the engine of the new plan fails under the load, or crashes before, the rollout stays held.
"""

import copy
import json
from collections.abc import Mapping
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import CONTAINER, MEASURER, RUN_ANNOTATION
from vllm_operator.api.operation import WorkloadSpec
from vllm_operator.api.resource import template_spec
from vllm_operator.caches.artifacts import readiness_request
from vllm_operator.caches.context import CacheContext, Gate, is_primer
from vllm_operator.caches.jobs import read_report
from vllm_operator.caches.measurement import GateRecord, Measurement, RunEnd, read_gate_record, read_measurement
from vllm_operator.caches.priming import find_primer_obstacle, render_primer
from vllm_operator.caches.rollout import MAX_RESTARTS
from vllm_operator.pods.tools import operator_container, with_tools
from vllm_operator.pods.view import Phase, PodView
from vllm_operator.text import wording

API_KEY_VARIABLE = "VLLM_API_KEY"
_REQUESTS = {"cpu": "500m", "memory": "256Mi"}
_PROFILES = {
    "Chat": {"input_tokens": 512, "output_tokens": 128, "concurrency": [1, 32], "seconds": 12},
    "LongContext": {"input_tokens": 16_000, "output_tokens": 128, "concurrency": [1, 4], "seconds": 20},
    "Batch": {"input_tokens": 1024, "output_tokens": 256, "concurrency": [64], "seconds": 20},
}
"""Loads by `spec.rollout.workload.profile`. `seconds` is the duration for each number of clients."""
SEVERAL_NODES = "a replica on several nodes has no helper Pod that could be measured."
CURRENT_CRASHES = "the engine of the current plan crashes in the helper Pod."
_MAX_MESSAGE = 300


def plan_gate(context: CacheContext) -> Gate | None:
    """Return what is measured before the rollout, and what was; None without a rollout that must be measured, or if nothing serves."""
    rollout = context.resource.spec.rollout
    if rollout is None or rollout.gate != "Measure" or not context.is_rollout:
        return None
    if context.resource.rolled_back_to is not None or not any(view.phase is Phase.READY for _, view in context.replicas):
        return None
    load = load_of(rollout.workload)
    record = read_gate_record(context.gate_record_text)
    if record is None or (record.against, record.load) != (context.serving_revision, in_words(load)):
        record = GateRecord(against=context.serving_revision, load=in_words(load))
    if record.is_over:
        return Gate(record=record, is_held=bool(record.failure or record.worse))
    is_new = len(record.after) == len(record.before)  # the new plan first: if it cannot start, nothing else is needed
    run_name = f"{context.new_revision}/{len(record.before) + len(record.after)}"
    pods = pods_of_run(context, run_name)
    for view in pods:
        if (found := read_run(view.manifest, is_new=is_new)) is not None:
            record = _with_run(record, found, is_new=is_new)
            return Gate(record=record, is_held=True, is_recorded=False, run_name=run_name, is_new=is_new)
    crashes = not is_new and any(view.phase is Phase.CRASHED and view.restarts >= MAX_RESTARTS for view in pods)
    obstacle = SEVERAL_NODES if context.plan.nodes else CURRENT_CRASHES if crashes else find_primer_obstacle(context, pods)
    if obstacle is not None:
        return Gate(record=record.model_copy(update={"skipped": obstacle}), is_held=True, is_recorded=False)
    return Gate(record=record, is_held=True, run_name=run_name, is_new=is_new)


def pods_of_run(context: CacheContext, run_name: str) -> list[PodView]:
    """Return the Pods of the primer of a run."""
    primers = (view for view in context.pods if is_primer(view))
    return [view for view in primers if reading.text(view.manifest, "metadata", "annotations", RUN_ANNOTATION) == run_name]


def load_of(workload: WorkloadSpec | None) -> dict[str, Any]:
    """Return the load to measure with, as `tools.measure` reads it."""
    given = (workload or WorkloadSpec()).model_dump(exclude_none=True)
    return {**_PROFILES[given.pop("profile", "Chat")], **given}


def in_words(load: Mapping[str, Any]) -> str:
    """Return a load in words. Records with another load do not count."""
    clients = " and ".join(map(str, load["concurrency"]))
    return f"{load['input_tokens']} tokens in and {load['output_tokens']} out, {load['seconds']} s each with {clients} clients"


def read_run(pod: Mapping[str, Any], *, is_new: bool) -> Measurement | RunEnd | None:
    """Return the figures of a run, or why it has none; None while it is measured."""
    report = read_report(reading.named(pod, MEASURER, "status", "containerStatuses", key="name"))
    if report is None:
        return None
    ended, found = report
    if reading.text(found, "result") == "Measured" and (measured := read_measurement(found)) is not None:
        return measured
    why = reading.text(found, "message") or reading.text(ended, "message") or "The measurement ended without a report."
    is_refused = reading.text(found, "result") == "Unsupported"  # by the server: it cannot be measured with this load
    return RunEnd(wording.clean(why, _MAX_MESSAGE), is_failure=is_new and not is_refused)


def _with_run(record: GateRecord, found: Measurement | RunEnd, *, is_new: bool) -> GateRecord:
    if isinstance(found, RunEnd):
        return record.model_copy(update={"failure" if found.is_failure else "skipped": found.why})
    runs = {"after": (*record.after, found)} if is_new else {"before": (*record.before, found)}
    return record.model_copy(update=runs)


def render_gate_run(manifest: Mapping[str, Any], gate: Gate, context: CacheContext) -> dict[str, Any]:
    """Render the primer of a run from the Deployment of the new plan: with its template, or with that of the current plan."""
    base = copy.deepcopy(dict(manifest))
    if not gate.is_new:
        base["spec"]["template"] = copy.deepcopy(dict(reading.mapping(context.deployment, "spec", "template")))
    return render_run(base, gate.run_name, context)


def render_run(base: Mapping[str, Any], run_name: str, context: CacheContext) -> dict[str, Any]:
    """Render the primer of a run from the Deployment of the plan that is measured."""
    beside_replicas = context.is_one_node or reading.is_one_node(context.weights_modes)
    engine = reading.named(template_spec(base), CONTAINER, "containers", key="name")
    primer = render_primer(base, beside_replicas=beside_replicas)
    template = primer["spec"]["template"]
    annotations = {**(template["metadata"].get("annotations") or {}), RUN_ANNOTATION: run_name}
    template["metadata"] = {**template["metadata"], "annotations": annotations}
    spec = template["spec"]
    container = _measurer(context, spec, engine)
    template["spec"] = with_tools({**spec, "containers": [*spec["containers"], container]}, context.plan.tools_image)
    return primer


def _measurer(context: CacheContext, spec: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    rollout = context.resource.spec.rollout
    load = load_of(rollout.workload if rollout is not None else None)
    settings = {"ready": readiness_request(engine), "model": context.resource.spec.model.public_name, "load": load}
    keys = [copy.deepcopy(dict(entry)) for entry in reading.objects(engine, "env") if entry.get("name") == API_KEY_VARIABLE]
    container = operator_container(spec, context.plan.tools_image, "measure")
    env = [{"name": "MEASURE", "value": json.dumps(settings, sort_keys=True)}, *keys]
    return {"name": MEASURER, **container, "env": env, "resources": {"requests": dict(_REQUESTS)}}

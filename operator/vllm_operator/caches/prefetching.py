"""Fetch the weights of a model onto their PVC before an engine starts: when to fetch, the Job and its result.

A Job without a GPU downloads the model to the directory where the engines look for it. Until it has finished, no Pod starts with the
current spec; replicas with the previous one continue. The Job reports the commit that it has downloaded. This is recorded on the PVC
(`FETCHED_ANNOTATION_PREFIX`), and from then on engines get exactly that commit, and do not ask the hub. A PVC lives as long as the
weights on it, and every VLLMDeployment with the same model and PVC finds the record.

The kubelet restarts the container of the Job until it succeeds, with growing pauses, so a correction outside of the spec (a licence, a
token, a proxy) takes effect without a change of the spec. A Job that has not succeeded by its deadline is replaced. The client of the hub
continues a download that was interrupted.

A volume that can be mounted on one node only decides where the Job runs: on the node of the replicas that use it. If they move while the
Pod of the Job is not there, the Job is replaced. The first Pod that uses a volume may bind it to a node or a zone, so the Job runs only
where the engines may run.

The operator itself does not talk to the hub for this. Only the Pod of the Job has the token.
"""

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import CONTAINER, FETCH_WEIGHTS_CONTAINER, FETCHED_ANNOTATION_PREFIX
from vllm_operator.api.plan import Plan, PlannedArgument, PlannedVariable
from vllm_operator.api.reading import controller_of
from vllm_operator.api.resource import Role, VLLMDeployment, template_spec
from vllm_operator.caches import jobs
from vllm_operator.caches.address import is_read_only, weights_claim
from vllm_operator.caches.artifacts import hub_variables, proxies_of
from vllm_operator.caches.claims import Removal, is_terminating
from vllm_operator.caches.context import CacheContext, Fetching, FetchingState
from vllm_operator.caches.directories import Changes
from vllm_operator.caches.jobs import has_role, pods_with
from vllm_operator.catalog.caches import TOKEN_ROOT, WEIGHTS_ROOT
from vllm_operator.pods.view import PodView, is_over

VARIABLE = "FETCH_WEIGHTS"
KEPT_SECONDS = 600
"""How long the finished Job is kept. Its result is recorded when the operator sees it. Then another Job may replace it."""
ATTEMPTS = 1_000_000
"""Effectively unlimited: only the deadline ends the Job."""
MIN_DEADLINE_SECONDS = 3600
"""Minimum deadline of the Job, used if the deadline of a start is shorter or unknown."""
JOB_RECHECK_SECONDS = 30.0
"""Interval between checks of a Job that does not run. No watch covers Jobs."""
MAX_NODES = 100
"""Maximum number of nodes that a Job names."""
OFFLINE_VARIABLE = "HF_HUB_OFFLINE"
OTHER_REPOSITORIES = frozenset({"--tokenizer", "--hf-config-path", "--speculative-config", "--speculative-model", "--spec-model"})
"""Flags that make an engine download from repositories other than the model's, so it must be able to reach the hub."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class FetchingPlan:
    """Actions for fetching weights."""

    state: Fetching | None = None  # state to report; None if nothing is fetched, or everything is fetched
    job: dict[str, Any] | None = None  # the Job to create now, replacing a Job for other nodes; None if its Pod runs on the right node
    record: Changes | None = None  # record to write on the PVC of the weights
    superseded: tuple[Removal, ...] = ()  # Jobs to delete because the spec no longer needs them


NO_FETCHING = FetchingPlan()


def plan_fetching(context: CacheContext) -> FetchingPlan:
    """Decide what to do about fetching the weights of a plan."""
    claim = _claim_name(context.resource, context.desired)
    if claim is None or fetched_commit(context.resource, context.desired, context.claims) is not None:
        return FetchingPlan(superseded=_superseded(context, None))
    live, state = context.claims.get(claim), None
    if live is None or is_terminating(live):
        why = "it is being deleted" if live is not None else "it does not exist yet"
        state = Fetching(state="Waiting", claim=claim, why=f"PersistentVolumeClaim {claim}: {why}.")
    elif (obstacle := _obstacle(context, live)) is not None:
        state = Fetching(state="Impossible", claim=claim, result=obstacle)
    if live is None or state is not None:
        return FetchingPlan(state, superseded=_superseded(context, None))
    job = render_fetching(context, live)
    name = str(job["metadata"]["name"])
    superseded = _superseded(context, name)
    pod = _pod(context, name)
    state = _read(pod, claim) if pod is not None else Fetching(state="Waiting", claim=claim)
    if state.commit is not None:
        record: Changes = {_record_name(context.resource, context.desired): state.commit}
        return FetchingPlan(state, record=record, superseded=superseded)
    nodes = _nodes_of_users(context, live)  # the volume may be mounted there only
    is_in_place = pod is not None and bool(pod.node) and not is_over(pod.manifest) and (not nodes or pod.node in nodes)
    return FetchingPlan(state, None if is_in_place else job, superseded=superseded)


def needs_gpu_nodes(context: CacheContext) -> bool:
    """Return whether the Job needs the nodes with the GPUs of the plan: it may bind the volume, and no labels select the nodes."""
    claim = context.claims.get(_claim_name(context.resource, context.desired) or "")
    if claim is None or fetched_commit(context.resource, context.desired, context.claims) is not None:
        return False
    return reading.is_one_node(reading.access_modes(claim)) and bool(context.template.get("resourceClaims"))


def is_outdated(live: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Return whether a live Job selects the wrong nodes. The Job's name covers all its other inputs."""
    of_live, of_job = template_spec(live), template_spec(job)
    return any(reading.mapping(of_live, field) != reading.mapping(of_job, field) for field in ("affinity", "nodeSelector"))


def fetched_commit(resource: VLLMDeployment, deployment: Any, claims: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the commit whose files a Job has downloaded for a rendered Deployment; None without one. `claims` are live, by name."""
    claim = _claim_name(resource, deployment)
    live = claims.get(claim) if claim is not None else None
    if live is None or is_terminating(live):
        return None
    commit = reading.text(live, "metadata", "annotations", _record_name(resource, deployment))
    return commit if _COMMIT.fullmatch(commit) else None


def with_commit(plan: Plan, resource: VLLMDeployment, commit: str) -> Plan:
    """Return a plan whose engines use this commit, offline if they need no other repository."""
    args = [argument for argument in plan.args if argument.name != "--revision"]
    args.append(PlannedArgument(name="--revision", value=commit, reason="The commit that was fetched (spec.weights.prefetch)."))
    engine = resource.spec.engine
    given = {each.name.lstrip("-").replace("_", "-") for each in (engine.flags if engine else ())}
    if any(flag.removeprefix("--") in given or any(a.name == flag for a in args) for flag in OTHER_REPOSITORIES):
        return plan.model_copy(update={"args": args})
    if not any(argument.name == "--served-model-name" for argument in args):
        # without the hub, vLLM uses the path of the files as the model name (vllm/engine/arg_utils.py)
        name = resource.spec.model.uri.removeprefix("hf://")
        args.append(PlannedArgument(name="--served-model-name", value=name, reason="Model name for clients."))
    offline = PlannedVariable(name=OFFLINE_VARIABLE, value="1", reason="All files were fetched (spec.weights.prefetch).")
    return plan.model_copy(update={"args": args, "env": [*plan.env, offline]})


def render_fetching(context: CacheContext, claim: Mapping[str, Any]) -> dict[str, Any]:
    """Render the Job. Its name covers all its inputs and the volume, so each change creates another Job. `claim` is the live PVC."""
    resource = context.resource
    spec, deadline = _pod_spec(context), max(context.plan.deadline_seconds, MIN_DEADLINE_SECONDS)
    identity = json.dumps([spec, deadline, reading.text(claim, "metadata", "uid")], sort_keys=True)
    occasion = hashlib.sha256(identity.encode()).hexdigest()[:10]
    placed = {**spec, **_placement(context, claim)}
    return jobs.render_job(resource, occasion, Role.FETCHING, placed, attempts=ATTEMPTS, deadline=deadline, kept=KEPT_SECONDS)


def _pod_spec(context: CacheContext) -> dict[str, Any]:
    template, engine, model = context.template, context.engine, context.resource.spec.model
    settings = {"repository": model.uri.removeprefix("hf://"), **({"revision": model.revision} if model.revision else {})}
    mounts = [mount for mount in reading.objects(engine, "volumeMounts") if mount.get("mountPath") in (WEIGHTS_ROOT, TOKEN_ROOT)]
    names = {mount.get("name") for mount in mounts}
    hub = [variable for variable in hub_variables(engine) if variable["name"] != OFFLINE_VARIABLE]
    container = jobs.render_program(
        engine,
        FETCH_WEIGHTS_CONTAINER,
        "fetch-weights",
        env=[{"name": VARIABLE, "value": json.dumps(settings, sort_keys=True)}, *hub, *proxies_of(engine)],
        mounts=[*mounts, {"name": "fetch-temporary", "mountPath": "/tmp"}],
        requests={"cpu": "250m", "memory": "512Mi"},
    )
    volumes = [dict(volume) for volume in reading.objects(template, "volumes") if volume.get("name") in names]
    volumes.append({"name": "fetch-temporary", "emptyDir": {}})
    fields = {"restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 5, "containers": [container], "volumes": volumes}
    # the nodes of the Job need no GPU, and so not the engine's RuntimeClass
    return jobs.render_pod_spec(template, context.plan.tools_image, fields, [name for name in jobs.INHERITED if name != "runtimeClassName"])


def _placement(context: CacheContext, claim: Mapping[str, Any]) -> dict[str, Any]:
    template = context.template
    if nodes := _nodes_of_users(context, claim):
        # The volume is mounted on that node, regardless of the node selection in the current spec.
        anywhere = {"operator": "Exists", "effect": "NoSchedule"}
        return {"affinity": _on_nodes(nodes, []), "tolerations": [*copy.deepcopy(list(template.get("tolerations") or ())), anywhere]}
    selector = {"nodeSelector": copy.deepcopy(template["nodeSelector"])} if "nodeSelector" in template else {}
    node_affinity = reading.mapping(template, "affinity", "nodeAffinity")
    if not reading.is_one_node(reading.access_modes(claim)):
        return selector
    if context.gpu_nodes:
        required = reading.mapping(node_affinity, "requiredDuringSchedulingIgnoredDuringExecution")
        terms = [copy.deepcopy(dict(term)) for term in reading.objects(required, "nodeSelectorTerms")]
        return {**selector, "affinity": _on_nodes(context.gpu_nodes[:MAX_NODES], terms)}
    return {**selector, "affinity": {"nodeAffinity": copy.deepcopy(dict(node_affinity))}} if node_affinity else selector


def _on_nodes(nodes: Sequence[str], terms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an affinity for these nodes, combined with each of the terms, if any. A field takes one value in each term."""
    named = [
        {**term, "matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes for term in terms or [{}]
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": named}}}


def _obstacle(context: CacheContext, claim: Mapping[str, Any]) -> str | None:
    if "ReadWriteOncePod" in reading.access_modes(claim):
        return "OnePod"
    is_bound = reading.text(claim, "status", "phase") == "Bound"
    return "NoNode" if needs_gpu_nodes(context) and not context.gpu_nodes and not is_bound else None


def _nodes_of_users(context: CacheContext, claim: Mapping[str, Any]) -> list[str]:
    if not reading.is_one_node(reading.access_modes(claim)):
        return []
    name = reading.text(claim, "metadata", "name")
    pods = (
        pod for _, pod in context.replicas if not is_over(pod.manifest) and not reading.text(pod.manifest, "metadata", "deletionTimestamp")
    )
    return sorted({pod.node for pod in pods if weights_claim(pod.manifest.get("spec")) == name} - {""})


def _claim_name(resource: VLLMDeployment, deployment: Any) -> str | None:
    """Return the PVC to fetch to; None if there is nothing to fetch, or `podTemplate` mounts another volume."""
    weights, template = resource.spec.weights, template_spec(deployment)
    is_wanted = weights is not None and weights.prefetch == "BeforeStart" and resource.spec.model.uri.startswith("hf://")
    return weights_claim(template) if is_wanted and not is_read_only(template, WEIGHTS_ROOT) else None


def _record_name(resource: VLLMDeployment, deployment: Any) -> str:
    engine = reading.named(template_spec(deployment), CONTAINER, "containers", key="name")
    directory = reading.text(reading.named(engine, WEIGHTS_ROOT, "volumeMounts", key="mountPath"), "subPath")
    model = resource.spec.model
    content = json.dumps([model.uri, model.revision or "", directory])
    return f"{FETCHED_ANNOTATION_PREFIX}{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def _pod(context: CacheContext, job: str) -> PodView | None:
    pods = [pod for pod in context.pods if has_role(pod.manifest, Role.FETCHING) and controller_of(pod.manifest).get("name") == job]
    return max(pods, key=lambda pod: reading.text(pod.manifest, "metadata", "creationTimestamp"), default=None)


def _superseded(context: CacheContext, job: str | None) -> tuple[Removal, ...]:
    owners = [controller_of(pod) for pod in pods_with(Role.FETCHING, context.manifests) if not is_over(pod)]
    found = {(reading.text(owner, "name"), reading.text(owner, "uid")) for owner in owners if owner.get("name") != job}
    return tuple(Removal(True, name, uid, frozenset()) for name, uid in sorted(found))


def _read(pod: PodView, claim: str) -> Fetching:
    container = reading.named(pod.manifest, FETCH_WEIGHTS_CONTAINER, "status", "containerStatuses", key="name")
    report = jobs.read_report(container)
    if report is None:
        state: FetchingState = "Running" if reading.mapping(container, "state", "running") else "Waiting"
        return Fetching(state=state, claim=claim, view=pod)
    ended, found = report
    result = reading.text(found, "result")
    commit = reading.text(found, "commit") if result == "Fetched" else ""
    if ended.get("exitCode") == 0 and _COMMIT.fullmatch(commit):
        return Fetching(state="Fetched", claim=claim, view=pod, commit=commit)
    return Fetching(
        state="Failed",
        claim=claim,
        view=pod,
        result=result if result.isalpha() and len(result) <= 32 else "Failed",
        why=(reading.text(found, "message") or jobs.end_without_report(ended))[: jobs.MAX_TEXT],
        needed_bytes=reading.integer(found, "needed"),
        free_bytes=reading.integer(found, "free"),
    )

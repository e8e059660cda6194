"""Caches in a registry: fetching and publishing an artifact, the Job that publishes, and the reports of the programs.

The operator itself sends nothing to the registry. The programs that fetch and pack run in the engine's image, because whether caches can
be used depends on the software in that image (`tools/build.py`). So the Pod template contains only the location of an artifact, and a
publication replaces no Pod.

A Job publishes when a Pod that uses the directory is Ready, once for each combination of repository, directory, model and settings, on the
node of that Pod. Failures that may be temporary are retried. An init container mounts the directory read-only and packs it to an emptyDir.
Then another container pushes the result. It alone mounts the Secret for pushing. It runs in the operator's image and does not mount the
directory, so neither the engine's image nor an engine that changes the directory can read the Secret.

No Job can mount the caches of a Pod with an EmptyDir, a PVC per replica or a directory of the node. There, the same two containers run in
the Pod of a primer when the engine is ready. The nodes of a group have then only the caches of their own ranks, and nothing is published.
A group with a shared volume publishes the caches of all ranks, and any group fetches them.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import PACKER, PRIME_ANNOTATION, PUBLISHER
from vllm_operator.api.plan import Plan, PlannedArtifact
from vllm_operator.api.reading import controller_of, digest
from vllm_operator.api.resource import Role, VLLMDeployment, job_prefix
from vllm_operator.api.spec import Distribution
from vllm_operator.caches import jobs
from vllm_operator.caches.address import FETCH_CACHES_CONTAINER, CacheAddress, read_portability_settings
from vllm_operator.caches.claims import is_terminating
from vllm_operator.caches.context import ArtifactResult, CacheContext, Publication
from vllm_operator.caches.directories import is_primed, is_quarantined
from vllm_operator.catalog.caches import ARTIFACT_SECRET_ROOT, CACHE_ROOT, PACKED_ROOT, Caches
from vllm_operator.pods.tools import operator_container, with_tools
from vllm_operator.pods.view import Phase, PodView, is_over

FETCHED = frozenset({"Fetched", "PartlyFetched"})
MAX_REJECTED = 8
_NOT_IN_PORTABILITY_KEY = frozenset({"image", "user", "generation"})
"""Parts of the cache key that do not matter on another node: the fingerprint of the build replaces the image."""
_NO_SETTINGS = frozenset(
    {"--api-key", "--served-model-name", "--host", "--port", "--shutdown-timeout", "--enable-server-load-tracking", "--watchdog-config"}
    | {"--master-addr", "--master-port", "--distributed-timeout-seconds", "--cpu-distributed-timeout-seconds", "--data-parallel-rpc-port"}
)
"""Flags that do not affect compilation."""
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"})
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_MAX_NAMED = 150
PAUSE = timedelta(minutes=15)
"""Interval between two attempts if the last failure may be temporary."""
SETTLE_SECONDS = 30.0
"""How long a Pod is Ready before its caches are published, if the duration of its start is not known yet."""
PROGRAM_SECONDS = 840
"""Deadline of each of the two programs."""
DEADLINE_SECONDS = 2 * PROGRAM_SECONDS + 120
KEPT_SECONDS = 600
"""How long the finished Job is kept. It must be shorter than `PAUSE`, because the next attempt reuses the name."""
PRIMER_ATTEMPTS = 3
"""Maximum attempts of a primer to publish after failures that may be temporary. The kubelet restarts the container."""
PACKED = "Packed"
"""Report of the packing container when the publisher can continue."""
PACKED_VOLUME, ACCOUNT_VOLUME = "packed-caches", "publish-account"
SECRET_PREFIX = "SECRET_"
"""Prefix of variables of the packing container whose values must not occur in an artifact."""
PUBLISHED = frozenset({"Published", "AlreadyPublished"})
FINAL = PUBLISHED | {"SecretsFound", "TooLarge", "TagTaken", "Empty", "Invalid"}
"""Results that another attempt would not change."""
_REQUESTS = {"cpu": "100m", "memory": "256Mi"}


def plan_artifact(resource: VLLMDeployment, version: str | None, distribution: Distribution, caches: Caches) -> PlannedArtifact | None:
    """Plan how Pods fetch caches; None if the spec names no artifact."""
    if resource.spec.cache is None or resource.spec.cache.artifact is None:
        return None
    return PlannedArtifact(folders=list(caches.folders_of_artifact(version, distribution)), rejected=rejected_artifacts(resource))


def rejected_artifacts(resource: VLLMDeployment) -> list[str]:
    """Return the digests that must not be fetched again."""
    known = resource.status.cache.artifact if resource.status.cache else None
    return list(known.rejected or ()) if known else []


def portability_settings(resource: VLLMDeployment, plan: Plan, engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of the artifact key. They depend only on the spec, the plan and the rendered container of the engine."""
    parts = {part.name: part.value for part in plan.cache_key_parts}
    local = (f"u{parts.get('user')}", f"g{parts.get('generation')}")  # they do not matter on another node
    readable = "-".join(word for word in plan.cache_key.rpartition("-")[0].split("-") if word not in local)
    return {
        "repository": resource.spec.cache.artifact.repository or "" if resource.spec.cache and resource.spec.cache.artifact else "",
        "readable": readable,
        "image": plan.image,
        "parts": {name: value for name, value in parts.items() if name not in _NOT_IN_PORTABILITY_KEY},
        "settings": digest(_settings(resource, plan, engine), 12),
        "named": _named_settings(resource, plan, engine),
    }


def proxies_of(engine: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the proxy variables of the engine."""
    return [copy.deepcopy(dict(entry)) for entry in reading.objects(engine, "env") if str(entry.get("name")).upper() in _PROXIES]


def readiness_request(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that tells whether an engine is ready, of its readiness probe or its startup probe; empty if both have none."""
    request = reading.mapping(engine, "readinessProbe", "httpGet") or reading.mapping(engine, "startupProbe", "httpGet")
    port = request.get("port")
    number = port if isinstance(port, int) else reading.integer(reading.named(engine, str(port), "ports", key="name"), "containerPort")
    if not request or number is None:
        return {}
    return {"scheme": str(request.get("scheme") or "HTTP").lower(), "port": number, "path": str(request.get("path") or "/")}


def hub_variables(engine: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the engine's variables for the client of the model hub."""
    return [copy.deepcopy(dict(entry)) for entry in reading.objects(engine, "env") if str(entry.get("name")).startswith("HF_")]


def _settings(resource: VLLMDeployment, plan: Plan, engine: Mapping[str, Any]) -> list[Any]:
    """Return the model and all engine settings, except those that differ between Pods."""
    words: list[str] = []
    skips = False  # the next word, the value of a flag
    for word in map(str, engine.get("args") or ()):
        flag, has_value, _ = word.partition("=")
        is_flag = word.startswith("--")
        if not (flag in _NO_SETTINGS if is_flag else skips):
            words.append(word)
        skips = is_flag and flag in _NO_SETTINGS and not has_value
    variables = sorted(
        (str(entry.get("name")), str(entry.get("value") or ""))
        for entry in reading.objects(engine, "env")
        if str(entry.get("name")).startswith("VLLM_") and "valueFrom" not in entry and "KEY" not in str(entry.get("name"))
    )
    return [plan.model, resource.spec.model.revision or "", words, variables]


def _named_settings(resource: VLLMDeployment, plan: Plan, engine: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings by name, each as a digest, so that an engine can report which settings of an artifact differ."""
    model, revision, words, variables = _settings(resource, plan, engine)
    flags: dict[str, list[str]] = {}
    for word in words:
        flag, has_value, value = word.partition("=")
        if word.startswith("--"):
            flags.setdefault(flag, []).extend([value] if has_value else [])
        elif flags:
            flags[next(reversed(flags))].append(word)
    named = {"model": [model, revision], **flags, **dict(variables)}
    return {name: digest(value, 8) for name, value in list(named.items())[:_MAX_NAMED] if not is_secret(name.upper())}


def is_secret(name: str) -> bool:
    """Return whether a variable with this name (upper case) usually has a secret value, rather than the path of one."""
    return any(word in name for word in _SECRET_WORDS) and not name.endswith(("_PATH", "_FILE"))


def read_fetch(pod: Any) -> ArtifactResult | None:
    """Return the last report of a Pod's init container that fetches caches; None if it has not ended."""
    return read_result(reading.named(pod, FETCH_CACHES_CONTAINER, "status", "initContainerStatuses", key="name"))


def read_result(container: Any) -> ArtifactResult | None:
    """Return the report of the program in a container, from its termination message; None if it has not ended."""
    report = jobs.read_report(container)
    if report is None:
        return None
    ended, found = report
    word = reading.text(found, "result")
    if not word.isalpha() or len(word) > 32:
        return ArtifactResult(result="Failed", message=reading.text(ended, "message")[-jobs.MAX_TEXT :] or jobs.end_without_report(ended))
    seconds = found.get("seconds")
    digest, tag = reading.text(found, "digest"), reading.text(found, "tag")
    return ArtifactResult(
        result=word,
        tag=tag if len(tag) <= 128 else "",
        digest=digest if len(digest) == 71 else "",
        message=reading.text(found, "message")[: jobs.MAX_TEXT],
        differs=reading.text(found, "differs")[: jobs.MAX_TEXT],
        seconds=float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 10**6 else None,
        size_bytes=_count(found, "bytes"),
        files=_count(found, "files"),
        cold_seconds=_count(found, "coldSeconds"),
    )


def _count(found: Mapping[str, Any], name: str) -> int | None:
    number = reading.integer(found, name)
    return number if number is not None and 0 <= number < 2**53 else None


def plan_publication(context: CacheContext, caches: Caches) -> tuple[Publication | None, dict[str, Any] | None]:
    """Return the state of the publication (None if none is requested) and the Job to create now; None if none is due."""
    artifact, address = context.artifact, context.address
    if artifact is None or artifact.publish != "WhenPrimed" or context.plan.cache_artifact is None:
        return None, None
    if is_published_by_primer(context):
        return describe_primer_publication(context), None
    if address is None and context.plan.nodes:
        return Publication(state="OfRanks"), None
    if address is None or "ReadWriteOncePod" in context.access_modes:
        return Publication(state="NotPublishable"), None
    occasion = publication_occasion(context)
    if (known := _attempt(context, occasion) or _earlier(context, occasion)) is not None:
        return known, None
    view = next((view for at, view in context.replicas if view.phase is Phase.READY and view.node and at == address), None)
    is_filled = is_primed(context.claim, address.key) and not is_quarantined(context.claim, address.key)
    if view is None or not is_filled or is_terminating(context.claim):
        return Publication(state="NotCompiled", occasion=occasion), None
    if (seconds := _seconds_to_settle(context, view)) > 0:
        return Publication(state="NotCompiled", occasion=occasion, recheck_seconds=seconds), None
    return Publication(state="Running", occasion=occasion), render_publishing(context, address, occasion, view.node, caches)


def _earlier(context: CacheContext, occasion: str) -> Publication | None:
    known = context.known_artifact
    if known is None or known.publication != occasion:
        return None
    if known.publish_result in FINAL:
        return Publication(state="Done", occasion=occasion)
    then = reading.moment(known.publish_time)
    left = (then + PAUSE - context.now).total_seconds() if then is not None else 0.0
    return Publication(state="Done", occasion=occasion, recheck_seconds=left) if left > 0 else None


def is_asked(context: CacheContext) -> bool:
    """Return whether an annotation requests priming."""
    key = context.address.key if context.address is not None else context.plan.cache_key
    return context.resource.metadata.annotations.get(PRIME_ANNOTATION) in ("true", key)


def is_published_by_primer(context: CacheContext) -> bool:
    """Return whether the spec requests a publication and only a container in the primer's Pod can read the caches."""
    artifact = context.artifact
    if artifact is None or artifact.publish != "WhenPrimed" or not artifact.repository or artifact.reference:
        return False
    is_named = any(container.get("name") in (PACKER, PUBLISHER) for container in reading.objects(context.template, "containers"))
    if context.address is not None or context.plan.cache_artifact is None or context.plan.nodes or is_named:
        return False
    return read_portability_settings(context.template) is not None and bool(readiness_request(context.engine))


def describe_primer_publication(context: CacheContext) -> Publication:
    """Return the state of the publication by a primer."""
    occasion = publication_occasion(context)
    is_last = not is_asked(context)
    earlier = _earlier(context, occasion)
    if earlier is not None and earlier.recheck_seconds is None:
        return replace(earlier, is_last=is_last)
    for pod in context.primers_of_plan:
        attempts = (_last_attempt(pod.manifest, name) for name in (PUBLISHER, PACKER))
        done = next((each for each in attempts if each is not None), None)
        if done is None:
            return Publication(state="Running", occasion=occasion)
        return Publication(state="Done", occasion=occasion, result=done[0], ended=done[1] or context.now, is_last=is_last)
    return replace(earlier, is_last=is_last) if earlier is not None else Publication(state="NeedsPrimer", occasion=occasion)


def _last_attempt(pod: Mapping[str, Any], name: str) -> tuple[ArtifactResult, datetime | None] | None:
    """Return the last report of a primer's container and when it ended; None if it has not ended, or is restarted."""
    container = reading.named(pod, name, "status", "containerStatuses", key="name")
    result, ended = read_result(container), reading.mapping(container, "state", "terminated")
    runs = (reading.integer(container, "restartCount") or 0) + bool(ended)
    if result is None or result.result == PACKED or (result.result not in FINAL and runs < PRIMER_ATTEMPTS):
        return None
    return result, reading.moment(ended or reading.mapping(container, "lastState", "terminated"), "finishedAt")


def _seconds_to_settle(context: CacheContext, view: PodView) -> float:
    """Return how long to wait for the duration of the start, which the artifact contains; 0 if it is known or the wait has timed out."""
    known = context.resource.status.cache
    if known is not None and known.key == context.plan.cache_key and (known.cold_start_seconds, known.warm_start_seconds) != (None, None):
        return 0.0
    return SETTLE_SECONDS - (context.now - view.ready_at).total_seconds() if view.ready_at is not None else 0.0


def publication_occasion(context: CacheContext) -> str:
    """Return a digest of everything that identifies a publication. Equal occasions are published once."""
    settings = portability_settings(context.resource, context.plan, context.engine)
    key = context.address.key if context.address else context.plan.cache_key
    return digest([settings["repository"], key, settings["settings"]], 12)


def _attempt(context: CacheContext, occasion: str) -> Publication | None:
    """Return the state according to the Pod of the Job; None without a Pod, or shortly before the Job is deleted."""
    name = f"{job_prefix(context.resource.metadata.name, Role.PUBLISHING)}{occasion}"
    for pod in jobs.pods_with(Role.PUBLISHING, context.manifests):
        if controller_of(pod).get("name") != name:
            continue
        if not is_over(pod):
            return Publication(state="Running", occasion=occasion)
        for statuses, container_name in (("containerStatuses", PUBLISHER), ("initContainerStatuses", PACKER)):
            container = reading.named(pod, container_name, "status", statuses, key="name")
            if (result := read_result(container)) is not None:
                break
        ended = reading.moment(container, "state", "terminated", "finishedAt") or reading.moment(pod, "metadata", "creationTimestamp")
        return Publication(state="Done", occasion=occasion, result=result, ended=ended)
    return None


def render_publishing(context: CacheContext, address: CacheAddress, occasion: str, node: str, caches: Caches) -> dict[str, Any]:
    """Render the Job. It runs on the node where the volume is mounted."""
    resource = context.resource
    cold = (resource.status.cache.cold_start_seconds if resource.status.cache else None) or 0
    mount = {"name": "claim", "mountPath": CACHE_ROOT, "subPath": address.key, "readOnly": True}
    fields = {
        "nodeName": node,
        "initContainers": [_packer(context, caches, mount, {"coldSeconds": cold})],
        "containers": [_publisher(context, {})],
        "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": address.claim}}, *_volumes(context)],
    }
    spec = jobs.render_pod_spec(context.template, context.plan.tools_image, fields)
    return jobs.render_job(resource, occasion, Role.PUBLISHING, spec, attempts=0, deadline=DEADLINE_SECONDS, kept=KEPT_SECONDS)


def add_publisher(primer: dict[str, Any], context: CacheContext, caches: Caches) -> dict[str, Any]:
    """Return a primer with containers that publish the caches when the engine is ready, and share nothing else with it."""
    mount = {**reading.named(context.engine, CACHE_ROOT, "volumeMounts", key="mountPath"), "readOnly": True}
    when = {"ready": readiness_request(context.engine)}
    template = primer["spec"]["template"]
    spec = template["spec"]
    added = {
        "containers": [*spec["containers"], _packer(context, caches, mount, when), _publisher(context, when)],
        "volumes": [*spec.get("volumes", ()), *_volumes(context)],
        "shareProcessNamespace": False,
    }
    added = with_tools({**spec, **added}, context.plan.tools_image)
    return {**primer, "spec": {**primer["spec"], "template": {**template, "spec": added}}}


def _volumes(context: CacheContext) -> list[dict[str, Any]]:
    secret = context.artifact.push_secret_ref if context.artifact else None
    account = [{"name": ACCOUNT_VOLUME, "secret": {"secretName": secret.name, "optional": True}}] if secret else []
    return [{"name": PACKED_VOLUME, "emptyDir": {}}, *account]


def _packer(context: CacheContext, caches: Caches, mount: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container that reads the caches. It has no Secrets except the engine's."""
    plan = context.plan
    assert plan.cache_artifact is not None
    settings = {
        **portability_settings(context.resource, plan, context.engine),
        "root": CACHE_ROOT,
        "output": PACKED_ROOT,
        "folders": plan.cache_artifact.folders,
        "excluded": list(caches.artifact.excluded),
        "whole": list(caches.artifact.whole),
        "architecture": plan.architecture or "",
        "mounts": cache_mounts(context, caches),
        "deadline": PROGRAM_SECONDS,
        **more,
    }
    secrets = secret_variables(context)
    env = [{"name": "PACK_ARTIFACT", "value": json.dumps(settings, sort_keys=True)}, *secrets.pop("env")]
    mounts = [mount, {"name": PACKED_VOLUME, "mountPath": PACKED_ROOT}]
    return jobs.render_program(context.engine, PACKER, "pack-caches", env=env, mounts=mounts, requests=_REQUESTS, **secrets)


def _publisher(context: CacheContext, more: Mapping[str, Any]) -> dict[str, Any]:
    secret = context.artifact.push_secret_ref if context.artifact else None
    settings = {**portability_settings(context.resource, context.plan, context.engine), "output": PACKED_ROOT, "deadline": PROGRAM_SECONDS}
    settings |= {**({"secret": ARTIFACT_SECRET_ROOT} if secret else {}), **more}
    env = [{"name": "PUBLISH_ARTIFACT", "value": json.dumps(settings, sort_keys=True)}, *proxies_of(context.engine)]
    mounts = [{"name": PACKED_VOLUME, "mountPath": PACKED_ROOT, "readOnly": True}]
    mounts += [{"name": ACCOUNT_VOLUME, "mountPath": ARTIFACT_SECRET_ROOT, "readOnly": True}] if secret else []
    container = operator_container(context.template, context.plan.tools_image, "publish-caches")
    return {"name": PUBLISHER, **container, "env": env, "resources": {"requests": dict(_REQUESTS)}, "volumeMounts": mounts}


def secret_variables(context: CacheContext) -> dict[str, Any]:
    """Return `env`, and `envFrom` if there is any, with the secret values of the engine. The packing program looks for them."""
    engine = context.engine
    sources = [
        {"prefix": f"{SECRET_PREFIX}FROM_{number}_", "secretRef": {**dict(entry["secretRef"]), "optional": True}}
        for number, entry in enumerate(engine.get("envFrom") or ())
        if entry.get("secretRef")
    ]
    references: list[dict[str, Any]] = []
    for entry in reading.objects(engine, "env"):
        if found := reading.mapping(entry, "valueFrom", "secretKeyRef"):
            references.append({"valueFrom": {"secretKeyRef": {**found, "optional": True}}})
        elif is_secret(str(entry.get("name")).upper()) and entry.get("value"):
            references.append({"value": str(entry["value"])})
    if (token := context.resource.spec.model.token_secret_ref) is not None:
        references.append({"valueFrom": {"secretKeyRef": {"name": token.name, "key": token.key, "optional": True}}})
    env = [{"name": f"{SECRET_PREFIX}{number}", **reference} for number, reference in enumerate(references)]
    return {"env": env, **({"envFrom": sources} if sources else {})}


def cache_mounts(context: CacheContext, caches: Caches) -> list[dict[str, Any]]:
    """Return the mount paths of the caches outside `VLLM_CACHE_ROOT`, in the format of GKM and KServe (redhat-et/GKM#176)."""
    plan = context.plan
    used = caches.used_by(plan.engine_version, plan.distribution)
    return [
        {"subPath": f"vllm-operator/{cache.folder}", "absPath": cache.directory, "env": name, "requiresWritable": True}
        for cache in used
        if cache.is_published and "/" not in cache.folder and cache.folder != "vllm"
        for name, variable in cache.written.items()
        if variable.value == "{directory}"
    ]

"""Caches in a registry: the programs that fetch and publish them, their settings and reports.

The operator itself has no account for the registry and sends nothing to it. The programs run in Pods. Those that fetch and pack run in the
engine's image, because whether caches can be used depends on the software in that image (`tools/build.py`). So the Pod template contains
only the location of an artifact, and a publication replaces no Pod.
"""

import copy
import json
from collections.abc import Mapping
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.digests import digest
from vllm_operator.api.plan import Plan, PlannedArtifact
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import Distribution
from vllm_operator.caches.activity import ArtifactResult
from vllm_operator.catalog.caches import Caches

FETCH_CONTAINER = "fetch-caches"
FETCH_VARIABLE = "CACHE_ARTIFACT"
"""The variable of this container with its settings."""
FETCHED = frozenset({"Fetched", "PartlyFetched"})
MAX_REJECTED = 8
_NOT_IN_PORTABILITY_KEY = frozenset({"image", "user", "generation"})
"""Parts of the cache key that do not matter on another node: the fingerprint of the build replaces the image."""
_NO_SETTINGS = frozenset({"--api-key", "--served-model-name", "--host", "--port", "--shutdown-timeout"})
"""Flags that do not affect compilation."""
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"})
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_MAX_TEXT = 600
_DECIDE_THE_TAG = ("repository", "readable", "image", "parts", "settings")
_MAX_NAMED = 150


def plan_artifact(resource: VLLMDeployment, version: str | None, distribution: Distribution, caches: Caches) -> PlannedArtifact | None:
    """Plan how Pods fetch caches; None if the spec names no artifact."""
    if resource.spec.cache is None or resource.spec.cache.artifact is None:
        return None
    folders = list(caches.folders_of_artifact(version, distribution))
    return PlannedArtifact(folders=folders, rejected=rejected_artifacts(resource))


def rejected_artifacts(resource: VLLMDeployment) -> list[str]:
    """Return the digests that must not be fetched again."""
    known = resource.status.cache.artifact if resource.status.cache else None
    return list((known.rejected if known else None) or ())


def portability_settings(resource: VLLMDeployment, plan: Plan, engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of the artifact key. They depend only on the spec, the plan and the rendered engine.

    Args:
        resource: The VLLMDeployment.
        plan: Its plan.
        engine: The rendered container of the engine.
    """
    parts = {part.name: part.value for part in plan.cache_key_parts if part.name not in _NOT_IN_PORTABILITY_KEY}
    readable = "-".join(word for word in plan.cache_key.rpartition("-")[0].split("-") if not _is_local(word, plan))
    return {
        "repository": resource.spec.cache.artifact.repository or "" if resource.spec.cache and resource.spec.cache.artifact else "",
        "readable": readable,
        "image": plan.image,
        "parts": parts,
        "settings": digest(_settings(resource, plan, engine), 12),
        "named": _named_settings(resource, plan, engine),
    }


def read_portability_settings(pod_spec: Any) -> dict[str, Any] | None:
    """Return the settings of the artifact key in a Pod; None if the Pod fetches no artifact. Accepts any shape."""
    container = reading.named(pod_spec, FETCH_CONTAINER, "initContainers", key="name")
    if not container:
        return None
    try:
        settings = json.loads(reading.text(reading.named(container, FETCH_VARIABLE, "env", key="name"), "value"))
    except (ValueError, RecursionError):
        return None
    return {name: settings.get(name) for name in _DECIDE_THE_TAG} if isinstance(settings, dict) else None


def proxies_of(engine: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the proxy variables of the engine."""
    return [copy.deepcopy(dict(entry)) for entry in reading.objects(engine, "env") if str(entry.get("name")).upper() in _PROXIES]


def readiness_request(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that tells whether an engine is ready; empty if its readiness probe is not an HTTP request."""
    request = reading.mapping(engine, "readinessProbe", "httpGet")
    port = request.get("port")
    number = port if isinstance(port, int) else reading.integer(reading.named(engine, str(port), "ports", key="name"), "containerPort")
    if not request or number is None:
        return {}
    return {"scheme": str(request.get("scheme") or "HTTP").lower(), "port": number, "path": str(request.get("path") or "/")}


def hub_variables(engine: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the engine's variables for the client of the model hub."""
    return [copy.deepcopy(dict(entry)) for entry in reading.objects(engine, "env") if str(entry.get("name")).startswith("HF_")]


def _is_local(word: str, plan: Plan) -> bool:
    """Return whether a word of the cache key stands for the user or the generation."""
    parts = {part.name: part.value for part in plan.cache_key_parts}
    return word in (f"u{parts.get('user')}", f"g{parts.get('generation')}")


def _settings(resource: VLLMDeployment, plan: Plan, engine: Mapping[str, Any]) -> list[Any]:
    """Return the model and all engine settings, except those that differ between Pods."""
    words: list[str] = []
    skips = False
    for word in [*map(str, engine.get("args") or ())]:
        flag, has_value, _ = word.partition("=")
        if word.startswith("--"):
            skips = flag in _NO_SETTINGS and not has_value
            if flag in _NO_SETTINGS:
                continue
        elif skips:
            skips = False
            continue
        words.append(word)
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
    container = reading.named(pod, FETCH_CONTAINER, "status", "initContainerStatuses", key="name")
    return read_result(container)


def read_result(container: Any) -> ArtifactResult | None:
    """Return the report of the program in a container, from its termination message; None if it has not ended."""
    ended = reading.mapping(container, "state", "terminated") or reading.mapping(container, "lastState", "terminated")
    if not ended:
        return None
    try:
        found = json.loads(reading.text(ended, "message"))
    except (ValueError, RecursionError):
        found = None
    word = reading.text(found, "result") if isinstance(found, Mapping) else ""
    if not word.isalpha() or len(word) > 32:
        return ArtifactResult(result="Failed", message=reading.text(ended, "message")[-_MAX_TEXT:] or reading.text(ended, "reason"))
    seconds = found.get("seconds")
    digest, tag = reading.text(found, "digest"), reading.text(found, "tag")
    return ArtifactResult(
        result=word,
        tag=tag if len(tag) <= 128 else "",
        digest=digest if len(digest) == 71 else "",
        message=reading.text(found, "message")[:_MAX_TEXT],
        differs=reading.text(found, "differs")[:_MAX_TEXT],
        seconds=float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 10**6 else None,
        size_bytes=_count(found, "bytes"),
        files=_count(found, "files"),
        cold_seconds=_count(found, "coldSeconds"),
    )


def _count(found: Mapping[str, Any], name: str) -> int | None:
    number = reading.integer(found, name)
    return number if number is not None and 0 <= number < 2**53 else None

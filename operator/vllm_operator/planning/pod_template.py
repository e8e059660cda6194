"""Checking `spec.podTemplate`: what it may hold, before anything is merged with it.

Only what would break the merge itself, or the Deployment's hold on its Pods, is refused here. Everything
else about Pods the API server knows better, and its answer reaches the user as it is.
"""

from collections.abc import Mapping
from typing import Any

from vllm_operator.api.labels import COMPONENT_LABEL, INSTANCE_LABEL, NAME_LABEL

SELECTOR_LABELS = (NAME_LABEL, INSTANCE_LABEL, COMPONENT_LABEL)
"""Labels by which a Deployment and a Service find the Pods."""
MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "claims": "name",
}
"""Lists of a Pod that are merged entry by entry, and what tells the entries apart. Other lists are replaced."""


class PodTemplateError(ValueError):
    """`spec.podTemplate` cannot be merged. The message says which field, and what is expected."""


def check_pod_template(template: Mapping[str, Any] | None) -> None:
    """Check that a Pod template can be merged.

    Raises:
        PodTemplateError: It cannot.
    """
    if template is None:
        return
    unknown = sorted(set(template) - {"metadata", "spec"})
    if unknown:
        raise PodTemplateError(
            f"podTemplate holds {', '.join(map(str, unknown))}; only metadata and spec are read there, as in the template of a Deployment"
        )
    _check_metadata(_mapping(template.get("metadata"), "podTemplate.metadata"))
    _check_value(_mapping(template.get("spec"), "podTemplate.spec"), "podTemplate.spec")


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    unknown = sorted(set(metadata) - {"labels", "annotations"})
    if unknown:
        raise PodTemplateError(f"podTemplate.metadata holds {', '.join(unknown)}; only labels and annotations can be set on the Pods")
    for field in ("labels", "annotations"):
        for name, value in _mapping(metadata.get(field), f"podTemplate.metadata.{field}").items():
            if value is not None and not isinstance(value, str):
                raise PodTemplateError(f'podTemplate.metadata.{field}: the value of {name} must be a text; put it in quotes: "{value}"')
            if field == "labels" and name in SELECTOR_LABELS:
                raise PodTemplateError(
                    f"podTemplate.metadata.labels: {name} belongs to the operator, which finds the Pods by it; remove it"
                )


def _check_value(value: Any, path: str) -> None:
    if isinstance(value, Mapping):
        for name, entry in value.items():
            if name in MERGE_KEYS and entry is not None and not path.endswith("requests"):
                _check_list(entry, f"{path}.{name}", MERGE_KEYS[name])
            else:
                _check_value(entry, f"{path}.{name}")


def _check_list(entries: Any, path: str, key: str) -> None:
    if not isinstance(entries, list):
        raise PodTemplateError(f"{path} must be a list, each entry with its {key}")
    seen: set[Any] = set()
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not isinstance(entry.get(key), str | int):
            raise PodTemplateError(f"{path}[{index}] needs a {key}: entries are merged with the operator's own by it")
        if entry[key] in seen:
            raise PodTemplateError(f"{path} holds {key} {entry[key]} twice; keep one of them")
        seen.add(entry[key])
        _check_value(entry, f"{path}[{index}]")


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise PodTemplateError(f"{path} must be an object with fields, not {type(value).__name__}")
    return value

"""Merging what the user writes in `spec.podTemplate` over the Pod that the operator renders.

The user wins. Objects are merged field by field; lists of named entries entry by entry, by the key of
`MERGE_KEYS`; tolerations are added to; all other lists are replaced. A null removes what the operator
renders. Entries that are one thing out of several (a volume, a variable, a port) are replaced as a whole:
a merged one would be two things at once, which the API server refuses.
"""

from collections.abc import Mapping
from typing import Any

from vllm_operator.planning.pod_template import MERGE_KEYS, check_pod_template

_REPLACED_WHOLE = frozenset({"volumes", "env", "volumeMounts", "ports", "imagePullSecrets", "resourceClaims", "claims"})
_ADDED_TO = frozenset({"tolerations"})
_HANDLERS = frozenset({"httpGet", "exec", "tcpSocket", "grpc", "sleep"})
"""A probe or a hook has exactly one of these."""


def merge_pod_template(rendered: Mapping[str, Any], template: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a Pod template with the user's merged over it; neither argument is changed.

    Raises:
        PodTemplateError: The user's template cannot be merged.
    """
    check_pod_template(template)
    return _merge_mapping(rendered, template or {})


def _merge_mapping(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    merged = {name: value for name, value in ours.items() if not _is_replaced_handler(name, theirs)}
    for name, value in theirs.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge_field(name, merged.get(name), value)
    return merged


def _is_replaced_handler(name: str, theirs: Mapping[str, Any]) -> bool:
    return name in _HANDLERS and name not in theirs and any(theirs.get(handler) is not None for handler in _HANDLERS)


def _merge_field(name: str, ours: Any, theirs: Any) -> Any:
    if isinstance(theirs, Mapping):
        return _merge_mapping(ours if isinstance(ours, Mapping) else {}, theirs)
    if isinstance(theirs, list) and isinstance(ours, list):
        if name in MERGE_KEYS:
            return _merge_list(name, ours, theirs)
        if name in _ADDED_TO:
            return [*ours, *(entry for entry in theirs if entry not in ours)]
    return theirs


def _merge_list(name: str, ours: list[Any], theirs: list[Any]) -> list[Any]:
    key = MERGE_KEYS[name]
    given = {entry[key]: entry for entry in theirs}
    known = {entry[key] for entry in ours}
    kept = [_merge_entry(name, entry, given.get(entry[key])) for entry in ours]
    return kept + [entry for entry in theirs if entry[key] not in known]


def _merge_entry(name: str, ours: Any, theirs: Any) -> Any:
    if theirs is None:
        return ours
    return theirs if name in _REPLACED_WHOLE else _merge_mapping(ours, theirs)

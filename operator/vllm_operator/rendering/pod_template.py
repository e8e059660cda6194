"""Merging `spec.podTemplate` over the Pod template that the operator renders.

The user's values take precedence. Objects are merged field by field. Lists of containers, volumes, variables and so on are merged entry by
entry, with the keys that Kubernetes uses. Tolerations are appended. All other lists are replaced. A null removes a rendered field. Entries
that have one of several kinds (a volume, a variable, a port) are replaced as a whole, because the API server refuses an entry of two kinds.
The labels that select Pods keep their values.
"""

from collections.abc import Mapping
from typing import Any

from vllm_operator.api.reading import mapping
from vllm_operator.planning.pod_template import HANDLERS, PLAIN, POD_TEMPLATE, SELECTOR_LABELS, MergeRules, check_pod_template, identify


def merge_pod_template(rendered: Mapping[str, Any], template: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of the rendered Pod template with the user's template merged over it. Raises SpecError."""
    check_pod_template(template)
    merged = _merge_object(rendered, _without_empty_parts(template or {}), POD_TEMPLATE)
    kept = {label: value for label, value in mapping(rendered, "metadata", "labels").items() if label in SELECTOR_LABELS}
    merged["metadata"] = {**merged["metadata"], "labels": {**merged["metadata"]["labels"], **kept}}
    return merged


def _without_empty_parts(template: Mapping[str, Any]) -> dict[str, Any]:
    """Drop nulls where a Pod template requires an object. In YAML, `spec:` without content is null."""
    given = {name: value for name, value in template.items() if value is not None}
    for name, part in (("metadata", "labels"), ("spec", "containers")):
        if name in given:
            given[name] = {key: value for key, value in given[name].items() if key != part or value is not None}
    return given


def _merge_object(ours: Mapping[str, Any], theirs: Mapping[str, Any], rules: MergeRules) -> dict[str, Any]:
    merged = {name: value for name, value in ours.items() if not _is_replaced_handler(name, theirs)}
    for name, value in theirs.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge_field(name, merged.get(name), value, rules)
    return merged


def _is_replaced_handler(name: str, theirs: Mapping[str, Any]) -> bool:
    return name in HANDLERS and name not in theirs and any(theirs.get(handler) is not None for handler in HANDLERS)


def _merge_field(name: str, ours: Any, theirs: Any, rules: MergeRules) -> Any:
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        return _merge_object(ours, theirs, rules.objects.get(name, PLAIN))
    if isinstance(theirs, list) and isinstance(ours, list):
        if name in rules.lists:
            return _merge_list(ours, theirs, rules.lists[name], rules.entries.get(name))
        if name in rules.added_to:
            return [*ours, *(entry for entry in _without_nulls(theirs) if entry not in ours)]
    return _without_nulls(theirs)


def _merge_list(ours: list[Any], theirs: list[Any], keys: tuple[str, ...], entry_rules: MergeRules | None) -> list[Any]:
    """Merge lists by entry. Entries without merge rules are replaced as a whole."""
    given = {identify(entry, keys): entry for entry in theirs}
    merged = []
    for entry in ours:
        replacement = given.pop(identify(entry, keys), None)
        if replacement is None:
            merged.append(entry)
        elif entry_rules:
            merged.append(_merge_object(entry, replacement, entry_rules))
        else:
            merged.append(_without_nulls(replacement))
    return [*merged, *map(_without_nulls, given.values())]


def _without_nulls(value: Any) -> Any:
    """Drop null fields: there is no rendered field that they could remove."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(entry) for name, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    return value

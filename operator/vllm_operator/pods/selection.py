"""Label selectors with the semantics of Kubernetes."""

from collections.abc import Mapping
from typing import Any

from vllm_operator.api import reading


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return whether a LabelSelector selects an object with these labels. An empty selector selects everything, None selects nothing.

    An invalid selector selects nothing.
    """
    if selector is None:
        return False
    if any(labels.get(name) != value for name, value in reading.mapping(selector, "matchLabels").items()):
        return False
    return all(_holds(requirement, labels) for requirement in reading.objects(selector, "matchExpressions"))


def _holds(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    name, values = reading.text(requirement, "key"), reading.sequence(requirement.get("values"))
    match requirement.get("operator"):
        case "In":
            return labels.get(name) in values
        case "NotIn":
            return labels.get(name) not in values
        case "Exists":
            return name in labels
        case "DoesNotExist":
            return name not in labels
        case _:
            return False

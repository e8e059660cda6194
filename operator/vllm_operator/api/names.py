"""Names of Kubernetes objects (https://kubernetes.io/docs/concepts/overview/working-with-objects/names/)."""

import re
from typing import Any

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
NAME_LIMIT, NAMESPACE_LIMIT = 253, 63
NAME_PATTERN = rf"^{_LABEL}(\.{_LABEL})*$"
"""Pattern of the names of objects: DNS subdomains."""
_NAME, _NAMESPACE = re.compile(rf"{_LABEL}(\.{_LABEL})*"), re.compile(_LABEL)


def is_name(value: Any) -> bool:
    """Return whether this is a valid object name: exactly one segment of a URL path, without special meaning there."""
    return isinstance(value, str) and len(value) <= NAME_LIMIT and _NAME.fullmatch(value) is not None


def is_namespace(value: Any) -> bool:
    """Return whether this is a valid namespace name."""
    return isinstance(value, str) and len(value) <= NAMESPACE_LIMIT and _NAMESPACE.fullmatch(value) is not None

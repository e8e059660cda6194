"""Fields of another tool's objects that nothing reads. They are found by leaving each out, and importing the rest."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vllm_operator.api.reading import Manifest, text
from vllm_operator.cli.imports.pod import PROBES
from vllm_operator.cli.imports.tables import load_tables

_LIMIT = 2000
"""Maximum imports for this check; each takes some milliseconds."""
_WHOLE = ("env", "initContainer", "initContainers", "resources", "selector", "volumeMounts", "volumes")
"""Fields that the translation keeps or the report describes as a whole."""
_IDENTITY = (
    *("apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion", "metadata.generation"),
    *("metadata.creationTimestamp", "metadata.managedFields", "metadata.selfLink", "status"),
)
_SERVER = (
    *("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy", "revisionHistoryLimit", "serviceAccount"),
    *("terminationMessagePath", "terminationMessagePolicy"),
)
_DESCRIBED = ("command", "componentType", "enableEngine", "name", "ports", "spec.template.metadata", "type", "v0", "v1", *PROBES)
_NEUTRAL = {*_IDENTITY, *_SERVER, *_DESCRIBED}
"""Fields whose loss nobody notices: identity, what the API server adds, and parts of what is read together. The tables have more."""
_DEFAULTS: dict[str, Any] = {
    "maxSurge": "25%",
    "maxUnavailable": "25%",
    "progressDeadlineSeconds": 600,
    "restartPolicy": "Always",
    "sessionAffinity": "None",
}
"""Values that the API server adds."""
_OF_TOOLS = ("kubectl.kubernetes.io/", "deployment.kubernetes.io/", "meta.helm.sh/", "serving.kserve.io/")
_NOTHING = object()
_LONGEST = 20
"""Maximum fields in a sentence."""

Path = tuple[Any, ...]


def unread(given: Sequence[Manifest], convert: Callable[[Sequence[Manifest]], object]) -> list[str]:
    """Return a sentence for each object with fields that nothing reads.

    `convert` imports objects, and returns what can be compared. A field is unread if this is the same without the field, and with another
    value in it.
    """
    expected, left = convert(given), _LIMIT

    def is_read(path: Path, instead: Sequence[Any]) -> bool:
        nonlocal left
        for value in instead:
            left -= 1
            if left < 0 or convert(_changed(given, path, value)) != expected:
                return True
        return False

    sentences = []
    for number, manifest in enumerate(given):
        if paths := _walk(manifest, (number,), is_read)[1]:
            sentences.append(_sentence(manifest, paths if is_read((number,), [_NOTHING]) else [(number,)]))
    if left < 0:
        sentences.append("The file has too many fields to check them all. Compare the rest yourself.")
    return sentences


def _walk(value: Any, path: Path, is_read: Callable[[Path, Sequence[Any]], bool]) -> tuple[bool, list[Path]]:
    """Return whether something reads this value, and the paths in it that nothing reads. A value that is read as a whole has none."""
    parts = [] if path[-1] in _WHOLE else list(_parts(value, path))
    inner = [each for each in parts if not _is_neutral(*each)]
    if parts and not inner:
        return False, []
    results = [_walk(part, where, is_read) for where, part in inner]
    if any(read for read, _ in results):
        return True, [each for _, unread_parts in results for each in unread_parts]
    rest = {where[-1]: part for where, part in parts if _is_neutral(where, part)} if isinstance(value, dict) else {}
    if is_read(path, [rest or _NOTHING] if inner else [_NOTHING, *_other(value)]):
        return True, []
    return False, [each for _, unread_parts in results for each in unread_parts] if rest else [path]


def _parts(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict):
        yield from (((*path, name), part) for name, part in value.items() if isinstance(name, str))
    elif isinstance(value, list):
        yield from (((*path, index), part) for index, part in enumerate(value) if isinstance(part, dict))


def _is_neutral(path: Path, value: Any) -> bool:
    name, full = str(path[-1]), ".".join(each for each in path[1:] if isinstance(each, str))
    neutral = _NEUTRAL.union(*(table.ignored for table in load_tables().values()))
    is_off = value is False or value in (None, "", [], {}) or (isinstance(value, dict) and value.get("enabled") is False)
    return is_off or name in _NEUTRAL or full in neutral or _DEFAULTS.get(name) == value or name.startswith(_OF_TOOLS)


def _other(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    return [value + 1] if isinstance(value, int) else [f"{value}x"] if isinstance(value, str) else []


def _changed(value: Any, path: Path, instead: Any) -> Any:
    """Return a copy of the value with something else at the path, or nothing."""
    copy = value.copy() if isinstance(value, dict) else list(value)
    name, rest = path[0], path[1:]
    if rest or instead is not _NOTHING:
        copy[name] = _changed(value[name], rest, instead) if rest else instead
    else:
        del copy[name]
    return copy


def _sentence(manifest: Manifest, paths: Sequence[Path]) -> str:
    named = f"{text(manifest, 'kind') or 'values'} {text(manifest, 'metadata', 'name')}".rstrip()
    fields = [found for path in paths[:_LONGEST] if (found := _written(manifest, path))]
    more = f" and {len(paths) - _LONGEST} more" if len(paths) > _LONGEST else ""
    if not fields:
        return f"{named}. Keep it if the engine uses it."
    return f"{named}: {', '.join(fields)}{more}."


def _written(value: Any, path: Path) -> str:
    """Write a path, with names instead of indices: `containers[server].ports`."""
    written = ""
    for key in path[1:]:
        value = value[key]
        written += f".{key}" if isinstance(key, str) else f"[{text(value, 'name') or key}]"
    return written.removeprefix(".")

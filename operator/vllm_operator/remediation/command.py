"""A change of the spec as a command that can be pasted.

`engine.args` and `engine.env` are lists, so a merge patch would replace them as a whole. A JSON patch names the place
in the list, and tests first that the list is still what it was when the command was written: pasted later, over a
spec that has changed meanwhile, it is refused instead of changing something else.
"""

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from vllm_operator.api.labels import SHORT_NAME
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import EngineArgument, EnvironmentVariable
from vllm_operator.api.status import ChangeAction, ChangeKind, RemedyChange
from vllm_operator.catalog.versions import normalize_flag

Operation = dict[str, Any]
_FIELDS = {ChangeKind.ARGUMENT: "args", ChangeKind.VARIABLE: "env"}


def patch_command(resource: VLLMDeployment, changes: Iterable[RemedyChange]) -> str | None:
    """The command that makes these changes; None if none of them is one of `spec.engine`."""
    operations = patch_operations(resource, changes)
    if not operations:
        return None
    patch = json.dumps(operations, separators=(",", ":"))
    metadata = resource.metadata
    return f"kubectl patch {SHORT_NAME} {metadata.name} -n {metadata.namespace} --type=json -p {shlex.quote(patch)}"


def patch_operations(resource: VLLMDeployment, changes: Iterable[RemedyChange]) -> list[Operation]:
    """The changes as a JSON patch (RFC 6902)."""
    wanted = list(changes)
    engine = resource.spec.engine
    operations: list[Operation] = []
    added: dict[str, list[Operation]] = {}
    for kind, field in _FIELDS.items():
        entries: Sequence[EngineArgument | EnvironmentVariable] | None = getattr(engine, field) if engine is not None else None
        names = [_name(kind, entry.name) for entry in entries or ()]
        removed = []
        for change in (each for each in wanted if each.kind is kind):
            place = names.index(change.name) if change.name in names else None
            if change.action is ChangeAction.REMOVE:
                removed += [place] if place is not None else []
            elif place is not None and entries:
                operations += _replaced(f"/spec/engine/{field}/{place}", entries[place].name, _entry(change, entries[place].name))
            elif entries is not None:
                operations.append({"op": "add", "path": f"/spec/engine/{field}/-", "value": _entry(change)})
            else:
                added.setdefault(field, []).append(_entry(change))
        for place in sorted(removed, reverse=True):  # from the end, so that the places of the others do not move
            path = f"/spec/engine/{field}/{place}"
            operations += [_test(path, entries[place].name if entries else ""), {"op": "remove", "path": path}]
    if added and engine is None:
        return [{"op": "test", "path": "/spec/engine", "value": None}, {"op": "add", "path": "/spec/engine", "value": added}, *operations]
    for field, values in added.items():
        path = f"/spec/engine/{field}"
        operations += [{"op": "test", "path": path, "value": None}, {"op": "add", "path": path, "value": values}]
    return operations


def _name(kind: ChangeKind, name: str) -> str:
    return normalize_flag(name) if kind is ChangeKind.ARGUMENT else name


def _entry(change: RemedyChange, name: str | None = None) -> Operation:
    return {"name": name or change.name, **({"value": change.value} if change.value is not None else {})}


def _replaced(path: str, name: str, entry: Operation) -> list[Operation]:
    return [_test(path, name), {"op": "replace", "path": path, "value": entry}]


def _test(path: str, name: str) -> Operation:
    return {"op": "test", "path": f"{path}/name", "value": name}

"""A cluster in memory, for tests: the verbs of `ClusterClient` with the manners of an API server.

It keeps resourceVersions, generations, uids and managed fields, refuses what a real one refuses (a second
object of a name, a conflict, an apply to a status of nothing), and fails where it is told to. It runs no
controllers: nothing turns a Deployment into Pods.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar, Unpack

from support import fake_fields
from vllm_operator.api import reading
from vllm_operator.kube.client import (
    POD,
    ClusterError,
    Conflict,
    Kind,
    LogRequest,
    Manifest,
    NotFound,
    Query,
    kind_of,
)

Content = TypeVar("Content")
LogStep = bytes | float | ClusterError
"""Text that comes, a pause in seconds, or the way in which the stream breaks."""


Identity = tuple[str, str | None, str]
"""Kind, namespace and name of an object."""


@dataclass(frozen=True, slots=True)
class Write:
    """A write that took place."""

    verb: str
    kind: str
    name: str


@dataclass(slots=True)
class _Fault:
    error: ClusterError
    times: int


@dataclass(slots=True)
class FakeCluster:
    """The cluster. `writes` are those that changed something, `calls` counts all, by verb."""

    writes: list[Write] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    log_requests: list[LogRequest] = field(default_factory=list)
    absent: set[Kind] = field(default_factory=set)
    """Kinds that this API server does not serve."""
    documents: dict[str, Manifest] = field(default_factory=dict)
    """What it says beside objects, by path."""
    clock: Callable[[], datetime] | None = None
    """Tells when objects are created; without it, nobody knows."""
    page: int = 100
    """Objects in a page of a list."""
    _objects: dict[Identity, Manifest] = field(default_factory=dict)
    _version: int = 0
    _faults: dict[tuple[str, str], _Fault] = field(default_factory=dict)
    _logs: dict[tuple[str, str, bool], list[Sequence[LogStep]]] = field(default_factory=dict)

    # what a test does

    def put(self, manifest: Manifest, *, manager: str = "test") -> Manifest:
        """Create or replace an object as a user would, whatever it was before."""
        kind, new = kind_of(manifest), _copied(manifest)
        old = self._objects.get(self._identity(kind, new))
        fields = {f"f:{key}": fake_fields.fields_of(value, key) for key, value in new.items() if key in ("spec", "data")}
        entries = [*_entries(old), {"manager": manager, "operation": "Update", "fieldsV1": fields}]
        return self._store(kind, new, old, entries)

    def edit(self, kind: Kind, namespace: str | None, name: str, change: Mapping[str, Any], *, manager: str = "kubectl-edit") -> Manifest:
        """Change fields as somebody else would: they are that manager's afterwards."""
        live = self._existing(kind, name, namespace)
        fields = fake_fields.fields_of(change)
        new = fake_fields.merge(_copied(live), _copied(dict(change)))
        entries = _give_up(_entries(live), fields, new, live, keep=manager)
        return self._store(kind, new, live, [*entries, {"manager": manager, "operation": "Update", "fieldsV1": fields}])

    def set_status(self, kind: Kind, namespace: str | None, name: str, status: Mapping[str, Any]) -> Manifest:
        """Set the status as a controller would."""
        live = self._existing(kind, name, namespace)
        return self._store(kind, {**live, "status": _copied(dict(status))}, live, _entries(live))

    def remove(self, kind: Kind, namespace: str | None, name: str) -> None:
        """Remove an object at once."""
        identity = (kind.kind, namespace if kind.namespaced else None, name)
        self._objects.pop(identity, None)

    def fail(self, verb: str, kind: Kind | None, error: ClusterError, *, times: int = 1) -> None:
        """Let the next calls of a verb on a kind (any if None) fail."""
        self._faults[(verb, kind.kind if kind else "*")] = _Fault(error, times)

    def heal(self) -> None:
        """Nothing fails any more."""
        self._faults.clear()

    def script_log(self, namespace: str, pod: str, *streams: Sequence[LogStep], previous: bool = False) -> None:
        """What the next streams of a Pod's log bring, one sequence for each time that it is opened.

        With `previous`, requests for the log of the previous run have streams of their own.
        """
        self._logs.setdefault((namespace, pod, previous), []).extend(streams)

    def all(self, kind: Kind) -> list[Manifest]:
        """All objects of a kind."""
        return [_copied(item) for key, item in self._objects.items() if key[0] == kind.kind]

    def peek(self, kind: Kind) -> list[Manifest]:
        """All objects of a kind, not to be changed: copies of many objects take long."""
        return [item for key, item in self._objects.items() if key[0] == kind.kind]

    @property
    def changes(self) -> int:
        """A number that grows with each change of an object; removals do not count."""
        return self._version

    # what a client does

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        """Read one object."""
        kind.path(namespace, name)  # refuses what the real client refuses
        await self._enter("get", kind)
        return _copied(self._existing(kind, name, namespace))

    async def get_path(self, path: str) -> Manifest:
        """Read a document."""
        await self._enter("get_path", None)
        if path not in self.documents:
            raise NotFound("the server could not find the requested resource")
        return _copied(self.documents[path])

    async def find(self, kind: Kind, namespace: str | None = None, **query: Unpack[Query]) -> Sequence[Manifest]:
        """List objects."""
        await self._enter("find", kind)
        if kind in self.absent:
            raise NotFound("the server could not find the requested resource")
        items = [item for key, item in self._objects.items() if key[0] == kind.kind and namespace in (None, key[1])]
        if labels := query.get("labels"):
            items = [item for item in items if labels.items() <= (item["metadata"].get("labels") or {}).items()]
        for path, value in query.get("fields", {}).items():
            steps, equal = tuple(f"f:{step}" for step in path.rstrip("!").split(".")), not path.endswith("!")
            items = [item for item in items if ((fake_fields.read(item, steps)[1] or "") == value) is equal]
        return _copied(items)

    async def pages(self, kind: Kind, namespace: str | None = None, **query: Unpack[Query]) -> AsyncIterator[Sequence[Manifest]]:
        """List objects in pages of `page` objects."""
        items = await self.find(kind, namespace, **query)
        for begin in range(0, len(items) or 1, self.page):
            if begin:
                await self._enter("page", kind)
            yield items[begin : begin + self.page]

    async def apply(self, manifest: Manifest, *, manager: str, force: bool = True) -> Manifest:
        """Server-side apply."""
        kind = kind_of(manifest)
        await self._enter("apply", kind)
        desired = {key: _copied(value) for key, value in manifest.items() if key != "status"}
        live = self._objects.get(self._identity(kind, desired))
        if live is not None and desired["metadata"].get("resourceVersion") not in (None, live["metadata"]["resourceVersion"]):
            raise Conflict("the object has been modified")
        return self._written("apply", kind, live, self._apply(kind, desired, live, manager, force=force, subresource=""))

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """Server-side apply to the status."""
        kind, metadata = kind_of(manifest), manifest["metadata"]
        await self._enter("apply_status", kind)
        live = self._existing(kind, metadata["name"], metadata.get("namespace"))
        if metadata.get("resourceVersion") not in (None, live["metadata"]["resourceVersion"]):
            raise Conflict("the object has been modified")
        desired = {**{key: live[key] for key in ("apiVersion", "kind")}, "status": _copied(manifest.get("status", {}))}
        desired["metadata"] = {key: metadata[key] for key in ("name", "namespace") if key in metadata}
        return self._written("apply_status", kind, live, self._apply(kind, desired, live, manager, force=True, subresource="status"))

    async def patch(self, kind: Kind, name: str, namespace: str | None, operations: Sequence[Manifest], *, manager: str) -> Manifest:
        """JSON patch: `test`, `remove`, `replace` and `add`; into maps only."""
        kind.path(namespace, name)
        await self._enter("patch", kind)
        live = self._existing(kind, name, namespace)
        new = _copied(live)
        for operation in operations:
            *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
            parent: Any = new
            for part in way:
                parent = parent[int(part)] if isinstance(parent, list) else parent[part]
            place: Any = int(last) if isinstance(parent, list) else last
            if operation["op"] == "test" and parent[place] != operation["value"]:
                raise Conflict("testing value failed")
            if operation["op"] == "remove":
                del parent[place]
            if operation["op"] in ("replace", "add"):
                parent[place] = _copied(operation["value"])
        return self._written("patch", kind, live, self._store(kind, new, live, _existing_fields(_entries(live), new)))

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object."""
        kind = kind_of(manifest)
        await self._enter("create", kind)
        if kind.kind == "SelfSubjectAccessReview":
            return {**manifest, "status": {"allowed": True}}
        if self._identity(kind, manifest) in self._objects:
            raise Conflict(f'{kind.plural} "{manifest["metadata"]["name"]}" already exists')
        return self._written("create", kind, None, self._store(kind, _copied(manifest), None, []))

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, *, uid: str | None = None) -> None:
        """Delete an object at once."""
        kind.path(namespace, name)
        await self._enter("delete", kind)
        live = self._objects.get((kind.kind, namespace if kind.namespaced else None, name))
        if live is not None and uid in (None, live["metadata"]["uid"]):
            self.remove(kind, namespace, name)
            self.writes.append(Write("delete", kind.kind, name))

    @asynccontextmanager
    async def stream_log(self, request: LogRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a log as scripted; where nothing is left of the script, it is empty and ends.

        As with a kubelet, a log that is followed is open when the first line comes.
        """
        self.log_requests.append(request)
        await self._enter("stream_log", POD)
        plain = self._logs.get((request.namespace, request.pod, False), [])
        streams = self._logs.get((request.namespace, request.pod, True), plain) if request.previous else plain
        steps = streams.pop(0) if streams else ()
        if steps and isinstance(steps[0], ClusterError):
            raise steps[0]
        if request.follow and steps and isinstance(steps[0], float):
            await asyncio.sleep(steps[0])
            steps = steps[1:]
        yield _play(
            steps if request.follow else steps[: next((at for at, step in enumerate(steps) if isinstance(step, float)), len(steps))]
        )

    async def close(self) -> None:
        """Nothing to close."""

    # the inside

    async def _enter(self, verb: str, kind: Kind | None) -> None:
        await asyncio.sleep(0)
        self.calls[verb] += 1
        name = kind.kind if kind else "*"
        for key in ((verb, name), (verb, "*"), ("*", name), ("*", "*")):
            fault = self._faults.get(key)
            if fault is not None:
                fault.times -= 1
                if fault.times <= 0:
                    del self._faults[key]
                raise fault.error

    def _existing(self, kind: Kind, name: str, namespace: str | None) -> Manifest:
        live = self._objects.get((kind.kind, namespace if kind.namespaced else None, name))
        if live is None:
            raise NotFound(f'{kind.plural} "{name}" not found')
        return live

    def _identity(self, kind: Kind, manifest: Manifest) -> Identity:
        metadata = manifest["metadata"]
        return kind.kind, metadata.get("namespace", "default") if kind.namespaced else None, metadata["name"]

    def _apply(self, kind: Kind, desired: Manifest, live: Manifest | None, manager: str, *, force: bool, subresource: str) -> Manifest:
        named = {key: value for key, value in desired.items() if key not in ("apiVersion", "kind", "metadata")}
        metadata = {key: value for key, value in desired["metadata"].items() if key in ("labels", "annotations", "ownerReferences")}
        fields = fake_fields.fields_of({**named, **({"metadata": metadata} if metadata else {})})
        new = _copied(live) if live else {}
        mine = {"manager": manager, "operation": "Apply", "subresource": subresource}
        others = [entry for entry in _entries(live) if not _is_same(entry, mine)]
        kept = {path for owned in (*(entry["fieldsV1"] for entry in others), fields) for path in fake_fields.members(owned)}
        for entry in _entries(live):
            if _is_same(entry, mine):
                for path in sorted(set(fake_fields.members(entry["fieldsV1"])) - kept, key=len):
                    fake_fields.remove(new, path)
        merged = fake_fields.merge(new, desired)
        contested = _contested(others, fields, merged, live)
        if contested and not force:
            raise Conflict(f"Apply failed with conflicts: {', '.join(sorted(contested))}")
        entries = _give_up(others, fields, merged, live or {}, keep=manager)
        return self._store(kind, merged, live, [*entries, {**mine, "fieldsV1": fields}])

    def _store(self, kind: Kind, new: Manifest, old: Manifest | None, entries: list[Manifest]) -> Manifest:
        metadata = new.setdefault("metadata", {})
        if kind.namespaced:
            metadata.setdefault("namespace", "default")
        metadata["managedFields"] = entries
        if old is not None and _without_version(new) == _without_version(old):
            return _copied(old)
        self._version += 1
        if old is None and self.clock is not None:
            metadata.setdefault("creationTimestamp", reading.stamp(self.clock()))
        metadata["resourceVersion"] = str(self._version)
        metadata["uid"] = old["metadata"]["uid"] if old else metadata.get("uid") or f"uid-{self._version}"
        generation = (old or {}).get("metadata", {}).get("generation", 0)
        metadata["generation"] = generation + 1 if old is None or old.get("spec") != new.get("spec") else generation
        self._objects[self._identity(kind, new)] = new
        return _copied(new)

    def _written(self, verb: str, kind: Kind, before: Manifest | None, after: Manifest) -> Manifest:
        if before is None or before["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"]:
            self.writes.append(Write(verb, kind.kind, after["metadata"]["name"]))
        return after


def _copied(value: Content) -> Content:
    """A copy, made as the wire makes it: what is not JSON is refused here as well."""
    copy: Content = json.loads(json.dumps(value))
    return copy


async def _play(steps: Sequence[LogStep]) -> AsyncIterator[bytes]:
    for step in steps:
        if isinstance(step, ClusterError):
            raise step
        if isinstance(step, bytes):
            yield step
        else:
            await asyncio.sleep(step)


def _entries(live: Manifest | None) -> list[Manifest]:
    return _copied((live or {}).get("metadata", {}).get("managedFields") or [])


def _is_same(entry: Manifest, mine: Manifest) -> bool:
    return all(entry.get(key, "") == mine.get(key, "") for key in ("manager", "operation", "subresource"))


def _contested(others: Sequence[Manifest], fields: Manifest, merged: Manifest, live: Manifest | None) -> set[str]:
    mine = set(fake_fields.leaves(fields))
    found = set()
    for entry in others:
        for path in mine & set(fake_fields.leaves(entry["fieldsV1"])):
            if path[-1] != "." and fake_fields.read(merged, path) != fake_fields.read(live, path):
                found.add(f"{entry['manager']}: {'.'.join(path)}")
    return found


def _give_up(entries: Sequence[Manifest], fields: Manifest, merged: Manifest, live: Manifest, *, keep: str) -> list[Manifest]:
    """The entries without the fields that somebody else has just set to another value."""
    owned = {path for entry in entries if entry["manager"] != keep for path in fake_fields.leaves(entry["fieldsV1"])}
    mine = owned & set(fake_fields.leaves(fields))
    taken = {path for path in mine if path[-1] != "." and fake_fields.read(merged, path) != fake_fields.read(live, path)}
    return [entry if entry["manager"] == keep else {**entry, "fieldsV1": _without(entry["fieldsV1"], taken)} for entry in entries]


def _existing_fields(entries: Sequence[Manifest], new: Manifest) -> list[Manifest]:
    gone = [{path for path in fake_fields.leaves(entry["fieldsV1"]) if not fake_fields.read(new, path)[0]} for entry in entries]
    return [{**entry, "fieldsV1": _without(entry["fieldsV1"], paths)} for entry, paths in zip(entries, gone, strict=True)]


def _without(fields: Manifest, taken: set[fake_fields.Path], path: fake_fields.Path = ()) -> Manifest:
    result: Manifest = {}
    for name, inner in fields.items():
        place = (*path, name)
        if not inner:
            if place not in taken:
                result[name] = inner
        elif kept := _without(inner, taken, place):
            result[name] = kept
    return result


def _without_version(manifest: Manifest) -> Manifest:
    drop = ("resourceVersion", "generation", "uid")
    return {**manifest, "metadata": {key: value for key, value in manifest["metadata"].items() if key not in drop}}

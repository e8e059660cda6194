"""A client that answers from memory what the watches keep up to date.

Most of what a reconciliation reads has just come in by a watch. Asking the API server for it again, six times per
reconciliation, was two thirds of all work, there and here. So VLLMDeployments, what bears our labels and Pods of ours are
kept as they were last seen; everything else, and all writes, go to the API server.

What makes this safe:

* Versions only grow. What a write returns is kept at once, so nothing is read that is older than what we wrote,
  and an event that was overtaken changes nothing. (Versions of one kind can be compared: Kubernetes 1.35 says so,
  etcd always did.)
* Watches lose deletions when they must list anew. So must we: `load` finds what has vanished meanwhile.
* What cannot be watched is not kept: those kinds are read as ever.

Objects are kept packed, a fraction of the memory, and every reader gets a copy of its own. Who manages which field is
only kept of what we apply. Of a ControllerRevision only the metadata and the number are kept: `find` returns these, and
`get` asks the API server for the data, which is immutable.
"""

import marshal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from vllm_operator.api import labels as names
from vllm_operator.cluster import client
from vllm_operator.cluster.client import POD, REVISION, VLLM_DEPLOYMENT, ClusterClient, Key, Kind, LogRequest, Manifest, kind_of
from vllm_operator.cluster.selectors import children_of, selector_of
from vllm_operator.pods.owner import instance_of

Place = tuple[str, str]
"""Namespace and name of any object."""

_NOT_APPLIED = (VLLM_DEPLOYMENT, POD, REVISION)


@dataclass(frozen=True, slots=True)
class _Kept:
    """An object as last seen.

    `packed` is None once it is deleted: an older version may still be on its way. `told`: whether what it says has been
    looked at, or will be: then the watch's word of it is no news.
    """

    version: int
    key: Key
    packed: bytes | None
    told: bool = True


class Mirror:
    """A `ClusterClient` in front of another one."""

    def __init__(self, client: ClusterClient) -> None:
        """Nothing is kept until `load`."""
        self._client = client
        self._kept: dict[Kind, dict[Place, _Kept]] = {}
        self._children: dict[Kind, dict[Key, set[Place]]] = {}

    async def load(self, kinds: Sequence[Kind], namespaces: Sequence[str] = (), *, changed: Callable[[Key], None]) -> None:
        """Read all objects of these kinds anew; from now on the watches must tell of changes.

        Args:
            kinds: What is watched, and so can be kept.
            namespaces: Where; everywhere if empty.
            changed: Called with the key of each VLLMDeployment with which something was not as it was known.

        Raises:
            ClusterError: Not all could be read. What was known of the rest stays.
        """
        for kind in kinds:
            for key in await self._load(kind, namespaces):
                changed(key)
        for kind in [kind for kind in self._kept if kind not in kinds]:
            self._drop(kind)

    def drop(self) -> None:
        """Nothing tells of changes any more: ask the API server for everything."""
        for kind in list(self._kept):
            self._drop(kind)

    async def list_keys(self, namespaces: Sequence[str] = ()) -> list[Key]:
        """All VLLMDeployments there are. Raises ClusterError."""
        if VLLM_DEPLOYMENT in self._kept:
            return [place for place, kept in self._kept[VLLM_DEPLOYMENT].items() if kept.packed is not None]
        listed = [item for namespace in namespaces or (None,) for item in await self._client.find(VLLM_DEPLOYMENT, namespace)]
        return [_place(item) for item in listed]

    def note(self, kind: Kind, manifest: Manifest, *, deleted: bool = False) -> set[Key]:
        """Take what a watch tells. Returns the VLLMDeployments to look at; none if it is no news.

        A child whose labels were changed concerns the VLLMDeployment that it belongs to by its labels, and the one that it
        belonged to before.
        """
        key = key_of(kind, manifest)
        if kind not in self._kept:
            return {key} if key is not None else set()
        known = self._kept[kind].get(_place(manifest))
        version = _version(manifest)
        if known is not None and (known.version > version or (known.version == version and known.told and not deleted)):
            return set()
        former = known.key if known is not None else None
        if (kept_key := key or former) is None:
            return set()
        packed = None if deleted or key is None else _packed(kind, manifest)
        self._keep(kind, manifest, _Kept(version, kept_key, packed))
        return {concerned for concerned in (key, former) if concerned is not None}

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        """Read one object. What is not known is asked for: it may lack our labels, and nothing is believed to be gone unseen."""
        known = self._kept.get(kind, {}).get((namespace or "", name))
        if known is not None and known.packed is not None and kind != REVISION:
            return _unpacked(known.packed)
        return await self._client.get(kind, name, namespace)

    async def get_path(self, path: str) -> Manifest:
        """Read a document."""
        return await self._client.get_path(path)

    async def find(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
        cached: bool = False,
    ) -> Sequence[Manifest]:
        """List objects: the children of one VLLMDeployment from memory."""
        instance = (labels or {}).get(names.INSTANCE_LABEL)
        of_one = namespace is not None and instance is not None and labels == children_of(kind, instance) and not fields
        if not of_one or kind not in self._kept or kind == VLLM_DEPLOYMENT:
            return await self._client.find(kind, namespace, labels=labels, fields=fields, cached=cached)
        return list(self._found(kind, (str(namespace), str(instance))))

    async def apply(self, manifest: Manifest, *, manager: str, force: bool = True) -> Manifest:
        """Server-side apply."""
        return self._written(await self._client.apply(manifest, manager=manager, force=force))

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """Server-side apply to the status."""
        return self._written(await self._client.apply_status(manifest, manager=manager))

    async def patch(self, kind: Kind, name: str, namespace: str | None, operations: Sequence[Manifest], *, manager: str) -> Manifest:
        """JSON patch."""
        return self._written(await self._client.patch(kind, name, namespace, operations, manager=manager))

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object."""
        return self._written(await self._client.create(manifest))

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, *, uid: str | None = None) -> None:
        """Delete an object. A watch tells when it is gone."""
        await self._client.delete(kind, name, namespace, uid=uid)

    def stream_log(self, request: LogRequest) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a log."""
        return self._client.stream_log(request)

    def watch(
        self, kind: Kind, name: str, namespace: str | None = None, *, seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        """Watch one object."""
        return self._client.watch(kind, name, namespace, seconds=seconds)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _load(self, kind: Kind, namespaces: Sequence[str]) -> set[Key]:
        before = dict(self._kept.get(kind, {}))
        selector = selector_of(kind)
        listed = [item for namespace in namespaces or (None,) for item in await self._client.find(kind, namespace, labels=selector)]
        kept = self._kept.setdefault(kind, {})
        changed = {key for item in listed for key in self.note(kind, item)}
        for place in before.keys() - {_place(item) for item in listed}:
            if kept.get(place) is before[place]:  # else it came back while we were listing
                del kept[place]
                self._index(kind, place, before[place].key, None)
                if before[place].packed is not None:
                    changed.add(before[place].key)
        return changed

    def _drop(self, kind: Kind) -> None:
        del self._kept[kind]
        self._children.pop(kind, None)

    def _written(self, manifest: Manifest) -> Manifest:
        """Keep what a write has made of an object of ours.

        A child that changed may allow the next step, so the watch's word of it counts. For a ControllerRevision nothing waits.
        A status that we wrote does not count, unless the answer shows what somebody else has written before.
        """
        kind, key = kind_of(manifest), key_of(kind_of(manifest), manifest)
        if kind not in self._kept or key is None or not _is_ours(kind, manifest):
            return manifest
        known = self._kept[kind].get(_place(manifest))
        if known is None or known.version < _version(manifest):
            told = kind == REVISION or (
                kind == VLLM_DEPLOYMENT and known is not None and known.told and _user_fields_of(known) == _user_fields(manifest)
            )
            self._keep(kind, manifest, _Kept(_version(manifest), key, _packed(kind, manifest), told))
        return manifest

    def _keep(self, kind: Kind, manifest: Manifest, kept: _Kept) -> None:
        place = _place(manifest)
        known = self._kept[kind].get(place)
        self._kept[kind][place] = kept
        self._index(kind, place, known.key if known else None, None if kept.packed is None else kept.key)

    def _found(self, kind: Kind, key: Key) -> Iterator[Manifest]:
        kept = self._kept[kind]
        for place in sorted(self._children.get(kind, {}).get(key, ())):
            packed = kept[place].packed
            if packed is not None:
                yield _unpacked(packed)

    def _index(self, kind: Kind, place: Place, old: Key | None, new: Key | None) -> None:
        children = self._children.setdefault(kind, {})
        if old is not None and old != new and old in children:
            children[old].discard(place)
            if not children[old]:
                del children[old]
        if new is not None:
            children.setdefault(new, set()).add(place)


def key_of(kind: Kind, manifest: Manifest) -> Key | None:
    """The key of the VLLMDeployment that an object is or belongs to, by its labels; None if it belongs to none."""
    metadata: Mapping[str, Any] = manifest.get("metadata") or {}
    match kind:
        case client.VLLM_DEPLOYMENT:
            name = metadata.get("name")
        case client.POD:
            name = instance_of(manifest)
        case _:
            name = (metadata.get("labels") or {}).get(names.INSTANCE_LABEL)
    namespace = metadata.get("namespace")
    return (namespace, name) if namespace and name else None


def _place(manifest: Manifest) -> Place:
    metadata = manifest["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def _version(manifest: Manifest) -> int:
    return int(manifest["metadata"]["resourceVersion"])


def _is_ours(kind: Kind, manifest: Manifest) -> bool:
    return selector_of(kind).items() <= (manifest["metadata"].get("labels") or {}).items()


def _user_fields(manifest: Manifest) -> tuple[Any, ...]:
    """What a user changes of an object. The spec has a generation."""
    metadata = manifest["metadata"]
    return tuple(metadata.get(field) for field in ("uid", "generation", "labels", "annotations", "deletionTimestamp"))


def _user_fields_of(kept: _Kept) -> tuple[Any, ...] | None:
    return None if kept.packed is None else _user_fields(_unpacked(kept.packed))


def _packed(kind: Kind, manifest: Manifest) -> bytes:
    """What JSON can say, marshal packs in a third of the time of pickle; the bytes never leave this process."""
    if kind in _NOT_APPLIED:
        metadata = {field: value for field, value in manifest["metadata"].items() if field != "managedFields"}
        manifest = {**manifest, "metadata": metadata}
    if kind == REVISION:
        manifest = {field: value for field, value in manifest.items() if field != "data"}
    return marshal.dumps(manifest)


def _unpacked(packed: bytes) -> Manifest:
    manifest: Manifest = marshal.loads(packed)
    return manifest

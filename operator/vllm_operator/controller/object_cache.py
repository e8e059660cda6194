"""A client with a cache of the objects that the watches keep up to date.

A reconciliation mostly reads objects that a watch has just delivered. Therefore VLLMDeployments, presets, the children and the Pods are
kept in memory. All other reads, and all writes, go to the API server.

A resourceVersion only grows (comparable within a kind: documented since Kubernetes 1.35). The result of a write is kept immediately, so no
read returns an older object than the operator wrote, and a late watch event changes nothing. An interrupted watch misses deletions. It
lists before it resumes; then `refresh` lists too, and finds deleted objects. Kinds that cannot be watched are not kept.

Objects are kept as JSON, so each reader gets a copy. Lists are read in pages, so at most one page is in memory as Python objects.
`managedFields` are kept only for children. Of a ControllerRevision, only the metadata and the number are kept: `find` returns these, and
`get` reads the data, which is immutable, from the API server.
"""

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from vllm_operator.api import labels, reading
from vllm_operator.api.base import cut_depth
from vllm_operator.controller.queue import Priority
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterClient, ClusterError, Key, Kind, Manifest, Query, children_of, kind_of, watched_labels
from vllm_operator.pods.view import instance_of

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.1
"""Delay between the start of a watch and the list. After an outage, several watches start together."""
RETRY_SECONDS = 2.0
"""Delay before a failed list is retried."""
_PRESETS = (kube.PRESET, kube.CLUSTER_PRESET)
_OWN_KEYS = (kube.VLLM_DEPLOYMENT, *_PRESETS)
"""Kinds whose objects have a key of their own. The key of all others is that of the VLLMDeployment they belong to."""
_NOT_APPLIED = (*_OWN_KEYS, kube.POD, kube.REVISION)
"""Kinds whose `managedFields` are dropped."""


@dataclass(slots=True, eq=False)
class CachedObject:
    """The last known version of an object."""

    version: int
    key: Key
    """The VLLMDeployment or preset itself, or the VLLMDeployment that the object belongs to."""
    content: bytes | None
    """JSON. None after the deletion, because an older version may still arrive."""
    user_fields: tuple[Any, ...] = ()
    """Fields of a VLLMDeployment that users change. A change of the operator's own status triggers nothing."""
    is_seen: bool = True
    """Whether a watch event or a list has delivered this version. False after a write of the operator, until its event arrives.

    That event reconciles the object once, because the write may have made the next step possible."""

    def manifest(self) -> Manifest | None:
        """Return a copy of the object; None after its deletion."""
        if self.content is None:
            return None
        manifest: Manifest = json.loads(self.content)
        return manifest


class ObjectCache:
    """A `ClusterClient` that caches the objects of another one."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self.get_path, self.pages, self.stream_log = client.get_path, client.pages, client.stream_log
        self.delete = client.delete  # a watch event reports the deletion
        self._objects: dict[Kind, dict[Key, CachedObject]] = {}
        self._children: defaultdict[tuple[Kind, Key], set[Key]] = defaultdict(set)
        self._complete: set[Kind] = set()
        """Kinds whose pages have all been listed. Other kinds are read from the API server."""

    async def refresh(self, kind: Kind, namespaces: Sequence[str] = ()) -> set[Key]:
        """List all objects of a kind; return the keys of the objects that differ from the cache. If it raises ClusterError, they stay."""
        objects = self._objects.setdefault(kind, {})
        before = dict(objects)
        changed, listed = set[Key](), set[Key]()
        for namespace in namespaces if kind.namespaced and namespaces else (None,):
            async for page in self._client.pages(kind, namespace, labels=watched_labels(kind)):
                for item in page:
                    listed.add(name_of(item))
                    changed |= self.note(kind, item)
        for name in before.keys() - listed:
            if objects.get(name) is before[name]:  # otherwise it was created again during the list
                self._forget(kind, name)
                if before[name].content is not None:
                    changed.add(before[name].key)
        self._complete.add(kind)
        return changed

    def unowned(self, kind: Kind) -> list[Manifest]:
        """Return the objects of a watched kind whose VLLMDeployment does not exist; none until all objects are known."""
        if not (self.is_complete(kind) and self.is_complete(kube.VLLM_DEPLOYMENT)):
            return []
        owners = self._objects[kube.VLLM_DEPLOYMENT]
        gone = (each for each in list(self._objects[kind].values()) if (owner := owners.get(each.key)) is None or owner.content is None)
        return [manifest for each in gone if (manifest := each.manifest()) is not None]

    def known(self, kind: Kind, namespace: str | None) -> list[Manifest]:
        """Return the objects of a watched kind, in a namespace or in all."""
        return self._found(kind, (name for name in self._objects.get(kind, ()) if namespace in (None, name[0])))

    def users_of(self, kind: Kind, preset: Key) -> list[Key]:
        """Return the VLLMDeployments that name a preset."""
        named = {"kind": kind.kind, "name": preset[1]}
        resources = self.known(kube.VLLM_DEPLOYMENT, preset[0] or None)
        return [name_of(each) for each in resources if {"kind": kube.PRESET.kind, **reading.mapping(each, "spec", "presetRef")} == named]

    def is_complete(self, kind: Kind) -> bool:
        """Return whether the cache has all objects of a kind."""
        return kind in self._complete

    def note(self, kind: Kind, manifest: Manifest, *, deleted: bool = False) -> set[Key]:
        """Store the object of a watch event; return the affected keys, none if nothing has changed.

        After a change of the labels, that includes the former owner. For a preset, it is the key of the preset.
        """
        name, key, version = name_of(manifest), key_of(kind, manifest), _version_of(manifest)
        if kind not in self._objects:
            return {key} if key is not None else set()
        known = self._objects[kind].get(name)
        if known is not None and (known.version > version or (known.version == version and known.is_seen and not deleted)):
            return set()
        former = known.key if known is not None else None
        if (kept_key := key or former) is None:
            return set()
        now = CachedObject(version, kept_key, None) if deleted or key is None else _cached(kind, manifest, key)
        self._keep(kind, name, now)
        is_status = known is not None and known.is_seen and now.content is not None and known.user_fields == now.user_fields
        if kind == kube.VLLM_DEPLOYMENT and is_status:
            return set()
        return {affected for affected in (key, former) if affected is not None}

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        """Read one object, from the API server if it is not cached: it may exist without the operator's labels."""
        known = self._objects[kind].get((namespace or "", name)) if self.is_complete(kind) and kind != kube.REVISION else None
        manifest = known.manifest() if known is not None else None
        return manifest if manifest is not None else await self._client.get(kind, name, namespace)

    async def find(self, kind: Kind, namespace: str | None = None, **query: Unpack[Query]) -> Sequence[Manifest]:
        """List objects. VLLMDeployments, presets and the children of one VLLMDeployment come from memory."""
        selected = query.get("labels") or {}
        if self.is_complete(kind) and not query.get("fields"):
            if kind in _OWN_KEYS and not selected:
                return self.known(kind, namespace)
            instance = selected.get(labels.INSTANCE_LABEL)
            if namespace is not None and instance is not None and selected == children_of(kind, instance):
                return self._found(kind, sorted(self._children.get((kind, (namespace, instance)), ())))
        return await self._client.find(kind, namespace, **query)

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

    def _written(self, manifest: Manifest) -> Manifest:
        """Store the result of a write. Its watch event triggers one reconciliation, unless it is the operator's own status."""
        kind = kind_of(manifest)
        key = key_of(kind, manifest)
        is_selected = watched_labels(kind).items() <= (manifest["metadata"].get("labels") or {}).items()
        if kind not in self._objects or key is None or not is_selected:
            return manifest
        known = self._objects[kind].get(name_of(manifest))
        if known is None or known.version < _version_of(manifest):
            now = _cached(kind, manifest, key)
            now.is_seen = kind == kube.VLLM_DEPLOYMENT and known is not None and known.user_fields == now.user_fields
            self._keep(kind, name_of(manifest), now)
        return manifest

    def _keep(self, kind: Kind, name: Key, cached: CachedObject) -> None:
        self._forget(kind, name)
        self._objects[kind][name] = cached
        if cached.content is not None:
            self._children[kind, cached.key].add(name)

    def _forget(self, kind: Kind, name: Key) -> None:
        if (known := self._objects[kind].pop(name, None)) is not None:
            names_of_key = self._children[kind, known.key]
            names_of_key.discard(name)
            if not names_of_key:
                del self._children[kind, known.key]

    def _found(self, kind: Kind, wanted: Iterable[Key]) -> list[Manifest]:
        return [manifest for name in wanted if (manifest := self._objects[kind][name].manifest()) is not None]


@dataclass(slots=True, kw_only=True)
class ObjectCacheUpdater:
    """Puts watch events into the cache, lists kinds again, and adds the keys of changed objects to the queue.

    kopf lists a kind before it watches it, at the start and whenever a watch has lost its place. kopf does not report objects that were
    deleted in between. Therefore the updater lists the kind right after kopf has: the events that follow in the watch are later than both
    lists.
    """

    cache: ObjectCache
    add: Callable[[Key, Priority], None]
    """Adds the key of a VLLMDeployment to the queue."""
    namespaces: Sequence[str] = ()
    seconds: float = 600.0
    """Interval in which all kinds are listed."""
    settle_seconds: float = SETTLE_SECONDS
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all kinds have been listed once."""
    _outdated: set[Kind] = field(default_factory=set)
    _recheck: asyncio.Event = field(default_factory=asyncio.Event)

    def notice(self, kind: Kind, manifest: Manifest, *, deleted: bool) -> None:
        """Handle a watch event."""
        for key in self.cache.note(kind, manifest, deleted=deleted):
            self._add(kind, key)

    def recheck(self, kind: Kind) -> None:
        """List the objects of a kind when its watch begins, because events may have been missed."""
        self._outdated.add(kind)
        self._recheck.set()

    async def add_all(self) -> None:
        """Add the keys of all VLLMDeployments. Raises ClusterError."""
        for namespace in self.namespaces or (None,):
            for resource in await self.cache.find(kube.VLLM_DEPLOYMENT, namespace):
                self.add(name_of(resource), Priority.RESYNC)

    async def run(self, kinds: Sequence[Kind]) -> None:
        """Keep these kinds up to date in the cache until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self.seconds):
                    await self._recheck.wait()
            except TimeoutError:
                self._outdated.update(kinds)
            await asyncio.sleep(self.settle_seconds)
            self._recheck.clear()
            outdated, self._outdated = self._outdated, set()
            try:
                await self._list(kinds, outdated)
            except ClusterError as error:
                log.debug("cannot list objects: %s", error)
                self._outdated |= outdated
                self._recheck.set()
                await asyncio.sleep(min(RETRY_SECONDS, 20 * self.settle_seconds))

    async def _list(self, kinds: Sequence[Kind], outdated: Collection[Kind]) -> None:
        for kind in [kind for kind in kinds if kind in outdated]:
            keys = await self.cache.refresh(kind, self.namespaces)
            for key in keys if self.loaded.is_set() else ():
                self._add(kind, key)
        if not self.loaded.is_set() and all(map(self.cache.is_complete, kinds)):
            await self.add_all()
            self.loaded.set()

    def _add(self, kind: Kind, key: Key) -> None:
        priority = Priority.CHANGE if kind in _OWN_KEYS else Priority.EVENT
        for affected in self.cache.users_of(kind, key) if kind in _PRESETS else (key,):
            self.add(affected, priority)


def key_of(kind: Kind, manifest: Manifest) -> Key | None:
    """Return the key of the VLLMDeployment that an object belongs to by its labels, or its own key; None if there is none."""
    if kind in _OWN_KEYS:
        return name_of(manifest)
    name = instance_of(manifest) if kind == kube.POD else reading.mapping(manifest, "metadata", "labels").get(labels.INSTANCE_LABEL)
    namespace = manifest["metadata"].get("namespace")
    return (namespace, name) if namespace and name else None


def name_of(manifest: Manifest) -> Key:
    """Return namespace and name of an object."""
    metadata = manifest["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def _version_of(manifest: Manifest) -> int:
    return int(manifest["metadata"]["resourceVersion"])


def _cached(kind: Kind, manifest: Manifest, key: Key) -> CachedObject:
    user_fields: tuple[Any, ...] = ()
    if kind == kube.VLLM_DEPLOYMENT:
        fields = ("uid", "generation", "labels", "annotations", "deletionTimestamp")
        user_fields = tuple(manifest["metadata"].get(field) for field in fields)
    if kind in _NOT_APPLIED:
        metadata = {field: value for field, value in manifest["metadata"].items() if field != "managedFields"}
        manifest = {**manifest, "metadata": metadata}
    if kind == kube.REVISION:
        manifest = {field: value for field, value in manifest.items() if field != "data"}
    return CachedObject(_version_of(manifest), key, _serialize(manifest), user_fields)


def _serialize(manifest: Manifest) -> bytes:
    """Serialize an object. Fields without a schema may be nested deeper than Python serializes: deep levels become null."""
    try:
        return json.dumps(manifest).encode()
    except RecursionError:
        return json.dumps(cut_depth(manifest)).encode()

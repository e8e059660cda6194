"""A client that reads from memory what the watches keep up to date.

A watch has usually just delivered what a reconciliation reads. Reading it from the API server, with six requests for each
reconciliation, was two thirds of all work of both. So VLLMDeployments, their children and their Pods are kept in memory. All other
reads, and all writes, go to the API server.

Why this is safe:

* A resourceVersion only grows. The result of a write is kept at once, so no read returns an older object than the operator wrote,
  and a late watch event changes nothing. (Versions of one kind are comparable: documented since Kubernetes 1.35.)
* The watches begin at the versions of the lists (`versions`). A watch that lost its place misses deletions; then `refresh` lists again,
  and finds what is gone.
* Kinds that cannot be watched are not kept; they are read from the API server.

Objects are kept serialized, and compressed after a while, which takes a fraction of the memory; each reader gets a copy. Lists are read in
pages, so that no more than one page is ever in memory as Python objects. `managedFields` are kept only for children.
Of a ControllerRevision, only the metadata and the number are kept: `find` returns these, and `get` reads the data, which is immutable, from
the API server.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field

from vllm_operator.api import labels as names
from vllm_operator.cluster.client import (
    DEPLOYMENT,
    REVISION,
    SERVICE,
    VLLM_DEPLOYMENT,
    ClusterClient,
    Gone,
    Key,
    Kind,
    LogRequest,
    Manifest,
    NotFound,
    Page,
    children_of,
    kind_of,
    selector_of,
)
from vllm_operator.cluster.kept import (
    DICTIONARY_LIMIT,
    UNCOMPRESSED_BYTES,
    Kept,
    ObjectName,
    Uncompressed,
    is_selected,
    key_of,
    make_kept,
    name_of,
    version_of,
)

LIST_TRIES = 3
"""How often a list is begun again that took so long that the API server forgot its version."""
_AWAITED_BY_NOBODY = (REVISION, SERVICE, DEPLOYMENT)
"""Children whose change by the operator allows no next step."""


@dataclass(slots=True)
class _Write:
    """A write under way: the version of its result, and the VLLMDeployments that watch events about the object affect meanwhile."""

    version: int | None = None
    withheld: set[Key] = field(default_factory=set)


class Mirror:
    """A `ClusterClient` in front of another one."""

    def __init__(
        self, client: ClusterClient, *, serves: Callable[[str], bool] = lambda namespace: True, uncompressed_bytes: int = UNCOMPRESSED_BYTES
    ) -> None:
        """Keep nothing before `load`, and later no objects of a namespace for which `serves` is false: as if they did not exist."""
        self._client = client
        self._serves = serves
        self.changed: Callable[[Key], None] = lambda key: None
        """Called with the key of a VLLMDeployment if a watch event during a write turns out to be about something else."""
        self._writing: dict[tuple[Kind, ObjectName], _Write] = {}
        self._kept: dict[Kind, dict[ObjectName, Kept]] = {}
        self._children: dict[Kind, dict[Key, tuple[ObjectName, ...]]] = {}
        self._uncompressed = Uncompressed(uncompressed_bytes)
        self._dictionaries: dict[Kind, bytes] = {}
        """A large object of each kind, serialized. The others are compressed with it."""
        self._versions: dict[tuple[Kind, str | None], str] = {}
        self._incomplete: set[Kind] = set()
        """Kinds of which only some pages have been listed yet. They are read from the API server."""

    async def load(self, kinds: Sequence[Kind], namespaces: Sequence[str] = (), *, changed: Callable[[Key], None]) -> None:
        """List all objects of these kinds, and keep them. From now on, `note` must be called with each watch event.

        Args:
            kinds: Kinds that are watched.
            namespaces: Where; all namespaces if empty.
            changed: Called with the key of each VLLMDeployment for which something differs from what was kept.

        Raises:
            ClusterError: Not all could be listed. What was kept of the others stays.
        """
        await self.refresh(kinds, namespaces, changed=changed)
        for kind in [kind for kind in self._kept if kind not in kinds]:
            self._drop(kind)

    async def refresh(self, kinds: Sequence[Kind], namespaces: Sequence[str] = (), *, changed: Callable[[Key], None]) -> None:
        """Do what `load` does, and keep other kinds and other namespaces as they are. Raises ClusterError."""
        for kind in kinds:
            for key in await self._load(kind, namespaces):
                changed(key)

    def versions(self) -> dict[tuple[Kind, str | None], str]:
        """The resourceVersion of the last list of each kind, by kind and namespace (None: all): where a watch has to begin."""
        return dict(self._versions)

    def drop(self) -> None:
        """Keep nothing more, because the watches have ended."""
        for kind in list(self._kept):
            self._drop(kind)
        self._uncompressed.clear()

    async def list_keys(self, namespaces: Sequence[str] = ()) -> list[Key]:
        """The keys of all VLLMDeployments. Raises ClusterError."""
        if self._answers(VLLM_DEPLOYMENT):
            return [place for place, kept in self._kept[VLLM_DEPLOYMENT].items() if kept.packed is not None]
        return [
            name_of(item)
            for namespace in namespaces or (None,)
            async for page in self._client.pages(VLLM_DEPLOYMENT, namespace)
            for item in self._served(page)
        ]

    def kept(self, kind: Kind, key: Key) -> Manifest | None:
        """A VLLMDeployment or its Deployment, which has the same name, as far as it is kept; None otherwise."""
        known = self._kept.get(kind, {}).get(key)
        return known.manifest() if known is not None else None

    def note(self, kind: Kind, manifest: Manifest, *, deleted: bool = False) -> set[Key]:
        """Keep the object of a watch event; return the VLLMDeployments to reconcile, none if nothing is new.

        A child with changed labels affects the VLLMDeployment that it belongs to now and the one that it belonged to before.
        """
        if not self._serves(name_of(manifest)[0]):
            return set()
        key = key_of(kind, manifest)
        if kind not in self._kept:
            return {key} if key is not None else set()
        known = self._kept[kind].get(name_of(manifest))
        version = version_of(manifest)
        if known is not None and (known.version > version or (known.version == version and known.noticed and not deleted)):
            return set()
        former = known.key if known is not None else None
        if (kept_key := key or former) is None:
            return set()
        now = Kept(version, kept_key, None) if deleted or key is None else make_kept(kind, manifest, kept_key)
        self._keep(kind, manifest, now)
        is_seen = known is not None and known.noticed and key == former and now.packed is not None
        if is_seen and kind == DEPLOYMENT and known is not None and now.digest == known.digest:
            return set()
        affected = {it for it in (key, former) if it is not None}
        write = self._writing.get((kind, name_of(manifest)))
        if write is None or deleted:
            return affected
        write.withheld |= affected
        return set()

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        """Read one object. One that is not kept is read from the API server: it may exist without the operator's labels."""
        if kind == VLLM_DEPLOYMENT and not self._serves(namespace or ""):
            raise NotFound(f"the namespace {namespace} belongs to another operator")
        known = self._kept[kind].get((namespace or "", name)) if self._answers(kind) else None
        manifest = known.manifest() if known is not None and kind != REVISION else None
        if manifest is not None:
            return manifest
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
        """List objects; the children of one VLLMDeployment from memory."""
        instance = (labels or {}).get(names.INSTANCE_LABEL)
        of_one = namespace is not None and instance is not None and labels == children_of(kind, instance) and not fields
        if not of_one or kind == VLLM_DEPLOYMENT or not self._answers(kind):
            return await self._client.find(kind, namespace, labels=labels, fields=fields, cached=cached)
        return list(self._found(kind, (str(namespace), str(instance))))

    def pages(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Page]:
        """List objects on the API server."""
        return self._client.pages(kind, namespace, labels=labels, fields=fields)

    async def apply(self, manifest: Manifest, *, manager: str, force: bool = True) -> Manifest:
        """Server-side apply."""
        with self._withholding(kind_of(manifest), name_of(manifest)):
            return self._written(await self._client.apply(manifest, manager=manager, force=force))

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """Server-side apply to the status."""
        kind, name = kind_of(manifest), name_of(manifest)
        with self._forgetting(kind, name), self._withholding(kind, name):
            return self._written(await self._client.apply_status(manifest, manager=manager))

    async def patch(self, kind: Kind, name: str, namespace: str | None, operations: Sequence[Manifest], *, manager: str) -> Manifest:
        """JSON patch."""
        with self._forgetting(kind, (namespace or "", name)), self._withholding(kind, (namespace or "", name)):
            return self._written(await self._client.patch(kind, name, namespace, operations, manager=manager))

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object."""
        with self._withholding(kind_of(manifest), name_of(manifest)):
            return self._written(await self._client.create(manifest))

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, *, uid: str | None = None) -> None:
        """Delete an object. It is kept until a watch event says that it is gone."""
        await self._client.delete(kind, name, namespace, uid=uid)

    def stream_log(self, request: LogRequest) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a log."""
        return self._client.stream_log(request)

    def watch(
        self, kind: Kind, name: str | None, namespace: str | None = None, *, seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        """Watch one object, or all."""
        return self._client.watch(kind, name, namespace, seconds=seconds)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _load(self, kind: Kind, namespaces: Sequence[str]) -> set[Key]:
        if kind not in self._kept:
            self._kept[kind] = {}
            self._incomplete.add(kind)
        kept = self._kept[kind]
        before = {place: known for place, known in kept.items() if not namespaces or place[0] in namespaces}
        changed, listed = set[Key](), set[ObjectName]()
        for namespace in namespaces or (None,):
            async for page in self._pages(kind, namespace):
                for item in self._served(page):
                    listed.add(name_of(item))
                    changed |= self.note(kind, item)
        for place in before.keys() - listed:
            if kept.get(place) is before[place]:  # otherwise it was created again during the list
                del kept[place]
                self._index(kind, place, before[place].key, None)
                if before[place].packed is not None:
                    changed.add(before[place].key)
        self._incomplete.discard(kind)
        return changed

    def _served(self, page: Page) -> Iterator[Manifest]:
        return (item for item in page.items if self._serves(name_of(item)[0]))

    def _answers(self, kind: Kind) -> bool:
        """Whether all objects of a kind are kept."""
        return kind in self._kept and kind not in self._incomplete

    async def _pages(self, kind: Kind, namespace: str | None) -> AsyncIterator[Page]:
        """The pages of a list. One that takes too long is begun again: what was listed twice is kept once."""
        for attempt in range(1, LIST_TRIES + 1):
            try:
                async for page in self._client.pages(kind, namespace, labels=selector_of(kind)):
                    yield page
                    self._versions[kind, namespace] = page.version
                return
            except Gone:
                if attempt == LIST_TRIES:
                    raise

    @contextmanager
    def _forgetting(self, kind: Kind, name: ObjectName) -> Iterator[None]:
        """Forget an object that a write does not find: no watch event may tell that it was deleted."""
        before = self._kept.get(kind, {}).get(name)
        try:
            yield
        except NotFound:
            if before is not None and self._kept.get(kind, {}).get(name) is before:  # otherwise it was created again
                del self._kept[kind][name]
                self._index(kind, name, before.key, None)
            raise

    @contextmanager
    def _withholding(self, kind: Kind, name: ObjectName) -> Iterator[None]:
        """Withhold watch events about an object until the result of a write says whether they are about this write.

        The event of a write often comes before its result, and would cause a reconciliation for nothing.
        """
        before = self._kept.get(kind, {}).get(name)
        if (
            kind not in (*_AWAITED_BY_NOBODY, VLLM_DEPLOYMENT)
            or (before is not None and not before.noticed)
            or (kind, name) in self._writing
        ):
            yield
            return
        write = self._writing[kind, name] = _Write()
        try:
            yield
        finally:
            del self._writing[kind, name]
            if write.withheld and not self._is_own(kind, before, self._kept.get(kind, {}).get(name), write.version):
                for key in write.withheld:
                    self.changed(key)

    def _is_own(self, kind: Kind, before: Kept | None, now: Kept | None, written: int | None) -> bool:
        """Whether what is kept of an object now is the result of a write, and of nothing else that matters."""
        if now is None or now.version != written:
            return False
        return kind != VLLM_DEPLOYMENT or (before is not None and before.digest == now.digest)

    def _drop(self, kind: Kind) -> None:
        del self._kept[kind]
        self._incomplete.discard(kind)
        self._children.pop(kind, None)
        self._dictionaries.pop(kind, None)
        self._versions = {place: version for place, version in self._versions.items() if place[0] != kind}

    def _written(self, manifest: Manifest) -> Manifest:
        """Keep the result of a write.

        A changed child may allow the next step, so its watch event counts as new. Nothing waits for a ControllerRevision or a Service, and
        for a Deployment only when its controller has seen it, which another watch event tells. The status of a VLLMDeployment does not
        count, unless the result contains a change by others.
        """
        kind, key = kind_of(manifest), key_of(kind_of(manifest), manifest)
        if kind not in self._kept or key is None or not is_selected(kind, manifest):
            return manifest
        if (write := self._writing.get((kind, name_of(manifest)))) is not None:
            write.version = version_of(manifest)
        known = self._kept[kind].get(name_of(manifest))
        if known is None or known.version < version_of(manifest):
            now = make_kept(kind, manifest, key)
            is_noticed = kind == VLLM_DEPLOYMENT and known is not None and known.noticed and known.digest == now.digest
            now.noticed = is_noticed or kind in _AWAITED_BY_NOBODY
            self._keep(kind, manifest, now)
        return manifest

    def _compress(self, kind: Kind, kept: Kept) -> None:
        serialized, dictionary = kept.packed or b"", self._dictionaries.get(kind, b"")
        if 2 * len(dictionary) < len(serialized) <= DICTIONARY_LIMIT:  # the first of a kind may have no status yet
            dictionary = self._dictionaries[kind] = serialized
        kept.compress(dictionary)

    def _keep(self, kind: Kind, manifest: Manifest, kept: Kept) -> None:
        place = name_of(manifest)
        known = self._kept[kind].get(place)
        self._kept[kind][place] = kept
        for of_kind, oldest in self._uncompressed.put(kind, place, kept):
            self._compress(of_kind, oldest)
        self._index(kind, place, known.key if known else None, None if kept.packed is None else kept.key)

    def _found(self, kind: Kind, key: Key) -> Iterator[Manifest]:
        kept = self._kept[kind]
        for place in sorted(self._children.get(kind, {}).get(key, ())):
            manifest = kept[place].manifest()
            if manifest is not None:
                yield manifest

    def _index(self, kind: Kind, place: ObjectName, old: Key | None, new: Key | None) -> None:
        children = self._children.setdefault(kind, {})
        if old is not None and old != new and old in children:
            children[old] = tuple(other for other in children[old] if other != place)
            if not children[old]:
                del children[old]
        if new is not None and place not in (places := children.get(new, ())):
            children[new] = (*places, place)

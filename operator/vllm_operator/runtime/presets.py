"""The presets of the cluster, read when a VLLMDeployment first asks for one of a kind, and followed from then on.

Nothing is read or watched while no object names a preset: the CRDs may be missing, for example after an upgrade of the operator alone.
Presets are few, so each event of a watch lists them again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.api.conditions import Reason
from vllm_operator.api.operation import PresetKind, PresetReference
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ConditionStatus
from vllm_operator.cluster.client import CLUSTER_PRESET, PRESET, ClusterClient, ClusterError, Forbidden, Key, Kind, NotFound
from vllm_operator.planning.outcome import Verdict
from vllm_operator.planning.presets import missing_definition, missing_preset, with_preset
from vllm_operator.pods.reading import mapping

log = logging.getLogger(__name__)

KINDS = {PresetKind.VLLM_PRESET: PRESET, PresetKind.CLUSTER_VLLM_PRESET: CLUSTER_PRESET}
RETRY_SECONDS = 2.0
"""Pause between two watches."""
MISSING_SECONDS = 30.0
"""Pause between two attempts while the CRD or a permission is missing."""
SETTLE_SECONDS = 0.1
"""Pause between an event and the list that follows. A watch begins with an event for each object."""

Content = Mapping[str, Any]
Name = tuple[str, str]
"""Namespace, empty for a ClusterVLLMPreset, and name."""


@dataclass(slots=True)
class _Scope:
    """The presets of a kind in a namespace, or in all (None). `presets` is None while they cannot be listed; then `failure` says why."""

    kind: Kind
    namespace: str | None
    presets: dict[Name, Content] | None = None
    failure: ClusterError | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class Presets:
    """The presets that VLLMDeployments name."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        namespaces: Sequence[str] = (),
        seconds: float = 600.0,
        changed: Callable[[Key], None] = lambda key: None,
        missing_seconds: float = MISSING_SECONDS,
    ) -> None:
        """Prepare to read.

        Args:
            client: The client for the API server.
            namespaces: The namespaces that the operator serves; all if empty.
            seconds: Duration of a watch. After each, the presets are listed again.
            changed: Called with the key of each VLLMDeployment whose preset has changed.
            missing_seconds: Pause between two attempts while the CRD or a permission is missing.
        """
        self._client = client
        self._seconds = seconds
        self._changed = changed
        self._missing_seconds = missing_seconds
        self._scopes = [_Scope(PRESET, namespace) for namespace in namespaces or (None,)] + [_Scope(CLUSTER_PRESET, None)]
        self._users: dict[Key, tuple[Kind, Name]] = {}

    async def merge(self, resource: VLLMDeployment) -> VLLMDeployment | Verdict:
        """Merge the preset that an object names into its spec, or return why that is not possible.

        Raises:
            ClusterError: The API server does not answer. Try again.
        """
        reference, key = resource.spec.preset, (resource.metadata.namespace, resource.metadata.name)
        if reference is None:
            self.forget(key)
            return resource
        try:
            found = await self._find(reference, key)
        except ClusterError as error:
            merged = with_preset(resource, _unreadable(reference, error))
            if isinstance(merged, VLLMDeployment):
                return merged  # the plan in force needs nothing
            raise
        return with_preset(resource, found)

    def forget(self, key: Key) -> None:
        """An object is gone, or names no preset."""
        self._users.pop(key, None)

    async def run(self) -> None:
        """Follow the presets of each kind that an object has asked for, until cancelled."""
        # not a TaskGroup, which goes on without a task that was cancelled
        await asyncio.gather(*(asyncio.create_task(self._follow(scope), name="preset watch") for scope in self._scopes))

    async def _find(self, reference: PresetReference, key: Key) -> Content | Verdict:
        """The spec of a preset, or why there is none. Raises Unavailable."""
        kind = KINDS[reference.kind]
        name = (key[0] if kind.namespaced else "", reference.name)
        self._users[key] = (kind, name)
        scope = next(it for it in self._scopes if it.kind == kind and it.namespace in (None, key[0]))
        if scope.presets is None:
            await self._read(scope)
        scope.asked.set()
        if scope.presets is None:
            return self._explain(reference, scope)
        if name in scope.presets:
            return scope.presets[name]
        return missing_preset(reference, key[0], [each for namespace, each in scope.presets if namespace == name[0]])

    def _explain(self, reference: PresetReference, scope: _Scope) -> Verdict:
        match scope.failure:
            case NotFound():
                return missing_definition(reference)
            case Forbidden() as error:
                message = f"The operator may not {error.verb} {error.resource}, so {reference} is unknown. Allow it in its ClusterRole."
                return Verdict(ConditionStatus.UNKNOWN, Reason.PERMISSION_MISSING, message)
            case error:
                return _unreadable(reference, error)

    async def _read(self, scope: _Scope) -> None:
        """List the presets, and queue the objects whose preset has changed. Raises ClusterError other than NotFound and Forbidden."""
        async with scope.reading:
            before = scope.presets
            try:
                found = await self._client.find(scope.kind, scope.namespace)
            except (NotFound, Forbidden) as error:
                scope.presets, scope.failure = None, error
            else:
                scope.presets, scope.failure = {_name_of(item): mapping(item, "spec") for item in found}, None
        if not scope.asked.is_set():
            return  # the first object that asks is being reconciled
        old, new = before or {}, scope.presets or {}
        is_other = (before is None) != (scope.presets is None)
        for key, (kind, name) in list(self._users.items()):
            if kind == scope.kind and scope.namespace in (None, key[0]) and (is_other or old.get(name) != new.get(name)):
                self._changed(key)

    async def _follow(self, scope: _Scope) -> None:
        await scope.asked.wait()
        while True:
            pause = RETRY_SECONDS
            try:
                await self._watch(scope)
            except (NotFound, Forbidden) as error:
                log.debug("%s cannot be watched: %s", scope.kind.plural, error)
                pause = self._missing_seconds
            except ClusterError as error:
                log.debug("%s cannot be watched: %s", scope.kind.plural, error)
            except Exception:
                log.exception("%s cannot be followed; retrying", scope.kind.plural)
            await asyncio.sleep(pause)

    async def _watch(self, scope: _Scope) -> None:
        """List the presets when a watch begins, and after its events. Raises ClusterError."""
        happened = asyncio.Event()
        try:
            async with self._client.watch(scope.kind, None, scope.namespace, seconds=self._seconds) as events:
                happened.set()
                reader = asyncio.create_task(self._read_after(scope, happened))
                try:
                    async for _ in events:
                        happened.set()
                        if reader.done():
                            break
                finally:
                    reader.cancel()
                    await asyncio.wait({reader})
                if not reader.cancelled():
                    reader.result()
        except (NotFound, Forbidden):
            await self._read(scope)
            raise

    async def _read_after(self, scope: _Scope, happened: asyncio.Event) -> None:
        while True:
            await happened.wait()
            await asyncio.sleep(SETTLE_SECONDS)
            happened.clear()
            await self._read(scope)


def _unreadable(reference: PresetReference, error: ClusterError | None) -> Verdict:
    return Verdict(ConditionStatus.UNKNOWN, Reason.PRESET_INVALID, f"{reference} cannot be read: {error}")


def _name_of(manifest: Mapping[str, Any]) -> Name:
    metadata = mapping(manifest, "metadata")
    return str(metadata.get("namespace") or ""), str(metadata.get("name"))

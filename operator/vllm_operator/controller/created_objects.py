"""Track which VLLMDeployments have objects of kinds that are not watched.

Such an object must be deleted when it is no longer desired, even after a failure, an invalid spec, a restart or an upgrade. The operator
therefore lists the objects of each kind once, when it first needs to know, and remembers what it creates from then on. No other process
creates the operator's objects.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence

from vllm_operator.api import labels, reading
from vllm_operator.kube.client import ClusterClient, ClusterError, Forbidden, Key, Kind, NotFound, selector_of

log = logging.getLogger(__name__)


class CreatedObjects:
    """Remembers created objects by kind and key."""

    def __init__(self, client: ClusterClient, *, namespaces: Sequence[str] = ()) -> None:
        """Initialize. `namespaces` are the namespaces to serve; all if empty."""
        self._client = client
        self._namespaces = tuple(namespaces)
        self._known: defaultdict[Kind, set[Key]] = defaultdict(set)
        self._listed: set[Kind] = set()
        self._listing: defaultdict[Kind, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def may_exist(self, kind: Kind, key: Key) -> bool:
        """Return whether a VLLMDeployment may have an object of a kind. If the list fails, the next call lists again."""
        async with self._listing[kind]:
            if kind not in self._listed:
                try:
                    self._known[kind] |= await self._list(kind)
                    self._listed.add(kind)
                except (Forbidden, NotFound) as error:  # until the operator or its ClusterRole is replaced
                    log.debug("%s cannot be listed: %s", kind.plural, error)
                    self._listed.add(kind)
                except ClusterError as error:
                    log.debug("%s cannot be listed now: %s", kind.plural, error)
        return key in self._known[kind]

    def note(self, kind: Kind, key: Key) -> None:
        """Record that an object is about to be created."""
        self._known[kind].add(key)

    def forget(self, kind: Kind, key: Key) -> None:
        """Record that an object was deleted."""
        self._known[kind].discard(key)

    async def _list(self, kind: Kind) -> set[Key]:
        keys = set[Key]()
        for namespace in self._namespaces or (None,):
            async for page in self._client.pages(kind, namespace, labels=selector_of(kind)):
                for item in page:
                    instance = reading.text(item, "metadata", "labels", labels.INSTANCE_LABEL)
                    keys.add((reading.text(item, "metadata", "namespace"), instance))
        return keys

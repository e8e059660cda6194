"""Rules of the cluster's owner, from a ConfigMap: read before the first plan is made, and again while the operator runs.

What is broken in them is said in the log, as an event on the ConfigMap and as a metric, and ignored. A ConfigMap that
cannot be read at the moment leaves the rules as they are: plans must not depend on whether the API server answers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vllm_operator.catalog.loader import Catalog, with_user_rules
from vllm_operator.catalog.user_rules import UserRules
from vllm_operator.cluster.client import CONFIG_MAP, ClusterClient, ClusterError, Forbidden, Manifest, NotFound, Unavailable
from vllm_operator.cluster.events import EventRecorder, Occurrence
from vllm_operator.runtime.metrics import Metrics

log = logging.getLogger(__name__)

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where Kubernetes tells a Pod its namespace."""


@dataclass(slots=True)
class KnownCatalog:
    """What is known at the moment: the catalog that ships with the operator, with the rules of the cluster's owner."""

    shipped: Catalog
    current: Catalog

    @classmethod
    def of(cls, catalog: Catalog) -> "KnownCatalog":
        """Begin with what ships with the operator."""
        return cls(catalog, catalog)


class RuleSource:
    """Keeps a catalog up to date with a ConfigMap. Without a name there is nothing to do."""

    def __init__(
        self,
        client: ClusterClient,
        known: KnownCatalog,
        *,
        config_map: str,
        seconds: float,
        metrics: Metrics,
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        """`config_map` is `namespace/name` or empty; it is read every `seconds`. `changed` is called when the rules did."""
        self._client = client
        self._known = known
        self._namespace, _, self._name = config_map.rpartition("/")
        self._seconds = seconds
        self._metrics = metrics
        self._changed = changed
        self._recorder = EventRecorder(client)
        self._texts: dict[str, str] = {}
        self._trouble = ""

    async def load(self) -> bool:
        """Read the ConfigMap; True if the rules have changed.

        Raises:
            Unavailable: The API server cannot be asked now.
        """
        if not self._name:
            return False
        try:
            manifest = await self._client.get(CONFIG_MAP, self._name, self._namespace)
        except NotFound:
            manifest = {}
        except Unavailable:
            raise
        except ClusterError as error:
            self._say(_words(error, self._namespace, self._name))
            return False
        self._say("")
        texts = {name: text for name, text in (manifest.get("data") or {}).items() if isinstance(text, str)}
        if texts == self._texts:
            return False
        self._texts = texts
        self._known.current, read = with_user_rules(self._known.shipped, texts)
        self._metrics.rules(used=len(read.added), ignored=len(read.problems))
        log.info("%d rules of %s/%s are used; the catalog is %s", len(read.added), self._namespace, self._name, self._known.current.version)
        await self._tell(manifest, read)
        return True

    async def run(self) -> None:
        """Read the ConfigMap again and again, until cancelled."""
        while self._name:
            await asyncio.sleep(self._seconds)
            try:
                if await self.load():
                    await self._changed()
            except ClusterError as error:
                log.debug("the rules cannot be read now: %s", error)

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("%s", trouble)
        self._trouble = trouble

    async def _tell(self, manifest: Manifest, read: UserRules) -> None:
        for problem in read.problems:
            log.warning("%s/%s: %s", self._namespace, self._name, problem)
            occurrence = Occurrence(type="Warning", reason="RuleIgnored", message=problem, key=problem)
            await self._recorder.record(manifest, occurrence, now=datetime.now(UTC))


def _words(error: ClusterError, namespace: str, name: str) -> str:
    if isinstance(error, Forbidden):
        return f"The operator may not get the ConfigMap {namespace}/{name}, so the rules in it are not used; allow it in a Role there."
    return f"The ConfigMap {namespace}/{name} cannot be read, so the rules in it are not used: {error}"


def place_of(config_map: str, namespace_file: Path = NAMESPACE_FILE) -> str:
    """Complete a name to `namespace/name`: without a namespace it is the operator's own.

    Raises:
        ValueError: The operator's own namespace is not known, because this is no Pod.
    """
    if not config_map or "/" in config_map:
        return config_map
    try:
        return f"{namespace_file.read_text('utf-8').strip()}/{config_map}"
    except OSError as error:
        raise ValueError(f"outside of a Pod it must be NAMESPACE/NAME, for example default/{config_map}") from error

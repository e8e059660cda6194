"""Rules, crash signatures and node pools of the cluster's owner, from ConfigMaps: read at the start, and when they change.

An invalid entry is ignored, and reported in the log, as an event on the ConfigMap, and as a metric. While a ConfigMap cannot be
read, what was read before stays in use: plans must not depend on whether the API server answers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from vllm_operator.catalog.instance_types import InstanceType, read_instance_types
from vllm_operator.catalog.loader import Catalog, with_user_rules
from vllm_operator.catalog.startup import StartupKnowledge
from vllm_operator.catalog.user_signatures import with_user_signatures
from vllm_operator.cluster.client import CONFIG_MAP, ClusterClient, ClusterError, Forbidden, Manifest, NotFound, Unavailable
from vllm_operator.cluster.events import EventRecorder, Occurrence
from vllm_operator.observation.knowledge import Knowledge, load_knowledge
from vllm_operator.runtime.metrics import Metrics
from vllm_operator.runtime.run_log import Parser
from vllm_operator.startup.parser import StartupParser

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
"""Pause between two watches."""
POLL_SECONDS = 30.0
"""Pause between two reads of a ConfigMap that the operator may not watch."""

EVENTS_LIMIT = 20
"""Most problems of a ConfigMap that get an event each."""

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""File in a Pod with its namespace."""


class Read(Protocol):
    """The result of reading texts."""

    @property
    def added(self) -> tuple[str, ...]:
        """The names of the entries that are used."""

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence about each entry or text that is ignored."""


@dataclass(slots=True)
class KnownCatalog:
    """The catalog in use: `shipped` with the operator, and `current` with the rules and node pools of its owner."""

    shipped: Catalog
    current: Catalog
    instance_types: tuple[InstanceType, ...] = ()

    @classmethod
    def of(cls, catalog: Catalog) -> "KnownCatalog":
        """Start with what ships with the operator."""
        return cls(catalog, catalog)

    def use(self, texts: Mapping[str, str]) -> Read:
        """Replace the rules of the cluster's owner."""
        catalog, read = with_user_rules(self.shipped, texts)
        self.current = replace(catalog, instance_types=self.instance_types)
        log.info("rules of the ConfigMap in use: %d; the catalog is %s", len(read.added), self.current.version)
        return read

    def use_instance_types(self, texts: Mapping[str, str]) -> Read:
        """Replace the node pools that a cluster autoscaler would add nodes to. Plans in force stay."""
        read = read_instance_types(texts, self.shipped.gpus)
        self.instance_types = read.types
        self.current = replace(self.current, instance_types=read.types)
        log.info("node pools of the ConfigMap in use: %d", len(read.added))
        return read


@dataclass(slots=True)
class KnownCrashes:
    """The crash signatures in use, for reading logs (`startup`) and for reports."""

    shipped: StartupKnowledge
    startup: StartupKnowledge
    reporting: Knowledge

    @classmethod
    def of(cls, startup: StartupKnowledge) -> "KnownCrashes":
        """Start with what ships with the operator."""
        return cls(startup, startup, load_knowledge(startup))

    def make_parser(self) -> Parser:
        """Return a parser for the log of one run, with the signatures in use now."""
        return StartupParser(self.startup)

    def use(self, texts: Mapping[str, str]) -> Read:
        """Replace the signatures of the cluster's owner, for all logs that are read from now on."""
        startup, read = with_user_signatures(self.shipped, texts)
        reporting = self.reporting.with_startup(startup)
        self.startup, self.reporting = startup, reporting
        log.info("crash signatures of the ConfigMap in use: %d", len(read.added))
        return read


class UserData:
    """Follows a ConfigMap. Without a name it does nothing."""

    def __init__(
        self,
        client: ClusterClient,
        use: Callable[[Mapping[str, str]], Read],
        *,
        what: str,
        config_map: str,
        seconds: float,
        metrics: Metrics,
        changed: Callable[[], Awaitable[None]],
        retry_seconds: float = RETRY_SECONDS,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Prepare to read.

        Args:
            client: Client of the API server.
            use: Puts the texts of the ConfigMap to use.
            what: `rules`, `signatures` or `instance_types`.
            config_map: `namespace/name`, or empty.
            seconds: Duration of a watch. After each, the ConfigMap is read again, whatever the watch delivered.
            metrics: Counts used and ignored entries.
            changed: Called when a running operator uses other texts than before.
            retry_seconds: Pause between two watches.
            poll_seconds: Pause between two reads without a watch.
        """
        self._client = client
        self._use = use
        self._name_of_metric, self._what = what, what.replace("_", " ")
        self._namespace, _, self._name = config_map.rpartition("/")
        self._seconds = seconds
        self._metrics = metrics
        self._changed = changed
        self._retry = retry_seconds
        self._poll_seconds = poll_seconds
        self._recorder = EventRecorder(client)
        self._texts: dict[str, str] = {}
        self._used = 0
        self._unreported: list[str] = []
        self._is_running = self._is_due = False
        self._reading = asyncio.Lock()
        self._failures: dict[str, tuple[str, int]] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether a ConfigMap is configured."""
        return bool(self._name)

    async def load(self) -> bool:
        """Read the ConfigMap; True if its texts have changed.

        Raises:
            Unavailable: The API server does not answer.
        """
        if not self._name:
            return False
        async with self._reading:
            try:
                manifest = await self._client.get(CONFIG_MAP, self._name, self._namespace)
            except NotFound:
                manifest = {}
            except Unavailable:
                raise
            except ClusterError as error:
                self._warn("get", self._describe(error))
                return False
            self._warn("get", "")
            return await self._take(manifest)

    async def run(self) -> None:
        """Read the ConfigMap whenever it changes, until cancelled."""
        while self._name:
            pause = self._retry
            try:
                pause = await self._follow()
            except ClusterError as error:
                log.debug("the ConfigMap with %s cannot be watched: %s", self._what, error)
            except Exception:
                log.exception("the ConfigMap with %s cannot be followed; retrying", self._what)
                self._metrics.restarted("user data")
            await asyncio.sleep(pause)

    async def _follow(self) -> float:
        """Read it at the beginning of a watch and after each watch event; return the seconds until the next watch."""
        try:
            async with self._client.watch(CONFIG_MAP, self._name, self._namespace, seconds=self._seconds) as events:
                self._warn("watch", "")
                await self._refresh()
                async for _ in events:
                    await self._refresh()
        except Forbidden as error:
            if error.verb != "watch":
                raise
            self._warn("watch", f"The operator may not watch the {self._config_map()}, so it reads it at intervals. Grant watch in a Role.")
            await self._refresh()
            return self._poll_seconds
        return self._retry

    async def _refresh(self) -> None:
        if await self.load() or self._is_due:
            # If this fails, the next refresh does it; likewise if another caller of `load` read the change first.
            self._is_due = True
            await self._changed()
        self._is_due, self._is_running = False, True

    async def _take(self, manifest: Manifest) -> bool:
        """Use its texts if they differ from those in use."""
        texts = {name: text for name, text in (manifest.get("data") or {}).items() if isinstance(text, str)}
        if texts == self._texts:
            await self._report(manifest)
            return False
        try:
            # In a thread, because texts of a megabyte take up to a second.
            read = await asyncio.to_thread(self._use, texts)
        except Exception as error:  # no content may stop the operator; what was read before stays in use
            log.exception("%s cannot be used", self._config_map())
            problems = [
                f"The {self._what} in it cannot be used ({type(error).__name__}); the previous ones stay in use. Please report this."
            ]
            self._metrics.user_data(self._name_of_metric, used=self._used, ignored=1)
        else:
            problems = list(read.problems)
            self._used = len(read.added)
            self._metrics.user_data(self._name_of_metric, used=self._used, ignored=len(problems))
        self._texts = texts
        self._is_due = self._is_running
        for problem in problems:
            log.warning("%s/%s: %s", self._namespace, self._name, problem)
        self._unreported = [*problems[:EVENTS_LIMIT], *_rest(problems, self._what)]
        await self._report(manifest)
        return True

    def _warn(self, verb: str, failure: str) -> None:
        """Log a failure of a verb once, after the second in a row. An empty text resets it.

        An API server that has just started refuses requests for a moment, until it knows the Roles.
        """
        before, times = self._failures.get(verb, ("", 0))
        times = times + 1 if failure == before else 1
        self._failures[verb] = (failure, times)
        if failure and times == 2:
            log.warning("%s", failure)

    async def _report(self, manifest: Manifest) -> None:
        """Write an event for each problem that has none yet. If the API server is unavailable, the next refresh writes the rest."""
        reason = f"{self._what.removesuffix('s').title().replace(' ', '')}Ignored"
        while self._unreported and manifest:
            problem = self._unreported[0]
            occurrence = Occurrence(type="Warning", reason=reason, message=problem, key=problem)
            try:
                await self._recorder.record(manifest, occurrence, now=datetime.now(UTC))
            except Unavailable:
                return
            self._unreported.pop(0)

    def _describe(self, error: ClusterError) -> str:
        if isinstance(error, Forbidden):
            return f"The operator may not get the {self._config_map()}, so it does not use the {self._what} in it. Grant get in a Role."
        return f"The {self._config_map()} cannot be read, so the operator does not use the {self._what} in it: {error}"

    def _config_map(self) -> str:
        return f"ConfigMap {self._namespace}/{self._name}"


def _rest(problems: list[str], what: str) -> list[str]:
    more = len(problems) - EVENTS_LIMIT
    return [f"{more} more {what} or texts are ignored; the operator's log names them."] if more > 0 else []


def qualified_name(config_map: str, namespace_file: Path = NAMESPACE_FILE) -> str:
    """Complete a name to `namespace/name`; the default is the operator's own namespace.

    Raises:
        ValueError: The operator's own namespace is unknown, because this is not a Pod.
    """
    if not config_map or "/" in config_map:
        return config_map
    try:
        return f"{namespace_file.read_text('utf-8').strip()}/{config_map}"
    except OSError as error:
        raise ValueError(f"outside of a Pod it must be NAMESPACE/NAME, for example default/{config_map}") from error

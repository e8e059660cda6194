"""Knowledge of the cluster's owner, from ConfigMaps: rules and crash signatures, read at the start and when they change.

What is broken in them is said in the log, as an event on the ConfigMap and as a metric, and ignored. A ConfigMap that
cannot be read at the moment leaves what is known as it is: plans must not depend on whether the API server answers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from vllm_operator.catalog.loader import Catalog, with_user_rules
from vllm_operator.catalog.startup import StartupKnowledge
from vllm_operator.catalog.user_signatures import with_user_signatures
from vllm_operator.cluster.client import CONFIG_MAP, ClusterClient, ClusterError, Forbidden, Manifest, NotFound, Unavailable
from vllm_operator.cluster.events import EventRecorder, Occurrence
from vllm_operator.observation.knowledge import Knowledge, load_knowledge
from vllm_operator.runtime.follower import Parser
from vllm_operator.runtime.metrics import Metrics
from vllm_operator.startup.parser import StartupParser

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
"""Between two watches."""
LOOK_SECONDS = 30.0
"""Between two looks at a ConfigMap that may not be watched."""

EVENTS_LIMIT = 20
"""Problems of a ConfigMap that are told by an event each."""

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where Kubernetes tells a Pod its namespace."""


class Read(Protocol):
    """What came of texts."""

    @property
    def added(self) -> tuple[str, ...]:
        """The names of what is used."""

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence about each thing that is not."""


@dataclass(slots=True)
class KnownCatalog:
    """What is known at the moment: the catalog that ships with the operator, with the rules of the cluster's owner."""

    shipped: Catalog
    current: Catalog

    @classmethod
    def of(cls, catalog: Catalog) -> "KnownCatalog":
        """Begin with what ships with the operator."""
        return cls(catalog, catalog)

    def use(self, texts: Mapping[str, str]) -> Read:
        """Use these rules, and no others of the cluster's owner."""
        self.current, read = with_user_rules(self.shipped, texts)
        log.info("rules of the cluster's owner in use: %d; the catalog is %s", len(read.added), self.current.version)
        return read


@dataclass(slots=True)
class KnownCrashes:
    """The crashes that are known at the moment, for reading logs (`startup`) and for reporting on them."""

    shipped: StartupKnowledge
    startup: StartupKnowledge
    reporting: Knowledge

    @classmethod
    def of(cls, startup: StartupKnowledge) -> "KnownCrashes":
        """Begin with what ships with the operator."""
        return cls(startup, startup, load_knowledge(startup))

    def make_parser(self) -> Parser:
        """A parser for the log of one run, with the signatures of this moment."""
        return StartupParser(self.startup)

    def use(self, texts: Mapping[str, str]) -> Read:
        """Use these signatures, and no others of the cluster's owner, for all logs that are read from now on."""
        startup, read = with_user_signatures(self.shipped, texts)
        reporting = self.reporting.with_startup(startup)
        self.startup, self.reporting = startup, reporting
        log.info("crash signatures of the cluster's owner in use: %d", len(read.added))
        return read


class UserData:
    """Keeps what is known up to date with a ConfigMap. Without a name there is nothing to do."""

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
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Prepare to read.

        Args:
            client: The way to the API server.
            use: Takes the texts of the ConfigMap.
            what: What is in it: rules or signatures.
            config_map: `namespace/name`, or empty.
            seconds: How long a watch lasts. After each it is read, whatever the watch has told.
            metrics: Where the numbers go.
            changed: Called when a running operator uses other texts than before.
            retry_seconds: Between two watches.
            look_seconds: Between two looks where there may be no watch.
        """
        self._client = client
        self._use = use
        self._what = what
        self._namespace, _, self._name = config_map.rpartition("/")
        self._seconds = seconds
        self._metrics = metrics
        self._changed = changed
        self._retry = retry_seconds
        self._look_seconds = look_seconds
        self._recorder = EventRecorder(client)
        self._texts: dict[str, str] = {}
        self._used = 0
        self._untold: list[str] = []
        self._has_looked = self._is_due = False
        self._reading = asyncio.Lock()
        self._troubles: dict[str, tuple[str, int]] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether a ConfigMap is named."""
        return bool(self._name)

    async def load(self) -> bool:
        """Read the ConfigMap; True if its texts have changed.

        Raises:
            Unavailable: The API server cannot be asked now.
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
                self._say("get", self._words(error))
                return False
            self._say("get", "")
            return await self._take(manifest)

    async def run(self) -> None:
        """Read the ConfigMap whenever something happens to it, until cancelled."""
        while self._name:
            pause = self._retry
            try:
                pause = await self._follow()
            except ClusterError as error:
                log.debug("the %s cannot be watched now: %s", self._what, error)
            except Exception:
                log.exception("the %s cannot be watched; this is tried again", self._what)
                self._metrics.restarted("user data")
            await asyncio.sleep(pause)

    async def _follow(self) -> float:
        """Read it for as long as one watch lasts: once for what happened before, and for each thing that happens.

        Returns:
            Seconds until the next.
        """
        try:
            async with self._client.watch(CONFIG_MAP, self._name, self._namespace, seconds=self._seconds) as happenings:
                self._say("watch", "")
                await self._look()
                async for _ in happenings:
                    await self._look()
        except Forbidden as error:
            if error.verb != "watch":
                raise
            self._say("watch", f"The operator may not watch the {self._place()}, so changes are noticed late; allow it in a Role there.")
            await self._look()
            return self._look_seconds
        return self._retry

    async def _look(self) -> None:
        if await self.load() or self._is_due:
            # What fails is done at the next look, and so is what another caller of `load` was the first to read.
            self._is_due = True
            await self._changed()
        self._is_due, self._has_looked = False, True

    async def _take(self, manifest: Manifest) -> bool:
        """Use what is in it, if that is something else than before."""
        texts = {name: text for name, text in (manifest.get("data") or {}).items() if isinstance(text, str)}
        if texts == self._texts:
            await self._tell(manifest)
            return False
        try:
            # In a thread, because texts of a megabyte take a second.
            read = await asyncio.to_thread(self._use, texts)
        except Exception as error:  # whatever is written there must not stop the operator; what was known stays in use
            log.exception("the %s cannot be used", self._place())
            problems = [f"The {self._what} in it cannot be used ({type(error).__name__}); those before stay in use. Please report this."]
            self._metrics.user_data(self._what, used=self._used, ignored=1)
        else:
            problems = list(read.problems)
            self._used = len(read.added)
            self._metrics.user_data(self._what, used=self._used, ignored=len(problems))
        self._texts = texts
        self._is_due = self._has_looked
        for problem in problems:
            log.warning("%s/%s: %s", self._namespace, self._name, problem)
        self._untold = [*problems[:EVENTS_LIMIT], *_rest(problems, self._what)]
        await self._tell(manifest)
        return True

    def _say(self, verb: str, trouble: str) -> None:
        """Say once what is wrong with a verb, at the second time in a row; empty if nothing is.

        An API server that has just started refuses for a moment what it allows as soon as it knows the Roles.
        """
        before, times = self._troubles.get(verb, ("", 0))
        times = times + 1 if trouble == before else 1
        self._troubles[verb] = (trouble, times)
        if trouble and times == 2:
            log.warning("%s", trouble)

    async def _tell(self, manifest: Manifest) -> None:
        """Write an event for each problem that has none yet. Where the API server is away, the next look goes on with the rest."""
        reason = f"{self._what.removesuffix('s').capitalize()}Ignored"
        while self._untold and manifest:
            problem = self._untold[0]
            occurrence = Occurrence(type="Warning", reason=reason, message=problem, key=problem)
            try:
                await self._recorder.record(manifest, occurrence, now=datetime.now(UTC))
            except Unavailable:
                return
            self._untold.pop(0)

    def _words(self, error: ClusterError) -> str:
        if isinstance(error, Forbidden):
            return f"The operator may not get the {self._place()}, so the {self._what} in it are not used; allow it in a Role there."
        return f"The {self._place()} cannot be read, so the {self._what} in it are not used: {error}"

    def _place(self) -> str:
        return f"ConfigMap {self._namespace}/{self._name}"


def _rest(problems: list[str], what: str) -> list[str]:
    more = len(problems) - EVENTS_LIMIT
    return [f"{more} more {what} or texts are ignored; the operator's log names them."] if more > 0 else []


def qualified_name(config_map: str, namespace_file: Path = NAMESPACE_FILE) -> str:
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

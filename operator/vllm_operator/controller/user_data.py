"""Rules, crash signatures and node pools of the cluster's administrator, from ConfigMaps that are read every 30 s.

An invalid entry is ignored, and reported in the log, as an event on the ConfigMap, and as a metric. While a ConfigMap cannot be read, its
last content stays in use: plans must not depend on whether the API server answers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vllm_operator.api.conditions import WARNING, EventDraft
from vllm_operator.catalog.gpus import InstanceType
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.startup import StartupKnowledge
from vllm_operator.catalog.user_entries import UserEntries, read_instance_types, with_user_rules, with_user_signatures
from vllm_operator.controller.metrics import Metrics
from vllm_operator.kube.client import CONFIG_MAP, ClusterClient, ClusterError, Forbidden, NotFound, Unavailable
from vllm_operator.kube.events import record_event
from vllm_operator.logs.parser import StartupParser
from vllm_operator.status.knowledge import Knowledge, load_knowledge

log = logging.getLogger(__name__)

POLL_SECONDS = 30.0
"""Delay between reads of a ConfigMap."""
EVENTS_LIMIT = 20
"""Maximum number of problems of a ConfigMap that are reported as events."""
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""File with the namespace of the Pod."""


@dataclass(slots=True)
class KnownCatalog:
    """The catalog in use: `shipped` with the operator, and `current` with the rules and node pools of the administrator."""

    shipped: Catalog
    current: Catalog

    @classmethod
    def of(cls, catalog: Catalog) -> "KnownCatalog":
        """Start with the shipped catalog."""
        return cls(catalog, catalog)

    def use(self, texts: Mapping[str, str]) -> UserEntries[Any]:
        """Replace the administrator's rules."""
        catalog, read = with_user_rules(self.shipped, texts)
        self.current = replace(catalog, instance_types=self.current.instance_types)
        return read

    def use_instance_types(self, texts: Mapping[str, str]) -> UserEntries[InstanceType]:
        """Replace the node pools to which a cluster autoscaler can add nodes. Current plans stay unchanged."""
        read = read_instance_types(texts, self.shipped.gpus)
        self.current = replace(self.current, instance_types=read.entries)
        return read


@dataclass(slots=True)
class KnownStarts:
    """What is known about starts and crashes, for reading logs and for reports."""

    shipped: StartupKnowledge
    reporting: Knowledge

    @classmethod
    def of(cls, startup: StartupKnowledge) -> "KnownStarts":
        """Start with the shipped signatures."""
        return cls(startup, load_knowledge(startup))

    def make_parser(self) -> StartupParser:
        """Return a parser for the log of one run, with the current signatures."""
        return StartupParser(self.reporting.startup)

    def use(self, texts: Mapping[str, str]) -> UserEntries[Any]:
        """Replace the administrator's signatures, for logs that are read from now on."""
        startup, read = with_user_signatures(self.shipped, texts)
        self.reporting = replace(self.reporting, startup=startup)
        return read


@dataclass(slots=True)
class UserData:
    """Reads the ConfigMap `namespace/name` at intervals into `use`. `what` is `rules`, `signatures` or `instance_types`."""

    client: ClusterClient
    use: Callable[[Mapping[str, str]], UserEntries[Any]]
    _: KW_ONLY
    what: str
    config_map: str
    metrics: Metrics
    changed: Callable[[], Awaitable[None]]
    poll_seconds: float = POLL_SECONDS
    _texts: dict[str, str] = field(default_factory=dict, init=False)
    _used: int = field(default=0, init=False)
    _unreported: list[str] = field(default_factory=list, init=False)
    _failures: int = field(default=0, init=False)

    async def load(self) -> bool:
        """Read the ConfigMap, and write an event for each new problem; return whether its texts have changed. Raises ClusterError."""
        namespace, _, name = self.config_map.rpartition("/")
        try:
            manifest = await self.client.get(CONFIG_MAP, name, namespace)
        except NotFound:
            manifest = {}
        except Forbidden:
            self._failures += 1
            if self._failures == 2:  # not the first time: an API server that has just started refuses requests until it knows the Roles
                may_not = "The operator may not get the ConfigMap %s, so it does not use the %s in it. Grant get in a Role."
                log.warning(may_not, self.config_map, self._entries)
            return False
        self._failures = 0
        texts = {name: text for name, text in (manifest.get("data") or {}).items() if isinstance(text, str)}
        if has_changed := texts != self._texts:
            self._texts = texts
            self._unreported = await self._take(texts)
        reason = f"{self._entries.removesuffix('s').title().replace(' ', '')}Ignored"
        with suppress(Unavailable):  # the next read writes the rest
            while self._unreported and manifest:
                problem = self._unreported[0]
                await record_event(self.client, manifest, EventDraft(WARNING, reason, problem, key=problem), now=datetime.now(UTC))
                self._unreported.pop(0)
        return has_changed

    async def run(self) -> None:
        """Read the ConfigMap at intervals, until cancelled. The caller reads it once before."""
        is_due = False
        while True:
            await asyncio.sleep(self.poll_seconds)
            try:
                is_due = await self.load() or is_due
                if is_due:
                    await self.changed()
                    is_due = False
            except ClusterError as error:
                log.debug("the ConfigMap %s cannot be read: %s", self.config_map, error)
            except Exception:
                log.exception("the ConfigMap %s cannot be followed; retrying", self.config_map)
                self.metrics.task_restarts.labels("user data").inc()

    @property
    def _entries(self) -> str:
        return self.what.replace("_", " ")

    async def _take(self, texts: Mapping[str, str]) -> list[str]:
        """Use new texts. Return the problems with them, for events."""
        try:
            # In a thread, because texts of a megabyte take up to a second.
            read = await asyncio.to_thread(self.use, texts)
        except Exception as error:  # no content may stop the operator; the previous content stays in use
            log.exception("ConfigMap %s cannot be used", self.config_map)
            failure = (
                f"The {self._entries} in it cannot be used ({type(error).__name__}); the previous ones stay in use. Please report this."
            )
            problems = [failure]
        else:
            problems = list(read.problems)
            self._used = len(read.added)
            log.info("%s of the ConfigMap in use: %d (%s)", self._entries, self._used, self.config_map)
        self.metrics.user_data(self.what, used=self._used, ignored=len(problems))
        for problem in problems:
            log.warning("ConfigMap %s: %s", self.config_map, problem)
        more = len(problems) - EVENTS_LIMIT
        rest = [f"{more} more {self._entries} or texts are ignored; the operator's log names them."] if more > 0 else []
        return [*problems[:EVENTS_LIMIT], *rest]


def qualified_name(config_map: str, namespace_file: Path = NAMESPACE_FILE) -> str:
    """Complete a name to `namespace/name` with the namespace of the Pod. Raises ValueError if this is not a Pod."""
    if not config_map or "/" in config_map:
        return config_map
    try:
        return f"{namespace_file.read_text('utf-8').strip()}/{config_map}"
    except OSError as error:
        raise ValueError(f"outside of a Pod it must be NAMESPACE/NAME, for example default/{config_map}") from error

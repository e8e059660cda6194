"""Start the watches as soon as everything that they need exists, and restart them: API server, permissions, CRD, first list.

What is missing is reported in the log and under /readyz, and waited for. Watches and mirror are restarted if one of them ends, or if the
permissions to watch change.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from vllm_operator.api import labels
from vllm_operator.cluster.client import (
    ACCESS_REVIEW,
    NAMESPACE,
    VLLM_DEPLOYMENT,
    ClusterClient,
    ClusterError,
    Forbidden,
    Kind,
    NotFound,
    Unauthorized,
    Unavailable,
)
from vllm_operator.runtime.health import Readiness
from vllm_operator.runtime.log_output import describe_end
from vllm_operator.runtime.metrics import Metrics
from vllm_operator.runtime.permissions import OPTIONAL, REQUIRED, Permission, watched_kinds

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
"""Interval of checks while something is missing."""
Answer = TypeVar("Answer")

PERMISSION = "permission"
CHECK_SECONDS = 30.0
"""Interval of checks of the CRD while nothing is missing."""
REVIEWS = 8
"""Permissions that are asked for at the same time. Each needs a connection, which takes 75 KiB and a TLS handshake."""


class RunsWatches(Protocol):
    """Watches on some kinds."""

    async def run(self) -> None:
        """Watch until cancelled, or until the watches give up."""


class Mirrors(Protocol):
    """The mirror of the objects in the cluster."""

    async def load(self, kinds: Sequence[Kind]) -> None:
        """List all objects of these kinds. Raises ClusterError."""

    async def run(self, kinds: Sequence[Kind]) -> None:
        """Keep the mirror up to date until cancelled."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the supervisor needs.

    `make_watches` is called with the kinds that the operator may watch. `prepare` is awaited before the first list. `host` is the address
    of the API server and `scope` says what is served, for messages. Without one of the permissions `required`, the operator is not ready.
    """

    client: ClusterClient
    readiness: Readiness
    metrics: Metrics
    mirror: Mirrors
    make_watches: Callable[[Sequence[Kind]], RunsWatches]
    namespaces: tuple[str, ...] = ()
    scope: str = "all namespaces"
    host: str = ""
    prepare: Callable[[], Awaitable[object]] | None = None
    required: tuple[Permission, ...] = REQUIRED


class Supervisor:
    """Starts and restarts the watches and the mirror."""

    def __init__(self, parts: Parts, *, retry_seconds: float = RETRY_SECONDS, check_seconds: float = CHECK_SECONDS) -> None:
        self._parts = parts
        self._retry = retry_seconds
        self._check = check_seconds
        self._denied: frozenset[Permission] = frozenset()
        self._recheck_due = asyncio.Event()
        for name in ("API server", "CRD", "first list"):
            parts.readiness.missing[name] = f"{name}: not checked yet"

    async def run(self) -> None:
        """Wait for what is missing, watch, and begin again whenever the watches end. Runs until cancelled."""
        while True:
            await self._until("permissions", self._check_permissions)
            await self._until("CRD", self._check_crd)
            await self._until("rules", self._prepare)
            await self._until("first list", self._list)
            log.info("serving %s", self._parts.scope)
            await self._watch()

    def recheck_access(self) -> None:
        """Check the credentials and permissions now, because the API server refused a request."""
        self._recheck_due.set()

    async def _watch(self) -> None:
        """Watch until the watches end or what may be watched changes."""
        kinds = watched_kinds(self._denied)
        tasks = [
            asyncio.create_task(self._parts.make_watches(kinds).run(), name="watches"),
            asyncio.create_task(self._parts.mirror.run(kinds), name="mirror"),
        ]
        try:
            while not any(task.done() for task in tasks):
                await self._pause(tasks)
                if await self._has_changed(kinds):
                    return
            for task in tasks:
                if task.done():
                    self._log_end(task)
            await asyncio.sleep(self._retry / 2)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pause(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Wait until the next check: after an interval, or at once if a task has ended or the API server has refused a request."""
        # at least this long, because the API server may refuse many requests
        await asyncio.wait(tasks, timeout=self._retry, return_when=asyncio.FIRST_COMPLETED)
        refusal = asyncio.create_task(self._recheck_due.wait(), name="refusal")
        seconds = self._retry if self._parts.readiness.missing else self._check
        try:
            await asyncio.wait({*tasks, refusal}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            refusal.cancel()

    def _log_end(self, task: asyncio.Task[None]) -> None:
        self._parts.metrics.restarted(task.get_name())
        error = None if task.cancelled() else task.exception()
        bug = error is not None and not isinstance(error, ClusterError)
        log.warning("the task %r %s and is restarted", task.get_name(), describe_end(task), exc_info=error if bug else None)

    async def _has_changed(self, kinds: Sequence[Kind]) -> bool:
        """Update the readiness. Return whether the watches must be restarted.

        Each permission costs a request, so permissions are checked only if one is missing or a request was refused.
        """
        try:
            await self._check_crd()
            if self._recheck_due.is_set() or any(name.startswith(PERMISSION) for name in self._parts.readiness.missing):
                await self._check_permissions()
        except (ClusterError, _Missing):
            # Watches survive an outage, but do not notice that the CRD was deleted.
            return "CRD" in self._parts.readiness.missing
        return tuple(watched_kinds(self._denied)) != tuple(kinds)

    async def _until(self, name: str, check: Callable[[], Awaitable[None]]) -> None:
        """Repeat a check until it succeeds."""
        while True:
            try:
                await check()
            except Unavailable:
                pass  # the check has reported it
            except _Missing:
                pass
            except ClusterError as error:
                self._parts.readiness.set_missing(name, f"{name}: {error}")
            else:
                self._parts.readiness.clear_missing(name)
                return
            await asyncio.sleep(self._retry)

    async def _check_permissions(self) -> None:
        asked = (*self._parts.required, *OPTIONAL)
        answers = await self._reach(self._review(asked))
        self._recheck_due.clear()
        self._denied = frozenset(permission for permission, allowed in zip(asked, answers, strict=True) if not allowed)
        for permission in self._parts.required:
            name = f"{PERMISSION} {permission}"
            if permission in self._denied:
                message = f"The operator may not {permission}, so {permission.effect}. Allow it in its ClusterRole, as the chart does."
                self._parts.readiness.set_missing(name, message)
            else:
                self._parts.readiness.clear_missing(name)
        if any(permission.kind == NAMESPACE for permission in self._denied):
            raise _Missing  # it is unknown what to serve

    async def _reach(self, call: Awaitable[Answer]) -> Answer:
        """Make a request, and update the readiness: whether the API server answers, and whether it accepts the credentials."""
        readiness = self._parts.readiness
        try:
            answer = await call
        except Unauthorized as error:
            readiness.clear_missing("API server")
            readiness.set_missing("credentials", str(error))
            raise
        except Unavailable as error:
            readiness.set_missing("API server", f"The API server {self._parts.host} cannot be reached: {error}")
            raise
        except ClusterError:
            readiness.clear_missing("API server")
            readiness.clear_missing("credentials")
            raise
        readiness.clear_missing("API server")
        readiness.clear_missing("credentials")
        return answer

    async def _review(self, asked: Sequence[Permission]) -> list[bool]:
        """Whether the operator has each of these permissions. Raises ClusterError."""
        answers: list[bool] = []
        for start in range(0, len(asked), REVIEWS):
            answers += await asyncio.gather(*map(self._may, asked[start : start + REVIEWS]))
        return answers

    async def _may(self, permission: Permission) -> bool:
        """Whether the operator has a permission, cluster-wide or in each of the namespaces that it serves."""
        namespaces: tuple[str | None, ...] = self._parts.namespaces or (None,)
        for namespace in namespaces if permission.kind.namespaced else (None,):
            attributes = {
                "verb": permission.verb,
                "group": permission.kind.group,
                "resource": permission.kind.plural,
                **({"subresource": permission.subresource} if permission.subresource else {}),
                **({"namespace": namespace} if namespace else {}),
            }
            review = {
                "apiVersion": ACCESS_REVIEW.api_version,
                "kind": ACCESS_REVIEW.kind,
                "metadata": {},
                "spec": {"resourceAttributes": attributes},
            }
            try:
                answer = await self._parts.client.create(review)
            except Forbidden:
                return True  # unknown: a request will show it
            if not (answer.get("status") or {}).get("allowed"):
                return False
        return True

    async def _check_crd(self) -> None:
        namespace = self._parts.namespaces[0] if self._parts.namespaces else None
        try:
            await self._reach(self._parts.client.find(VLLM_DEPLOYMENT, namespace, fields={"metadata.name": "does-not-exist"}))
        except NotFound:
            name = f"{labels.PLURAL}.{labels.GROUP}"
            self._parts.readiness.set_missing(
                "CRD", f"The CRD {name} does not exist. Install it with kubectl apply -f crds/, or install the Helm chart."
            )
            raise _Missing from None
        except Forbidden:
            pass  # reported as a missing permission
        self._parts.readiness.clear_missing("CRD")

    async def _prepare(self) -> None:
        if self._parts.prepare is not None:
            await self._reach(self._parts.prepare())

    async def _list(self) -> None:
        await self._reach(self._parts.mirror.load(watched_kinds(self._denied)))


class _Missing(Exception):  # noqa: N818 - a signal
    """Something does not exist yet. The readiness says so."""

"""Preconditions of the operator: the API server, the permissions and the CRD.

The operator waits for missing preconditions, and the readiness probe reports them. They are checked again at intervals. If the kinds that
can be watched have changed, or the CRD is gone, the operator exits, and the kubelet restarts it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from vllm_operator.api import labels
from vllm_operator.controller.health import Readiness
from vllm_operator.controller.permissions import OPTIONAL, PRESETS, REQUIRED, Permission, watched_kinds
from vllm_operator.kube.client import (
    ACCESS_REVIEW,
    CLUSTER_PRESET,
    PRESET,
    VLLM_DEPLOYMENT,
    ClusterClient,
    ClusterError,
    Forbidden,
    Kind,
    NotFound,
    Unauthorized,
    Unavailable,
)

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

RETRY_SECONDS = 2.0
"""Delay between attempts while a precondition is missing, and minimum delay between checks after a refused request."""
CHECK_SECONDS = 60.0
"""Interval between checks while all preconditions are met."""
REVIEWS = 8
"""Maximum number of permissions that are checked concurrently."""
PERMISSION = "permission"
"""Prefix of the names of missing permissions in the readiness."""


class WatchesOutdated(Exception):  # noqa: N818 - an event, not an error
    """The set of kinds to watch has changed since the watches began."""


class Preconditions:
    """Waits for the preconditions, and keeps the readiness current."""

    def __init__(
        self,
        client: ClusterClient,
        readiness: Readiness,
        *,
        namespaces: Sequence[str] = (),
        host: str = "",
        retry_seconds: float = RETRY_SECONDS,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        """Initialize without checks.

        Args:
            client: The client for the API server.
            readiness: Receives missing preconditions.
            namespaces: The namespaces to serve; all if empty.
            host: The address of the API server, for messages.
            retry_seconds: Delay between attempts while a precondition is missing.
            check_seconds: Interval between checks while all preconditions are met.
        """
        self._client = client
        self._readiness = readiness
        self._namespaces = tuple(namespaces)
        self._host = host
        self._retry = retry_seconds
        self._check = check_seconds
        self._denied: frozenset[Permission] = frozenset()
        self._preset_kinds: tuple[Kind, ...] = ()
        self._recheck_due = asyncio.Event()
        for name in ("API server", "CRD"):
            readiness.missing[name] = f"{name}: not checked yet"

    async def wait(self) -> tuple[Kind, ...]:
        """Wait until all preconditions are met. Return the kinds that can be watched."""
        await self._until("permissions", self._check_permissions)
        await self._until("CRD", self._check_crd)
        return self._kinds()

    async def watch(self, kinds: Sequence[Kind]) -> None:
        """Check at intervals, and immediately after the API server has refused a request.

        Raises:
            WatchesOutdated: The set of kinds to watch differs from `kinds`.
        """
        while True:
            # a minimum, because the API server may refuse many requests
            await asyncio.sleep(self._retry)
            try:
                async with asyncio.timeout(self._retry if self._readiness.missing else self._check):
                    await self._recheck_due.wait()
            except TimeoutError:
                pass
            try:
                await self._check_crd()
                if self._recheck_due.is_set() or any(name.startswith(PERMISSION) for name in self._readiness.missing):
                    await self._check_permissions()
            except _Missing as error:
                raise WatchesOutdated("the CRD is gone") from error
            except ClusterError:
                continue  # the readiness reports it, and the watches survive an outage
            if set(self._kinds()) != set(kinds):
                raise WatchesOutdated("the kinds that the operator may watch have changed")

    def recheck(self) -> None:
        """Check now. Call this after the API server has refused a request."""
        self._recheck_due.set()

    def _kinds(self) -> tuple[Kind, ...]:
        return watched_kinds(self._denied, presets=self._preset_kinds)

    async def _until(self, name: str, check: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await check()
            except (Unavailable, _Missing):
                pass  # the check has reported it
            except ClusterError as error:
                self._readiness.set_missing(name, f"{name}: {error}")
            else:
                self._readiness.clear_missing(name)
                return
            await asyncio.sleep(self._retry)

    async def _check_permissions(self) -> None:
        """Check all permissions. Each costs a request, so call this only when needed."""
        asked = (*REQUIRED, *OPTIONAL, *PRESETS)
        answers = await self._reach(self._review(asked))
        self._recheck_due.clear()
        self._denied = frozenset(permission for permission, allowed in zip(asked, answers, strict=True) if not allowed)
        for permission in REQUIRED:
            name = f"{PERMISSION} {permission}"
            if permission in self._denied:
                message = f"The operator may not {permission}, so {permission.effect}. Allow it in its ClusterRole, as the chart does."
                self._readiness.set_missing(name, message)
            else:
                self._readiness.clear_missing(name)

    async def _reach(self, call: Awaitable[Answer]) -> Answer:
        """Send a request, and update the readiness: whether the API server answers and accepts the credentials."""
        readiness = self._readiness
        try:
            answer = await call
        except Unauthorized as error:
            readiness.clear_missing("API server")
            readiness.set_missing("credentials", str(error))
            raise
        except Unavailable as error:
            readiness.set_missing("API server", f"The API server {self._host} cannot be reached: {error}")
            raise
        except ClusterError:
            readiness.clear_missing("API server")
            readiness.clear_missing("credentials")
            raise
        readiness.clear_missing("API server")
        readiness.clear_missing("credentials")
        return answer

    async def _review(self, asked: Sequence[Permission]) -> list[bool]:
        """Return for each permission whether the operator has it. Raises ClusterError."""
        answers: list[bool] = []
        for start in range(0, len(asked), REVIEWS):
            answers += await asyncio.gather(*map(self._may, asked[start : start + REVIEWS]))
        return answers

    async def _may(self, permission: Permission) -> bool:
        """Return whether the operator has a permission, either cluster-wide or in each namespace to serve."""
        namespaces: tuple[str | None, ...] = self._namespaces or (None,)
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
                answer = await self._client.create(review)
            except Forbidden:
                return True  # unknown: a request will show it
            if not (answer.get("status") or {}).get("allowed"):
                return False
        return True

    async def _check_crd(self) -> None:
        """Check that the CRD exists, and find the available CRDs of presets."""
        if not await self._reach(self._is_served(VLLM_DEPLOYMENT)):
            name = f"{labels.PLURAL}.{labels.GROUP}"
            message = f"The CRD {name} does not exist. Install it with kubectl apply -f crds/, or install the Helm chart."
            self._readiness.set_missing("CRD", message)
            raise _Missing
        self._readiness.clear_missing("CRD")
        self._preset_kinds = tuple([kind for kind in (PRESET, CLUSTER_PRESET) if await self._reach(self._is_served(kind))])

    async def _is_served(self, kind: Kind) -> bool:
        """Return whether the API server serves a kind. A kind that the operator may not list is reported as a missing permission."""
        try:
            await self._client.find(kind, self._namespace(kind), fields={"metadata.name": "does-not-exist"})
        except NotFound:
            return False
        except Forbidden:
            pass
        return True

    def _namespace(self, kind: Kind) -> str | None:
        return self._namespaces[0] if self._namespaces and kind.namespaced else None


class _Missing(Exception):  # noqa: N818 - a signal
    """A precondition is missing. The readiness reports it."""

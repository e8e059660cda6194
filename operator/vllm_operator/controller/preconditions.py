"""Preconditions of the operator: the API server, the permissions and the CRD.

The operator waits for missing preconditions, and the readiness probe reports them. They are checked again at intervals. If the kinds that
can be watched have changed, or the CRD is gone, the operator exits, and the kubelet restarts it.

The ClusterRole of the chart also grants permissions that only features need. They are not checked, because a request shows what is missing
(docs/security.md). The chart has other Roles for the Lease and for the ConfigMaps of the administrator.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from vllm_operator.api import labels
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterClient, ClusterError, Forbidden, Kind, NotFound, Unauthorized, Unavailable

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
"""Delay between attempts while a precondition is missing, and minimum delay between checks after a refused request."""
CHECK_SECONDS = 60.0
"""Interval between checks while all preconditions are met."""
LOST_CHECKS = 3
"""Consecutive checks without a watched kind before the operator exits: a new API server denies everything until it has read the roles."""
REVIEWS = 8
"""Permissions that are checked concurrently."""
_API_SERVER, _CREDENTIALS = "API server", "credentials"


@dataclass(slots=True)
class Readiness:
    """Missing preconditions, as messages by name. The operator is ready if there are none."""

    missing: dict[str, str] = field(default_factory=dict)
    standby: str = ""
    """A message about the leader if this process is a standby. A standby is ready."""

    def set_missing(self, name: str, message: str) -> None:
        """Add a missing precondition. A new message is logged."""
        if self.missing.get(name) != message:
            log.warning("%s", message)
        self.missing[name] = message

    def clear_missing(self, *names: str) -> None:
        """Remove missing preconditions. A change is logged."""
        for name in names:
            if self.missing.pop(name, None) is not None:
                log.info("%s: not missing any more", name)

    def __bool__(self) -> bool:
        return not self.missing


@dataclass(frozen=True, slots=True)
class Permission:
    """A verb on a resource. `effect` describes the effect if a required one is missing."""

    verb: str
    kind: Kind
    subresource: str = ""
    effect: str = ""

    def __str__(self) -> str:
        resource = self.kind.plural + (f"/{self.subresource}" if self.subresource else "")
        return f"{self.verb} {resource}" + (f" in API group {self.kind.group}" if self.kind.group else "")

    def attributes(self, namespace: str) -> dict[str, str]:
        """Return `resourceAttributes` of an access review; in all namespaces if `namespace` is empty."""
        attributes = {"verb": self.verb, "group": self.kind.group, "resource": self.kind.plural}
        attributes |= {"subresource": self.subresource, "namespace": namespace if self.kind.namespaced else ""}
        return {name: value for name, value in attributes.items() if value or name == "group"}


def permissions(verbs: str, *kinds: Kind, effect: str = "", subresource: str = "") -> tuple[Permission, ...]:
    """Return the permissions for these verbs, separated by spaces, on these kinds."""
    return tuple(Permission(verb, kind, subresource, effect) for kind in kinds for verb in verbs.split())


WATCHED = (kube.VLLM_DEPLOYMENT, kube.DEPLOYMENT, kube.REVISION, kube.SERVICE, kube.CLAIM, kube.POD)
REQUIRED = (
    *permissions("get list", kube.VLLM_DEPLOYMENT, effect="nothing can be served"),
    *permissions("watch", kube.VLLM_DEPLOYMENT, effect="new objects are noticed late"),
    *permissions("patch", kube.VLLM_DEPLOYMENT, effect="no status can be written", subresource="status"),
    *permissions("get list create patch", kube.DEPLOYMENT, kube.SERVICE, kube.CLAIM, effect="no VLLMDeployment can be served"),
    *permissions("get list create", kube.REVISION, effect="replaced plans are lost, and plans whose rollout is held back are not applied"),
    *permissions("get list", kube.POD, effect="no start can be reported"),
    *permissions("watch", *WATCHED[1:], effect="changes are noticed late, at the next resync"),
    *permissions("get", kube.POD, effect="stages, progress and causes of crashes are unknown", subresource="log"),
    *permissions("create", kube.EVENT, effect="no events are written"),
    *permissions("list", kube.NODE, effect="no GPU can be chosen"),
)
"""Without one of these, the operator is not ready but continues as far as possible."""
INSTALLABLE = (kube.PRESET, kube.CLUSTER_PRESET, kube.LEADER_WORKER_SET)
"""Watched kinds whose CRDs may be missing: for objects that name a preset, and for replicas on several nodes."""
IF_INSTALLED = permissions("list watch", *INSTALLABLE)


def watched_kinds(denied: Collection[Permission], *, installed: Collection[Kind] = ()) -> tuple[Kind, ...]:
    """Return the kinds that the operator may list and watch, with those whose CRDs are `installed`. One forbidden watch would end all."""
    missing = {permission.kind for permission in denied if permission.verb in ("list", "watch") and not permission.subresource}
    return tuple(kind for kind in (*WATCHED, *installed) if kind not in missing)


class WatchesOutdated(Exception):  # noqa: N818 - an event, not an error
    """The set of kinds to watch has changed since the watches began."""


@dataclass(slots=True)
class Preconditions:
    """Waits for the preconditions, and keeps the readiness current. `host` is for messages."""

    client: ClusterClient
    readiness: Readiness
    namespaces: Sequence[str] = ()
    host: str = ""
    retry_seconds: float = RETRY_SECONDS
    check_seconds: float = CHECK_SECONDS
    _denied: Collection[Permission] = ()
    _installed: tuple[Kind, ...] = ()
    _recheck_due: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.readiness.missing |= {name: f"{name}: not checked yet" for name in (_API_SERVER, "CRD")}

    async def wait(self) -> tuple[Kind, ...]:
        """Wait until all preconditions are met. Return the kinds that can be watched."""
        await self._until_met("permissions", self._check_permissions)
        await self._until_met("CRD", self._check_crd)
        return self._kinds()

    async def watch(self, kinds: Sequence[Kind]) -> None:
        """Check at intervals, and after the API server has refused a request. Raises WatchesOutdated if `kinds` are not those to watch."""
        lost = 0
        while True:
            # a minimum, because the API server may refuse many requests
            await asyncio.sleep(self.retry_seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.retry_seconds if self.readiness.missing or lost else self.check_seconds):
                    await self._recheck_due.wait()
            is_due = lost > 0 or self._recheck_due.is_set() or any(name.startswith("permission ") for name in self.readiness.missing)
            try:
                await self._run(self._check_crd, *([self._check_permissions] if is_due else []))
            except _Missing as error:
                raise WatchesOutdated("the CRD is gone") from error
            except ClusterError:
                continue  # the readiness reports it, and the watches survive an outage
            found = set(self._kinds())
            lost = lost + 1 if set(kinds) - found else 0
            if found - set(kinds) or lost >= LOST_CHECKS:
                raise WatchesOutdated("the kinds that the operator may watch have changed")

    def recheck(self) -> None:
        """Check now. Call this after the API server has refused a request."""
        self._recheck_due.set()

    def _kinds(self) -> tuple[Kind, ...]:
        return watched_kinds(self._denied, installed=self._installed)

    async def _until_met(self, name: str, check: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await self._run(check)
                return self.readiness.clear_missing(name)
            except (Unavailable, _Missing):
                pass  # the check has reported it
            except ClusterError as error:
                self.readiness.set_missing(name, f"{name}: {error}")
            await asyncio.sleep(self.retry_seconds)

    async def _run(self, *checks: Callable[[], Awaitable[None]]) -> None:
        missing: dict[str, str] = {}
        try:
            for check in checks:
                await check()
        except Unauthorized as error:
            missing[_CREDENTIALS] = str(error)
            raise
        except Unavailable as error:
            missing[_API_SERVER] = f"The API server {self.host} cannot be reached: {error}"
            raise
        finally:
            self.readiness.clear_missing(*({_API_SERVER, _CREDENTIALS} - set(missing)))
            for name, message in missing.items():
                self.readiness.set_missing(name, message)

    async def _check_permissions(self) -> None:
        """Check the permissions. Each costs a request, so call this only when needed."""
        asked = (*REQUIRED, *IF_INSTALLED)
        answers: list[bool] = []
        for start in range(0, len(asked), REVIEWS):
            answers += await asyncio.gather(*map(self._may, asked[start : start + REVIEWS]))
        self._recheck_due.clear()
        self._denied = [permission for permission, allowed in zip(asked, answers, strict=True) if not allowed]
        for permission in REQUIRED:
            name = f"permission {permission}"
            if permission in self._denied:
                message = f"The operator may not {permission}, so {permission.effect}. Allow it in its ClusterRole, as the chart does."
                self.readiness.set_missing(name, message)
            else:
                self.readiness.clear_missing(name)

    async def _may(self, permission: Permission) -> bool:
        for namespace in (self.namespaces if permission.kind.namespaced else ()) or ("",):
            review = {"apiVersion": kube.ACCESS_REVIEW.api_version, "kind": kube.ACCESS_REVIEW.kind, "metadata": {}}
            try:
                answer = await self.client.create({**review, "spec": {"resourceAttributes": permission.attributes(namespace)}})
            except Forbidden:
                return True  # unknown: a request will show it
            if not (answer.get("status") or {}).get("allowed"):
                return False
        return True

    async def _check_crd(self) -> None:
        """Check that the CRD exists, and find the CRDs that are installed."""
        if not await self._is_served(kube.VLLM_DEPLOYMENT):
            name = f"{labels.PLURAL}.{labels.GROUP}"
            message = f"The CRD {name} does not exist. Install it with kubectl apply -f crds/, or install the Helm chart."
            self.readiness.set_missing("CRD", message)
            raise _Missing
        self.readiness.clear_missing("CRD")
        self._installed = tuple([kind for kind in INSTALLABLE if await self._is_served(kind)])

    async def _is_served(self, kind: Kind) -> bool:
        """Return whether the API server serves a kind. A kind that the operator may not list is reported as a missing permission."""
        try:
            namespace = self.namespaces[0] if self.namespaces and kind.namespaced else None
            await self.client.find(kind, namespace, fields={"metadata.name": "does-not-exist"})
        except NotFound:
            return False
        except Forbidden:
            pass
        return True


class _Missing(Exception):  # noqa: N818 - a signal
    """A precondition is missing. The readiness reports it."""

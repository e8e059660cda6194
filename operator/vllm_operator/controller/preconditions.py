"""Preconditions of the operator: the API server, the permissions and the CRD.

The operator waits for missing preconditions, and the readiness probe reports them. They are checked again at intervals. If the kinds that
can be watched have changed, or the CRD is gone, the operator exits, and the kubelet restarts it.

Each permission says what its absence costs. The ClusterRole of the chart grants exactly these.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from vllm_operator.api import labels
from vllm_operator.controller.health import Readiness
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterClient, ClusterError, Forbidden, Kind, NotFound, Unauthorized, Unavailable

log = logging.getLogger(__name__)

Check = Callable[[], Awaitable[None]]

RETRY_SECONDS = 2.0
"""Delay between attempts while a precondition is missing, and minimum delay between checks after a refused request."""
CHECK_SECONDS = 60.0
"""Interval between checks while all preconditions are met."""
REVIEWS = 8
"""Maximum number of permissions that are checked concurrently."""
PERMISSION = "permission"
"""Prefix of the names of missing permissions in the readiness."""


@dataclass(frozen=True, slots=True)
class Permission:
    """A verb on a resource. `effect` describes the effect if it is missing."""

    verb: str
    kind: Kind
    subresource: str = ""
    effect: str = ""

    def __str__(self) -> str:
        resource = self.kind.plural + (f"/{self.subresource}" if self.subresource else "")
        return f"{self.verb} {resource}" + (f" in API group {self.kind.group}" if self.kind.group else "")


def _all(kind: Kind, verbs: str, effect: str, subresource: str = "") -> tuple[Permission, ...]:
    return tuple(Permission(verb, kind, subresource, effect) for verb in verbs.split())


_SEES_LATE = "changes are noticed late, at the next resync"
_STAYS = "after a restart of the operator, objects of this kind that are no longer desired stay"
_CANNOT_BUILD = f"no {kube.VLLM_DEPLOYMENT.kind} can be served"

REQUIRED = (
    *_all(kube.VLLM_DEPLOYMENT, "get list", "nothing can be served"),
    *_all(kube.VLLM_DEPLOYMENT, "watch", "new objects are noticed late"),
    *_all(kube.VLLM_DEPLOYMENT, "patch", "no status can be written", "status"),
    *_all(kube.DEPLOYMENT, "get list create patch", _CANNOT_BUILD),
    *_all(kube.SERVICE, "get list create patch", _CANNOT_BUILD),
    *_all(kube.CLAIM, "get list create patch", _CANNOT_BUILD),
    *_all(kube.REVISION, "get list create", "replaced plans are lost, and plans whose rollout is held back are not applied"),
    *_all(kube.POD, "get list", "no start can be reported"),
    *(
        permission
        for kind in (kube.DEPLOYMENT, kube.SERVICE, kube.CLAIM, kube.REVISION, kube.POD)
        for permission in _all(kind, "watch", _SEES_LATE)
    ),
    *_all(kube.POD, "get", "stages, progress and causes of crashes are unknown", "log"),
    *_all(kube.EVENT, "create", "no events are written"),
    *_all(kube.NODE, "list", "no GPU can be chosen"),
)
"""Without one of these, the operator is not ready but continues as far as possible."""

OPTIONAL = (
    *_all(
        kube.VLLM_DEPLOYMENT,
        "update",
        "nothing can be created on API servers that check the permission to set owners, such as those of OpenShift",
        "finalizers",
    ),
    *_all(kube.DEPLOYMENT, "delete", "Deployments that are no longer desired stay"),
    *_all(kube.SERVICE, "delete", "Services that are no longer desired stay"),
    *_all(kube.REVISION, "delete", "old plans stay"),
    *_all(kube.POD, "delete", "stalled starts are reported and not restarted"),
    *_all(kube.EVENT, "list", "messages have fewer details"),
    *_all(kube.EVENT, "get patch", "repeated events are not counted"),
    *_all(kube.RESOURCE_SLICE, "list", "dynamic resource allocation cannot be planned"),
    *_all(kube.NODE_POOL, "list", "GPUs that Karpenter would add are unknown"),
    *_all(kube.CLAIM_TEMPLATE, "get list create patch delete", "dynamic resource allocation cannot be used"),
    *_all(kube.POD_METRICS, "get", "the CPU use of a silent start is unknown, and it gets the time that its stage may need"),
    *_all(kube.JOB, "create", "a full cache volume is not cleaned, and weights are not fetched before a start"),
    *_all(
        kube.JOB,
        "get delete",
        "a finished cleaning Job keeps a PersistentVolumeClaim that is being deleted for a quarter of an hour, a Job that fetches weights "
        "does not follow the replicas, and it is unknown why a Job has no Pod",
    ),
    *_all(kube.NETWORK_POLICY, "get create patch delete", "spec.networkPolicy has no effect"),
    *_all(kube.NETWORK_POLICY, "list", _STAYS),
    *_all(kube.DISRUPTION_BUDGET, "get list create patch delete", "evictions may end several replicas at the same time"),
    *_all(kube.AUTOSCALER, "get create patch delete", "spec.autoscaling has no effect"),
    *_all(kube.AUTOSCALER, "list", "a Deployment that was scaled through its scale subresource counts as autoscaled"),
)
"""Without one of these the operator is ready, but a feature does not work."""

ALL_NAMESPACES = _all(kube.RESOURCE_CLAIM, "list", "it is unknown which devices for dynamic resource allocation are free")
"""Permissions of a cluster-wide operator to count free devices. Not checked at the start: few clusters have such devices."""

_NO_GATEWAY = "spec.gateway has no effect"
GATEWAY = (
    *_all(kube.HTTP_ROUTE, "get create patch delete", _NO_GATEWAY),
    *_all(kube.HTTP_ROUTE, "list", _STAYS),
    *_all(kube.INFERENCE_POOL, "get create patch delete", _NO_GATEWAY),
    *_all(kube.INFERENCE_POOL, "list", _STAYS),
)
"""Needed only for the integration `gateway`. Not checked at the start, because the kinds may be missing."""

_NO_PRESET = "VLLMDeployments with spec.presetRef get no plan"
PRESETS = (*_all(kube.PRESET, "list watch", _NO_PRESET), *_all(kube.CLUSTER_PRESET, "list watch", _NO_PRESET))
"""Needed only for objects that name a preset. The CRDs may be missing."""

KEDA = (
    *_all(kube.SCALED_OBJECT, "get create patch delete", "spec.autoscaling.keda has no effect"),
    *_all(kube.SCALED_OBJECT, "list", _STAYS),
)
"""Needed only for the integration `keda`. Not checked at the start, because the kinds may be missing."""

WATCHED = (kube.VLLM_DEPLOYMENT, kube.DEPLOYMENT, kube.REVISION, kube.SERVICE, kube.CLAIM, kube.POD)


def watched_kinds(denied: Collection[Permission], *, presets: Collection[Kind] = ()) -> tuple[Kind, ...]:
    """Return the kinds that the operator may list and watch, with presets if their CRDs exist. One forbidden watch would end all."""
    missing = {permission.kind for permission in denied if permission.verb in ("list", "watch") and not permission.subresource}
    return tuple(kind for kind in (*WATCHED, *presets) if kind not in missing)


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
        """Initialize without checks. `readiness` receives missing preconditions; `host` is for messages."""
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
            with suppress(TimeoutError):
                async with asyncio.timeout(self._retry if self._readiness.missing else self._check):
                    await self._recheck_due.wait()
            is_due = self._recheck_due.is_set() or any(name.startswith(PERMISSION) for name in self._readiness.missing)
            try:
                await self._run(self._check_crd, *([self._check_permissions] if is_due else []))
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

    async def _until(self, name: str, check: Check) -> None:
        while True:
            try:
                await self._run(check)
            except (Unavailable, _Missing):
                pass  # the check has reported it
            except ClusterError as error:
                self._readiness.set_missing(name, f"{name}: {error}")
            else:
                self._readiness.clear_missing(name)
                return
            await asyncio.sleep(self._retry)

    async def _run(self, *checks: Check) -> None:
        """Run checks, and update the readiness: whether the API server answers and accepts the credentials."""
        readiness = self._readiness
        try:
            for check in checks:
                await check()
        except Unauthorized as error:
            readiness.clear_missing("API server")
            readiness.set_missing("credentials", str(error))
            raise
        except Unavailable as error:
            readiness.set_missing("API server", f"The API server {self._host} cannot be reached: {error}")
            raise
        except (ClusterError, _Missing):
            readiness.clear_missing("API server", "credentials")
            raise
        readiness.clear_missing("API server", "credentials")

    async def _check_permissions(self) -> None:
        """Check all permissions. Each costs a request, so call this only when needed."""
        asked = (*REQUIRED, *OPTIONAL, *PRESETS)
        answers = await self._review(asked)
        self._recheck_due.clear()
        self._denied = frozenset(permission for permission, allowed in zip(asked, answers, strict=True) if not allowed)
        for permission in REQUIRED:
            name = f"{PERMISSION} {permission}"
            if permission in self._denied:
                message = f"The operator may not {permission}, so {permission.effect}. Allow it in its ClusterRole, as the chart does."
                self._readiness.set_missing(name, message)
            else:
                self._readiness.clear_missing(name)

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
            attributes = {"verb": permission.verb, "group": permission.kind.group, "resource": permission.kind.plural}
            attributes |= {"subresource": permission.subresource} if permission.subresource else {}
            attributes |= {"namespace": namespace} if namespace else {}
            review = {"apiVersion": kube.ACCESS_REVIEW.api_version, "kind": kube.ACCESS_REVIEW.kind, "metadata": {}}
            review["spec"] = {"resourceAttributes": attributes}
            try:
                answer = await self._client.create(review)
            except Forbidden:
                return True  # unknown: a request will show it
            if not (answer.get("status") or {}).get("allowed"):
                return False
        return True

    async def _check_crd(self) -> None:
        """Check that the CRD exists, and find the available CRDs of presets."""
        if not await self._is_served(kube.VLLM_DEPLOYMENT):
            name = f"{labels.PLURAL}.{labels.GROUP}"
            message = f"The CRD {name} does not exist. Install it with kubectl apply -f crds/, or install the Helm chart."
            self._readiness.set_missing("CRD", message)
            raise _Missing
        self._readiness.clear_missing("CRD")
        self._preset_kinds = tuple([kind for kind in (kube.PRESET, kube.CLUSTER_PRESET) if await self._is_served(kind)])

    async def _is_served(self, kind: Kind) -> bool:
        """Return whether the API server serves a kind. A kind that the operator may not list is reported as a missing permission."""
        try:
            namespace = self._namespaces[0] if self._namespaces and kind.namespaced else None
            await self._client.find(kind, namespace, fields={"metadata.name": "does-not-exist"})
        except NotFound:
            return False
        except Forbidden:
            pass
        return True


class _Missing(Exception):  # noqa: N818 - a signal
    """A precondition is missing. The readiness reports it."""

"""What the operator asks of a Kubernetes API server: eleven verbs on plain dictionaries.

Manifests are camelCase dictionaries as they go over the wire, never typed models: a model of an older
schema drops the fields that it does not know, and writing it back would delete them.

Everything that can go wrong is one of these; the reconciler decides by the class alone:

    ClusterError
    ├── NotFound         404: no such object, or the API server does not serve this kind
    ├── Conflict         409: the object changed meanwhile, exists already, or a field belongs to someone else
    ├── Forbidden        403: names the verb and the resource that the operator lacks
    ├── Invalid          400, 422: the API server's own words say which field and why; only a change helps
    ├── Gone             410: the resourceVersion is too old
    └── Unavailable      no connection, time-out, 429, 5xx: worth another try
        ├── Unauthorized     401: the API server does not accept the credentials, even when they are read anew
        └── NotLeading       nothing was sent: another operator may lead by now
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from vllm_operator.api import labels

Manifest = dict[str, Any]
"""A Kubernetes object, or a part of one, as JSON."""


Key = tuple[str, str]
"""Namespace and name of a VLLMDeployment."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object and where the API server serves it. `api_version` is `v1` or `group/version`."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.partition("/")[0] if "/" in self.api_version else ""

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of the collection, of one object, or of a subresource of it."""
        parts = ["apis" if self.group else "api", self.api_version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(parts)


VLLM_DEPLOYMENT = Kind(labels.API_VERSION, labels.KIND, labels.PLURAL)
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
REVISION = Kind("apps/v1", "ControllerRevision", "controllerrevisions")
SERVICE = Kind("v1", "Service", "services")
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
POD = Kind("v1", "Pod", "pods")
EVENT = Kind("v1", "Event", "events")
NODE = Kind("v1", "Node", "nodes", namespaced=False)
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SECRET = Kind("v1", "Secret", "secrets")
POD_METRICS = Kind("metrics.k8s.io/v1beta1", "PodMetrics", "pods")
JOB = Kind("batch/v1", "Job", "jobs")
AUTOSCALER = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
CLAIM_TEMPLATE = Kind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
RESOURCE_SLICE = Kind("resource.k8s.io/v1", "ResourceSlice", "resourceslices", namespaced=False)
DEFINITION = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
ACCESS_REVIEW = Kind("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False)

KINDS = (
    VLLM_DEPLOYMENT,
    DEPLOYMENT,
    REVISION,
    SERVICE,
    CLAIM,
    POD,
    EVENT,
    NODE,
    CONFIG_MAP,
    SECRET,
    POD_METRICS,
    JOB,
    AUTOSCALER,
    CLAIM_TEMPLATE,
    RESOURCE_SLICE,
    DEFINITION,
    LEASE,
    ACCESS_REVIEW,
)


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """Return the kind of a manifest.

    Raises:
        LookupError: The operator does not know this kind.
    """
    for kind in KINDS:
        if (kind.api_version, kind.kind) == (manifest.get("apiVersion"), manifest.get("kind")):
            return kind
    raise LookupError(f"{manifest.get('apiVersion')} {manifest.get('kind')} is not a kind that the operator works with")


# ruff: noqa: N818 - they are named as the API server names them
class ClusterError(Exception):
    """The API server did not do what it was asked. `str()` is its own words where it had any."""


class NotFound(ClusterError):
    """No such object, or no such kind on this server."""


class Conflict(ClusterError):
    """The object changed since it was read, exists already, or another manager owns a field."""


class Forbidden(ClusterError):
    """The operator's account lacks a permission."""

    def __init__(self, message: str, *, verb: str = "", resource: str = "") -> None:
        super().__init__(message)
        self.verb = verb
        self.resource = resource


class Invalid(ClusterError):
    """The API server refused the object; `causes` are (field, why)."""

    def __init__(self, message: str, *, causes: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.causes = causes


class Gone(ClusterError):
    """The resourceVersion asked for is too old."""


class Unavailable(ClusterError):
    """The API server cannot be reached or cannot answer now. `retry_after` is in seconds, where it said so."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unauthorized(Unavailable):
    """The API server does not accept the credentials. Tokens rotate, so it is worth another try."""


class NotLeading(Unavailable):
    """This process does not hold the Lease now, so nothing was sent."""


@dataclass(frozen=True, slots=True)
class LogRequest:
    """Which log to read. `since` is an RFC 3339 time; the server cuts it to whole seconds."""

    namespace: str
    pod: str
    container: str
    follow: bool = True
    previous: bool = False
    since: str | None = None
    limit_bytes: int | None = None


class ClusterClient(Protocol):
    """The verbs. All raise `ClusterError`s; none waits longer than the time-out it was built with."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        """Read one object. Raises NotFound."""

    async def get_path(self, path: str) -> Manifest:
        """Read a JSON document of the API server that is no object, for example `/version`."""

    async def find(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
        cached: bool = False,
    ) -> Sequence[Manifest]:
        """List objects. `cached` accepts an answer that is a moment old and costs the server less."""

    async def apply(self, manifest: Manifest, *, manager: str, force: bool = True) -> Manifest:
        """Create or change an object by server-side apply and return it as it is now.

        Without `force`, a field that another manager owns with another value is a Conflict.
        """

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """Apply the status of an object. Raises NotFound where the object is gone."""

    async def patch(self, kind: Kind, name: str, namespace: str | None, operations: Sequence[Manifest], *, manager: str) -> Manifest:
        """Apply a JSON patch (RFC 6902). A failed `test` operation is a Conflict."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object. Raises Conflict where it exists."""

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, *, uid: str | None = None) -> None:
        """Delete an object, if it is still the one with this uid. An object that is gone is no error."""

    def stream_log(self, request: LogRequest) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a log with timestamps; iterate over its bytes in pieces of at most 64 KiB.

        That the stream ends says nothing about the container: it ends also when the kubelet restarts.
        """

    def watch(
        self, kind: Kind, name: str, namespace: str | None = None, *, seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        """Watch one object that need not exist; iterate over what happens to it, until `seconds` have passed.

        Whatever happens after this was opened is told. What happened before must be asked for; that the object is there is
        told too. It may end earlier: open it again then, and ask again.
        """

    async def close(self) -> None:
        """Close all connections."""
